"""Adversarial examples in pixel units, by one step or by many steps projected into a ball.

Written by hand, because existing packages cost too much for three short functions: foolbox 3.3.4
installs GitPython and requests, and imports a deprecated name of scipy. The search is over changes
of the pixels and not over pixels, so a radius of 0 gives exactly the same input.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hardsight._checks import check_rows
from hardsight.errors import NonFiniteError, OptionError, ShapeError

Forward = Callable[[Tensor], Tensor]
NORMS = ("linf", "l2")
LOSSES = ("cross_entropy", "margin", "dlr")
_SLACK = 0.02  # tolerated outside [0, 1], because resampling filters overshoot a little


@dataclass(frozen=True)
class Normalisation:
    r"""How pixels in [0, 1] became the model's input.

    .. math:: x = (p - \mathrm{mean}) / \mathrm{std}

    Attributes:
        mean: one value per channel, or one for all channels.
        std: one value per channel, or one for all channels.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def pixels(self, inputs: Tensor) -> Tensor:
        """Return the pixels ``[N, C, H, W]`` behind a model's inputs.

        Raises:
            ShapeError: the inputs are not images with this number of channels.
            OptionError: the pixels are not in [0, 1], so this is not how the inputs were made.
        """
        pixels = inputs * self.per_channel(self.std, inputs) + self.per_channel(self.mean, inputs)
        low, high = float(pixels.min()), float(pixels.max())
        if low < -_SLACK or high > 1 + _SLACK:
            raise OptionError(
                f"undoing mean {self.mean} and std {self.std} gives pixels from {low:.3g} to "
                f"{high:.3g} instead of [0, 1]; pass the mean and std the inputs were made with"
            )
        return pixels

    def per_channel(self, values: tuple[float, ...], inputs: Tensor) -> Tensor:
        """Return ``values`` in a shape that broadcasts over images ``[N, C, H, W]``."""
        if inputs.ndim != 4 or len(values) not in (1, inputs.shape[1]):
            raise ShapeError(
                f"expected images [N, C, H, W] with C = {len(values)}, got {list(inputs.shape)}"
            )
        return torch.tensor(values, dtype=inputs.dtype, device=inputs.device)[:, None, None]


def fgsm(
    forward: Forward,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    normalisation: Normalisation,
    loss: str = "cross_entropy",
) -> Tensor:
    r"""Return inputs changed by one step of ``epsilon`` along the sign of the pixel gradient.

    .. math:: p' = \mathrm{clip}_{[0,1]}(p + \epsilon\,\mathrm{sign}\,\nabla_p L)

    Args:
        forward: maps model inputs ``[N, C, H, W]`` to logits ``[N, C]``, in eval mode.
        inputs: inputs as the model takes them.
        labels: class indices, ``[N]``.
        epsilon: largest change of a pixel, on the scale [0, 1].
        normalisation: how inputs are made from pixels.
        loss: ``"cross_entropy"``; ``"margin"``, the largest other logit minus the own one, whose
            gradient does not vanish if the model is very sure; or ``"dlr"``, see :func:`apgd`.

    Returns:
        The changed inputs; with ``epsilon=0`` exactly the same values.

    Raises:
        ShapeError: the inputs are not images, or the tensors differ in length.
        OptionError: ``epsilon`` is negative, or the pixels are not in [0, 1].

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
        >>> grey = torch.full((1, 1, 2, 2), 0.5)
        >>> changed = fgsm(net, grey, torch.tensor([0]), epsilon=0.1, normalisation=Normalisation())
        >>> round(float((changed - grey).abs().max()), 4)
        0.1

    Reference:
        Goodfellow et al., Explaining and Harnessing Adversarial Examples, ICLR 2015.
    """
    search = Search(forward, inputs, labels, epsilon, normalisation, loss)
    change = torch.zeros_like(inputs)
    return search.inputs(search.clipped(change + epsilon * search.gradient(change).sign()))


