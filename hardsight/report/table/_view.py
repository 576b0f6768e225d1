"""The view that all parts of a page share: the table, read once into plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.gallery import RIGHT, WRONG, Gallery, class_numbers, gallery_rows, outcomes
from hardsight.report.page import NONE
from hardsight.suspects import Suspects, suspects_of
from hardsight.table import HELD_OUT, HISTORIES, TRACKED, RunFolder, ScoreTable, error_rows

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class View:
    """A table, with everything derived from it that more than one part of the page needs.

    Attributes:
        table: the rows.
        title: heading of the page.
        labels: class number per row, -1 if there is none.
        predictions: predicted class number per row, -1 if there is none.
        outcome: 1 right, 0 wrong, -1 unknown, per row.
        gallery: the rows the page shows one by one.
        thumbnails: encoded pictures by source position.
        excerpts: first words of texts by source position.
        errors: examples that could not be read.
        histories: folder with the tracker's epochs, if the run has it.
        held_out_histories: the same for the examples that were held out.
    """

    table: ScoreTable
    title: str
    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]
    outcome: NDArray[np.int8]
    gallery: Gallery
    thumbnails: dict[int, bytes]
    errors: pd.DataFrame
    excerpts: dict[int, str] = field(default_factory=dict)
    histories: Path | None = None
    held_out_histories: Path | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """The table's metadata."""
        return self.table.metadata

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Rows predicted right."""
        return np.equal(self.outcome, RIGHT)

    @cached_property
    def wrong(self) -> NDArray[np.bool_]:
        """Rows predicted wrong."""
        return np.equal(self.outcome, WRONG)

    @cached_property
    def held_out(self) -> NDArray[np.bool_]:
        """Rows of examples that were never trained on, if the table says so."""
        if "held_out" not in self.table.columns:
            return np.zeros(len(self.table), np.bool_)
        return self.table.column("held_out").astype(np.bool_)

    @cached_property
    def doubts(self) -> Suspects:
        """What the table says about each of its labels."""
        return suspects_of(self.table)

    @cached_property
    def num_classes(self) -> int:
        """The number of classes, from the metadata and from the rows."""
        # the metadata may have no names, or fewer than there are classes in the rows
        highest = max(self.labels.max(initial=-1), self.predictions.max(initial=-1))
        return max(len(self.table.classes), int(highest) + 1)

    @cached_property
    def _names(self) -> list[str]:
        return [str(name) for name in self.table.classes]

    def class_name(self, number: int) -> str:
        """The name of a class; its number if it has no name, and a dash if it is unknown.

        An empty name is replaced by the number as well, because it would be an invisible link.
        """
        if number < 0:
            return NONE
        name = self._names[number] if number < len(self._names) else ""
        return name if name.strip() else str(number)

    def title_of(self, score: str) -> str:
        """Heading of a score."""
        return str(self.table.about(score)["title"])

    def values(self, score: str) -> NDArray[np.float64]:
        """One score per row, NaN where it is not finite."""
        values = self.table.column(score).astype(np.float64)
        return np.where(np.isfinite(values), values, np.nan)

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """The ids of some rows; a row without an id has its position in the source."""
        positions = self.gallery.source[rows].tolist()
        if "id" not in self.table.columns:
            return [f"#{position}" for position in positions]
        names = self.table.to_arrow().column("id").take(rows).to_pylist()
        return [
            f"#{position}" if name is None or not str(name).strip() else str(name)
            for name, position in zip(names, positions, strict=True)
        ]


def view_of(table: ScoreTable, *, folder: RunFolder | None, title: str | None) -> View:
    """The view of one table, with pictures and errors of its run folder if there is one."""
    data = table.metadata.get("data") or {}
    return View(
        table=table,
        title=title or str(data.get("spec") or "Scored examples"),
        labels=class_numbers(table, "label"),
        predictions=class_numbers(table, "prediction"),
        outcome=outcomes(table),
        gallery=gallery_rows(table),
        thumbnails=folder.thumbnails() if folder else {},
        errors=folder.errors() if folder else error_rows([]).to_pandas(),
        excerpts=folder.excerpts() if folder else {},
        histories=folder.folder / HISTORIES if folder else None,
        held_out_histories=folder.folder / TRACKED / HELD_OUT if folder else None,
    )
