"""Fit a linear head to stored embeddings by multinomial logistic regression.

Every fit uses only the rows of its training folds: the penalty is chosen on a part of them, and the
start and the scaling of the search come from them as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.data import EmbeddingSource
from hardsight.errors import DataError
from hardsight.heads import Head
from hardsight.run.loop import free_bytes, generator

# factors of the squared weights, in units of the embeddings' variance: 1 is a unit normal prior
PENALTIES = (1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)
_LOGITS_AT_ONCE = 1 << 24
_FIRST_STEPS, _MOST_STEPS, _MOST_TRIES = 5, 200, 20
_SETTLED = 1e-6  # the search ends if the loss changes less than this, relatively, twice in a row
# rows of the sample that the curvature is estimated from, and steps of conjugate gradients on it
_CURVED_ROWS, _CURVED_STEPS = 10_000, 25
_WORTH_CURVING = 50_000  # rows; with fewer, the curvature costs more than the passes it saves
# relative gain, predicted by the curvature, below which the search ends; a logit is then right to
# some hundredths
_LEFT_TO_GAIN = 1e-5
_CURVED_ENOUGH = 0.1  # share of the gradient that conjugate gradients may leave unsolved
FITTED = (
    "multinomial logistic regression with a squared penalty on the weights, which was chosen by "
    "the loss on a fifth of a sample of the training folds"
)


@dataclass(frozen=True)
class Fitted:
    """A fitted head, and how it was fitted.

    Attributes:
        head: weights ``[C, D]`` and bias ``[C]``, in float32 on the CPU.
        penalty: the chosen penalty.
        losses: mean cross-entropy on the rows that were held out to choose it, by penalty.
        steps: of the search.
        learned_from: number of rows.
    """

    head: Head
    penalty: float
    losses: dict[float, float]
    steps: int
    learned_from: int

    def facts(self) -> dict[str, Any]:
        """Facts for the metadata of a table."""
        return {
            "learned_from": self.learned_from,
            "penalty": self.penalty,
            "steps": self.steps,
            "validation_loss": {f"{key:g}": value for key, value in self.losses.items()},
        }


class HeldRows:
    """Embeddings as float32 on a device: kept there if they fit, else read again for every range.

    Args:
        source: of the embeddings.
        device: to compute on.
        keeps: whether to keep them; by default if they take a quarter of the free memory or less.

    Attributes:
        finite: whether each row is finite, ``[N]``; other rows are read as zeros, which change no
            sum.
    """

    def __init__(
        self, source: EmbeddingSource, device: torch.device, *, keeps: bool | None = None
    ) -> None:
        self._source, self._device = source, device
        self._kept: Tensor | None = None
        self.finite = torch.ones(len(source), dtype=torch.bool, device=device)
        if keeps is None:
            keeps = 4 * len(source) * source.width <= free_bytes(device) / 4
        if keeps:
            self._kept = torch.empty(len(source), source.width, device=device)
        for start in range(0, len(source), 65536):
            rows = self._read(start, start + 65536)
            self.finite[start : start + len(rows)] = torch.isfinite(rows).all(dim=1)
            if self._kept is not None:
                self._kept[start : start + len(rows)] = self._zeroed(rows, start)

    def __len__(self) -> int:
        return len(self._source)

    def read(self, start: int, stop: int) -> Tensor:
        """Rows ``start`` to ``stop``, ``[n, D]``."""
        if self._kept is not None:
            return self._kept[start:stop]
        return self._zeroed(self._read(start, stop), start)

    def _zeroed(self, rows: Tensor, start: int) -> Tensor:
        finite = self.finite[start : start + len(rows)]
        return rows if bool(finite.all()) else rows.masked_fill_(~finite[:, None], 0.0)

    def _read(self, start: int, stop: int) -> Tensor:
        rows = np.array(self._source.chunk(start, min(stop, len(self._source))), dtype=np.float32)
        return torch.from_numpy(rows).to(self._device)


class HeadFitter:
    """Fits heads to some of the rows of stored embeddings.

    Args:
        source: the embeddings and their labels.
        num_classes: C.
        device: to compute on.
        seed: of the sample that chooses the penalty.
        penalties: to choose from, falling.
        sample_rows: size of the sample that gives the penalty, the scaling and the start.
        keeps: as in :class:`HeldRows`.
        curved_from: smallest number of rows for which a sample is used to estimate the curvature,
            so that a search needs fewer passes over all rows.
    """

    def __init__(
        self,
        source: EmbeddingSource,
        num_classes: int,
        *,
        device: torch.device,
        seed: int,
        penalties: Sequence[float] = PENALTIES,
        sample_rows: int = 20_000,
        keeps: bool | None = None,
        curved_from: int = _WORTH_CURVING,
    ) -> None:
        self._rows = HeldRows(source, device, keeps=keeps)
        self._curved_from = curved_from
        self._classes, self._seed = num_classes, seed
        self._penalties, self._sample_rows = penalties, sample_rows
        self._device, self._spec = device, source.spec
        self._labels = torch.from_numpy(np.array(source.labels)).to(device)
        # small enough to stay in the cache: rows are used twice, for logits and for the gradient
        self._chunk = max(256, min(4096, _LOGITS_AT_ONCE // num_classes))

    @torch.no_grad()
    def fitted(self, learn: NDArray[np.bool_]) -> Fitted:
        """Fit a head to the rows for which ``learn`` is true, except those that are not finite.

        Raises:
            DataError: no finite row is left to learn from.
        """
        mask = torch.from_numpy(learn).to(self._device) & self._rows.finite
        count = int(mask.sum())
        if not count:
            raise DataError(f"no finite embedding of {self._spec} is left to learn from in a fold")
        sample = self._sample(mask)
        rows, labels = self._gathered(sample)
        space = _Space.of(rows)
        penalty, losses, start = self._chosen(rows, labels, space)
        batches = [(rows, labels, None)] if count == len(sample) else _Masked(self, mask)
        some = rows[:: -(-len(rows) // _CURVED_ROWS)]
        curved = _Curvature.of(some, space, penalty / count) if count >= self._curved_from else None
        search = self._search(batches, count, space, penalty)
        weights, steps = search.minimum(start, curvature=curved)
        weight, bias = space.head(weights)
        head = Head(name="fitted", weight=weight.cpu(), bias=bias.cpu())
        return Fitted(head, penalty, losses, steps, count)

    def _sample(self, mask: Tensor) -> Tensor:
        """Positions of some rows, drawn at random, ascending."""
        positions = mask.nonzero().squeeze(1).cpu()
        if len(positions) > self._sample_rows:
            drawn = torch.randperm(len(positions), generator=generator(self._seed, "head"))
            positions = positions[drawn[: self._sample_rows].sort().values]
        return positions

    def _gathered(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        parts = []
        for rows, start, stop in self._chunks():
            inside = positions[(positions >= start) & (positions < stop)] - start
            parts.append(rows[inside.to(self._device)])
        return torch.cat(parts), self._labels[positions.to(self._device)]

    def _chosen(
        self, rows: Tensor, labels: Tensor, space: _Space
    ) -> tuple[float, dict[float, float], Tensor]:
        """The penalty with the least loss on a held-out fifth of the rows, all losses, and a start.

        Penalties are tried from the largest on, each from the solution of the one before, which is
        close. The search stops when the loss is 2 % above the least.
        """
        shuffled = torch.randperm(len(rows), generator=generator(self._seed, "penalty"))
        held, learned = shuffled.to(self._device).tensor_split([len(rows) // 5])
        weights = space.start(labels[learned], self._classes)
        if not len(held):  # fewer than five rows: none is left to compare penalties on
            return 1.0, {}, weights
        losses: dict[float, float] = {}
        best = weights
        for penalty in self._penalties:
            search = self._search(
                [(rows[learned], labels[learned], None)], len(learned), space, penalty
            )
            weights, _ = search.minimum(weights, settled=1000 * _SETTLED)
            losses[penalty] = search.mean_loss(weights, rows[held], labels[held])
            if losses[penalty] == min(losses.values()):
                best = weights
            if len(losses) > 2 and losses[penalty] > 1.02 * min(losses.values()):
                break
        return min(losses, key=losses.__getitem__), losses, best

    def _search(self, batches: Any, count: int, space: _Space, penalty: float) -> _Search:
        return _Search(batches, count, space, penalty, self._chunk)

    def _chunks(self) -> Iterator[tuple[Tensor, int, int]]:
        for start in range(0, len(self._rows), self._chunk):
            rows = self._rows.read(start, start + self._chunk)
            yield rows, start, start + len(rows)

    def batches(self, mask: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """All rows with their labels, and a mask of those that count."""
        for rows, start, stop in self._chunks():
            yield rows, self._labels[start:stop], mask[start:stop]


@dataclass(frozen=True)
class _Masked:
    """The rows of a mask; every iteration is a new pass over the data."""

    fitter: HeadFitter
    mask: Tensor

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return self.fitter.batches(self.mask)


@dataclass(frozen=True)
class _Space:
    """Whitened coordinates: embeddings vary equally in all directions, so a search needs few steps.

    Attributes:
        mean: of the embeddings, ``[D]``.
        turn: turns weights in these coordinates into weights of embeddings, ``[D, D]``.
        variance: of the embeddings, mean over dimensions.
    """

    mean: Tensor
    turn: Tensor
    variance: float

    @classmethod
    def of(cls, rows: Tensor) -> _Space:
        mean = rows.mean(dim=0)
        centred = rows - mean
        spread = (centred.T @ centred).double() / len(rows)
        variance = max(float(spread.diagonal().mean()), torch.finfo(torch.float32).tiny)
        # a floor under the variance: directions that hardly vary would be blown up without bound
        floor = torch.eye(len(spread), dtype=torch.float64, device=rows.device)
        spread = spread + 1e-3 * variance * floor
        below = torch.linalg.cholesky(spread)
        turn = torch.linalg.solve_triangular(below, floor, upper=False)
        return cls(mean, turn.float(), variance)

    def start(self, labels: Tensor, num_classes: int) -> Tensor:
        """Zero weights, and the log shares of the classes as the bias, ``[C, D + 1]``."""
        counts = torch.bincount(labels, minlength=num_classes).float() + 1
        weights = torch.zeros(num_classes, len(self.mean) + 1, device=self.mean.device)
        weights[:, -1] = (counts / counts.sum()).log()
        return weights

    def head(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights ``[C, D]`` and bias ``[C]`` for embeddings as they are."""
        weight = weights[:, :-1] @ self.turn
        return weight, weights[:, -1] - weight @ self.mean


