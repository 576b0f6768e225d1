"""Apply a patch: write a corrected copy of the data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight._checks import checked_options, versions_of
from hardsight.data import EmbeddingSource, ExampleSource, open_source
from hardsight.data.source import FixedLabels, LabelPlace, fixed_labels
from hardsight.errors import DataError, OptionError
from hardsight.exchange.copies import (
    RECORD,
    Links,
    staged,
    write_arrays,
    write_folder,
    write_idx,
    write_lines,
    write_list,
    write_parquet_copy,
)
from hardsight.patch import Patch, read_patch
from hardsight.run_folder import MEND, write_json, writing

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = f"{MEND} or choose another --out; nothing is left of the copy"
_ON_THE_FLY = (
    "apply the patch while the data is read: hs.data.open_source(data, patch=...), "
    "`hardsight score --patch`, or data.patch in a recipe"
)


@dataclass(frozen=True)
class Applied:
    """What was written.

    Attributes:
        out: the copy.
        examples: number of examples in the copy.
        changed: number of them with another label.
        dropped: number of examples that were left out.
        unsure: number of examples whose class nobody could tell.
        notes: other facts about the copy.
    """

    out: Path
    examples: int
    changed: int
    dropped: int
    unsure: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.examples:,} examples, {self.changed:,} with another label"
        if self.dropped:
            said += f", {self.dropped:,} left out"
        if self.unsure:
            said += f"; nobody could tell the class of {self.unsure:,}"
        return said


@checked_options
def apply_patch(
    patch: Patch | str | os.PathLike[str] | Sequence[Any],
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    split: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    class_weights: str | os.PathLike[str] | None = None,
    bias: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    image_column: str | None = None,
    cannot_tell: str = "keep",
    copy: bool = False,
    overwrite: bool = False,
) -> Applied:
    """Write a corrected copy of data; the data itself is never touched.

    The copy has the form of the data, and is read in the same way: a folder of class folders, a CSV
    list of pictures or texts, a JSONL or parquet file, idx files, or arrays. If ``labels`` are in a
    file of their own, only that file is copied. The copy is written completely or not at all.

    Args:
        patch: decisions about the data, as a file or from :func:`hardsight.read_patch`. Several
            patches are applied in order, each to the result of the one before.
        data: the data that was scored.
        out: the copy: a folder if the data is a folder or idx files, otherwise a file with the
            same extension.
        split: the same as when the data was scored.
        labels: the same as when the data was scored.
        class_weights: the same as when the data was scored.
        bias: the same as when the data was scored.
        classes: the same as when the data was scored.
        text_column: the same as when the data was scored.
        label_column: the same as when the data was scored.
        image_column: the same as when the data was scored.
        cannot_tell: ``keep`` examples whose class nobody could tell, with their old label, or
            ``drop`` them.
        copy: whether to copy pictures instead of hard-linking them.
        overwrite: whether to replace the copy at ``out``.

    Returns:
        what was written.

    Raises:
        PatchError: the patch is about other data, or people disagree in it.
        DataError: the data is not in files that can be copied.
        RunExistsError: ``out`` already exists.
        OptionError: ``out`` is the data itself, or does not fit its form.
        OutputError: the copy could not be written.
    """
    source = open_source(
        data, split=split, labels=labels, class_weights=class_weights, bias=bias, classes=classes,
        text_column=text_column, label_column=label_column, image_column=image_column,
    )  # fmt: skip
    named = [patch] if isinstance(patch, str | os.PathLike | Patch) else list(patch)
    patches = [patch if isinstance(patch, Patch) else read_patch(patch) for patch in named]
    if not patches:
        raise OptionError("expected at least one patch to apply, got none")
    place = source.label_place
    if place is None:
        raise DataError(f"{source.spec} is not in files that can be copied; {_ON_THE_FLY}")
    fixed = _fixed(source, patches, cannot_tell)
    place_to = Path(out)
    _check_fits(place, place_to, source.spec)
    links = Links(copies_only=copy)
    with writing(place_to, step=_STEP), staged(place_to, overwrite) as target:
        notes = _write(source, fixed, target, place_to, links)
        done = Applied(
            place_to, int(fixed.kept.sum()), len(fixed.changed), int((~fixed.kept).sum()),
            len(fixed.unsure), tuple(notes),
        )  # fmt: skip
        if target.is_dir():
            write_json(target / RECORD, _record(done, source.spec, split, patches, fixed))
    return done


def _fixed(
    source: ExampleSource | EmbeddingSource, patches: Sequence[Patch], cannot_tell: str
) -> FixedLabels:
    """The labels after all patches, over all examples of the data."""
    current = source
    rows: NDArray[np.int64] = np.arange(len(source))
    *first, last = patches
    # earlier patches are applied while the data is read, where its classes are fixed; only the last
    # one decides what is written, and may add classes
    for patch in first:
        current = _laid_over(current, patch, cannot_tell)
    if isinstance(current, ExampleSource) and current.numbers is not None:
        rows = current.numbers
    fixed = fixed_labels(current, last, cannot_tell=cannot_tell, may_add=True)
    labels, kept = source.labels.copy(), np.zeros(len(source), np.bool_)
    # ``fixed`` only has the rows that earlier patches left in; go back to positions of the data
    labels[rows] = fixed.labels
    kept[rows] = fixed.kept
    changed = np.flatnonzero((labels != source.labels) & kept)
    return replace(fixed, labels=labels, kept=kept, changed=changed)


def _laid_over(
    source: ExampleSource | EmbeddingSource, patch: Patch, cannot_tell: str
) -> ExampleSource | EmbeddingSource:
    from hardsight.data.source import patched

    if isinstance(source, ExampleSource):
        return patched(source, patch, cannot_tell=cannot_tell)
    fixed = fixed_labels(source, patch, cannot_tell=cannot_tell)
    if not fixed.kept.all():
        raise DataError("only the last of several patches can leave out rows of stored embeddings")
    return source.relabelled(fixed.labels)


def _write(source: Any, fixed: FixedLabels, target: Path, out: Path, links: Links) -> list[str]:
    form = source.label_place.form
    if form == "folder":
        return write_folder(source, fixed, target, links)
    if form == "list":
        return write_list(source, fixed, target, out)
    if form == "lines":
        return write_lines(source, fixed, target)
    if form == "parquet":
        return write_parquet_copy(source, fixed, target, out, links)
    if form == "idx":
        return write_idx(source, fixed, target, links)
    return write_arrays(source, fixed, target)


def _check_fits(place: LabelPlace, out: Path, spec: str) -> None:
    """Raise if a copy at ``out`` would become part of the data, replace it, or be unreadable."""
    # parquet files of a folder keep their places below it
    into_folder = place.form in ("folder", "idx") or (
        place.form == "parquet" and place.root.is_dir()
    )
    suffix = "" if into_folder else "".join(place.files[0].suffixes[-1:]).lower()
    if not into_folder and out.suffix.lower() != suffix:
        raise OptionError(
            f"expected a copy of {place.files[0].name} to end with {suffix}, got --out {out}"
        )
    here = out.resolve()
    for read in {place.root, *place.files, *place.beside}:
        there = read.resolve()
        # samefile also finds a hard link or another spelling of the same path
        if here == there or (out.exists() and out.samefile(read)):
            raise OptionError(
                f"{out} is the data itself, which is never touched; name another --out"
            )
        # a parquet file may be written next to others: only files that are named are read
        if read.is_dir() and there in here.parents and place.form != "parquet":
            raise OptionError(
                f"{out} is inside {spec} and would become part of the data; choose another --out"
            )
        # with --overwrite, the data would be removed together with the old folder
        if into_folder and here in there.parents:
            raise OptionError(
                f"{out} contains {spec}, which is never touched; choose another --out"
            )


def _record(
    done: Applied, spec: str, split: str | None, patches: Sequence[Patch], fixed: FixedLabels
) -> dict[str, Any]:
    """The record that is stored with a copy: the data and the patches it was made from."""
    about = {key: value for key, value in asdict(done).items() if key != "out"}
    return {
        "format": 1,
        "data": spec,
        "split": split,
        "patches": [{"digest": patch.digest, "decisions": len(patch)} for patch in patches],
        "cannot_tell": fixed.facts["cannot_tell"],
        "fingerprint": fixed.facts["of"],
        **about,
        "versions": versions_of("hardsight"),
    }
