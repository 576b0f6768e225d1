"""Store decisions in an append-only log in SQLite.

A row of the log is a decision of a reviewer about an example, or the undo of one. Rows are never
changed or removed. For each example and reviewer, the last decision that was not undone counts.
Undo, agreement between reviewers and an audit can all be derived from this one table.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import sqlite3
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import OptionError, OutputError, TableError
from hardsight.run_folder import StorePath, values_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

KEEP, RELABEL, CANNOT_TELL, SKIP = "keep", "relabel", "cannot tell", "skip"
ACTIONS = (KEEP, RELABEL, CANNOT_TELL, SKIP)
NONE = 0  # the number of "no decision"; the actions have the numbers after it
NUMBERS = {action: number for number, action in enumerate(ACTIONS, start=1)}
UNDO = "undo"
FILE = "review.sqlite"
_FORMAT = 1
_BUSY_MS = 5000  # that SQLite waits for another process to finish writing
# SQLite's write-ahead log needs memory shared by all processes, which these file systems lack
_NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs",
                  "lustre", "gpfs", "beegfs", "fuse.sshfs", "fuse.s3fs")  # fmt: skip

_SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE log (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    "index" INTEGER NOT NULL,   -- of the example in its data
    reviewer TEXT NOT NULL,
    action TEXT NOT NULL,
    old INTEGER NOT NULL,       -- the label in the table
    new INTEGER NOT NULL,       -- -1 if there is none
    base_seq INTEGER NOT NULL,  -- the last row of this example and reviewer before this one, or 0
    batch TEXT NOT NULL,        -- what was decided together is undone together
    undoes INTEGER,             -- the row that this one takes back
    time TEXT NOT NULL
);
CREATE INDEX by_example ON log ("index", reviewer);
CREATE INDEX by_batch ON log (batch);
CREATE INDEX by_undone ON log (undoes) WHERE undoes IS NOT NULL;
CREATE TRIGGER never_changed BEFORE UPDATE ON log BEGIN
    SELECT RAISE(ABORT, 'the log of decisions is only added to');
END;
CREATE TRIGGER never_removed BEFORE DELETE ON log BEGIN
    SELECT RAISE(ABORT, 'the log of decisions is only added to');
END;
"""
# what counts now: of every example and reviewer the last row that was not undone
_STANDING = """
SELECT log.* FROM log JOIN (
    SELECT max(seq) AS seq FROM log AS made
    WHERE action != 'undo' AND NOT EXISTS (SELECT 1 FROM log WHERE undoes = made.seq)
    GROUP BY "index", reviewer
) USING (seq) ORDER BY seq
"""


class StaleError(Exception):
    """The reviewer has decided about the same examples in another window in the meantime.

    Attributes:
        index: some of these examples.
        count: number of these examples.
    """

    def __init__(self, index: Sequence[int], count: int) -> None:
        super().__init__(f"{count} decided meanwhile")
        self.index, self.count = list(index), count


@dataclass(frozen=True)
class Batch:
    """Decisions of one reviewer that were stored in one step, in consecutive rows of the log.

    Attributes:
        batch: its name.
        first: its first row of the log.
        seq: its last row of the log.
        index: the last example whose label it changed; without one, its last example.
        action: the action for that example.
        old: the label of that example.
        new: the new class of that example, -1 for none.
    """

    batch: str
    first: int
    seq: int
    index: int
    action: str
    old: int
    new: int

    @property
    def count(self) -> int:
        """The number of decisions."""
        return self.seq - self.first + 1


@dataclass
class Standing:
    """What one reviewer has decided, for each row of the table.

    Attributes:
        action: number of the action, 0 for none.
        new: new class, -1 for none.
        latest: last row of the log about the example, including undos; 0 for none.
        batches: decisions that were stored together and not undone, ordered by time.
    """

    action: NDArray[np.int8]
    new: NDArray[np.int32]
    latest: NDArray[np.int64]
    batches: list[Batch] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, length: int) -> Standing:
        """The standing of a reviewer who has decided nothing yet."""
        return cls(
            np.zeros(length, np.int8), np.full(length, -1, np.int32), np.zeros(length, np.int64)
        )