class _Search:
    """Minimises the mean cross-entropy of some rows plus the penalty, by L-BFGS."""

    def __init__(self, batches: Any, count: int, space: _Space, penalty: float, chunk: int) -> None:
        self._batches, self._count, self._space, self._chunk = batches, count, space, chunk
        self._ridge = penalty * space.variance / count

    def minimum(
        self, start: Tensor, *, settled: float = _SETTLED, curvature: _Curvature | None = None
    ) -> tuple[Tensor, int]:
        """Weights in the coordinates of the space, ``[C, D + 1]``, and the number of steps.

        If the curvature is estimated from a sample of the rows, each step goes most of the way to
        the minimum, and few passes over all rows are needed.

        ``torch.optim.LBFGS`` is not used because it would compute every value twice if convergence
        is tested after each step, and a pass over the rows is the only thing that costs time.
        """
        here, (value, slope) = start, self._value(start)
        past: deque[tuple[Tensor, Tensor]] = deque(maxlen=10)
        step = still = 0
        while step < _MOST_STEPS and still < 2:
            step += 1
            way = _newton_like(slope, past, None if curvature is None else curvature.at(here))
            if curvature is not None and -_dot(slope, way) / 2 < _LEFT_TO_GAIN * abs(value):
                break  # even a full step would gain no more, if the objective were a parabola
            lowered = self._lower(here, value, slope, way)
            if lowered is None:  # no lower point in reach: only rounding is left
                break
            there, lower, other = lowered
            if _dot(there - here, other - slope) > 0:
                past.append((there - here, other - slope))
            # the first steps know little of the curvature and may be short without being at the end
            is_still = step > _FIRST_STEPS and value - lower < settled * abs(lower)
            still = still + 1 if is_still else 0
            here, value, slope = there, lower, other
        return here, step

    def _lower(
        self, here: Tensor, value: float, slope: Tensor, way: Tensor
    ) -> tuple[Tensor, float, Tensor] | None:
        """A point along ``way`` that is lower by enough (Armijo), with its value and slope."""
        gain, length = _dot(slope, way), 1.0
        for _ in range(_MOST_TRIES):
            there = here + length * way
            lower, other = self._value(there)
            if lower <= value + 1e-4 * length * gain:
                return there, lower, other
            # the minimum of the parabola through both values, within bounds
            curve = lower - value - length * gain
            length *= min(max(-length * gain / (2 * curve), 0.1), 0.5)
        return None

    def mean_loss(self, weights: Tensor, rows: Tensor, labels: Tensor) -> float:
        """Mean cross-entropy of other rows, without the penalty."""
        weight, bias = self._space.head(weights)
        total = 0.0
        for part, of in zip(rows.split(self._chunk), labels.split(self._chunk), strict=True):
            logits = torch.addmm(bias, part, weight.T)
            total += float(torch.nn.functional.cross_entropy(logits, of, reduction="sum"))
        return total / len(rows)

    def _value(self, weights: Tensor) -> tuple[float, Tensor]:
        """The objective at ``weights``, and its gradient."""
        space = self._space
        weight, bias = space.head(weights)
        slope = torch.zeros_like(weight)
        offset = torch.zeros_like(bias)
        total = torch.zeros((), dtype=torch.float64, device=weight.device)
        for rows, labels, mask in self._parts():
            logits = torch.addmm(bias, rows, weight.T)
            log_probs = logits.log_softmax(dim=1)
            own = log_probs.gather(1, labels[:, None])
            slopes = log_probs.exp_()
            slopes.scatter_add_(1, labels[:, None], torch.full_like(own, -1.0))
            if mask is not None:
                own *= mask[:, None]
                slopes *= mask[:, None]
            total -= own.double().sum()
            slope.addmm_(slopes.T, rows)
            offset += slopes.sum(dim=0)
        slope, offset = slope / self._count, offset / self._count
        # chain rule: the bias for raw embeddings is the bias of the space minus weight @ mean
        slope = slope - offset[:, None] * space.mean + self._ridge * weight
        loss = float(total) / self._count + 0.5 * self._ridge * _dot(weight, weight)
        return loss, torch.cat([slope @ space.turn.T, offset[:, None]], dim=1)

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        for rows, labels, mask in self._batches:
            if mask is not None:
                yield rows, labels, mask
                continue
            for part, of in zip(rows.split(self._chunk), labels.split(self._chunk), strict=True):
                yield part, of, None


