"""Batches of a source, in order, from loader workers that survive unreadable examples."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight._checks import warn
from hardsight.data.formats import StreamSource, reason, split_sample
from hardsight.data.pixels import check_collated, prepared
from hardsight.data.source import SourceView, Spread, in_memory, single_class_index, states_kept
from hardsight.errors import (
    BadExampleError,
    DataError,
    HardsightError,
    OptionError,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

    from hardsight.data.source import Example, ExampleSource, InputKind, Loading
    from hardsight.preprocessing import Preprocessing

_BATCH_SIZE, _PREFETCH = 64, 2
# batches with a single class that are collated twice, to see whether a collate_fn keeps the order
_OF_ONE_CLASS = 16


@dataclass
class Batch:
    """Examples ready for a model.

    Attributes:
        index: positions in the source, ``[B]``.
        ids: names, B of them.
        inputs: tensor ``[B, ...]``, or what a user's collate function gives; ``None`` if
            no example of the batch could be read.
        labels: class indices, ``[B]``.
        errors: ``(index, id, reason)`` of the examples that could not be read; they are absent
            from the other fields.
        noticed: facts about the examples, such as the number of cut tokens, by name, ``[B]`` each.
        spread_over: number of examples that the rows belong to, if an example has several rows.
    """

    index: Tensor
    ids: list[str]
    inputs: Any
    labels: Tensor
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    noticed: dict[str, Tensor] = field(default_factory=dict)
    spread_over: int | None = None

    @property
    def examples(self) -> int:
        """Number of examples that could be read; each is one row unless it has several."""
        return len(self.index) if self.spread_over is None else self.spread_over

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory; the DataLoader calls this."""
        from torch.utils.data._utils.pin_memory import pin_memory

        index, labels = self.index.pin_memory(), self.labels.pin_memory()
        return replace(self, index=index, inputs=pin_memory(self.inputs), labels=labels)


def batches(
    source: ExampleSource,
    preprocessing: Preprocessing,
    *,
    start: int = 0,
    stop: int | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    strict: bool = False,
    pin: bool = False,
) -> Generator[Batch, None, None]:
    """Read examples ``start`` to ``stop`` in source order, in batches.

    Images are preprocessed, and so are 8-bit tensors and arrays of a user's own dataset; floats of
    such a dataset only as far as ``preprocessing.stated`` says. Everything else is stacked as it
    is. An example that cannot be read is listed in the ``errors`` of its batch, even if it crashes
    its worker process. If the generator may be left early, close it (``contextlib.closing``) to end
    its workers.

    Args:
        source: the data, from :func:`hardsight.data.open_source`.
        preprocessing: how the model wants its images.
        start: first position.
        stop: position after the last one; ``None`` for the end.
        batch_size: examples per batch; by default that of the user's DataLoader, or else 64.
        workers: loader processes; by default those of the user's DataLoader, or else 0 (this
            process). Streams are always read in this process.
        strict: whether to raise at the first example that cannot be read.
        pin: whether to use page-locked memory, which is copied while the GPU works; starts CUDA.

    Yields:
        Batches; each covers ``batch_size`` positions, good and bad together.

    Raises:
        BadExampleError: ``strict``, and an example cannot be read; the message names it.
        DataError: examples of a batch do not stack, or none of all examples can be read.
        LabelError: a label is outside ``[0, C)``.
        OptionError: something is stated that cannot be applied.
    """
    if isinstance(source, SourceView) and source.renumber is not None:
        # not in the workers, because labels may come from a user's collate_fn or from a stream
        yield from _renumbered(source, batches(
            source.parts[0], preprocessing, start=start, stop=stop, batch_size=batch_size,
            workers=workers, strict=strict, pin=pin,
        ))  # fmt: skip
        return
    loading = source.loading
    size = (loading.batch_size or _BATCH_SIZE) if batch_size is None else batch_size
    size = min(size, sys.maxsize)  # torch takes no larger number, and no data has more examples
    count = (loading.workers or 0) if workers is None else workers
    if size < 1 or start < 0 or count < 0:
        raise OptionError(
            f"expected batch_size >= 1, start >= 0 and workers >= 0, got {size}, {start}, {count}"
        )
    if loading.collate is not None:
        check_collated(preprocessing, source)
    collate = _Collate(source.spec, source.classes, loading.collate, source.kind)
    rows = _Rows(source, preprocessing, raw=loading.collate is not None)
    if isinstance(source, StreamSource):
        loaded = _stream_batches(rows, collate, start, stop, size)
    else:
        end = len(source) if stop is None else min(stop, len(source))
        loaded = _map_batches(rows, collate, range(start, end), size, count, loading, pin)
    unread, first = 0, ("", "")
    # if the caller asked for a part, an unreadable part says nothing about the rest
    some_read = start > 0 or stop is not None
    with contextlib.closing(loaded):  # workers end with this loop, however it ends
        for batch in loaded:
            if isinstance(batch, HardsightError):
                raise batch
            # one readable example is enough to continue; unreadable ones are listed
            some_read = some_read or len(batch.index) > 0
            if batch.errors and not some_read:
                first = first if unread else batch.errors[0][1:]
                unread += len(batch.errors)
            if strict and batch.errors:
                _, name, why = batch.errors[0]
                raise BadExampleError(f"{name} cannot be read: {why}; repair it or remove it")
            yield batch
    if source.is_stream and not unread and not some_read:
        raise DataError(f"no examples in {source.spec}: the stream is empty")
    if unread and not some_read:
        raise DataError(
            f"none of the {unread:,} examples of {source.spec} could be read; the first, "
            f"{first[0]}: {first[1]}"
        )


