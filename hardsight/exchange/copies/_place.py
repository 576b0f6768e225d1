"""Put a result in place completely or not at all, and never over files of somebody else."""

from __future__ import annotations

import glob
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hardsight.errors import RunExistsError
from hardsight.exchange.copies._folder import RECORD
from hardsight.run_folder import held, put_in_place, remove

_PARTIAL = ".tmp-"


@contextmanager
def staged(out: Path, overwrite: bool) -> Iterator[Path]:
    """A path to write to, which replaces ``out`` at the end; after an error nothing is left.

    Raises:
        RunExistsError: ``out`` exists and must not be replaced.
        RunLockedError: another process is writing to it.
    """
    with held(out.parent / f".{out.name}.lock"):
        # left by a process that was killed: we hold the lock, so nobody is writing to it
        for leftover in out.parent.glob(f"{_PARTIAL}*-{glob.escape(out.name)}"):
            remove(leftover)
        _check_free(out, overwrite)
        mark = secrets.token_hex(4)
        target = out.with_name(f"{_PARTIAL}{mark}-{out.name}")
        # beside ``out``, because a rename only works within one disk
        old = out.with_name(f"{_PARTIAL}{mark}-old-{out.name}")
        try:
            yield target
            if out.is_dir() and target.is_dir():
                # a folder cannot be replaced by a rename, so the old one steps aside first
                out.replace(old)
            put_in_place(target, out)
            remove(old)
        except BaseException:
            with suppress(OSError):
                remove(target)
            raise


def _check_free(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise RunExistsError(
            f"{out} exists; choose another --out, or replace it with --overwrite (overwrite=True)"
        )
    if out.is_dir() and not (out / RECORD).is_file():
        raise RunExistsError(
            f"{out} is not a folder that hardsight wrote, and is not replaced; choose another --out"
        )
