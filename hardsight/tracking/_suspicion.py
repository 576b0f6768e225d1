"""How much a label is to be doubted, from the dynamics of training."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hardsight.errors import ShapeError
from hardsight.registry import summary
from hardsight.tracking._histories import Values, as_history, mean_seen


@summary(
    "suspicion",
    inputs=("loss", "logit_margin"),
    range=(0.0, 1.0),
    higher_is_harder=True,
    meaning="How strongly, averaged over the epochs of training, the model believed another class "
    "instead of the label. Near 1 the label is probably wrong, near 0 it was believed from the "
    "start; in between the model could not tell, or came to believe it late.",
)
def suspicion(loss: ArrayLike, logit_margin: ArrayLike) -> Values:
    r"""Probability of the strongest other class over that of the label, averaged over epochs.

    .. math:: S_i = \frac12 - \frac{1}{2 |T_i|} \sum_{t \in T_i}
        \Bigl( p_{y_i}^{(t)} - \max_{j \neq y_i} p_j^{(t)} \Bigr)

    where T are the epochs in which the example was seen. Our default for finding label errors.
    Early epochs speak before a wrong label is memorised; probabilities, unlike logits, give every
    epoch the same weight, so that the last ones cannot drown the first.

    Args:
        loss: cross-entropy, minus the log-probability of the label, in every epoch, ``[E, N]``.
        logit_margin: logit of the label minus the largest other one in every epoch, ``[E, N]``.

    Returns:
        ``[N]`` in ``[0, 1]``; larger is more suspect. 1 where another class had all the probability
        in every epoch, 0.5 where the label and another class were equally likely, 0 where the
        label had all of it. NaN for an example never seen.

    Raises:
        ShapeError: a history is no matrix, or the two differ in shape.

    Example:
        >>> # probabilities of the label and of the strongest other class: 0.75, 0.25; 0.25, 0.75
        >>> loss = -np.log([[0.75, 0.25], [0.75, 0.25]])
        >>> suspicion(loss, np.log([[3.0, 1 / 3], [3.0, 1 / 3]])).round(2)
        array([0.25, 0.75])

    Reference:
        Ours, chosen on noisy labels of digits and MNIST and confirmed on CIFAR-10. The margin is
        that of Pleiss et al., Identifying Mislabeled Data using the Area Under the Margin Ranking,
        NeurIPS 2020, in probabilities instead of logits.
    """
    own, margin = as_history(loss, "loss"), as_history(logit_margin, "logit_margin")
    if own.shape != margin.shape:
        raise ShapeError(
            "expected loss and logit_margin of the same epochs and examples, got "
            f"{list(own.shape)} and {list(margin.shape)}"
        )
    # log p_other = log p_label - margin; rounding must not lift it above 0
    difference = np.exp(-own) - np.exp(-np.maximum(own + margin, 0.0))
    return 0.5 - mean_seen(difference) / 2
