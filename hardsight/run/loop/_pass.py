"""Run a model over data: device, precision, random state, the pass itself, and progress.

All verbs run models over data with :class:`ModelPass`, except training, which uses Lightning.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import torch
from rich import progress as bars
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from hardsight._checks import bars_wanted, first_line
from hardsight.data import (
    WORTH_KEEPING,
    Batch,
    EmbeddingSource,
    ExampleSource,
    batches,
    kept_pictures,
    thumbnail,
)
from hardsight.data.source import Parts
from hardsight.errors import (
    BadExampleError,
    DataError,
    HardsightError,
    ModelError,
    OptionError,
    OutOfMemoryError,
)
from hardsight.gallery import gallery_rows
from hardsight.heads import Forward, Head, PlacedRows, call_model, capture, logit_rows
from hardsight.preprocessing import Preprocessing
from hardsight.table import EXCERPT_SCHEMA, THUMBNAIL_SCHEMA, ScoreTable

Source = TypeVar("Source", ExampleSource, ExampleSource | EmbeddingSource)
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
SMALLER = "pass a smaller --batch-size (batch_size=)"
_SECONDS_BETWEEN_LINES = 30.0  # of the log, if there is no terminal for a bar

_log = logging.getLogger(__name__)


def seed_of(seed: int, *purpose: object) -> int:
    """Return a seed of 63 bits for one purpose.

    Example:
        >>> seed_of(0, "order", 1) != seed_of(0, "order", 2)
        True
    """
    # hashed, because generators with neighbouring seeds may give related streams
    text = "/".join(str(part) for part in (seed, *purpose))
    # 63 bits, because torch takes a signed 64-bit number
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """Return a CPU generator for one purpose, which draws the same on every machine and device."""
    return torch.Generator().manual_seed(seed_of(seed, *purpose))


@contextmanager
def random_states_kept(device: torch.device | None = None) -> Iterator[None]:
    """Restore the random states of CPU and GPUs after the block.

    CUDA is started for this only if ``device`` is a GPU: until CUDA starts, torch keeps the user's
    seed for it aside. A GPU that is first used inside the block is reset to the seed with which it
    started, so use :func:`seed_generators` to seed inside.

    Args:
        device: where the block computes, if that is known.

    Example:
        >>> before = torch.get_rng_state()
        >>> with random_states_kept():
        ...     _ = torch.rand(3)
        >>> torch.equal(before, torch.get_rng_state())
        True
    """
    if device is not None and device.type == "cuda":
        torch.cuda.init()  # before the states are read, so that they contain the user's seed
    was_started = torch.cuda.is_initialized()
    gpus = torch.cuda.get_rng_state_all() if was_started else []
    cpu = torch.get_rng_state()
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if mps is not None:
            torch.mps.set_rng_state(mps)
        if was_started:
            torch.cuda.set_rng_state_all(gpus)
        elif torch.cuda.is_initialized():
            for drawn in torch.cuda.default_generators:
                # CUDA was started inside the block, so there is no earlier state to restore
                drawn.manual_seed(drawn.initial_seed())


def seed_generators(seed: int, *, gpus: bool) -> None:
    """Seed the CPU and, with ``gpus``, all GPUs that are in use.

    ``torch.manual_seed`` would also replace the seed that torch keeps for a GPU that is not in use
    yet, and that could not be undone.

    Args:
        seed: seed of all generators.
        gpus: whether to seed GPUs. Leave it off for work on the CPU: Lightning starts CUDA even
            then, and the user's own seed would be lost.

    Raises:
        OptionError: the seed has more bits than a generator takes.
    """
    if not -(2**63) <= seed < 2**64:
        raise OptionError(f"expected a seed of at most 64 bits, got {seed}; use a smaller one")
    # generator by generator instead of torch.manual_seed, see the docstring
    torch.default_generator.manual_seed(seed)
    if gpus and torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
    if gpus and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed all generators inside the block, and restore their states afterwards.

    Args:
        seed: seed of CPU and GPUs.
        device: as in :func:`random_states_kept`.
    """
    with random_states_kept(device):
        seed_generators(seed, gpus=True)
        yield


