"""Sum up what has been decided, how many errors are probably left, and how accuracy changes."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.review._store import (
    DISAGREE,
    NONE,
    NUMBERS,
    SKIP,
    Consensus,
    Standing,
    consensus,
    verdict_of,
)
from hardsight.stats import wilson_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.review._rows import Rows
    from hardsight.review._store import Store

_BINS = 20  # parts of equal size that the queue is cut into
_ENOUGH = 30  # decisions that a part should have; until then the next part is joined to it
_DRAWS = 4000  # samples from the posterior
_LEVEL = 0.95  # of all intervals
_MOST_LISTED = 50  # classes and disagreements on the page


def dashboard(rows: Rows, store: Store, reviewer: str) -> dict[str, Any]:
    """Everything on the dashboard, as plain values.

    Disagreements are listed only for examples that the reviewer has decided as well, so that nobody
    is influenced by the answers of others.
    """
    standings = {name: store.standing(name) for name in store.reviewers}
    found = consensus(list(standings.values()), rows.label)
    return {
        "rows": len(rows),
        "suspects": int(rows.suspects.is_suspect.sum()),
        **_classes(rows, found),
        "reviewers": [
            {"name": name, **_counts(standing)} for name, standing in sorted(standings.items())
        ],
        "decided": len(found.rows),
        "changed": int(((found.verdict >= 0) & (found.verdict != rows.label[found.rows])).sum()),
        "unresolved": int((found.verdict == DISAGREE).sum()),
        "agreement": [
            agreement_of(first, second, rows.label, names=(a, b))
            for (a, first), (b, second) in combinations(sorted(standings.items()), 2)
        ],
        "disagreements": _listed(rows, standings, found, reviewer),
        "left": errors_left(rows, found),
        "accuracy": accuracies(rows, found),
        "seq": store.seq,
    }


def _classes(rows: Rows, found: Consensus) -> dict[str, Any]:
    """Number of suspect, decided and changed examples per label, most suspects first."""
    count = int(rows.label.max(initial=-1)) + 1

    def per_class(chosen: NDArray[Any]) -> NDArray[np.int64]:
        label = rows.label[chosen]
        return np.bincount(label[label >= 0], minlength=count)

    suspects = per_class(np.flatnonzero(rows.suspects.is_suspect))
    decided = per_class(found.rows)
    is_changed = (found.verdict >= 0) & (found.verdict != rows.label[found.rows])
    changed = per_class(found.rows[is_changed])
    listed = np.flatnonzero((suspects > 0) | (decided > 0))
    order = listed[np.argsort(-suspects[listed], kind="stable")]
    shown = [
        {"label": c, "suspects": int(suspects[c]), "decided": int(decided[c]),
         "changed": int(changed[c])}
        for c in order[:_MOST_LISTED].tolist()
    ]  # fmt: skip
    return {"classes": shown, "more_classes": max(0, len(order) - _MOST_LISTED)}


def _counts(standing: Standing) -> dict[str, int]:
    counts = np.bincount(standing.action, minlength=len(NUMBERS) + 1)
    return {action: int(counts[number]) for action, number in NUMBERS.items()}


def agreement_of(
    first: Standing, second: Standing, label: NDArray[np.int32], *, names: tuple[str, str]
) -> dict[str, Any]:
    """How often two reviewers chose the same class, and Cohen's kappa.

    Kappa is the agreement beyond chance, as a share of the largest possible agreement beyond
    chance. It is undefined if both chose the same class for every example.
    """
    skipped = NUMBERS[SKIP]
    both = np.flatnonzero(
        (first.action != NONE) & (second.action != NONE)
        & (first.action != skipped) & (second.action != skipped)
    )  # fmt: skip
    result: dict[str, Any] = {"names": list(names), "both": len(both), "same": 0, "kappa": None}
    if len(both):
        a, b = verdict_of(first, label, both), verdict_of(second, label, both)
        same = float((a == b).mean())
        said = np.unique(np.concatenate([a, b]))
        chance = float(sum((a == one).mean() * (b == one).mean() for one in said))
        result |= {"same": int((a == b).sum())}
        if chance < 1:
            result["kappa"] = (same - chance) / (1 - chance)
    return result


def _listed(
    rows: Rows, standings: dict[str, Standing], found: Consensus, reviewer: str
) -> list[dict[str, Any]]:
    own = standings.get(reviewer)
    if own is None:
        return []
    differing = found.rows[found.verdict == DISAGREE]
    known = differing[(own.action[differing] != NONE) & (own.action[differing] != NUMBERS[SKIP])]
    known = known[:_MOST_LISTED]
    listed = []
    for row, id in zip(known.tolist(), rows.ids(known), strict=True):
        said = {
            name: int(verdict_of(standing, rows.label, np.array([row]))[0])
            for name, standing in standings.items()
            if int(standing.action[row]) not in (NONE, NUMBERS[SKIP])
        }
        listed.append({"index": int(rows.index[row]), "id": id, "said": said})
    return listed


def errors_left(rows: Rows, found: Consensus) -> dict[str, Any] | None:
    """Estimate the wrong labels among the suspects that nobody has decided, with a 95% interval.

    The queue is cut into parts of equal size, and reviewed parts are joined until each has enough
    decisions. In a reviewed part, open examples are assumed to be wrong as often as decided ones
    (Jeffreys' posterior). In a part that nobody has reviewed, the share of wrong labels is between
    those of the nearest reviewed parts on both sides, because the queue is sorted by suspicion;
    behind the last reviewed part it lies between the share of that part and 0. The interval
    reaches from the lower end for all unreviewed parts to the upper end for all of them, so it
    holds for any share in between. Returns ``None`` before the first decision.
    """
    order = rows.suspects.order
    queue = order[rows.suspects.is_suspect[order]]
    place = np.full(len(rows), -1, np.int64)
    place[queue] = np.arange(len(queue))
    known = (found.verdict >= 0) & (place[found.rows] >= 0)
    if not known.any():
        return None
    chosen = found.rows[known]
    wrong = found.verdict[known] != rows.label[chosen]
    bins = min(_BINS, len(queue))
    seen = np.bincount(place[chosen] * bins // len(queue), minlength=bins)
    part_of = _joined(seen)[np.arange(len(queue)) * bins // len(queue)]  # by place in the queue
    part, bins = part_of[place[chosen]], int(part_of[-1]) + 1
    seen = np.bincount(part, minlength=bins)
    bad = np.bincount(part, wrong, minlength=bins)
    size = np.bincount(part_of, minlength=bins)
    settled = np.bincount(part_of[place[found.rows[place[found.rows] >= 0]]], minlength=bins)
    rng = np.random.default_rng(0)  # fixed: a reload of the page must not change the numbers
    drawn = {at: rng.beta(bad[at] + 0.5, seen[at] - bad[at] + 0.5, _DRAWS)
             for at in np.flatnonzero(seen).tolist()}  # fmt: skip
    totals = np.zeros((3, _DRAWS))  # lower end, a random share in between, upper end
    before, between = np.ones(_DRAWS), rng.uniform(size=_DRAWS)
    for at in range(bins):
        share = drawn.get(at)
        if share is None:
            after = drawn.get(min((one for one in drawn if one > at), default=-1), np.zeros(1))
            ends = np.minimum(before, after), np.maximum(before, after)
            shares = np.stack([ends[0], after + (before - after) * between, ends[1]])
        else:
            before, between = share, rng.uniform(size=_DRAWS)
            shares = np.stack([share] * 3)
        totals += rng.binomial(int(size[at] - settled[at]), shares)
    levels = ((1 - _LEVEL) / 2, 0.5, (1 + _LEVEL) / 2)
    low, middle, high = (np.quantile(one, q) for one, q in zip(totals, levels, strict=True))
    looked = wilson_interval(float(wrong.sum()), len(wrong), level=_LEVEL)
    return {
        "estimate": round(float(middle)),
        "low": int(np.floor(low)),
        "high": int(np.ceil(high)),
        "open": int(len(queue) - settled.sum()),
        "decided": int(known.sum()),
        "wrong": int(wrong.sum()),
        "wrong_share": [looked[0], float(wrong.mean()), looked[1]],
    }


def _joined(seen: NDArray[np.int64]) -> NDArray[np.int64]:
    """New numbers for the parts of the queue, the same for parts that are joined.

    A few decisions say little about a small share, and Jeffreys' prior, which counts half an error
    in each part, would add up over many parts with few decisions.
    """
    number, held = 0, 0
    numbers = np.zeros(len(seen), np.int64)
    for at, count in enumerate(seen.tolist()):
        # a part that nobody has reviewed is never joined to a reviewed one
        if at and (held >= _ENOUGH or not count or not held):
            number, held = number + 1, 0
        numbers[at], held = number, held + count
    return numbers


def accuracies(rows: Rows, found: Consensus) -> dict[str, Any] | None:
    """Accuracy of the same predictions with the labels before and after the review.

    Examples marked "cannot tell", and those that reviewers disagree on, keep their label. Returns
    ``None`` without predictions.
    """
    known = (rows.label >= 0) & (rows.prediction >= 0)
    if not known.any():
        return None
    label = rows.label.copy()
    fixed = found.verdict >= 0
    label[found.rows[fixed]] = found.verdict[fixed]
    before = (rows.label == rows.prediction)[known]
    after = (label == rows.prediction)[known]
    return {"before": float(before.mean()), "after": float(after.mean()), "rows": int(known.sum())}
