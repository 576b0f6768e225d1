"""The parts of a card that need only logits and embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hardsight.errors import StatisticError
from hardsight.evaluate import (
    INDICATORS,
    Rejection,
    accepted_risk,
    accuracy,
    agreement,
    angular_silhouette,
    brier_score,
    calibration_bins,
    calibration_error,
    class_accuracy,
    cluster_assignments,
    detection,
    fitted_temperature,
    linear_probe,
    negative_log_likelihood,
    ood_indicators,
    rejection_threshold,
    risk_coverage,
    shot_accuracy,
    tsne_map,
)
from hardsight.geometry import row_norms, target_angles
from hardsight.heads import Head
from hardsight.run.loop import Outputs
from hardsight.scores import angular_visual_hardness, conditional_energy, logit_margin
from hardsight.stats import Estimate, group_findings

BINS = 15
_HISTOGRAM_BINS = 40
_COLDEST = 0.05  # lowest temperature: if all validation examples are right, the best would be 0
Rows = NDArray[np.int64]


def accuracy_part(
    outputs: Outputs, num_classes: int, training_counts: ArrayLike | None
) -> dict[str, Any]:
    """Accuracy of all, of each class, and by number of training examples."""
    predictions, labels = outputs.predictions, outputs.labels.numpy()
    per_class = class_accuracy(predictions, labels, num_classes)
    # a class without examples has no accuracy, and must not count as 0 in the mean
    known = [share.value for share in per_class if share is not None]
    shots = None
    if training_counts is not None:
        groups = shot_accuracy(predictions, labels, training_counts)
        shots = {name: estimate(value) for name, value in groups.items()}
    return {
        "top1": estimate(accuracy(predictions, labels)),
        "balanced": float(np.mean(known)),
        "classes": [estimate(value) for value in per_class],
        "shots": shots,
    }


def distribution_part(outputs: Outputs, head: Head) -> dict[str, Any]:
    """Margins, energies per class, norms and angles of usable examples."""
    rows = np.flatnonzero(outputs.usable)
    weights = head.weight.float().cpu()
    margins = outputs.per_row(rows, lambda z, x, y: logit_margin(z, y))
    energies = outputs.per_row(rows, lambda z, x, y: conditional_energy(z, y))
    norms = outputs.per_row(rows, lambda z, x, y: row_norms(x))
    angles = outputs.per_row(rows, lambda z, x, y: target_angles(x, y, weights))
    right, labels = outputs.right[rows], outputs.labels.numpy()[rows]
    return {
        "margin": _distribution(margins, right),
        "norm": _distribution(norms, right),
        "angle": _distribution(angles, right),
        "energy": [_quartiles(energies[labels == c]) for c in range(head.num_classes)],
    }


def groups_part(
    outputs: Outputs, head: Head, groups: Mapping[str, NDArray[Any]], classes: Sequence[str]
) -> dict[str, Any] | None:
    """Accuracy, hardness and calibration by group; unusable examples count as wrong."""
    if not groups:
        return None
    weights = head.weight.float().cpu()
    usable = np.flatnonzero(outputs.usable)
    hardness, confidence = (np.full(len(outputs), np.nan) for _ in range(2))
    hardness[usable] = outputs.per_row(
        usable, lambda z, x, y: angular_visual_hardness(x, y, weights)
    )
    confidence[usable] = outputs.per_row(usable, lambda z, x, y: z.softmax(dim=1).amax(dim=1))
    return group_findings(
        {name: values[outputs.positions] for name, values in groups.items()},
        outputs.labels.numpy(),
        outputs.predictions,
        hardness=hardness,
        hardness_title="AVH",
        # a softmax can round to a little above 1
        confidence=np.minimum(confidence, 1.0),
        classes=list(classes),
    )


def indicators_of(outputs: Outputs, head: Head) -> dict[str, NDArray[np.float64]]:
    """OOD indicators of all examples, ``[N]`` each, NaN for unusable ones; computed in chunks."""
    weights = head.weight.float().cpu()
    rows = np.flatnonzero(outputs.usable)
    parts = [ood_indicators(z, x, weights) for z, x, _ in outputs.chunks(rows)]
    values = {name: np.full(len(outputs), np.nan) for name in INDICATORS}
    for name in values if parts else ():
        values[name][rows] = np.concatenate([part[name].double().numpy() for part in parts])
    return values


def ood_part(
    own: dict[str, NDArray[np.float64]], foreign: dict[str, NDArray[np.float64]]
) -> dict[str, Any]:
    """How well each indicator detects foreign examples; a note if it is constant."""
    part: dict[str, Any] = {}
    for name, values in own.items():
        known, others = (each[~np.isnan(each)] for each in (values, foreign[name]))
        if not len(others):
            part[name] = {"note": "no foreign example has a finite output"}
            continue
        try:
            measured = detection(known, others)
        except StatisticError as err:
            is_constant = bool(np.ptp([*known, *others]) == 0)
            part[name] = {"note": str(err), "is_constant": is_constant}
            continue
        part[name] = {**dataclasses.asdict(measured), "auroc": estimate(measured.auroc)}
    return part


def refusal_part(
    outputs: Outputs,
    sets: Sequence[dict[str, NDArray[np.float64]]],
    fitting: Rows,
    judged: Rows,
    *,
    wanted: float,
) -> dict[str, Any]:
    """How well each indicator says what to refuse; thresholds are chosen on other examples.

    Args:
        outputs: of the model on its own data.
        sets: indicators of its own examples, then those of each foreign dataset.
        fitting: rows to choose thresholds on.
        judged: rows to judge the thresholds on.
        wanted: error rate among accepted examples.
    """
    if not len(fitting) or not len(judged):
        usable = len(fitting) + len(judged)
        return {"note": f"{usable} usable examples are too few to choose a threshold and judge it"}
    right, own = outputs.right, sets[0]
    part: dict[str, Any] = {"wanted": wanted, "validation": len(fitting), "n": len(judged)}
    for name, values in own.items():
        curve = risk_coverage(values[judged], right[judged])
        chosen = rejection_threshold(values[fitting], right[fitting], wanted=wanted)
        part[name] = {
            "aurc": curve.aurc,
            "best": curve.best,
            "coverage": curve.coverage.tolist(),
            "risk": curve.risk.tolist(),
            "chosen": _judged_threshold(chosen, values[judged], right[judged]),
            "open": [_open_aurc(values[judged], right[judged], each[name]) for each in sets[1:]],
        }
    return part


def _judged_threshold(
    chosen: Rejection, values: NDArray[np.float64], right: NDArray[np.bool_]
) -> dict[str, Any]:
    facts = dataclasses.asdict(chosen)
    if chosen.threshold is None:
        return {**facts, "judged_coverage": None, "judged_risk": None}
    coverage, risk = accepted_risk(values, right, chosen.threshold)
    return {**facts, "judged_coverage": estimate(coverage), "judged_risk": estimate(risk)}


def _open_aurc(
    values: NDArray[np.float64], right: NDArray[np.bool_], foreign: NDArray[np.float64]
) -> float | None:
    """The area with foreign examples added, each of which is an error if it is accepted."""
    others = foreign[~np.isnan(foreign)]
    if not len(others):
        return None
    both = np.concatenate([values, others])
    return risk_coverage(both, np.concatenate([right, np.zeros(len(others), bool)])).aurc


def calibration_rows(outputs: Outputs, *, validation_share: float, seed: int) -> tuple[Rows, Rows]:
    """Usable rows to fit a temperature on, and usable rows to judge it on.

    All rows are drawn from, usable or not, so that every model of a card gets the same split.
    """
    # every draw of a card has its own number beside the seed: another draw here shifts none of
    # the others
    order = np.random.default_rng([seed, 1]).permutation(len(outputs))
    parts = np.split(order, [round(validation_share * len(order))])
    fitting, judged = (np.sort(part[outputs.usable[part]]) for part in parts)
    return fitting, judged


def calibration_part(outputs: Outputs, fitting: Rows, judged: Rows) -> dict[str, Any]:
    """Calibration before and after a temperature that is fitted on other examples."""
    if not len(fitting) or not len(judged):
        usable = len(fitting) + len(judged)
        return {"note": f"{usable} usable examples are too few to fit a temperature and judge it"}
    some = torch.from_numpy(fitting)
    temperature = fitted_temperature(outputs.logits[some], outputs.labels[some], low=_COLDEST)
    return {
        "validation": len(fitting),
        "n": len(judged),
        "temperature": temperature,
        "before": _calibration(outputs, judged, 1.0),
        "after": _calibration(outputs, judged, temperature),
    }


def representation_part(
    outputs: Outputs,
    train: Outputs | None,
    *,
    most_examples: int,
    most_points: int,
    seed: int,
) -> dict[str, Any]:
    """Probe, clusters, silhouette and maps of the features of usable examples."""
    rows = np.flatnonzero(outputs.usable)
    rows = _some(rows, most_examples, seed)
    features, labels = outputs.embeddings.numpy()[rows], outputs.labels.numpy()[rows]
    shown = _some(np.arange(len(rows)), most_points, seed)
    part: dict[str, Any] = {
        "probe": _probe(outputs, train, most_examples, seed),
        "predictions": dataclasses.asdict(agreement(outputs.predictions[rows], labels)),
        "n": len(rows),
        "width": features.shape[1],
    }
    clusters = len(np.unique(labels))
    groups = cluster_assignments(features, clusters, seed=seed)
    part["kmeans"] = {**dataclasses.asdict(agreement(groups, labels)), "clusters": clusters}
    part["silhouette"] = _silhouette(features[shown], labels[shown])
    part["map"] = None
    # the fewest that tsne_map takes
    if len(shown) >= 4:
        part["map"] = _points(tsne_map(features[shown], seed=seed), labels[shown])
    part["sphere"] = None
    if features.shape[1] in (2, 3):
        lengths = np.linalg.norm(features[shown], axis=1, keepdims=True)
        # features that are all 0 have no direction, and stay in the centre
        units = features[shown] / np.where(lengths == 0, 1, lengths)
        part["sphere"] = _points(units, labels[shown])
    return part


def estimate(value: Estimate | None) -> dict[str, Any] | None:
    """An estimate as plain values."""
    return None if value is None else dataclasses.asdict(value)


def _calibration(outputs: Outputs, rows: Rows, temperature: float) -> dict[str, Any]:
    def confidences(z: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return (z / temperature).softmax(dim=1).amax(dim=1)

    confidence = np.minimum(outputs.per_row(rows, confidences), 1.0)
    right = outputs.right[rows]
    bins = calibration_bins(confidence, right, bins=BINS)
    brier = outputs.per_row(rows, lambda z, x, y: brier_score(z / temperature, y))
    nll = outputs.per_row(rows, lambda z, x, y: negative_log_likelihood(z / temperature, y))
    return {
        "ece": calibration_error(confidence, right, bins=BINS),
        "adaptive_ece": calibration_error(confidence, right, bins=BINS, adaptive=True),
        "brier": float(brier.mean()),
        "nll": float(nll.mean()),
        "bins": [dataclasses.asdict(part) for part in bins if part.count],
    }


def _distribution(values: NDArray[np.float64], right: NDArray[np.bool_]) -> dict[str, Any]:
    if not len(values):
        return {"note": "no usable example"}
    # a far tail would squeeze all other values into one bar, so it is put into the outer bars
    low, high = np.quantile(values, [0.005, 0.995]).tolist()
    edges = np.linspace(low, high if high > low else low + 1.0, _HISTOGRAM_BINS + 1)
    values, exact = np.clip(values, edges[0], edges[-1]), values
    return {
        "edges": edges.tolist(),
        "right": np.histogram(values[right], edges)[0].tolist(),
        "wrong": np.histogram(values[~right], edges)[0].tolist(),
        "all": _quartiles(exact),
        "of_right": _quartiles(exact[right]),
        "of_wrong": _quartiles(exact[~right]),
    }


def _quartiles(values: NDArray[np.float64]) -> dict[str, Any] | None:
    if not len(values):
        return None
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"q1": low, "median": middle, "q3": high, "mean": float(values.mean()), "n": len(values)}


def _probe(
    outputs: Outputs, train: Outputs | None, most_examples: int, seed: int
) -> dict[str, Any]:
    """Accuracy of a probe that is trained on the training data, or else on half of this data."""
    # twice as many, because half of them may have to be the training data
    rows = _some(np.flatnonzero(outputs.usable), 2 * most_examples, seed)
    if train is None:
        if len(rows) < 2:
            return {"note": f"{len(rows)} usable example is too few to train a probe and judge it"}
        order = np.random.default_rng([seed, 2]).permutation(len(rows))
        half = len(rows) // 2
        fitting, judged, home = rows[order[:half]], rows[order[half:]], outputs
        trained_on = "one half of the evaluated data; judged on the other"
    else:
        fitting = _some(np.flatnonzero(train.usable), most_examples, seed)
        judged, home, trained_on = rows, train, "the training data"
    try:
        predicted = linear_probe(
            home.embeddings.numpy()[fitting],
            home.labels.numpy()[fitting],
            outputs.embeddings.numpy()[judged],
        )
    except StatisticError as err:
        return {"note": str(err)}
    truth = outputs.labels.numpy()[judged]
    return {
        "accuracy": estimate(accuracy(predicted, truth)),
        "own": estimate(accuracy(outputs.predictions[judged], truth)),
        "fitted": len(fitting),
        "trained_on": trained_on,
    }


def _silhouette(features: NDArray[np.float32], labels: NDArray[np.int64]) -> dict[str, Any]:
    try:
        values = angular_silhouette(features, labels)
    except StatisticError as err:
        return {"note": str(err)}
    return {"mean": float(values.mean()), "n": len(values)}


def _points(places: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, Any]:
    # finer than a page can show, and a fraction of the size of all digits
    rounded = np.round(places.astype(np.float64), 4)
    return {"points": rounded.tolist(), "labels": labels.tolist()}


def _some(rows: Rows, most: int, seed: int) -> Rows:
    """At most ``most`` rows, drawn once and kept in order."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng([seed, 3]).choice(rows, most, replace=False))
