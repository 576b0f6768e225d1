"""The one file format: a row per example, in parquet, that describes itself.

A finished run is a folder::

    RUN/table.parquet        index, id, label, prediction, finite, one column per score
    RUN/errors.parquet       examples that could not be read: index, id, reason
    RUN/thumbnails.parquet   small pictures of the examples a report shows: index, image
    RUN/dynamics/            epochs of a tracker, where the data was trained on

A training run that was tracked has ``dynamics.parquet`` in the place of ``table.parquet``.
While a table is being written, its rows lie in ``RUN/shards/``, one file per range of positions.
Every file is written under a temporary name, synced and renamed, so whatever exists is complete.
``table.parquet`` appears last: where it exists, the run is finished.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hardsight._options import checked_options
from hardsight.errors import (
    HardsightError,
    MissingDataError,
    OptionError,
    OutputError,
    TableError,
)
from hardsight.registry import unknown_name, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

TABLE, ERRORS, THUMBNAILS, SHARDS = (
    "table.parquet",
    "errors.parquet",
    "thumbnails.parquet",
    "shards",
)
DYNAMICS, HISTORIES = "dynamics.parquet", "dynamics"
KEY_COLUMNS = ("index", "id", "label", "prediction", "finite")
ERROR_SCHEMA = pa.schema([("index", pa.int64()), ("id", pa.string()), ("reason", pa.string())])
THUMBNAIL_SCHEMA = pa.schema([("index", pa.int64()), ("image", pa.binary())])
SUSPICION = "suspicion"  # the summary of training dynamics that best finds label errors
# the two best judges of a table that was written before columns stated their rank
_JUDGES_UNSAID = {SUSPICION: 0, "logit_margin": 1}
_METADATA_KEY = b"hardsight"


class ScoreTable:
    """A row per example with its label, prediction and scores; read it with :func:`read_table`.

    Attributes:
        path: the parquet file, or ``None`` for a table that lives in memory.
        metadata: config, seed, versions, score definitions, data fingerprint, classes.
    """

    def __init__(self, rows: pa.Table, *, path: Path | None = None) -> None:
        self._rows = rows
        self.path = path
        stored = (rows.schema.metadata or {}).get(_METADATA_KEY, b"{}")
        self.metadata: dict[str, Any] = json.loads(stored)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __repr__(self) -> str:
        return f"ScoreTable({len(self)} rows, scores: {', '.join(self.scores)}, path={self.path})"

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in file order."""
        return list(self._rows.column_names)

    @property
    def scores(self) -> list[str]:
        """Names of the columns whose direction the metadata states."""
        known = self.metadata.get("scores", {})
        return [name for name in self.columns if "higher_is_harder" in known.get(name, {})]

    @property
    def classes(self) -> list[str]:
        """Class names; their position is the label."""
        return list(self.metadata.get("classes", []))

    def column(self, name: str) -> NDArray[Any]:
        """One column as a numpy array.

        Raises:
            TableError: there is no such column; says why a score is missing, or names the nearest.
        """
        if name not in self._rows.column_names:
            missing = self.metadata.get("missing") or {}
            if name in missing.get("scores", ()):
                known = ", ".join(self.scores)
                raise TableError(f"the table has no {name!r}: {missing['reason']}. It has {known}")
            raise TableError(unknown_name("column", name, self.columns))
        values: NDArray[Any] = self._rows.column(name).to_numpy()
        return values

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas frame."""
        return _frame(self._rows)

    def to_arrow(self) -> pa.Table:
        """All rows as an arrow table, metadata included."""
        return self._rows

    @checked_options
    def hardest(self, n: int = 10, by: str = "avh") -> pd.DataFrame:
        """The ``n`` hardest examples by one score, hardest first.

        Ties keep the order of the table; rows whose score is NaN are left out.
        """
        return _frame(self._ranked(n, by, harder_first=True))

    @checked_options
    def easiest(self, n: int = 10, by: str = "avh") -> pd.DataFrame:
        """The ``n`` easiest examples by one score, easiest first; see :meth:`hardest`."""
        return _frame(self._ranked(n, by, harder_first=False))

    @checked_options
    def most_confidently_wrong(self, n: int = 10, by: str | None = None) -> pd.DataFrame:
        """The ``n`` most confident mistakes: the first place to look for bad labels.

        A mistake is the more confident, the more the model prefers it to the label, by default by
        the logit margin where the table has it.
        """
        mistakes = self.where(self.column("label") != self.column("prediction"))
        return mistakes.hardest(n, by or self.judge_of_mistakes() or "avh")

    def judge_of_mistakes(self) -> str | None:
        """The score that best ranks wrong predictions by confidence, of those in the table."""
        return self._best_judge(least_rank=1)

    @checked_options
    def suspects(self, n: int = 10, by: str | None = None) -> pd.DataFrame:
        """The ``n`` examples whose label is most probably wrong, most suspect first.

        By ``suspicion`` where training was tracked: it also finds wrong labels that the model has
        memorised meanwhile. Else by the score that :meth:`judge_of_mistakes` names, the logit
        margin where the table has it.
        """
        return self.hardest(n, by or self.judge_of_labels() or "avh")

    def judge_of_labels(self) -> str | None:
        """The column that best finds label errors, of those in the table."""
        return self._best_judge(least_rank=0)

    def about(self, column: str) -> dict[str, Any]:
        """What the metadata says about a column, as ``hardsight.registry.ColumnSpec`` has it.

        A table that says less is given plain defaults: its name in words, no unit, no rank.
        """
        said: dict[str, Any] = {}
        for part in ("scores", "columns"):
            said |= self.metadata.get(part, {}).get(column) or {}
        title = said.get("title") or words_of(column)
        judge = _JUDGES_UNSAID.get(column)
        plain = {"short_title": title, "unit": "", "judge": judge, "on_card": None}
        return {**plain, "needs_label": True, **said, "title": title}

    def _best_judge(self, *, least_rank: int) -> str | None:
        ranks = {name: self.about(name)["judge"] for name in self.scores}
        judges = [name for name, rank in ranks.items() if rank is not None and rank >= least_rank]
        return min(judges, key=ranks.__getitem__, default=None)

    def where(self, keep: NDArray[Any]) -> ScoreTable:
        """The rows for which ``keep`` is true, as a table of its own."""
        return ScoreTable(self._rows.filter(pa.array(keep)), path=self.path)

    def higher_is_harder(self, score: str) -> bool:
        """Direction of a score column.

        Raises:
            TableError: the column does not exist, or is not a score.
        """
        self.column(score)
        if score not in self.scores:
            raise TableError(unknown_name("score", score, self.scores))
        return bool(self.metadata["scores"][score]["higher_is_harder"])

    def _ranked(self, n: int, by: str, *, harder_first: bool) -> pa.Table:
        if n < 0:
            raise OptionError(f"expected n to be 0 or more, got {n}")
        descending = self.higher_is_harder(by) == harder_first
        values = self.column(by).astype(np.float64)
        # stable on ties; NaN sorts last in either direction and is never ranked
        order = np.argsort(-values if descending else values, kind="stable")
        ranked = order[: len(values) - int(np.isnan(values).sum())]
        return self._rows.take(pa.array(ranked[:n]))


def read_table(path: str | os.PathLike[str]) -> ScoreTable:
    """Read a score table from its file or from the folder of its run.

    Raises:
        MissingDataError: there is no table there.
        TableError: the file is no score table.
    """
    file = Path(path)
    if file.is_dir():
        if not (file / TABLE).exists() and (file / SHARDS).is_dir():
            raise MissingDataError(
                f"the run in {file} is unfinished; continue it with `hardsight score ... "
                f"--out {file} --resume`"
            )
        file = file / TABLE
    if not file.exists():
        raise MissingDataError(f"no score table at {file}; write one with `hardsight score`")
    try:
        rows = pq.read_table(file, memory_map=True)
    except (pa.ArrowInvalid, OSError) as err:
        raise TableError(f"{file} is not a readable parquet file: {err}") from err
    if _METADATA_KEY not in (rows.schema.metadata or {}):
        raise TableError(f"{file} is a parquet file, but not a table written by hardsight")
    return ScoreTable(rows, path=file)


def with_metadata(rows: pa.Table, metadata: Mapping[str, Any]) -> pa.Table:
    """``rows`` with hardsight's metadata in the schema."""
    encoded = json.dumps(metadata, sort_keys=True).encode()
    return rows.replace_schema_metadata({_METADATA_KEY: encoded})


