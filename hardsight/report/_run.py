"""Write the page of a run, whatever kind of run it is."""

from __future__ import annotations

import os
from pathlib import Path

from hardsight.errors import MissingDataError, OptionError
from hardsight.report.adaptation import write_adaptation
from hardsight.report.card import write_card
from hardsight.report.study import write_study
from hardsight.report.table import write_table_page
from hardsight.run_folder import ADAPT, DEMO, EVALUATE, EXPERIMENT, STUDY, RunFolder
from hardsight.table import ScoreTable


def write_report(
    run: str | os.PathLike[str] | ScoreTable,
    *,
    out: str | os.PathLike[str] | None = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the page of a run: a scored dataset, a tracked training run, or any other kind.

    The page of a table is one self-contained HTML file, which needs no network and no server.
    Thumbnails, unreadable examples and, for a tracked training run, curves over epochs come from
    the folder of the run if it has them. An evaluation, an adaptation and a study get the page that
    their own command writes. An experiment already has its page.

    Args:
        run: the folder of a finished run, its ``table.parquet``, or a table in memory.
        out: the file to write, or an existing folder; by default in the folder of the run.
        title: heading of the page; by default the name of the data.
        overwrite: whether to replace an existing file. The page in the folder of its own run is
            always replaced.

    Returns:
        The page. An older page is replaced only once the new one is complete.

    Raises:
        MissingDataError: there is no finished run there, or it is a run without a page.
        TableError: the file is not a score table.
        OptionError: the table has no file, and ``out`` is not given.
        RunExistsError: the file exists, and ``overwrite`` is not given.
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
    if isinstance(run, ScoreTable) or not Path(run).is_dir():
        return write_table_page(run, out=out, title=title, overwrite=overwrite)
    kind = RunFolder(run).kind
    if kind is EVALUATE:
        return write_card(run, out=out, title=title, overwrite=overwrite)
    if kind is ADAPT:
        return write_adaptation(run, out=out, title=title, overwrite=overwrite)
    if kind is STUDY:
        if out is not None or title is not None:
            raise OptionError(
                f"{run} is a study, whose page has to stay beside its figures; leave out --out "
                "(out) and --title (title)"
            )
        return write_study(run)
    if kind is EXPERIMENT:
        if out is not None or title is not None:
            raise OptionError(
                f"{run} is an experiment, whose page has to stay beside its figures; leave out "
                "--out (out) and --title (title)"
            )
        return Path(run) / "README.md"  # written by the experiment itself
    if kind is DEMO:
        raise MissingDataError(
            f"{run} is a demo with two runs; report on {Path(run) / 'train'} or on "
            f"{Path(run) / 'heldout'}"
        )
    return write_table_page(run, out=out, title=title, overwrite=overwrite)
