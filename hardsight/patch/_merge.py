"""Patches of several people as one, and what to do where they disagree."""

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
        index: of the example in its data.
        id: of the example.
        said: by reviewer, what they decided, in words.
    """

    index: int
    id: str
    said: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        words = ", ".join(f"{who or 'somebody'}: {what}" for who, what in self.said)
        return f"{self.index} ({_shown(self.id)}) {words}"


def conflicts_of(patch: Patch) -> list[Conflict]:
    """The examples about which people disagree, by index."""
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

    Of two decisions of one person about one example the later one counts. Whom the patches come
    from first, and how often, makes no difference.

    Args:
        patches: at least one.

    Raises:
        OptionError: none was given.
        PatchError: they are about different data.
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
    # an empty frame would turn numbers into objects
    rows = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
    joined = Patch(rows, where="the merged patch")
    whole = joined.to_pandas()
    # times that are missing are older than all others
    time = whole["time"].fillna(pd.Timestamp(0, tz="UTC"))
    # of one person the last word counts
    last = time.groupby([whole["index"], whole["reviewer"]]).transform("max")
    latest = whole[time == last].drop_duplicates([*_OPINION, "reviewer"])
    return joined.with_rows(latest)


def resolved(patch: Patch, how: str) -> Patch:
    """The patch without conflicts; decisions that nobody disputes stay as they are.

    Args:
        patch: with conflicts.
        how: ``"majority"`` keeps what most people said, ``"newest"`` what was said last, and
            ``"drop"`` nothing, so that disputed labels stay as they were. Ties are left out.

    Raises:
        OptionError: an unknown way.
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
    # a tie is not decided by the order of files
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
    """An id in a line of text, without what would break it."""
    # an id may hold line ends, which would break the list of conflicts
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= 60 else f"{plain[:57]}..."
