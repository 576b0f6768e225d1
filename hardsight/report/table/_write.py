"""From a run on disk to one HTML file on disk."""

from __future__ import annotations

import os
from pathlib import Path

from hardsight.errors import MissingDataError, OptionError
from hardsight.report.page import replace_page
from hardsight.report.table._page import page
from hardsight.report.table._view import view_of
from hardsight.table import DYNAMICS, TABLE, RunFolder, ScoreTable, read_table

_REPORT = "report.html"
_OF_RUNS = (TABLE, DYNAMICS)


def write_report(
    run: str | os.PathLike[str] | ScoreTable,
    *,
    out: str | os.PathLike[str] | None = None,
    title: str | None = None,
) -> Path:
    """Write one self-contained HTML page about a scored dataset, or a tracked training run.

    The page needs no network and no server. Thumbnails, unreadable examples and, where training
    was tracked, curves over epochs are taken from the run's folder where it has them.

    Args:
        run: the folder of a finished run of scoring or training, its ``table.parquet``, or a
            table in memory.
        out: the file to write, or an existing folder; by default ``report.html`` beside the table.
        title: heading of the page; by default the name of the data.

    Returns:
        The file written. It replaces an older one only when complete.

    Raises:
        MissingDataError: there is no finished run there.
        TableError: the file is no score table.
        OptionError: the table has no file, and ``out`` is not given.
        OutputError: the page cannot be written.

    Example:
        >>> import tempfile, pyarrow as pa
        >>> from hardsight.table import ScoreTable, with_metadata
        >>> rows = pa.table({"index": [0, 1], "id": ["a.png", "b.png"], "label": [0, 1],
        ...                  "prediction": [0, 0], "avh": [0.1, 0.8]})
        >>> about = {"classes": ["cat", "dog"], "scores": {"avh": {"higher_is_harder": True}}}
        >>> table = ScoreTable(with_metadata(rows, about))
        >>> write_report(table, out=tempfile.mkdtemp()).name
        'report.html'
    """
    table = run if isinstance(run, ScoreTable) else _read(Path(run))
    file = _output_file(table, out)
    folder = RunFolder(table.path.parent) if table.path and table.path.name in _OF_RUNS else None
    replace_page(file, page(view_of(table, folder=folder, title=title)))
    return file


def _read(run: Path) -> ScoreTable:
    """The table of a run, be it one of scoring or one of training."""
    if run.is_dir() and not (run / TABLE).exists():
        if (run / DYNAMICS).exists():
            return read_table(run / DYNAMICS)
        if (run / "recipe.json").exists():
            raise MissingDataError(
                f"{run} is a training run without dynamics; train with `--set track=true` and "
                f"report on it, or score the model first: `hardsight score --model {run} "
                "--data ... --out SCORES`, then `hardsight report SCORES`"
            )
    return read_table(run)


def _output_file(table: ScoreTable, out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        return Path(out) / _REPORT if Path(out).is_dir() else Path(out)
    if table.path is None:
        raise OptionError("this table has no file to put the report beside; pass out='report.html'")
    return table.path.with_name(
        _REPORT if table.path.name in _OF_RUNS else f"{table.path.stem}.html"
    )
