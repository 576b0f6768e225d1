"""Epochs on disk: one parquet file each, a row per example in the order of the index.

Memory does not grow with the number of epochs: an epoch is written when it ends, and read back in
blocks of examples over all epochs. Every file is written under a temporary name, synced and
renamed, so whatever exists is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight.errors import OutputError, RunMismatchError, TableError
from hardsight.run_folder import open_parquet, replacing, write_bytes
from hardsight.tracking._epoch import Columns
from hardsight.tracking._measures import MEASURES

_CLASSES = ("label", "prediction")
SCHEMA = pa.schema(
    [(name, pa.float32()) for name in MEASURES] + [(name, pa.int32()) for name in _CLASSES]
)
# a dictionary of measures, which hardly ever repeat, is slow to make and larger than they are
_ENCODING = {"compression": "zstd", "use_dictionary": list(_CLASSES)}
_SETTINGS = "tracker.json"
_ROWS_AT_ONCE = 1 << 14  # a row group; a block of 100 epochs is then 6.5 MB per measure


class EpochStore:
    """The epochs of one tracker.

    Args:
        folder: where they lie; ``None`` for a temporary folder that goes with the store.
        settings: what the epochs must have been recorded with.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, settings: dict[str, Any]) -> None:
        self.is_temporary = folder is None
        if folder is None:
            folder = tempfile.mkdtemp(prefix="hardsight-")
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
        epochs = 0
        while self._file(epochs + 1).exists():
            epochs += 1
        return epochs

    def write(self, epoch: int, columns: Columns) -> None:
        """Write one epoch, counted from 1, in place of an older one.

        Raises:
            OutputError: it could not be written; nothing of it is left.
        """
        rows = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
        self._write_bytes(_SETTINGS, json.dumps(self._settings, sort_keys=True).encode())
        try:
            with replacing(self._file(epoch)) as partial:
                pq.write_table(rows, partial.absolute(), row_group_size=_ROWS_AT_ONCE, **_ENCODING)
        except OSError as err:
            raise self._failed(err) from err

    def keep(self, epochs: int) -> None:
        """Remove every epoch after the first ``epochs``."""
        for file in self.folder.glob("epoch-*.parquet"):
            if int(file.stem.removeprefix("epoch-")) > epochs:
                file.unlink()

    def packed(self) -> list[Tensor]:
        """The files of all epochs as bytes, for a state that must stand alone."""
        files = [self._file(epoch + 1).read_bytes() for epoch in range(self.count())]
        return [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in files]

    def unpack(self, files: Sequence[Tensor]) -> None:
        """Replace all epochs by those that :meth:`packed` gave."""
        self.keep(0)
        self._write_bytes(_SETTINGS, json.dumps(self._settings, sort_keys=True).encode())
        for place, content in enumerate(files):
            self._write_bytes(self._file(place + 1).name, content.cpu().numpy().tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of a temporary store have epochs, and a folder, of their own."""
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
            "free some space, then call end_epoch() again"
        )


def _with_epochs(settings: dict[str, Any], files: Sequence[Tensor]) -> EpochStore:
    store = EpochStore(None, settings)
    if files:
        store.unpack(files)
    return store
