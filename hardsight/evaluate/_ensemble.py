"""An ensemble of attacks without a step size to tune: APGD on two losses, then Square.

Written by hand for the reasons stated in ``_attacks``. The published package also has FAB and
targeted attacks, which look for the same images in other ways and are left out here. This was
compared with torchattacks 3.5.1 on two small networks for digits and 300 images. APGD leaves as
many images right within 1.7 points (30 steps, both losses, L-infinity and L2). Square leaves 4 to 9
points fewer after 300 queries, because every example has its own squares here, whereas a batch
shares them there and no square reaches the last row or column.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hardsight.errors import OptionError
from hardsight.evaluate._attacks import NORMS, Forward, Normalisation, Search, noise

ENSEMBLE = ("apgd_cross_entropy", "apgd_dlr", "square")
_MOMENTUM, _PROGRESS = 0.75, 0.75  # alpha and rho of the paper
# The first distance between checkpoints, how much each next one is shorter, and the shortest, as
# shares of all steps.
_FIRST, _SHORTER, _LEAST = 0.22, 0.03, 0.06
# Square: the squares get half as large after these numbers of 10,000 queries.
_HALVED = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


def apgd(
    forward: Forward,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    normalisation: Normalisation,
    generator: torch.Generator,
    norm: str = "linf",
    steps: int = 100,
    loss: str = "cross_entropy",
) -> Tensor:
    r"""Return inputs after gradient steps with momentum that halve when they stop helping.

    The search starts from a random point of the ball, with :math:`\eta = 2\epsilon` at first and
    :math:`\alpha = .75`:

    .. math:: z_{k+1} = \Pi(x_k + \eta\,g_k), \qquad
              x_{k+1} = \Pi(x_k + \alpha (z_{k+1} - x_k) + (1 - \alpha)(x_k - x_{k-1}))

    Checkpoints follow each other faster and faster. At a checkpoint, an example continues from its
    best point with half of :math:`\eta` if its loss rose in fewer than 75 % of the steps since the
    last checkpoint, or if it found nothing better with the same :math:`\eta`.

    Args:
        forward: maps model inputs ``[N, C, H, W]`` to logits ``[N, C]``, in eval mode.
        inputs: inputs as the model takes them.
        labels: class indices, ``[N]``.
        epsilon: radius in pixels on the scale [0, 1].
        normalisation: how inputs are made from pixels.
        generator: CPU generator of the random start.
        norm: ``"linf"`` or ``"l2"``.
        steps: number of steps.
        loss: ``"cross_entropy"``; ``"margin"``, the largest other logit minus the own one; or
            ``"dlr"``, the margin divided by the distance from the first to the third logit, which
            does not change if all logits are multiplied by a factor. It needs three classes.

    Returns:
        For each example, the first changed input that changed the prediction, or else the one with
        the largest loss; with ``epsilon=0`` exactly the same values.

    Raises:
        ShapeError: the inputs are not images, or the tensors differ in length.
        OptionError: an option is outside its range, or ``"dlr"`` has fewer than three classes.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> grey, draws = torch.full((1, 1, 2, 2), 0.5), torch.Generator().manual_seed(0)
        >>> changed = apgd(net, grey, torch.tensor([0]), epsilon=0.1, loss="dlr", steps=10,
        ...                normalisation=Normalisation(), generator=draws)
        >>> bool((changed - grey).abs().max() <= 0.1 + 1e-6)
        True

    Reference:
        Croce and Hein, Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse
        Parameter-free Attacks, ICML 2020, Algorithm 1 and Eq. (6).
    """
    _check(norm, steps)
    search = Search(forward, inputs, labels, epsilon, normalisation, loss)
    start = search.projected(noise(inputs, epsilon, norm, generator), norm)
    climb = _Climb(search, start, norm, 2 * epsilon)
    marks = checkpoints(steps)
    for step in range(1, steps):
        climb.step(_MOMENTUM)
        if step + 1 in marks:
            climb.look_back()
    return search.inputs(climb.answer)


def checkpoints(steps: int) -> tuple[int, ...]:
    """Return the steps after which APGD looks back; the first is 0.

    Example:
        >>> checkpoints(100)
        (0, 22, 41, 57, 70, 80, 87, 93, 99)
    """
    shares = [0.0, _FIRST]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - _SHORTER, _LEAST))
    # rounded first, because 0.57 * 100 is slightly more than 57 in binary
    marks = (math.ceil(round(share * steps, 9)) for share in shares)
    return tuple(dict.fromkeys(mark for mark in marks if mark <= steps))


class _Climb:
    """The state of APGD for every example of a batch."""

    def __init__(self, search: Search, start: Tensor, norm: str, size: float) -> None:
        self._search, self._norm = search, norm
        self._size = torch.full_like(start[:, :1, :1, :1], size)
        values, self._slope, self._margin = search.values_and_gradient(start)
        self.best, self._best_value, self._best_slope = start, values, self._slope
        self._fooling, self._is_fooled = start, self._margin > 0
        self._last, self._at, self._value = start, start, values
        # progress since the last checkpoint, and the state at that checkpoint
        self._rises, self._since = torch.zeros_like(values), 0
        self._old_size, self._old_best = self._size.clone(), values.clone()
        self._move(search.projected(start + self._size * self._direction(), norm))

    @property
    def answer(self) -> Tensor:
        """The first change that changed the prediction, or else the one with the largest loss."""
        return torch.where(_as_images(self._is_fooled), self._fooling, self.best)

    def step(self, momentum: float) -> None:
        """Take one step along the gradient, blended with the previous step."""
        goal = self._search.projected(self._at + self._size * self._direction(), self._norm)
        blend = momentum * (goal - self._at) + (1 - momentum) * (self._at - self._last)
        self._move(self._search.projected(self._at + blend, self._norm))

    def _direction(self) -> Tensor:
        return self._search.along(self._slope, self._norm)

    def _move(self, place: Tensor) -> None:
        values, slope, margin = self._search.values_and_gradient(place)
        self._rises += values > self._value
        self._since += 1
        self._last, self._at, self._value, self._slope = self._at, place, values, slope
        better = values > self._best_value
        self.best = torch.where(_as_images(better), place, self.best)
        self._best_slope = torch.where(_as_images(better), slope, self._best_slope)
        self._best_value = torch.where(better, values, self._best_value)
        newly = (margin > 0) & ~self._is_fooled
        self._fooling = torch.where(_as_images(newly), place, self._fooling)
        self._is_fooled |= newly

    def look_back(self) -> None:
        """Halve the steps of examples that are stuck, and move these back to their best point."""
        # the two conditions of the paper: few steps that rose, or no better point with this size
        is_slow = self._rises < _PROGRESS * self._since
        is_same = (self._size == self._old_size)[:, 0, 0, 0] & (self._best_value == self._old_best)
        self._old_size, self._old_best = self._size.clone(), self._best_value.clone()
        stuck = _as_images(is_slow | is_same)
        self._size = torch.where(stuck, self._size / 2, self._size)
        self._at = torch.where(stuck, self.best, self._at)
        self._slope = torch.where(stuck, self._best_slope, self._slope)
        self._value = torch.where(stuck[:, 0, 0, 0], self._best_value, self._value)
        self._rises, self._since = torch.zeros_like(self._rises), 0


def _as_images(mask: Tensor) -> Tensor:
    return mask[:, None, None, None]


def square_attack(
    forward: Forward,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    normalisation: Normalisation,
    generator: torch.Generator,
    queries: int = 5000,
    first_share: float = 0.8,
) -> Tensor:
    r"""Return inputs with random squares of :math:`\pm\epsilon`, kept if the margin gets smaller.

    The attack only asks for logits, so gradients that vanish or mislead do not hide anything from
    it. It starts from vertical stripes, and its squares get smaller over time. L-infinity only.

    Args:
        forward: maps model inputs ``[N, C, H, W]`` to logits ``[N, C]``, in eval mode.
        inputs: inputs as the model takes them.
        labels: class indices, ``[N]``.
        epsilon: largest change of a pixel, on the scale [0, 1].
        normalisation: how inputs are made from pixels.
        generator: CPU generator of stripes and squares.
        queries: the largest number of times that the model is asked about an example.
        first_share: share of the pixels in the first squares.

    Returns:
        The changed inputs with the smallest margin; with ``epsilon=0`` exactly the same values.

    Raises:
        ShapeError: the inputs are not images, or the tensors differ in length.
        OptionError: an option is outside its range.

    Reference:
        Andriushchenko et al., Square Attack, ECCV 2020, Algorithms 1 and 2; ``first_share`` as in
        Croce and Hein, ICML 2020.
    """
    if queries < 1 or not 0 < first_share <= 1:
        raise OptionError(
            f"expected queries >= 1 and first_share in (0, 1], got {queries} and {first_share}"
        )
    search = Search(forward, inputs, labels, epsilon, normalisation, "margin")
    channels, height, width = inputs.shape[1:]
    stripes = _signs((len(inputs), channels, 1, width), generator).to(inputs)
    best = search.clipped(epsilon * stripes.expand_as(inputs))
    margin = search.margin(best)
    left = (margin <= 0).nonzero()[:, 0]  # examples that are still right
    for query in range(1, queries):
        if not len(left):
            break
        side = _side(query, queries, first_share, height, width)
        change = best[left]
        signs = _signs((len(left), channels, 1, 1), generator).to(inputs)
        window = _windows(len(left), side, height, width, generator).to(inputs.device)
        # adding 2 epsilon and clipping sets the square to +-epsilon, whatever it was before
        tried = search.at(left).clipped(torch.where(window, change + 2 * epsilon * signs, change))
        tried_margin = search.at(left).margin(tried)
        better = tried_margin > margin[left]
        best[left] = torch.where(_as_images(better), tried, change)
        margin[left] = torch.where(better, tried_margin, margin[left])
        left = left[margin[left] <= 0]
    return search.inputs(best)


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(0, 2, shape, generator=generator) - 1


def _side(query: int, queries: int, share: float, height: int, width: int) -> int:
    """Return the side of the squares of a query."""
    # the schedule is made for 10,000 queries, and is scaled to other numbers
    at = query / queries * 10_000
    share /= 2 ** sum(at > bound for bound in _HALVED)
    return max(1, min(round(math.sqrt(share * height * width)), height, width))


def _windows(count: int, side: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Return a random square for every example, ``[N, 1, H, W]``."""
    inside = []
    for length in (height, width):
        start = torch.randint(0, length - side + 1, (count, 1), generator=generator)
        place = torch.arange(length)
        inside.append((place >= start) & (place < start + side))
    return inside[0][:, None, :, None] & inside[1][:, None, None, :]


