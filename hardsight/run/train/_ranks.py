"""The processes that train together: who started them, and which part of a batch each one takes."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from torch import Tensor

from hardsight._checks import BY_HAND, launched
from hardsight.errors import ConfigError
from hardsight.run.train._config import TrainConfig


@dataclass(frozen=True)
class Share:
    """This process's part of one step.

    Attributes:
        own: rows of the step that are this process's.
        total: rows of the step, over all processes.
        ranks: processes.
    """

    own: int
    total: int
    ranks: int

    @property
    def weight(self) -> float:
        """What a mean over the own rows counts, before it is averaged over processes.

        ``DistributedDataParallel`` averages gradients as if all had equally many rows.
        """
        return self.own * self.ranks / self.total


@dataclass(frozen=True)
class Shard:
    """Which part of every batch this process takes."""

    rank: int = 0
    count: int = 1

    def of(self, rows: Tensor) -> Tensor:
        """This process's rows of a batch: parts that follow each other, as even as they can be.

        All processes take every step together. One for which no row is left takes the first one of
        the batch again; :meth:`share_of` says that it does not count.
        """
        own = rows.tensor_split(self.count)[self.rank]
        return own if len(own) else rows[:1]

    def share_of(self, total: int) -> Share:
        """How many rows of a batch of ``total`` are this process's."""
        even, more = divmod(total, self.count)
        return Share(even + (self.rank < more), total, self.count)


@dataclass(frozen=True)
class Launched:
    """Processes that somebody else has started.

    Attributes:
        by: who.
        devices: processes on each machine.
        num_nodes: machines.
    """

    by: str
    devices: int
    num_nodes: int

    @property
    def said(self) -> str:
        """In words."""
        machines = f" on each of {self.num_nodes} machines" if self.num_nodes > 1 else ""
        return f"{self.by} started {self.devices} processes{machines}"


def on_ranks(config: TrainConfig) -> TrainConfig:
    """The recipe for as many processes as a launcher has started, if one has.

    Without a launcher Lightning starts them itself, as many as the recipe says.

    Raises:
        ConfigError: the recipe says another number, or the launcher's cannot be trained with.
    """
    ranks = _launched(config.devices * config.num_nodes)
    if ranks is None:
        return config
    stated = (config.devices, config.num_nodes)
    if stated not in ((1, 1), (ranks.devices, ranks.num_nodes)):
        raise ConfigError(
            f"{ranks.said}, and the recipe says devices = {config.devices}, num_nodes = "
            f"{config.num_nodes}; leave both out, or start as many processes"
        )
    return dataclasses.replace(config, devices=ranks.devices, num_nodes=ranks.num_nodes)


def _launched(stated: int) -> Launched | None:
    """Several processes that somebody has started; ``stated`` is how many the recipe asks for."""
    by, count = launched() or ("", 1)
    if by == "torchrun":
        return _by_torchrun(count)
    if by == "srun":
        return _by_srun(count)
    if by:
        raise ConfigError(
            f"RANK and WORLD_SIZE say that {count} processes were started, but not by torchrun or "
            "srun, whose processes can train together; start them by torchrun, or unset both"
        )
    asked = int(os.environ.get("SLURM_NTASKS", "1"))
    if stated > 1 and asked > 1 and os.environ.get("SLURM_JOB_NAME") not in BY_HAND:
        raise ConfigError(
            f"the Slurm job has {asked} tasks, but this process was started without srun, so "
            f"that nobody starts the others; run: srun hardsight train ..."
        )
    return None


def _by_torchrun(total: int) -> Launched:
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    if total % here:
        raise ConfigError(
            f"torchrun started {total} processes, {here} of them on this machine; give every "
            "machine the same --nproc-per-node"
        )
    return Launched("torchrun", here, total // here)


def _by_srun(total: int) -> Launched:
    each = os.environ.get("SLURM_NTASKS_PER_NODE")
    nodes = int(os.environ.get("SLURM_NNODES", "1"))
    if each is None or int(each) * nodes != total:
        raise ConfigError(
            f"srun started {total} tasks on {nodes} machines; ask for equally many on each with "
            "--ntasks-per-node"
        )
    return Launched("srun", int(each), nodes)
