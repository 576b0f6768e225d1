"""Runs as self-contained pages: no network, no torch."""

from hardsight.report._run import write_report as write_report
from hardsight.report.adaptation import write_adaptation as write_adaptation
from hardsight.report.card import write_card as write_card
from hardsight.report.study import write_study as write_study