@dataclass(frozen=True, eq=False)
class EnsembleResult:
    """The result of an ensemble of attacks.

    Attributes:
        inputs: for each example, the inputs from the first attack that changed its prediction;
            unchanged if no attack did.
        right: whether it is still classified correctly after all attacks, ``[N]``.
        after: the same after each attack, by name, in the order in which they ran.
    """

    inputs: Tensor
    right: Tensor
    after: dict[str, Tensor]


def ensemble_attack(
    forward: Forward,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    normalisation: Normalisation,
    generator: torch.Generator,
    norm: str = "linf",
    steps: int = 100,
    queries: int = 5000,
) -> EnsembleResult:
    """Run APGD on cross-entropy, APGD on DLR and Square, each on examples that are still right.

    The published AutoAttack also has targeted APGD and FAB, so the accuracy here is an upper bound
    of the accuracy there. There is no Square in L2, and no DLR with two classes.

    Args:
        forward: maps model inputs ``[N, C, H, W]`` to logits ``[N, C]``, in eval mode.
        inputs: inputs as the model takes them.
        labels: class indices, ``[N]``.
        epsilon: radius in pixels on the scale [0, 1].
        normalisation: how inputs are made from pixels.
        generator: CPU generator of everything random.
        norm: ``"linf"`` or ``"l2"``.
        steps: steps of each APGD.
        queries: queries of Square.

    Raises:
        ShapeError: the inputs are not images, or the tensors differ in length.
        OptionError: an option is outside its range.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> images, draws = torch.rand(8, 1, 2, 2), torch.Generator().manual_seed(0)
        >>> with torch.no_grad():
        ...     found = ensemble_attack(net, images, net(images).argmax(1), epsilon=0.0, steps=5,
        ...                             queries=5, normalisation=Normalisation(), generator=draws)
        >>> bool(found.right.all()), list(found.after)
        (True, ['apgd_cross_entropy', 'apgd_dlr', 'square'])

    Reference:
        Croce and Hein, ICML 2020.
    """
    _check(norm, steps)
    with torch.no_grad():
        logits = forward(inputs)
    right, made = logits.argmax(dim=1) == labels, inputs.clone()
    after: dict[str, Tensor] = {}
    attacks: dict[str, Callable[..., Tensor]] = {
        "apgd_cross_entropy": partial(apgd, norm=norm, steps=steps),
        "apgd_dlr": partial(apgd, norm=norm, steps=steps, loss="dlr"),
        "square": partial(square_attack, queries=queries),
    }
    for name, attack in attacks.items():
        if (name == "square" and norm != "linf") or (name == "apgd_dlr" and logits.shape[1] < 3):
            continue
        rows = right.nonzero()[:, 0]
        if len(rows):
            changed = attack(
                forward, inputs[rows], labels[rows], epsilon=epsilon, normalisation=normalisation,
                generator=generator,
            )  # fmt: skip
            with torch.no_grad():
                fooled = forward(changed).argmax(dim=1) != labels[rows]
                # a lower loss is no proof: only a changed prediction counts as success
            made[rows[fooled]] = changed[fooled]
            right[rows[fooled]] = False
        after[name] = right.clone()
    return EnsembleResult(made, right, after)


def _check(norm: str, steps: int) -> None:
    if norm not in NORMS:
        raise OptionError(f"expected norm to be one of {', '.join(NORMS)}, got {norm!r}")
    if steps < 1:
        raise OptionError(f"expected steps >= 1, got {steps}")
