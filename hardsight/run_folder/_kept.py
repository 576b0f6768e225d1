"""A cache of small contents in a single file on disk, bounded in bytes.

Everything works without it, only slower.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS about (what TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, used INTEGER NOT NULL, content BLOB)",
    "CREATE INDEX IF NOT EXISTS by_use ON kept (used)",
)
_PATIENCE_S = 1.0  # how long to wait for another process that is writing
# share of the bound to shrink to when it is exceeded, so not every write has to remove something
_LEFT = 0.9


class KeptBytes:
    """A cache of bytes by key, which removes the least recently used first.

    If the disk is full, the folder cannot be written to, or the file is damaged, nothing is kept
    and no error is raised. Reading returns what was once put there, or ``None``.

    Args:
        file: created if it is missing, and replaced if it is not a database of ours.
        about: what the content belongs to, such as a digest; content of anything else is removed.
        most_bytes: limit of all content together.
    """

    def __init__(self, file: Path, *, about: str, most_bytes: int) -> None:
        self._file, self._about, self._most = file, about, most_bytes
        self._lock = threading.Lock()
        self._used: dict[str, int] = {}  # times of use, written to disk with the next `put`
        self._held = 0
        self._connection: sqlite3.Connection | None = None
        # a second attempt, after a damaged file has been removed
        for is_last in (False, True):
            try:
                self._connection = self._opened()
                return
            except sqlite3.DatabaseError as err:
                # OperationalError means a full disk, a lock or missing rights, not a damaged file
                if is_last or isinstance(err, sqlite3.OperationalError):
                    return
                with suppress(OSError):
                    file.unlink()

    def get(self, key: str) -> bytes | None:
        """Return the content of a key, or ``None``."""
        with self._lock:
            if self._connection is None:
                return None
            try:
                row = self._connection.execute(
                    "SELECT content FROM kept WHERE key = ?", (key,)
                ).fetchone()
            except sqlite3.Error:
                return None
            if row is None:
                return None
            # kept in memory until the next `put`, so that reading does not write to the disk
            self._used[key] = time.time_ns()
            return bytes(row[0])

    def put(self, key: str, content: bytes) -> None:
        """Keep the content under a key, if possible."""
        with self._lock:
            if self._connection is None or len(content) > self._most:
                return
            try:
                # takes the write lock at once, instead of failing halfway when it is upgraded
                self._connection.execute("BEGIN IMMEDIATE")
                self._write(key, content)
                self._connection.execute("COMMIT")
            except sqlite3.Error:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _write(self, key: str, content: bytes) -> None:
        assert self._connection is not None
        run = self._connection.execute
        noted = [(used, known) for known, used in self._used.items()]
        self._connection.executemany("UPDATE kept SET used = ? WHERE key = ?", noted)
        self._used.clear()
        run("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (key, time.time_ns(), content))
        self._held += len(content)
        if self._held <= self._most:
            return
        self._held = self._bytes(self._connection)  # other processes add and remove as well
        while self._held > _LEFT * self._most:
            last, size = run(
                "SELECT key, length(content) FROM kept ORDER BY used LIMIT 1"
            ).fetchone()
            run("DELETE FROM kept WHERE key = ?", (last,))
            self._held -= size

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._file, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False
        )
        try:
            # do not wait for the disk: content lost in a power cut is computed again
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA journal_mode = TRUNCATE")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            about = connection.execute("SELECT what FROM about").fetchone()
            if about != (self._about,):
                connection.execute("DELETE FROM kept")
                connection.execute("DELETE FROM about")
                connection.execute("INSERT INTO about VALUES (?)", (self._about,))
            self._held = self._bytes(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _bytes(connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT total(length(content)) FROM kept").fetchone()[0])


def kept_count(file: Path) -> int:
    """Return the number of entries in a file of :class:`KeptBytes`, 0 if it cannot be read."""
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        return 0
    try:
        return int(connection.execute("SELECT count(*) FROM kept").fetchone()[0])
    except sqlite3.Error:
        return 0
    finally:
        connection.close()
