"""Draw the examples of an epoch by their hardness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Sampler

from hardsight.errors import DataError, OptionError, ShapeError
from hardsight.registry import unknown_name
from hardsight.table import ScoreTable

ORDERS = ("easy_first", "hard_first", "weighted")


class HardnessSampler(Sampler[int]):
    r"""Chooses the positions of an epoch's examples by their hardness, for any ``DataLoader``.

    ==============  =============================================================================
    ``easy_first``  a curriculum: epoch 0 draws from the easiest share ``start`` alone, which grows
                    evenly until epoch ``full_epoch``, from which on all examples are drawn
    ``hard_first``  the same from the hardest end
    ``weighted``    every example in every epoch, with a chance proportional to
                    :math:`(\mathrm{rank} / N)^{\mathrm{power}}`, the hardest having rank N
    ==============  =============================================================================

    Every epoch has N draws, so runs with different orders have equally many steps. The examples of
    a share come equally often, within one; the order in an epoch is random. Self-paced learning is
    ``easy_first`` with :meth:`update` after each epoch.

    Args:
        hardness: of every example of the dataset, ``[N]``; larger is harder.
        order: the rule.
        start: share of the first epoch, in (0, 1].
        full_epoch: the epoch, counted from 0, from which on the share is all.
        power: of ``weighted``: above 0 prefers hard examples, below 0 easy ones.
        seed: of the draws; each epoch has its own.

    Raises:
        OptionError: an option is unknown or outside its range.
        ShapeError: ``hardness`` is not ``[N]``.
        DataError: an example has no hardness.

    Example:
        >>> sampler = HardnessSampler([0.1, 0.9, 0.2, 0.8], start=0.5, full_epoch=2)
        >>> sorted(sampler)  # the two easiest, twice each
        [0, 0, 2, 2]
        >>> sampler.set_epoch(2)
        >>> sorted(sampler)
        [0, 1, 2, 3]

    Reference:
        Bengio et al., Curriculum Learning, ICML 2009; Kumar et al., Self-Paced Learning for Latent
        Variable Models, NeurIPS 2010. The pace is linear in epochs here.
    """

    def __init__(
        self,
        hardness: ArrayLike,
        *,
        order: str = "easy_first",
        start: float = 0.3,
        full_epoch: int = 10,
        power: float = 1.0,
        seed: int = 0,
    ) -> None:
        if order not in ORDERS:
            raise OptionError(unknown_name("order", order, list(ORDERS)))
        if not 0 < start <= 1:
            raise OptionError(f"expected start to be a share in (0, 1], got {start}")
        if full_epoch < 0:
            raise OptionError(f"expected full_epoch to be 0 or more, got {full_epoch}")
        self.order, self.start, self.full_epoch = order, start, full_epoch
        self.power, self.seed, self.epoch = power, seed, 0
        self.update(hardness)

    @classmethod
    def from_table(
        cls, table: ScoreTable, length: int, *, by: str = "avh", **options: Any
    ) -> HardnessSampler:
        """A sampler by a column of a table, whose column ``index`` numbers the dataset.

        Args:
            table: of the dataset, scored or tracked.
            length: examples of the dataset.
            by: the score or summary.
            options: of the sampler.

        Raises:
            DataError: the table has no value for some of the examples.
        """
        return cls(hardness_by_number(table, by, length), **options)

    def update(self, hardness: ArrayLike) -> None:
        """Replace the hardness, for example by that of the last epoch.

        Args:
            hardness: ``[N]``; larger is harder.
        """
        values = np.asarray(hardness, dtype=np.float64)
        if values.ndim != 1 or not len(values):
            raise ShapeError(f"expected hardness to be [N] with N >= 1, got {list(values.shape)}")
        missing = int(np.isnan(values).sum())
        if missing:
            raise DataError(
                f"{missing:,} of {len(values):,} examples have no hardness (NaN); score them, or "
                "give them a value"
            )
        # easiest first; a stable sort keeps equal ones in their order
        self._easiest_first = torch.from_numpy(np.argsort(values, kind="stable"))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0, that the next iteration draws."""
        self.epoch = epoch

    def share_of(self, epoch: int) -> float:
        """Share of the examples that may be drawn in an epoch."""
        if self.order == "weighted" or epoch >= self.full_epoch:
            return 1.0
        return self.start + (1 - self.start) * epoch / self.full_epoch

    def rows_of(self, epoch: int, draw: torch.Generator) -> Tensor:
        """Positions of an epoch's examples, ``[N]``."""
        length = len(self)
        if self.order == "weighted":
            # by rank, so that an outlier of the score cannot take the whole epoch
            ranks = torch.arange(1, length + 1, dtype=torch.float64) / length
            chances = (ranks**self.power).cumsum(0)
            drawn = torch.rand(length, generator=draw, dtype=torch.float64) * chances[-1]
            # rounding may put a draw just behind the last chance
            places = torch.searchsorted(chances, drawn, right=True).clamp_max(length - 1)
            return self._easiest_first[places]
        count = max(1, round(self.share_of(epoch) * length))
        is_easy = self.order == "easy_first"
        pool = self._easiest_first[:count] if is_easy else self._easiest_first[length - count :]
        # an epoch has as many steps as without the sampler, so that schedules keep their meaning
        turns = -(-length // count)
        # one permutation after another: every example of the pool comes before any comes again
        drawn = torch.cat([torch.randperm(count, generator=draw) for _ in range(turns)])
        return pool[drawn[:length]]

    def __iter__(self) -> Iterator[int]:
        # the factor keeps (seed, epoch) pairs apart: seed + epoch would repeat draws for neighbours
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return iter(self.rows_of(self.epoch, draw).tolist())

    def __len__(self) -> int:
        return len(self._easiest_first)


def hardness_by_number(table: ScoreTable, by: str, length: int) -> np.ndarray[Any, Any]:
    """A column of a table by the number of the example, with the sign that makes larger harder.

    Args:
        table: with a column ``index``.
        by: the score or summary.
        length: one more than the largest number.

    Returns:
        ``[length]``; NaN for an example that the table does not have.
    """
    index = table.column("index")
    if len(index) and int(index.max()) >= length:
        raise DataError(
            f"the table has a row {int(index.max())}, the data only {length:,} examples; take the "
            "hardness from a table of this data"
        )
    values = np.full(length, np.nan)
    values[index] = table.hardness_among_alike(by)
    return values
