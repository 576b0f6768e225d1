"""What lies in a run folder: complete files, one writer's lock, the manifest and its digests."""

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

PARTIAL = ".tmp-"  # how the name of an incomplete file begins
MEND = "{mend}"  # stands in a step for what would let the next attempt succeed
AGAIN = f"{MEND} and run again with --resume (resume=True)"
# rows of a group in a parquet file: what pyarrow takes by default, and the most that is held in
# memory while a table is written
ROWS_PER_GROUP = 1 << 20
MANIFEST = "run.json"
CACHE = "HARDSIGHT_CACHE"
_OFF = ("off", "0", "no", "none", "false")
FORMAT = 1
UNFINISHED, FINISHED = "unfinished", "finished"
DISCARDED = "discarded"  # being removed to make room for another run; nothing here counts
_STATES = (UNFINISHED, FINISHED, DISCARDED)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BEHIND_THE_OWNER = 1 << 20  # Windows locks bytes: one that nobody reads
_HELD: set[int] = set()  # descriptors of the locks of this process


def place_of(name: str | os.PathLike[str]) -> Path:
    """A path for a name, or what stands in for one if the name is a URL.

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
    """A path to write to; what is there at the end takes the place of ``file``.

    The content is on the disk before the name is, so a power cut leaves the old file or the new
    one. After an error nothing is left of the new one.
    """
    with partial_for(file) as partial:
        yield partial
        put_in_place(partial, file)


@contextmanager
def partial_for(file: Path) -> Iterator[Path]:
    """A path beside ``file`` to write to; an error removes what is there."""
    # a name of its own, so that two processes that write the same page do not mix their bytes
    partial = file.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{file.name}")
    try:
        yield partial
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def put_in_place(partial: Path, place: Path) -> None:
    """Sync what was written under another name, file or folder, and give it its name."""
    if partial.is_file():
        _sync(partial)
    else:
        sweep(partial)  # a writer that was killed in it and continued leaves half files there
    partial.replace(place)
    _sync(place.parent)


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    with replacing(file) as partial:
        partial.write_bytes(content)


def write_text(file: Path, text: str) -> None:
    """Write UTF-8; half a surrogate pair, as in names from a broken file system, becomes ``?``."""
    write_bytes(file, text.encode("utf-8", "replace"))


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write plain values, indented by two."""
    write_text(file, json.dumps(content, indent=2) + "\n")


def write_parquet(
    file: Path, parts: Iterable[pa.Table], schema: pa.Schema, **encoding: Any
) -> None:
    """Write tables, one below the other, as a file that is there as a whole or not at all.

    Args:
        file: to write.
        parts: tables of the columns of ``schema``, of any length.
        schema: with the metadata of the file.
        encoding: options of ``pyarrow.parquet.ParquetWriter``.
    """
    with replacing(file) as partial:
        fill_parquet(partial, parts, schema, **encoding)


def open_parquet(file: Path, **options: Any) -> pq.ParquetFile:
    """A parquet file to read from; options are those of ``pyarrow.parquet.ParquetFile``.

    By its whole path: pyarrow takes ``run:1/table.parquet`` for an address of another file system.
    """
    if isinstance(file, StorePath):
        name, system = file.for_parquet
        return pq.ParquetFile(name, filesystem=system, **options)
    if sys.getfilesystemencoding().lower().replace("-", "") == "utf8":
        return pq.ParquetFile(file.absolute(), **options)
    # pyarrow writes every name as UTF-8, so that in another locale it would look for another file
    return pq.ParquetFile(pa.OSFile(os.fsencode(file.absolute())), **options)


def read_parquet(file: Path, columns: list[str] | None = None) -> pa.Table:
    """All rows of a parquet file."""
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
    """The same for a file that has no name of its own yet.

    Groups have the length that pyarrow gives them when it has the whole table, so the bytes do not
    depend on the parts' length; only one group is in memory at a time. A reader that needs a few
    rows of the file reads ``rows_at_once`` for each.
    """
    options = {"compression": "zstd", **encoding}
    with file.open("wb") as sink, pq.ParquetWriter(sink, schema, **options) as writer:
        for group in row_groups(parts, schema):
            writer.write_table(group, row_group_size=rows_at_once)


