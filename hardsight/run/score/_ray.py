"""Make the shards of a scoring run on the nodes of a Ray cluster.

The unit of work is the shard: a range of source positions, and a file of the run's folder. Ray Data
gives the numbers of the missing shards to a pool of actors that hold the model; an actor makes a
shard as this process would and puts its file in place. Ray does the scheduling, the retries after a
crash and the progress bar. The driver finishes the table from the files, as in a local run.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hardsight import errors as known_errors
from hardsight._checks import bars_wanted, require
from hardsight.data import ExampleSource
from hardsight.errors import (
    EngineError,
    HardsightError,
    OptionError,
    OutputError,
    RunMismatchError,
)
from hardsight.run.loop import chosen_device
from hardsight.run.score._arguments import ScoreArguments
from hardsight.run.score._cluster import check_connected, connect, saying_if_gone
from hardsight.run.score._rows import MAY_CHANGE, Elsewhere, ScoreWork
from hardsight.run_folder import Manifest, RunFolder, differences

_FEATURE = "engine='ray' (--engine ray)"
_MOST_BLOCKS = 4096  # Ray keeps a record of each; beyond that a block holds several shards
_SAME = "install the same versions on every node, and let all of them see the same files"
_MADE = pa.schema(
    [("number", pa.int64()), ("rows", pa.binary()), ("errors", pa.binary()),
     ("failed", pa.string()), ("why", pa.string())]
)  # fmt: skip
Prepare = Callable[[ScoreArguments], AbstractContextManager[ScoreWork]]


def _check_sizes(options: ScoreArguments) -> None:
    actors = options.ray_actors
    least, most = _range(actors)
    if actors is not None and not 1 <= least <= (most or least):
        raise OptionError(f"expected ray_actors to be 1 or more, least and most, got {actors}")
    sizes = {"ray_cpus": options.ray_cpus, "ray_gpus": options.ray_gpus}
    for name, size in sizes.items():
        if size is not None and size <= 0:
            raise OptionError(f"expected {name} to be above 0, got {size:g}")


def _range(actors: int | tuple[int, int] | None) -> tuple[int, int | None]:
    if actors is None:
        return 1, None
    return (actors, actors) if isinstance(actors, int) else actors


@contextmanager
def ray_cluster(options: ScoreArguments, prepare: Prepare) -> Iterator[RayCluster]:
    """Connect to the cluster that the arguments name; an existing connection stays open at the end.

    Args:
        options: the arguments of :func:`hardsight.score`.
        prepare: prepares the work from these arguments, here and in every worker.

    Raises:
        MissingExtraError: Ray is not installed.
        EngineError: there is no cluster at the address.
    """
    _check_sizes(options)
    ray = require("ray", extra="ray", feature=_FEATURE)
    require("ray.data", extra="ray", feature=_FEATURE)
    was_there = ray.is_initialized()
    if was_there:
        check_connected(ray, options.ray_address)
    else:
        connect(ray, options.ray_address)
    try:
        yield RayCluster(ray, options, prepare)
    finally:
        if not was_there:
            ray.shutdown()


class RayCluster:
    """A cluster that makes shards.

    Args:
        ray: the package, connected to the cluster.
        options: the arguments of :func:`hardsight.score`.
        prepare: prepares the work from these arguments.
    """

    def __init__(self, ray: Any, options: ScoreArguments, prepare: Prepare) -> None:
        self._ray, self._options, self._prepare = ray, options, prepare
        self._room = ray.cluster_resources()
        place = chosen_device(str(options.device))
        gpus = self._room.get("GPU", 0)
        if place.type != "cuda" and gpus and str(options.device) == "auto":
            raise OptionError(
                f"the cluster has {gpus:g} GPUs but this process has none, and it needs one to "
                "inspect the model first; start it on a node with a GPU (ray job submit "
                "--entrypoint-num-gpus 1), or pass device='cpu' (--device cpu)"
            )
        self._device = place.type

    def shards_of(self, work: ScoreWork, folder: RunFolder | None) -> Elsewhere:
        """A function that makes the shards of ``work``, to be called after ``folder.begin()``.

        Raises:
            OptionError: shards cannot be made on their own, or an argument cannot be sent to other
                processes.
        """
        source = work.source
        if isinstance(source, ExampleSource) and source.is_stream:
            raise OptionError(
                f"{source.spec} is a stream, which can only be read from its start; {_FEATURE} "
                "needs data with positions: store it as files, or use engine='local'"
            )
        job = ShardJob(
            self._prepare,
            self._sent(),
            work.made_of(),
            None if folder is None else folder.folder.absolute(),
        )
        return lambda numbers: self._made(job, work, numbers)

    def _sent(self) -> ScoreArguments:
        """The arguments as they are sent to workers; raises if any cannot be pickled."""
        sent = replace(
            self._options,
            device=self._device,  # without the number of a GPU: a worker sees only its own
            workers=self._loaders(),
            show_progress=False,  # bars of several workers would overwrite each other
        )
        for name, value in vars(sent).items():  # singly, so that the error names the argument
            try:
                self._ray.cloudpickle.dumps(value)
            except Exception as err:  # a user's class may raise anything
                raise OptionError(
                    f"{name} ({type(value).__name__}) cannot be pickled, so it cannot be sent to "
                    f"workers ({type(err).__name__}: {err}); {_BY_NAME.get(name, _FILES)}"
                ) from err
        return sent

    def _loaders(self) -> int:
        """Loader processes of an actor: all its cores but one, which runs the model."""
        workers = self._options.workers
        return max(0, int(self._cpus()) - 1) if workers is None else workers

    def _gpus(self) -> float:
        if self._device != "cuda":
            return 0.0
        gpus = self._options.ray_gpus
        return 1.0 if gpus is None else gpus

    def _cpus(self) -> float:
        if self._options.ray_cpus is not None:
            return self._options.ray_cpus
        if not self._gpus():
            return 1.0
        return float(max(1, self._room.get("CPU", 1) * self._gpus() // self._room.get("GPU", 1)))

    def _pool(self, shards: int) -> Any:
        """A pool of as many actors as there is room for; Ray adds some when the cluster grows."""
        least, most = _range(self._options.ray_actors)
        if self._options.ray_actors is None:
            fit = self._room.get("CPU", 1) // self._cpus()
            if self._gpus():
                fit = min(fit, self._room.get("GPU", 0) // self._gpus())
            least = max(1, min(int(fit), shards))
        return self._ray.data.ActorPoolStrategy(
            min_size=least, max_size=most, max_tasks_in_flight_per_actor=2
        )

    def _made(
        self, job: ShardJob, work: ScoreWork, numbers: Sequence[int]
    ) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        data, missing = self._ray.data, dict.fromkeys(numbers)
        if not missing:
            return
        self._say_how_far()
        made = data.from_items(
            list(numbers), override_num_blocks=min(len(missing), _MOST_BLOCKS)
        ).map_batches(
            ShardActor,
            fn_constructor_args=(job,),
            batch_size=1,
            batch_format="pyarrow",
            compute=self._pool(len(missing)),
            num_cpus=self._cpus(),
            num_gpus=self._gpus() or None,
        )
        place = self._ray.get_runtime_context().gcs_address
        try:
            with saying_if_gone(place, lambda said: _stopped(said, job, work, missing)):
                for batch in made.iter_batches(batch_size=1, batch_format="pyarrow"):
                    (shard,) = batch.to_pylist()
                    if shard["failed"] is not None:
                        raise getattr(known_errors, shard["failed"])(shard["why"])
                    del missing[shard["number"]]
                    yield shard["number"], _unpacked(shard["rows"]), _unpacked(shard["errors"])
        except HardsightError as err:
            raise type(err)(_stopped(str(err), job, work, missing)) from err
        except Exception as err:  # Ray's exceptions have no common base
            said = f"Ray stopped: {type(err).__name__}: {str(err).strip().splitlines()[-1]}"
            raise EngineError(_stopped(said, job, work, missing)) from err
        self._check_there(job, work, numbers)

    def _check_there(self, job: ShardJob, work: ScoreWork, numbers: Sequence[int]) -> None:
        """Raise if this process does not see a shard that a node has written."""
        if job.folder is None:
            return
        lost = dict.fromkeys(sorted(set(numbers) - RunFolder(job.folder).done()))
        if lost:
            said = f"shards were written that are not in {job.folder} here, so it is not the "
            said += "same folder on every node; choose an --out on a shared disk"
            raise OutputError(_stopped(said, job, work, lost))

    def _say_how_far(self) -> None:
        """Show Ray's progress bars, or nothing at all: Ray keeps its logs in files."""
        show = self._options.show_progress
        context = self._ray.data.DataContext.get_current()
        context.enable_progress_bars = bars_wanted(show, is_terminal=sys.stderr.isatty())
        logging.getLogger("ray.data").setLevel(logging.ERROR)


