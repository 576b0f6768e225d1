"""Gather the rows of all ranks, write a file per epoch, and read all epochs as a table.

Memory does not grow with the number of epochs: an epoch is written when it ends, and read back in
blocks of examples over all epochs. Every file is written under a temporary name, synced and
renamed, so every file that exists is complete.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hardsight._checks import versions_of
from hardsight.errors import (
    DataError,
    LabelError,
    NonFiniteError,
    OptionError,
    OutputError,
    RunMismatchError,
    TableError,
)
from hardsight.registry import SUMMARIES, described
from hardsight.run_folder import mended_by, open_parquet, replacing, write_bytes
from hardsight.table import ScoreTable, with_metadata
from hardsight.tracking._steps import MEASURES, Rows
from hardsight.tracking._summaries import last_seen, rival_confidence, strongest_rival

T = TypeVar("T")
REPEATS = ("error", "first")
REPEATS_MEANT = (
    "If repeats are intended (a sampler that draws with replacement, a loader that starts again "
    "after a resume), pass repeats='first'"
)
Columns = dict[str, NDArray[np.generic]]
_CLASSES = ("label", "prediction")
SCHEMA = pa.schema(
    [(name, pa.float32()) for name in MEASURES] + [(name, pa.int32()) for name in _CLASSES]
)
# measures hardly ever repeat: a dictionary of them would be slow to build and larger than the data
_ENCODING = {"compression": "zstd", "use_dictionary": list(_CLASSES)}
_SETTINGS = "tracker.json"
_ROWS_AT_ONCE = 1 << 14  # a row group; a block of 100 epochs is then 6.5 MB per measure


def world_size() -> int:
    """Number of ranks; 1 if nothing is distributed."""
    return dist.get_world_size() if _is_distributed() else 1


def rank() -> int:
    """Number of this process among the ranks."""
    return dist.get_rank() if _is_distributed() else 0


def gathered(rows: Rows) -> Rows:
    """The rows of all ranks, on every rank; all ranks must call it.

    Args:
        rows: of this rank, on the CPU, as many as it has.
    """
    if world_size() == 1:
        return rows
    # first the numbers of rows: ranks may have different ones, and pad to the largest
    counts = _gathered_equal(torch.tensor([len(rows)]))
    sizes = [int(count) for count in counts]
    fields = [field.name for field in dataclasses.fields(Rows)]
    columns = [_gathered_padded(getattr(rows, name), sizes) for name in fields]
    return Rows(*(torch.cat(parts) for parts in columns))


def of_all(value: T) -> list[T]:
    """The values of all ranks, in their order, on every rank; all ranks must call it."""
    values = [value] * world_size()
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def on_every_rank(action: Callable[[], None]) -> None:
    """Run ``action`` on all ranks; if it raises on one of them, the error is raised on all."""
    raised: Exception | None = None
    try:
        action()
    # a rank that raised alone would leave the others waiting in the next collective call
    except Exception as err:  # passed on to all ranks below
        if world_size() == 1:
            raise
        raised = err
    for error in of_all(raised):
        if error is not None:
            raise error


def on_first_rank(action: Callable[[], None]) -> None:
    """Run ``action`` on rank 0 only, and raise its error on all ranks; all ranks must call it."""
    on_every_rank(action if rank() == 0 else lambda: None)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _gathered_padded(column: Tensor, sizes: list[int]) -> list[Tensor]:
    padded = column.new_zeros((max(sizes), *column.shape[1:]))
    padded[: len(column)] = column
    parts = _gathered_equal(padded)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def _gathered_equal(tensor: Tensor) -> list[Tensor]:
    """Tensors of one shape from all ranks, on the CPU."""
    moved = tensor.contiguous().to(_device())
    parts = [torch.empty_like(moved) for _ in range(world_size())]
    dist.all_gather(parts, moved)
    return [part.cpu() for part in parts]


def _device() -> torch.device:
    """The device that the backend needs: NCCL only moves tensors on a GPU."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@dataclass(frozen=True)