@dataclass(frozen=True)
class Record:
    """One row of the log that counts."""

    seq: int
    index: int
    reviewer: str
    action: str
    old: int
    new: int
    base_seq: int
    batch: str
    undoes: int | None
    time: str


def store_file(table: ScoreTable) -> Path:
    """The file beside a table that holds the decisions about it.

    Raises:
        OptionError: the table is in an object store.
    """
    assert table.path is not None, "a table in memory has no place for decisions"
    if isinstance(table.path, StorePath):
        raise OptionError(
            f"decisions are stored beside a table, but {table.path} is in an object store, where "
            "files cannot be appended to; copy the folder of the run to a disk first"
        )
    path = table.path.absolute()
    usual = path.name in ("table.parquet", "dynamics.parquet")
    return path.with_name(FILE if usual else f"{path.stem}.{FILE}")


def identity(table: ScoreTable) -> str:
    """A digest of the examples and classes of a table, to recognise decisions about others."""
    data = table.metadata.get("data") or {}
    return values_digest([data.get("fingerprint"), table.classes, len(table)])


def standing_records(table: ScoreTable) -> list[Record]:
    """The decisions of all reviewers that count, ordered by time.

    Raises:
        TableError: the decisions belong to other data, or to a newer version of hardsight.
    """
    file = store_file(table)
    if not file.exists():
        return []
    connection = _opened_to_read(file)
    try:
        _check_about(connection, file, identity(table))
        return [Record(*row) for row in connection.execute(_STANDING)]
    finally:
        connection.close()


