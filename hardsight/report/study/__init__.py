"""The page of a study, in Markdown with figures."""

from hardsight.report.study._study import write_study as write_study
