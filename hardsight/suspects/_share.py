r"""Estimate how many labels at a rank are wrong, from a mixture of two causes.

A model and a label disagree because the model is wrong or because the label is. The surer the model
is, the rarer its own mistakes become. Wrong labels stay equally frequent, because they were made
without asking the model. So, among the examples that the model assigns to class k with a confidence
of x log-odds, the share of labels that differ is

.. math:: D_k(x) = \eta_k + (1 - \eta_k)\, \sigma(-(a_k + b_k x))

where :math:`\eta_k` is the share of wrong labels, and the share of mistakes is logistic and falls
with confidence. Maximum likelihood finds the three numbers of every class. Two corrections turn the
level :math:`\eta_k` into the share of wrong labels :math:`e`. First, a weak model makes some
mistakes however sure it is. Second, if the model and the label make the same mistake, they agree:
with m the share of mistakes and l the chance that a wrong label and a mistake are the same,

.. math:: D = e\,(1 - l m) + (1 - e)\, m

of the labels differ, and a share e (1 - l m) / D of these are wrong.

EM sharpens these chances with two more facts: how improbable the label is compared with other
classes, and which classes are confused, which also yields l. EM assumes that they are independent
of the confidence, which they are not. The result is good for an order but too sure for a share, so
the second fact counts half for shares. Along the ranking, the chances are averaged so that they
never rise.

All of this holds only for the probabilities of a model that never saw the example. On its training
data a model no longer shows its mistakes, and an average over the epochs of training is not a
probability. A tracked training that held examples out has such probabilities for them, from its
last epoch. Held-out examples were drawn at random, so what is found at a rank among them is also
assumed for the same rank among the training examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hardsight.suspects._evidence import FOLDS, TRACKED, UNSEEN, Evidence, Rows, held_out_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

    Values = NDArray[np.float64]

_MOST_CONTRADICTED = 0.5  # share of labels; above it, estimates were measured to be too high
LEAST_ROWS = 200  # fewer rows say nothing about a share of a few percent
# A class with fewer rows, or beyond this number of classes, is pooled with the others. If some
# classes have many wrong labels, the model is less sure of them, and one curve for all classes
# takes their disagreements for mistakes of an unsure model.
_CLASS_ROWS, _MOST_CLASSES = 20, 2000
_HELD_OUT, _HELD_OUT_IN_ALL = 50, 500  # of each class, and in all, that tracked training needs
_LOW, _HIGH, _BINS = -8.0, 14.0, 128  # range and bins of the confidence, in log-odds
# Starting points: log-odds of eta, a, and the logarithm of b.
_STARTS = ((-6.0, 1.0, 0.0), (-6.0, 3.0, 0.0), (-2.0, 1.0, 0.0), (-2.0, 3.0, 0.0))
_STEPS, _SMALL_STEP = 60, 1e-6
_WEAK = np.array([10.0, 10.0, 2.0])  # standard deviation of the prior for all classes together
_NEAR = np.array([3.0, 3.0, 1.0])  # standard deviation of a class around all of them
_LEAST_SHARE = -6.0  # log-odds; a class may have errors even if the others have none
_SURE_MISTAKES = 0.5  # share of seeming errors that are not, relative to the model's mistakes
_ROUNDS = 2
_PSEUDO = 10.0  # pseudo-disagreements per class, so that a pair seen rarely is not believed much
_IN_ORDER, _IN_SHARE = 1.0, 0.5  # weight of which classes are confused
_TINY = 1e-7
_LEAST_LEFT = 1e-6  # probability left to other classes; below it, rounding decides
_AT_ONCE = 1 << 20  # rows that are processed in float64 at a time


@dataclass(frozen=True)
class Estimate:
    """Chances that labels are wrong.

    Attributes:
        order: chance that each label is wrong by all evidence, ``[N]``, which separates rows best;
            NaN for rows that cannot be judged. ``None`` if there is no estimate, or only an
            estimate from some rows that stand for the others.
        share: the same chance, with less weight on evidence that is not independent, as shares of
            wrong labels require; ``None`` if there is no estimate.
        why_not: why there is no estimate, or why it is only a bound, in words; otherwise empty.
    """

    order: NDArray[np.float32] | None = None
    share: NDArray[np.float32] | None = None
    why_not: str = ""


def wrong_chances(
    table: ScoreTable, rows: Rows, evidence: Evidence, *, with_shares: bool = True
) -> Estimate:
    """Return the chance that each label is wrong, from models that never saw its example.

    Args:
        table: the table that is judged.
        rows: what the evidence says about its rows.
        evidence: where the evidence comes from.
        with_shares: whether to estimate shares too, and not only the order.
    """
    if evidence.kind == TRACKED:
        return _of_held_out(table) if with_shares else Estimate()
    why_not = _why_not(rows, evidence)
    if why_not:
        return Estimate(why_not=why_not)
    every = _numbers(np.ones(len(rows.label), np.bool_))
    beliefs = [_IN_ORDER, _IN_SHARE] if with_shares else [_IN_ORDER]
    found = _placed(len(every), every, rows, beliefs)
    share = found[-1] if with_shares else None
    return Estimate(order=found[0], share=share, why_not=_too_sure(rows))


def _of_held_out(table: ScoreTable) -> Estimate:
    """Return the estimate from the held-out examples of a tracked training."""
    found = held_out_rows(table)
    advice = "hold more out (validation = 0.2), or score by folds"
    if found is None:
        return Estimate(
            why_not="a model says too little about the labels that it learned; hold examples out "
            "of training (validation = 0.2), or score by folds",
        )
    at, rows = found
    judged = int(_judged(rows).sum())
    needed = max(_HELD_OUT_IN_ALL, _HELD_OUT * len(np.unique(rows.label[rows.label >= 0])))
    if judged < needed:
        return Estimate(
            why_not=f"{judged:,} examples were held out of training, and {needed:,} are needed, "
            f"{_HELD_OUT} of each class and {_HELD_OUT_IN_ALL} in all; {advice}",
        )
    return Estimate(share=_placed(len(table), at, rows, [_IN_SHARE])[0], why_not=_too_sure(rows))


def _placed(
    count: int, at: NDArray[np.integer], rows: Rows, beliefs: Sequence[float]
) -> list[NDArray[np.float32]]:
    """Return chances of some of ``count`` rows; other rows and rows without a score are NaN."""
    judged = _numbers(_judged(rows))
    placed = []
    for chance in _chances(rows, judged, beliefs):
        placed.append(np.full(count, np.nan, np.float32))
        placed[-1][at[judged]] = chance
    return placed


def error_shares(chance: NDArray[np.float32], order: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the estimated share of wrong labels at the rank of every row.

    Args:
        chance: chance that each label is wrong. NaN for rows that were not judged, such as rows
            without a score in some fold; they get the share found at their rank.
        order: the ranked rows, most suspect first.

    Returns:
        ``[N]``, never rising along ``order``; NaN for rows that are not ranked.
    """
    shares = np.full(len(chance), np.nan, np.float32)
    places = np.flatnonzero(~np.isnan(chance[order]))
    if len(places):
        smooth = _falling(chance[order[places]].astype(np.float64))
        if len(places) < len(order):
            smooth = np.interp(np.arange(len(order)), places, smooth)
        shares[order] = smooth
    return shares