class RunFolder:
    """The files of one run, while it is written and afterwards.

    Args:
        folder: where the run lives; created by :meth:`start`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._shards = self.folder / SHARDS

    @property
    def finished(self) -> bool:
        """Whether the table is complete."""
        return (self.folder / TABLE).exists()

    @property
    def started(self) -> bool:
        """Whether rows of an unfinished run may lie here."""
        return self._shards.is_dir() and not self.finished

    def start(self, settings: Mapping[str, Any]) -> None:
        """Create the folder and remember what the run is made of."""
        with _writing(self.folder):
            self._shards.mkdir(parents=True, exist_ok=True)
            for leftover in self._shards.glob(".tmp-*"):
                leftover.unlink()
            _replace(self._shards / "settings.json", json.dumps(settings, sort_keys=True).encode())

    def settings(self) -> dict[str, Any]:
        """What the unfinished run was started with."""
        file = self._shards / "settings.json"
        return dict(json.loads(file.read_bytes())) if file.exists() else {}

    def done(self) -> set[int]:
        """Numbers of the shards already complete."""
        return {
            int(file.stem.removeprefix("rows-")) for file in self._shards.glob("rows-*.parquet")
        }

    def write_shard(self, number: int, rows: pa.Table, errors: pa.Table) -> None:
        """Add one shard; its rows appear last, so a shard is there in full or not at all."""
        with _writing(self.folder):
            _write_parquet(self._shards / f"errors-{number:08d}.parquet", [errors], errors.schema)
            _write_parquet(self._shards / f"rows-{number:08d}.parquet", [rows], rows.schema)

    def shards(self, kind: str = "rows") -> Iterator[pa.Table]:
        """The written shards in source order."""
        for file in sorted(self._shards.glob(f"{kind}-*.parquet")):
            yield pq.read_table(file)

    def write_side_file(self, name: str, rows: pa.Table) -> None:
        """Write one whole parquet file beside the table."""
        with _writing(self.folder):
            _write_parquet(self.folder / name, [rows], rows.schema)

    def finish(self, parts: Iterable[pa.Table], schema: pa.Schema) -> ScoreTable:
        """Write the table from its parts, then remove the shards."""
        with _writing(self.folder):
            self.write_side_file(
                ERRORS, pa.concat_tables([ERROR_SCHEMA.empty_table(), *self.shards("errors")])
            )
            _write_parquet(self.folder / TABLE, parts, schema)
            self.clean()
        return read_table(self.folder)

    def replace_table(self, table: ScoreTable) -> ScoreTable:
        """Write another table in the place of the finished one, such as one with more columns."""
        self.write_side_file(TABLE, table.to_arrow())
        return read_table(self.folder)

    def clean(self) -> None:
        """Remove the shards of a finished run."""
        shutil.rmtree(self._shards, ignore_errors=True)

    def errors(self) -> pd.DataFrame:
        """Examples that could not be read, with the reason."""
        file = self.folder / ERRORS
        rows = pq.read_table(file) if file.exists() else ERROR_SCHEMA.empty_table()
        return _frame(rows)

    def thumbnails(self) -> dict[int, bytes]:
        """Encoded small pictures by source position."""
        file = self.folder / THUMBNAILS
        if not file.exists():
            return {}
        rows = pq.read_table(file)
        return dict(zip(rows["index"].to_pylist(), rows["image"].to_pylist(), strict=True))


def _frame(rows: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = rows.to_pandas()
    return frame


def error_rows(errors: Sequence[tuple[int, str, str]]) -> pa.Table:
    """A table of unreadable examples from ``(index, id, reason)``."""
    index, ids, reasons = zip(*errors, strict=True) if errors else ((), (), ())
    return pa.table([list(index), list(ids), list(reasons)], schema=ERROR_SCHEMA)


def _write_parquet(file: Path, parts: Iterable[pa.Table], schema: pa.Schema) -> None:
    with (
        _replacing(file) as sink,
        pq.ParquetWriter(sink, schema, compression="zstd") as writer,
    ):
        for part in parts:
            writer.write_table(part.replace_schema_metadata(schema.metadata))


def _replace(file: Path, content: bytes) -> None:
    with _replacing(file) as sink:
        sink.write(content)


@contextmanager
def _replacing(file: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``file`` when complete, and else is removed."""
    partial = file.with_name(f".tmp-{file.name}")
    try:
        with partial.open("wb") as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn a failed write into an error with a next step."""
    try:
        yield
    except HardsightError:  # some of them are OSErrors too
        raise
    except OSError as err:
        raise OutputError(
            f"cannot write to {folder}: {err.strerror or err}; free some space or choose another "
            "--out, then continue with --resume"
        ) from err
