"""Whether a model computes what it did when its run was begun: weights do not know their code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from hardsight.errors import RunMismatchError

_ROUNDING = 0.02  # relative; of half precision on another device


@dataclass(frozen=True)
class FirstOutputs:
    """What a model makes of the first examples before anything is learnt.

    Attributes:
        weights: digest of those it begins with; with others nothing follows from the logits.
        example: id of the first example.
        logits: of the first examples, one after the other.
    """

    weights: str
    example: str
    logits: Sequence[float]


def check_same_values(
    run: str,
    folder: Path,
    name: str,
    *,
    now: ArrayLike,
    before: ArrayLike,
    example: str,
    smallest: float,
) -> None:
    """Raise if the first examples come out otherwise than they did.

    Half of the values have to differ by more than the rounding of another device.

    Args:
        run: what it is, in words.
        folder: of the run.
        name: of the values.
        now: of the model as it is, ``[N]``.
        before: those on record, ``[N]``.
        example: id of the first.
        smallest: size below which values are compared with it, not with each other.

    Raises:
        RunMismatchError: the model computes something else.
    """
    new, old = np.asarray(now, np.float64), np.asarray(before, np.float64)
    rows = np.isfinite(new) & np.isfinite(old)
    size = np.maximum(np.maximum(np.abs(new), np.abs(old)), smallest)
    apart = np.abs(new[rows] - old[rows]) / size[rows]
    if apart.size and np.median(apart) > _ROUNDING:
        raise RunMismatchError(
            f"the {run} in {folder} cannot be continued: the first examples come out otherwise "
            f"({name} {old[0]:.4g} instead of {new[0]:.4g} for {example}), so that it is the same "
            "weights in changed code; use the code it was begun with, choose another --out, or "
            "replace it with --overwrite (overwrite=True)"
        )
