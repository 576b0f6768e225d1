"""Apply the decisions of a patch to the labels of a source while it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hardsight.data.source._source import ExampleSource
from hardsight.data.source._view import SourceView
from hardsight.errors import DataError, OptionError, PatchError
from hardsight.patch import Changes, Patch

CANNOT_TELL = ("keep", "drop")  # what to do with examples whose class nobody can tell


class Labelled(Protocol):
    """The part of the interface that examples and stored embeddings share."""

    spec: str
    classes: tuple[str, ...]
    numbers: NDArray[np.int64] | None

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class indices, ``[N]``."""

    def __len__(self) -> int: ...
    def id_of(self, index: int) -> str:
        """Name of the example."""

    def fingerprint(self) -> str:
        """SHA-256 that changes when the data does."""


@dataclass(frozen=True)
class FixedLabels:
    """The labels of a source after a patch.

    Attributes:
        labels: the labels, ``[N]``.
        kept: whether each example is kept, ``[N]``.
        changed: positions of kept examples with a changed label.
        unsure: positions of examples whose class nobody could tell, whether kept or dropped.
        classes: names, position = label; new ones come last.
        facts: what was done, with which patch, to which data, for the record.
    """

    labels: NDArray[np.int64]
    kept: NDArray[np.bool_]
    changed: NDArray[np.int64]
    unsure: NDArray[np.int64]
    classes: tuple[str, ...]
    facts: dict[str, Any]


def fixed_labels(
    source: Labelled, patch: Patch, *, cannot_tell: str = "keep", may_add: bool = False
) -> FixedLabels:
    """The labels of a source after a patch; refuses a patch of other data.

    Args:
        source: that was scored and reviewed.
        patch: decisions about it.
        cannot_tell: ``"keep"`` the label, or ``"drop"`` the example, if nobody can tell.
        may_add: allow classes that the source does not have.

    Raises:
        PatchError: the patch is about other data, disagrees with it or with itself.
        OptionError: an unknown way to treat what cannot be told.
    """
    if cannot_tell not in CANNOT_TELL:
        raise OptionError(
            f"expected cannot_tell to be one of {', '.join(CANNOT_TELL)}, got {cannot_tell!r}"
        )
    mark = source.fingerprint()
    # an empty patch fits any data
    if len(patch) and patch.data != mark:
        raise PatchError(
            f"{patch.where} is about other data than {source.spec}: fingerprint "
            f"{patch.data[:12]} when it was scored, {mark[:12]} now, so that pictures, labels or "
            "classes have changed; name the data as it was scored (--split, --classes and the "
            "like), or score and review it again"
        )
    changes = patch.changes()
    positions = _positions(source, changes, patch.where)
    classes, new = _classes(source, changes, patch.where, may_add=may_add)
    labels, kept = source.labels.copy(), np.ones(len(source), np.bool_)
    labels[positions] = new
    # nobody could tell: kept, unless asked otherwise
    gone = changes.is_dropped | (changes.is_unsure if cannot_tell == "drop" else False)
    kept[positions[gone]] = False
    if not kept.any():
        raise PatchError(f"{patch.where} leaves no example of {source.spec}; nothing was done")
    changed = np.flatnonzero((labels != source.labels) & kept)
    unsure = np.sort(positions[changes.is_unsure])
    facts = {
        "digest": patch.digest,
        "decisions": len(patch),
        "changed": len(changed),
        "dropped": int((~kept).sum()),
        "cannot_tell": cannot_tell,
        "of": mark,
    }
    return FixedLabels(labels, kept, changed, unsure, classes, facts)


