"""Sort labels into groups by the kind of doubt about them.

The thresholds come from the data: what is *usual* for a class is the mean probability of the class
among its own examples, the threshold of confident learning (Northcutt et al., 2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.suspects._evidence import Rows

WRONG, AMBIGUOUS, HARD, UNLIKE, DUPLICATE, FINE, UNKNOWN = range(7)
GROUPS = (
    "likely wrong label",
    "ambiguous between two classes",
    "hard but right",
    "unlike all classes",
    "near-duplicate with another label",
    "no doubt",
    "no label or no prediction",
)
_TWICE = np.log(2)  # the margin of a class that has twice the probability of the other one


def groups_of(rows: Rows, chance: NDArray[np.float32] | None) -> NDArray[np.int8]:
    """The group of every row, as a place in ``GROUPS``; the first rule that holds decides.

    Args:
        rows: what the evidence says.
        chance: of each label to be wrong, if it can be estimated.

    Returns:
        ``[N]``. With p the probability of the label y, r that of its rival k, and u what is usual:

        - *likely wrong label*: r > p, and r >= u_k: the rival is as probable as its own examples
          usually make it. Or r > 2 p and r > u_k / 2: it is less, and still beats the label
          clearly. Where the chance of a wrong label is known and below one half, the example is
          *hard but right*: such disagreements are mostly mistakes of the model.
        - *unlike all classes*: with q the larger one of p and r, q < min(u_y, u_k) / 2 and
          q < 1 - p - r: the better of the two has not even half of what is usual, and less than
          all other classes together. Or r > 2 p, with a smaller r than above.
        - *ambiguous between two classes*: r > p / 2; here r is at most 2 p, or did not lead.
        - *hard but right*: p < u_y.
        - *no doubt*: all others.

        A *near-duplicate with another label* is one whatever else holds, see
        :func:`hardsight.suspects.twins_of`.
    """
    label_share, rival_share = probabilities(rows)
    usual = _means(label_share, rows.label)
    usual_label, usual_rival = _of(usual, rows.label), _of(usual, rows.rival)
    either = np.fmin(usual_label, usual_rival)  # fmin: one of them may not be known
    better = np.maximum(label_share, rival_share)
    odds = rows.odds()
    with np.errstate(invalid="ignore"):
        is_clear = (rows.margin < 0) & (odds < -_TWICE)
        # not "more than": a rival whose usual probability is not known still counts
        is_sure = (rows.margin < 0) & ~(rival_share < usual_rival)
        is_doubted = is_sure | (is_clear & ~(rival_share <= usual_rival / 2))
        is_unlike = (better < either / 2) & (better < 1 - label_share - rival_share)
        rules = [
            is_doubted & ~_mistaken(chance),
            is_doubted,
            is_clear | is_unlike,
            odds < _TWICE,
            label_share < usual_label,
        ]
    without_duel: NDArray[np.int64] = np.where(
        rows.rival >= 0, WRONG, np.where(_agrees(rows), FINE, UNKNOWN)
    )
    group = np.full(len(rows.label), FINE, np.int8)
    # in reverse, so that the first rule is the last to write
    for rule, place in reversed([*zip(rules, (WRONG, HARD, UNLIKE, AMBIGUOUS, HARD), strict=True)]):
        group[rule] = place
    # without a margin only the prediction speaks
    return np.where(np.isnan(rows.margin), without_duel, group).astype(np.int8)


def is_sure(rows: Rows, usual: NDArray[np.float32], row: int) -> bool:
    """Whether the rival of a row leads, and is as probable as is usual for its own examples.

    Args:
        rows: what the evidence says.
        usual: the result of :func:`usual_probabilities`.
        row: the row.
    """
    rival = int(rows.rival[row])
    known = float(usual[rival]) if 0 <= rival < len(usual) else np.nan
    margin, share = float(rows.margin[row]), float(rows.rival_probability(row))
    if np.isnan(share):  # without probabilities: the rival's part if only it and the label compete
        share = float(1 / (1 + np.exp(np.clip(margin, -80, 80))))
    # not "at least": an unusual rival whose usual probability is not known still counts
    return margin < 0 and not share < known


def usual_probabilities(rows: Rows) -> NDArray[np.float32]:
    """Mean probability of each class among the examples with that label; NaN without examples."""
    return _means(1 - rows.duel() if _has_no_shares(rows) else rows.probability, rows.label)


def _means(share: NDArray[np.float32], label: NDArray[np.int32]) -> NDArray[np.float32]:
    told = ~np.isnan(share)
    if not told.all():
        share, label = share[told], label[told]
    counts = np.bincount(label)
    sums = np.bincount(label, share)
    with np.errstate(invalid="ignore"):
        return (sums / counts).astype(np.float32)


def _has_no_shares(rows: Rows) -> bool:
    return bool(np.isnan(rows.probability).all())


def probabilities(rows: Rows) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Probabilities of label and rival; without them, their shares if only these two compete."""
    if _has_no_shares(rows):
        duel = rows.duel()
        return 1 - duel, duel
    return rows.probability, rows.rival_probability()


def _mistaken(chance: NDArray[np.float32] | None) -> NDArray[np.bool_] | np.bool_:
    """Whether a disagreement is more likely to be a mistake of the model than of the label."""
    # without an estimate, the model gets the benefit of the doubt
    return np.bool_(False) if chance is None else chance < 0.5


def _agrees(rows: Rows) -> NDArray[np.bool_]:
    agrees: NDArray[np.bool_] = (rows.label >= 0) & (rows.label == rows.prediction)
    return agrees


def _of(usual: NDArray[np.float32], classes: NDArray[np.int32]) -> NDArray[np.float32]:
    """What is usual of the class of each row; NaN if the row has none, or none is known."""
    if not len(usual):
        return np.full(len(classes), np.nan, np.float32)
    inside = (classes >= 0) & (classes < len(usual))
    return np.where(inside, usual[np.where(inside, classes, 0)], np.nan).astype(np.float32)