def _judged(rows: Rows) -> NDArray[np.bool_]:
    """Return which rows have probabilities."""
    judged: NDArray[np.bool_] = ~np.isnan(rows.margin) & ~np.isnan(rows.probability)
    return judged


def _why_not(rows: Rows, evidence: Evidence) -> str:
    """Return why one pass does not allow an estimate of the share; empty if it does."""
    if np.isnan(rows.margin).all() or np.isnan(rows.probability).all():
        return "the table has no probabilities"
    if evidence.kind not in (FOLDS, UNSEEN):
        return (
            "the model may have been trained on these examples; score them by folds, or say "
            '--sample out-of-sample (sample="out-of-sample") if it never saw them'
        )
    judged = int(_judged(rows).sum())
    if judged < LEAST_ROWS:
        return f"only {judged:,} examples have a label and a score, and {LEAST_ROWS} are needed"
    return ""


def _too_sure(rows: Rows) -> str:
    """Return why an estimate is only a bound, in words; empty if it is more than that."""
    judged = rows.margin[_judged(rows)]
    contradicted = float((judged < 0).mean()) if len(judged) else 0.0
    if contradicted <= _MOST_CONTRADICTED:
        return ""
    return (
        f"the model contradicts {contradicted:.0%} of all labels, so often that many of its sure "
        "answers are mistakes of its own"
    )


def _numbers(chosen: NDArray[np.bool_]) -> NDArray[np.integer]:
    """Return the positions of the chosen rows, in 4 bytes each if their number allows it."""
    return np.flatnonzero(chosen).astype(np.int32 if len(chosen) < 2**31 else np.int64)


