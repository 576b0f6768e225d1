"""Reduce a tile of examples by classes to a few numbers per example.

Each reduction is written twice: in plain form, for autograd and as the reference, and with memory
that is reused, for scoring. On a CPU the second takes a third of the time, because the system hands
out new memory page by page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hardsight.geometry import angles_from_cosines

_COSINE_RESOLUTION = 1e-3  # radians; a float32 cosine resolves no smaller angle near 0 and pi
_BLOCK = 32  # columns whose maximum is taken at once


@dataclass(frozen=True)
class AngleSummary:
    """Angles of each example, ``[N]`` each.

    Attributes:
        target: angle to the labelled class's weight.
        others: sum of the angles to all other class weights.
        nearest_other: smallest angle to another class weight.
        num_classes: C.
    """

    target: Tensor
    others: Tensor
    nearest_other: Tensor
    num_classes: int

    @property
    def total(self) -> Tensor:
        """Sum of the angles to all class weights."""
        return self.target + self.others


@dataclass(frozen=True)
class PredictionSummary:
    """The decision of a classifier for each example, ``[N]`` each.

    Attributes:
        largest: largest logit.
        prediction: class of the largest logit.
    """

    largest: Tensor
    prediction: Tensor


@dataclass(frozen=True)
class LogitSummary(PredictionSummary):
    """The distribution a classifier gives each example, ``[N]`` each.

    Attributes:
        largest: largest logit.
        prediction: class of the largest logit.
        log_total: log of the summed exponentials of all logits minus the largest. It is kept
            separate, because added to a logit of 10,000 float32 would round it to a thousandth.
        entropy: of the softmax, in nats.
    """

    log_total: Tensor
    entropy: Tensor

    @property
    def logsumexp(self) -> Tensor:
        """Log of the summed exponentials of all logits."""
        return self.largest + self.log_total


@dataclass(frozen=True)
class TargetSummary:
    """Logits and probabilities of the labelled class and of all others, ``[N]`` each.

    Attributes:
        logit: logit of the labelled class.
        log_prob: log of its softmax probability.
        largest_other: largest logit of another class.
        others_prob: probability of all other classes together, exact even near 0.
        others_square: sum of the squared probabilities of all other classes.
    """

    logit: Tensor
    log_prob: Tensor
    largest_other: Tensor
    others_prob: Tensor
    others_square: Tensor


@dataclass(frozen=True)
class Summaries:
    """All inputs of the registry's formulas; a part that was not requested is ``None``."""

    norms: Tensor | None = None
    angles: AngleSummary | None = None
    predictions: PredictionSummary | None = None
    logits: LogitSummary | None = None
    targets: TargetSummary | None = None


@dataclass(frozen=True)
class OwnColumns:
    """The column of each example's labelled class in a tile of classes.

    Attributes:
        index: column, ``[N, 1]``, clamped into the tile unless the tile holds all classes.
        inside: whether the labelled class is in this tile, ``[N, 1]``; ``None`` if it always is.
    """

    index: Tensor
    inside: Tensor | None

    def filled(self, tile: Tensor, value: float | Tensor) -> Tensor:
        """Return ``tile`` with the entries of the labelled classes replaced."""
        return tile.scatter(1, self.index, self._entries(tile, value))

    def fill_(self, tile: Tensor, value: float | Tensor) -> Tensor:
        """Like :meth:`filled`, but in place."""
        return tile.scatter_(1, self.index, self._entries(tile, value))

    def gathered(self, tile: Tensor, missing: float) -> Tensor:
        """Return the labelled classes' entries, ``[N]``; ``missing`` if in another tile."""
        entries = tile.gather(1, self.index)
        # for a label in another tile, the clamped column belongs to another class: ignore it
        if self.inside is not None:
            entries = torch.where(self.inside, entries, missing)
        return entries.squeeze(1)

    def _entries(self, tile: Tensor, value: float | Tensor) -> float | Tensor:
        if self.inside is None:
            return value
        return torch.where(self.inside, value, tile.gather(1, self.index))


def own_columns(labels: Tensor, first_class: int, width: int) -> OwnColumns:
    """Return the columns of ``labels`` in the tile of ``width`` classes from ``first_class`` on."""
    position = (labels.long() - first_class)[:, None]
    inside = (position >= 0) & (position < width)
    # clamped so that gather stays in bounds; "inside" marks the columns that are real
    return OwnColumns(position.clamp(0, width - 1), inside)


