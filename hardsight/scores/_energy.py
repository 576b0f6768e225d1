import math

from torch import Tensor

from hardsight.registry import score
from hardsight.scores._summary import logit_summary, target_summary
from hardsight.scores._tiles import LogitSummary, TargetSummary


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