_FILES = "store the data as files and name them"
_BY_NAME = {
    "model": (
        "name a function that makes it instead, which workers can call: "
        "model='package.module:factory' or 'file.py:factory', with weights='file.safetensors'"
    ),
}


def _stopped(
    said: str, job: ShardJob, work: ScoreWork, missing: Mapping[int, None], most: int = 5
) -> str:
    """An error message with the list of missing shards, and how to continue."""
    if job.folder is None or not missing:
        return said
    per, last = work.rows_per_shard, len(work.source) - 1
    spans = [f"{n * per}-{min((n + 1) * per - 1, last)}" for n in list(missing)[:most]]
    more = f" and {len(missing) - most} more" if len(missing) > most else ""
    return (
        f"{said}. {len(missing)} shards are missing in {job.folder} (positions "
        f"{', '.join(spans)}{more}); continue with --resume (resume=True)"
    )


@dataclass(frozen=True)
class ShardJob:
    """The instructions of an actor.

    Attributes:
        prepare: prepares the work from the arguments.
        options: the arguments of :func:`hardsight.score`.
        made_of: the driver's manifest, which that of the worker must equal.
        folder: of the run; ``None`` to send the rows back.
        directory: that relative paths start from.
    """

    prepare: Prepare
    options: ScoreArguments
    made_of: Manifest
    folder: Path | None
    directory: str = field(default_factory=os.getcwd)


