"""Tables of a study, to be printed on a terminal, written as markdown or stored as JSON."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight._checks import versions_of
from hardsight.notebook import shown
from hardsight.registry import SCORES, words_of
from hardsight.stats import BinCorrelation, Estimate
from hardsight.tracking import SCORE_OF

STUDY = "study.json"
FORMAT = 1
NONE = "–"


@dataclass(frozen=True)
class StudyTable:
    """A table for people to read.

    Attributes:
        title: what it shows.
        columns: headings.
        rows: cells as text, as many per row as there are headings.
        note: how to read it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def _repr_html_(self) -> str:
        return shown(self.title, {}, columns=self.columns, rows=self.rows, note=self.note)


class ShownAsTables(ABC):
    """A result that a notebook shows as its tables."""

    @abstractmethod
    def tables(self) -> list[StudyTable]:
        """All tables of the result."""

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())


def said_interval(interval: Estimate | None) -> str:
    """``-0.212 [-0.231, -0.193]``."""
    if interval is None:
        return NONE
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def said_p(p: float | None) -> str:
    """A p-value as papers print it.

    Example:
        >>> said_p(0.04912), said_p(1e-9), said_p(None)
        ('0.049', '< 0.001', '–')
    """
    if p is None or math.isnan(p):
        return NONE
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def said_bin(bins: Sequence[BinCorrelation], place: int) -> str:
    """``[0.2, 0.4)``; the last one is closed."""
    group = bins[place]
    return f"[{group.low:.3g}, {group.high:.3g}{']' if place == len(bins) - 1 else ')'}"


def plain(value: Any) -> Any:
    """A value as JSON has it: dataclasses as objects, arrays as lists, NaN as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def histogram(
    x: NDArray[np.float64], y: NDArray[np.float64], *, bins: int = 25
) -> dict[str, list[Any]]:
    """Counts ``[x, y]`` of a two-dimensional histogram, with x in [0, 1] and y in its own range."""
    span = (float(y.min()), float(y.max()))
    edges = np.linspace(0, 1, bins + 1), np.linspace(*span, bins + 1)
    counts, _, _ = np.histogram2d(x, y, bins=edges)
    return {
        "x_edges": edges[0].tolist(),
        "y_edges": edges[1].tolist(),
        "counts": counts.astype(int).tolist(),
    }


def study_versions() -> dict[str, str]:
    """Versions of the packages that can change a statistic."""
    return versions_of("numpy", "scipy", "pyarrow", "torch")


def titles_of(names: Iterable[str]) -> dict[str, str]:
    """Headings of scores and of recorded measures, as the scores themselves state them.

    Example:
        >>> titles_of(["norm", "correct", "a_column"])
        {'norm': 'Feature norm', 'correct': 'Accuracy', 'a_column': 'A column'}
    """
    titles = {"correct": "Accuracy"}  # which the mean of a measure without a score is
    for name in names:
        spec = SCORES.get(SCORE_OF.get(name, name))
        titles.setdefault(name, words_of(name) if spec is None else spec.shown()["title"])
    return {name: titles[name] for name in names}
