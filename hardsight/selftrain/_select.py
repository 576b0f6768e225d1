"""Select the unlabelled examples to train on, and their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.errors import OptionError, UnknownNameError
from hardsight.registry import unknown_name
from hardsight.selftrain._peaks import (
    Peaks,
    least_confidence,
    peaks_of_angles,
    peaks_of_probabilities,
    sums_of_squares,
)
from hardsight.selftrain._rows import (
    AngularConfidences,
    Floats,
    Integers,
    Matrix,
    Probabilities,
    Rows,
    angular_confidences,
    as_matrix,
    entries,
    over_picked,
    over_tiles,
    probabilities,
)
from hardsight.selftrain._soft import LRENT_ALPHA, check_alpha
from hardsight.selftrain._thresholds import check_portion, ranks_of, thresholds_of

RULES = ("cbst", "cbst+avh", "avc", "crst-mrkld", "crst-lrent", "crst")
SOFT_RULES = ("crst-lrent", "crst")
MRKLD_RULES = ("crst-mrkld", "crst")
COMPARISONS = (">=", ">")
EMPTIES = ("never", "one")


@dataclass(frozen=True, eq=False)
class Selection:
    """A selection, and the numbers it is based on.

    Attributes:
        labels: pseudo-labels, ``[N]``, int64; -1 if an example is not selected.
        predictions: most confident class of each example, before any threshold, ``[N]``.
        confidence: probability or angular visual confidence of the predicted class, which the
            thresholds rank, ``[N]``.
        thresholds: ``[C]``, in terms of ``confidence``; 1 for a class without a rank.
        label_thresholds: ``[C]``, by which probabilities are divided to choose a label: the same,
            except for ``"cbst+avh"``, whose labels come from probabilities.
        ranks: number of examples of each class that the portion amounts to, ``[C]``.
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
    """Pseudo-labels of the examples that a rule selects; the ``.labels`` of :func:`select`.

    Returns:
        ``[N]``, int64; -1 if an example is not selected and should not enter the loss.

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
    - ``"crst"``: as ``"crst-lrent"``, with the regulariser of ``"crst-mrkld"`` in the loss.

    The matrices are read twice, a tile of rows at a time, so a memory-mapped array may be larger
    than memory; apart from it, some 30 bytes per example are needed. If tensors are on an
    accelerator, angles are computed there and the rest on the CPU.

    Args:
        probs: softmax probabilities, ``[N, C]``, rows sum to 1. A torch tensor or a numpy array,
            memory-mapped or not.
        portion: share of each class to keep, in (0, 1]; see :func:`class_thresholds`.
        rule: see above.
        embeddings: penultimate features, ``[N, D]``, for ``"cbst+avh"`` and ``"avc"``.
        class_weights: rows of the classifier head, ``[C, D]``, for the same.
        empty: what to do if the portion of a class is less than one example. ``"never"``: no
            example gets that label. ``"one"``: its most confident example sets the threshold. A
            class that is never predicted is never a label, either way.
        comparison: at the threshold: ``">="`` keeps the example at the rank, and all that tie with
            it, so that the portion is kept; ``">"`` leaves them out.
        alpha: temperature of ``"crst-lrent"`` and ``"crst"``.

    Returns:
        Labels, thresholds and the numbers they are based on. If classes tie, the one with the
        lowest index is predicted, and is the label. If nothing is selected, all labels are -1.

    Raises:
        UnknownNameError: no such rule.
        OptionError: ``portion`` is outside (0, 1], or another option has an unknown value.
        ShapeError: shapes do not fit, there is no example, or the rule needs embeddings.
        ProbabilityError: a row of ``probs`` is not a distribution.
        NonFiniteError: NaN in a row.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
        >>> result = select(probs, portion=0.5)
        >>> result.labels, result.thresholds, result.counts
        (tensor([ 0, -1,  1, -1]), tensor([0.9000, 0.8000]), tensor([1, 1]))

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Eqs. (2) to (4); ``"avc"`` is the rule of
        the slides; ``"crst"`` is what that paper calls CRST (its footnote 1). Zou et al., ECCV
        2018 (CBST) and ICCV 2019 (CRST).
        Deviation: the paper writes ``>`` at the threshold, the published code ``>=``, which is the
        default here because ``>`` loses one example of each class, and with saturated
        probabilities all of them. With ``empty="never"`` the published code still selects an
        example whose probability is exactly 1.
    """
    _check_options(portion, rule, empty, comparison, alpha)
    probs = as_matrix(probs)
    rows = probabilities(probs)
    strict = comparison == ">"
    if rule == "cbst+avh":
        angular = angular_confidences(embeddings, class_weights, probs, rule)
        arrays = _select_by_both(rows, angular, portion, empty, strict)
    elif rule == "avc":
        angular = angular_confidences(embeddings, class_weights, probs, rule)
        arrays = _select_by_one(angular, portion, empty, strict, None)
    else:
        soft = alpha if rule in SOFT_RULES else None
        arrays = _select_by_one(rows, portion, empty, strict, soft)
    device = probs.device if isinstance(probs, Tensor) else torch.device("cpu")
    labels, predictions, confidence, thresholds, label_thresholds, ranks = (
        torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays
    )
    return Selection(
        labels=labels.long(),
        predictions=predictions.long(),
        confidence=confidence,
        thresholds=thresholds,
        label_thresholds=label_thresholds,
        ranks=ranks,
        rule=rule,
        portion=float(portion),
    )


_Arrays = tuple[Integers, Integers, Floats, Floats, Floats, Integers]  # of a Selection, in order