class ShardActor:
    """Makes a shard per call; the model is loaded by the first call and stays in memory.

    Errors come back as values. Ray would wrap an exception in one of its own, and would retry the
    constructor again and again if it raised.

    Args:
        job: what to do.
    """

    def __init__(self, job: ShardJob) -> None:
        self._job, self._stack = job, ExitStack()
        self._work: ScoreWork | None = None

    def __call__(self, numbers: pa.Table) -> pa.Table:
        """The shard of a number, or the error that prevented it."""
        (number,) = numbers["item"].to_pylist()
        made: dict[str, Any] = {"number": number}
        try:
            rows, unread = self._shard(number)
            made |= {"rows": _packed(rows), "errors": _packed(unread)}
        except HardsightError as err:
            made |= {"failed": type(err).__name__, "why": str(err)}
        except Exception as err:  # of a user's own code, or ours
            said = f"shard {number} failed on {socket.gethostname()}: {type(err).__name__}: {err}"
            made |= {"failed": "EngineError", "why": said}
        return pa.Table.from_pylist([made], schema=_MADE)

    def _shard(self, number: int) -> tuple[pa.Table | None, pa.Table | None]:
        if self._work is None:
            self._work = self._prepared()
        if self._job.folder is None:
            return self._work.shard(number)[:2]
        folder = RunFolder(self._job.folder)
        self._check_folder(folder)
        if not folder.has_shard(number):  # Ray repeats a call whose answer was lost with a node
            rows, unread, embeddings = self._work.shard(number)
            # check again: if the driver died, another run may have replaced this one meanwhile
            self._check_folder(folder)
            folder.write_shard(number, rows, unread, embeddings=embeddings)
        return None, None

    def _prepared(self) -> ScoreWork:
        job = self._job
        # if it does not exist here, stay in the folder that Ray made with the driver's files
        if os.path.isdir(job.directory):
            os.chdir(job.directory)
        work = self._stack.enter_context(job.prepare(job.options))
        other = differences(job.made_of, work.made_of(), may_change=MAY_CHANGE)
        if other:
            raise RunMismatchError(
                f"the worker on {socket.gethostname()} differs from the driver: "
                f"{'; '.join(other)}; {_SAME}"
            )
        return work

    def _check_folder(self, folder: RunFolder) -> None:
        """Raise if the folder of that name is not the one of the driver."""
        here = folder.manifest()
        if here is None or differences(here, self._job.made_of, may_change=MAY_CHANGE):
            raise OutputError(
                f"{folder.folder} on {socket.gethostname()} is not the folder of this run; choose "
                "an --out on a disk that all nodes share, or in an object store"
            )


def _packed(rows: pa.Table | None) -> bytes | None:
    if rows is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(packed: bytes | None) -> pa.Table:
    return pa.table({}) if packed is None else pa.ipc.open_stream(packed).read_all()