def _chances(
    rows: Rows, at: NDArray[np.integer], beliefs: Sequence[float]
) -> list[NDArray[np.float32]]:
    """Return the chance of some rows that their label is wrong, once for each belief."""
    differs = (rows.margin[at] < 0) & (rows.rival[at] >= 0)
    top = np.where(differs, rows.rival[at], rows.label[at])
    cell, count = _large_classes(top)
    cell *= _BINS
    for start in range(0, len(at), _AT_ONCE):  # in parts, which bounds the memory for float64
        cell[start : start + _AT_ONCE] += _places(*_shares(rows, at[start : start + _AT_ONCE]))
    if not differs.any():
        return [np.zeros(len(at), np.float32) for _ in beliefs]
    mixture = _Mixture.of(cell, differs, count)
    contradicted = at[differs]
    left = _left(*_shares(rows, contradicted))
    facts = _Facts(left, top[differs], rows.label[contradicted])

    def chances(belief: float) -> NDArray[np.float32]:
        found = np.zeros(len(at), np.float32)
        likeness = np.zeros(int(top.max()) + 1)
        # the confusions show how often model and label are wrong in the same way, which in turn
        # changes the chances; hence the rounds
        for _ in range(_ROUNDS):
            by_confidence = mixture.if_they_differ(cell[differs], likeness[facts.top])
            found[differs], likeness = _sharpened(by_confidence, facts, len(likeness), belief)
        agree = _numbers(~differs)
        for start in range(0, len(agree), _AT_ONCE):
            part = agree[start : start + _AT_ONCE]
            found[part] = mixture.if_they_agree(cell[part], likeness[top[part]])
        return found

    return [chances(belief) for belief in beliefs]


def _shares(rows: Rows, at: NDArray[np.integer]) -> tuple[Values, Values]:
    """Return the probabilities of label and rival."""
    return rows.probability[at].astype(np.float64), rows.rival_probability(at).astype(np.float64)


def _places(label: Values, rival: Values) -> NDArray[np.int32]:
    """Return the bin of each confidence."""
    confidence = np.clip(np.maximum(label, rival), _TINY, 1 - _TINY)
    odds = np.clip(np.log(confidence) - np.log1p(-confidence), _LOW, _HIGH)
    place: Values = np.minimum((odds - _LOW) / (_HIGH - _LOW) * _BINS, _BINS - 1)
    return place.astype(np.int32)


# ------------------------------------------------------------------------------ the mixture


@dataclass(frozen=True)
class _Mixture:
    """What the confidence alone says, by cell: a group of classes and a bin of confidence.

    Attributes:
        wrong: share of wrong labels, ``[cells]``.
        differ: share of labels that differ from the model's prediction, ``[cells]``.
    """

    wrong: Values
    differ: Values

    @classmethod
    def of(cls, cell: NDArray[np.int32], differs: NDArray[np.bool_], count: int) -> _Mixture:
        """Return the mixture fitted to the rows of ``count`` groups."""
        shape = (count, _BINS)
        total = np.bincount(cell, minlength=count * _BINS).reshape(shape)
        different = np.bincount(cell[differs], minlength=count * _BINS).reshape(shape)
        share, mistake = _fitted(total.astype(np.float64), different.astype(np.float64))
        differ = share[:, None] + (1 - share[:, None]) * mistake
        usual = (total * mistake).sum(axis=1) / np.maximum(total.sum(axis=1), 1)
        # a weak model is sometimes sure of its mistakes, which then look like wrong labels
        wrong = share * (1 - _SURE_MISTAKES * usual)
        return cls(np.repeat(wrong, _BINS), differ.reshape(-1))

    def if_they_differ(self, cell: NDArray[np.int32], likeness: Values) -> Values:
        """Return the chance of a wrong label for rows whose label the model contradicts."""
        wrong, differ, mistake = self._at(cell, likeness)
        return wrong * (1 - likeness * mistake) / differ

    def if_they_agree(self, cell: NDArray[np.int32], likeness: Values) -> Values:
        """Return the chance for rows whose label the model agrees with: both would be wrong."""
        wrong, differ, mistake = self._at(cell, likeness)
        chance: Values = np.minimum(wrong * likeness * mistake / np.maximum(1 - differ, _TINY), 1)
        return chance

    def _at(self, cell: NDArray[np.int32], likeness: Values) -> tuple[Values, Values, Values]:
        """Return the shares of wrong labels, of differing labels, and of the model's mistakes.

        If e is the share of wrong labels, m of mistakes, and l the share of them that are the same,
        then e (1 - l m) + (1 - e) m of the labels differ. This is solved for m.
        """
        wrong, differ = self.wrong[cell], self.differ[cell]
        mistake = (differ - wrong) / np.maximum(1 - wrong * (1 + likeness), 0.1)
        return wrong, differ, np.clip(mistake, 0, 1)


