"""Summaries of training dynamics: one number per example from its history over epochs.

A history is ``[E, N]``: a row per epoch, a column per example, NaN where an example was not seen
in that epoch. Every summary is over the epochs in which the example was seen; an example never
seen gets NaN. Maths in float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from hardsight.errors import OptionError, ShapeError
from hardsight.registry import summary

Values = NDArray[np.float64]


@summary(
    "mean_avh",
    inputs=("avh",),
    range=(0.0, 1.0),
    higher_is_harder=True,
    meaning="Angular visual hardness, averaged over the epochs of training. Steadier than the "
    "value at the end; with C classes, 1/C means that the model could not tell them apart.",
    title="Mean AVH",
)
def mean_avh(avh: ArrayLike) -> Values:
    r"""Angular visual hardness, averaged over epochs.

    .. math:: \frac{1}{|T_i|} \sum_{t \in T_i} \mathrm{AVH}_t(x_i)

    Args:
        avh: hardness in every epoch, ``[E, N]``.

    Returns:
        ``[N]`` in ``[0, 1]``; larger is harder. NaN for an example never seen.

    Raises:
        ShapeError: the history is not a matrix.

    Example:
        >>> mean_avh([[0.25, 0.5], [0.75, float("nan")]])
        array([0.5, 0.5])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Eq. (1), the mean over epochs.
    """
    return _mean_seen(_as_history(avh, "avh"))


@summary(
    "final_avh",
    inputs=("avh",),
    range=(0.0, 1.0),
    higher_is_harder=True,
    meaning="Angular visual hardness in the last epoch the example was seen in. What was hard "
    "early and has been learned since is low here.",
    title="Final AVH",
)
def final_avh(avh: ArrayLike) -> Values:
    r"""Angular visual hardness in the last epoch the example was seen in.

    .. math:: \mathrm{AVH}_{\max T_i}(x_i)

    Args:
        avh: hardness in every epoch, ``[E, N]``.

    Returns:
        ``[N]`` in ``[0, 1]``; larger is harder. NaN for an example never seen.

    Raises:
        ShapeError: the history is not a matrix.

    Example:
        >>> final_avh([[0.25, 0.5], [0.75, float("nan")]])
        array([0.75, 0.5 ])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Eq. (1).
    """
    return last_seen(_as_history(avh, "avh"))


@summary(
    "aum",
    inputs=("logit_margin",),
    range=(-math.inf, math.inf),
    higher_is_harder=False,
    meaning="Area under the margin: the logit margin averaged over the epochs of training. Well "
    "below 0, the model spent its training preferring another class, so the label is suspect.",
    title="Area under the margin",
    judge=8,
)
def area_under_margin(logit_margin: ArrayLike) -> Values:
    r"""Logit margin, averaged over epochs.

    .. math:: \mathrm{AUM}_i = \frac{1}{|T_i|} \sum_{t \in T_i}
        \Bigl( z_{y_i}^{(t)} - \max_{j \neq y_i} z_j^{(t)} \Bigr)

    Args:
        logit_margin: margin of the labelled class in every epoch, ``[E, N]``.

    Returns:
        ``[N]``; smaller is harder, negative points at a wrong label. NaN for an example never
        seen.

    Raises:
        ShapeError: the history is not a matrix.

    Example:
        >>> area_under_margin([[2.0, -1.0], [4.0, -3.0]])
        array([ 3., -2.])

    Reference:
        Pleiss et al., Identifying Mislabeled Data using the Area Under the Margin Ranking,
        NeurIPS 2020, Eqs. (1) and (2).
    """
    return _mean_seen(_as_history(logit_margin, "logit_margin"))


@summary(
    "forgetting_events",
    inputs=("correct",),
    range=(0.0, math.inf),
    higher_is_harder=True,
    meaning="How often the example was classified rightly and then wrongly in the next epoch. "
    "0 means never forgotten; an example that was never learned counts every epoch it was seen in.",
)
def forgetting_events(correct: ArrayLike) -> Values:
    r"""How often a right prediction turned wrong from one epoch to the next.

    .. math:: \sum_{t} \mathbb{1}[c_i^{(t)} = 1 \wedge c_i^{(t+1)} = 0]

    where t and t + 1 are consecutive among the epochs the example was seen in.

    Args:
        correct: 1 where the prediction was right, 0 where wrong, ``[E, N]``.

    Returns:
        ``[N]``, whole numbers; larger is harder. An example never learned gets the number of
        epochs it was seen in, more than any learned example can have. NaN if never seen.

    Raises:
        ShapeError: the history is not a matrix.

    Example:
        >>> forgetting_events([[1, 0, 1], [0, 0, 1], [1, 0, 1]])
        array([1., 3., 0.])

    Reference:
        Toneva et al., An Empirical Study of Example Forgetting during Deep Neural Network
        Learning, ICLR 2019, Definition 1.
        Deviation: an example never learned is "infinitely" forgotten there; here its count is
        finite and still the largest.
    """
    history = _as_history(correct, "correct")
    seen = _epochs_seen(history)
    before = np.full(history.shape[1], math.nan)
    events = np.zeros(history.shape[1])
    for now in history:
        # NaN (not seen in that epoch) equals neither
        events += (before == 1) & (now == 0)
        before = np.where(np.isnan(now), before, now)
    never_learned = ~(history == 1).any(axis=0)
    # an example that was never learned gets more than any that was learned and forgotten
    return np.where(seen == 0, math.nan, np.where(never_learned, seen, events))


@summary(
    "early_el2n",
    inputs=("el2n",),
    range=(0.0, math.sqrt(2)),
    higher_is_harder=True,
    meaning="Distance between the softmax output and the one-hot label, averaged over the first "
    "epochs. Names, early in training, the examples that matter for the decision boundary.",
    title="Early EL2N",
)
def early_el2n(el2n: ArrayLike, *, window_epochs: int = 10) -> Values:
    r"""EL2N, averaged over the first epochs.

    .. math:: \frac{1}{|T_i^{\le w}|} \sum_{t \in T_i,\, t \le w} \lVert p^{(t)} - e_y \rVert_2

    Args:
        el2n: distance between softmax output and one-hot label in every epoch, ``[E, N]``.
        window_epochs: how many epochs count as early, ``w``; later ones are ignored.

    Returns:
        ``[N]`` in ``[0, sqrt(2)]``; larger is harder. NaN for an example not seen that early.

    Raises:
        ShapeError: the history is not a matrix.
        OptionError: the window holds no epoch.

    Example:
        >>> early_el2n([[1.0, 0.5], [0.5, 0.25], [0.0, 0.0]], window_epochs=2)
        array([0.75 , 0.375])

    Reference:
        Paul et al., Deep Learning on a Data Diet, NeurIPS 2021, Definition 2.2.
        Deviation: the mean over epochs of one run, not over the initialisations of many runs.
    """
    if window_epochs < 1:
        raise OptionError(f"expected window_epochs to be at least 1, got {window_epochs}")
    return _mean_seen(_as_history(el2n, "el2n")[:window_epochs])


@summary(
    "map_confidence",
    inputs=("confidence",),
    range=(0.0, 1.0),
    higher_is_harder=False,
    meaning="Probability of the labelled class, averaged over the epochs of training: the "
    "vertical axis of a data map. Low is hard to learn, or wrongly labelled.",
    title="Confidence over epochs",
    short_title="Confidence",
    on_card=4,
)
def map_confidence(confidence: ArrayLike) -> Values:
    r"""Probability of the labelled class, averaged over epochs.

    .. math:: \hat\mu_i = \frac{1}{|T_i|} \sum_{t \in T_i} p_{y_i}^{(t)}

    Args:
        confidence: probability of the labelled class in every epoch, ``[E, N]``.

    Returns:
        ``[N]`` in ``[0, 1]``; smaller is harder. NaN for an example never seen.

    Raises:
        ShapeError: the history is not a matrix.

    Example:
        >>> map_confidence([[0.25, 1.0], [0.75, 1.0]])
        array([0.5, 1. ])

    Reference:
        Swayamdipta et al., Dataset Cartography, EMNLP 2020, Section 2, confidence.
    """
    return _mean_seen(_as_history(confidence, "confidence"))


@summary(
    "map_variability",
    inputs=("confidence",),
    range=(0.0, 0.5),
    higher_is_harder=True,
    meaning="Spread over the epochs of the probability of the labelled class: the horizontal axis "
    "of a data map. High is ambiguous: the model kept changing its mind.",
    title="Variability over epochs",
)
def map_variability(confidence: ArrayLike) -> Values:
    r"""Standard deviation over epochs of the probability of the labelled class.

    .. math:: \hat\sigma_i = \sqrt{\frac{1}{|T_i|} \sum_{t \in T_i}
        \bigl(p_{y_i}^{(t)} - \hat\mu_i\bigr)^2}

    Args:
        confidence: probability of the labelled class in every epoch, ``[E, N]``.

    Returns:
        ``[N]`` in ``[0, 0.5]``; larger is more ambiguous. 0 after one epoch, NaN if never seen.

    Raises:
        ShapeError: the history is not a matrix.

    Example:
        >>> map_variability([[0.25, 1.0], [0.75, 1.0]])
        array([0.25, 0.  ])

    Reference:
        Swayamdipta et al., Dataset Cartography, EMNLP 2020, Section 2, variability.
    """
    history = _as_history(confidence, "confidence")
    # divided by the number of epochs seen, not by one less, as in the paper
    return np.sqrt(_mean_seen((history - _mean_seen(history)) ** 2))


@summary(
    "map_correctness",
    inputs=("correct",),
    range=(0.0, 1.0),
    higher_is_harder=False,
    meaning="Share of the epochs in which the prediction was right: the colour of a data map. "
    "0 was never learned, 1 was right from the start.",
    title="Share of epochs right",
)
def map_correctness(correct: ArrayLike) -> Values:
    r"""Share of the epochs in which the prediction was right.

    .. math:: \frac{1}{|T_i|} \sum_{t \in T_i} c_i^{(t)}

    Args:
        correct: 1 where the prediction was right, 0 where wrong, ``[E, N]``.

    Returns:
        ``[N]`` in ``[0, 1]``; smaller is harder. NaN for an example never seen.

    Raises:
        ShapeError: the history is not a matrix.

    Example:
        >>> map_correctness([[1, 0], [0, 0]])
        array([0.5, 0. ])

    Reference:
        Swayamdipta et al., Dataset Cartography, EMNLP 2020, Section 2, correctness.
    """
    return _mean_seen(_as_history(correct, "correct"))


@summary(
    "first_learned_epoch",
    inputs=("correct",),
    range=(1.0, math.inf),
    higher_is_harder=True,
    meaning="The first epoch, counted from 1, in which the prediction was right. One more than "
    "the number of epochs means that it never was.",
    short_title="Learned in",
)
def first_learned_epoch(correct: ArrayLike) -> Values:
    r"""The first epoch, counted from 1, in which the prediction was right.

    .. math:: \min \{ t : c_i^{(t)} = 1 \}, \quad \text{or } E + 1 \text{ if there is none}

    Args:
        correct: 1 where the prediction was right, 0 where wrong, ``[E, N]``.

    Returns:
        ``[N]`` in ``[1, E + 1]``, whole numbers; larger is harder. NaN for an example never seen.

    Raises:
        ShapeError: the history is not a matrix.

    Example:
        >>> first_learned_epoch([[0, 1, 0], [1, 0, 0]])
        array([2., 1., 3.])

    Reference:
        Toneva et al., An Empirical Study of Example Forgetting during Deep Neural Network
        Learning, ICLR 2019, Section 3, first learning events, counted in epochs.
    """
    history = _as_history(correct, "correct")
    # NaN is not 1: an epoch without the example does not teach it
    right = history == 1
    first = np.where(right.any(axis=0), right.argmax(axis=0) + 1, len(history) + 1)
    return np.where(_epochs_seen(history) == 0, math.nan, first)


@summary(
    "angle_velocity",
    inputs=("target_angle",),
    range=(-math.pi, math.pi),
    higher_is_harder=True,
    meaning="How fast, in radians per epoch, the angle between the example and its class grows. "
    "Below 0 the example turns towards its class; above 0 training turns it away.",
    unit="rad per epoch",
)
def angle_velocity(target_angle: ArrayLike) -> Values:
    r"""Slope over epochs of the angle between an example and its class, by least squares.

    .. math:: \frac{\sum_{t \in T_i} (t - \bar t_i)(\theta_i^{(t)} - \bar\theta_i)}
        {\sum_{t \in T_i} (t - \bar t_i)^2}

    Args:
        target_angle: angle to the labelled class's weight in every epoch, ``[E, N]``, radians.

    Returns:
        ``[N]`` in ``[-pi, pi]``, radians per epoch; larger is harder. NaN for an example seen in
        fewer than two epochs.

    Raises:
        ShapeError: the history is not a matrix.

    Example:
        >>> angle_velocity([[1.5, 1.0], [1.0, 1.25], [0.5, 1.5]])
        array([-0.5 ,  0.25])

    Reference:
        Ours; the trend that Chen et al., Angular Visual Hardness, ICML 2020, Section 4, draw.
    """
    history = _as_history(target_angle, "target_angle")
    epochs = np.arange(len(history), dtype=np.float64)[:, None]
    # time counts only where there is a value
    epochs = np.where(np.isnan(history), math.nan, epochs)
    time = epochs - _mean_seen(epochs)
    spread = np.nansum(time**2, axis=0)
    moved = np.nansum(time * (history - _mean_seen(history)), axis=0)
    # a single epoch has no slope
    return np.where(spread > 0, moved / np.where(spread > 0, spread, 1.0), math.nan)


@summary(
    "suspicion",
    inputs=("logit_margin",),
    range=(0.0, 1.0),
    higher_is_harder=True,
    meaning="Chance that the label loses against its strongest rival class, averaged over the "
    "epochs of training, the first few counting less. Near 1 the label is probably wrong; near 0 "
    "the model believed it all along.",
    judge=0,
    on_card=1,
)
def suspicion(logit_margin: ArrayLike, *, ramp_epochs: int = 10) -> Values:
    r"""Chance that the label loses against its strongest rival, averaged over epochs.

    .. math:: S_i = \frac{\sum_{t \in T_i} w_t\, \sigma(-m_i^{(t)})}{\sum_{t \in T_i} w_t},
        \quad \sigma(-m_i) = \frac{\max_{j \neq y_i} p_j}{p_{y_i} + \max_{j \neq y_i} p_j},
        \quad w_t = \min(t, R)^2

    where m is the logit margin, T are the epochs in which the example was seen, counted from 1,
    and R is ``ramp_epochs``. Our default for finding label errors. A duel between two classes
    tells a wrong label from a picture that the model merely finds hard. Its chance, unlike the
    margin itself, cannot grow with the logits: epochs in which a wrong label is memorised add
    nothing, while in a mean of margins they outweigh those before. The first epochs, in which the
    network knows little yet, count less. Once it has learned, and before it memorises, the logit
    margin of the final model is as good a judge; afterwards it is not.

    Args:
        logit_margin: logit of the label minus the largest other one in every epoch, ``[E, N]``.
        ramp_epochs: the epoch from which all count alike, R.

    Returns:
        ``[N]`` in ``[0, 1]``; larger is more suspect. 0.5 where the label and its rival were
        equally likely throughout. NaN for an example never seen.

    Raises:
        ShapeError: the history is not a matrix.
        OptionError: the ramp is shorter than one epoch.

    Example:
        >>> # odds of the label against its rival: 3 to 1 and 1 to 3 in the first epoch, then even
        >>> suspicion(np.log([[3.0, 1 / 3], [1.0, 1.0]]))  # (1 * 1/4 + 4 * 1/2) / 5
        array([0.45, 0.55])

    Reference:
        Ours; the form and R were chosen on noisy labels of digits and of small parts of MNIST and
        CIFAR-10. Its parent is Pleiss et al., Identifying Mislabeled Data using the Area Under the
        Margin Ranking, NeurIPS 2020, Eqs. (1) and (2), the mean of the margin itself.
    """
    if ramp_epochs < 1:
        raise OptionError(f"expected ramp_epochs to be at least 1, got {ramp_epochs}")
    margin = _as_history(logit_margin, "logit_margin")
    weights = np.where(np.isnan(margin), np.nan, _ramp(len(margin), ramp_epochs))
    # weights of unseen epochs are NaN, so they leave both means alike
    return _mean_seen(weights * expit(-margin)) / _mean_seen(weights)


def strongest_rival(
    predictions: ArrayLike, labels: ArrayLike, *, ramp_epochs: int = 10
) -> NDArray[np.int64]:
    """The class that was predicted most often instead of the label, ``[N]``; -1 if there is none.

    Epochs have the weights of :func:`suspicion`, so the result is the class that the suspicion
    points to, also after the label was memorised.

    Args:
        predictions: predicted class in every epoch, ``[E, N]``.
        labels: class in every epoch, ``[E, N]``; -1 where the example was not seen.
        ramp_epochs: the epoch from which all count alike.

    Returns:
        a class, the first of equal ones; -1 if the label was predicted in every epoch.

    Example:
        >>> strongest_rival([[2, 0], [1, 0], [0, 0]], [[0, 0], [0, 0], [0, 0]])
        array([ 1, -1])
    """
    predicted, label = np.asarray(predictions), np.asarray(labels)
    counts = (label >= 0) & (predicted >= 0) & (predicted != label)
    weights = np.where(counts, _ramp(len(label), ramp_epochs), 0)
    # per example, sort epochs by predicted class: a run of equal classes is then one candidate
    order = np.argsort(predicted, axis=0, kind="stable")
    classes = np.take_along_axis(predicted, order, axis=0)
    totals = np.cumsum(np.take_along_axis(weights, order, axis=0), axis=0)
    is_last = np.ones(classes.shape, np.bool_)  # the last epoch of its run
    is_last[:-1] = classes[1:] != classes[:-1]
    # the votes of a class are the difference of the running totals at the ends of two runs
    before = np.maximum.accumulate(np.where(is_last, totals, 0), axis=0)
    votes = np.where(is_last, totals, 0)
    votes[1:] -= np.where(is_last[1:], before[:-1], 0)
    best = votes.argmax(axis=0)[None]
    rival = np.take_along_axis(classes, best, axis=0)[0]
    # without a single vote, the label was never beaten
    won = np.take_along_axis(votes, best, axis=0)[0] > 0
    return np.where(won, rival, -1).astype(np.int64)


def rival_confidence(confidence: ArrayLike, logit_margin: ArrayLike) -> Values:
    """Probability of the strongest class beside the label, averaged over epochs, ``[N]``.

    It is computed from the label's probability and the margin of each epoch; it does not follow
    from their means over epochs.

    Args:
        confidence: probability of the labelled class in every epoch, ``[E, N]``.
        logit_margin: margin of the labelled class in every epoch, ``[E, N]``.

    Example:
        >>> rival_confidence([[0.25, 0.5], [0.5, 0.5]], np.log([[0.5, 1.0], [2.0, 4.0]]))
        array([0.375 , 0.3125])
    """
    label, margin = _as_history(confidence, "confidence"), _as_history(logit_margin, "logit_margin")
    # clipped so that exp cannot overflow: e^80 times the smallest float32 probability is above 1
    return _mean_seen(np.minimum(label * np.exp(-np.clip(margin, -80, 80)), 1 - label))


def _ramp(epochs: int, ramp_epochs: int) -> NDArray[np.int64]:
    """Weight of each epoch, ``[E, 1]``: small for the first epochs, when the model knows little."""
    # squared: the first epoch counts a hundredth of a late one
    ramp: NDArray[np.int64] = np.minimum(np.arange(1, epochs + 1), ramp_epochs)[:, None] ** 2
    return ramp


def _as_history(values: ArrayLike, name: str) -> Values:
    """A history as a float64 matrix."""
    history: Values = np.asarray(values, dtype=np.float64)
    if history.ndim != 2:
        raise ShapeError(
            f"expected {name} to have a row per epoch and a column per example, [E, N], got "
            f"{list(history.shape)}"
        )
    return history


def _epochs_seen(history: Values) -> Values:
    """In how many epochs each example was seen, ``[N]``."""
    seen: Values = (~np.isnan(history)).sum(axis=0).astype(np.float64)
    return seen


def _mean_seen(history: Values) -> Values:
    """Mean over the epochs seen, ``[N]``; NaN if there is none."""
    seen = _epochs_seen(history)
    return np.where(seen > 0, np.nansum(history, axis=0) / np.maximum(seen, 1), math.nan)


def last_seen(history: Values) -> Values:
    """Value of the last epoch seen, ``[N]``; NaN if there is none."""
    last = np.full(history.shape[1], math.nan)
    for values in history:
        last = np.where(np.isnan(values), last, values)
    return last