def all_columns(labels: Tensor) -> OwnColumns:
    """Columns of ``labels`` in a tile of all classes; reading a label out of range raises.

    Reading the column of a label that is not a class raises. On a GPU the error ends the process,
    as in ``cross_entropy``.
    """
    return OwnColumns(labels.long()[:, None], None)


def angle_tile(
    cosines: Tensor, columns: OwnColumns, unit: Tensor, weights: Tensor, *, spare: bool
) -> AngleSummary:
    """Reduce the angles of one tile; with ``spare`` the memory of the cosines is overwritten."""
    angles = angles_from_cosines(cosines, embeddings=unit, class_weights=weights, overwrite=spare)
    # NaN means "in another tile", which merging relies on
    target = columns.gathered(angles, math.nan)
    fill = columns.fill_ if spare else columns.filled
    nearest = fill(angles, math.inf).amin(dim=1)
    others = fill(angles, 0.0).sum(dim=1)
    return AngleSummary(target, others, nearest, num_classes=cosines.shape[1])


def with_exact_target(angles: AngleSummary, target: Tensor) -> AngleSummary:
    """Return ``angles`` with an exact angle to the labelled class, even near 0 and pi.

    If a cosine cannot tell any angle from 0 or pi, the others are set to the angle to the labelled
    class, which gives every class the same share.
    """
    count = angles.num_classes - 1
    mean = angles.others / max(count, 1)
    # at the ends all cosines round to the same number, so the mean of the others is inexact too
    at_end = (mean < _COSINE_RESOLUTION) | (mean > math.pi - _COSINE_RESOLUTION)
    alike = at_end & ((mean - target).abs() < _COSINE_RESOLUTION)
    others = torch.where(alike, target * count, angles.others)
    # dataclasses.replace cannot be traced by torch 2.6
    return AngleSummary(target, others, angles.nearest_other, angles.num_classes)


def logit_tile(
    logits: Tensor, columns: OwnColumns, first_class: int
) -> tuple[LogitSummary, TargetSummary]:
    """Return both summaries of one tile; probabilities are relative to the tile."""
    largest, prediction = logits.max(dim=1)
    target = columns.gathered(logits, -math.inf)
    below = logits - largest[:, None]
    odds = below.exp()  # against the largest
    # without the largest logit itself, so that log1p is exact for a confident row
    rest = odds.scatter(1, prediction[:, None], 0.0).sum(dim=1)
    probs = odds / (1 + rest)[:, None]
    # terms of equal sign cannot cancel, so a small entropy stays exact; floored logits are finite,
    # so a class of probability 0 adds 0 instead of NaN
    terms = probs * floored(below)
    log_total = rest.log1p()
    entropy = log_total - terms.sum(dim=1)
    log_total = or_zero_(log_total, largest)
    others = columns.filled(probs, 0.0)
    return (
        LogitSummary(largest, prediction + first_class, log_total, entropy),
        TargetSummary(
            logit=target,
            log_prob=target - floored(largest) - log_total,
            largest_other=columns.filled(logits, -math.inf).amax(dim=1),
            others_prob=others.sum(dim=1),
            others_square=others.square().sum(dim=1),
        ),
    )


class Scratch:
    """Memory for a tile, allocated once and reused for every tile of a run."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def cosines(self, unit: Tensor, weights: Tensor) -> Tensor:
        """Memory for the cosines of a tile."""
        return self._room("cosines", unit, weights.shape[0])

    def logits(
        self, cosines: Tensor, norms: Tensor, weight_norms: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Logits of a tile from its cosines."""
        # a buffer per purpose, since cosines and logits of a tile are needed at the same time
        room = self._room("logits", cosines, cosines.shape[1])
        logits = torch.mul(cosines, weight_norms, out=room).mul_(norms[:, None])
        return logits if bias is None else logits.add_(bias)

    def softmax(self, logits: Tensor) -> Tensor:
        """Compute the probabilities of a tile from its logits."""
        room = self._room("probs", logits, logits.shape[1])
        return torch.softmax(logits, dim=1, out=room)

    def _room(self, name: str, like: Tensor, width: int) -> Tensor:
        size = len(like) * width
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size or not _is_usable(buffer, like.dtype):
            # only grows, since the last tile of a run is smaller than the others
            buffer = self._buffers[name] = like.new_empty(size)
        return buffer[:size].view(len(like), width)


def _is_usable(buffer: Tensor, dtype: torch.dtype) -> bool:
    # memory allocated in inference mode must not be written to outside of it
    writable = torch.is_inference_mode_enabled() or not buffer.is_inference()
    return writable and buffer.dtype == dtype


