"""The file format of all tables: parquet with a row per example, which describes itself.

A finished run of scoring is a folder::

    RUN/run.json             the manifest: kind, settings, fingerprints, versions, state, files
    RUN/table.parquet        index, id, label, prediction, finite, one column per score
    RUN/errors.parquet       examples that could not be read: index, id, reason
    RUN/thumbnails.parquet   small pictures of the examples a report shows: index, image
    RUN/embeddings/          what entered the head, an array per shard, with keep_embeddings
    RUN/neighbours.parquet   the nearest examples by embedding: index, nearest, other, similarity
    RUN/nearest.parquet      classes nearest to each doubtful example: index, classes, angles
    RUN/dynamics/            epochs of a tracker, if the data was trained on
    RUN/tracked/held-out/    epochs of the examples that were held out of training

A training run that was tracked has ``dynamics.parquet`` in place of ``table.parquet``. While a
table is being written, its rows are in ``RUN/shards/``, one file per range of positions.
Every file is written under a temporary name, synced and renamed, so a file that exists is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight._checks import checked_options
from hardsight.errors import (
    HardsightError,
    MissingDataError,
    OptionError,
    TableError,
    UnknownColumnError,
)
from hardsight.registry import unknown_name, words_of
from hardsight.run_folder import (
    ADAPT,
    FOLDS,
    PSEUDO_LABELS,
    SCORE,
    TABLE_METADATA,
    TRAIN,
    open_parquet,
    place_of,
)
from hardsight.run_folder import DYNAMICS as DYNAMICS
from hardsight.run_folder import ERROR_SCHEMA as ERROR_SCHEMA
from hardsight.run_folder import ERRORS as ERRORS
from hardsight.run_folder import HELD_OUT as HELD_OUT
from hardsight.run_folder import HISTORIES as HISTORIES
from hardsight.run_folder import SHARDS as SHARDS
from hardsight.run_folder import TABLE as TABLE
from hardsight.run_folder import THUMBNAILS as THUMBNAILS
from hardsight.run_folder import TRACKED as TRACKED
from hardsight.run_folder import RunFolder as RunFolder

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

KEY_COLUMNS = ("index", "id", "label", "prediction", "finite")
THUMBNAIL_SCHEMA = pa.schema([("index", pa.int64()), ("image", pa.binary())])
EXCERPT_SCHEMA = THUMBNAIL_SCHEMA.append(pa.field("text", pa.string()))  # of examples of text
SUSPICION = "suspicion"  # the summary of training dynamics that best finds label errors
# ranks of the two best judges, for tables of older versions, which do not record them
_JUDGES_UNSAID = {SUSPICION: 0, "logit_margin": 1}
_SHOWN_BY_ITSELF = 1_000_000  # rows; ranking more would make a notebook wait for seconds


class ScoreTable:
    """A row per example with its label, prediction and scores; read it with :func:`read_table`.

    A table from a file only loads the columns that are used, so a table of a hundred million rows
    can be opened and ranked.

    Attributes:
        path: the parquet file, or ``None`` for a table that lives in memory.
        metadata: config, seed, versions, score definitions, data fingerprint, classes.
    """

    def __init__(self, rows: pa.Table | TableFile, *, path: Path | None = None) -> None:
        self._source = rows
        self.path = path
        stored = (rows.schema.metadata or {}).get(TABLE_METADATA, b"{}")
        self.metadata: dict[str, Any] = json.loads(stored)

    def __len__(self) -> int:
        return int(self._source.num_rows)

    def __repr__(self) -> str:
        return f"ScoreTable({len(self)} rows, scores: {', '.join(self.scores)}, path={self.path})"

    def _repr_html_(self) -> str:
        """The HTML for a notebook: a few facts and the first suspects."""
        from hardsight.notebook import shown

        facts = {"examples": f"{len(self):,}", "classes": f"{len(self.classes):,}"}
        if len(self) and {"label", "prediction"} <= set(self.columns):
            facts["accuracy"] = f"{self.accuracy():.1%}"
        facts["scores"] = f"{len(self.scores)}"
        return shown("ScoreTable", facts, **self._first_rows(), note=self._next_step())

    def _first_rows(self, n: int = 5) -> dict[str, Any]:
        """The rows that a notebook shows; none for a large table, whose ranking takes a while."""
        judge = self.judge_of_labels()
        if judge is None or not 0 < len(self) <= _SHOWN_BY_ITSELF:
            return {}
        rows = self.suspects(n)
        pictures = RunFolder(self.path.parent).thumbnails() if self.path is not None else {}
        title = str(self.about(judge)["title"])
        cells = [
            [pictures.get(int(row["index"])), str(row["id"]), self._class_name(row["label"]),
             self._class_name(row["prediction"]), f"{row[judge]:.4g}", str(row["group"])]
            for row in rows.to_dict("records")
        ]  # fmt: skip
        return {"columns": ("", "id", "label", "prediction", title, "most suspect"), "rows": cells}

    def _class_name(self, place: Any) -> str:
        names = self.classes
        return names[int(place)] if 0 <= place < len(names) else "none"

    def _next_step(self) -> str:
        if self.path is None:
            return "hardest(), suspects() and to_pandas() give its rows"
        return f"hs.review({str(self.path.parent)!r}) opens them, hs.write_report writes a page"

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles contain the rows, because an open file cannot be pickled."""
        return {**self.__dict__, "_source": self._rows}

    @property
    def _rows(self) -> pa.Table:
        """All rows and columns, which stay in memory from now on."""
        if isinstance(self._source, TableFile):
            self._source = self._source.read()
        return self._source

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in file order."""
        return list(self._source.schema.names)

    @property
    def scores(self) -> list[str]:
        """Names of the columns that are scores: the metadata states their direction."""
        known = self.metadata.get("scores", {})
        return [name for name in self.columns if "higher_is_harder" in known.get(name, {})]

    @property
    def classes(self) -> list[str]:
        """Class names; their position is the label."""
        return list(self.metadata.get("classes", []))

    def column(self, name: str) -> NDArray[Any]:
        """Return a column as a numpy array.

        Raises:
            TableError: there is no such column; the message says why a score is missing, or names
                the nearest column.
        """
        self._check_named("column", name, self.columns)
        return _numpy_of(self._source.column(name))

    def _check_named(self, kind: str, name: str, known: list[str]) -> None:
        if name in known:
            return
        missing = self.metadata.get("missing") or {}
        if name in missing.get("scores", ()):
            there = ", ".join(self.scores)
            raise TableError(f"the table has no {name!r}: {missing['reason']}. It has {there}")
        raise UnknownColumnError(unknown_name(kind, name, known))

    def parts(self, names: Sequence[str]) -> Iterator[ScoreTable]:
        """Some columns, as tables of consecutive rows, to process a large table in little memory.

        A table in memory is one part; a table in a file has a part for each group of rows.
        """
        if isinstance(self._source, TableFile):
            groups = self._source.groups(names)
        else:
            groups = iter([self._source.select(list(names))])
        for rows in groups:
            yield ScoreTable(rows, path=self.path)

    def accuracy(self) -> float:
        """Share of the rows whose prediction equals their label."""
        parts = self.parts(["label", "prediction"])
        right = sum(
            int((part.column("label") == part.column("prediction")).sum()) for part in parts
        )
        return right / max(1, len(self))

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas frame."""
        return _frame(self._rows)

    def to_arrow(self) -> pa.Table:
        """Return all rows as an arrow table, including metadata."""
        return self._rows

    @checked_options
    def hardest(self, n: int = 10, by: str = "avh") -> pd.DataFrame:
        """Return the ``n`` hardest examples by a score, hardest first.

        Ties keep the order of the table; rows whose score is NaN are left out.
        """
        return _frame(self._ranked(n, by, harder_first=True))

    @checked_options
    def easiest(self, n: int = 10, by: str = "avh") -> pd.DataFrame:
        """Return the ``n`` easiest examples by a score, easiest first; see :meth:`hardest`."""
        return _frame(self._ranked(n, by, harder_first=False))

    @checked_options
    def most_confidently_wrong(self, n: int = 10, by: str | None = None) -> pd.DataFrame:
        """Return the ``n`` most confident mistakes, the first place to look for wrong labels.

        A mistake is more confident the more the model prefers it to the label, by default by the
        logit margin if the table has it.
        """
        mistakes = self.where(self.column("label") != self.column("prediction"))
        return mistakes.hardest(n, by or self.judge_of_mistakes() or "avh")

    def judge_of_mistakes(self) -> str | None:
        """The score of the table that best ranks wrong predictions by confidence."""
        return self._best_judge(least_rank=1)

    @checked_options
    def suspects(self, n: int = 10, by: str | None = None) -> pd.DataFrame:
        """The ``n`` examples whose label is most likely to be wrong, most suspect first.

        They are ranked by the best evidence in the table. If training was tracked, that is
        ``suspicion``, which also finds wrong labels that the model has memorised in the end.
        Otherwise it is the score that :meth:`judge_of_mistakes` names, the logit margin if the
        table has it; this evidence is stronger if the model never saw the examples.

        Examples that were held out of training and examples that were trained on are ranked
        separately, and the two lists are merged: held-out examples are never memorised, so their
        numbers always look worse.

        Args:
            n: largest number of rows; rows without a label or a finite score are never suspects.
            by: another score to rank by; it does not change the other columns.

        Returns:
            the columns of the table and, before them, ``suggestion`` (a better class for the
            example, -1 if none is known), ``group`` (one of ``hardsight.suspects.GROUPS``),
            ``reason`` (in words), ``suspicion`` (probability that the label loses against its
            strongest rival; NaN if unknown), ``error_share`` (estimated share of wrong labels at
            this rank; NaN without an estimate) and ``evidence`` (the kind of evidence). A column of
            the table with one of these names is returned as ``table_NAME``.
        """
        from hardsight.suspects import suspects_frame

        return suspects_frame(self, n, by=by)

    def rows_at(self, rows: NDArray[Any]) -> pa.Table:
        """Some rows by number, in the given order; only the groups with these rows are read."""
        return self._source.take(row_numbers(rows))

    def hardness_among_alike(self, score: str) -> NDArray[np.float64]:
        """A score for which larger is harder, comparable between all rows; NaN stays NaN.

        In a table with held-out examples it is a rank: by the share of examples of the same kind,
        held out or trained on, that an example is at least as hard as, and by the score if these
        are equal. In any other table it is the score itself, or its negative.

        Raises:
            TableError: the column does not exist, or is not a score.
        """
        sign = 1.0 if self.higher_is_harder(score) else -1.0
        hardness: NDArray[np.float64] = sign * self.column(score).astype(np.float64)
        if "held_out" not in self.columns:
            return hardness
        return ranked_among_alike(hardness, self.column("held_out").astype(np.bool_))

    def judge_of_labels(self) -> str | None:
        """The column of the table that best finds label errors."""
        return self._best_judge(least_rank=0)

    def about(self, column: str) -> dict[str, Any]:
        """The metadata of a column, as in ``hardsight.registry.ColumnSpec``.

        What the table does not record gets a default: the name in words, no unit, no rank.
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
        """Return a new table of the rows for which ``keep`` is true."""
        return ScoreTable(self._rows.take(row_numbers(np.flatnonzero(keep))), path=self.path)

    def higher_is_harder(self, score: str) -> bool:
        """Whether larger values of a score column are harder.

        Raises:
            TableError: the column does not exist, or is not a score.
        """
        self._check_named("score", score, self.scores)
        return bool(self.metadata["scores"][score]["higher_is_harder"])

    def _ranked(self, n: int, by: str, *, harder_first: bool) -> pa.Table:
        descending = self.higher_is_harder(by) == harder_first
        values = self.column(by).astype(np.float64)
        return self._taken(values if descending else -values, n)

    def _taken(self, values: NDArray[np.float64], n: int) -> pa.Table:
        """The rows with the ``n`` largest values."""
        if n < 0:
            raise OptionError(f"expected n to be 0 or more, got {n}")
        # stable on ties; NaN sorts last and is never ranked
        order = np.argsort(-values, kind="stable")
        ranked = order[: len(values) - int(np.isnan(values).sum())]
        return self._source.take(row_numbers(ranked[:n]))


def ranked_among_alike(
    hardness: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    *,
    known: tuple[int, int] | None = None,
) -> NDArray[np.float64]:
    """Rank held-out rows and rows trained on separately, and merge the two lists.

    Args:
        hardness: larger is harder; NaN is not ranked.
        held_out: whether each row was held out.
        known: number of rows with a value that were trained on and that were held out, if the rows
            passed in are only the hardest of each.

    Returns:
        ranks from 0, larger is harder; the values themselves if all rows are of the same kind.
    """
    counts = [int((~np.isnan(hardness[held_out == kind])).sum()) for kind in (False, True)]
    totals = counts if known is None else known
    if not all(totals):
        return hardness
    shares = np.full(len(hardness), np.nan)
    for kind, total in zip((False, True), totals, strict=True):
        rows = np.flatnonzero((held_out == kind) & ~np.isnan(hardness))
        harder = len(rows) - np.searchsorted(np.sort(hardness[rows]), hardness[rows], side="right")
        shares[rows] = 1 - harder / total
    ranked = np.flatnonzero(~np.isnan(hardness))
    last_first = -ranked  # if rows are equal, the first one gets the larger rank
    order = ranked[np.lexsort((last_first, hardness[ranked], shares[ranked]))]
    ranks = np.full(len(hardness), np.nan)
    ranks[order] = np.arange(len(order))
    return ranks


class TableFile:
    """An open parquet file, of which only the columns and rows that are used are read.

    The file stays open, so it can be read to its end even if another run replaces it.

    Args:
        file: the file to read.
    """

    def __init__(self, file: Path) -> None:
        self._path = file
        self._columns: dict[str, pa.ChunkedArray] = {}
        with self._reading():
            self._file = open_parquet(file, memory_map=True)
            self.schema: pa.Schema = self._file.schema_arrow
        self.num_rows: int = self._file.metadata.num_rows

    def read(self) -> pa.Table:
        """Read the whole file."""
        with self._reading():
            return self._file.read()

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column, which is read only once."""
        if name not in self._columns:
            with self._reading():
                self._columns[name] = self._file.read([name]).column(name)
        return self._columns[name]

    def groups(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some columns, a group of rows at a time."""
        for number in range(self._file.num_row_groups):
            yield self._group(number, list(names))

    def take(self, rows: pa.Array) -> pa.Table:
        """Return rows in the given order, reading only the groups that hold them."""
        wanted = np.from_dlpack(rows)
        sizes = [
            self._file.metadata.row_group(n).num_rows for n in range(self._file.num_row_groups)
        ]
        starts = np.cumsum([0, *sizes])
        order = np.argsort(wanted, kind="stable")
        parts = [self.schema.empty_table()]
        for number in np.unique(np.searchsorted(starts, wanted, side="right") - 1).tolist():
            inside = wanted[order] - starts[number]
            inside = inside[(inside >= 0) & (inside < sizes[number])]
            parts.append(self._group(number, None).take(row_numbers(inside)))
        return pa.concat_tables(parts).take(row_numbers(np.argsort(order, kind="stable")))

    def _group(self, number: int, names: list[str] | None) -> pa.Table:
        with self._reading():
            return self._file.read_row_group(number, names)

    @contextmanager
    def _reading(self) -> Generator[None, None, None]:
        try:
            yield
        except (pa.ArrowInvalid, OSError) as err:
            raise TableError(f"{self._path} is not a readable parquet file: {err}") from err


def row_numbers(rows: NDArray[Any]) -> pa.Array:
    """Row numbers as an arrow array, made from a buffer.

    ``pa.array`` would import pandas to convert numpy arrays, which takes half a second.
    """
    buffer = pa.py_buffer(np.ascontiguousarray(rows, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, buffer])


def _numpy_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as a numpy array, without ``to_numpy`` if possible.

    That would import pandas, which takes half a second.
    """
    kind = column.type
    is_plain = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if column.num_chunks == 1 and not column.null_count:
        if is_plain:
            return np.from_dlpack(column.chunk(0))
        if pa.types.is_boolean(kind):
            return _unpacked(column.chunk(0))
    values: NDArray[Any] = column.to_numpy()
    return values


def _unpacked(bits: pa.BooleanArray) -> NDArray[np.bool_]:
    """Booleans without nulls, of which arrow stores a bit each and numpy a byte.

    A cast would import ``pyarrow.compute``, which takes 50 ms.
    """
    if not len(bits):
        return np.empty(0, np.bool_)
    packed = np.frombuffer(bits.buffers()[1], np.uint8)
    end = bits.offset + len(bits)
    return np.unpackbits(packed, count=end, bitorder="little")[bits.offset :].view(np.bool_)


def read_table(path: str | os.PathLike[str]) -> ScoreTable:
    """Read the table of a scoring, training or adaptation run, or of a single file.

    Args:
        path: the folder of a finished run of ``hardsight score``, of ``hardsight train`` with
            ``folds`` or ``track = true``, or of ``hardsight adapt``, whose table holds the
            pseudo-labels of the last round; or a parquet file that hardsight wrote.

    Raises:
        MissingDataError: there is no table there; the message says what there is instead.
        TableError: the file is not a score table.
    """
    file = place_of(path)
    try:
        if file.is_dir():
            file = _table_of(RunFolder(file))
        if not file.exists():
            below = _runs_below(file.parent)
            step = f"name one of {', '.join(map(str, below))}" if below else (
                "write one with `hardsight score`"
            )  # fmt: skip
            raise MissingDataError(f"no score table at {file}; {step}")
    except HardsightError:  # already clear; some of our errors are OSErrors as well
        raise
    except OSError as err:  # an object store that does not answer, or denies access
        raise TableError(f"cannot read {file}: {err}; check its name and your access") from err
    rows = TableFile(file)
    if TABLE_METADATA not in (rows.schema.metadata or {}):
        raise TableError(f"{file} is a parquet file, but not a table written by hardsight")
    return ScoreTable(rows, path=file)


def _table_of(run: RunFolder) -> Path:
    """The file in the folder of a run that has a row per example."""
    folder, kind = run.folder, run.kind
    if kind is None:  # such as a table that was copied without its run
        return next((folder / name for name in (TABLE, DYNAMICS) if (folder / name).exists()),
                    folder / TABLE)  # fmt: skip
    if not run.finished:
        raise MissingDataError(
            f"the {kind.what} in {folder} is unfinished; continue it with `{kind.command} ... "
            f"--out {folder} --resume`"
        )
    if kind in (SCORE, FOLDS):
        return folder / TABLE
    if kind is ADAPT and (last := _last_rounds(folder)):
        if len(last) > 1:
            raise MissingDataError(
                f"{folder} holds pseudo-labels of {len(last)} rules; name the file of one of them: "
                f"{', '.join(map(str, last))}"
            )
        return last[0]
    if kind is not TRAIN:
        raise MissingDataError(
            f"{folder} holds the files of `{kind.command}`, which have no row per example; write a "
            "table with `hardsight score`"
        )
    if not (folder / DYNAMICS).exists():
        raise MissingDataError(
            f"{folder} is a training run without dynamics; train with `--set track=true` or with "
            f"`--folds 5`, or score the model: `hardsight score --model {folder} --data ... --out "
            "SCORES`"
        )
    return folder / DYNAMICS


def _runs_below(folder: Path) -> list[Path]:
    """Return the runs in the subfolders of a folder, such as those of the demo."""
    if not folder.is_dir():
        return []
    return [each for each in sorted(folder.iterdir()) if each.is_dir() and _is_run(each)]


def _is_run(folder: Path) -> bool:
    try:
        return RunFolder(folder).kind is not None
    except HardsightError:  # of another version, or damaged: no answer to what was asked
        return False


def _last_rounds(folder: Path) -> list[Path]:
    """Return the files with the last round's pseudo-labels, for every rule of an adaptation."""
    rounds = {
        (file.parent.parent, int(number)): file
        for file in folder.glob(f"*/round-*/{PSEUDO_LABELS}")
        if (number := file.parent.name.removeprefix("round-")).isdigit()
    }
    return list({rule: rounds[rule, number] for rule, number in sorted(rounds)}.values())


def with_metadata(rows: pa.Table, metadata: Mapping[str, Any]) -> pa.Table:
    """Return ``rows`` with hardsight's metadata in the schema."""
    encoded = json.dumps(metadata, sort_keys=True).encode()
    return rows.replace_schema_metadata({TABLE_METADATA: encoded})


def _frame(rows: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = rows.to_pandas()
    return frame


def error_rows(errors: Sequence[tuple[int, str, str]]) -> pa.Table:
    """Build a table of unreadable examples from ``(index, id, reason)``."""
    index, ids, reasons = zip(*errors, strict=True) if errors else ((), (), ())
    return pa.table([list(index), list(ids), list(reasons)], schema=ERROR_SCHEMA)
