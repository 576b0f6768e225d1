"""Files of a run folder: atomic writes, the lock of its writer, the manifest and digests."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError

from hardsight._checks import is_url, path_of_file_url, warn
from hardsight.errors import (
    HardsightError,
    OutputError,
    RunLockedError,
    TableError,
)
from hardsight.run_folder._stores import StorePath

if TYPE_CHECKING:
    from torch import nn

PARTIAL = ".tmp-"  # prefix of incomplete files
MEND = "{mend}"  # in a message: what to do so that the next attempt succeeds
AGAIN = f"{MEND} and run again with --resume (resume=True)"
# rows in a group of a parquet file: the default of pyarrow, and the most that is held in memory
# while a table is written
ROWS_PER_GROUP = 1 << 20
MANIFEST = "run.json"
CACHE = "HARDSIGHT_CACHE"
_OFF = ("off", "0", "no", "none", "false")
FORMAT = 1
UNFINISHED, FINISHED = "unfinished", "finished"
DISCARDED = "discarded"  # being removed for another run; what is left counts for nothing
_STATES = (UNFINISHED, FINISHED, DISCARDED)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BEHIND_THE_OWNER = 1 << 20  # the byte that Windows locks, behind the text that others read
_HELD: set[int] = set()  # descriptors of the locks that this process holds


def place_of(name: str | os.PathLike[str]) -> Path:
    """The path for a name; for the URL of an object store, an object that behaves like a path.

    Example:
        >>> str(place_of("file:///runs/first")), str(place_of("s3://bucket/runs/first"))
        ('/runs/first', 's3://bucket/runs/first')
    """
    text = os.fspath(name)
    if not is_url(text):
        return Path(name)
    on_disk = path_of_file_url(text)
    if on_disk is not None:
        return Path(on_disk)
    return StorePath.of_url(text)


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A path to write to, which replaces ``file`` at the end.

    The content is synced to the disk before the file is renamed, so a power cut leaves either the
    old file or the new one. After an error nothing is left of the new one.
    """
    with partial_for(file) as partial:
        yield partial
        put_in_place(partial, file)


@contextmanager
def partial_for(file: Path) -> Iterator[Path]:
    """A path beside ``file`` to write to, which is removed after an error."""
    # a random name, so that two processes that write the same page do not mix their bytes
    partial = file.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{file.name}")
    try:
        yield partial
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def put_in_place(partial: Path, place: Path) -> None:
    """Sync a file or folder that was written under another name, and rename it."""
    if partial.is_file():
        _share(partial)
        _sync(partial)
    else:
        sweep(partial)  # a writer that was killed and continued may have left incomplete files
    partial.replace(place)
    _sync(place.parent)  # without this, a power cut could undo the rename


def _share(file: Path) -> None:
    """Give a private file the permissions of other new files: safetensors lets nobody else read."""
    if isinstance(file, StorePath) or file.stat().st_mode & 0o077:
        return
    # what the umask allows shows in a file, without changing the umask for other threads
    usual = file.with_name(f"{PARTIAL}{secrets.token_hex(4)}")
    try:
        usual.touch()
        file.chmod(usual.stat().st_mode & 0o777)
    finally:
        usual.unlink(missing_ok=True)


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    with replacing(file) as partial:
        partial.write_bytes(content)


def write_text(file: Path, text: str) -> None:
    """Write text as UTF-8; lone surrogates, as in file names that are not UTF-8, become ``?``."""
    write_bytes(file, text.encode("utf-8", "replace"))


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write plain values as JSON, indented by two spaces."""
    write_text(file, json.dumps(content, indent=2) + "\n")


def write_parquet(
    file: Path, parts: Iterable[pa.Table], schema: pa.Schema, **encoding: Any
) -> None:
    """Write the rows of several tables to one parquet file, completely or not at all.

    Args:
        file: the file to write.
        parts: tables with the columns of ``schema``, of any length.
        schema: the schema, with the metadata of the file.
        encoding: options of ``pyarrow.parquet.ParquetWriter``.
    """
    with replacing(file) as partial:
        fill_parquet(partial, parts, schema, **encoding)


def open_parquet(file: Path, **options: Any) -> pq.ParquetFile:
    """Open a parquet file; options are those of ``pyarrow.parquet.ParquetFile``.

    It is opened by its absolute path, because pyarrow takes a relative one such as
    ``run:1/table.parquet`` for a URL.
    """
    if isinstance(file, StorePath):
        name, system = file.for_parquet
        return pq.ParquetFile(name, filesystem=system, **options)
    if sys.getfilesystemencoding().lower().replace("-", "") == "utf8":
        return pq.ParquetFile(file.absolute(), **options)
    # pyarrow encodes every name as UTF-8, so in another locale it would look for another file
    return pq.ParquetFile(pa.OSFile(os.fsencode(file.absolute())), **options)


def read_parquet(file: Path, columns: list[str] | None = None) -> pa.Table:
    """Read all rows of a parquet file."""
    with open_parquet(file) as opened:
        return opened.read(columns)


def fill_parquet(
    file: Path,
    parts: Iterable[pa.Table],
    schema: pa.Schema,
    *,
    rows_at_once: int = ROWS_PER_GROUP,
    **encoding: Any,
) -> None:
    """Write parquet like :func:`write_parquet`, but directly, to a file that is renamed later.

    Groups have the same length as if pyarrow wrote the whole table at once, so the bytes do not
    depend on the length of the parts. Only one group is in memory at a time. A reader that needs a
    few rows has to read ``rows_at_once`` of them.
    """
    options = {"compression": "zstd", **encoding}
    with file.open("wb") as sink, pq.ParquetWriter(sink, schema, **options) as writer:
        for group in row_groups(parts, schema):
            writer.write_table(group, row_group_size=rows_at_once)


def row_groups(parts: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all parts in full groups; the last may be shorter, and there is at least one."""
    waiting: list[pa.Table] = []
    held, is_first = 0, True
    for part in parts:
        waiting.append(part.replace_schema_metadata(schema.metadata))
        held += part.num_rows
        while held >= ROWS_PER_GROUP:
            rows = pa.concat_tables(waiting)
            yield rows.slice(0, ROWS_PER_GROUP)
            is_first = False
            waiting, held = [rows.slice(ROWS_PER_GROUP)], held - ROWS_PER_GROUP
    if held or is_first:
        yield pa.concat_tables(waiting) if waiting else schema.empty_table()