class EpochRules:
    """The rules that the rows of an epoch must follow.

    Attributes:
        num_examples: indices are in ``[0, num_examples)``.
        num_classes: labels are in ``[0, num_classes)``.
        repeats: whether an example that comes twice in an epoch is an ``"error"``, or only the
            ``"first"`` time counts.
        padding_rows: how many rows may repeat on other ranks, because samplers of distributed
            training fill their last round.
        num_ranks: the order of a row, modulo this, is its rank.
    """

    num_examples: int
    num_classes: int
    repeats: str = "error"
    padding_rows: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if self.repeats not in REPEATS:
            raise OptionError(
                f"expected repeats to be one of {', '.join(REPEATS)}, got {self.repeats!r}"
            )


def epoch_columns(
    rows: Rows, rules: EpochRules, known_labels: NDArray[np.int32], epoch: int
) -> Columns:
    """Columns of length N from the rows of all ranks.

    Args:
        rows: of all ranks, on the CPU.
        rules: that they must follow.
        known_labels: label of each example in earlier epochs, -1 if it was not seen, ``[N]``.
        epoch: counted from 1, for messages.

    Returns:
        the measures, NaN for an example that was not seen, with -1 as ``label`` and ``prediction``.

    Raises:
        DataError: an index is out of range, or repeats.
        LabelError: a label is out of range, or changed since an earlier epoch.
        NonFiniteError: a measure is NaN or infinite.
    """
    index, labels = rows.index.numpy(), rows.labels.numpy()
    check_index(index, rules.num_examples)
    # labels first: a loop that passes -1 for padding should read about labels, not about repeats
    check_label_range(labels, rules.num_classes, index)
    keep = _first_rows(index, rows.order.numpy(), rules, epoch)
    index, labels = index[keep], labels[keep].astype(np.int32)
    _check_same_labels(index, labels, known_labels, epoch)
    values, prediction = rows.values.numpy()[keep], rows.prediction.numpy()[keep]
    _check_finite(index, values, epoch)
    columns: Columns = {
        name: _scattered(rules.num_examples, index, values[:, place], np.float32(math.nan))
        for place, name in enumerate(MEASURES)
    }
    columns["label"] = _scattered(rules.num_examples, index, labels, np.int32(-1))
    columns["prediction"] = _scattered(
        rules.num_examples, index, prediction.astype(np.int32), np.int32(-1)
    )
    return columns


def check_index(index: NDArray[np.int64], num_examples: int) -> None:
    """Raise unless every index is in ``[0, num_examples)``."""
    outside = (index < 0) | (index >= num_examples)
    if outside.any():
        raise DataError(
            f"expected indices in [0, {num_examples}), got {_listed(index[outside])}; give the "
            "tracker the length of the dataset that numbers them (see with_index)"
        )


def check_label_range(
    labels: NDArray[np.int64], num_classes: int, index: NDArray[np.int64]
) -> None:
    """Raise unless every label is in ``[0, num_classes)``."""
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        raise LabelError(
            f"expected labels in [0, {num_classes}), got {_listed(labels[outside])} for the "
            f"examples {_listed(index[outside])}; leave out rows without a label"
        )


def _first_rows(
    index: NDArray[np.int64], order: NDArray[np.int64], rules: EpochRules, epoch: int
) -> NDArray[np.int64]:
    """Positions of the rows in which each example came first."""
    # by the order over all ranks, so "first" does not depend on how ranks share the data
    latest_first = np.argsort(order, kind="stable")[::-1]
    rows = np.full(rules.num_examples, -1)
    # numpy keeps the last of several assignments to one place, here the earliest row
    rows[index[latest_first]] = latest_first
    first: NDArray[np.int64] = rows[rows >= 0]
    # a sampler's own padding is allowed; other repeats are the user's mistake
    if rules.repeats == "error" and len(first) < len(index):
        _check_repeats(index, order % rules.num_ranks, rules, epoch)
    return first


