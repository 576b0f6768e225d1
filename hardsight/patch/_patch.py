"""A patch: decisions about labels, each with who made it, when and why.

A row is the decision of one person about one example, so two people who looked at the same example
have two rows. Merging patches is a union of rows. A conflict is two rows about one example that say
different things; it is only resolved when the user says how.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import PatchError
from hardsight.run_folder import values_digest

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

KEEP = "keep"  # not unpacked from VERDICTS: the documentation finds only plain assignments
RELABEL = "relabel"
CANNOT_TELL = "cannot tell"
DROP = "drop"
VERDICTS = (KEEP, RELABEL, CANNOT_TELL, DROP)
COLUMNS = (
    "index", "id", "old", "old_name", "new", "new_name", "verdict", "reviewer", "time", "reason",
    "evidence", "data",
)  # fmt: skip
NUMBERS = ("index", "old", "new")
_NEEDED = ("index", "id", "old", "new", "verdict", "data")
_ORDER = ["index", "reviewer", "time", "verdict", "new", "reason", "evidence"]


@dataclass(frozen=True)
class Changes:
    """What a patch does to each of its examples, in the order of their index.

    Attributes:
        index: positions of the examples in their data.
        id: their ids.
        old: class before; -1 for none.
        new: class afterwards; the same as before if nobody can tell.
        new_name: name of the new class.
        is_unsure: whether reviewers could not tell the class.
        is_dropped: whether the example is removed from the data.
    """

    index: NDArray[np.int64]
    id: list[str]
    old: NDArray[np.int64]
    new: NDArray[np.int64]
    new_name: list[str]
    is_unsure: NDArray[np.bool_]
    is_dropped: NDArray[np.bool_]


class Patch:
    """Decisions about the labels of one dataset; read one with :func:`hardsight.read_patch`.

    Args:
        rows: a frame with the columns ``index`` (of the example in its data), ``id``, ``old`` and
            ``new`` (classes by their number in the data; -1 for none), ``old_name`` and
            ``new_name``, ``verdict`` (``"keep"``, ``"relabel"``, ``"cannot tell"`` or ``"drop"``),
            ``reviewer``, ``time`` (UTC), ``reason`` (why it was suspect), ``evidence`` (what that
            rests on) and ``data`` (fingerprint of the data). Names, reviewer, time, reason and
            evidence may be missing.
        where: what error messages call the patch.

    Raises:
        PatchError: a row is not a valid decision, or rows are about different data.
    """

    def __init__(self, rows: pd.DataFrame, *, where: str = "the patch") -> None:
        self.where = where
        self._rows = _checked(rows, where)

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Patch) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Patch({len(self)} decisions of {', '.join(self.reviewers) or 'nobody'})"

    @property
    def data(self) -> str:
        """Fingerprint of the data that the decisions are about; empty without decisions."""
        return str(self._rows["data"].iloc[0]) if len(self) else ""

    @property
    def reviewers(self) -> list[str]:
        """The names of everybody who decided something."""
        return sorted(self._rows["reviewer"].unique())

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all decisions, equal for patches with the same decisions."""
        columns = [self._rows[name].astype(str).tolist() for name in COLUMNS]
        return values_digest(columns)

    def to_pandas(self) -> pd.DataFrame:
        """A row per decision, in the order of examples, then reviewers."""
        return self._rows.copy()

    def where_kept(self, keep: NDArray[np.bool_]) -> Patch:
        """The decisions for which ``keep`` is true."""
        return self.with_rows(self._rows[keep])

    def with_rows(self, rows: pd.DataFrame) -> Patch:
        """A patch with some of these rows, which are not checked again."""
        other = copy.copy(self)
        # the cached digest is that of all rows
        other.__dict__.pop("digest", None)
        other._rows = rows.reset_index(drop=True)
        return other

    def changes(self) -> Changes:
        """What happens to each example.

        Raises:
            PatchError: people disagree about some examples.
        """
        from hardsight.patch._merge import conflicts_of

        conflicts = conflicts_of(self)
        if conflicts:
            shown = "; ".join(str(conflict) for conflict in conflicts[:3])
            more = f" and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""
            raise PatchError(
                f"people disagree about {len(conflicts)} examples in {self.where}: {shown}{more}; "
                "resolve it with `hardsight patch merge PATCH --resolve majority --out RESOLVED` "
                "(or newest, drop)"
            )
        rows = self._rows.drop_duplicates("index")
        verdict = rows["verdict"].to_numpy()
        old, new = rows["old"].to_numpy(np.int64), rows["new"].to_numpy(np.int64)
        return Changes(
            index=rows["index"].to_numpy(np.int64),
            id=rows["id"].tolist(),
            old=old,
            # a decision without a new class keeps the old one
            new=np.where(new < 0, old, new),
            new_name=rows["new_name"].tolist(),
            is_unsure=np.asarray(verdict == CANNOT_TELL, np.bool_),
            is_dropped=np.asarray(verdict == DROP, np.bool_),
        )


