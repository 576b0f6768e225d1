"""Choose the examples of an epoch: each once, classes evenly, or by hardness."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.errors import ConfigError, DataError
from hardsight.run.train._batches import EpochRows, class_balanced_rows
from hardsight.run.train._config import SamplingConfig, TrainConfig
from hardsight.run.train._data import Sources
from hardsight.table import read_table
from hardsight.tracking import HardnessSampler, HardnessTracker, hardness_by_number

MEASURES = ("avh", "loss", "el2n", "target_angle")  # of a tracker; larger is harder


class SelfPaced:
    """Draws easy examples first, by the tracker's value of each example when it was last drawn.

    Epoch 0 draws every example once. After that, the share grows as in a curriculum.

    Args:
        config: the table of the recipe.
        numbers: numbers of the training examples in the data, ``[N]``.
    """

    def __init__(self, config: SamplingConfig, numbers: NDArray[np.int64]) -> None:
        self._by, self._numbers = config.by, numbers
        self._sampler = HardnessSampler(
            np.zeros(len(numbers)), start=config.start, full_epoch=config.full_epoch
        )
        self.tracker: HardnessTracker | None = None

    def __call__(self, epoch: int, draw: torch.Generator) -> Tensor:
        # before the first epoch is tracked, nothing is known about hardness
        if epoch == 0 or self.tracker is None or not self.tracker.epochs:
            return torch.randperm(len(self._numbers), generator=draw)
        self._sampler.update(self.tracker.latest(self._by)[self._numbers])
        return self._sampler.rows_of(epoch - 1, draw)


def epoch_rows(config: TrainConfig, sources: Sources) -> tuple[EpochRows | None, str | None]:
    """Return a function that draws the examples of an epoch, and a digest of the hardness it uses.

    Returns:
        ``None`` instead of a function if every example is drawn once. There is a digest only if the
        hardness comes from a table.

    Raises:
        ConfigError: keys contradict each other.
        DataError: the table belongs to other data, or has no value for some examples.
    """
    sampling, train = config.sampling, sources.train
    check_sampling(config)
    if sampling.name == "class_balanced":
        labels = train.labels
        return lambda epoch, draw: class_balanced_rows(labels, draw), None
    if sampling.order == "none":
        return None, None
    numbers = train.source.numbered(np.asarray(train.rows))
    if sampling.order == "self_paced":
        return SelfPaced(sampling, numbers), None
    assert sampling.table is not None
    table = read_table(sampling.table)
    known = (table.metadata.get("data") or {}).get("fingerprint")
    if known is not None and known != sources.fingerprint:
        raise DataError(
            f"sampling.table {sampling.table} is a table of other data than {train.source.spec}, "
            "or the data has changed since then; score or track the training split"
        )
    hardness = hardness_by_number(table, sampling.by, train.source.span)[numbers]
    sampler = HardnessSampler(
        hardness, order=sampling.order, start=sampling.start, full_epoch=sampling.full_epoch,
        power=sampling.power,
    )  # fmt: skip
    return sampler.rows_of, hashlib.sha256(hardness.tobytes()).hexdigest()


def check_sampling(config: TrainConfig) -> None:
    """Raise if keys of ``[sampling]`` contradict each other."""
    sampling = config.sampling
    if sampling.order == "none":
        if sampling.table is not None:
            raise ConfigError("sampling.table plays no part without sampling.order; add one")
        return
    if sampling.name != "shuffled":
        raise ConfigError(
            f"sampling.order = {sampling.order!r} draws by hardness and sampling.name = "
            f"{sampling.name!r} by class; leave one out"
        )
    if sampling.order == "self_paced":
        if not config.track or sampling.table is not None:
            raise ConfigError(
                "sampling.order = 'self_paced' uses the run's own tracker: set track = true and "
                "leave sampling.table out"
            )
        if sampling.by not in MEASURES:
            raise ConfigError(
                f"expected sampling.by to be one of {', '.join(MEASURES)} for 'self_paced', got "
                f"{sampling.by!r}"
            )
        if config.devices * config.num_nodes > 1:
            raise ConfigError(
                "sampling.order = 'self_paced' trains on one device; use 'easy_first' and a table"
            )
    elif sampling.table is None:
        raise ConfigError(
            f"sampling.order = {sampling.order!r} needs the hardness of the training examples: set "
            "sampling.table to a run of `hardsight score` or a tracked run of `hardsight train`"
        )