class Store:
    """The log of decisions, and what counts of it, held in memory and kept up to date.

    There is one connection, and a lock for the threads of this process. SQLite itself waits for
    other processes.

    Args:
        file: the file of the log, created if it does not exist.
        identity: the identity of the table under review.
        index: the index of every row of the table.
        label: the label of every row of the table.

    Raises:
        TableError: the decisions belong to other data, or to a newer version of hardsight.
        OutputError: the file cannot be created.
    """

    def __init__(
        self, file: Path, *, identity: str, index: NDArray[np.int64], label: NDArray[np.int32]
    ) -> None:
        self.file = file
        self._lock = threading.RLock()
        self._index, self._label = index, label
        is_sorted = bool((np.diff(index) > 0).all())  # as in most tables: no sorter needed
        self._by_index = None if is_sorted else np.argsort(index, kind="stable")
        self._standing: dict[str, Standing] = {}
        self._seen = 0
        self._version = -1
        try:
            self._connection = _opened(file, make=identity)
        except (sqlite3.Error, OSError) as err:
            reason = getattr(err, "strerror", None) or err
            raise OutputError(
                f"cannot store decisions in {file}: {reason}; make the run writable for everybody "
                "who reviews it, or review a copy"
            ) from err
        try:
            _check_about(self._connection, file, identity)
            self._catch_up()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    # ------------------------------------------------------------------------------ reading

    @property
    def seq(self) -> int:
        """The last row of the log."""
        with self._lock:
            self._catch_up()
            return self._seen

    @property
    def reviewers(self) -> list[str]:
        """The names of everybody who has decided something."""
        with self._lock:
            self._catch_up()
            return sorted(self._standing)

    def standing(self, reviewer: str) -> Standing:
        """What a reviewer has decided; callers must not change it."""
        with self._lock:
            self._catch_up()
            return self._standing.get(reviewer) or Standing.of(len(self._index))

    def rows_of(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of the table for some indices of the data; -1 for an unknown index."""
        if not len(self._index):
            return np.full(len(index), -1, np.int64)
        places = np.searchsorted(self._index, index, sorter=self._by_index)
        rows = np.minimum(places, len(self._index) - 1)
        if self._by_index is not None:
            rows = self._by_index[rows]
        return np.where(self._index[rows] == index, rows, -1)

    def recent(self, reviewer: str, count: int = 10) -> list[dict[str, Any]]:
        """The last batches of a reviewer that were not undone, newest first."""
        names = ("batch", "seq", "count", "index", "action", "old", "new")
        last = self.standing(reviewer).batches[: -count - 1 : -1]
        return [{name: getattr(batch, name) for name in names} for batch in last]

    # ------------------------------------------------------------------------------ writing

    def decide(
        self,
        rows: NDArray[np.int64],
        reviewer: str,
        action: str,
        new: NDArray[np.int32],
        *,
        base: int | None = None,
        seen: int | None = None,
    ) -> int:
        """Store one decision for each of some rows, for all of them or for none.

        The decisions are on the disk when this returns.

        Args:
            rows: rows of the table.
            reviewer: name of the reviewer.
            action: one of ``ACTIONS``; to relabel a row with the class that it has is to keep it.
            new: new class of each row, -1 for none.
            base: the last row of the log about this one example that the reviewer had seen.
            seen: the last row of the log about any example that the reviewer had seen.

        Returns:
            the last row of the log.

        Raises:
            StaleError: the reviewer has meanwhile decided about them in another window.
            OutputError: the decisions could not be written, and none of them was.
        """
        with self._transaction():
            latest = self._standing_to_change(reviewer).latest[rows]
            stale = latest != base if base is not None else latest > (seen or 0)
            if stale.any():
                index = self._index[rows[stale]]
                raise StaleError(index[:20].tolist(), int(stale.sum()))
            self._insert(rows, reviewer, action, new.tolist(), latest.tolist())
        return self._seen

    def undo(self, reviewer: str, batch: str) -> NDArray[np.int64]:
        """Undo decisions that were stored in one step; the decisions before them count again.

        Returns:
            the rows of the table that they were about.

        Raises:
            StaleError: there are no such decisions, or they are already undone.
            OutputError: the undo could not be written, and no part of it was.
        """
        query = """SELECT seq, "index" FROM log AS made WHERE batch = ? AND reviewer = ?
            AND action != 'undo' AND NOT EXISTS (SELECT 1 FROM log WHERE undoes = made.seq)"""
        with self._transaction():
            made = self._connection.execute(query, (batch, reviewer)).fetchall()
            if not made:
                raise StaleError([], 0)
            undone, index = np.array(made, np.int64).T
            rows = self.rows_of(index)
            latest = self._standing_to_change(reviewer).latest[rows]
            none = np.full(len(rows), -1).tolist()
            self._insert(rows, reviewer, UNDO, none, latest.tolist(), undone.tolist())
        return rows

    def _insert(
        self,
        rows: NDArray[np.int64],
        reviewer: str,
        action: str,
        new: list[int],
        base: list[int],
        undoes: list[int] | None = None,
    ) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        batch = secrets.token_hex(8)
        taken_back: Sequence[int | None] = undoes or [None] * len(rows)
        index, old = self._index[rows].tolist(), self._label[rows].tolist()
        self._connection.executemany(
            'INSERT INTO log ("index", reviewer, action, old, new, base_seq, batch, undoes, time)'
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (i, reviewer, *_as_said(action, o, n), b, batch, u, time)
                for i, o, n, b, u in zip(index, old, new, base, taken_back, strict=True)
            ),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write all or nothing, after taking in everything that other processes have written."""
        with self._lock:
            try:
                # IMMEDIATE takes the write lock now, so nothing changes between check and write
                self._connection.execute("BEGIN IMMEDIATE")
                self._catch_up()
                yield
                self._connection.execute("COMMIT")
            except BaseException as err:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(err, sqlite3.Error):
                    raise OutputError(
                        f"the decision was not stored in {self.file}: {err}; free some space or "
                        "check the disk, then decide again"
                    ) from err
                raise
            self._read_on()

    # ------------------------------------------------------------------------------ in memory

    def _catch_up(self) -> None:
        """Take in what other processes have written since."""
        # changes if another connection has written; much cheaper than a query of the log
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._read_on()
            self._version = version

    def _standing_to_change(self, reviewer: str) -> Standing:
        # not setdefault, which would make new arrays for all rows at every key press
        if reviewer not in self._standing:
            self._standing[reviewer] = Standing.of(len(self._index))
        return self._standing[reviewer]

    def _read_on(self) -> None:
        query = """SELECT seq, "index", reviewer, action, new, undoes, batch, old FROM log
            WHERE seq > ? ORDER BY seq"""
        added = self._connection.execute(query, (self._seen,)).fetchall()
        if not added:
            return
        for reviewer in {row[2] for row in added}:
            self._take_in([row for row in added if row[2] == reviewer], reviewer)
        self._seen = int(added[-1][0])

    def _take_in(self, added: list[tuple[Any, ...]], reviewer: str) -> None:
        standing = self._standing_to_change(reviewer)
        rows = self.rows_of(np.array([row[1] for row in added], np.int64))
        undone = np.array([row[5] is not None for row in added])
        # if a row occurs twice, numpy keeps the last value, which is the later one
        standing.latest[rows] = [row[0] for row in added]
        made = np.flatnonzero(~undone)
        standing.action[rows[made]] = [NUMBERS[added[at][3]] for at in made.tolist()]
        standing.new[rows[made]] = [added[at][4] for at in made.tolist()]
        if undone.any():
            self._look_up(standing, reviewer, np.unique(rows[undone]))
        _add_batches(standing.batches, added)

    def _look_up(self, standing: Standing, reviewer: str, rows: NDArray[np.int64]) -> None:
        """Read again from the log what counts for some rows, after an undo."""
        query = """SELECT "index", max(seq), action, new FROM log AS made
            WHERE "index" IN (SELECT value FROM json_each(?)) AND reviewer = ?
            AND action != 'undo' AND NOT EXISTS (SELECT 1 FROM log WHERE undoes = made.seq)
            GROUP BY 1"""
        standing.action[rows], standing.new[rows] = NONE, -1
        index = json.dumps(self._index[rows].tolist())
        counting = self._connection.execute(query, (index, reviewer)).fetchall()
        if counting:
            places = self.rows_of(np.array([row[0] for row in counting], np.int64))
            standing.action[places] = [NUMBERS[row[2]] for row in counting]
            standing.new[places] = [row[3] for row in counting]


def _as_said(action: str, old: int, new: int) -> tuple[str, int, int]:
    """Action, old and new class to store; relabelling to the same class becomes ``keep``."""
    return (KEEP, old, -1) if action == RELABEL and new == old else (action, old, new)


def _add_batches(batches: list[Batch], added: Sequence[tuple[Any, ...]]) -> None:
    """Add the batches in the new rows of one reviewer; the rows of a batch are consecutive."""
    for _, group in groupby(added, key=itemgetter(6)):
        rows = list(group)
        first, *_, undoes, _, _ = rows[0]
        if undoes is None:
            # one class for many examples changes some and keeps others; the page shows a change
            shown = next((row for row in reversed(rows) if row[3] == RELABEL), rows[-1])
            _, index, _, action, new, _, batch, old = shown
            batches.append(Batch(batch, first, rows[-1][0], index, action, old, new))
            continue
        at = bisect_right(batches, undoes, key=attrgetter("first")) - 1
        if at >= 0 and undoes <= batches[at].seq:  # a batch is undone as a whole
            del batches[at]


def _opened(file: Path, *, make: str | None = None) -> sqlite3.Connection:
    """Open the log; with ``make``, the identity of a table, create it if it does not exist."""
    is_new = make is not None and not file.exists()
    if is_new:
        file.touch()  # SQLite itself would give no rights to the group, whatever the umask says
    if make is not None and not os.access(file, os.W_OK):
        # otherwise the first decision would be the first to fail
        raise PermissionError(errno.EACCES, "this user may not write to it", os.fspath(file))
    connection = sqlite3.connect(
        file, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        if make is not None:
            mode = "DELETE" if _on_network_disk(file) else "WAL"
            connection.execute(f"PRAGMA journal_mode = {mode}")
        # a decision must survive a power cut as soon as the next picture is shown
        connection.execute("PRAGMA synchronous = FULL")
        if is_new or (make is not None and not _version(connection)):
            _make(connection, str(make))
    except BaseException:
        connection.close()
        raise
    return connection


def _opened_to_read(file: Path) -> sqlite3.Connection:
    """The log of a run that may be somebody else's, in a folder that cannot be written."""
    try:
        return _opened(file)
    except sqlite3.OperationalError as err:
        beside = file.with_name(f"{file.name}-wal")
        # SQLite writes its locks beside the log; one that nobody has open needs none
        how = "mode=ro" if beside.exists() and beside.stat().st_size else "immutable=1"
        connection = sqlite3.connect(f"{file.resolve().as_uri()}?{how}", uri=True)
        try:
            _version(connection)
        except sqlite3.Error:
            connection.close()
            raise TableError(
                f"cannot read the decisions in {file}: {err}; allow writing in the folder of the "
                "run, or copy it"
            ) from err
        return connection


def _make(connection: sqlite3.Connection, identity: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _version(connection):  # another process may have created it in the meantime
            for statement in _statements(_SCHEMA):
                connection.execute(statement)
            connection.execute("INSERT INTO about VALUES ('table', ?)", (identity,))
            connection.execute(f"PRAGMA user_version = {_FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements; ``executescript`` would commit the open transaction."""
    part = ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            yield part
            part = ""


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check_about(connection: sqlite3.Connection, file: Path, identity: str) -> None:
    try:
        version = _version(connection)
        if version > _FORMAT:
            raise TableError(
                f"{file} was written by a newer version of hardsight; use that version, or move "
                "the file away to start over"
            )
        stored = connection.execute("SELECT value FROM about WHERE key = 'table'").fetchone()
    except sqlite3.DatabaseError as err:
        raise TableError(
            f"the decisions in {file} cannot be read ({err}); move the file away to start over"
        ) from err
    if stored is None or stored[0] != identity:
        raise TableError(
            f"the decisions in {file} are about other data or classes than the table beside it; "
            "move the file to the run it belongs to, or move it away to start over"
        )


def _on_network_disk(file: Path) -> bool:
    """Whether a file is on a network file system, as far as ``/proc/mounts`` says."""
    try:
        mounts = Path("/proc/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    place, kinds = os.path.realpath(file.parent), {}
    for line in mounts:
        _, point, kind, *_ = (*line.split(" "), "", "", "")
        point = point.encode().decode("unicode_escape", "replace")  # a space is written \040
        if place == point or place.startswith(point.rstrip("/") + "/"):
            kinds[len(point)] = kind
    return bool(kinds) and kinds[max(kinds)] in _NETWORK_DISKS


@dataclass(frozen=True)
class Consensus:
    """What all reviewers together say about the rows that somebody has decided.

    Attributes:
        rows: rows of the table, ascending.
        verdict: the class that all of them chose; -1 if they cannot tell, -2 if they disagree.
        count: number of reviewers who have decided.
    """

    rows: NDArray[np.int64]
    verdict: NDArray[np.int32]
    count: NDArray[np.int32] = field(repr=False)


DISAGREE = -2


def consensus(standings: Sequence[Standing], label: NDArray[np.int32]) -> Consensus:
    """What reviewers agree on; a skipped example counts as not decided."""
    verdict = np.full(len(label), -1, np.int32)
    count = np.zeros(len(label), np.int32)
    for standing in standings:
        rows = np.flatnonzero((standing.action != NONE) & (standing.action != NUMBERS[SKIP]))
        said = verdict_of(standing, label, rows)
        differs = (count[rows] > 0) & (verdict[rows] != said)
        verdict[rows] = np.where(differs, DISAGREE, said)
        count[rows] += 1
    decided = np.flatnonzero(count)
    return Consensus(decided, verdict[decided], count[decided])


def verdict_of(
    standing: Standing, label: NDArray[np.int32], rows: NDArray[np.int64]
) -> NDArray[np.int32]:
    """The class that a reviewer chose for some rows; -1 for "cannot tell"."""
    action, new = standing.action[rows], standing.new[rows]
    kept = np.where(action == NUMBERS[KEEP], label[rows], -1)
    said: NDArray[np.int32] = np.where(action == NUMBERS[RELABEL], new, kept).astype(np.int32)
    return said
