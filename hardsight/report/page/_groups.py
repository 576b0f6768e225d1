"""Prepare groups for a page: the worst first, and not thousands of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_ROWS = 200


def group_view(
    name: str, rows: Sequence[Mapping[str, Any]], findings: Mapping[str, Any]
) -> dict[str, Any]:
    """The values that the template needs for one attribute.

    Args:
        name: the attribute.
        rows: :class:`hardsight.stats.GroupNumbers` as plain values.
        findings: values for all attributes: ``tested_from`` and ``hardness_title``.
    """
    least = findings["tested_from"]
    return {
        "name": name,
        "rows": rows[:_MOST_ROWS],
        "hidden": max(0, len(rows) - _MOST_ROWS),
        "small": sum(row["n"] < least for row in rows),
        "least": least,
        "has_hardness": any(row["hardness"] for row in rows),
        "hardness_title": findings["hardness_title"],
        "has_confidence": any(row["gap"] for row in rows),
    }