def pgd(
    forward: Forward,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    normalisation: Normalisation,
    norm: str = "linf",
    steps: int = 10,
    step_size: float | None = None,
    restarts: int = 1,
    loss: str = "cross_entropy",
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Return inputs after steps along the gradient, each projected back into a ball.

    .. math:: p_{t+1} = \Pi_{\|p' - p\| \le \epsilon,\ p' \in [0,1]}(p_t + \alpha\,g_t)

    where :math:`g` is the sign of the gradient (L-infinity) or its direction (L2). The first start
    is the image itself, and further starts are random points of the ball. Each example keeps the
    worst of its starts: a start that changes the prediction, or else the one with the largest
    margin to another class.

    Args:
        forward: maps model inputs ``[N, C, H, W]`` to logits ``[N, C]``, in eval mode.
        inputs: inputs as the model takes them.
        labels: class indices, ``[N]``.
        epsilon: radius in pixels on the scale [0, 1].
        normalisation: how inputs are made from pixels.
        norm: ``"linf"`` or ``"l2"``.
        steps: number of steps.
        step_size: size of one step; ``2.5 * epsilon / steps`` if ``None``.
        restarts: number of starts.
        loss: as for :func:`fgsm`.
        generator: CPU generator of the random starts; needed for more than one start.

    Returns:
        The changed inputs; with ``epsilon=0`` exactly the same values.

    Raises:
        ShapeError: the inputs are not images, or the tensors differ in length.
        OptionError: an option is outside its range.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
        >>> grey = torch.full((1, 1, 2, 2), 0.5)
        >>> changed = pgd(net, grey, torch.tensor([0]), epsilon=0.2, norm="l2",
        ...               normalisation=Normalisation())
        >>> round(float((changed - grey).norm()), 4)
        0.2

    Reference:
        Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018.
    """
    if norm not in NORMS:
        raise OptionError(f"expected norm to be one of {', '.join(NORMS)}, got {norm!r}")
    if steps < 1 or restarts < 1:
        raise OptionError(f"expected steps and restarts >= 1, got {steps} and {restarts}")
    if restarts > 1 and generator is None:
        raise OptionError("random restarts need a torch.Generator; pass generator=")
    search = Search(forward, inputs, labels, epsilon, normalisation, loss)
    size = 2.5 * epsilon / steps if step_size is None else step_size
    best, worst = torch.zeros_like(inputs), torch.full_like(inputs[:, 0, 0, 0], -torch.inf)
    for start in range(restarts):
        change = torch.zeros_like(inputs)
        if start and generator is not None:
            change = search.projected(noise(inputs, epsilon, norm, generator), norm)
        for _ in range(steps):
            change = search.projected(change + size * search.direction(change, norm), norm)
        margin = search.margin(change)
        better = margin > worst
        best = torch.where(better[:, None, None, None], change, best)
        worst = torch.where(better, margin, worst)
    return search.inputs(best)


class Search:
    """The model's loss as a function of a change of the pixels, and the allowed changes."""

    def __init__(
        self,
        forward: Forward,
        inputs: Tensor,
        labels: Tensor,
        epsilon: float,
        normalisation: Normalisation,
        loss: str,
    ) -> None:
        if not epsilon >= 0:
            raise OptionError(f"expected epsilon >= 0, got {epsilon}")
        if loss not in LOSSES:
            raise OptionError(f"expected loss to be one of {', '.join(LOSSES)}, got {loss!r}")
        check_rows(inputs=inputs, labels=labels)
        self._forward, self._inputs, self._labels = forward, inputs.detach(), labels
        self._epsilon, self._loss = epsilon, loss
        pixels = normalisation.pixels(self._inputs) if len(inputs) else self._inputs
        self._scale = 1 / normalisation.per_channel(normalisation.std, inputs)
        # a change of 0 must be allowed even for a pixel that rounding put outside [0, 1]
        self._low, self._high = (-pixels).clamp(max=0), (1 - pixels).clamp(min=0)

    def inputs(self, change: Tensor) -> Tensor:
        return (self._inputs + change * self._scale).detach()

    def at(self, rows: Tensor) -> Search:
        """Return the same search for some of the examples."""
        some = copy.copy(self)
        some._inputs, some._labels = self._inputs[rows], self._labels[rows]
        some._low, some._high = self._low[rows], self._high[rows]
        return some

    def gradient(self, change: Tensor) -> Tensor:
        return self.values_and_gradient(change)[1]

    def values_and_gradient(self, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each example's loss, ``[N]``, gradient, and margin to another class, ``[N]``."""
        with torch.enable_grad():
            tracked = change.detach().requires_grad_()
            logits = self._forward(self._inputs + tracked * self._scale)
            values = self._objective(logits)
            # examples do not affect each other, so the gradient of the sum has one part for each
            (slope,) = torch.autograd.grad(values.sum(), tracked)
        if not bool(torch.isfinite(slope).all()):
            raise NonFiniteError(
                "the gradient with respect to the image is not finite, so no attack can follow "
                "it; check the model's outputs for these images"
            )
        return values.detach(), slope, _margins(logits.detach(), self._labels)

    def direction(self, change: Tensor, norm: str) -> Tensor:
        return self.along(self.gradient(change), norm)

    def along(self, slope: Tensor, norm: str) -> Tensor:
        """Return the step of length 1 that follows a gradient."""
        if norm == "linf":
            return slope.sign()
        length = _lengths(slope)
        return slope / torch.where(length == 0, 1, length)

    def projected(self, change: Tensor, norm: str) -> Tensor:
        if norm == "linf":
            return self.clipped(change)
        length = _lengths(change)
        change = change * (self._epsilon / torch.where(length == 0, 1, length)).clamp(max=1)
        # clamping to the valid range only makes a change shorter, so it stays in the ball
        return change.clamp(self._low, self._high)

    def clipped(self, change: Tensor) -> Tensor:
        return change.clamp(-self._epsilon, self._epsilon).clamp(self._low, self._high)

    @torch.no_grad()
    def margin(self, change: Tensor) -> Tensor:
        return _margins(self._forward(self._inputs + change * self._scale), self._labels)

    def _objective(self, logits: Tensor) -> Tensor:
        """Return the loss of each example, ``[N]``."""
        if self._loss == "margin":
            return _margins(logits, self._labels)
        if self._loss == "dlr":
            return _logit_ratios(logits, self._labels)
        return cross_entropy(logits, self._labels, reduction="none")


def _margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest other logit minus the own one, ``[N]``; above 0 if another class wins."""
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    return others - own.squeeze(1)


def _logit_ratios(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the margin divided by the distance from the first to the third logit, ``[N]``."""
    if logits.shape[1] < 3:
        raise OptionError(
            f"the loss 'dlr' needs a third class, got {logits.shape[1]}; use 'margin'"
        )
    first, _, third = logits.topk(3, dim=1).values.unbind(dim=1)
    # prevents 0 / 0 if all three are equal, which has no gradient direction anyway
    return _margins(logits, labels) / (first - third).clamp_min(torch.finfo(logits.dtype).tiny)


def _lengths(change: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(change, dim=(1, 2, 3), keepdim=True)
    return lengths


def noise(inputs: Tensor, epsilon: float, norm: str, generator: torch.Generator) -> Tensor:
    """Return a random point of the ball for every example."""
    if norm == "linf":
        drawn = (2 * torch.rand(inputs.shape, generator=generator) - 1) * epsilon
    else:
        drawn = torch.randn(inputs.shape, generator=generator)
        drawn = drawn / _lengths(drawn) * epsilon * torch.rand(len(inputs), 1, 1, 1,
                                                               generator=generator)  # fmt: skip
    return drawn.to(inputs)
