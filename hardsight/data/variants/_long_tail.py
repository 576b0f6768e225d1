"""Long-tailed subsets: a few classes with many examples, many classes with few."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.data.source import check_range
from hardsight.errors import DataError, OptionError


def long_tailed_counts(class_counts: ArrayLike, *, ratio: float) -> NDArray[np.int64]:
    r"""Return the examples to keep per class, falling exponentially from the first to the last.

    .. math:: n_c = \lfloor n_0\, r^{-c / (C - 1)} \rfloor

    where :math:`n_0` is the largest count for which every class has enough examples.

    Args:
        class_counts: number of examples of each class, ``[C]``.
        ratio: :math:`r \ge 1`, the count of the first class divided by that of the last.

    Returns:
        ``[C]``; all equal for ``ratio=1``.

    Raises:
        OptionError: ``ratio`` is below 1.
        DataError: there are fewer than 2 classes, or a class would be left without an example.

    Example:
        >>> long_tailed_counts([5000] * 10, ratio=100).tolist()
        [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]

    Reference:
        Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss,
        NeurIPS 2019: long-tailed CIFAR.
    """
    there = np.asarray(class_counts, dtype=np.int64)
    if not ratio >= 1:
        raise OptionError(f"expected ratio of at least 1, got {ratio}")
    if len(there) < 2:
        raise DataError(f"expected at least 2 classes for a long tail, got {len(there)}")
    shares = ratio ** (-np.arange(len(there)) / (len(there) - 1))
    first = np.floor((there / shares).min())
    # 1e-9 keeps a count that is whole except for rounding from being rounded down by one
    counts: NDArray[np.int64] = np.floor(first * shares + 1e-9).astype(np.int64)
    if counts.min() < 1:
        raise DataError(
            f"ratio {ratio:g} leaves class {int(counts.argmin())} without an example, of "
            f"{int(there[counts.argmin()])}; use a smaller ratio"
        )
    return counts


def long_tailed_rows(
    labels: ArrayLike, *, num_classes: int, ratio: float, seed: int
) -> NDArray[np.int64]:
    """Return the positions of a long-tailed subset, ascending; see :func:`long_tailed_counts`.

    Args:
        labels: class indices in ``[0, num_classes)``, ``[N]``.
        num_classes: C.
        ratio: the count of the first class divided by that of the last.
        seed: decides which examples of a class are kept. For one seed and two ratios, the smaller
            subset of a class is contained in the larger one.

    Raises:
        OptionError: ``ratio`` is below 1.
        LabelError: a label is not a class.
        DataError: a class would be left without an example.

    Example:
        >>> rows = long_tailed_rows([0, 1] * 50, num_classes=2, ratio=10, seed=0)
        >>> len(rows), int((rows % 2 == 1).sum())
        (55, 5)
    """
    indices = np.asarray(labels)
    check_range(indices, num_classes)
    counts = long_tailed_counts(np.bincount(indices, minlength=num_classes), ratio=ratio)
    # one shuffle of all examples, of which each class keeps a prefix: this nests the subsets
    order = np.random.default_rng([seed, 0x7A11]).permutation(len(indices))
    kept = [order[indices[order] == label][:count] for label, count in enumerate(counts)]
    rows: NDArray[np.int64] = np.sort(np.concatenate(kept))
    return rows
