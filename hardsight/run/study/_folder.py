"""Write the folder of a study, and read a finished study back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hardsight.run.study._tables import (
    FORMAT,
    STUDY,
    StudyTable,
    plain,
    study_versions,
    titles_of,
)
from hardsight.run_folder import STUDY as KIND
from hardsight.run_folder import RunFolder, write_text, writing

# settings that do not decide the result, so a finished study is returned even if they changed;
# files are compared by their content, not by their names
MAY_CHANGE = (
    "table", "human", "pictures", "runs", "data", "data_root", "weights", "workers",
    "show_progress", "versions",
)  # fmt: skip


@contextmanager
def claimed_study(
    out: str | os.PathLike[str] | None,
    *,
    resume: bool,
    overwrite: bool,
    reads: tuple[Any, ...] = (),
) -> Iterator[RunFolder | None]:
    """The folder of a study, locked while it is made; ``None`` for a study in memory."""
    if out is None:
        yield None
        return
    with RunFolder(out).claimed(KIND, reads=reads, resume=resume, overwrite=overwrite) as run:
        yield run


def describe_study(
    run: RunFolder, kind: str, settings: Mapping[str, Any], fingerprints: Mapping[str, str | None]
) -> None:
    """Write down what a study is made of, or compare it with the study that is there.

    Raises:
        RunMismatchError: the study in the folder has other settings or inputs.
    """
    run.describe(
        {"study": kind, **settings},
        fingerprints=fingerprints,
        versions=study_versions(),
        may_change=MAY_CHANGE,
    )


def write_study(
    run: RunFolder,
    kind: str,
    study: Any,
    tables: Sequence[StudyTable],
    *,
    names: Iterable[str],
    settings: Mapping[str, Any],
    figures: Mapping[str, Any] | None = None,
) -> None:
    """Write ``study.json``: the result, its inputs and versions.

    Args:
        run: of the study.
        kind: of study.
        study: the result.
        tables: the result as tables.
        names: of scores and measures that need a heading.
        settings: of the study.
        figures: further numbers that figures are drawn from.

    Raises:
        OutputError: it cannot be written.
    """
    content = {
        "format": FORMAT,
        "kind": kind,
        "settings": plain(settings),
        "versions": study_versions(),
        "titles": titles_of(list(names)),
        "tables": plain(list(tables)),
        "figures": plain(figures or {}),
        "result": plain(study),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    run.begin()
    with writing(run.folder, step="choose another --out"):
        write_text(run.folder / STUDY, text)
    run.finish()


def read_study(run: RunFolder, kind: Any) -> Any:
    """Read the result of a finished study as ``kind``: a dataclass, or a list of a dataclass."""
    content = json.loads((run.folder / STUDY).read_bytes())
    return _typed(content["result"], kind)


def _typed(value: Any, kind: Any) -> Any:
    """Convert a JSON value to the type that was written; null stands for a non-finite number."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _typed(value, next(hint for hint in inner if hint is not type(None)))
    if origin is tuple:
        return tuple(_typed(item, inner[0]) for item in value)
    if origin is list:
        return [_typed(item, inner[0]) for item in value]
    if origin is dict:
        return {key: _typed(item, inner[1]) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return typing.cast(Any, kind)(
            **{key: _typed(item, hints[key]) for key, item in value.items()}
        )
    if kind is float:
        return math.nan if value is None else float(value)
    return value


def arrays_digest(arrays: Iterable[Any]) -> str:
    """SHA-256 over the values, shapes and types of arrays."""
    digest = hashlib.sha256()
    for values in arrays:
        plain = np.ascontiguousarray(values)
        digest.update(f"{plain.dtype} {plain.shape}".encode())
        digest.update(plain.tobytes())
    return digest.hexdigest()