def _check_repeats(
    index: NDArray[np.int64], rank: NDArray[np.int64], rules: EpochRules, epoch: int
) -> None:
    # twice on the same rank is a mistake in the loop; on two ranks it may be a sampler's padding
    pairs, counts = np.unique(np.stack([index, rank]), axis=1, return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"examples {_listed(pairs[0, counts > 1])} came more than once in epoch {epoch}; "
            f"call end_epoch() after every epoch, and update() once per step. {REPEATS_MEANT}"
        )
    repeated = len(index) - len(np.unique(index))
    if repeated > rules.padding_rows:
        raise DataError(
            f"{repeated} examples of epoch {epoch} came on more than one rank, more than a sampler "
            f"adds to fill its last round ({rules.padding_rows}); give each rank its own part of "
            "the data with DistributedSampler, or pass repeats='first'"
        )


def _check_same_labels(
    index: NDArray[np.int64], labels: NDArray[np.int32], known: NDArray[np.int32], epoch: int
) -> None:
    before = known[index]
    # -1 means not seen in an earlier epoch
    changed = (before >= 0) & (before != labels)
    if changed.any():
        first = int(changed.argmax())
        raise LabelError(
            f"the labels of {int(changed.sum())} examples changed by epoch {epoch}: example "
            f"{int(index[first])} was {int(before[first])} and is {int(labels[first])}; an index "
            "must belong to the same example all through training. If labels should change, start "
            "a new tracker"
        )


def _check_finite(index: NDArray[np.int64], values: NDArray[np.float32], epoch: int) -> None:
    broken = ~np.isfinite(values)
    if broken.any():
        names = [name for name, column in zip(MEASURES, broken.T, strict=True) if column.any()]
        raise NonFiniteError(
            f"{int(broken.any(axis=1).sum())} examples of epoch {epoch} have values that are not "
            f"finite ({', '.join(names)}): {_listed(index[broken.any(axis=1)])}; training has "
            "diverged, or their inputs are broken"
        )


def _scattered(
    length: int, index: NDArray[np.int64], values: NDArray[np.generic], missing: np.generic
) -> NDArray[np.generic]:
    column = np.full(length, missing)
    column[index] = values
    return column


def _listed(values: NDArray[np.generic], most: int = 5) -> str:
    """The first few values, in words."""
    unique = np.unique(values)
    shown = ", ".join(str(value) for value in unique[:most])
    return f"{shown}, ... ({len(unique)} in all)" if len(unique) > most else shown


