"""Where a result comes to lie: as a whole or not at all, and never over what is not ours."""

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
    """A path to write to, which takes the place of ``out`` at the end; an error leaves nothing.

    Raises:
        RunExistsError: something is there that is not to be replaced.
        RunLockedError: another process is writing it.
    """
    with held(out.parent / f".{out.name}.lock"):
        # of a process that was killed; its lock is gone, so it does not write any more
        for leftover in out.parent.glob(f"{_PARTIAL}*-{glob.escape(out.name)}"):
            remove(leftover)
        _check_free(out, overwrite)
        mark = secrets.token_hex(4)
        target = out.with_name(f"{_PARTIAL}{mark}-{out.name}")
        # beside it, since a rename works within one disk only
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