def _renumbered(
    view: SourceView, loaded: Generator[Batch, None, None]
) -> Generator[Batch, None, None]:
    import torch

    # here and not in the loader processes, which need not know the numbers of the model
    new = torch.tensor(view.renumber)
    with contextlib.closing(loaded):
        for batch in loaded:
            yield replace(batch, labels=new[batch.labels])


@dataclass(frozen=True)
class _Row:
    """What a worker has read: a sample or an :class:`Example`, or the error."""

    index: int
    id: str
    sample: Any = None
    error: HardsightError | None = None


class _Rows:
    """The source as a dataset for a DataLoader; errors are returned and never raised."""

    def __init__(self, source: ExampleSource, how: Preprocessing, *, raw: bool) -> None:
        self.source, self._how, self._raw = source, how, raw

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> _Row:
        return self.row(index, lambda: self.source[index])

    def row(self, index: int, example: Callable[[], Example]) -> _Row:
        """The row at ``index``, read by ``example`` unless a collate function wants raw samples."""
        source, name = self.source, self.source.id_of(index)
        try:
            if self._raw:
                return _Row(index, name, source.sample(index))
            return _Row(index, name, self._prepared(example()))
        except HardsightError as err:
            # a new error without its cause, which may not be picklable
            return _Row(index, name, error=type(err)(str(err)))
        except Exception as err:
            return _Row(index, name, error=BadExampleError(reason(err)))

    def _prepared(self, example: Example) -> Example:
        import torch

        # prepared here, in the loader process, so that the main process only stacks
        content = prepared(example.content, self._how, self.source)
        if content is not example.content:  # pixels, made here
            return replace(example, content=torch.from_numpy(content))
        if isinstance(content, np.ndarray):
            native = content.astype(content.dtype.newbyteorder("="), order="C")  # torch's own
            return replace(example, content=torch.from_numpy(native))
        return example


