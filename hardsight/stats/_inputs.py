"""Checks of the input of every statistic: equal lengths, enough values, no silent NaN."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import NonFiniteError, OptionError, ShapeError, StatisticError

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.int64]


def check_choice(option: str, value: str, known: Collection[str]) -> None:
    """Raise unless ``value`` is one of the known values of an option.

    Raises:
        OptionError: names the option, its value, the closest known value and all known values.
    """
    if value not in known:
        nearest = difflib.get_close_matches(str(value), list(known), n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise OptionError(f"unknown {option} {value!r}.{hint} Known: {', '.join(known)}")


def check_level(level: float) -> None:
    """Raise unless ``level`` is a confidence level, strictly between 0 and 1."""
    if not 0 < level < 1:
        raise OptionError(f"expected a confidence level between 0 and 1, got level={level}")


def columns(*, nan: str | None = None, least: int = 1, **arrays: ArrayLike) -> dict[str, Floats]:
    """Return vectors in float64, of equal length and without NaN.

    Args:
        nan: ``"raise"``, or ``"omit"`` to leave out every row in which any vector holds NaN.
            ``None`` raises as well, for functions that have no such option to suggest.
        least: how many rows must remain.
        **arrays: the vectors by name, ``[N]`` each.

    Raises:
        ShapeError: a vector is not one-dimensional, or lengths differ.
        NonFiniteError: a vector holds NaN and ``nan`` is not ``"omit"``.
        StatisticError: fewer than ``least`` rows are left.
    """
    if nan is not None:
        check_choice("nan", nan, ("raise", "omit"))
    step = "remove them" if nan is None else 'remove them or pass nan="omit"'
    # float64 even for narrower input, since half precision would merge ranks
    vectors = {name: np.asarray(values, dtype=np.float64) for name, values in arrays.items()}
    check_vectors(**vectors)
    missing = {name: np.isnan(vector) for name, vector in vectors.items()}
    for name, holes in missing.items():
        if nan != "omit" and holes.any():
            raise NonFiniteError(
                f"{name} holds {int(holes.sum()):,} NaN of {len(holes):,} values, the first at "
                f"position {int(holes.argmax())}; {step}"
            )
    # a row with NaN in one column is left out of all columns, since rows belong together
    keep = ~np.logical_or.reduce(list(missing.values()))
    if int(keep.sum()) < least:
        left = " without NaN" if not keep.all() else ""
        raise StatisticError(
            f"expected at least {least} values in {', '.join(vectors)}, got {int(keep.sum())}{left}"
        )
    return {name: vector[keep] for name, vector in vectors.items()}


def check_vectors(**vectors: NDArray[np.generic]) -> None:
    """Raise unless all vectors are one-dimensional and of equal length."""
    shapes = {vector.shape for vector in vectors.values()}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        got = ", ".join(f"{name} {list(vector.shape)}" for name, vector in vectors.items())
        raise ShapeError(f"expected vectors of equal length, got {got}")


def check_varies(**vectors: Floats) -> None:
    """Raise if a vector holds only one value.

    Raises:
        StatisticError: names the vector and the value.
    """
    for name, vector in vectors.items():
        # max - min would overflow for values near the largest float
        if vector.size and (vector == vector[0]).all():
            raise StatisticError(
                f"{name} is constant: all {len(vector):,} values are {vector[0]:g}, so nothing "
                "can correlate with it"
            )


def check_finite(reason: str, **vectors: Floats) -> None:
    """Raise if a vector holds an infinity.

    Raises:
        NonFiniteError: names the vector and gives ``reason``.
    """
    for name, vector in vectors.items():
        if np.isinf(vector).any():
            count = int(np.isinf(vector).sum())
            raise NonFiniteError(f"{name} holds {count:,} infinite values; {reason}")


def truths(values: ArrayLike, name: str) -> Bools:
    """Return one boolean per example, from booleans or from 0 and 1.

    Raises:
        ShapeError: the values are not one-dimensional.
        OptionError: a value is neither 0 nor 1.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise ShapeError(f"expected {name} to have 1 dimension, got {list(array.shape)}")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        odd = array[~np.isin(array, (0, 1))][0]
        raise OptionError(f"expected {name} to be booleans, or 0 and 1, got {odd!r}")
    return array.astype(np.bool_)


def two_sided_z(level: float) -> float:
    """Return the number of standard errors on either side of an interval of this level.

    Example:
        >>> round(two_sided_z(0.95), 6)
        1.959964
    """
    from statistics import NormalDist

    check_level(level)
    return NormalDist().inv_cdf(0.5 + level / 2)


def tail(z: float, alternative: str = "two-sided") -> float:
    """Return the probability of a standard normal beyond ``z``, accurate even far out.

    Example:
        >>> round(tail(1.959964), 6), round(tail(3.38, "greater"), 6)
        (0.05, 0.000362)
    """
    check_choice("alternative", alternative, ("two-sided", "greater", "less"))
    if alternative == "two-sided":
        # erfc stays precise where 1 - cdf rounds to 0
        return math.erfc(abs(z) / math.sqrt(2))
    return math.erfc((z if alternative == "greater" else -z) / math.sqrt(2)) / 2
