"""The page of a score table or a tracked training run."""

from hardsight.report.table._page import write_table_page as write_table_page
