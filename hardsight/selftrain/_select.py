"""Which unlabelled examples to train on, and with which label."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.errors import OptionError, UnknownNameError
from hardsight.registry import unknown_name
from hardsight.selftrain._rows import (
    AngularConfidences,
    Floats,
    Integers,
    Matrix,
    Probabilities,
    Rows,
    angular_confidences,
    over_tiles,
    probabilities,
)
from hardsight.selftrain._soft import LRENT_ALPHA, check_alpha
from hardsight.selftrain._thresholds import check_portion, ranks_of, thresholds_of

RULES = ("cbst", "cbst+avh", "avc", "crst-mrkld", "crst-lrent")
COMPARISONS = (">=", ">")
_CLEAR = 0.8  # from this confidence on the other entries of a row are known to be small
_SAMPLES, _SAMPLED_ROWS = 16, 64


@dataclass(frozen=True, eq=False)
class Selection:
    """What a rule selected, and the numbers it went by.

    Attributes:
        labels: pseudo-labels, ``[N]``, int64; -1 where an example is not selected.
        predictions: most confident class of each example, before any threshold, ``[N]``.
        confidence: what the thresholds rank: probability, or angular visual confidence, of the
            predicted class, ``[N]``.
        thresholds: ``[C]``, in terms of ``confidence``; 1 for a class without a rank.
        label_thresholds: ``[C]``, what probabilities are divided by to choose a label: the same,
            but for ``"cbst+avh"``, whose labels come from probabilities.
        ranks: how many examples of each class the portion stands for, ``[C]``.
        rule: the rule.
        portion: share of each class to keep.
    """

    labels: Tensor
    predictions: Tensor
    confidence: Tensor
    thresholds: Tensor
    label_thresholds: Tensor
    ranks: Tensor
    rule: str
    portion: float

    @property
    def selected(self) -> Tensor:
        """Positions of the selected examples, ascending."""
        return (self.labels >= 0).nonzero().squeeze(1)

    @property
    def counts(self) -> Tensor:
        """Number of selected examples per class, ``[C]``."""
        return torch.bincount(self.labels[self.labels >= 0], minlength=len(self.thresholds))


def pseudo_labels(
    probs: Matrix,
    *,
    portion: float,
    rule: str = "cbst",
    embeddings: Matrix | None = None,
    class_weights: Matrix | None = None,
    empty: str = "never",
    comparison: str = ">=",
    alpha: float = LRENT_ALPHA,
) -> Tensor:
    """Labels of the examples a rule selects; the ``.labels`` of :func:`select`.

    Returns:
        ``[N]``, int64; -1 where an example is not selected. It takes no part in the loss.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
        >>> pseudo_labels(probs, portion=0.5)
        tensor([ 0, -1,  1, -1])
    """
    return select(
        probs,
        portion=portion,
        rule=rule,
        embeddings=embeddings,
        class_weights=class_weights,
        empty=empty,
        comparison=comparison,
        alpha=alpha,
    ).labels


def select(
    probs: Matrix,
    *,
    portion: float,
    rule: str = "cbst",
    embeddings: Matrix | None = None,
    class_weights: Matrix | None = None,
    empty: str = "never",
    comparison: str = ">=",
    alpha: float = LRENT_ALPHA,
) -> Selection:
    r"""Class-balanced selection of pseudo-labels.

    With :math:`p_c` the probability of a class, :math:`\mathrm{AVC}_c` its angular visual
    confidence, and :math:`\lambda_c, \beta_c` the :func:`class_thresholds` of either:

    - ``"cbst"``: label :math:`k = \arg\max_c p_c/\lambda_c`, selected if
      :math:`p_k \ge \lambda_k`.
    - ``"cbst+avh"``: the same label, selected if :math:`\mathrm{AVC}_k \ge \beta_k`. The
      thresholds of both kinds rank the examples predicted as a class by probability.
    - ``"avc"``: ``"cbst"`` with :math:`\mathrm{AVC}` in place of :math:`p` throughout.
    - ``"crst-mrkld"``: as ``"cbst"``; the difference is a regulariser in the loss.
    - ``"crst-lrent"``: the same label, selected if
      :math:`\sum_c (p_c/\lambda_c)^{1/\alpha} \ge 1`, that is, if training on the soft label
      (:func:`soft_pseudo_labels`) costs less than leaving the example out.

    The matrices are read twice, a tile of rows at a time, so a memory-mapped array may be larger
    than memory; beside it this needs some 25 bytes per example. Where tensors lie on an
    accelerator, angles are computed there and the rest on the CPU.

    Args:
        probs: softmax probabilities, ``[N, C]``, rows sum to 1. A torch tensor or a numpy array,
            memory-mapped or not.
        portion: share of each class to keep, in (0, 1]; see :func:`class_thresholds`.
        rule: see above.
        embeddings: penultimate features, ``[N, D]``, for ``"cbst+avh"`` and ``"avc"``.
        class_weights: rows of the classifier head, ``[C, D]``, for the same.
        empty: ``"never"``: a class of whose predictions the portion is less than one example is
            not given to any example. ``"one"``: its most confident example sets the threshold.
            A class that is never predicted is not given either way.
        comparison: at the threshold: ``">="`` keeps the example at the rank, and all that tie with
            it, so that the portion is kept; ``">"`` leaves them out.
        alpha: temperature of ``"crst-lrent"``.

    Returns:
        Labels, thresholds and what they were made from. Where classes tie, the one with the lowest
        index is predicted, and given. If nothing is selected all labels are -1.

    Raises:
        UnknownNameError: no such rule.
        OptionError: ``portion`` is outside (0, 1], or another option has an unknown value.
        ShapeError: shapes do not fit, there is no example, or the rule needs embeddings.
        ProbabilityError: a row of ``probs`` is no distribution.
        NonFiniteError: NaN in a row.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
        >>> found = select(probs, portion=0.5)
        >>> found.labels, found.thresholds, found.counts
        (tensor([ 0, -1,  1, -1]), tensor([0.9000, 0.8000]), tensor([1, 1]))

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Eqs. (2) to (4); ``"avc"`` is the rule of
        the slides. Zou et al., ECCV 2018 (CBST) and ICCV 2019 (CRST).
        Deviation: the paper writes ``>`` at the threshold, the published code ``>=``, which is the
        default here because ``>`` loses one example of each class, and with saturated
        probabilities all of them. With ``empty="never"`` the published code still selects an
        example whose probability is exactly 1.
    """
    _check_options(portion, rule, empty, comparison, alpha)
    rows = probabilities(probs)
    strict = comparison == ">"
    if rule == "cbst+avh":
        angular = angular_confidences(embeddings, class_weights, probs, rule)
        found = _select_by_both(rows, angular, portion, empty, strict)
    elif rule == "avc":
        angular = angular_confidences(embeddings, class_weights, probs, rule)
        found = _select_by_one(angular, portion, empty, strict, None)
    else:
        soft = alpha if rule == "crst-lrent" else None
        found = _select_by_one(rows, portion, empty, strict, soft)
    device = probs.device if isinstance(probs, Tensor) else torch.device("cpu")
    tensors = [torch.from_numpy(array).to(device) for array in found]
    return Selection(
        labels=tensors[0].long(),
        predictions=tensors[1].long(),
        confidence=tensors[2],
        thresholds=tensors[3],
        label_thresholds=tensors[4],
        ranks=tensors[5],
        rule=rule,
        portion=float(portion),
    )


_Found = tuple[Integers, Integers, Floats, Floats, Floats, Integers]  # the tensors of a Selection


def _select_by_one(
    rows: Rows, portion: float, empty: str, strict: bool, alpha: float | None
) -> _Found:
    """Label and selection from the same matrix."""
    predictions, confidence, others = _most_confident(rows, _likely_threshold(rows, portion))
    ranks = ranks_of(predictions, rows.num_classes, portion, empty)
    thresholds = thresholds_of(confidence, predictions, ranks)
    least = _least_confidence(thresholds, ranks, alpha)
    ratio = confidence / thresholds[predictions]
    # then no other entry of the row reaches the ratio of the largest, rounding included
    settled = ratio > others / thresholds.min()
    if alpha is not None:
        settled &= ratio > 1  # below 1 the sum over classes decides
    keep = settled & _passes(ratio, 1.0, strict) & (ranks[predictions] > 0)
    labels = np.where(keep, predictions, -1)
    open_rows = ~settled & (confidence >= least)

    def label(start: int, stop: int) -> None:
        asked = start + np.flatnonzero(open_rows[start:stop])
        if len(asked):
            tile = _taken(rows, start, stop, asked)
            labels[asked] = _labels_of(tile, thresholds, ranks, strict, alpha)

    over_tiles(rows, label)
    return labels, predictions, confidence, thresholds, thresholds, ranks


def _least_confidence(thresholds: Floats, ranks: Integers, alpha: float | None) -> float:
    """A confidence below which no example can be selected, so that most rows are read once."""
    if not (ranks > 0).any():
        return math.inf
    if alpha is None:  # no entry of a row exceeds its confidence
        return float(thresholds[ranks > 0].min())
    if alpha >= 1:
        return 0.0
    # with q = 1 / alpha, sum (p/l)^q <= (max p / min l)^(q-1) sum p / min l, and sum p < 1.02
    lowest = float(thresholds.min())
    return 0.99 * lowest * math.pow(lowest / 1.02, alpha / (1 - alpha))


def _labels_of(
    tile: Floats, thresholds: Floats, ranks: Integers, strict: bool, alpha: float | None
) -> Integers:
    """Labels of some rows, -1 where a row is not selected."""
    ratios = tile / thresholds
    best = ratios.argmax(axis=1)
    largest = _entries(ratios, best)
    if alpha is None:
        # p / lambda >= 1 exactly where p >= lambda: the quotient is correctly rounded
        keep = _passes(largest, 1.0, strict)
    else:
        keep = _passes_softly(ratios, largest, alpha, strict)
    return np.where(keep & (ranks[best] > 0), best, -1)


def _passes_softly(
    ratios: Floats, largest: Floats, alpha: float, strict: bool
) -> NDArray[np.bool_]:
    """Whether the sum of ``ratios ** (1 / alpha)`` over classes reaches 1, in float64."""
    keep = largest > 1  # a sum is at least its largest term
    unsure = np.flatnonzero(~keep)
    if alpha <= 0.5:  # and at most max^(q-2) sum of squares, q = 1 / alpha: few rows are left
        squares = np.einsum("ij,ij->i", ratios, ratios)
        most = largest[unsure] ** (1 / alpha - 2) * squares[unsure]
        unsure = unsure[most >= 0.999]
    sums = (ratios[unsure].astype(np.float64) ** (1 / alpha)).sum(axis=1)
    keep[unsure] = _passes(sums, 1.0, strict)
    return keep


def _select_by_both(
    rows: Probabilities, angular: AngularConfidences, portion: float, empty: str, strict: bool
) -> _Found:
    """Eq. 4: label by probability, selection by angular visual confidence."""
    predictions, probability, _ = _most_confident(rows)
    ranks = ranks_of(predictions, rows.num_classes, portion, empty)
    lambdas = thresholds_of(probability, predictions, ranks)
    confidence, largest = _angular_confidence_of(angular, predictions)
    betas = thresholds_of(confidence, predictions, ranks)
    labels = np.full(rows.num_rows, -1, dtype=np.int32)
    lowest = betas[ranks > 0].min(initial=np.inf)

    def label(start: int, stop: int) -> None:
        asked = start + np.flatnonzero(largest[start:stop] >= lowest)
        if not len(asked):
            return
        best = (_taken(rows, start, stop, asked) / lambdas).argmax(axis=1)
        of_best = confidence[asked]
        moved = best != predictions[asked]
        if moved.any():
            tile = angular.tile(start, stop)
            of_best[moved] = tile[asked[moved] - start, best[moved]]
        keep = _passes(of_best, betas[best], strict) & (ranks[best] > 0)
        labels[asked] = np.where(keep, best, -1)

    over_tiles(angular, label)
    return labels, predictions, confidence, betas, lambdas, ranks


def _most_confident(
    rows: Rows, likely_threshold: float = math.inf
) -> tuple[Integers, Floats, Floats]:
    """Largest entry of each row: its column, the first where several tie, its value, and a bound.

    The bound is at least every other entry of the row. It is the second largest entry where the
    thresholds are likely to ask for it: that is cheap now, with the row in the cache, and saves
    reading the row again.
    """
    predictions = np.empty(rows.num_rows, dtype=np.int32)
    confidence = np.empty(rows.num_rows, dtype=rows.tile(0, 1).dtype)
    others = np.empty_like(confidence)

    def look(start: int, stop: int) -> None:
        tile = rows.tile(start, stop)
        best = tile.argmax(axis=1)
        rows.check(tile, start)
        largest = _entries(tile, best)
        predictions[start:stop] = best
        confidence[start:stop] = largest
        others[start:stop] = 1.02 - largest  # entries are not negative, a row sums to about 1
        asked = np.flatnonzero((largest >= likely_threshold) & (largest < _CLEAR))
        if len(asked):
            rest = tile.take(asked, axis=0)
            rest[np.arange(len(asked)), best[asked]] = 0
            others[start + asked] = rest.max(axis=1)

    over_tiles(rows, look)
    return predictions, confidence, others


def _likely_threshold(rows: Rows, portion: float) -> float:
    """About the lowest threshold to expect, from some rows; it decides on speed alone."""
    if isinstance(rows, AngularConfidences):  # angles take far longer than reading them again
        return math.inf
    starts = np.linspace(0, max(0, rows.num_rows - _SAMPLED_ROWS), _SAMPLES).astype(np.int64)
    largest = [rows.tile(at, at + _SAMPLED_ROWS).max(axis=1) for at in starts.tolist()]
    return 0.9 * float(np.quantile(np.concatenate(largest), 1 - portion))


def _angular_confidence_of(
    angular: AngularConfidences, predictions: Integers
) -> tuple[Floats, Floats]:
    """Angular visual confidence of the predicted class, and of the nearest one."""
    confidence = np.empty(angular.num_rows, dtype=angular.tile(0, 1).dtype)
    largest = np.empty_like(confidence)

    def look(start: int, stop: int) -> None:
        tile = angular.tile(start, stop)
        confidence[start:stop] = _entries(tile, predictions[start:stop])
        largest[start:stop] = tile.max(axis=1)

    over_tiles(angular, look)
    return confidence, largest


def _taken(rows: Rows, start: int, stop: int, asked: Integers) -> Floats:
    """The asked rows of a tile; a copy only where some are left out."""
    tile = rows.tile(start, stop)
    return tile if len(asked) == len(tile) else tile[asked - start]


def _entries(tile: Floats, columns: Integers) -> Floats:
    """One entry of each row."""
    return tile[np.arange(len(tile)), columns]


def _passes(value: Floats, threshold: Floats | float, strict: bool) -> NDArray[np.bool_]:
    return value > threshold if strict else value >= threshold


def _check_options(portion: float, rule: str, empty: str, comparison: str, alpha: float) -> None:
    if rule not in RULES:
        raise UnknownNameError(unknown_name("rule", rule, list(RULES)))
    check_portion(portion)
    if empty not in ("never", "one"):
        raise OptionError(f"unknown empty {empty!r}. Known: never, one")
    if comparison not in COMPARISONS:
        raise OptionError(f"unknown comparison {comparison!r}. Known: {', '.join(COMPARISONS)}")
    check_alpha(alpha)