def _checked(rows: pd.DataFrame, where: str) -> pd.DataFrame:
    """Check rows, convert their types and sort them.

    Raises:
        PatchError: a row is not a valid decision.
    """
    import pandas as pd

    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise PatchError(
            f"expected the columns {', '.join(COLUMNS)} in {where}, but {', '.join(missing)} "
            "is missing; write one with `hardsight patch export RUN`"
        )
    frame = pd.DataFrame(index=range(len(rows)))
    for name in COLUMNS:
        given: Any = rows[name].reset_index(drop=True) if name in rows.columns else ""
        if name in NUMBERS:
            frame[name] = _whole(given, name, where)
        elif name == "time":
            given = pd.Series(given, index=frame.index)
            # a patch may be written by hand, so an invalid time only becomes a missing one
            frame[name] = pd.to_datetime(given, utc=True, format="ISO8601", errors="coerce")
            frame[name] = frame[name].dt.as_unit("us")
        else:
            texts = pd.Series(given, index=frame.index).astype(object)
            frame[name] = texts.fillna("").astype(str)
    _check_verdicts(frame, where)
    _check_one_story(frame, where)
    return frame.sort_values(_ORDER, kind="stable", ignore_index=True)


def _whole(given: Any, name: str, where: str) -> Any:
    import pandas as pd

    texts = given.astype(object).fillna("").astype(str).str.strip()
    # an empty cell means no class; only the index may not be empty
    texts = texts.where(texts != "", "-1") if name != "index" else texts
    # spreadsheets write whole numbers as 3.0
    plain = texts.str.fullmatch(r"-?\d{1,18}(\.0+)?")
    if not plain.all():
        at = int(np.flatnonzero(~plain)[0])
        raise PatchError(
            f"expected whole numbers as {name} in {where}, got {texts[at]!r} in row {at + 1}"
        )
    return pd.Series([int(text.partition(".")[0]) for text in texts], dtype=np.int64)


def _check_verdicts(frame: pd.DataFrame, where: str) -> None:
    verdict, old, new = frame["verdict"], frame["old"], frame["new"]
    is_same = (new < 0) | (new == old)
    wrong = {
        f"a verdict among {', '.join(VERDICTS)}": ~verdict.isin(VERDICTS),
        "an index of 0 or more": frame["index"] < 0,
        "another class than before for 'relabel'": (verdict == RELABEL) & is_same,
        "the class from before for 'keep'": (verdict == KEEP) & (new != old),
        "no new class for 'cannot tell' and 'drop'": verdict.isin((CANNOT_TELL, DROP)) & (new >= 0),
    }
    for expected, is_wrong in wrong.items():
        if is_wrong.any():
            at = int(np.flatnonzero(is_wrong)[0])
            row = frame.iloc[at]
            raise PatchError(
                f"expected {expected} in row {at + 1} of {where}, got index {row['index']}, old "
                f"{row['old']}, new {row['new']}, verdict {str(row['verdict'])[:40]!r}; correct "
                "the row, or export the patch again"
            )


def _check_one_story(frame: pd.DataFrame, where: str) -> None:
    """Raise if rows are about different data, or contradict each other about an example."""
    known = frame["data"].unique()
    if len(known) > 1:
        raise PatchError(
            f"the decisions in {where} are about different data (fingerprints "
            f"{', '.join(str(mark)[:12] for mark in known[:3])}); keep a patch per dataset"
        )
    facts = frame[["index", "id", "old", "old_name"]].drop_duplicates()
    twice = facts["index"].duplicated()
    if twice.any():
        index = int(facts.loc[twice, "index"].iloc[0])
        raise PatchError(
            f"rows of example {index} in {where} differ in id or old class; correct them, or "
            "export the patch again"
        )
