"""Two models on the same examples: differences, each with a paired test."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardsight.evaluate import brier_score, negative_log_likelihood
from hardsight.run._card_pass import Collected
from hardsight.scores import logit_margin
from hardsight.stats import compare_auroc, mcnemar, paired_bootstrap

Indicators: TypeAlias = dict[str, NDArray[np.float64]]
Masks: TypeAlias = dict[tuple[str, float], NDArray[np.bool_]]
_RESAMPLES = 1000


def compared_outputs(first: Collected, second: Collected) -> list[dict[str, Any]]:
    """Accuracy by McNemar, and means per example by bootstrap; differences are second - first."""
    one, other = second.right, first.right
    test = mcnemar(one, other)
    rows = [
        _row("top1", "mcnemar", float(one.mean()), float(other.mean()), test,
             detail=f"right alone: first {test.only_second}, second {test.only_first}")
    ]  # fmt: skip
    both = np.flatnonzero(first.usable & second.usable)
    if len(both) < 2:
        return rows
    measures = {
        "nll": lambda z, x, y: negative_log_likelihood(z, y),
        "brier": lambda z, x, y: brier_score(z, y),
        "margin": lambda z, x, y: logit_margin(z, y),
    }
    for key, measure in measures.items():
        ones, others = second.per_row(both, measure), first.per_row(both, measure)
        found = paired_bootstrap(ones, others, resamples=_RESAMPLES)
        rows.append(_row(key, "bootstrap", float(ones.mean()), float(others.mean()), found))
    return rows


def compared_indicators(
    first: list[Indicators], second: list[Indicators], specs: list[str]
) -> list[dict[str, Any]]:
    """AUROC of each indicator on each foreign dataset, by DeLong's test.

    Args:
        first: indicators of the first model, on the own data and then on each foreign dataset.
        second: those of the second model.
        specs: names of the foreign datasets.
    """
    rows = []
    for place, spec in enumerate(specs, start=1):
        for name in first[0]:
            ones = np.concatenate([first[0][name], first[place][name]])
            others = np.concatenate([second[0][name], second[place][name]])
            if len(ones) != len(others) or min(np.ptp(ones), np.ptp(others)) == 0:
                continue  # examples one model has no finite output for; a constant indicator
            is_foreign = np.arange(len(ones)) >= len(first[0][name])
            test = compare_auroc(others, ones, is_foreign)
            detail = f"{name} on {spec}"
            rows.append(_row("auroc", "delong", test.first, test.second, test, detail=detail))
    return rows


def compared_masks(first: Masks, second: Masks) -> list[dict[str, Any]]:
    """Accuracy under each attack by McNemar, on the same examples."""
    rows = []
    for (attack, epsilon), mask in second.items():
        other = first.get((attack, epsilon))
        if epsilon == 0 or other is None or len(other) != len(mask):
            continue
        test = mcnemar(mask, other)
        rows.append(_row(attack, "mcnemar", float(mask.mean()), float(other.mean()), test,
                         detail=f"epsilon {epsilon:.4g}"))  # fmt: skip
    return rows


def _row(
    key: str, test: str, second: float, first: float, found: Any, *, detail: str = ""
) -> dict[str, Any]:
    return {
        "key": key,
        "detail": detail,
        "first": first,
        "second": second,
        "difference": found.difference,
        "low": getattr(found, "low", None),
        "high": getattr(found, "high", None),
        "p": found.p,
        "n": found.n,
        "test": test,
    }