class _Collate:
    """Turn rows into a :class:`Batch`, or into the error that must end the run.

    The error is returned, and raised in the main process: torch would turn an exception in a worker
    into one whose message is a traceback.
    """

    def __init__(
        self,
        spec: str,
        classes: tuple[str, ...],
        custom: Callable[[list[Any]], Any] | None,
        kind: InputKind | None,
    ) -> None:
        self._spec, self._classes, self._custom, self._kind = spec, classes, custom, kind
        self._of_one_class = 0  # batches that were collated twice

    def __call__(self, rows: list[_Row]) -> Batch | HardsightError:
        try:
            return self._batch(rows)
        except HardsightError as err:
            return type(err)(str(err))

    def _batch(self, read: list[_Row]) -> Batch:
        import torch

        for row in read:
            # a broken example is listed; any other error, such as a wrong setting, ends the run
            if row.error is not None and not isinstance(row.error, BadExampleError):
                raise row.error
        errors = [(row.index, row.id, str(row.error)) for row in read if row.error is not None]
        good = [row for row in read if row.error is None]
        samples = [row.sample for row in good]
        noticed: Mapping[str, ArrayLike] = {}
        spread: Spread | None = None
        if not good:
            inputs, labels = None, list[int]()
        elif self._kind is not None and self._custom is None:
            contents = [example.content for example in samples]
            inputs, noticed = self._kind.collated(contents)
            labels = [example.label for example in samples]
            spread = self._kind.spread(contents)
        else:
            inputs, labels = self._collated(samples)
        rows = spread or Spread([row.index for row in good], [row.id for row in good], labels)
        return Batch(
            torch.as_tensor(rows.index, dtype=torch.int64),
            rows.ids,
            inputs,
            torch.as_tensor(rows.labels, dtype=torch.int64),
            errors,
            {name: torch.as_tensor(values) for name, values in noticed.items()},
            None if spread is None else len(good),
        )

    def _collated(self, samples: list[Any]) -> tuple[Any, list[int]]:
        if self._custom is None:
            return self._stacked(samples), [example.label for example in samples]
        try:
            collated = self._custom(samples)
        except Exception as err:
            raise DataError(f"the collate_fn of {self._spec} failed: {reason(err)}") from err
        inputs, values = split_sample(collated)
        labels = in_memory(values)
        if len(labels) != len(samples):
            raise DataError(
                f"expected {len(samples)} labels from the collate_fn of {self._spec}, got "
                f"{len(labels)}; it must keep every example"
            )
        indices = self._class_indices(labels)
        # ids belong to places in the batch, so another order would assign them to wrong examples
        self._check_order(samples, inputs, indices)
        return inputs, indices

    def _class_indices(self, labels: Any) -> list[int]:
        where = f"a batch of {self._spec}"
        return [single_class_index(value, self._classes, where=where) for value in labels]

    def _check_order(self, samples: list[Any], inputs: Any, labels: list[int]) -> None:
        """Raise if the examples came back in another order; warn if that cannot be told."""
        own = self._own_labels(samples)
        is_kept: bool | None = True
        if own is None or sorted(own) != sorted(labels):  # only the collate_fn can read them
            is_kept = self._keeps_order(samples, inputs, labels)
        # with several classes, comparing labels is enough, and costs nothing
        elif len(set(own)) > 1:
            is_kept = own == labels
        elif self._of_one_class < _OF_ONE_CLASS:  # a limit: sorted data has many such batches
            self._of_one_class += 1
            is_kept = self._keeps_order(samples, inputs, labels)
        if is_kept is False:
            raise DataError(
                f"the collate_fn of {self._spec} changes the order of the examples in a batch, so "
                "rows would be assigned to wrong examples; keep the order, and sort inside the "
                "model if necessary"
            )
        if is_kept is None and own is None:
            warn(
                f"only the collate_fn of {self._spec} can read the labels, so it is not known "
                "whether it keeps the order of the examples; each row is assigned to the example "
                "at its place in the batch"
            )

    def _own_labels(self, samples: list[Any]) -> list[int] | None:
        """The labels in the samples; ``None`` if only the collate_fn can read them."""
        try:
            values = [in_memory(split_sample(sample)[1]) for sample in samples]
            return self._class_indices(values)
        except Exception:  # samples of users may raise anything
            return None

    def _keeps_order(self, samples: list[Any], inputs: Any, labels: list[int]) -> bool | None:
        """Whether reversed samples give reversed rows; ``None`` if that cannot be decided."""
        rows = _row_digests(inputs, labels)
        try:
            with states_kept():  # this extra call must not change what the next batch draws
                turned, values = split_sample(self._custom(samples[::-1]))  # type: ignore[misc]
            again = _row_digests(turned, self._class_indices(in_memory(values)))
        except Exception:  # a user's function may raise anything
            return None
        # the digests of reversed samples in reverse: the order was kept
        if again == rows[::-1]:
            # if all rows are equal, their order cannot be seen
            return True if len(set(rows)) > 1 or len(rows) == 1 else None
        return False if sorted(again) == sorted(rows) else None  # None: its output is random

    def _stacked(self, examples: list[Example]) -> Any:
        from torch.utils.data import default_collate

        seen: dict[tuple[int, ...], str] = {}
        for example in examples:
            if hasattr(example.content, "shape"):
                seen.setdefault(tuple(example.content.shape), example.id)
        if len(seen) > 1:
            (shape, first), (other, second) = list(seen.items())[:2]
            raise DataError(
                f"expected inputs of one shape, got {list(shape)} ({first}) and {list(other)} "
                f"({second}); pass size=(H, W) (--size HxW), and channels=3 (--channels 3) if some "
                "are grey"
            )
        contents = [example.content for example in examples]
        try:
            return default_collate(contents)
        except Exception as err:
            if _stack_in_private(contents):
                raise _cannot_share(err) from err
            raise DataError(
                f"the inputs of {self._spec} do not stack into a batch: {reason(err)}; pass a "
                "DataLoader with a collate_fn of your own"
            ) from err