def chosen_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is cuda, else mps, else cpu.

    Raises:
        OptionError: the device does not exist here, or cannot hold values.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # fails on "meta", whose tensors have no values
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as err:
        raise OptionError(
            f"device {name!r} cannot be used here ({first_line(err)}); pass device='auto' or 'cpu'"
        ) from err
    return device


def chosen_precision(name: str, device: torch.device) -> str:
    """Return the precision of the forward pass; ``auto`` is bfloat16 on a GPU that supports it.

    Raises:
        OptionError: there is no such precision.
    """
    if name not in PRECISIONS:
        raise OptionError(f"expected precision to be one of {', '.join(PRECISIONS)}, got {name!r}")
    if name != "auto":
        return name
    # older GPUs emulate bfloat16, which is slower than float32
    is_fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if is_fast else "float32"


def chosen_layout(channels_last: bool | None, device: torch.device) -> bool:
    """Return whether to use channels-last: as set, or by default on a GPU, where it is faster."""
    return device.type == "cuda" if channels_last is None else channels_last


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device in bytes, or 4 GiB if the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # no sysconf, or no such name on this system
        return 4 * 2**30


def forward_context(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return autocast at ``precision``, or a context that does nothing for float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def chosen_workers(workers: int | None, *, length: int | None) -> int:
    """Return the number of loader processes: as set, or half the cores, at most 8.

    Small data gets none.
    """
    if workers is not None:
        return workers
    # starting processes takes longer than reading so few examples
    if length is not None and length < 2048:
        return 0
    return max(1, min(8, (os.cpu_count() or 1) // 2))


def length_of(source: ExampleSource | EmbeddingSource) -> int | None:
    """Return the number of examples, or ``None`` for a stream that does not know."""
    try:
        return len(source)
    except (TypeError, DataError):
        return None


def loader_processes(workers: int | None, source: ExampleSource) -> int:
    """Return the loader processes for a source; none if reading is faster than sending."""
    if workers is None and source.kind is not None and not source.kind.in_processes:
        return 0
    return chosen_workers(workers, length=length_of(source))


def batches_at_once(source: ExampleSource) -> int:
    """Return how many batches are read together, to group examples of similar length."""
    return 1 if source.kind is None else source.kind.batches_at_once


def decoded_once(source: Source, *, workers: int | None = None, show: bool | None = None) -> Source:
    """Return the same examples, with decoded pictures cached on disk if that is possible.

    Args:
        source: any data.
        workers: loader processes that decode; by default chosen for the data and the cores.
        show: force the progress bar on or off.
    """
    # embeddings need no decoding, a stream has no positions, and small data is not worth the disk
    if isinstance(source, EmbeddingSource) or source.is_stream or len(source) < WORTH_KEEPING:
        return source

    def bar(part: ExampleSource) -> AbstractContextManager[Advance]:
        return progress(f"decoding {part.spec}", total=len(part), show=show)

    count = chosen_workers(workers, length=len(source))
    return kept_pictures(source, bar, workers=count)


def moved(inputs: Any, device: torch.device) -> Any:
    """Return ``inputs``, nested in any way, with all tensors on ``device``."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(device, non_blocking=True)  # pinned memory is copied while the GPU works
    if isinstance(inputs, dict):
        return {key: moved(value, device) for key, value in inputs.items()}
    if isinstance(inputs, list | tuple):  # a named tuple takes its fields one by one
        parts = [moved(value, device) for value in inputs]
        return type(inputs)(*parts) if hasattr(inputs, "_fields") else type(inputs)(parts)
    if hasattr(inputs, "to"):  # such as a BatchEncoding
        return inputs.to(device)
    return inputs


@contextmanager
def fed_in_its_dtype(model: nn.Module) -> Iterator[None]:
    """Cast float32 inputs to the dtype of a model in half or double precision inside the block.

    Inputs in another dtype are the user's choice and stay as they are. So do the inputs of a model
    whose parameters differ in dtype.
    """
    dtypes = {tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()}
    # nothing to cast for plain float32, and no single dtype to cast to for mixed ones
    if len(dtypes) != 1 or dtypes == {torch.float32}:
        yield
        return
    (dtype,) = dtypes

    def cast(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map_only(Tensor, recast, (args, kwargs))

    def recast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor

    handle = model.register_forward_pre_hook(cast, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def borrowed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put a user's model into eval mode on ``device``, and restore it after the block.

    A model spread over several devices stays where it is.
    """
    # module by module, because a user may have frozen some of them in eval mode
    modes = [(module, module.training) for module in model.modules()]
    homes = {tensor.device for tensor in chain(model.parameters(), model.buffers())}
    # meta tensors cannot be moved; the search for the head raises an error about them
    is_empty = any(home.type == "meta" for home in homes)
    # a model over several devices was placed there on purpose
    moves = len(homes) == 1 and homes != {device} and not is_empty
    model.eval()
    if moves:
        model.to(device)
    try:
        yield
    finally:
        if moves:
            model.to(homes.pop())
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class BatchOutputs:
    """A batch of a source with the model's outputs.

    Attributes:
        batch: its examples, and those that could not be read.
        embeddings: what enters the head, ``[B, D]``; ``None`` without a head.
        logits: ``[B, C]``. Embeddings and logits have no rows if no example of the batch could be
            read. For a language model there are only a few rows of logits, which were checked
            against its head; scoring computes the logits of all rows from the head.
    """

    batch: Batch
    embeddings: Tensor | None
    logits: Tensor

    @property
    def positions(self) -> int:
        """Number of source positions that the batch covers, including unreadable ones."""
        return self.batch.examples + len(self.batch.errors)


class ModelPass:
    """Runs a model over data, and checks every batch against the head.

    Use it as a context manager: at the end its hook is removed, and the batches that a GPU was
    still working on are checked.

    Args:
        model: the model on ``device``, in the mode in which it should run.
        head: the head whose embeddings are captured; ``None`` for logits alone.
        device: where batches go.
        precision: precision of the forward pass.
        goes_on: how to continue the run after a failed batch, for the error message.
        placed: captures what enters the head of a language model. All its rows are returned, but
            logits are computed for a few rows only, to save memory.
    """

    def __init__(
        self,
        model: nn.Module,
        head: Head | None,
        *,
        device: torch.device,
        precision: str = "float32",
        goes_on: str = "",
        placed: PlacedRows | None = None,
    ) -> None:
        self._model, self._head = model, head
        self._placed = placed if head is not None else None
        self._device, self._precision, self._goes_on = device, precision, goes_on
        self._name = type(model).__name__
        self._forward: Forward | None = None
        self._count, self._in_parts = 0, False
        self._open = ExitStack()

    def __enter__(self) -> ModelPass:
        if self._head is not None:
            self._forward = self._open.enter_context(capture(self._model, self._head))
        if self._placed is not None:
            self._open.enter_context(self._placed.few_made())
        return self

    def __exit__(self, *raised: Any) -> bool | None:
        return self._open.__exit__(*raised)

    def outputs(
        self, inputs: Any, ids: Sequence[str] | None = None
    ) -> tuple[Tensor | None, Tensor]:
        """Return embeddings ``[B, D]`` and logits ``[B, C]`` of one batch.

        Args:
            inputs: as the model takes them, on any device.
            ids: names of the examples, for the message of an error.

        Raises:
            HeadMismatchError: the head does not give the logits of a batch.
            OutOfMemoryError: the batch does not fit into memory.
            ModelError: the model cannot be run on it.
        """
        self._count += 1
        self._in_parts = isinstance(inputs, Parts)
        if not isinstance(inputs, Parts):
            return self._once(inputs, ids)
        # texts of different lengths come in parts, each padded to its own length and sorted
        rows = [str(row) for row in range(len(inputs.order))]
        names = inputs.split(rows if ids is None else ids)
        each = [self._once(*part) for part in zip(inputs.inputs, names, strict=True)]
        embeddings = [part for part, _ in each if part is not None]
        logits = torch.cat([part for _, part in each])
        logits = logits if self._placed is not None else logits[inputs.order]
        return torch.cat(embeddings)[inputs.order] if embeddings else None, logits

    def _once(self, inputs: Any, ids: Sequence[str] | None) -> tuple[Tensor | None, Tensor]:
        """Run the model once, and turn its errors into our own."""
        with (
            self.memory_errors(ids),
            model_errors(self._name, self._where(ids), goes_on=self._goes_on),
            torch.inference_mode(),
            forward_context(self._device, self._precision),
        ):
            placed = moved(inputs, self._device)
            # the forward counts its calls, of which a batch in parts has several
            batch = f"a part of batch {self._count}" if self._in_parts else f"batch {self._count}"
            if self._forward is not None and self._placed is not None:
                _, few = self._forward(placed, ids and self._placed.few(ids), batch=batch)
                return self._placed.whole(), few
            if self._forward is not None:
                return self._forward(placed, ids, batch=batch)
            return None, logit_rows(call_model(self._model, placed))

    def over(
        self,
        source: ExampleSource,
        preprocessing: Preprocessing,
        *,
        num_classes: int,
        batch_size: int,
        workers: int = 0,
        start: int = 0,
        stop: int | None = None,
        strict: bool = False,
        check: Callable[[Batch], None] = lambda batch: None,
    ) -> Iterator[BatchOutputs]:
        """Run the model over the examples of a source, in its order.

        Args:
            source: the data.
            preprocessing: preprocessing of images.
            num_classes: number of classes of the model.
            batch_size: number of examples at once.
            workers: number of loader processes; they end with the loop.
            start: first position.
            stop: position after the last one; ``None`` for the end.
            strict: raise at the first example that cannot be read.
            check: called before a batch is run; raises if the model cannot take it.
        """
        loaded = batches(
            source,
            preprocessing,
            start=start,
            stop=stop,
            batch_size=batch_size,
            workers=workers,
            strict=strict,
            pin=self._device.type == "cuda",
        )
        with closing(loaded):
            for batch in loaded:
                if not len(batch.index):  # nothing to run; the widths come from head and classes
                    nothing = None if self._head is None else torch.empty(0, self._head.width)
                    yield BatchOutputs(batch, nothing, torch.empty(0, num_classes))
                    continue
                check(batch)
                embeddings, logits = self.outputs(batch.inputs, batch.ids)
                yield BatchOutputs(batch, embeddings, logits)

    def check(self) -> None:
        """Wait for the device, and raise if a batch so far does not fit the head.

        Raises:
            HeadMismatchError: the head does not give the logits of a batch.
        """
        if self._forward is not None:
            self._forward.check()

    def memory_errors(self, ids: Sequence[str] | None = None) -> AbstractContextManager[None]:
        """Turn running out of memory into an error that names the last batch."""
        what = f"{self._name} ran out of memory on {self._where(ids)}"
        return memory_errors(what, goes_on=self._goes_on)

    def _where(self, ids: Sequence[str] | None) -> str:
        if not ids:
            return f"batch {self._count}"
        if len(ids) == 1:
            return f"batch {self._count} (example {ids[0]})"
        if self._in_parts:  # parts are sorted by length, so "ID to ID" would not be a range
            return f"batch {self._count} ({len(ids)} of its examples, such as {ids[0]})"
        return f"batch {self._count} (examples {ids[0]} to {ids[-1]})"


@contextmanager
def model_errors(model: str, where: str, *, goes_on: str = "") -> Iterator[None]:
    """Turn what a model raises in the block into a ModelError, except running out of memory.

    Args:
        model: name of the model.
        where: the batch, in words.
        goes_on: how to continue the run, in words.

    Raises:
        ModelError: the model cannot be run on the batch.
    """
    try:
        yield
    except (Exception, SystemExit) as err:  # a model's sys.exit(0) would end our run as a success
        if isinstance(err, HardsightError) or is_out_of_memory(err):
            raise
        raise ModelError(
            f"{model} failed on {where} with {type(err).__name__}: {first_line(err)[:300]}; it "
            f"must take every batch of the data, also a shorter last one{_added(goes_on)}"
        ) from err


@contextmanager
def memory_errors(what: str, *, smaller: str = SMALLER, goes_on: str = "") -> Iterator[None]:
    """Turn running out of memory in the block into an OutOfMemoryError.

    Args:
        what: what happened, in words.
        smaller: how to use fewer examples at once, in words.
        goes_on: how to continue the run, in words.

    Raises:
        OutOfMemoryError: memory ran out.
    """
    try:
        yield
    except HardsightError:
        raise
    except (MemoryError, RuntimeError) as err:
        if not is_out_of_memory(err):
            raise
        raise OutOfMemoryError(
            f"{what} ({first_line(err)[:300]}); {smaller}{_added(goes_on)}"
        ) from err


def _added(words: str) -> str:
    return f"; {words}" if words else ""


def is_out_of_memory(err: BaseException) -> bool:
    """Return whether an exception says that memory ran out, on the device or on the host."""
    if isinstance(err, MemoryError | torch.OutOfMemoryError):
        return True
    # torch's allocator for the CPU raises a plain RuntimeError, so only its text tells
    said = str(err).lower()
    return isinstance(err, RuntimeError) and any(
        text in said for text in ("out of memory", "can't allocate memory", "not enough memory")
    )


class _RateColumn(bars.ProgressColumn):
    """Units per second over the last moments."""

    def render(self, task: bars.Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="cyan")


class Advance(Protocol):
    """Moves a bar forward."""

    def __call__(self, units: int, *, title: str | None = None) -> None:
        """``units`` were just done; ``title`` replaces the bar's, if given."""


class _Lines:
    """Progress without a terminal: a line in the log at most every half minute."""

    def __init__(self, title: str, total: int | None, done: int, *, silent: bool) -> None:
        self._title, self._done, self._silent = title, done, silent
        self._of = "" if total is None else f" of {total:,}"
        self._last = time.monotonic()

    def __call__(self, units: int, *, title: str | None = None) -> None:
        """``units`` were just done."""
        self._done += units
        self._title = title or self._title
        now = time.monotonic()
        if not self._silent and now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            _log.info("%s: %s%s", self._title, f"{self._done:,}", self._of)


@contextmanager
def progress(
    title: str, *, total: int | None, done: int = 0, show: bool | None = None
) -> Iterator[Advance]:
    """Show progress on stderr while the block runs: a bar, or in a log a line every half minute.

    Args:
        title: what is being done.
        total: how many units there are; ``None`` if it is not known.
        done: units an earlier run has done.
        show: force the bar on or off; by default it is shown on a terminal, unless
            ``HARDSIGHT_PROGRESS=off``, which also turns the lines off.

    Yields:
        a function that takes the number of units just done.
    """
    console = Console(stderr=True)
    if not bars_wanted(show, is_terminal=console.is_terminal):
        yield _Lines(title, total, done, silent=not bars_wanted(show, is_terminal=True))
        return
    bar = bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),  # a path may have brackets
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        _RateColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task(title, total=total, completed=done)
        yield lambda units, *, title=None: bar.update(task, advance=units, description=title)


def pictures(
    source: ExampleSource | EmbeddingSource, table: ScoreTable, *, most: int, show: bool | None
) -> pa.Table:
    """Small views of the examples that a report shows: thumbnails, or the start of a text."""
    indices = gallery_rows(table, budget=most).indices().tolist()
    kept: dict[int, bytes | str] = {}
    examples = source.shown if source.shown is not None else source
    assert isinstance(examples, ExampleSource)
    shown = thumbnail if examples.kind is None else examples.kind.small
    with progress("thumbnails", total=len(indices), show=show) as advance:
        # Examples are read again here, because it is only known which rows are shown when all are
        # scored, and thumbnails of every row would be larger than the table.
        for index in indices:
            try:
                picture = shown(examples[source.position_of(index)].content)
            except BadExampleError:
                picture = None  # the file may be gone by now; its row stays
            if picture is not None:
                kept[index] = picture
            advance(1)
    images = [view if isinstance(view, bytes) else None for view in kept.values()]
    texts = [view if isinstance(view, str) else None for view in kept.values()]
    if not any(texts):
        return pa.table([list(kept), images], schema=THUMBNAIL_SCHEMA)
    return pa.table([list(kept), images, texts], schema=EXCERPT_SCHEMA)
