"""Compare two models on the same examples, each difference with a paired test."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardsight.errors import StatisticError
from hardsight.evaluate import brier_score, negative_log_likelihood
from hardsight.run.evaluate._attacks import Masks
from hardsight.run.loop import Outputs
from hardsight.scores import logit_margin
from hardsight.stats import compare_auroc, mcnemar, paired_bootstrap

Indicators: TypeAlias = dict[str, NDArray[np.float64]]
Rows: TypeAlias = NDArray[np.int64]
_RESAMPLES = 1000


def compared_outputs(
    first: Outputs, second: Outputs, judged: tuple[Rows, Rows]
) -> list[dict[str, Any]]:
    """Compare accuracy by McNemar, and means over examples by bootstrap, as second - first.

    Args:
        first: outputs of the first model.
        second: outputs of the second model, for the same examples.
        judged: rows that the calibration of each model is computed on. NLL and Brier score are
            compared on the same rows, so that they equal those elsewhere on the card.
    """
    mine, base = second.right, first.right
    test = mcnemar(mine, base)
    rows = [
        _row("top1", "mcnemar", float(mine.mean()), float(base.mean()), test,
             detail=f"right alone: first {test.only_second}, second {test.only_first}")
    ]  # fmt: skip
    both, shared = np.flatnonzero(first.usable & second.usable), np.intersect1d(*judged)
    measures = {
        "nll": (lambda z, x, y: negative_log_likelihood(z, y), shared),
        "brier": (lambda z, x, y: brier_score(z, y), shared),
        "margin": (lambda z, x, y: logit_margin(z, y), both),
    }
    for key, (measure, places) in measures.items():
        if len(places) < 2:
            continue
        ones, others = second.per_row(places, measure), first.per_row(places, measure)
        result = paired_bootstrap(ones, others, resamples=_RESAMPLES)
        rows.append(_row(key, "bootstrap", float(ones.mean()), float(others.mean()), result))
    return rows


def compared_indicators(
    first: list[Indicators], second: list[Indicators], specs: list[str]
) -> list[dict[str, Any]]:
    """Compare the AUROC of each indicator on each foreign dataset by DeLong's test.

    Args:
        first: indicators of the first model, on its own data and then on each foreign dataset;
            NaN for an example without a finite output, which is then left out.
        second: those of the second model.
        specs: names of the foreign datasets.
    """
    rows = []
    for place, spec in enumerate(specs, start=1):
        for name in first[0]:
            ones = np.concatenate([first[0][name], first[place][name]])
            others = np.concatenate([second[0][name], second[place][name]])
            both = ~(np.isnan(ones) | np.isnan(others))
            is_foreign = (np.arange(len(ones)) >= len(first[0][name]))[both]
            ones, others = ones[both], others[both]
            if not len(ones) or min(np.ptp(ones), np.ptp(others)) == 0:
                continue  # a constant indicator tells nothing apart
            try:
                test = compare_auroc(others, ones, is_foreign)
            except StatisticError:  # too few examples of a kind
                continue
            detail = f"{name} on {spec}"
            rows.append(_row("auroc", "delong", test.first, test.second, test, detail=detail))
    return rows


def compared_masks(first: Masks, second: Masks) -> list[dict[str, Any]]:
    """Compare accuracy under each attack by McNemar, on examples attacked for both models."""
    _, ours, theirs = np.intersect1d(second.positions, first.positions, return_indices=True)
    rows = []
    for (attack, epsilon), mask_of_second in second.right.items():
        if epsilon == 0 or (attack, epsilon) not in first.right or not len(ours):
            continue
        mask, other = mask_of_second[ours], first.right[attack, epsilon][theirs]
        test = mcnemar(mask, other)
        rows.append(_row(attack, "mcnemar", float(mask.mean()), float(other.mean()), test,
                         detail=f"epsilon {epsilon:.4g}"))  # fmt: skip
    return rows


def _row(
    key: str, test: str, second: float, first: float, result: Any, *, detail: str = ""
) -> dict[str, Any]:
    return {
        "key": key,
        "detail": detail,
        "first": first,
        "second": second,
        "difference": result.difference,
        "low": getattr(result, "low", None),
        "high": getattr(result, "high", None),
        "p": result.p,
        "n": result.n,
        "test": test,
    }