@contextmanager
def writing(place: Path, *, step: str) -> Iterator[None]:
    """Turn errors of the file system into an :class:`OutputError` that says what to do.

    Args:
        place: the file or folder that is written.
        step: what to do next; :data:`MEND` in it is replaced by :func:`mended_by`.

    Raises:
        OutputError: something could not be written; the message has the reason of the system.
    """
    try:
        yield
    except HardsightError:  # already clear; some of our errors are OSErrors as well
        raise
    except (OSError, SafetensorError) as err:
        reason = getattr(err, "strerror", None) or err
        said = step.replace(MEND, mended_by(err))
        raise OutputError(f"cannot write to {place}: {reason}; {said}") from err


def mended_by(err: Exception) -> str:
    """What the user can do about an error while writing, by its reason.

    Args:
        err: an error of the system, or of a library that only repeats the system's message.
    """
    number, text = getattr(err, "errno", None), str(err)
    if number in _FULL or any(os.strerror(full) in text for full in _FULL):
        return "free some space"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "allow writing there"
    if number is not None:
        return "fix that"
    return "make sure that there is space and writing is allowed"


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content; a missing file is not an error."""
    if isinstance(path, StorePath):
        path.remove_all()
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the incomplete files that a killed writer left in a folder."""
    for leftover in folder.glob(f"{PARTIAL}*"):
        remove(leftover)


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if isinstance(path, StorePath):  # an object store only confirms what it has stored
        return
    is_folder = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        # Windows and some network file systems cannot sync folders; for a file it is an error
        if not is_folder:
            raise


