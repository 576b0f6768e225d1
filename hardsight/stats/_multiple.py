"""Correction of p-values for many tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hardsight.errors import OptionError
from hardsight.stats._inputs import Floats, check_choice, columns


def adjusted_p_values(p_values: ArrayLike, *, method: str = "holm") -> Floats:
    r"""Return p-values corrected for the number of hypotheses tested.

    With :math:`p_{(1)} \le \dots \le p_{(m)}`:

    - ``"holm"``: :math:`\max_{j \le i} \min(1, (m - j + 1)\,p_{(j)})`. This keeps the chance of
      any false discovery below the level, however the tests depend on each other.
    - ``"bh"`` (Benjamini-Hochberg): :math:`\min_{j \ge i} \min(1, m\,p_{(j)} / j)`. This keeps the
      expected share of false discoveries below the level, for independent or positively dependent
      tests.

    Args:
        p_values: ``[M]``, in [0, 1].
        method: ``"holm"`` or ``"bh"``.

    Returns:
        ``[M]`` in the order of ``p_values``; no p-value becomes smaller.

    Raises:
        NonFiniteError: a p-value is NaN.
        OptionError: a p-value is outside [0, 1].

    Example:
        >>> adjusted_p_values([0.01, 0.04, 0.03, 0.005]).round(4)
        array([0.03, 0.06, 0.06, 0.02])
        >>> adjusted_p_values([0.01, 0.04, 0.03, 0.005], method="bh").round(4)
        array([0.02, 0.04, 0.04, 0.02])

    Reference:
        Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of
        Statistics 1979. Benjamini and Hochberg, Controlling the false discovery rate, JRSS-B 1995.
    """
    check_choice("method", method, ("holm", "bh"))
    raw = columns(p_values=p_values, least=0)["p_values"]
    if ((raw < 0) | (raw > 1)).any():
        raise OptionError(
            f"expected p-values in [0, 1], got values from {raw.min():g} to {raw.max():g}"
        )
    # stable, so equal p-values keep their order and the result does not depend on the platform
    order = np.argsort(raw, kind="stable")
    m = len(raw)
    if method == "holm":
        # Holm: the smallest is multiplied by m, the next by m - 1, and the order must not change
        raised = np.maximum.accumulate(raw[order] * np.arange(m, 0, -1))
    else:
        # Benjamini-Hochberg, starting from the largest
        raised = np.minimum.accumulate((raw[order] * m / np.arange(1, m + 1))[::-1])[::-1]
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(raised, 1)
    return adjusted
