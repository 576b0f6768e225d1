"""Encouraging Loss, its remark on the norm of the gradient: what is asked, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from hardsight.experiments import lab as kit
from hardsight.report.figures import COLOURS, panels

# LE, bound, whether the paper says "more than" it
_BOUNDS = ((1.0, 5.0, True), (0.75, 1.7, False))


def ratios(grid: kit.Grid, loss: str, plain: str) -> list[float]:
    """Norm of a loss over that of the plain one, a value per seed."""
    pairs = zip(grid.values("norm", loss=loss), grid.values("norm", loss=plain), strict=True)
    return [own / of_plain for own, of_plain in pairs]


def questions(
    grid: kit.Grid, name: Callable[[float], str], plain: str, *, weak: str
) -> list[kit.Question]:
    """The paper's bounds of the ratio, for those LE that were trained.

    Args:
        grid: of the norms, by loss.
        name: from LE to the name of its loss in the grid.
        plain: name of cross-entropy.
        weak: why the networks cannot judge, if they cannot.
    """
    known, asked = set(grid.names("loss")), []
    for end, bound, is_more in _BOUNDS:
        if name(end) not in known:
            continue
        found = ratios(grid, name(end), plain)
        asked.append(
            kit.Question(
                f"with LE={end:g} the gradient is {'more' if is_more else 'less'} than {bound:g} "
                "times that of cross-entropy",
                f"{'>' if is_more else '<'} {bound:g} times, on Transformer translation",
                found, [bound] * len(found), larger=is_more, weak=weak,
                told=f"{kit.spread(found)} times; minus {bound:g}: {{}}",
            )
        )  # fmt: skip
    return asked


def thinned(norms: ArrayLike, points: int) -> list[float]:
    """A curve of so many means over consecutive steps."""
    steps = np.asarray(norms)
    return [float(part.mean()) for part in np.array_split(steps, min(points, len(steps)))]


def figure(lab: kit.Lab, curves: Mapping[str, Sequence[Sequence[float]]]) -> kit.Figure:
    """The norm through training, by loss."""
    drawn, (axis,) = panels(1, 1, width=5.2)
    for (name, runs), colour in zip(curves.items(), COLOURS, strict=False):
        points = min(map(len, runs), default=0)  # a run that ended earlier has fewer
        kit.band(axis, np.linspace(0, 1, points), [run[:points] for run in runs], colour, name)
    axis.set(xlabel="share of training", ylabel="norm of the gradient", yscale="log")
    return lab.figure(
        drawn, "gradient-norms",
        caption=f"Norm of the whole gradient through training; {kit.BANDS}.",
        alt="A curve per loss: how large the gradient is from the first step to the last.",
    )  # fmt: skip
