"""Export a run to the tools that people already use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight._checks import checked_options, versions_of, warn
from hardsight.errors import DataError, HardsightError, OptionError, UnknownNameError
from hardsight.exchange.copies import RECORD, staged
from hardsight.exchange.tools import (
    HERE,
    HERE_WHOLE,
    Pictures,
    RunRows,
    write_argilla,
    write_cleanlab,
    write_csv,
    write_fiftyone,
    write_huggingface,
    write_labelstudio,
)
from hardsight.gallery import class_numbers
from hardsight.registry import unknown_name
from hardsight.review import decisions
from hardsight.run_folder import MEND, write_json, writing
from hardsight.table import read_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data import ExampleSource
    from hardsight.table import ScoreTable

TOOLS = ("csv", "cleanlab", "huggingface", "label-studio", "fiftyone", "argilla")
_OF_SUSPECTS = ("label-studio", "argilla")  # in which people look at every exported example
_NEED_PICTURES = (*_OF_SUSPECTS, "fiftyone")
_FILES = {"csv": (".csv",), "cleanlab": (".parquet", ".csv")}  # the others are folders
_STEP = f"{MEND} or choose another --out; nothing is left of it"
_DISPUTED = "disputed"
_COLUMNS = ("text_column", "label_column", "image_column")  # as the data was read


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        out: the file or folder.
        rows: number of examples in it.
        notes: how to open it, and what is missing.
    """

    out: Path
    rows: int
    notes: tuple[str, ...] = ()


@checked_options
def export_run(
    run: str | os.PathLike[str],
    to: str,
    *,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    examples: str | None = None,
    limit: int | None = None,
    image_url: str | None = None,
    overwrite: bool = False,
    rows: str | None = None,
) -> Exported:
    """Write a run in the form of another tool, with suggestions, reasons and decisions.

    Args:
        run: folder of a finished run, or its table.
        to: ``csv``, ``cleanlab``, ``huggingface``, ``label-studio``, ``fiftyone`` or ``argilla``.
        out: a file for csv (.csv) and cleanlab (.parquet or .csv), else a folder.
        data: where the data is now, if it has moved since it was scored.
        examples: ``all``, or ``suspects`` with the most suspect first, which is the default for
            Label Studio and Argilla.
        limit: largest number of examples.
        image_url: for Label Studio, the URL that paths of pictures are appended to, such as
            ``https://example.org/photos/``; by default it reads them from its local storage.
        overwrite: whether to replace what is at ``out``.
        rows: the old name of ``examples``.

    Returns:
        what was written.

    Raises:
        MissingDataError: there is no finished run there.
        DataError: the pictures or texts are needed and cannot be found, or the tool cannot show
            this kind of examples.
        OptionError: an option has no meaning for this tool.
        RunExistsError: ``out`` already exists.
        OutputError: the export could not be written.
    """
    if to not in TOOLS:
        raise UnknownNameError(unknown_name("tool", to, list(TOOLS)))
    place = Path(out)
    if rows is not None:  # renamed, because other functions take numbers of rows as ``rows``
        warn("rows of export_run is now called examples")
        examples = rows
    _check_options(to, place, examples, image_url)
    table = read_table(run)
    exported = _run_rows(run, table)
    chosen = exported.chosen(examples or ("suspects" if to in _OF_SUSPECTS else "all"), limit)
    # csv and cleanlab files have no pictures, so they do not need the data
    source, problem = (None, "") if to in _FILES else _opened(table, data)
    if to in _NEED_PICTURES and source is None:
        raise DataError(f"{to} needs the pictures or texts, but {problem}")
    pictures = Pictures(source, exported, _root(source))
    with writing(place, step=_STEP), staged(place, overwrite) as target:
        notes = _write(to, exported, chosen, target, pictures, image_url)
        if target.is_dir():
            about = {"format": 1, "tool": to, "rows": len(chosen), "versions": versions_of()}
            write_json(target / RECORD, about)
    whole = os.path.abspath(place)
    notes = [note.replace(HERE, str(place)).replace(HERE_WHOLE, whole) for note in notes]
    if problem and to == "huggingface":
        notes.append(f"there are no pictures or texts in it: {problem}")
    return Exported(place, len(chosen) - pictures.left_out, tuple(notes))


def _check_options(to: str, out: Path, examples: str | None, image_url: str | None) -> None:
    if examples not in (None, "all", "suspects"):
        raise OptionError(f"expected examples to be all or suspects, got {examples!r}")
    if image_url is not None and to != "label-studio":
        raise OptionError(f"image_url cannot be used here: {to} takes pictures by path or content")
    if to in _FILES and out.suffix.lower() not in _FILES[to]:
        raise OptionError(f"expected --out to end with {' or '.join(_FILES[to])}, got {out}")


def _write(
    to: str,
    run: RunRows,
    rows: NDArray[np.int64],
    target: Path,
    pictures: Pictures,
    image_url: str | None,
) -> list[str]:
    if to == "csv":
        return write_csv(run, rows, target)
    if to == "cleanlab":
        return write_cleanlab(run, rows, target)
    if to == "huggingface":
        return write_huggingface(run, rows, target, pictures)
    if to == "argilla":
        return write_argilla(run, rows, target, pictures)
    if to == "fiftyone":
        return write_fiftyone(run, rows, target, pictures)
    return write_labelstudio(run, rows, target, pictures, image_url=image_url)


def _run_rows(run: str | os.PathLike[str], table: ScoreTable) -> RunRows:
    """The table with what reviewers agree on."""
    made = decisions(run)
    decided = np.full(len(table), -1, np.int64)
    verdict = [""] * len(table)
    row_of = {index: row for row, index in enumerate(class_numbers(table, "index").tolist())}
    for _, said in made.groupby("index"):
        row = row_of[int(said["index"].iloc[0])]
        opinions = said[["verdict", "new"]].drop_duplicates()
        # people disagree, so neither decision is used
        if len(opinions) > 1:
            verdict[row] = _DISPUTED
        else:
            verdict[row], decided[row] = str(opinions["verdict"].iloc[0]), opinions["new"].iloc[0]
    # the table may have classes that the model does not name
    most = max(class_numbers(table, name).max(initial=-1) for name in ("label", "prediction"))
    named = table.classes
    classes = (*named, *(str(label) for label in range(len(named), int(most) + 1)))
    return RunRows(table, classes, decided, verdict)


def _opened(
    table: ScoreTable, data: str | os.PathLike[str] | None
) -> tuple[ExampleSource | None, str]:
    """The data of a run, or why it cannot be used."""
    from hardsight.data import EmbeddingSource, reopened_source, unlabelled_source

    about: dict[str, Any] = table.metadata.get("data") or {}
    spec = about.get("spec") if data is None else os.fspath(data)
    if not spec:
        return None, "the run does not say where its data is; name it with --data"
    split = about.get("split")
    columns = {key: about[key] for key in _COLUMNS if key in about}
    try:
        if about.get("unlabelled"):
            source = unlabelled_source(spec, split=split)
        else:
            labels = np.maximum(class_numbers(table, "label"), 0)
            source = reopened_source(spec, labels, split=split, **columns)
    except HardsightError as err:
        # data that the user named must exist; data that only the run names may be gone
        if data is not None:
            raise
        return None, f"the data cannot be opened: {err}; say where it is with --data"
    if isinstance(source, EmbeddingSource) or source.is_stream:
        return None, f"{spec} has no pictures or texts by position"
    return source, ""


def _root(source: ExampleSource | None) -> Path | None:
    place = None if source is None else source.label_place
    if place is None:
        return None
    return (place.root if place.root.is_dir() else place.root.parent).absolute()
