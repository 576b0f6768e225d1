"""Training dynamics on the page: data map, when examples were learned, confidence curves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hardsight.errors import TableError
from hardsight.report.page import count, number, percent, plural
from hardsight.report.table._map import Map, data_map
from hardsight.report.table._view import View
from hardsight.run_folder import read_parquet

BAR_WIDTH, BAR_HEIGHT = 480, 190
CURVE_WIDTH, CURVE_HEIGHT = 150, 64
_LEFT, _RIGHT, _TOP, _BOTTOM = 6.0, 474.0, 26.0, 160.0
_MOST_BARS = 24
_DRAWN = 6  # curves per group
_MOST_DOTS = 40  # epochs; with more, the dots would overlap


@dataclass(frozen=True)
class Bar:
    """A bar: its position and size, the texts below and above it, and its meaning in words."""

    x: float
    width: float
    height: float
    tick: str
    top: str
    text: str
    never: bool


@dataclass(frozen=True)
class Bars:
    """Counts of whole numbers, such as epochs."""

    name: str
    title: str
    about: str
    bars: list[Bar]
    summary: str


@dataclass(frozen=True)
class Curve:
    """The confidence of one example over epochs, as parts of a small picture."""

    row: int
    line: str
    dots: list[tuple[float, float, bool]]
    suspicion: str
    summary: str


@dataclass(frozen=True)
class CurveGroup:
    """Examples of one kind."""

    title: str
    about: str
    curves: list[Curve]


@dataclass(frozen=True)
class Dynamics:
    """Everything the page says about training."""

    epochs: int
    map: Map | None
    bars: list[Bars]
    groups: list[CurveGroup]
    band: str
    median: str


def dynamics_of(view: View) -> Dynamics | None:
    """Return the dynamics of one table, or ``None`` if it has none."""
    tracking = view.metadata.get("tracking")
    if not isinstance(tracking, dict):
        return None
    epochs = int(tracking.get("epochs") or 0)
    groups = _groups(view)
    rows = np.unique(np.concatenate([rows for _, _, rows in groups] or [np.empty(0, np.int64)]))
    histories = histories_of(
        view.histories,
        view.gallery.source[rows],
        epochs=epochs,
        num_examples=int(tracking.get("num_examples") or 0),
        held_out=view.held_out_histories,
    )
    drawn = None if histories is None else _Drawing(view, rows.tolist(), histories)
    dynamics = Dynamics(
        epochs=epochs,
        map=data_map(view),
        bars=[bars for bars in (_learned(view, epochs), _forgotten(view)) if bars is not None],
        groups=[] if drawn is None else drawn.groups(groups),
        band="" if drawn is None else drawn.band(),
        median="" if drawn is None else drawn.median(),
    )
    return dynamics if dynamics.map or dynamics.bars or dynamics.groups else None


def _groups(view: View) -> list[tuple[str, str, NDArray[np.int64]]]:
    gallery = view.gallery
    groups = [
        ("Probably mislabelled", "the label keeps losing against another class", gallery.suspects),
        ("Hardest", "far from their class, for any reason", gallery.hardest),
        ("Learned last", "right in the end, and late", gallery.learned_last),
        ("Easiest", "settled early", gallery.easiest),
    ]
    return [(title, about, rows[:_DRAWN]) for title, about, rows in groups if len(rows)]


class _Drawing:
    """Confidence histories drawn as small pictures of equal size."""

    def __init__(self, view: View, rows: list[int], histories: Histories) -> None:
        self._view, self._histories = view, histories
        # histories hold only the rows that are drawn, so a row's number is not its column
        self._column = {row: place for place, row in enumerate(rows)}
        steps = max(1, len(histories.confidence) - 1)
        self._x = 4 + (CURVE_WIDTH - 8) * np.arange(len(histories.confidence)) / steps

    def groups(self, groups: list[tuple[str, str, NDArray[np.int64]]]) -> list[CurveGroup]:
        return [
            CurveGroup(title, about, [self._curve(row) for row in rows.tolist()])
            for title, about, rows in groups
        ]

    def band(self) -> str:
        """Return the outline of the middle half of all examples."""
        low, high = (
            self._y(self._histories.quartiles[:, 0]),
            self._y(self._histories.quartiles[:, 2]),
        )
        return _path(np.r_[self._x, self._x[::-1]], np.r_[low, high[::-1]]) + "z"

    def median(self) -> str:
        return _path(self._x, self._y(self._histories.quartiles[:, 1]))

    def _curve(self, row: int) -> Curve:
        place = self._column[row]
        values, right = self._histories.confidence[:, place], self._histories.right[:, place]
        seen = ~np.isnan(values)
        x, y = self._x[seen], self._y(values[seen])
        dots = zip(x.round(1).tolist(), y.round(1).tolist(), right[seen].tolist(), strict=True)
        suspicion = "suspicion" in self._view.table.scores
        return Curve(
            row=row,
            line=_path(x, y),
            dots=list(dots) if len(x) <= _MOST_DOTS else [],
            suspicion=number(self._view.values("suspicion")[row], digits=2) if suspicion else "",
            summary=f"Probability of the label over {plural(int(seen.sum()), 'epoch')}: from "
            f"{number(values[seen][0], digits=2)} to {number(values[seen][-1], digits=2)}, right "
            f"in {percent(float(right[seen].mean()))} of them.",
        )

    def _y(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return 4 + (CURVE_HEIGHT - 8) * (1 - np.clip(values, 0, 1))


def _path(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    points = [f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True) if b == b]
    return "M" + "L".join(points) if points else ""


def _learned(view: View, epochs: int) -> Bars | None:
    """Return bars of the epoch in which examples were first predicted correctly."""
    name = "first_learned_epoch"
    if name not in view.table.scores:
        return None
    values = view.values(name)
    values = values[~np.isnan(values)].astype(np.int64)
    # an example that was never learned has the number of epochs plus 1
    never = int((values > epochs).sum())
    counts = np.bincount(values[values <= epochs], minlength=epochs + 1)[1:]
    return _bars(
        name,
        "First learned in epoch",
        "Clean and easy examples are learned in the first epochs; what is learned last, or never, "
        "is hard or wrongly labelled.",
        counts,
        first=1,
        never=never,
    )


def _forgotten(view: View) -> Bars | None:
    """Return bars of how often examples were forgotten; never-learned ones have their own bar."""
    name = "forgetting_events"
    if not {name, "map_correctness"} <= set(view.table.scores):
        return None
    values, correctness = view.values(name), view.values("map_correctness")
    known = ~np.isnan(values) & ~np.isnan(correctness)
    learned = known & (correctness > 0)
    return _bars(
        name,
        "Times forgotten",
        "Right in one epoch and wrong in the next is forgotten. Many times means ambiguous, 0 "
        "means settled; those under “never” were never learned.",
        np.bincount(values[learned].astype(np.int64), minlength=1),
        first=0,
        never=int((known & ~learned).sum()),
    )


def _bars(
    name: str, title: str, about: str, counts: NDArray[np.int64], *, first: int, never: int
) -> Bars | None:
    total = int(counts.sum()) + never
    if not total:
        return None
    group = -(-len(counts) // _MOST_BARS)  # epochs per bar
    sums = np.add.reduceat(counts, np.arange(0, len(counts), group)).tolist()
    labels = [_span(first + i * group, min(first + (i + 1) * group, first + len(counts)) - 1)
              for i in range(len(sums))]  # fmt: skip
    every = -(-len(sums) // 10)  # label only every so many bars, because texts would overlap
    entries = [*zip(sums, labels, strict=True), (never, "never")]
    width = (_RIGHT - _LEFT) / len(entries)
    tallest = max(entry for entry, _ in entries)
    bars = [
        Bar(
            x=round(_LEFT + i * width + 0.1 * width, 2),
            width=round(0.8 * width, 2),
            # small counts still get a visible bar, by a height of at least 1
            height=round(max(1.0, (_BOTTOM - _TOP) * n / tallest), 2) if n else 0.0,
            tick=text if i % every == 0 or text == "never" else "",
            top=count(n) if len(entries) <= 14 else "",
            text=f"{text}: {plural(n, 'example')} ({percent(n / total)})",
            never=text == "never",
        )
        for i, (n, text) in enumerate(entries)
    ]
    most = max(entries, key=lambda entry: entry[0])
    summary = f"{title}: most often {most[1]}, {plural(most[0], 'example')}; never {count(never)}."
    return Bars(name, title, about, bars, summary)


def _span(low: int, high: int) -> str:
    return str(low) if low >= high else f"{low}–{high}"


_COLUMNS = ["confidence", "label", "prediction"]


@dataclass(frozen=True)
class Histories:
    """Confidence and correctness of some examples over the epochs.

    Attributes:
        confidence: probability of the label by epoch, ``[E, n]``; NaN if it was not seen.
        right: whether the prediction was the label, ``[E, n]``.
        quartiles: quartiles of the confidence of all examples by epoch, ``[E, 3]``.
    """

    confidence: NDArray[np.float64]
    right: NDArray[np.bool_]
    quartiles: NDArray[np.float64]


def histories_of(
    folder: Path | None,
    index: NDArray[np.int64],
    *,
    epochs: int,
    num_examples: int,
    held_out: Path | None = None,
) -> Histories | None:
    """Return the histories of the examples at ``index``, reading one epoch at a time.

    Args:
        folder: folder of the epochs.
        index: positions of the examples.
        epochs: number of epochs.
        num_examples: number of rows in each epoch.
        held_out: folder of the epochs of examples that were held out of training.

    Returns:
        ``None`` if the folder does not hold these epochs of these examples.

    Raises:
        TableError: the file of an epoch is damaged.
    """
    if folder is None or not epochs:
        return None
    parts: list[tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]] = []
    for epoch in range(1, epochs + 1):
        columns = _epoch(folder, epoch, num_examples)
        if columns is None:
            return None
        others = None if held_out is None else _epoch(held_out, epoch, num_examples)
        if others is not None:
            # a label below 0 marks an example that this folder's epochs did not see
            is_other = columns[1] < 0
            columns = [np.where(is_other, b, a) for a, b in zip(columns, others, strict=True)]
        confidence, label, prediction = columns
        seen = confidence[label >= 0]
        quartiles = np.quantile(seen, [0.25, 0.5, 0.75]) if len(seen) else np.full(3, np.nan)
        right = (label == prediction)[index]
        parts.append((confidence[index].astype(np.float64), right, quartiles))
    confidences, rights, spreads = (np.stack(part) for part in zip(*parts, strict=True))
    return Histories(confidences, rights, spreads)


def _epoch(folder: Path, epoch: int, num_examples: int) -> list[NDArray[Any]] | None:
    """Return the columns of one epoch, or ``None`` if the folder does not have this epoch."""
    file = folder / f"epoch-{epoch:05d}.parquet"
    if not file.exists():
        return None
    try:
        rows = read_parquet(file, columns=_COLUMNS)
    except (OSError, pa.ArrowException) as err:
        raise TableError(
            f"{file} cannot be read ({err}); remove it to report without curves, or train again"
        ) from err
    if rows.num_rows != num_examples:
        return None
    return [rows[name].to_numpy() for name in _COLUMNS]
