"""Merge the patches of several people, and resolve conflicts between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hardsight.errors import OptionError, PatchError
from hardsight.patch._patch import RELABEL, Patch
from hardsight.registry import unknown_name

if TYPE_CHECKING:
    import pandas as pd

RESOLUTIONS = ("majority", "newest", "drop")
_OPINION = ["index", "verdict", "new"]


@dataclass(frozen=True)
class Conflict:
    """An example about which people disagree.

    Attributes:
        index: position of the example in its data.
        id: its id.
        said: pairs of a reviewer and what they decided, in words.
    """

    index: int
    id: str
    said: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        words = ", ".join(f"{who or 'somebody'}: {what}" for who, what in self.said)
        return f"{self.index} ({_shown(self.id)}) {words}"


def conflicts_of(patch: Patch) -> list[Conflict]:
    """The examples about which people disagree, in the order of their index."""
    rows = patch.to_pandas()
    # several people with the same opinion are not a conflict
    opinions = rows[_OPINION].drop_duplicates()
    disputed = opinions.loc[opinions["index"].duplicated(), "index"].unique()
    rows_in_dispute = rows[rows["index"].isin(disputed)]
    return [
        Conflict(int(group["index"].iloc[0]), str(group["id"].iloc[0]), tuple(_said(group)))
        for _, group in rows_in_dispute.groupby("index")
    ]


def merged(patches: Sequence[Patch]) -> Patch:
    """All decisions of several patches about the same data.

    If a person decided twice about an example, the later decision counts. The order of the patches
    makes no difference, nor does merging a patch twice.

    Args:
        patches: at least one patch.

    Raises:
        OptionError: there is no patch.
        PatchError: the patches are about different data.
    """
    import pandas as pd

    if not patches:
        raise OptionError("expected at least one patch to merge, got none")
    about = {patch.data: patch.where for patch in patches if len(patch)}
    if len(about) > 1:
        (one_mark, first), (other, second), *_ = about.items()
        raise PatchError(
            f"{first} and {second} are about different data (fingerprints {one_mark[:12]} and "
            f"{other[:12]}); merge decisions about the same data"
        )
    frames = [patch.to_pandas() for patch in patches]
    # concat with an empty frame would turn numbers into objects
    rows = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
    joined = Patch(rows, where="the merged patch")
    whole = joined.to_pandas()
    # a missing time counts as older than all others
    time = whole["time"].fillna(pd.Timestamp(0, tz="UTC"))
    # the latest decision of each person about each example
    last = time.groupby([whole["index"], whole["reviewer"]]).transform("max")
    latest = whole[time == last].drop_duplicates([*_OPINION, "reviewer"])
    return joined.with_rows(latest)


def resolved(patch: Patch, how: str) -> Patch:
    """The patch without conflicts; undisputed decisions stay as they are.

    Args:
        patch: a patch with conflicts.
        how: ``"majority"`` keeps what most people said, ``"newest"`` keeps the last decision, and
            ``"drop"`` keeps neither, so disputed labels do not change. Ties are left out.

    Raises:
        OptionError: ``how`` is unknown.
    """
    if how not in RESOLUTIONS:
        raise OptionError(unknown_name("resolution", how, list(RESOLUTIONS)))
    rows = patch.to_pandas()
    opinions = rows[_OPINION].drop_duplicates()
    disputed = rows["index"].isin(opinions.loc[opinions["index"].duplicated(), "index"])
    if how == "drop":
        return patch.where_kept(~disputed.to_numpy())
    weight = _votes(rows) if how == "majority" else _times(rows)
    best = weight.groupby(rows["index"]).transform("max")
    leading = rows[weight == best][_OPINION].drop_duplicates()
    # a tie must not be decided by the order of files
    tied = set(leading.loc[leading["index"].duplicated(), "index"])
    winners = {tuple(row) for row in leading.itertuples(index=False) if row.index not in tied}
    keep = [tuple(row) in winners for row in rows[_OPINION].itertuples(index=False)]
    return patch.where_kept(np.array(keep, np.bool_) | ~disputed.to_numpy())


def _votes(rows: pd.DataFrame) -> pd.Series:
    # people, not rows: the same decision twice is one vote
    counts: pd.Series = rows.groupby(_OPINION)["reviewer"].transform("nunique")
    return counts


def _times(rows: pd.DataFrame) -> pd.Series:
    import pandas as pd

    return rows["time"].fillna(pd.Timestamp(0, tz="UTC"))


def _said(group: pd.DataFrame) -> list[tuple[str, str]]:
    words = []
    for row in group.to_dict("records"):
        named = str(row["new_name"] or row["new"])
        said = named if row["verdict"] == RELABEL else str(row["verdict"])
        words.append((str(row["reviewer"]), said))
    return words


def _shown(text: str) -> str:
    """An id for a line of text, shortened and without characters that would break the line."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= 60 else f"{plain[:57]}..."
