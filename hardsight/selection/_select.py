"""Select the rows of a table that are worth keeping."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardsight._checks import checked_options, warn
from hardsight.errors import OptionError, TableError
from hardsight.registry import unknown_name
from hardsight.selection._keep import rows_to_keep
from hardsight.suspects import most_suspect, repeats_of
from hardsight.table import ScoreTable, read_table

RULES = ("coverage", "hardest", "easiest", "moderate", "random")
_STRATA = 50  # as many as in the paper
_USUAL = ("el2n", "early_el2n")  # default scores of a scored table and of a tracked run


@checked_options
def select(
    table: ScoreTable | str | os.PathLike[str],
    *,
    keep: int | float,
    by: str | None = None,
    how: str = "coverage",
    balanced: bool = False,
    drop_hardest: float | None = None,
    drop_suspects: float = 0.0,
    drop_duplicates: bool = False,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Select the rows of a table that are worth keeping.

    ==============  ==============================================================================
    ``coverage``    the hardest few are dropped, the rest is cut into 50 strata of equal width over
                    the score, and each stratum gives the same number of rows, drawn at random; if a
                    stratum is too small, the others give more
    ``hardest``     the hardest rows
    ``easiest``     the easiest rows
    ``moderate``    the rows in the middle of the ranking
    ``random``      random rows, which every rule should be compared with
    ==============  ==============================================================================

    Args:
        table: of a run, or the folder of the run.
        keep: share in (0, 1], such as 0.5, or a whole number of rows, such as 5000. The int 1 could
            be either and is refused; pass 1.0 for all rows.
        by: score or summary to rank rows by, such as ``avh`` or ``aum``; by default ``el2n``, or
            ``early_el2n`` for a tracked training run. ``random`` ignores it.
        how: the rule: ``coverage``, ``hardest``, ``easiest``, ``moderate`` or ``random``.
        balanced: keep the same number of rows of every class, while it has enough; the rule is
            then applied within each class.
        drop_hardest: of ``coverage``: share of the rows that is dropped first, the hardest ones,
            in [0, 1); never so many that too few are left. By default 0 if half or more is kept,
            0.1 if less, 0.3 below 0.15: the fewer rows are kept, the more a wrong label costs.
        drop_suspects: share of all rows to drop first because their labels are the most suspect,
            as ``table.suspects`` ranks them, in [0, 1).
        drop_duplicates: drop all but the first of rows that are nearly the same and have the same
            label; needs a run scored with ``keep_embeddings``.
        seed: seed of what is drawn at random.

    Returns:
        the values of the column ``index`` of the kept rows, ascending; these are positions in the
        data.

    Raises:
        OptionError: an option is outside its range.
        TableError: the table has no such score.

    Example:
        >>> import hardsight as hs
        >>> from hardsight.models import SmallCNN
        >>> table = hs.score(SmallCNN(num_classes=10), "builtin:digits", split="test")
        >>> rows = hs.select(table, keep=0.25, by="avh")
        >>> len(rows), len(hs.data.open_source("builtin:digits", split="test", rows=rows))
        (112, 112)

    Reference:
        Zheng et al., Coverage-centric Coreset Selection for High Pruning Rates, ICLR 2023,
        Algorithm 1. Deviation: they search for the best share to drop for each dataset and rate;
        here the default follows from ``keep``.
    """
    if not isinstance(table, ScoreTable):
        table = read_table(table)
    if (table.metadata.get("data") or {}).get("sentences"):
        raise TableError(
            "the table has a row for each token of sentences, and rows are selected for data that "
            "has an example for each row; rank the tokens themselves: table.hardest(n)"
        )
    if how not in RULES:
        raise OptionError(unknown_name("rule", how, list(RULES)))
    if drop_hardest is not None and how != "coverage":
        raise OptionError(f"drop_hardest belongs to how='coverage', got how={how!r}")
    for name, share in (("drop_hardest", drop_hardest), ("drop_suspects", drop_suspects)):
        if share is not None and not 0 <= share < 1:
            raise OptionError(f"expected {name} to be a share in [0, 1), got {share}")
    count = rows_to_keep(keep, len(table))
    if by is None:
        by = next((name for name in _USUAL if name in table.scores), _USUAL[0])
    if how != "random":
        table.higher_is_harder(by)  # raises if it is not a score
    left = _not_suspect(table, drop_suspects)  # first, since it needs the most memory
    hardness = _hardness(table, by, how)
    left &= ~np.isnan(hardness)
    if drop_duplicates:
        left &= _no_repeats(table, left)
    if not left.any():
        raise OptionError(f"no row has a value of {by} and is left to choose from; name another")
    share = _dropped_share(drop_hardest, count / len(table)) if how == "coverage" else 0.0
    # the word makes this stream differ from other streams of the same seed
    rule = _Rule(how, share, np.random.default_rng([seed, *b"select"]))
    chosen = _chosen(table, np.flatnonzero(left), hardness, rule, count, balanced)
    if len(chosen) < count:
        warn(
            f"{len(chosen):,} rows are kept instead of {count:,}: the others were dropped as "
            f"suspects or duplicates, or have no value of {by}"
        )
    # convert positions in the table to positions in the data, which other verbs take
    return np.sort(table.column("index")[chosen]).astype(np.int64, copy=False)


def _hardness(table: ScoreTable, by: str, how: str) -> NDArray[np.float64]:
    """Return values of which larger is harder; held-out rows are ranked among themselves."""
    if how == "random":
        # a value for every row, so none is left out for missing a score
        return np.zeros(len(table))
    if how == "coverage":  # strata are cut over the score itself, not over ranks
        sign = 1.0 if table.higher_is_harder(by) else -1.0
        return sign * table.column(by).astype(np.float64)
    return table.hardness_among_alike(by)


