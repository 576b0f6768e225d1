"""A score table as one self-contained HTML page: no network, no torch."""

from hardsight.report._adaptation import write_adaptation as write_adaptation
from hardsight.report._card import write_card as write_card
from hardsight.report._study import write_study as write_study
from hardsight.report._write import write_report as write_report
