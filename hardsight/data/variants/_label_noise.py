"""Label errors planted on purpose, to see which methods find them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardsight.data.source import check_range
from hardsight.errors import LabelError, OptionError

_PURPOSE = 0x1ABE1  # its own random stream: it shifts no other draws, and they do not shift it


def with_label_errors(
    labels: ArrayLike,
    *,
    num_classes: int,
    share: float,
    seed: int,
    towards: Mapping[int, int] | ArrayLike | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    r"""Return labels of which a share is wrong, by symmetric or class-dependent noise.

    The examples that get a wrong label are drawn uniformly from those whose class can go wrong. If
    the right class is i, the wrong class is j with a probability proportional to ``towards[i, j]``;
    by default every other class is equally likely.

    Args:
        labels: class indices in ``[0, num_classes)``, ``[N]``.
        num_classes: at least 2.
        share: share of all examples that get a wrong label, in ``[0, 1]``; the count is exact.
        seed: seed of the draw.
        towards: where the wrong labels of a class go. Either pairs, such as ``{3: 5, 5: 3}``, or
            weights ``[C, C]`` with a diagonal of 0. A class that is not named, or has a row of
            zeros, never goes wrong.

    Returns:
        the new labels ``[N]``, and which of them are wrong, ``[N]``.

    Raises:
        OptionError: ``share``, ``num_classes`` or ``towards`` is outside its range, or too few
            examples belong to classes that can go wrong.
        LabelError: a label is not a class.

    Example:
        >>> labels, wrong = with_label_errors(np.zeros(10, int), num_classes=3, share=0.2, seed=0)
        >>> int(wrong.sum()), bool((labels[wrong] != 0).all())
        (2, True)
        >>> cats = np.full(10, 3)
        >>> labels, wrong = with_label_errors(
        ...     cats, num_classes=10, share=0.2, seed=0, towards={3: 5, 5: 3}
        ... )
        >>> labels[wrong]
        array([5, 5])

    Reference:
        Patrini et al., Making Deep Neural Networks Robust to Label Noise, CVPR 2017, Section 5:
        asymmetric noise between classes that look alike.
    """
    if not 0 <= share <= 1 or num_classes < 2:
        raise OptionError(
            f"expected share in [0, 1] and at least 2 classes, got {share} and {num_classes}"
        )
    labels = _indices(labels, num_classes)
    draw = np.random.default_rng([seed, _PURPOSE])
    count = round(share * len(labels))
    wrong = np.zeros(len(labels), bool)
    changed = labels.copy()
    if towards is None:
        wrong[draw.choice(len(labels), count, replace=False)] = True
        # a shift of 1 to C - 1 reaches every other class with equal probability
        shift = draw.integers(1, num_classes, size=count)
        changed[wrong] = (labels[wrong] + shift) % num_classes
        return changed, wrong
    weights = _weights(towards, num_classes)
    wrong[draw.choice(_able(labels, weights, count), count, replace=False)] = True
    changed[wrong] = _drawn(weights[labels[wrong]], draw)
    return changed, wrong


def with_transitions(
    labels: ArrayLike, transitions: ArrayLike, *, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    r"""Return labels drawn again, each from the row of its class in a transition matrix.

    .. math:: \Pr(\tilde y = j \mid y = i) = T_{ij}

    Every example is drawn independently, so the number of errors is random, and each class has its
    own error rate, :math:`1 - T_{ii}`. For an exact share, use :func:`with_label_errors`.

    Args:
        labels: class indices in ``[0, C)``, ``[N]``.
        transitions: probability of each label given the right one, ``[C, C]``; rows sum to 1.
        seed: seed of the draw.

    Returns:
        the new labels ``[N]``, and which of them are wrong, ``[N]``.

    Raises:
        OptionError: the matrix is not square, has a negative entry, or a row does not sum to 1.
        LabelError: a label is not a class.

    Example:
        >>> labels, wrong = with_transitions(
        ...     np.array([0, 1, 1]), [[0.0, 1.0], [0.0, 1.0]], seed=0
        ... )
        >>> labels, wrong
        (array([1, 1, 1]), array([ True, False, False]))
    """
    matrix = _square(transitions, "transitions")
    if not np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-6):
        row = int(np.abs(matrix.sum(axis=1) - 1).argmax())
        raise OptionError(
            f"expected every row of transitions to sum to 1, got {matrix[row].sum():g} in row {row}"
        )
    labels = _indices(labels, len(matrix))
    changed = _drawn(matrix[labels], np.random.default_rng([seed, _PURPOSE]))
    return changed, changed != labels


def _indices(labels: ArrayLike, num_classes: int) -> NDArray[np.int64]:
    indices = np.asarray(labels)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise LabelError(
            f"expected labels to be class indices [N], got {indices.dtype} {list(indices.shape)}"
        )
    check_range(indices, num_classes)
    return indices.astype(np.int64)


def _weights(towards: Mapping[int, int] | ArrayLike, num_classes: int) -> NDArray[np.float64]:
    """Return how wrong labels of each class are distributed, ``[C, C]``."""
    if isinstance(towards, Mapping):
        weights = np.zeros((num_classes, num_classes))
        for right, wrong in towards.items():
            if not (0 <= right < num_classes and 0 <= wrong < num_classes):
                raise OptionError(
                    f"expected classes in [0, {num_classes}) in towards, got {right}: {wrong}"
                )
            weights[right, wrong] = 1
    else:
        weights = _square(towards, "towards", num_classes)
    if np.diag(weights).any():
        right = int(np.flatnonzero(np.diag(weights))[0])
        raise OptionError(
            f"expected wrong labels to differ from the right one, got class {right} towards itself"
        )
    return weights


def _square(values: ArrayLike, name: str, size: int | None = None) -> NDArray[np.float64]:
    matrix = np.asarray(values, dtype=np.float64)
    size = (len(matrix) if matrix.ndim else 0) if size is None else size
    if matrix.shape != (size, size) or not size:
        raise OptionError(f"expected {name} to be a [C, C] matrix, got {list(matrix.shape)}")
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise OptionError(f"expected {name} to be 0 or more and finite everywhere")
    return matrix


def _able(labels: NDArray[np.int64], weights: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the positions of the examples whose class can go wrong."""
    able = np.flatnonzero((weights.sum(axis=1) > 0)[labels])
    if count > len(able):
        raise OptionError(
            f"expected at least {count} examples of classes that can go wrong, got {len(able)} of "
            f"{len(labels)}; lower the share, or name more classes in towards"
        )
    return able


def _drawn(rows: NDArray[np.float64], draw: np.random.Generator) -> NDArray[np.int64]:
    """Return one class per row of weights ``[n, C]``; a class of weight 0 is never drawn."""
    upto = rows.cumsum(axis=1)
    total = upto[:, -1:]
    # rounding could push a draw up to the total itself, past the last class
    at = np.minimum(draw.random(len(rows))[:, None] * total, np.nextafter(total, 0))
    # The first class whose running sum exceeds a draw in [0, total) has a weight above 0.
    classes: NDArray[np.int64] = (at >= upto).sum(axis=1).astype(np.int64)
    return classes