def _not_suspect(table: ScoreTable, share: float) -> NDArray[np.bool_]:
    kept = np.ones(len(table), np.bool_)
    if not share:
        return kept
    if table.judge_of_labels() is None:
        raise OptionError(
            "drop_suspects needs a column that tells wrong labels, such as suspicion of a tracked "
            f"training run or logit_margin; the table has {', '.join(table.scores)}"
        )
    # this may drop fewer rows: a row without a label or a finite score is not ranked as suspect
    kept[most_suspect(table, round(share * len(table)))] = False
    return kept


def _no_repeats(table: ScoreTable, left: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep the first remaining row of each group of near-duplicates, and all other rows."""
    repeats = repeats_of(table)
    if repeats is None:
        raise OptionError(
            "drop_duplicates needs to know which examples are nearly the same, and the run kept no "
            "embeddings, or did so in an older version; score again with keep_embeddings "
            "(--keep-embeddings)"
        )
    # each row points to an earlier duplicate, so following the pointers ends at the group's first
    first = np.where(repeats < 0, np.arange(len(repeats), dtype=np.int32), repeats)
    while (first[first] != first).any():
        first = first[first]
    rows = np.flatnonzero(left)
    # if the first row of a group was already dropped, the next remaining row represents it
    _, kept = np.unique(first[rows], return_index=True)
    is_first = np.zeros(len(left), np.bool_)
    is_first[rows[kept]] = True
    return is_first


def _dropped_share(drop_hardest: float | None, keep: float) -> float:
    if drop_hardest is not None:
        return drop_hardest
    # the fewer rows are kept, the more of the hardest are dropped, where wrong labels accumulate
    return 0.0 if keep >= 0.5 else 0.1 if keep >= 0.15 else 0.3


@dataclass(frozen=True)
class _Rule:
    """A selection rule for rows that all have a value.

    Attributes:
        how: name of the rule.
        dropped: share of the hardest rows that ``coverage`` drops.
        draw: generator of the random draws.
    """

    how: str
    dropped: float
    draw: np.random.Generator

    def __call__(self, hardness: NDArray[np.float64], count: int) -> NDArray[np.int64]:
        """Return the positions of ``count`` rows, or of all if there are fewer."""
        count = min(count, len(hardness))
        if self.how == "random":
            return self.draw.permutation(len(hardness))[:count]
        # stable, so equal rows are taken in the order of the table
        order = np.argsort(-hardness, kind="stable")
        if self.how == "coverage":
            # leave at least ``count`` rows
            left = order[min(len(order) - count, round(self.dropped * len(order))) :]
            return left[self._over_strata(hardness[left], count)]
        begin = {"hardest": 0, "easiest": len(order) - count, "moderate": (len(order) - count) // 2}
        return order[begin[self.how] :][:count]

    def _over_strata(self, hardness: NDArray[np.float64], count: int) -> NDArray[np.int64]:
        """Draw the same number of rows at random from every stratum of equal width."""
        finite = hardness[np.isfinite(hardness)]
        # margins can be infinite, and such rows belong to the outermost strata
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        width = (high - low) / _STRATA or 1.0
        places = np.clip(hardness, low, high)
        places -= low
        places /= width
        # in place and in 8 bits, to save memory with tens of millions of rows
        strata = np.minimum(places, _STRATA - 1, out=places).astype(np.int8)
        sizes = np.bincount(strata, minlength=_STRATA)
        del finite, places  # each is as large as a column of the table
        numbers = np.int32 if len(hardness) < 2**31 else np.int64
        shuffled = self.draw.permutation(np.arange(len(hardness), dtype=numbers))
        # shuffled and then sorted stably by stratum, which leaves a random order within each
        order = shuffled[np.argsort(strata[shuffled], kind="stable")]
        parts = np.split(order, np.cumsum(sizes)[:-1])
        quotas = even_quotas(sizes, count).tolist()
        return np.concatenate([part[:quota] for part, quota in zip(parts, quotas, strict=True)])


def _chosen(
    table: ScoreTable,
    rows: NDArray[np.int64],
    hardness: NDArray[np.float64],
    rule: _Rule,
    count: int,
    balanced: bool,
) -> NDArray[np.int64]:
    """Return positions in the table, chosen over all rows or within each class."""
    if not balanced:
        return rows[rule(hardness[rows], count)]
    labels = table.column("label")[rows]
    order = np.argsort(labels, kind="stable")
    _, sizes = np.unique(labels, return_counts=True)
    parts = np.split(rows[order], np.cumsum(sizes)[:-1])
    quotas = even_quotas(sizes, count).tolist()
    return np.concatenate(
        [part[rule(hardness[part], quota)] for part, quota in zip(parts, quotas, strict=True)]
    )


def even_quotas(sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return how many rows each group gives, ``count`` in total and as even as sizes allow.

    Example:
        >>> even_quotas(np.array([2, 100, 50]), 30).tolist()
        [2, 14, 14]
    """
    quotas = np.zeros_like(sizes)
    left = min(count, int(sizes.sum()))
    by_size = np.argsort(sizes, kind="stable")
    # smallest first, so larger groups make up for what it cannot give
    for place, group in enumerate(by_size.tolist()):
        quotas[group] = min(int(sizes[group]), left // (len(sizes) - place))
        left -= int(quotas[group])
    return quotas