@dataclass(frozen=True)
class _Curvature:
    """The second derivatives of the objective, estimated from a sample of the rows.

    Attributes:
        rows: in the coordinates of the space and with a 1 at the end, ``[n, D + 1]``.
        ridge: the second derivatives of the penalty in these coordinates, ``[D + 1, D + 1]``.
        probs: of the classes for each row, at the current weights, ``[n, C]``.
    """

    rows: Tensor
    ridge: Tensor
    probs: Tensor

    @classmethod
    def of(cls, rows: Tensor, space: _Space, penalty: float) -> _Curvature:
        """The curvature of a sample of rows; ``penalty`` is already divided by their number."""
        turned = (rows - space.mean) @ space.turn.T
        ridge = torch.zeros(len(space.turn) + 1, len(space.turn) + 1, device=rows.device)
        ridge[:-1, :-1] = penalty * space.variance * (space.turn @ space.turn.T)
        return cls(torch.nn.functional.pad(turned, (0, 1), value=1.0), ridge, rows.new_empty(0, 0))

    def at(self, weights: Tensor) -> _Curvature:
        """The same rows at other weights."""
        return replace(self, probs=(self.rows @ weights.T).softmax(dim=1))

    def along(self, way: Tensor) -> Tensor:
        """The second derivatives times a direction, ``[C, D + 1]``."""
        turns = self.rows @ way.T
        slopes = self.probs * (turns - (self.probs * turns).sum(dim=1, keepdim=True))
        return slopes.T @ self.rows / len(self.rows) + way @ self.ridge

    def solved(self, slope: Tensor) -> Tensor:
        """Solve second derivatives times direction = ``slope``, by conjugate gradients."""
        solution, left = torch.zeros_like(slope), slope.clone()
        way, size = left.clone(), _dot(left, left)
        enough = _CURVED_ENOUGH**2 * size
        for _ in range(_CURVED_STEPS):
            turned = self.along(way)
            bend = _dot(way, turned)
            # bend is 0 along a shift of all classes by the same vector, which changes no softmax
            if size <= enough or bend <= 0:
                break
            solution = solution + (size / bend) * way
            left = left - (size / bend) * turned
            before, size = size, _dot(left, left)
            way = left + (size / before) * way
        return solution


def _newton_like(
    slope: Tensor, past: Sequence[tuple[Tensor, Tensor]], curvature: _Curvature | None = None
) -> Tensor:
    """The direction of descent by the two-loop recursion of L-BFGS over the last steps.

    In between, the curvature of a sample is applied; without one, the scale of the last step.
    """
    way, shares = -slope, []
    for moved, turned in reversed(past):
        share = _dot(moved, way) / _dot(moved, turned)
        shares.append(share)
        way = way - share * turned
    if curvature is not None:
        way = curvature.solved(way)
    elif past:
        moved, turned = past[-1]
        way = way * (_dot(moved, turned) / _dot(turned, turned))
    else:  # the cross-entropy's curvature is at most 1/2 in whitened coordinates, so 2 is safe
        way = 2 * way
    for (moved, turned), share in zip(past, reversed(shares), strict=True):
        way = way + (share - _dot(turned, way) / _dot(moved, turned)) * moved
    return way


def _dot(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other.double()).sum())
