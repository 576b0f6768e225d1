"""From a run on disk to one HTML file on disk."""

from __future__ import annotations

import os
from pathlib import Path

from hardsight.errors import OptionError
from hardsight.report.page import page_file, replace_page
from hardsight.report.table._page import page
from hardsight.report.table._view import view_of
from hardsight.table import DYNAMICS, TABLE, RunFolder, ScoreTable, read_table

_REPORT = "report.html"
_OF_RUNS = (TABLE, DYNAMICS)


def write_table_page(
    run: str | os.PathLike[str] | ScoreTable,
    *,
    out: str | os.PathLike[str] | None = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """The page of a scored dataset or a tracked training run; see ``hardsight.write_report``."""
    table = run if isinstance(run, ScoreTable) else read_table(run)
    if out is None and table.path is None:
        raise OptionError("this table has no file to put the report beside; pass out='report.html'")
    is_of_run = table.path is not None and table.path.name in _OF_RUNS
    run_folder = RunFolder(table.path.parent) if table.path and is_of_run else None
    if out is None and table.path is not None and run_folder is None:
        out = table.path.with_suffix(".html")  # a table that was copied elsewhere
    home = None if run_folder is None else run_folder.folder
    file = page_file(out, run=home, name=_REPORT, overwrite=overwrite)
    replace_page(file, page(view_of(table, folder=run_folder, title=title)))
    return file
