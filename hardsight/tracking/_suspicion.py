"""How much a label is to be doubted, from the dynamics of training."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from hardsight.errors import OptionError
from hardsight.registry import summary
from hardsight.tracking._histories import Values, as_history, mean_seen


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
    nothing, where in a mean of margins they outweigh those before. The first epochs, in which the
    network knows little yet, count less. Once it has learned, and before it memorises, the logit
    margin of the final model is as good a judge; afterwards it is none.

    Args:
        logit_margin: logit of the label minus the largest other one in every epoch, ``[E, N]``.
        ramp_epochs: the epoch from which all count alike, R.

    Returns:
        ``[N]`` in ``[0, 1]``; larger is more suspect. 0.5 where the label and its rival were
        equally likely throughout. NaN for an example never seen.

    Raises:
        ShapeError: the history is no matrix.
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
    margin = as_history(logit_margin, "logit_margin")
    weights = np.minimum(np.arange(1, len(margin) + 1), ramp_epochs)[:, None] ** 2
    weights = np.where(np.isnan(margin), np.nan, weights)
    return mean_seen(weights * expit(-margin)) / mean_seen(weights)
