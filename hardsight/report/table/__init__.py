"""The page of a score table or a tracked training run."""

from hardsight.report.table._write import write_report as write_report
