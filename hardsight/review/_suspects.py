"""The classes nearest to an example, as far as the columns of a table tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.gallery import class_numbers
from hardsight.suspects import Suspects as Suspects
from hardsight.suspects import suspects_of as suspects_of

if TYPE_CHECKING:
    from hardsight.table import ScoreTable


def nearest_classes(table: ScoreTable, row: int) -> list[dict[str, Any]]:
    """Classes and their angles to an example, nearest first, as far as the table tells.

    A table has the angle to the labelled class and the angular margin to the nearest other class,
    but not the name of that class. If it is nearer than the label, and the prediction differs from
    the label, it is taken to be the prediction. Otherwise its name is unknown (-1), because the
    prediction also depends on lengths and biases.
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