def _row_digests(inputs: Any, labels: list[int]) -> list[tuple[int, bytes]]:
    """The label and the bytes of each row of a batch, to recognise it in another order."""
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(dict(inputs) if isinstance(inputs, Mapping) else inputs)
    parts = [
        in_memory(leaf)
        for leaf in leaves
        # only what has a row per example can tell the rows apart
        if isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim and len(leaf) == len(labels)
    ]
    return [
        (label, b"".join(np.ascontiguousarray(part[row]).tobytes() for part in parts))
        for row, label in enumerate(labels)
    ]


def _cannot_share(err: BaseException) -> DataError:
    return DataError(
        f"a loader process cannot share memory with this one: {reason(err)}; pass workers=0 "
        "(--workers 0), or allow more: /dev/shm (docker --shm-size) and open files (ulimit -n)"
    )


def _stack_in_private(contents: list[Any]) -> bool:
    """Whether a loader process could stack its inputs, had it not to share them with another."""
    import torch
    from torch.utils._pytree import tree_map
    from torch.utils.data import get_worker_info

    def stacked(*leaves: Any) -> Any:
        return torch.stack(leaves) if isinstance(leaves[0], torch.Tensor) else leaves

    # in the main process nothing is shared, so that is not the reason
    if get_worker_info() is None:
        return False
    try:
        tree_map(stacked, contents[0], *contents[1:])
    except Exception:  # of any kind: they are a user's own
        return False
    return True


class _WorkerDiedError(Exception):
    """A loader process ended without an answer."""


def _map_batches(
    rows: _Rows,
    collate: _Collate,
    positions: range,
    size: int,
    workers: int,
    loading: Loading,
    pin: bool,
) -> Generator[Batch | HardsightError, None, None]:
    """Batches from several workers; if one dies, what was under way is read serially."""
    done = 0
    while done < len(positions):
        try:
            for batch in _loaded(rows, collate, positions[done:], size, workers, loading, pin=pin):
                yield batch
                # a last batch may be shorter; the loop ends by then
                done += size
            return
        except _WorkerDiedError:
            # at most these can have been handed out: the killer is among them
            under_way = positions[done : done + size * workers * _PREFETCH]
            for batch in _serial_batches(rows, collate, under_way, size, loading):
                yield batch
                done += size


def _serial_batches(
    rows: _Rows, collate: _Collate, positions: range, size: int, loading: Loading
) -> Generator[Batch | HardsightError, None, None]:
    """One worker, one batch at a time: the batch that kills it is the next one."""
    done = 0
    while done < len(positions):
        try:
            for batch in _loaded(rows, collate, positions[done:], size, 1, loading, prefetch=1):
                yield batch
                done += size
            return
        except _WorkerDiedError:
            # example by example, to find the one
            yield collate(_single_rows(rows, positions[done : done + size], loading))
            done += size


