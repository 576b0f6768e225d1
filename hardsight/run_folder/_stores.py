"""Run folders in an object store, accessed by URL through fsspec.

A store has no folders, no appending and no locks, but an object appears only when it is complete.
A run folder also needs listings and a single writer; its lock is an object.
"""

from __future__ import annotations

import fnmatch
import inspect
import json
import os
import re
import secrets
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from hardsight._checks import reason_of, warn
from hardsight.errors import MissingExtraError, RunLockedError

if TYPE_CHECKING:
    # Type checkers see a Path, so functions of a run folder accept both. They do not use what a
    # store lacks, such as links.
    _Path = Path
else:
    _Path = PurePosixPath
_NO_HOST = "~none"  # placeholder for the empty host of hdfs:///runs, which a path would drop


class StorePath(_Path):
    """The name of an object in a store, or of a prefix that serves as a folder.

    Stores have their own error types, which are all converted to ``OSError``.

    Raises:
        MissingExtraError: the package that reads this kind of URL is not installed.

    Example:
        >>> run = StorePath("memory://runs/first")
        >>> (run / "table.parquet").name, str(run.parent)
        ('table.parquet', 'memory://runs')
    """

    @classmethod
    def of_url(cls, url: str) -> StorePath:
        """Build the name from a URL."""
        # urls such as hdfs:///runs have an empty host, which a path would drop
        return cls(re.sub(":///+", f":/{_NO_HOST}/", url, count=1))

    def __str__(self) -> str:
        text = super().__str__().replace(":/", "://", 1)  # a path keeps only one slash
        return text.replace(f"://{_NO_HOST}", ":///", 1).replace(":////", ":///", 1)

    def __fspath__(self) -> str:
        return str(self)

    @property
    def _system(self) -> tuple[Any, str]:
        """Return the file system of fsspec, and the name in it."""
        import fsspec

        system, name = fsspec.core.url_to_fs(str(self))
        return system, str(name)

    @contextmanager
    def _asked(self) -> Iterator[tuple[Any, str]]:
        """Yield file system and name, without cached listings and with errors as ``OSError``."""
        with _as_oserror(str(self)):
            system, name = self._system
            # other processes write to the store, and fsspec would show them late
            system.invalidate_cache()
            yield system, name

    # ------------------------------------------------------------------------------ like a path

    def absolute(self) -> StorePath:
        """Return itself, since a URL is never relative."""
        return self

    def resolve(self, strict: bool = False) -> StorePath:
        """Return itself, since stores have no links."""
        return self

    def as_uri(self) -> str:
        """Return the URL."""
        return str(self)

    def is_symlink(self) -> bool:
        """Return False, since stores have no links."""
        return False

    def samefile(self, other_path: Any) -> bool:
        """Return whether both have the same name."""
        return bool(self == other_path)

    def exists(self, **_: Any) -> bool:
        """Return whether there is an object of this name, or any below it."""
        with self._asked() as (system, name):
            return bool(system.exists(name))

    def is_file(self, **_: Any) -> bool:
        """Return whether there is an object of this name."""
        with self._asked() as (system, name):
            return bool(system.isfile(name))

    def is_dir(self, **_: Any) -> bool:
        """Return whether there are objects below this name."""
        with self._asked() as (system, name):
            return bool(system.isdir(name))

    def stat(self, **_: Any) -> Any:
        """Return the size, the only status that stores have in common."""
        with self._asked() as (system, name):
            return SimpleNamespace(st_size=system.size(name))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Create folders if the store has folders, but never a bucket."""
        for folder in reversed([self, *self.parents]):
            if len(folder.parts) < 3:  # "s3:" and the bucket; creating buckets is up to the user
                continue
            # errors are ignored here, since writing the first object reports a real problem
            with folder._asked() as (system, name), suppress(OSError, NotImplementedError):
                system.mkdir(name, create_parents=False)

    def iterdir(self) -> Generator[StorePath, None, None]:
        """Yield the names directly below."""
        with self._asked() as (system, name):
            try:
                listed = system.ls(name, detail=False)
            except FileNotFoundError:
                listed = []
        for entry in listed:
            below = PurePosixPath(str(entry).rstrip("/")).name
            # some stores list the folder itself as well
            if str(entry).rstrip("/") != name.rstrip("/"):
                yield self / below

    def glob(self, pattern: str) -> Generator[StorePath, None, None]:
        """Yield the names below that match; a pattern may have several levels."""
        first, _slash, rest = pattern.partition("/")
        if not any(letter in first for letter in "*?["):
            found = [self / first] if rest or (self / first).exists() else []
        else:
            found = [entry for entry in self.iterdir() if fnmatch.fnmatchcase(entry.name, first)]
        for entry in sorted(found):
            if rest:
                yield from entry.glob(rest)
            else:
                yield entry

    def open(self, mode: str = "r", *args: Any, **options: Any) -> Any:
        """Open a stream of bytes."""
        with self._asked() as (system, name):
            return _Stream(system.open(name, mode), str(self))

    def read_bytes(self) -> bytes:
        """Read the whole object."""
        with self._asked() as (system, name):
            return bytes(system.cat_file(name))

    def write_bytes(self, content: Any) -> int:
        """Write a whole object, in place of an older one."""
        with self._asked() as (system, name):
            system.pipe_file(name, bytes(content))
        return len(content)

    def replace(self, target: Any) -> StorePath:
        """Rename the object, replacing ``target``; the store copies the object for this."""
        with self._asked() as (system, name):
            system.mv(name, target._system[1])
        return cast(StorePath, target)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object."""
        with self._asked() as (system, name):
            try:
                system.rm_file(name)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def remove_all(self) -> None:
        """Remove the object and everything below it, if they exist."""
        with self._asked() as (system, name), suppress(FileNotFoundError):
            if system.exists(name):
                system.rm(name, recursive=True)

    @cached_property
    def for_parquet(self) -> tuple[str, Any]:
        """Name and file system in the form that pyarrow takes."""
        import pyarrow.fs

        with self._asked() as (system, name):
            return name, pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(system))

    # ------------------------------------------------------------------------------ the lock

    @contextmanager
    def held(self, by: Mapping[str, Any]) -> Iterator[None]:
        """Hold the lock of this name, an object that only one process can create.

        The object stays after a kill. Another process on the same machine can tell that the owner
        has ended; on other machines that is unknown, and the object has to be removed by hand.

        Args:
            by: this process, for the error message of other processes.

        Raises:
            RunLockedError: another process holds the lock; the message says which.
        """
        mine = {**by, "processes": _processes(), "token": secrets.token_hex(8)}
        content = json.dumps(mine).encode()
        if not self._made_by_us(content):
            owner = self._owner()
            if not _is_gone(owner):
                raise RunLockedError(self._said_who(owner))
            # between these two calls another process may take the lock; then creating fails
            self.unlink(missing_ok=True)
            if not self._made_by_us(content):
                raise RunLockedError(self._said_who(self._owner()))
        try:
            yield
        finally:
            with suppress(OSError):
                # only our own object: another process may have taken over the lock by now
                if self._owner().get("token") == mine["token"]:
                    self.unlink(missing_ok=True)

    def _made_by_us(self, content: bytes) -> bool:
        with self._asked() as (system, name):
            try:
                _create(system, name, content)
            except FileExistsError:
                return False
            except (TypeError, ValueError, NotImplementedError):  # the store has no condition
                if system.exists(name):
                    return False
                warn(
                    f"{self.parent} cannot be locked, so nothing keeps a second process from "
                    "writing there; start one at a time"
                )
                system.pipe_file(name, content)
            return bool(system.cat_file(name) == content)  # some stores ignore the condition

    def _owner(self) -> dict[str, Any]:
        try:
            owner = json.loads(self.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return owner if isinstance(owner, dict) else {}

    def _said_who(self, owner: dict[str, Any]) -> str:
        who = "another process"
        if owner:
            who = "process {pid} on {host}, since {since} ({command})".format(
                **{key: owner.get(key, "?") for key in ("pid", "host", "since", "command")}
            )
        return (
            f"{self.parent} is being written to by {who}; wait for it to end, stop it, or choose "
            f"another --out. If it was killed, its lock is left behind: remove {self}"
        )


def _create(system: Any, name: str, content: bytes) -> None:
    """Create an object, unless an object of this name exists."""
    if "mode" not in inspect.signature(system.pipe_file).parameters:
        # fsspec before 2024.10 silently ignores the condition, so two processes could hold the lock
        raise NotImplementedError(f"{type(system).__name__} writes without a condition")
    system.pipe_file(name, content, mode="create")


def _processes() -> str | None:
    """Return the namespace of process ids, which containers on a machine do not share."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _is_gone(owner: dict[str, Any]) -> bool:
    """Return whether the owner of a lock was a process of this machine that has ended."""
    here = (socket.gethostname(), _processes())
    pid = owner.get("pid")
    if os.name != "posix" or here != (owner.get("host"), owner.get("processes")):
        return False
    if not isinstance(pid, int) or here[1] is None:
        return False
    try:
        os.kill(pid, 0)  # signal 0 only asks whether the process exists
    except ProcessLookupError:
        return True
    except OSError:  # the process exists, but belongs to another user
        return False
    return False


@contextmanager
def _as_oserror(url: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except ImportError as err:
        raise MissingExtraError(f"{url} cannot be reached: {err}") from err
    except Exception as err:  # every store has its own types of errors
        raise OSError(reason_of(err)) from err


class _Stream:
    """A stream of a store that raises ``OSError``; errors in the caller's code stay as they are."""

    def __init__(self, stream: Any, url: str) -> None:
        self._stream, self._url = stream, url

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, *args: Any) -> Any:
        with _as_oserror(self._url):
            return self._stream.read(*args)

    def write(self, content: Any) -> int:
        with _as_oserror(self._url):
            return int(self._stream.write(content))

    def close(self) -> None:
        with _as_oserror(self._url):
            self._stream.close()