def scratch_prediction_tile(
    logits: Tensor, columns: OwnColumns, first_class: int
) -> PredictionSummary:
    """Compute only the prediction; logits are changed in place and restored."""
    target, largest_other = _target_and_other(logits, columns)
    prediction = _first_largest(logits, target > largest_other, columns)
    return PredictionSummary(torch.maximum(target, largest_other), prediction + first_class)


def _target_and_other(logits: Tensor, columns: OwnColumns) -> tuple[Tensor, Tensor]:
    target = columns.gathered(logits, -math.inf)
    largest_other = columns.fill_(logits, -math.inf).amax(dim=1)
    # restore the entries, which the softmax needs later
    columns.fill_(logits, target[:, None])
    return target, largest_other


def scratch_logit_tile(
    logits: Tensor, columns: OwnColumns, first_class: int, scratch: Scratch
) -> tuple[LogitSummary, TargetSummary]:
    """Like :func:`logit_tile`, but overwrites the logits."""
    target, largest_other = _target_and_other(logits, columns)
    largest = torch.maximum(target, largest_other)
    own_leads = target > largest_other
    prediction = _first_largest(logits, own_leads, columns)
    probs = scratch.softmax(logits)
    own, top = columns.gathered(probs, 0.0), probs.gather(1, prediction[:, None]).squeeze(1)
    # without the largest, as in logit_tile
    rest = probs.scatter_(1, prediction[:, None], 0.0).sum(dim=1)
    log_total = (rest / top).log1p()
    # nansum, because a logit of -inf gives 0 * -inf = NaN but must add 0; the log_total of a row
    # with NaN is NaN anyway
    entropy = log_total - logits.sub_(largest[:, None]).mul_(probs).nansum(dim=1)
    rest_square = probs.square_().sum(dim=1)
    # if the label is not the prediction, its probability is at most 1/2, so 1 - own is exact enough
    others_prob = torch.where(own_leads, rest, 1 - own)
    others_square = rest_square + (top.square() - own.square()).masked_fill_(own_leads, 0.0)
    log_total = or_zero_(log_total, largest)
    log_prob = target - floored(largest) - log_total
    return (
        LogitSummary(largest, prediction + first_class, log_total, entropy),
        TargetSummary(target, log_prob, largest_other, others_prob, others_square),
    )


def floored(logits: Tensor) -> Tensor:
    """Replace -inf in logits by the lowest finite number, so differences are not NaN."""
    return logits.clamp_min(torch.finfo(logits.dtype).min)


def or_zero_(log_total: Tensor, largest: Tensor) -> Tensor:
    """Set to 0 in place if the largest logit is infinite, so log-sum-exp is infinite, not NaN."""
    return log_total.masked_fill_(largest.isinf(), 0.0)


def _first_largest(logits: Tensor, own_leads: Tensor, columns: OwnColumns) -> Tensor:
    """Return the position of the largest logit of each row, ``[N]``; the first if several tie.

    On a CPU an argmax costs ten times as much as a maximum. So it is only computed for rows that
    need it, and first over blocks of columns, then within the block with the largest logit.
    """
    # if most rows are right, their label is their prediction, and only the others are searched
    if own_leads.float().mean() < 0.5:
        return _blockwise_argmax(logits)
    prediction = columns.index.squeeze(1).clone()
    rows = own_leads.logical_not().nonzero().squeeze(1)
    prediction[rows] = _blockwise_argmax(logits[rows])
    return prediction


def _blockwise_argmax(logits: Tensor) -> Tensor:
    """Return ``logits.argmax(dim=1)``, found block by block."""
    width = logits.shape[1] // _BLOCK * _BLOCK
    # for narrow rows, blocks would save nothing
    if width < 4 * _BLOCK:
        return logits.argmax(dim=1)
    blocks = logits[:, :width].unflatten(1, (-1, _BLOCK))
    # the first of equal blocks, and the first within it, is the first class overall, as in argmax
    block = blocks.amax(dim=2).argmax(dim=1)
    within = blocks[torch.arange(len(logits), device=logits.device), block]
    place = within.argmax(dim=1)
    best: Tensor = block * _BLOCK + place
    if width == logits.shape[1]:
        return best
    rest, rest_place = logits[:, width:].max(dim=1)
    return torch.where(rest > within.gather(1, place[:, None]).squeeze(1), width + rest_place, best)