class EpochStore:
    """The epochs of one tracker.

    Args:
        folder: of their files; ``None`` for a temporary folder that is removed with the store.
        settings: that all epochs in the folder must have been recorded with.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, settings: dict[str, Any]) -> None:
        self.is_temporary = folder is None
        if folder is None:
            folder = tempfile.mkdtemp(prefix="hardsight-")
            # removes the folder when the store is garbage-collected or the process ends
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = Path(folder)
        self._settings = settings

    def count(self) -> int:
        """Number of complete epochs.

        Raises:
            RunMismatchError: they were recorded with other settings.
        """
        file = self.folder / _SETTINGS
        if file.exists():
            stored = json.loads(file.read_bytes())
            for name, value in self._settings.items():
                if stored.get(name) != value:
                    raise RunMismatchError(
                        f"{self.folder} holds epochs with {name}={stored.get(name)!r}, but this "
                        f"tracker has {name}={value!r}; choose another folder"
                    )
        # up to the first gap: files behind it belong to an interrupted run
        epochs = 0
        while self._file(epochs + 1).exists():
            epochs += 1
        return epochs

    def write(self, epoch: int, columns: Columns) -> None:
        """Write one epoch, counted from 1; an older file of it is replaced.

        Raises:
            OutputError: it could not be written; no partial file is left.
        """
        # in the fixed order of columns that readers expect
        rows = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
        self._write_bytes(_SETTINGS, json.dumps(self._settings, sort_keys=True).encode())
        try:
            # an open file instead of its name, which pyarrow would encode as UTF-8 in any locale
            with replacing(self._file(epoch)) as partial, partial.open("wb") as sink:
                pq.write_table(rows, sink, row_group_size=_ROWS_AT_ONCE, **_ENCODING)
        except OSError as err:
            raise self._failed(err) from err

    def keep(self, epochs: int) -> None:
        """Remove every epoch after the first ``epochs``."""
        for file in self.folder.glob("epoch-*.parquet"):
            if int(file.stem.removeprefix("epoch-")) > epochs:
                file.unlink()

    def packed(self) -> list[Tensor]:
        """The files of all epochs as bytes, for a state that works without the folder."""
        files = [self._file(epoch + 1).read_bytes() for epoch in range(self.count())]
        # as tensors, since torch.load with weights_only=True refuses most other types
        return [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in files]

    def unpack(self, files: Sequence[Tensor]) -> None:
        """Replace all epochs by the files from :meth:`packed`."""
        self.keep(0)
        self._write_bytes(_SETTINGS, json.dumps(self._settings, sort_keys=True).encode())
        for place, content in enumerate(files):
            self._write_bytes(self._file(place + 1).name, content.cpu().numpy().tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        """Give a copy or pickle of a temporary store its own folder with the same epochs."""
        if not self.is_temporary:
            return EpochStore, (self.folder, self._settings)
        return _with_epochs, (self._settings, self.packed())

    def column(self, epoch: int, name: str) -> NDArray[Any]:
        """One column of one epoch, ``[N]``."""
        values: NDArray[Any] = self._read(self._open(epoch), None, [name])[name]
        return values

    def blocks(self, names: Sequence[str]) -> Iterator[dict[str, NDArray[Any]]]:
        """Histories ``[E, n]`` of consecutive blocks of examples."""
        files = [self._open(epoch + 1) for epoch in range(self.count())]
        try:
            # row group i holds the same examples in every file, so a block is one group per file
            for group in range(files[0].num_row_groups if files else 0):
                parts = [self._read(file, group, names) for file in files]
                yield {name: np.stack([part[name] for part in parts]) for name in names}
        finally:
            for file in files:
                file.close()

    def _open(self, epoch: int) -> pq.ParquetFile:
        try:
            return open_parquet(self._file(epoch))
        except (pa.ArrowInvalid, OSError) as err:
            raise TableError(
                f"{self._file(epoch)} is not a readable parquet file: {err}; remove it and the "
                "epochs after it, and train them again"
            ) from err

    def _read(
        self, file: pq.ParquetFile, group: int | None, names: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        wanted = list(names)
        rows = file.read(wanted) if group is None else file.read_row_group(group, wanted)
        return {name: rows[name].to_numpy() for name in names}

    def _file(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:05d}.parquet"

    def _write_bytes(self, name: str, content: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(self.folder / name, content)
        except OSError as err:
            raise self._failed(err) from err

    def _failed(self, err: OSError) -> OutputError:
        return OutputError(
            f"cannot write an epoch to {self.folder}: {err.strerror or err}; its rows are kept: "
            f"{mended_by(err)}, then call end_epoch() again, or continue the run with --resume "
            "(resume=True)"
        )


def _with_epochs(settings: dict[str, Any], files: Sequence[Tensor]) -> EpochStore:
    store = EpochStore(None, settings)
    if files:
        store.unpack(files)
    return store


def summary_table(
    store: EpochStore,
    about: Mapping[str, Any],
    *,
    el2n_epochs: int,
    held_out: EpochStore | None = None,
) -> ScoreTable:
    """Every summary of every example, read block by block.

    Args:
        store: the epochs.
        about: facts for the metadata; ``stage`` and ``epochs`` among them.
        el2n_epochs: how many epochs count as early.
        held_out: epochs of evaluation passes over examples that the others never saw.

    Raises:
        DataError: an example is in both.
    """
    columns = _columns(store, el2n_epochs=el2n_epochs)
    sample = "in-sample" if about["stage"] == "train" else "unknown"
    if held_out is not None:
        columns = _with_held_out(columns, _columns(held_out, el2n_epochs=el2n_epochs))
        count = int(columns["held_out"].sum())
        sample, about = ("mixed" if count else sample), {**about, "held_out": count}
    index = np.arange(len(columns["label"]))
    keys = {"index": index, "id": pa.array(index).cast(pa.string())}
    metadata = {
        **described(SUMMARIES.values()),
        "sample": sample,
        "tracking": {**about, "el2n_epochs": el2n_epochs},
        "versions": versions_of("torch", "numpy", "pyarrow"),
    }
    return ScoreTable(with_metadata(pa.table({**keys, **columns}), metadata))


def _columns(store: EpochStore, *, el2n_epochs: int) -> dict[str, NDArray[Any]]:
    """Keys and summaries of all examples of a store."""
    # "correct" is not stored, since it follows from label and prediction
    inputs = {name for spec in SUMMARIES.values() for name in spec.inputs} - {"correct"}
    blocks = [
        _block_columns(block, el2n_epochs=el2n_epochs)
        for block in store.blocks([*_CLASSES, *sorted(inputs)])
    ]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _with_held_out(
    trained: Mapping[str, NDArray[Any]], evaluated: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The columns of training, with those of evaluation for examples never trained on."""
    # an example is held out if it was evaluated and never trained on
    held_out = evaluated["epochs_seen"] > 0
    both = np.flatnonzero(held_out & (trained["epochs_seen"] > 0))
    if len(both):
        shown = ", ".join(map(str, both[:5])) + (", ..." if len(both) > 5 else "")
        raise DataError(
            f"{len(both)} examples {shown} were trained on but are recorded as held out; pass as "
            "held_out a tracker of examples that training never sees"
        )
    columns: dict[str, NDArray[Any]] = {}
    for name, values in trained.items():
        columns[name] = np.where(held_out, evaluated[name], values)
        if name == "epochs_seen":
            columns["held_out"] = held_out
    return columns


