"""How much a label is to be doubted, from the dynamics of training."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from hardsight.errors import ShapeError
from hardsight.registry import summary
from hardsight.tracking._histories import Values, as_history, mean_seen

_SURPRISE = 1 / 8  # weight of the loss, in nats, beside a term in [0, 1]


@summary(
    "suspicion",
    inputs=("loss", "logit_margin"),
    range=(0.0, math.inf),
    higher_is_harder=True,
    meaning="How much the model doubted the label, averaged over the epochs of training. Above 1 "
    "another class was believed almost throughout, so the label is probably wrong; near 0 the "
    "label was believed from the start.",
)
def suspicion(loss: ArrayLike, logit_margin: ArrayLike) -> Values:
    r"""How much a label is to be doubted, averaged over epochs; our default for label errors.

    .. math:: S_i = \frac{1}{|T_i|} \sum_{t \in T_i} \left[
        \frac12 \Bigl( 1 - p_{y_i}^{(t)} + \max_{j \neq y_i} p_j^{(t)} \Bigr)
        - \frac18 \log p_{y_i}^{(t)} \right]

    where T are the epochs in which the example was seen. The first term says how far the strongest
    other class is ahead of the label, from 0 to 1: it tells a wrong label from a picture that the
    model merely finds hard, also where two classes are swapped. The second, the surprise at the
    label, orders those that another class has won altogether. Both stay near 0 once a label is
    believed, however large the logits become, so that epochs in which a wrong label is memorised
    cannot outweigh those before, as they can in the mean of logit margins.

    Args:
        loss: cross-entropy, minus the log-probability of the label, in every epoch, ``[E, N]``.
        logit_margin: logit of the label minus the largest other one in every epoch, ``[E, N]``.

    Returns:
        ``[N]`` in ``[0, inf)``; larger is more suspect. Above 1, another class was believed
        almost throughout; near 0, the label was. NaN for an example never seen.

    Raises:
        ShapeError: a history is no matrix, or the two differ in shape.

    Example:
        >>> # probability of the label and of the strongest other class: 3/4, 1/4 and 1/4, 3/4
        >>> loss = -np.log([[0.75, 0.25], [0.75, 0.25]])
        >>> suspicion(loss, np.log([[3.0, 1 / 3], [3.0, 1 / 3]])).round(3)
        array([0.286, 0.923])

    Reference:
        Ours; the form and the 1/8 were chosen on noisy labels of digits, MNIST and a small part
        of CIFAR-10. Relatives: Pleiss et al., Identifying Mislabeled Data using the Area Under the
        Margin Ranking, NeurIPS 2020 (the margin in logits); Swayamdipta et al., Dataset
        Cartography, EMNLP 2020 (the mean probability of the label).
    """
    own, margin = as_history(loss, "loss"), as_history(logit_margin, "logit_margin")
    if own.shape != margin.shape:
        raise ShapeError(
            "expected loss and logit_margin of the same epochs and examples, got "
            f"{list(own.shape)} and {list(margin.shape)}"
        )
    # log p_other = log p_label - margin; rounding must not lift it above 0
    ahead = np.exp(-np.maximum(own + margin, 0.0)) - np.exp(-own)
    return mean_seen((1 + ahead) / 2 + _SURPRISE * own)
