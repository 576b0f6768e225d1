"""Label errors planted on purpose, to see who finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hardsight.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def with_label_errors(
    labels: NDArray[np.int64], *, num_classes: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Labels of which a share is wrong, each wrong class equally likely.

    Args:
        labels: class indices in ``[0, num_classes)``, ``[N]``.
        num_classes: at least 2.
        share: of the examples that get a wrong label, in ``[0, 1]``.
        seed: of the draw.

    Returns:
        the new labels ``[N]``, and which of them are wrong, ``[N]``.

    Example:
        >>> labels, wrong = with_label_errors(np.zeros(10, int), num_classes=3, share=0.2, seed=0)
        >>> int(wrong.sum()), bool((labels[wrong] != 0).all())
        (2, True)
    """
    if not 0 <= share <= 1 or num_classes < 2:
        raise OptionError(
            f"expected share in [0, 1] and at least 2 classes, got {share} and {num_classes}"
        )
    draw = np.random.default_rng([seed, 0x1ABE1])  # a purpose of its own: shifts no other draw
    wrong = np.zeros(len(labels), bool)
    wrong[draw.choice(len(labels), round(share * len(labels)), replace=False)] = True
    shift = draw.integers(1, num_classes, size=int(wrong.sum()))
    changed = labels.copy()
    changed[wrong] = (labels[wrong] + shift) % num_classes
    return changed, wrong