def patched(source: ExampleSource, patch: Patch, *, cannot_tell: str = "keep") -> ExampleSource:
    """The same examples with the labels that a patch gives them.

    An example keeps its number if others are left out.

    Raises:
        DataError: the source is a stream, whose examples have no positions.
        PatchError: as :func:`fixed_labels`.
    """
    if source.is_stream:
        raise DataError(f"{source.spec} is a stream, which cannot be patched; store it first")
    fixed = fixed_labels(source, patch, cannot_tell=cannot_tell)
    if fixed.kept.all():
        view = source.relabelled(fixed.labels)
    else:
        # a view of the rows that stay; their numbers remain those of the data
        rows = np.flatnonzero(fixed.kept)
        view = SourceView([source], rows=rows, labels=fixed.labels[rows])
    view.patches = (*source.patches, fixed.facts)
    return view


def _positions(source: Labelled, changes: Changes, where: str) -> NDArray[np.int64]:
    numbers, index = source.numbers, changes.index
    if numbers is None:
        positions, known = index, index < len(source)
    else:
        # the last row stands in for numbers behind it, which then differ
        positions = np.minimum(np.searchsorted(numbers, index), len(numbers) - 1)
        known = numbers[positions] == index
    if not known.all():
        raise PatchError(f"{source.spec} has no example {index[~known][0]}, which is in {where}")
    for at, position in enumerate(positions.tolist()):
        _check_same(source, changes, at, position, where)
    return positions


def _check_same(source: Labelled, changes: Changes, at: int, position: int, where: str) -> None:
    """Raise if a row that somebody edited is about another example, or another label."""
    own, label = source.id_of(position), int(source.labels[position])
    if own != changes.id[at]:
        raise PatchError(
            f"example {changes.index[at]} of {source.spec} is {own!r}, but {changes.id[at]!r} in "
            f"{where}; correct the row, or export the patch again"
        )
    if label != changes.old[at]:
        raise PatchError(
            f"example {own!r} of {source.spec} has class {label}, but {changes.old[at]} as its old "
            f"one in {where}; correct the row, or export the patch again"
        )


def _classes(
    source: Labelled, changes: Changes, where: str, *, may_add: bool
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Names of all classes, and the new label of every example of the patch."""
    known = source.classes
    if not known:  # classes are numbers, of which any may be used
        return known, changes.new
    used = _named(changes, where)
    for number, name in used.items():
        if number < len(known) and name and name != known[number]:
            raise PatchError(
                f"class {number} is {known[number]!r} in {source.spec}, but {name!r} in {where}; "
                "numbers decide: correct the number or the name"
            )
    # numbers behind the known classes ask for new ones
    added = sorted(number for number in used if number >= len(known))
    if not added:
        return known, changes.new
    names = [used[number] or str(number) for number in added]
    if not may_add:
        raise PatchError(
            f"{where} has classes that {source.spec} does not have ({_some(names)}); write a copy "
            "of the data with `hardsight patch apply`, or name all classes: classes=[...] "
            "(--classes)"
        )
    taken = sorted(set(names) & set(known)) or sorted({n for n in names if names.count(n) > 1})
    if taken:
        raise PatchError(f"the new class {taken[0]!r} in {where} has the name of another class")
    return _widened(known, changes.new, dict(zip(added, names, strict=True)))


def _widened(
    known: tuple[str, ...], new: NDArray[np.int64], added: dict[int, str]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """New classes behind the known ones; numbers without names stay what they are."""
    # classes without names: a number is its own name, so gaps are filled
    if list(known) == [str(number) for number in range(len(known))]:
        most = max(added)
        return tuple(added.get(n) or str(n) for n in range(most + 1)), new
    place = {number: len(known) + at for at, number in enumerate(added)}
    labels = np.array([place.get(int(number), int(number)) for number in new], np.int64)
    return (*known, *added.values()), labels


def _named(changes: Changes, where: str) -> dict[int, str]:
    """Names of the classes that examples are given."""
    given = changes.new_name
    names: dict[int, str] = {}
    for number, name, unsure in zip(
        changes.new.tolist(), given, changes.is_unsure | changes.is_dropped, strict=True
    ):
        if unsure or number < 0:
            continue
        if names.setdefault(number, name) != name:
            raise PatchError(
                f"class {number} has two names in {where}, {names[number]!r} and {name!r}; correct "
                "one of them"
            )
    return names


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
