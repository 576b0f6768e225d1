"""Turn the decisions about a run into a patch of its data."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hardsight.errors import OptionError, PatchError, TableError
from hardsight.gallery import class_numbers
from hardsight.patch import CANNOT_TELL, COLUMNS, DROP, Patch
from hardsight.review import decisions, suspects_of
from hardsight.table import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from hardsight.table import ScoreTable


def patch_of(
    run: str | os.PathLike[str],
    *,
    reviewers: Sequence[str] | None = None,
    cannot_tell: str = "keep",
) -> Patch:
    """The decisions about a run, as a patch of the data that was scored.

    The patch uses the class numbers and names of the data, even if the model numbers classes
    differently. A class that only the model has gets a number after those of the data. All
    decisions are included; if people disagree, see :func:`hardsight.patch.resolved`.

    Args:
        run: folder of the run, or its table.
        reviewers: the names of the reviewers whose decisions to take; all by default.
        cannot_tell: ``"keep"`` leaves open what happens to examples whose class nobody could tell;
            with ``"drop"`` the patch removes them from the data.

    Raises:
        MissingDataError: there is no finished run there.
        PatchError: nothing was decided, or the table does not say what data it is about.
        OptionError: a reviewer decided nothing.
    """
    if cannot_tell not in ("keep", "drop"):
        raise OptionError(f"expected cannot_tell to be keep or drop, got {cannot_tell!r}")
    table = read_table(run)
    # a patch without a fingerprint could silently be applied to other data
    mark = (table.metadata.get("data") or {}).get("fingerprint")
    if not mark:
        raise PatchError(
            f"the table of {run} does not say which data it is about; score the data again"
        )
    made = decisions(run)
    if reviewers is not None:
        unknown = sorted(set(reviewers) - set(made["reviewer"]))
        if unknown:
            known = ", ".join(sorted(made["reviewer"].unique())) or "nobody"
            raise OptionError(f"{unknown[0]!r} decided nothing about {run}; these did: {known}")
        made = made[made["reviewer"].isin(list(reviewers))]
    if not len(made):
        step = shlex.join(["hardsight", "review", str(run)])
        raise PatchError(f"nothing was decided about {run}; decide with `{step}`")
    if cannot_tell == "drop":
        made = made.assign(verdict=made["verdict"].replace(CANNOT_TELL, DROP))
    return Patch(_rows(table, made, str(mark)), where=f"the decisions about {run}")


def _rows(table: ScoreTable, made: pd.DataFrame, mark: str) -> pd.DataFrame:
    numbers = DataClasses.of(table)
    rows = made.assign(data=mark, evidence=_evidence(table, made))
    for name in ("old", "new"):
        classes = made[name].tolist()
        rows[name] = [numbers.number_of(label) for label in classes]
        rows[f"{name}_name"] = [numbers.name_of(label) for label in classes]
    return rows[list(COLUMNS)]


def _evidence(table: ScoreTable, made: pd.DataFrame) -> list[str]:
    """What made each example suspect: the kind of evidence, and its value."""
    suspects = suspects_of(table)
    if suspects.by is None:
        return [suspects.evidence] * len(made)
    values = table.column(suspects.by)
    index = class_numbers(table, "index")
    order = np.argsort(index, kind="stable")
    # decisions name examples by their index in the data, not by row of the table
    rows = order[np.searchsorted(index, made["index"].to_numpy(), sorter=order)]
    return [f"{suspects.evidence}: {suspects.by} = {values[row]:.4g}" for row in rows.tolist()]


@dataclass(frozen=True)
class DataClasses:
    """Maps the class numbers of a table, which are those of the model, to those of the data.

    Attributes:
        names: names of the data's classes, position = label.
        outputs: the number of each of them in the table.
        table_names: names of the numbers in the table.
    """

    names: tuple[str, ...]
    outputs: tuple[int, ...]
    table_names: tuple[str, ...]

    @classmethod
    def of(cls, table: ScoreTable) -> DataClasses:
        """Read the mapping from the metadata of a table."""
        order = table.metadata.get("class_order") or {}
        every = tuple(table.classes)
        named = (table.metadata.get("data") or {}).get("named")
        # a table may know more classes than the data names
        names = tuple(order.get("data_classes") or (every[:named] if named else every))
        outputs = tuple(order.get("labels") or range(len(names)))
        if len(outputs) != len(names) or len(set(outputs)) != len(outputs):
            raise TableError("the table does not say which class of the data is which of its own")
        return cls(names, outputs, every)

    def number_of(self, label: int) -> int:
        """The data's number for a number of the table; -1 for none."""
        if label < 0:
            return -1
        if label in self.outputs:
            return self.outputs.index(label)
        # classes that only the model has come after those of the data
        below = sum(output < label for output in self.outputs)
        return len(self.names) + label - below

    def name_of(self, label: int) -> str:
        """The data's name for a number of the table; the model's if the data has none."""
        if label < 0:
            return ""
        if label in self.outputs:
            return self.names[self.outputs.index(label)]
        return self.table_names[label] if label < len(self.table_names) else str(label)
