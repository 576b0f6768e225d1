"""The classes nearest to an example, as far as its table tells; suspects come from the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.gallery import class_numbers
from hardsight.suspects import Suspects as Suspects
from hardsight.suspects import suspects_of as suspects_of

if TYPE_CHECKING:
    from hardsight.table import ScoreTable


def nearest_classes(table: ScoreTable, row: int) -> list[dict[str, Any]]:
    """Classes by their angle to an example, nearest first, as far as the table tells.

    A table has the angle to the labelled class and the lead over the nearest other one. That one
    is taken for the prediction if it is nearer than the label and the model does not say the label;
    else its name is not known: lengths and biases also decide what a model says.
    """
    if not {"target_angle", "angular_margin"} <= set(table.columns):
        return []
    own = float(table.column("target_angle")[row])
    other = own + float(table.column("angular_margin")[row])
    if not (np.isfinite(own) and np.isfinite(other)):
        return []
    label = int(class_numbers(table, "label")[row])
    prediction = int(class_numbers(table, "prediction")[row])
    rival = prediction if prediction != label and other < own else -1
    found = [{"label": label, "angle": own}, {"label": rival, "angle": other}]
    return sorted(found, key=lambda one: float(one["angle"]))
