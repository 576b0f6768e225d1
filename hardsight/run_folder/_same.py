"""Check that a model still computes the same as when its run began.

A digest of the weights would not notice that the code has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from hardsight.errors import RunMismatchError

_ROUNDING = 0.02  # relative difference that half precision on another device can cause


@dataclass(frozen=True)
class FirstOutputs:
    """The outputs of a model for the first examples, before any training.

    Attributes:
        weights: digest of the initial weights; logits of other weights cannot be compared.
        example: id of the first example.
        logits: logits of the first examples, concatenated.
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
    """Raise if the model's values for the first examples have changed.

    Values count as changed if more than half of them differ by more than rounding on another
    device can explain.

    Args:
        run: kind of the run, in words.
        folder: folder of the run.
        name: what the values are called in messages.
        now: values that the model computes now, ``[N]``.
        before: recorded values, ``[N]``.
        example: id of the first example.
        smallest: scale of the comparison for values smaller than this.

    Raises:
        RunMismatchError: the model computes something else.
    """
    new, old = np.asarray(now, np.float64), np.asarray(before, np.float64)
    rows = np.isfinite(new) & np.isfinite(old)
    # values near 0 are compared on the scale of ``smallest``, or rounding would look like a change
    size = np.maximum(np.maximum(np.abs(new), np.abs(old)), smallest)
    apart = np.abs(new[rows] - old[rows]) / size[rows]
    if apart.size and np.median(apart) > _ROUNDING:
        raise RunMismatchError(
            f"the {run} in {folder} cannot be continued: the results of the first examples have "
            f"changed ({name} {old[0]:.4g} instead of {new[0]:.4g} for {example}), which means the "
            "same weights in changed code; use the code that the run began with, choose another "
            "--out, or replace it with --overwrite (overwrite=True)"
        )
