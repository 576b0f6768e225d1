"""The folder of a run: kinds of runs, who may write to it, and whether it is finished.

Every verb that writes a folder does it in the same way::

    with RunFolder(out).claimed(TRAIN, reads=(data,), resume=resume, overwrite=overwrite) as run:
        run.describe(settings, fingerprints={"training data": mark}, may_change=("workers",))
        if not run.is_done:
            run.begin()
            ...                  # files, each by `replacing`
            run.finish()

``claimed`` holds the lock of the folder and refuses to destroy other files, ``describe`` refuses to
continue a run with other settings, ``begin`` removes what is replaced, and ``finish`` marks the run
as complete. A run that ends before ``begin`` leaves the folder as it was.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from hardsight.errors import OptionError, OutputError, RunExistsError, RunMismatchError
from hardsight.run_folder._files import (
    DISCARDED,
    FINISHED,
    MANIFEST,
    MEND,
    PARTIAL,
    UNFINISHED,
    Manifest,
    differences,
    fill_parquet,
    held,
    open_parquet,
    partial_for,
    place_of,
    plain,
    put_in_place,
    read_parquet,
    remove,
    replacing,
    sweep,
    write_parquet,
    writing,
)
from hardsight.run_folder._same import FirstOutputs, check_same_values
from hardsight.run_folder._stores import StorePath

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

TABLE, DYNAMICS = "table.parquet", "dynamics.parquet"
PSEUDO_LABELS = "pseudo_labels.parquet"  # of every round of an adaptation
ERRORS, THUMBNAILS, SHARDS = "errors.parquet", "thumbnails.parquet", "shards"
HEADS = "heads"  # a file for each fold of stored embeddings
MAPS = "maps.sqlite"  # Grad-CAM maps that were viewed in the review app
EMBEDDINGS = "embeddings"  # a folder of arrays, one for each shard of the table
CLASS_WEIGHTS = "class_weights.npy"  # in EMBEDDINGS: weights of the head, a row for each class
NEIGHBOURS = "neighbours.parquet"  # of every example, by these embeddings
NEAREST = "nearest.parquet"  # nearest classes of the examples whose label is in doubt
NEAREST_COUNT = 5  # classes that it names for each of them
NEAREST_CLASSES = 4096  # with more classes, finding the nearest would cost as much as scoring
HISTORIES = "dynamics"
TRACKED = "tracked"  # a folder of epochs for each set of examples that is never trained on
HELD_OUT = "held-out"  # name of that folder for the held-out examples of a training run
TABLE_METADATA = b"hardsight"  # metadata key under which our parquet files describe themselves
_MARK = b"hardsight.mark"  # in the metadata of a shard
LOCK = ".lock"
_ROOM = f"{MEND} or choose another --out, then continue with --resume"
ERROR_SCHEMA = pa.schema([("index", pa.int64()), ("id", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True)
class RunKind:
    """A kind of run, such as a training run.

    Attributes:
        name: its name in the manifest.
        what: its name in messages.
        command: the command that makes it.
        files: names and patterns of all files that it leaves in its folder, including its page.
        result: the file that every finished run has.
        mark: the file by which a run of an older version, without a manifest, is recognised.
        mark_keys: the keys at the top of such a file, if it is JSON.
        progress: patterns of files whose loss would cost work in an unfinished run.
        is_alone: whether it refuses a folder with other files.
        can_resume: whether the command has ``--resume``.
        in_stores: whether its folder may be the URL of an object store.
    """

    name: str
    what: str
    command: str
    files: tuple[str, ...]
    result: str
    mark: str
    mark_keys: tuple[str, ...] = ()
    progress: tuple[str, ...] = ()
    is_alone: bool = False
    can_resume: bool = True
    in_stores: bool = False

    def owned(self, folder: Path) -> Iterator[Path]:
        """The files that a run of this kind may have left in a folder."""
        for pattern in self.files:
            yield from sorted(folder.glob(pattern))

    def is_older_run(self, folder: Path) -> bool:
        """Whether the folder holds such a run of an older version, which wrote no manifest."""
        file = folder / self.mark
        if file.suffix == ".json":
            return _has_keys(file, self.mark_keys)
        if file.suffix == ".parquet":
            return _is_ours(file) or (folder / SHARDS).is_dir()
        return file.exists()


SCORE = RunKind(
    "score", "scored dataset", "hardsight score",
    (TABLE, ERRORS, THUMBNAILS, EMBEDDINGS, NEIGHBOURS, NEAREST, SHARDS, HEADS, MAPS,
     "report.html"),
    TABLE, TABLE, progress=(f"{SHARDS}/rows-*", f"{HEADS}/fold-*"), in_stores=True,
)  # fmt: skip
TRAIN = RunKind(
    "train", "training run", "hardsight train",
    ("recipe.json", "result.json", "metrics.csv", "model.json", "model.safetensors", "checkpoints",
     "tensorboard", TRACKED, "outputs", "measured", HISTORIES, DYNAMICS, THUMBNAILS, NEAREST,
     MAPS, "report.html"),
    "result.json", "recipe.json", ("config", "data_fingerprint"),
    is_alone=True, progress=("checkpoints/last.ckpt", "checkpoints/previous.ckpt"),
)  # fmt: skip
FOLDS = RunKind(
    "folds", "out-of-sample run", "hardsight train --folds",
    ("folds.json", "folds", TABLE, ERRORS, THUMBNAILS, MAPS, "report.html"),
    "folds.json", "folds.json", ("config", "folds"),
    is_alone=True,
    progress=("folds/*/model/checkpoints/last.ckpt", "folds/*/model/checkpoints/previous.ckpt",
              f"folds/*/scores/{SHARDS}/rows-*", f"folds/*/scores/{TABLE}"),
)  # fmt: skip
ADAPT = RunKind(
    "adapt", "adaptation", "hardsight adapt",
    ("adapt.json", "result.json", "start.safetensors", "source", "adapt.html"),
    "result.json", "adapt.json", ("config", "fingerprints"),
    is_alone=True, progress=("start.safetensors", "source", "*/round-*"),
)  # fmt: skip
EVALUATE = RunKind(
    "evaluate", "evaluation", "hardsight evaluate", ("card.json", "card.html"),
    "card.json", "card.json", ("data", "models", "definitions"), progress=("card.json",),
)  # fmt: skip
STUDY = RunKind(
    "study", "study", "hardsight study",
    ("study.json", "study.md", "human-histograms.svg", "human-scores.svg", "degradation-noise.svg",
     "degradation-contrast.svg", "dynamics.svg", "dynamics-groups-*.svg"),
    "study.json", "study.json", ("kind", "settings", "result"), progress=("study.json",),
)  # fmt: skip
EXPERIMENT = RunKind(
    "experiment", "result of an experiment", "hardsight experiment run",
    ("result.json", "README.md"),
    "result.json", "result.json", ("name", "setting", "claims"), progress=("result.json",),
    can_resume=False,
)  # fmt: skip
DEMO = RunKind(
    "demo", "demo", "hardsight demo",
    (".hardsight-demo", "model.safetensors", "train.npz", "heldout.npz", "train", "heldout"),
    "model.safetensors", ".hardsight-demo", is_alone=True, progress=("*.npz",), can_resume=False,
)  # fmt: skip

KINDS = {
    kind.name: kind for kind in (SCORE, TRAIN, FOLDS, ADAPT, EVALUATE, STUDY, EXPERIMENT, DEMO)
}


def fold_folder(run: Path, number: int) -> Path:
    """The folder with the model and the scores of a fold, counted from 1."""
    return run / "folds" / f"fold-{number}"


def older_kind(folder: Path) -> RunKind | None:
    """Return the kind of a run that an older version left in a folder, or ``None``."""
    return next((kind for kind in KINDS.values() if kind.is_older_run(folder)), None)


def _has_keys(file: Path, keys: tuple[str, ...]) -> bool:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and all(key in content for key in keys)


def _is_ours(file: Path) -> bool:
    try:
        with open_parquet(file) as opened:
            return TABLE_METADATA in (opened.schema_arrow.metadata or {})
    except (pa.ArrowInvalid, OSError):
        return False


class RunFolder:
    """The files of one run, while it is written and afterwards.

    Args:
        folder: the folder.

    Raises:
        OptionError: the name is empty, which would mean the working folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not os.fspath(folder):
            raise OptionError("expected the folder of a run (--out), got an empty name")
        self.folder = place_of(folder)
        self._shards = self.folder / SHARDS
        # the state of a run that is being written
        self._claimed_as: RunKind | None = None
        self._resumes = False
        self._new: Manifest | None = None
        self._has_begun = False

    # ------------------------------------------------------------------------------ reading

    def manifest(self) -> Manifest | None:
        """The manifest; ``None`` for a run of an older version, or if there is no run."""
        return Manifest.read(self.folder)

    @property
    def kind(self) -> RunKind | None:
        """The kind of run in this folder; ``None`` if there is none."""
        manifest = self.manifest()
        if manifest is not None:
            return KINDS.get(manifest.kind)
        return older_kind(self.folder)

    @property
    def finished(self) -> bool:
        """Whether there is a complete run in this folder."""
        manifest = self.manifest()
        if manifest is not None:
            return manifest.state == FINISHED
        kind = older_kind(self.folder)
        return kind is not None and (self.folder / kind.result).exists()

    @property
    def started(self) -> bool:
        """Whether there is an unfinished run in this folder whose loss would cost work."""
        manifest, kind = self.manifest(), self.kind
        if kind is None or self.finished or (manifest and manifest.state == DISCARDED):
            return False
        has_progress = any(True for pattern in kind.progress for _ in self.folder.glob(pattern))
        return manifest is None or has_progress

    def errors(self) -> pd.DataFrame:
        """Return the examples that could not be read, with the reasons."""
        file = self.folder / ERRORS
        rows = read_parquet(file) if file.exists() else ERROR_SCHEMA.empty_table()
        frame: pd.DataFrame = rows.to_pandas()
        return frame

    def thumbnails(self) -> dict[int, bytes]:
        """Return encoded small pictures by source position."""
        return self._small_views("image")

    def excerpts(self) -> dict[int, str]:
        """Return the first words of text examples, by source position."""
        return self._small_views("text")

    def _small_views(self, column: str) -> dict[int, Any]:
        file = self.folder / THUMBNAILS
        rows = read_parquet(file) if file.exists() else None
        # a file of pictures only, or of an older version, lacks the column
        if rows is None or column not in rows.column_names:
            return {}
        each = zip(rows["index"].to_pylist(), rows[column].to_pylist(), strict=True)
        return {index: view for index, view in each if view is not None}

    # ------------------------------------------------------------------------------ claiming

    @contextmanager
    def claimed(
        self,
        kind: RunKind,
        *,
        reads: Iterable[Any] = (),
        resume: bool = False,
        overwrite: bool = False,
    ) -> Iterator[RunFolder]:
        """Reserve the folder for one run; other processes cannot write to it meanwhile.

        Args:
            kind: the kind of run to write.
            reads: the data of the run, by name or as an object; the run must be outside of it.
            resume: whether to continue a run in this folder.
            overwrite: whether to replace a run in this folder.

        Raises:
            OptionError: both were given, or the folder is part of the data.
            RunLockedError: another process is writing to the folder.
            RunExistsError: something in the folder would be lost.
            OutputError: the folder cannot be created.
        """
        if resume and overwrite:
            raise OptionError(
                "resume continues a run and overwrite replaces it; leave one of them out"
            )
        if isinstance(self.folder, StorePath) and not kind.in_stores:
            raise OptionError(
                f"expected the folder of {_a(kind.what)} (--out) on a disk, got {self.folder}; "
                "write it to a disk, or mount the store as one"
            )
        if isinstance(self.folder, StorePath) and len(self.folder.parts) < 2:
            raise OptionError(
                f"expected the URL of a folder (--out), such as s3://bucket/run, got {self.folder}"
            )
        for data in reads:
            self._check_apart_from(data)
        with writing(self.folder, step=_ROOM):  # a store may be asked something here
            is_folder = self.folder.is_dir() or not self.folder.exists()
        if not is_folder:
            raise OutputError(f"{self.folder} is not a folder; choose another --out")
        with ExitStack() as stack:
            with writing(self.folder, step=_ROOM):
                stack.enter_context(self._made())
                stack.enter_context(held(self.folder / LOCK))
            self._check_free(kind, resume=resume, overwrite=overwrite)
            self._claimed_as, self._resumes, self._has_begun = kind, resume, False
            try:
                yield self
            finally:
                self._claimed_as = self._new = None

    def _check_apart_from(self, data: Any) -> None:
        """Raise if a run in this folder would be read as data, such as a class, from now on."""
        if not isinstance(data, str | os.PathLike):
            return
        read, here = place_of(data).resolve(), self.folder.resolve()
        in_store = isinstance(read, StorePath)  # of which all that lies below a name is read
        if not in_store and not read.is_dir():
            return
        if in_store and here != read and read not in here.parents:
            return
        if here != read and not in_store:
            listed = (file for ending in ("parquet", "tar") for file in read.glob(f"*.{ending}"))
            if read not in here.parents or any(listed):  # folders inside it are not read
                return
            if any(part.startswith(".") for part in here.relative_to(read).parts):
                return
        raise OptionError(
            f"{self.folder} is the folder {os.fspath(data)} or inside it, which is read as data; a "
            "run there would become part of the data, so choose another --out"
        )

    @contextmanager
    def _made(self) -> Iterator[None]:
        """Create the folder and those above it, and remove them again if they stay empty."""
        if isinstance(self.folder, StorePath):  # object stores have no empty folders
            self.folder.mkdir(parents=True, exist_ok=True)
            yield
            return
        missing = [self.folder, *self.folder.parents]
        missing = missing[: next(at for at, path in enumerate(missing) if path.exists())]
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            yield
        finally:
            for path in missing:
                with suppress(OSError):  # it is not empty
                    path.rmdir()

    def _check_free(self, kind: RunKind, *, resume: bool, overwrite: bool) -> None:
        here, what = self.kind, kind.what
        if here is None:
            self._check_other_files(kind)
            return
        if here is not kind:
            raise RunExistsError(
                f"{self.folder} holds {_a(here.what)}, not {_a(what)}; choose another --out"
            )
        if resume or overwrite:
            return
        replace = "replace it with --overwrite (overwrite=True)"
        if self.finished:
            go_on = "take it as it is with --resume (resume=True), " if kind.can_resume else ""
            raise RunExistsError(
                f"{self.folder} holds a finished {what}; choose another --out, {go_on}or {replace}"
            )
        if self.started:
            go_on = "continue it with --resume (resume=True), " if kind.can_resume else ""
            how_far = f" ({len(self.done())} shards)" if self._shards.is_dir() else ""
            raise RunExistsError(
                f"{self.folder} holds an unfinished {what}{how_far}; {go_on}"
                f"{replace}, or choose another --out"
            )

    def _check_other_files(self, kind: RunKind) -> None:
        """Raise if the folder has other files, which would be lost or mixed up with the run."""
        if kind.is_alone:
            others = [
                entry.name
                for entry in self.folder.iterdir()
                if entry.name != LOCK and not entry.name.startswith(PARTIAL)
            ]
        else:
            others = [entry.name for entry in kind.owned(self.folder)]
            others += [MANIFEST] if (self.folder / MANIFEST).exists() else []
        if others:
            self._refuse(others, kind)

    def _refuse(self, names: list[str], kind: RunKind) -> NoReturn:
        raise RunExistsError(
            f"{self.folder} holds files that are not {_a(kind.what)} ({_some(names)}); choose "
            "another --out"
        )

    # ------------------------------------------------------------------------------ describing

    @property
    def is_done(self) -> bool:
        """Whether the claimed run is resumed and already finished."""
        return self._resumes and self.finished

    @property
    def goes_on(self) -> bool:
        """Whether the claimed run continues an unfinished one."""
        manifest = self.manifest()
        return self._resumes and manifest is not None and manifest.state == UNFINISHED

    def describe(
        self,
        settings: Mapping[str, Any],
        *,
        fingerprints: Mapping[str, str | None],
        versions: Mapping[str, str],
        may_change: Collection[str] = (),
        may_change_when_finished: Collection[str] = (),
        defaults: Mapping[str, Any] | None = None,
        files: Iterable[str] = (),
    ) -> None:
        """Record what the run is made from; a run that is continued must be made from the same.

        Args:
            settings: all settings, resolved.
            fingerprints: fingerprints of data, weights and so on, by their name in words.
            versions: versions of packages.
            may_change: settings that do not affect the result.
            may_change_when_finished: settings that do not affect a finished result.
            defaults: defaults of settings that older versions did not record.
            files: names of other files that this run leaves in its folder.

        Raises:
            RunMismatchError: the run in the folder is made from something else; the message names
                every difference.
        """
        kind = self._claimed_as
        assert kind is not None, "only a run that has claimed its folder can describe itself"
        named = tuple(dict.fromkeys((*kind.files, *files)))
        self._new = Manifest(
            kind.name, UNFINISHED, plain(settings), dict(fingerprints), dict(versions), named
        )
        if not self._resumes or self.kind is None:
            return
        old = self.manifest()
        if old is None:
            raise RunMismatchError(
                f"the {kind.what} in {self.folder} is of an older version, which did not record "
                "all of its settings, so it cannot be continued; choose another --out, or replace "
                "it with --overwrite (overwrite=True)"
            )
        free = {*may_change, *(may_change_when_finished if old.state == FINISHED else ())}
        differing = differences(old, self._new, may_change=free, defaults=defaults)
        if differing and old.state != DISCARDED:
            raise RunMismatchError(
                f"the {kind.what} in {self.folder} cannot be continued: it has "
                f"{'; '.join(differing)}; use the same settings and data, choose another --out, or "
                "replace it with --overwrite (overwrite=True)"
            )
        if old.state == FINISHED:
            remove(self._shards)  # left by a run that was killed just after it had finished

    def check_outputs(self, first: FirstOutputs | None) -> bool:
        """Compare the model's outputs for the first examples with those of the run it continues.

        Args:
            first: its outputs now; ``None`` if they cannot be compared.

        Returns:
            whether they could be compared, which is not possible with other weights.

        Raises:
            RunMismatchError: the weights are the same but the outputs differ, so the code changed.
        """
        kind, new = self._claimed_as, self._new
        assert kind is not None, "only a run that has claimed its folder can be held to anything"
        assert new is not None, "a run describes itself before it is held to anything"
        old = self.manifest() if self._resumes else None
        known = None if old is None or old.state == DISCARDED else old.first_outputs
        if known is None:
            now = None if first is None else dataclasses.asdict(first)
            self._new = dataclasses.replace(new, first_outputs=now)
            return True
        self._new = dataclasses.replace(new, first_outputs=known)
        before = FirstOutputs(**known)
        if first is None or first.weights != before.weights:
            return False
        check_same_values(
            kind.what, self.folder, "logit", now=first.logits, before=before.logits,
            example=before.example, smallest=max(map(abs, before.logits), default=0) or 1e-6,
        )  # fmt: skip
        return True

    def begin(self) -> None:
        """Remove a run that is replaced, and write the manifest."""
        new = self._new
        assert new is not None, "a run describes itself before it begins"
        if self._has_begun:
            return
        self._check_names(new)
        with writing(self.folder, step=_ROOM):
            sweep(self.folder)
            sweep(self._shards)
            sweep(self.folder / EMBEDDINGS)
            if not self.goes_on:
                self._discard()
            new.write(self.folder)
        self._has_begun = True

    def _check_names(self, new: Manifest) -> None:
        """Raise if a file that is not ours has a name that this run would use."""
        here, old = self.kind, self.manifest()
        ours = {path for pattern in (old.files if old else ()) for path in self._named(pattern)}
        ours |= {*here.owned(self.folder)} if here else set()
        others = {path for pattern in new.files for path in self._named(pattern)} - ours
        if others:
            self._refuse(sorted(path.name for path in others), KINDS[new.kind])

    def _named(self, pattern: str) -> Iterator[Path]:
        """Files of the folder by name or pattern; a forged manifest cannot reach outside of it."""
        if pattern not in (".", "..") and not set(pattern) & set("/\\"):
            yield from self.folder.glob(pattern)

    def _discard(self) -> None:
        """Remove the run in this folder.

        It is marked as discarded first: if the process is killed in between, the next run knows
        that what is left is worthless.
        """
        old, kind = self.manifest(), self.kind
        if kind is None:
            return
        named = old.files if old is not None else kind.files
        Manifest(kind.name, DISCARDED, files=named).write(self.folder)
        for pattern in {*named, *kind.files}:
            for path in self._named(pattern):
                remove(path)

    def finish(self) -> None:
        """Mark the run as finished, and remove what only an unfinished run needs."""
        new = self._new
        assert new is not None, "a run describes itself before it finishes"
        with writing(self.folder, step=_ROOM):
            there = sorted({path.name for name in new.files for path in self._named(name)})
            kept = tuple(name for name in there if name != SHARDS)
            dataclasses.replace(new, state=FINISHED, files=kept).write(self.folder)
            remove(self._shards)

    def adopt(self, manifest: Manifest) -> None:
        """Give a run of an older version the manifest that it would have today."""
        if self.manifest() is None:
            manifest.write(self.folder)

    # ------------------------------------------------------------------------------ tables

    def done(self) -> set[int]:
        """Return the numbers of the complete shards."""
        return {
            int(file.stem.removeprefix("rows-")) for file in self._shards.glob("rows-*.parquet")
        }

    def has_shard(self, number: int) -> bool:
        """Whether a shard is complete, without listing all shards of an object store."""
        return (self._shards / f"rows-{number:08d}.parquet").exists()

    def write_shard(
        self,
        number: int,
        rows: pa.Table,
        errors: pa.Table,
        *,
        mark: str | None = None,
        embeddings: NDArray[Any] | None = None,
    ) -> None:
        """Write one shard; the file with its rows comes last and marks the shard as complete.

        Args:
            number: the number of the shard.
            rows: the rows of its examples.
            errors: examples that could not be read.
            mark: a mark of all data up to the end of the shard, if the fingerprint is not enough.
            embeddings: the embeddings of its rows, ``[n, D]``, if they are kept.
        """
        if mark is not None:
            rows = rows.replace_schema_metadata({_MARK: mark})
        with writing(self.folder, step=_ROOM):
            self._shards.mkdir(exist_ok=True)
            write_parquet(self._shards / f"errors-{number:08d}.parquet", [errors], errors.schema)
            if embeddings is not None:
                self._keep_array(f"{number:08d}.npy", embeddings)
            write_parquet(self._shards / f"rows-{number:08d}.parquet", [rows], rows.schema)

    def shards(self, kind: str = "rows") -> Iterator[pa.Table]:
        """Yield the written shards in source order, with one in memory at a time."""
        for file in sorted(self._shards.glob(f"{kind}-*.parquet")):
            yield read_parquet(file).replace_schema_metadata(None)

    def shard_mark(self, number: int) -> str | None:
        """Return the mark that a shard was written with, or ``None``."""
        with open_parquet(self._shards / f"rows-{number:08d}.parquet") as opened:
            mark = (opened.schema_arrow.metadata or {}).get(_MARK)
        return None if mark is None else mark.decode()

    def keep_class_weights(self, weights: NDArray[Any]) -> None:
        """Write the weights of the head, ``[C, D]``, next to the embeddings it is applied to."""
        with writing(self.folder, step=_ROOM):
            self._keep_array(CLASS_WEIGHTS, weights)

    def _keep_array(self, name: str, values: NDArray[Any]) -> None:
        (self.folder / EMBEDDINGS).mkdir(exist_ok=True)
        with replacing(self.folder / EMBEDDINGS / name) as partial, partial.open("wb") as sink:
            np.save(sink, values, allow_pickle=False)

    def embeddings(self) -> list[NDArray[Any]]:
        """The embeddings of every shard, in the order of the table, mapped from their files."""
        files = sorted((self.folder / EMBEDDINGS).glob("[0-9]*.npy"))
        return [np.load(file, mmap_mode="r", allow_pickle=False) for file in files]

    def write_side_file(self, name: str, rows: pa.Table) -> None:
        """Write a whole parquet file next to the table."""
        with writing(self.folder, step=_ROOM):
            write_parquet(self.folder / name, [rows], rows.schema)

    def write_side_parts(
        self, name: str, parts: Iterable[pa.Table], schema: pa.Schema, *, rows_at_once: int
    ) -> None:
        """Write a parquet file beside the table, part by part, in groups of ``rows_at_once``."""
        with writing(self.folder, step=_ROOM):
            write_parquet(self.folder / name, parts, schema, rows_at_once=rows_at_once)

    @contextmanager
    def new_table(self, parts: Iterable[pa.Table], schema: pa.Schema) -> Iterator[ScoreTable]:
        """Write the table and the unreadable examples of all shards, part by part.

        Inside the ``with`` block the table can be read, but does not have its final name yet. Files
        made from the table are then in place before the table itself appears.
        """
        from hardsight.table import read_table

        file = self.folder / TABLE
        with partial_for(file) as partial:
            with writing(self.folder, step=_ROOM):
                write_parquet(self.folder / ERRORS, self.shards("errors"), ERROR_SCHEMA)
                fill_parquet(partial, parts, schema)
            yield read_table(partial)
            with writing(self.folder, step=_ROOM):
                put_in_place(partial, file)

    def replace_table(self, table: ScoreTable) -> ScoreTable:
        """Replace the finished table by another, such as one with more columns."""
        from hardsight.table import read_table

        self.write_side_file(TABLE, table.to_arrow())
        return read_table(self.folder)


def _a(what: str) -> str:
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more