def _large_classes(top: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
    """Return the group of each row: one per class with enough rows, and one for all others."""
    counts = np.bincount(top)
    largest = np.argsort(-counts, kind="stable")[:_MOST_CLASSES]
    largest = largest[counts[largest] >= _CLASS_ROWS]
    group_of = np.full(len(counts), len(largest), np.int32)
    group_of[largest] = np.arange(len(largest))
    return group_of[top], len(largest) + 1


def _fitted(total: Values, different: Values) -> tuple[Values, Values]:
    """Return the share of wrong labels ``[K]`` and of mistakes ``[K, bins]``, by max. likelihood.

    The confidence is standardised within each group. All groups together are fitted first. The
    result is a normal prior for each group, so that a class with few examples stays near it.
    """
    centre = _LOW + (np.arange(_BINS) + 0.5) * (_HIGH - _LOW) / _BINS
    weight = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    mean = (weight * centre).sum(axis=1, keepdims=True)
    spread = np.sqrt((weight * (centre - mean) ** 2).sum(axis=1, keepdims=True))
    scaled = (centre - mean) / np.maximum(spread, 1e-3)
    flat = (part.reshape(1, -1) for part in (scaled, total, different))
    together = _climbed(*flat, around=np.array([0.0, 0.0, 0.0]), spread=_WEAK)[0]
    together[0] = max(together[0], _LEAST_SHARE)
    best = _climbed(scaled, total, different, around=together, spread=_NEAR)
    share, mistake, _ = _model(best, scaled)
    return share[:, 0], mistake


def _climbed(
    scaled: Values, total: Values, different: Values, *, around: Values, spread: Values
) -> Values:
    """Return the most likely three numbers of each group, ``[K, 3]``, from several starts.

    This is damped Fisher scoring for all groups at once, under a normal prior.
    """
    best, best_loss = np.zeros((len(total), 3)), np.full(len(total), np.inf)
    for start in (*_STARTS, around):
        found = np.tile(np.asarray(start, np.float64), (len(total), 1))
        loss, damping = np.full(len(total), np.inf), np.ones(len(total))
        tried = found
        for _ in range(_STEPS):
            new_loss = _loss(tried, scaled, total, different)
            new_loss += (((tried - around) / spread) ** 2).sum(axis=1) / 2
            better = new_loss < loss
            found, loss = np.where(better[:, None], tried, found), np.where(better, new_loss, loss)
            damping = np.clip(np.where(better, damping / 4, damping * 4), 1e-8, 1e8)
            score, fisher = _slopes(found, scaled, total, different)
            score -= (found - around) / spread**2
            diagonal = np.einsum("kii->ki", fisher)
            diagonal += 1 / spread**2
            diagonal += damping[:, None] * diagonal
            step = np.linalg.solve(fisher, score[..., None])[..., 0]
            if not better.any() and np.abs(step).max() < _SMALL_STEP:
                break
            tried = np.clip(found + np.clip(step, -2, 2), [-14, -30, -4], [4, 30, 4])
        better = loss < best_loss
        best[better], best_loss[better] = found[better], loss[better]
    return best


def _slopes(
    found: Values, scaled: Values, total: Values, different: Values
) -> tuple[Values, Values]:
    """Return the gradient of the log-likelihood, ``[K, 3]``, and its Fisher information."""
    share, mistake, shown = _model(found, scaled)
    level = -(1 - share) * mistake * (1 - mistake)
    slopes = np.stack(
        [share * (1 - share) * (1 - mistake), level, level * np.exp(found[:, 2:]) * scaled], axis=1
    )
    precision = 1 / (shown * (1 - shown))
    score = np.einsum("kib,kb->ki", slopes, (different - total * shown) * precision)
    return score, np.einsum("kib,kjb,kb->kij", slopes, slopes, total * precision)


def _model(found: Values, scaled: Values) -> tuple[Values, Values, Values]:
    """Return the shares of wrong labels, of mistakes and of differing labels, in every bin."""
    share = 1 / (1 + np.exp(-found[:, :1]))
    level = np.clip(found[:, 1:2] + np.exp(found[:, 2:]) * scaled, -40, 40)
    mistake = 1 / (1 + np.exp(level))
    return share, mistake, np.clip(share + (1 - share) * mistake, 1e-12, 1 - 1e-12)


def _loss(found: Values, scaled: Values, total: Values, different: Values) -> Values:
    _, _, shown = _model(found, scaled)
    likely = different * np.log(shown) + (total - different) * np.log1p(-shown)
    loss: Values = -likely.sum(axis=1)
    return loss


# ------------------------------------------------------------------------------ what is left


def _left(label: Values, rival: Values) -> Values:
    """Return the log of the label's share of the probability that the model leaves to others.

    It is rounded to two decimals, and the rest counts as at least a millionth. With two classes,
    all of the rest belongs to the label, and rounding, which grows with the confidence, must not
    look like a fact of its own.
    """
    rest = np.maximum(1 - rival, label)
    told = np.log(np.maximum(label, 1e-38)) - np.log(np.maximum(rest, 1e-38))
    beyond = np.log(np.maximum(label, 1e-38)) - np.log(_LEAST_LEFT)
    left: Values = np.where(rest > _LEAST_LEFT, told, np.minimum(beyond, 0))
    return left.round(2)


@dataclass(frozen=True)
class _Facts:
    """What is known about disagreements besides the confidence.

    Attributes:
        left: log of the label's share of the probability that the model leaves to other classes.
            If the model is mistaken, it mostly leaves much to the right class, so the chance of a
            wrong label never rises with ``left``.
        top: the class that the model predicts.
        label: the class that the label names.
    """

    left: Values
    top: NDArray[np.int32]
    label: NDArray[np.int32]


def _sharpened(
    chance: Values, facts: _Facts, num_classes: int, belief: float
) -> tuple[Values, Values]:
    """Return the chances of disagreements, by EM over two more facts.

    Args:
        chance: chances from the confidence alone.
        facts: facts about the same disagreements.
        num_classes: number of classes that the model can predict.
        belief: weight of which classes are confused, up to 1.

    Returns:
        the chances, and for each class how similar wrong labels and mistakes are: the chance that
        one of each names the same other class.
    """
    left, top, label = facts.left, facts.top, facts.label
    prior = np.log(np.clip(chance, 1e-6, 1 - 1e-6)) - np.log1p(-np.clip(chance, 1e-6, 1 - 1e-6))
    bins = min(20, len(left) // 50)
    edges = np.quantile(left, np.linspace(0, 1, bins + 1)[1:-1]) if bins > 2 else np.empty(0)
    place = np.searchsorted(edges, left)
    # one number per pair of classes: the predicted class in the upper half, the label in the lower
    pairs, pair = np.unique(top.astype(np.int64) << 32 | label, return_inverse=True)
    _, owner = np.unique(pairs >> 32, return_inverse=True)
    usual = np.bincount(pair) / np.bincount(owner[pair])[owner]
    weight = chance
    for _ in range(30):
        odds = prior + _by_what_is_left(weight, place, len(edges) + 1)[place]
        wrong, mistaken = (
            (np.bincount(pair, part) + _PSEUDO * usual)
            / (np.bincount(owner[pair], part)[owner] + _PSEUDO)
            for part in (weight, 1 - weight)
        )
        odds += belief * np.log(wrong / mistaken)[pair]
        weight = 1 / (1 + np.exp(-odds))
    alike = np.bincount(pairs >> 32, wrong * mistaken, num_classes)
    return weight, alike.astype(np.float64)


def _by_what_is_left(weight: Values, place: NDArray[np.int64], bins: int) -> Values:
    wrong, mistaken = (np.bincount(place, part, bins) + 1 for part in (weight, 1 - weight))
    ratio = np.log(wrong / wrong.sum()) - np.log(mistaken / mistaken.sum())
    return never_rising(ratio, np.bincount(place, minlength=bins).astype(np.float64))


# ------------------------------------------------------------------------------ along the ranking


def _falling(chance: Values) -> Values:
    """Return chances in order of rank, averaged so that they never rise, in at most 1,000 steps."""
    if not len(chance):
        return chance
    # steps of growing length, because people look at the first ranks
    ends = np.unique(np.geomspace(1, len(chance), 1000).round().astype(np.int64))
    starts = np.r_[0, ends[:-1]]
    sizes = (ends - starts).astype(np.float64)
    means = np.add.reduceat(chance, starts) / sizes
    return np.repeat(never_rising(means, sizes), ends - starts)


def never_rising(values: Values, weights: Values) -> Values:
    """Return the nearest values that never rise, by pooling neighbours (isotonic regression)."""
    means: list[float] = []
    sizes: list[float] = []
    lengths: list[int] = []
    for value, weight in zip(values.tolist(), np.maximum(weights, 1e-9).tolist(), strict=True):
        mean, size, length = value, weight, 1
        while means and means[-1] < mean:
            size += sizes[-1]
            mean += (means.pop() - mean) * sizes.pop() / size
            length += lengths.pop()
        means.append(mean)
        sizes.append(size)
        lengths.append(length)
    return np.repeat(means, lengths)
