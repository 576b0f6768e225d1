"""Divide data into folds, so that every example is scored by a model that never saw it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from hardsight._checks import warn
from hardsight.data.source import SharedExamples
from hardsight.errors import DataError, OptionError
from hardsight.run.loop._pass import generator

FOLD = "fold"  # the column of a table that says which model scored a row
OUT_OF_SAMPLE = "out-of-sample"
_ALONE = (
    "the only example of class {}: a model that did not see it does not know the class; label "
    "another example of it, or leave the class out"
)


@dataclass(frozen=True)
class Folds:
    """A division of data into folds, each with the same share of every class.

    Attributes:
        count: number of folds.
        number: fold of each example, from 1, ``[N]``; 0 for the only example of a class, which
            every model learns from and no model can score.
    """

    count: int
    number: NDArray[np.int64]

    def seen(self, fold: int) -> NDArray[np.int64]:
        """Return the positions that the model of a fold learns from, ascending."""
        return np.flatnonzero(self.number != fold)

    def unseen(self, fold: int) -> NDArray[np.int64]:
        """Return the positions that the model of a fold scores, ascending."""
        return np.flatnonzero(self.number == fold)

    @property
    def alone(self) -> NDArray[np.int64]:
        """Positions that no model scores."""
        return np.flatnonzero(self.number == 0)

    def unscored(
        self,
        labels: NDArray[np.int64],
        classes: Sequence[str],
        name_of: Callable[[int], tuple[int, str]],
        *,
        among: range | None = None,
    ) -> list[tuple[int, str, str]]:
        """Return number, name and reason of every example without a row.

        Args:
            labels: labels of all examples, ``[N]``.
            classes: class names; the position of a name is its label.
            name_of: returns number and name of the example at a position.
            among: positions to consider; all of them by default.
        """
        return [
            (*name_of(int(at)), _ALONE.format(classes[labels[at]]))
            for at in self.alone
            if among is None or at in among
        ]


def tell_of_copies(shared: SharedExamples | None) -> None:
    """Warn if examples of fold 1 are also in the folds that their model learns from."""
    said = shared and shared.warning("examples of fold 1", "other folds")
    if said:
        warn(
            f"{said}: their rows say out-of-sample, but their model learned from the copy; remove "
            "the copies first"
        )


def folds_of(
    labels: NDArray[np.int64], count: int, *, seed: int, classes: Sequence[str], spec: str
) -> Folds:
    """Divide examples into ``count`` folds with equal shares of every class.

    The examples are shuffled within their class and dealt out like cards, class after class. The
    sizes of two folds differ by at most one example, and so do their counts of any class.

    Args:
        labels: class indices, ``[N]``.
        count: number of folds.
        seed: seed of the shuffling.
        classes: class names; the position of a name is its label. For messages.
        spec: what the data is called.

    Raises:
        OptionError: fewer than two folds.
        DataError: fewer examples than folds, or every class has a single example.
    """
    check_fold_count(count)
    if len(labels) < count:
        raise DataError(
            f"expected at least one example per fold, got {len(labels)} examples of {spec} for "
            f"{count} folds; use fewer folds, or more data"
        )
    # from a CPU generator, so that the folds are the same on every machine
    order = torch.randperm(len(labels), generator=generator(seed, "folds")).numpy()
    by_class = order[np.argsort(labels[order], kind="stable")]
    number = np.empty(len(labels), dtype=np.int64)
    # The deal continues across classes: if it started again for each class, the first folds would
    # get the remainders of all of them.
    number[by_class] = np.arange(len(labels)) % count + 1
    sizes = np.bincount(labels)
    # a model that never saw the only example of a class does not know the class
    number[sizes[labels] == 1] = 0
    if not number.any():
        raise DataError(
            f"every class of {spec} has a single example, so no model can score an example that it "
            "did not see; are the labels identifiers?"
        )
    _tell_of_small(sizes, count, classes, spec)
    return Folds(count, number)


def check_fold_count(count: int) -> None:
    """Raise unless there are at least two folds.

    Raises:
        OptionError: there are fewer.
    """
    if count < 2:
        raise OptionError(
            f"expected at least 2 folds, got {count}: a model learns from all folds but the one "
            "it scores"
        )


def _tell_of_small(sizes: NDArray[np.int64], count: int, classes: Sequence[str], spec: str) -> None:
    """Warn of classes with a single example, or with fewer examples than folds."""
    alone, few = np.flatnonzero(sizes == 1), np.flatnonzero((sizes > 1) & (sizes < count))
    if len(alone):
        warn(
            f"{_some(alone, classes)} of {spec} {'has' if len(alone) == 1 else 'have'} a single "
            "example, which cannot be scored out of sample: every model learns from it, and it has "
            "no row; errors.parquet lists it"
        )
    if len(few):
        warn(
            f"{_some(few, classes)} of {spec} {'has' if len(few) == 1 else 'have'} fewer examples "
            f"than the {count} folds: the model that scores one of them has learned the class from "
            f"{int(sizes[few].min()) - 1} to {int(sizes[few].max()) - 1} others"
        )


def _some(labels: NDArray[np.int64], classes: Sequence[str]) -> str:
    """Return classes in words: the first few by name."""
    names = [str(classes[at]) if at < len(classes) else str(at) for at in labels[:3]]
    more = f" and {len(labels) - 3:,} more" if len(labels) > 3 else ""
    return f"class{'' if len(labels) == 1 else 'es'} {', '.join(names)}{more}"


def with_folds(rows: pa.Table, folds: NDArray[np.int64] | int) -> pa.Table:
    """Rows with the column ``fold``, which says which model scored them, behind the other keys."""
    values = np.full(rows.num_rows, folds) if isinstance(folds, int) else folds
    at = rows.column_names.index("finite") + 1
    return rows.add_column(at, FOLD, pa.array(values, pa.int64()))