def row_groups(parts: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all parts in full groups, the last one as long as it comes; at least one."""
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
    """Say what to do if a disk is full or a folder cannot be written to.

    Args:
        place: file or folder that is written.
        step: what to do, in words; :data:`MEND` stands for what :func:`mended_by` says.

    Raises:
        OutputError: with the reason of the system; safetensors has an error of its own for it.
    """
    try:
        yield
    except HardsightError:  # some of ours are OSErrors too
        raise
    except (OSError, SafetensorError) as err:
        reason = getattr(err, "strerror", None) or err
        said = step.replace(MEND, mended_by(err))
        raise OutputError(f"cannot write to {place}: {reason}; {said}") from err


def mended_by(err: Exception) -> str:
    """What would let the same file be written: space is not always what is missing.

    Args:
        err: of the system, or of a library that only has the system's words for it.
    """
    number, text = getattr(err, "errno", None), str(err)
    if number in _FULL or any(os.strerror(full) in text for full in _FULL):
        return "free some space"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "allow writing there"
    if number is not None:
        return "mend that"
    return "make sure that there is space and writing is allowed"


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; what is gone is fine."""
    if isinstance(path, StorePath):
        path.remove_all()
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the incomplete files of a writer that was killed."""
    for leftover in folder.glob(f"{PARTIAL}*"):
        remove(leftover)


def _sync(path: Path) -> None:
    """Ask for a file, or the names in a folder, to be on the disk."""
    if isinstance(path, StorePath):  # what it has taken is safe
        return
    is_folder = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        # Windows and some network file systems do not sync folders; a file's content must be safe
        if not is_folder:
            raise


@dataclass(frozen=True)
class Manifest:
    """The content of ``run.json``.

    Attributes:
        kind: name of the :class:`RunKind`.
        state: ``unfinished``, ``finished``, or ``discarded`` while a run is being removed.
        settings: every setting, resolved, by name; nested tables are allowed.
        fingerprints: of everything that is too large for a setting, such as data or weights, by
            what it is in words.
        versions: of the packages that can change a number.
        files: names of what the run leaves in its folder.
        first_outputs: of the model it began with, the attributes of a :class:`FirstOutputs`.
    """

    kind: str
    state: str = UNFINISHED
    settings: Mapping[str, Any] = field(default_factory=dict)
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    first_outputs: Mapping[str, Any] | None = None

    def write(self, folder: Path) -> None:
        """Put it into the folder, in place of an older one."""
        content = {"format": FORMAT, **vars(self)}
        if self.first_outputs is None:  # of a run without a model that is held to them
            del content["first_outputs"]
        text = json.dumps(content, indent=1, sort_keys=True)
        write_text(folder / MANIFEST, text + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """That of a folder; ``None`` if it has none, or a file of that name that is not ours.

        Raises:
            TableError: it is damaged, or of a later version.
        """
        file = folder / MANIFEST
        if not file.is_file():
            return None
        try:
            content = json.loads(file.read_bytes())
        except ValueError:
            return None
        # other programs have files of this name too
        if not isinstance(content, dict) or not {"kind", "state", "settings"} <= content.keys():
            return None
        if content.pop("format", None) != FORMAT or content["state"] not in _STATES:
            raise TableError(
                f"{file} was written by another version of hardsight; use that version, or choose "
                "another --out"
            )
        # a later version may have added keys within the same format
        known = {attribute.name for attribute in dataclasses.fields(cls)}
        values = {key: value for key, value in content.items() if key in known}
        return cls(**{**values, "files": tuple(content.get("files", ()))})


def values_digest(values: Any) -> str:
    """SHA-256 over plain values, such as the names of classes."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def state_digest(model: nn.Module) -> str:
    """SHA-256 over the names and values of all parameters and buffers."""
    return tensors_digest(**model.state_dict())


def tensors_digest(*tensors: Any, **named: Any) -> str:
    """SHA-256 over tensors, their names, shapes and dtypes."""
    import torch  # whoever has tensors has loaded it; tables and reports do without

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
    """A value as JSON gives it back: tuples as lists, keys as text, paths and the like as text."""
    return json.loads(json.dumps(value, default=str))


def differences(
    old: Manifest,
    new: Manifest,
    *,
    may_change: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """In words, what two runs have set differently.

    Args:
        old: the run that is there.
        new: the run that is asked for.
        may_change: names of settings that do not decide the result; ``versions`` stands for those
            of packages.
        defaults: values of settings that an older version did not know, and so did not record.

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
    """Nested tables as one, with the names that ``--set`` takes: ``optimizer.lr``."""
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
    """Hold the lock of a file, which is made for it and removed afterwards.

    Args:
        file: in a folder that is made if it is not there.
        wait: until another owner has let go, instead of raising.

    Raises:
        RunLockedError: another process, or another thread, holds it; says which.
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
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _introduce(descriptor: int) -> None:
    """Write who holds the lock, for whoever is turned away."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(this_process()).encode())


def this_process() -> dict[str, Any]:
    """Who holds a lock, for whoever is turned away."""
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


def cache_folder() -> Path | None:
    """Where this user keeps what can be made again; ``None`` if that is turned off."""
    said = os.environ.get(CACHE, "").strip()
    if said.lower() in _OFF:
        return None
    home = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    return Path(said or f"{home}/hardsight").expanduser()
