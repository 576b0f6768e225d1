"""Several processes that train together: how they were started, and how they share a batch."""

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
        own: number of rows that this process takes.
        total: number of rows of the step, over all processes.
        ranks: number of processes.
    """

    own: int
    total: int
    ranks: int

    @property
    def weight(self) -> float:
        """Factor for the mean over the process's own rows, before averaging over processes.

        It is needed because ``DistributedDataParallel`` averages gradients as if all processes had
        the same number of rows.
        """
        return self.own * self.ranks / self.total


@dataclass(frozen=True)
class Shard:
    """The part of every batch that this process takes."""

    rank: int = 0
    count: int = 1

    def of(self, rows: Tensor) -> Tensor:
        """Return this process's rows of a batch, which is split into consecutive, even parts.

        All processes take every step together. A process without rows takes the first row of the
        batch again, which does not count according to :meth:`share_of`.
        """
        own = rows.tensor_split(self.count)[self.rank]
        return own if len(own) else rows[:1]

    def share_of(self, total: int) -> Share:
        """Return this process's share of a batch with ``total`` rows."""
        even, more = divmod(total, self.count)
        return Share(even + (self.rank < more), total, self.count)


@dataclass(frozen=True)
class Launched:
    """Processes that a launcher has started.

    Attributes:
        by: name of the launcher.
        devices: number of processes on each machine.
        num_nodes: number of machines.
    """

    by: str
    devices: int
    num_nodes: int

    @property
    def said(self) -> str:
        """The launched processes in words."""
        machines = f" on each of {self.num_nodes} machines" if self.num_nodes > 1 else ""
        return f"{self.by} started {self.devices} processes{machines}"


def on_ranks(config: TrainConfig) -> TrainConfig:
    """Return the recipe with the number of processes that a launcher started, if there is one.

    Without a launcher, Lightning starts as many processes as the recipe says.

    Raises:
        ConfigError: the recipe has another number, or the processes cannot train together.
    """
    ranks = _launched(config.devices * config.num_nodes)
    if ranks is None:
        return config
    stated = (config.devices, config.num_nodes)
    if stated not in ((1, 1), (ranks.devices, ranks.num_nodes)):
        raise ConfigError(
            f"{ranks.said}, but the recipe says devices = {config.devices}, num_nodes = "
            f"{config.num_nodes}; leave both out, or start as many processes"
        )
    return dataclasses.replace(config, devices=ranks.devices, num_nodes=ranks.num_nodes)


def _launched(stated: int) -> Launched | None:
    """Return the processes of a launcher; ``stated`` is their number in the recipe."""
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
            f"that the others are never started; run: srun hardsight train ..."
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