def _select_by_one(
    rows: Rows, portion: float, empty: str, strict: bool, alpha: float | None
) -> _Arrays:
    """Label and selection from the same matrix."""
    if isinstance(rows, AngularConfidences):
        peaks = peaks_of_angles(rows)
    else:
        peaks = peaks_of_probabilities(rows, portion, alpha)
    ranks = ranks_of(peaks.predictions, rows.num_classes, portion, empty)
    thresholds = thresholds_of(peaks.confidence, peaks.predictions, ranks)
    best, ratio, bound = peaks.largest_ratios(thresholds)
    settled = ratio > bound  # then no other entry of the row reaches it, rounding included
    if alpha is not None:
        settled &= ratio > 1  # below 1 the sum over classes decides
    keep = settled & _passes(ratio, 1.0, strict) & (ranks[best] > 0)
    labels = np.where(keep, best, -1)
    open_rows = ~settled & _may_pass(peaks, thresholds, ranks, alpha)

    def label(at: Integers, part: Floats) -> None:
        labels[at] = _labels_of(part, thresholds, ranks, strict, alpha)

    over_picked(rows, open_rows, label)
    return labels, peaks.predictions, peaks.confidence, thresholds, thresholds, ranks


def _may_pass(
    peaks: Peaks, thresholds: Floats, ranks: Integers, alpha: float | None
) -> NDArray[np.bool_]:
    """Whether an example may be selected, as far as the bounds tell, ``[N]``."""
    if not (ranks > 0).any():
        return np.zeros(len(peaks.confidence), dtype=np.bool_)
    if alpha is None:  # no entry of a row exceeds its confidence
        reaches: NDArray[np.bool_] = peaks.confidence >= thresholds[ranks > 0].min()
        return reaches
    may_pass: NDArray[np.bool_] = peaks.confidence >= least_confidence(thresholds.min(), alpha)
    if peaks.squares is not None:
        may_pass &= peaks.largest_sums(thresholds, 1 / alpha) >= 0.999
    return may_pass


def _labels_of(
    tile: Floats, thresholds: Floats, ranks: Integers, strict: bool, alpha: float | None
) -> Integers:
    """Labels of some rows, -1 if a row is not selected; overwrites ``tile``."""
    ratios = np.divide(tile, thresholds, out=tile)
    best = ratios.argmax(axis=1)
    largest = entries(ratios, best)
    if alpha is None:
        # p / lambda >= 1 exactly if p >= lambda: the quotient is correctly rounded
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
    if alpha <= 0.5:
        # and at most max^(q-m) sum ratio^m with m <= q = 1 / alpha, by products alone: powers in
        # float64, which take twenty times as long, are left to few rows
        m = 4 if alpha <= 0.25 else 2
        most = largest ** (1 / alpha - m) * sums_of_squares(ratios * ratios if m == 4 else ratios)
        if m * alpha == 1:  # then it is the sum itself, up to rounding
            keep |= most > 1.001
        unsure = np.flatnonzero(~keep & (most >= 0.999))
    sums = (ratios[unsure].astype(np.float64) ** (1 / alpha)).sum(axis=1)
    keep[unsure] = _passes(sums, 1.0, strict)
    return keep


def _select_by_both(
    rows: Probabilities, angular: AngularConfidences, portion: float, empty: str, strict: bool
) -> _Arrays:
    """Eq. 4: label by probability, selection by angular visual confidence.

    Labels come first, so that angles, which take longest, are computed once.
    """
    peaks = peaks_of_probabilities(rows, portion, None)
    ranks = ranks_of(peaks.predictions, rows.num_classes, portion, empty)
    lambdas = thresholds_of(peaks.confidence, peaks.predictions, ranks)
    best = _largest_ratios(rows, peaks, lambdas)
    confidence, of_best = _angular_confidence_of(angular, peaks.predictions, best)
    betas = thresholds_of(confidence, peaks.predictions, ranks)
    keep = _passes(of_best, betas[best], strict) & (ranks[best] > 0)
    labels = np.where(keep, best, -1)
    return labels, peaks.predictions, confidence, betas, lambdas, ranks


def _largest_ratios(rows: Probabilities, peaks: Peaks, thresholds: Floats) -> Integers:
    """Class with the largest ratio of probability to threshold, ``[N]``."""
    best, ratio, bound = peaks.largest_ratios(thresholds)
    best = best.copy()

    def label(at: Integers, part: Floats) -> None:
        best[at] = (part / thresholds).argmax(axis=1)

    over_picked(rows, ratio <= bound, label)
    return best


def _angular_confidence_of(
    angular: AngularConfidences, predictions: Integers, labels: Integers
) -> tuple[Floats, Floats]:
    """Angular visual confidence of two classes of each example."""
    of_predictions = np.empty(angular.num_rows, dtype=angular.tile(0, 1).dtype)
    of_labels = np.empty_like(of_predictions)

    def look(start: int, stop: int) -> None:
        tile = angular.tile(start, stop)
        of_predictions[start:stop] = entries(tile, predictions[start:stop])
        of_labels[start:stop] = entries(tile, labels[start:stop])

    over_tiles(angular, look)
    return of_predictions, of_labels


def _passes(value: Floats, threshold: Floats | float, strict: bool) -> NDArray[np.bool_]:
    return value > threshold if strict else value >= threshold


def _check_options(portion: float, rule: str, empty: str, comparison: str, alpha: float) -> None:
    if rule not in RULES:
        raise UnknownNameError(unknown_name("rule", rule, list(RULES)))
    check_portion(portion)
    if empty not in EMPTIES:
        raise OptionError(f"unknown empty {empty!r}. Known: {', '.join(EMPTIES)}")
    if comparison not in COMPARISONS:
        raise OptionError(f"unknown comparison {comparison!r}. Known: {', '.join(COMPARISONS)}")
    check_alpha(alpha)