def _block_columns(
    block: Mapping[str, NDArray[Any]], *, el2n_epochs: int
) -> dict[str, NDArray[Any]]:
    """Keys and summaries of some examples from their histories ``[E, n]``."""
    seen = block["label"] >= 0
    # NaN for an epoch in which the example was not seen: neither right nor wrong
    right = np.where(seen, block["label"] == block["prediction"], math.nan)
    histories = {**block, "correct": right}
    label = block["label"].max(axis=0).astype(np.int64)  # -1 where never seen
    last = seen.shape[0] - 1 - seen[::-1].argmax(axis=0)  # the last epoch seen
    columns: dict[str, NDArray[Any]] = {
        "label": label,
        "prediction": block["prediction"][last, np.arange(len(label))].astype(np.int64),
        "finite": label >= 0,
        "epochs_seen": seen.sum(axis=0),
        "rival": strongest_rival(block["prediction"], block["label"]),
        # besides the summaries, these are used to judge labels; see hardsight.suspects
        "rival_confidence": rival_confidence(block["confidence"], block["logit_margin"]),
        "last_margin": last_seen(block["logit_margin"]),
        "last_confidence": last_seen(block["confidence"]),
    }
    for spec in SUMMARIES.values():
        options = {"window_epochs": el2n_epochs} if spec.name == "early_el2n" else {}
        columns[spec.name] = spec.function(*(histories[name] for name in spec.inputs), **options)
    return columns