def _single_rows(rows: _Rows, positions: range, loading: Loading) -> list[_Row]:
    """One worker, one example at a time: an example that kills it is a bad one."""
    read: list[_Row] = []
    while len(read) < len(positions):
        try:
            for (row,) in _loaded(rows, list, positions[len(read) :], 1, 1, loading, prefetch=1):
                read.append(row)
        except _WorkerDiedError as err:
            index = positions[len(read)]
            error = BadExampleError(f"its loader process died: {err}")
            read.append(_Row(index, rows.source.id_of(index), error=error))
    return read


def _loaded(
    rows: _Rows,
    collate: Callable[[list[_Row]], Any],
    positions: range,
    size: int,
    workers: int,
    loading: Loading,
    *,
    prefetch: int = _PREFETCH,
    pin: bool = False,
) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        rows,  # type: ignore[arg-type]  # needs __len__ and __getitem__ only
        batch_size=size,
        sampler=positions,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        prefetch_factor=prefetch if workers else None,
        # an object that can be pickled, since loader processes may be spawned
        worker_init_fn=_WorkerStart(loading.worker_init),
        multiprocessing_context=loading.context if workers else None,
        generator=torch.Generator().manual_seed(0),  # leaves the user's random state alone
    )
    try:
        iterator = iter(loader)
    except OSError as err:
        if not _lacks_files(err):
            raise
        raise _cannot_share(err) from err
    _watch_quietly(iterator)
    while True:
        death = ""
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except (RuntimeError, OSError, EOFError) as err:
            if workers and _lacks_files(err):
                raise _cannot_share(err) from err
            if not workers or not _is_death(err):
                raise
            death = " ".join(str(err).split())[:200] or type(err).__name__
        if death:  # no longer handling: nothing refers to the iterator, so its workers end here
            # the traceback held it: without it the workers of this loader would live on beside the
            # next
            del iterator
            raise _WorkerDiedError(death)
        yield batch


class _WorkerStart:
    """Prepares a loader process, which says nothing of a connection that its reader has left.

    A reader that is interrupted while it takes a batch leaves the thread behind that hands over
    shared memory, which would print a traceback into the terminal of somebody who pressed Ctrl-C.
    """

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, number: int) -> None:
        shown = sys.excepthook

        def show(kind: type[BaseException], err: BaseException, trace: Any) -> None:
            if not issubclass(kind, ConnectionError | EOFError):
                shown(kind, err, trace)

        sys.excepthook = show
        if self._own is not None:
            self._own(number)


def _lacks_files(err: BaseException) -> bool:
    """Whether this process may open no more files, of which every shared batch takes some."""
    return "too many open files" in str(err).lower()


def _is_death(err: Exception) -> bool:
    """Whether the loader process died, not the code that it ran.

    One that dies between announcing a batch and handing it over leaves a broken connection.
    """
    if isinstance(err, RuntimeError):
        return "DataLoader worker" in str(err) or "Pin memory thread exited" in str(err)
    is_theirs = "in DataLoader worker process" in str(err)  # torch says so of what it raises again
    return isinstance(err, ConnectionError | EOFError | FileNotFoundError) and not is_theirs


def _watch_quietly(iterator: Any) -> None:
    """Keep torch from raising in the code that happens to run when a worker dies.

    Its signal handler would interrupt the model's forward pass; ``next`` finds out by itself.
    """
    from torch.utils.data._utils import signal_handling

    # torch's handler of SIGCHLD would raise wherever the main thread happens to be
    if getattr(iterator, "_worker_pids_set", False):
        signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
        iterator._worker_pids_set = False


def _stream_batches(
    rows: _Rows, collate: _Collate, start: int, stop: int | None, size: int
) -> Generator[Batch | HardsightError, None, None]:
    source = rows.source
    assert isinstance(source, StreamSource)
    samples = itertools.islice(source.samples(start), None if stop is None else stop - start)
    while taken := list(itertools.islice(samples, size)):
        if source.loading.collate is not None:
            yield collate([_Row(index, str(index), sample) for index, sample in taken])
        else:
            yield collate([rows.row(i, partial(source.example, i, sample)) for i, sample in taken])
