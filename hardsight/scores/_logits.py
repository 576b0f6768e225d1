"""Scores computed from logits: confidence, margin, entropy and energies."""

from __future__ import annotations

import math

from torch import Tensor

from hardsight.errors import ShapeError
from hardsight.geometry import safe_root_
from hardsight.registry import score
from hardsight.scores._summary import logit_summary, target_summary
from hardsight.scores._tiles import LogitSummary, TargetSummary


def _confidence(targets: TargetSummary) -> Tensor:
    # from the log-probability, which is exact even if the probability rounds to 1
    return targets.log_prob.exp()


@score(
    "model_confidence",
    inputs=("logits", "labels"),
    range=(0.0, 1.0),
    higher_is_harder=False,
    meaning="Softmax probability of the labelled class. Near 1 the model agrees with the label, "
    "near 0 it is sure of another class.",
    reads="targets",
    formula=_confidence,
    title="Confidence in own class",
    short_title="P(label)",
    judge=3,
    on_card=3,
)
def model_confidence(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Softmax probability of the labelled class.

    .. math:: p_y = \frac{\exp z_y}{\sum_c \exp z_c}

    Args:
        logits: ``[N, C]``.
        labels: class indices in ``[0, C)``, ``[N]``.

    Returns:
        ``[N]`` in ``[0, 1]``; smaller is harder.

    Raises:
        ShapeError: ``logits`` and ``labels`` differ in length.

    Example:
        >>> import torch
        >>> model_confidence(torch.zeros(1, 4), torch.tensor([2]))
        tensor([0.2500])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Definition 1.
    """
    return _confidence(target_summary(logits, labels))


def _margin(targets: TargetSummary) -> Tensor:
    return targets.logit - targets.largest_other


@score(
    "logit_margin",
    inputs=("logits", "labels"),
    range=(-math.inf, math.inf),
    higher_is_harder=False,
    meaning="Logit of the labelled class less the largest other logit. Below 0 the example is "
    "misclassified, near 0 it is close to a decision boundary.",
    reads="targets",
    formula=_margin,
    short_title="Margin",
    judge=1,
    on_card=2,
)
def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Logit of the labelled class minus the largest other logit.

    .. math:: \gamma = z_y - \max_{j \neq y} z_j

    Args:
        logits: ``[N, C]``, at least 2 classes.
        labels: class indices in ``[0, C)``, ``[N]``.

    Returns:
        ``[N]``; smaller is harder, negative is misclassified.

    Raises:
        ShapeError: the tensors differ in length, or there is only one class.

    Example:
        >>> import torch
        >>> logit_margin(torch.tensor([[-1.0, -3.0, -2.0]]), torch.tensor([0]))
        tensor([1.])

    Reference:
        Zhao et al., Well-classified Examples are Underestimated, AAAI 2022, Section 2.2.
    """
    if logits.ndim == 2 and logits.shape[1] < 2:
        raise ShapeError(f"a margin needs at least 2 classes, got logits {list(logits.shape)}")
    return _margin(target_summary(logits, labels))


def _el2n(targets: TargetSummary) -> Tensor:
    # the error of the labelled class, 1 - p_y, is the sum of all other probabilities
    return safe_root_(targets.others_prob.square() + targets.others_square)


@score(
    "el2n",
    inputs=("logits", "labels"),
    range=(0.0, math.sqrt(2)),
    higher_is_harder=True,
    meaning="Distance between the softmax output and the one-hot label. 0 is a perfect "
    "prediction, 1.41 is full confidence in one wrong class.",
    reads="targets",
    formula=_el2n,
    judge=2,
)
def el2n(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Euclidean distance between the softmax output and the one-hot label.

    .. math:: \lVert p - e_y \rVert_2 = \sqrt{(1 - p_y)^2 + \textstyle\sum_{j \neq y} p_j^2}

    Args:
        logits: ``[N, C]``.
        labels: class indices in ``[0, C)``, ``[N]``.

    Returns:
        ``[N]`` in ``[0, sqrt(2)]``; larger is harder. Exact even if ``p_y`` rounds to 1.

    Raises:
        ShapeError: ``logits`` and ``labels`` differ in length.

    Example:
        >>> import torch
        >>> el2n(torch.zeros(1, 2), torch.tensor([0]))
        tensor([0.7071])

    Reference:
        Paul et al., Deep Learning on a Data Diet, NeurIPS 2021.
    """
    return _el2n(target_summary(logits, labels))


def _entropy(logits: LogitSummary) -> Tensor:
    return logits.entropy


@score(
    "entropy",
    inputs=("logits",),
    range=(0.0, math.inf),
    higher_is_harder=True,
    meaning="Entropy of the softmax output, in nats. 0 is certainty, log C is no idea at all; "
    "the label plays no part.",
    reads="logits",
    formula=_entropy,
    unit="nats",
)
def entropy(logits: Tensor) -> Tensor:
    r"""Entropy of the softmax output, in nats.

    .. math:: H = -\sum_c p_c \log p_c

    Args:
        logits: ``[N, C]``.

    Returns:
        ``[N]`` in ``[0, log C]``; larger is harder.

    Raises:
        ShapeError: ``logits`` is not a floating-point matrix.

    Example:
        >>> import torch
        >>> entropy(torch.zeros(1, 2))
        tensor([0.6931])
    """
    return _entropy(logit_summary(logits))


def _conditional(targets: TargetSummary) -> Tensor:
    return -targets.logit


@score(
    "conditional_energy",
    inputs=("logits", "labels"),
    range=(-math.inf, math.inf),
    higher_is_harder=True,
    meaning="Energy of an example together with its label, the negative logit. Low energy means "
    "the model has learned this pair well.",
    reads="targets",
    formula=_conditional,
    needs_offset=True,
    judge=7,
)
def conditional_energy(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Energy of an example together with its label.

    .. math:: E(y \mid x) = -z_y

    Args:
        logits: ``[N, C]``.
        labels: class indices in ``[0, C)``, ``[N]``.

    Returns:
        ``[N]``; larger is harder.

    Raises:
        ShapeError: ``logits`` and ``labels`` differ in length.

    Example:
        >>> import torch
        >>> conditional_energy(torch.tensor([[2.0, -1.0]]), torch.tensor([1]))
        tensor([1.])

    Reference:
        Zhao et al., Well-classified Examples are Underestimated, AAAI 2022, Section 2.2.
    """
    return _conditional(target_summary(logits, labels))


def _minimum(logits: LogitSummary) -> Tensor:
    return -logits.largest


@score(
    "min_energy",
    inputs=("logits",),
    range=(-math.inf, math.inf),
    higher_is_harder=True,
    meaning="Energy of the best class, the negative largest logit. High values mean that the "
    "example fits no class, a sign of data the model was not trained on.",
    reads="logits",
    formula=_minimum,
    needs_offset=True,
    title="Minimum energy",
)
def min_energy(logits: Tensor) -> Tensor:
    r"""Smallest conditional energy over the classes.

    .. math:: \min_y E(y \mid x) = -\max_y z_y

    Args:
        logits: ``[N, C]``.

    Returns:
        ``[N]``; larger is harder.

    Raises:
        ShapeError: ``logits`` is not a floating-point matrix.

    Example:
        >>> import torch
        >>> min_energy(torch.tensor([[2.0, -1.0]]))
        tensor([-2.])

    Reference:
        Zhao et al., Well-classified Examples are Underestimated, AAAI 2022, Section 4.4.
    """
    return _minimum(logit_summary(logits))


def _free(logits: LogitSummary) -> Tensor:
    return -logits.logsumexp


@score(
    "free_energy",
    inputs=("logits",),
    range=(-math.inf, math.inf),
    higher_is_harder=True,
    meaning="Energy over all classes, the negative log-sum-exp of the logits. High values mean "
    "that the example is unlike what the model was trained on.",
    reads="logits",
    formula=_free,
    needs_offset=True,
)
def free_energy(logits: Tensor) -> Tensor:
    r"""Free energy of an example over all classes.

    .. math:: F(x) = -\log \sum_c \exp z_c

    Args:
        logits: ``[N, C]``.

    Returns:
        ``[N]``; larger is harder.

    Raises:
        ShapeError: ``logits`` is not a floating-point matrix.

    Example:
        >>> import torch
        >>> free_energy(torch.zeros(1, 2))
        tensor([-0.6931])

    Reference:
        Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020, Eq. (4).
    """
    return _free(logit_summary(logits))