@dataclass(frozen=True)
class Manifest:
    """The content of ``run.json``.

    Attributes:
        kind: name of the :class:`RunKind`.
        state: ``unfinished``, ``finished``, or ``discarded`` while a run is being removed.
        settings: every setting, resolved, by name; nested tables are allowed.
        fingerprints: fingerprints of what is too large for a setting, such as data or weights, by
            its name in words.
        versions: versions of the packages that can change a number.
        files: names of the files that the run leaves in its folder.
        first_outputs: the attributes of the :class:`FirstOutputs` of the model it began with.
    """

    kind: str
    state: str = UNFINISHED
    settings: Mapping[str, Any] = field(default_factory=dict)
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    first_outputs: Mapping[str, Any] | None = None

    def write(self, folder: Path) -> None:
        """Write it into the folder, in place of an older one."""
        content = {"format": FORMAT, **vars(self)}
        if self.first_outputs is None:  # of a run that does not compare outputs
            del content["first_outputs"]
        text = json.dumps(content, indent=1, sort_keys=True)
        write_text(folder / MANIFEST, text + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Read the manifest of a folder; ``None`` if there is none, or a file of another program.

        Raises:
            TableError: it was written by another version of hardsight.
        """
        file = folder / MANIFEST
        if not file.is_file():
            return None
        try:
            content = json.loads(file.read_bytes())
        except ValueError:
            return None
        # other programs use this file name as well
        if not isinstance(content, dict) or not {"kind", "state", "settings"} <= content.keys():
            return None
        if content.pop("format", None) != FORMAT or content["state"] not in _STATES:
            raise TableError(
                f"{file} was written by another version of hardsight; use that version, or choose "
                "another --out"
            )
        # newer versions may have added keys without changing the format
        known = {attribute.name for attribute in dataclasses.fields(cls)}
        values = {key: value for key, value in content.items() if key in known}
        return cls(**{**values, "files": tuple(content.get("files", ()))})


def values_digest(values: Any) -> str:
    """Return the SHA-256 of plain values, such as the names of classes."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def state_digest(model: nn.Module) -> str:
    """Return the SHA-256 of the names and values of all parameters and buffers."""
    return tensors_digest(**model.state_dict())


def tensors_digest(*tensors: Any, **named: Any) -> str:
    """SHA-256 over tensors, their names, shapes and dtypes."""
    import torch  # not at the top: tables and reports use this module without torch

    digest = hashlib.sha256()
    for name, tensor in (*enumerate(tensors), *named.items()):
        if not isinstance(tensor, torch.Tensor):  # extra state of a module
            continue
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {list(values.shape)} {values.dtype}".encode())
        if values.numel():
            digest.update(values.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def plain(value: Any) -> Any:
    """A value after a round trip through JSON: tuples become lists, and keys and paths text."""
    return json.loads(json.dumps(value, default=str))


def differences(
    old: Manifest,
    new: Manifest,
    *,
    may_change: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """The differences between two runs, in words.

    Args:
        old: the existing run.
        new: the new run.
        may_change: names of settings that do not affect the result; ``versions`` stands for the
            versions of packages.
        defaults: values of settings that older versions did not have, and so did not record.

    Example:
        >>> differences(
        ...     Manifest("score", settings={"mean": [0.5], "workers": 1}),
        ...     Manifest("score", settings={"mean": [0.4], "workers": 2}),
        ...     may_change=("workers",),
        ... )
        ['mean = [0.5] instead of [0.4]']
    """
    before = {**_leaves(plain(defaults or {})), **_leaves(_compared(old, may_change))}
    after = _leaves(_compared(new, may_change))
    before = {name: value for name, value in before.items() if name.split(".")[0] not in may_change}
    settings = [
        f"{name} = {before.get(name)!r} instead of {after.get(name)!r}"
        for name in {**after, **before}
        if before.get(name) != after.get(name)
    ]
    marks = [
        f"other {what}"
        for what in {**new.fingerprints, **old.fingerprints}
        if old.fingerprints.get(what) != new.fingerprints.get(what)
    ]
    return settings + marks


def _compared(manifest: Manifest, may_change: Collection[str]) -> dict[str, Any]:
    values = {"versions": manifest.versions, **manifest.settings}
    return dict(plain({name: value for name, value in values.items() if name not in may_change}))


def _leaves(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten nested tables, with names as for ``--set``: ``optimizer.lr``."""
    leaves: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            leaves |= _leaves(value, f"{above}{name}.")
        else:
            leaves[f"{above}{name}"] = value
    return leaves


if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextmanager
def held(file: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock on a file, which is created for it and removed afterwards.

    Args:
        file: the file; its folder is created if it does not exist.
        wait: whether to wait for another owner instead of raising.

    Raises:
        RunLockedError: another process or thread holds the lock; the message says which.
    """
    if isinstance(file, StorePath):
        with file.held(this_process()):
            yield
        return
    descriptor, owner = _acquired(file, wait=wait), os.getpid()
    _HELD.add(descriptor)
    try:
        yield
    finally:
        if os.getpid() == owner and descriptor in _HELD:  # not in a fork of the owner
            _HELD.discard(descriptor)
            # removed while still locked: a process that waits for it then notices that the file
            # has no name any more (_is_named), and starts again with a new one
            with suppress(OSError):
                file.unlink(missing_ok=True)
            os.close(descriptor)


def _acquired(file: Path, *, wait: bool) -> int:
    while True:
        # another owner may just have removed the folder that it had created and left empty
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
        os.close(descriptor)  # the previous owner removed the file, so this lock excludes nobody


def _locked(descriptor: int, *, wait: bool) -> bool:
    """Try to lock a file, and return whether it worked."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _BEHIND_THE_OWNER, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as err:
        if err.errno in _NO_LOCKS:
            warn(
                "this file system has no locks, so nothing keeps a second process from writing to "
                "the same folder; start one at a time"
            )
            return True
        if err.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def _is_named(descriptor: int, file: Path) -> bool:
    """Whether the open file is still the one with this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _introduce(descriptor: int) -> None:
    """Write into the lock file who holds it, for the error message of other processes."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(this_process()).encode())


def this_process() -> dict[str, Any]:
    """This process as it is described in a lock."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _said_who(file: Path) -> str:
    try:
        owner = json.loads(file.read_bytes())
        who = (
            f"process {owner['pid']} on {owner['host']}, since {owner['since']} "
            f"({owner['command']})"
        )
    except (OSError, ValueError, KeyError, TypeError):  # it has not written its name yet
        who = "another process"
    return (
        f"{file.parent} is being written to by {who}; wait for it to end, stop it, or choose "
        "another --out"
    )


def _let_go_in_a_fork() -> None:
    """Close inherited locks after a fork: a loader worker may outlive the owner of the lock."""
    while _HELD:
        with suppress(OSError):
            os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_a_fork)


def cache_folder() -> Path | None:
    """The cache folder of this user; ``None`` if the cache is turned off."""
    said = os.environ.get(CACHE, "").strip()
    if said.lower() in _OFF:
        return None
    home = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    return Path(said or f"{home}/hardsight").expanduser()
