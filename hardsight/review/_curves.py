"""The probability of an example's label after every epoch of training."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hardsight.run_folder import HELD_OUT, HISTORIES, TRACKED, read_parquet
from hardsight.table import ScoreTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_VALUES = 48 * 2**20  # values held in memory, a byte each; larger histories show no curves
_COLUMNS = ["confidence", "label"]
_UNSEEN = 255  # in place of a probability, which is stored as 0 to 254
_PATIENCE = 1.0  # seconds after the start that the first screen may wait for its curves


class Curves:
    """Histories of a tracked run, a byte for each epoch and example, read in the background.

    Args:
        table: the table of the run.
    """

    def __init__(self, table: ScoreTable) -> None:
        self._values: NDArray[np.uint8] | None = None
        self._is_read = threading.Event()
        self._until = time.monotonic() + _PATIENCE
        tracking = table.metadata.get("tracking")
        if table.path is None or not isinstance(tracking, dict):
            self._is_read.set()
            return
        epochs = int(tracking.get("epochs") or 0)
        length = int(tracking.get("num_examples") or 0)
        folder = table.path.absolute().parent
        if 0 < epochs * length <= _MOST_VALUES and (folder / HISTORIES).is_dir():
            arguments = (folder, epochs, length)
            threading.Thread(
                target=self._read, args=arguments, name="hardsight-curves", daemon=True
            ).start()
        else:
            self._is_read.set()

    def of(self, index: int) -> list[float | None]:
        """Probability of the label after every epoch; empty if it is not known, or not yet."""
        # the page asks for each example only once, so the first ones wait until curves are read
        self._is_read.wait(max(0.0, self._until - time.monotonic()))
        values = self._values
        if values is None or not 0 <= index < values.shape[1]:
            return []
        return [None if v == _UNSEEN else round(v / 254, 3) for v in values[:, index].tolist()]

    def _read(self, folder: Path, epochs: int, length: int) -> None:
        try:
            self._values = _values_in(folder, epochs, length)
        finally:
            self._is_read.set()


def _values_in(folder: Path, epochs: int, length: int) -> NDArray[np.uint8] | None:
    """The histories with a row per epoch; ``None`` if a file is damaged."""
    values = np.full((epochs, length), _UNSEEN, np.uint8)
    for number in range(epochs):
        for place in (folder / HISTORIES, folder / TRACKED / HELD_OUT):
            file = place / f"epoch-{number + 1:05d}.parquet"
            try:
                rows = read_parquet(file, _COLUMNS) if file.exists() else None
            except (OSError, pa.ArrowException):
                return None
            if rows is None or rows.num_rows != length:
                continue
            read = ScoreTable(rows)  # its columns load no pandas
            confidence = read.column("confidence")
            seen = (read.column("label") >= 0) & np.isfinite(confidence)
            values[number, seen] = np.rint(254 * np.clip(confidence[seen], 0, 1))
    return values
