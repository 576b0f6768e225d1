"""The processes that train together: who started them, and which part of a batch each one takes."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from torch import Tensor

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
    launched = _launched(config.devices * config.num_nodes)
    if launched is None:
        return config
    stated = (config.devices, config.num_nodes)
    if stated not in ((1, 1), (launched.devices, launched.num_nodes)):
        raise ConfigError(
            f"{launched.said}, and the recipe says devices = {config.devices}, num_nodes = "
            f"{config.num_nodes}; leave both out, or start as many processes"
        )
    return dataclasses.replace(config, devices=launched.devices, num_nodes=launched.num_nodes)


def refuse_ranks(what: str) -> None:
    """Raise if a launcher has started several processes for what is done by one.

    Without it the first of them would do all of the work, and the others find its folder locked.

    Args:
        what: is done, such as "adapting".

    Raises:
        ConfigError: it has; says how to start one.
    """
    launched = _launched(1)
    if launched is not None:
        raise ConfigError(
            f"{launched.said}, and {what} is done by one process; start it without {launched.by}"
        )


def _launched(stated: int) -> Launched | None:
    """Several processes that somebody has started; ``stated`` is how many the recipe asks for."""
    launched = _by_torchrun() or _by_slurm(stated)
    if launched is None or launched.devices * launched.num_nodes == 1:
        return None
    return launched


def _by_torchrun() -> Launched | None:
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    total, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if total % here:
        raise ConfigError(
            f"torchrun started {total} processes, {here} of them on this machine; give every "
            "machine the same --nproc-per-node"
        )
    return Launched("torchrun", here, total // here)


def _by_slurm(stated: int) -> Launched | None:
    """The tasks of ``srun``; Lightning, too, leaves sessions named bash or interactive alone."""
    asked = int(os.environ.get("SLURM_NTASKS", "1"))
    if asked == 1 or os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    started = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))  # only srun sets it
    if started == 1:
        if stated > 1:
            raise ConfigError(
                f"the Slurm job has {asked} tasks, but this process was started without srun, so "
                f"that nobody starts the others; run: srun hardsight train ..."
            )
        return None
    each = os.environ.get("SLURM_NTASKS_PER_NODE")
    nodes = int(os.environ.get("SLURM_NNODES", "1"))
    if each is None or int(each) * nodes != started:
        raise ConfigError(
            f"srun started {started} tasks on {nodes} machines; ask for equally many on each with "
            "--ntasks-per-node"
        )
    return Launched("srun", int(each), nodes)
