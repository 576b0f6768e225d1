"""Accuracy by group, for the attributes that a table has as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.report.page import group_view
from hardsight.report.table._view import View
from hardsight.stats import group_findings


def groups_of(view: View) -> dict[str, Any] | None:
    """Tables of all attributes and the worst slices; ``None`` for a table without groups."""
    names = [name for name in view.metadata.get("groups", ()) if name in view.table.columns]
    judged = view.right | view.wrong
    if not names or not judged.any():
        return None
    confidence = _confidence(view)
    by = view.gallery.by
    findings = group_findings(
        {name: view.table.column(name)[judged] for name in names},
        view.labels[judged],
        view.predictions[judged],
        hardness=None if by is None else view.values(by)[judged],
        hardness_title="score" if by is None else view.title_of(by),
        confidence=None if confidence is None else confidence[judged],
        classes=[view.class_name(label) for label in range(view.num_classes)],
    )
    return {
        "slices": findings["slices"],
        "least": findings["least"],
        "tables": [
            group_view(name, rows, findings) for name, rows in findings["attributes"].items()
        ],
    }


def _confidence(view: View) -> NDArray[np.float64] | None:
    """Probability of the prediction, from two energies: exp of max(logits) - logsumexp(logits)."""
    if not {"min_energy", "free_energy"} <= set(view.table.columns):
        return None
    with np.errstate(over="ignore"):
        confidence = np.exp(view.values("free_energy") - view.values("min_energy"))
    return np.minimum(confidence, 1.0)
