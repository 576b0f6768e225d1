"""One writer at a time: a lock that the operating system frees when its owner ends.

The lock is on an open file, not its existence: a file that a killed process left behind holds
nobody up. ``flock`` reaches across machines on NFS (version 4, or version 3 with its lock service).
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from hardsight.errors import HardsightWarning, RunLockedError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_BEHIND_THE_OWNER = 1 << 20  # Windows locks bytes: one that nobody reads
_HELD: set[int] = set()  # descriptors of the locks of this process


@contextmanager
def held(file: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is made for it and removed afterwards.

    Args:
        file: in a folder that is made if it is not there.
        wait: until another owner has let go, instead of raising.

    Raises:
        RunLockedError: another process, or another thread, holds it; says which.
    """
    descriptor, owner = _acquired(file, wait=wait), os.getpid()
    _HELD.add(descriptor)
    try:
        yield
    finally:
        if os.getpid() == owner and descriptor in _HELD:  # not in a fork of the owner
            _HELD.discard(descriptor)
            # while it is still locked: whoever gets it next sees that it has no name, see below
            with suppress(OSError):
                file.unlink(missing_ok=True)
            os.close(descriptor)


def _acquired(file: Path, *, wait: bool) -> int:
    while True:
        # an owner that leaves nothing behind removes the folder that it made, perhaps just now
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue
        try:
            if not _locked(descriptor, wait=wait):
                raise RunLockedError(_said_who(file))
            if _is_named(descriptor, file):
                _introduce(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the owner before removed it: this lock excludes nobody


def _locked(descriptor: int, *, wait: bool) -> bool:
    """Whether the lock is ours now."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _BEHIND_THE_OWNER, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as err:
        if err.errno in _NO_LOCKS:
            warnings.warn(
                "this file system has no locks, so nothing keeps a second process from writing to "
                "the same folder; start one at a time",
                HardsightWarning,
                stacklevel=2,
            )
            return True
        if err.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def _is_named(descriptor: int, file: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _introduce(descriptor: int) -> None:
    """Write who holds the lock, for whoever is turned away."""
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(owner).encode())


def _said_who(file: Path) -> str:
    try:
        owner = json.loads(file.read_bytes())
        who = (
            f"process {owner['pid']} on {owner['host']}, since {owner['since']} "
            f"({owner['command']})"
        )
    except (OSError, ValueError, KeyError, TypeError):  # it has not introduced itself yet
        who = "another process"
    return (
        f"{file.parent} is being written to by {who}; wait for it to end, stop it, or choose "
        "another --out"
    )


def _let_go_in_a_fork() -> None:
    """Close the locks in a child, such as a loader's worker, that may outlive the owner."""
    while _HELD:
        with suppress(OSError):
            os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_a_fork)
