"""The charts of an evaluation card, computed as coordinates that the template draws as SVG."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.report.figures import Axis, Bars, Chart, Cloud, Line, Mark, Tick, axis_for
from hardsight.report.page import count, number, percent

COLOURS = 6  # of models, as in card.css; further models repeat them
CLASS_COLOURS = 10
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 352, 12, 196  # the frame of a chart in the template


def attack_chart(key: str, title: str, models: list[dict[str, Any]]) -> Chart | None:
    """Accuracy over epsilon, one line per model that has it."""
    curves = {
        place: model["robustness"]["curves"][key]
        for place, model in enumerate(models)
        if model["robustness"].get("curves")
    }
    if not curves:
        return None
    radii = np.array([point["epsilon"] for curve in curves.values() for point in curve])
    x, y = axis_for(radii, _LEFT, _RIGHT), Axis(0.0, 1.0, _BOTTOM, _TOP)
    lines = []
    for place, curve in curves.items():
        marks = [
            Mark(round(x.at(point["epsilon"]), 1), round(y.at(point["accuracy"]["value"]), 1),
                 f"{models[place]['name']}, epsilon {number(point['epsilon'])}: "
                 f"{percent(point['accuracy']['value'])}")
            for point in curve
        ]  # fmt: skip
        lines.append(Line(place, _path(marks), marks))
    ends = "; ".join(f"{models[p]['name']} {percent(c[-1]['accuracy']['value'])}"
                     for p, c in curves.items())  # fmt: skip
    summary = f"{title}: accuracy over epsilon. At the largest epsilon: {ends}."
    return Chart(key, title, "epsilon", "accuracy", x.ticks(4), _shares(y), summary, lines)


def reliability_chart(place: int, model: dict[str, Any]) -> Chart | None:
    """Accuracy over confidence before (dashed) and after temperature scaling."""
    part = model["calibration"]
    if "before" not in part:
        return None
    x, y = Axis(0.0, 1.0, _LEFT, _RIGHT), Axis(0.0, 1.0, _BOTTOM, _TOP)
    lines = []
    for when in ("before", "after"):
        bins = part[when]["bins"]
        most = max(group["count"] for group in bins)
        marks = [
            Mark(round(x.at(group["confidence"]), 1), round(y.at(group["accuracy"]), 1),
                 f"{when} scaling, {count(group['count'])} examples: confidence "
                 f"{percent(group['confidence'])}, accuracy {percent(group['accuracy'])}",
                 r=round(2 + 5 * float(np.sqrt(group["count"] / most)), 1), kind=when)
            for group in bins
        ]  # fmt: skip
        lines.append(Line(place, _path(marks), marks, dashed=when == "before"))
    summary = (
        f"Reliability of {model['name']}: ECE {percent(part['before']['ece'])} before and "
        f"{percent(part['after']['ece'])} after temperature scaling."
    )
    return Chart("reliability", model["name"], "confidence", "accuracy", _shares(x), _shares(y),
                 summary, lines, model=place)  # fmt: skip


def refusal_chart(key: str, title: str, models: list[dict[str, Any]]) -> Chart | None:
    """Error rate over the share accepted, one line per model."""
    curves = {
        place: part
        for place, model in enumerate(models)
        if (part := (model.get("refusal") or {}).get(key))
    }
    if not curves:
        return None
    # models without mistakes have a flat line at 0, and an axis from 0 to 0 cannot be drawn
    highest = max(max(curve["risk"]) for curve in curves.values()) or 1.0
    x = Axis(0.0, 1.0, _LEFT, _RIGHT)
    y = axis_for(np.array([0.0, 100 * highest]), _BOTTOM, _TOP)
    lines = []
    for place, curve in curves.items():
        marks = [
            Mark(round(x.at(share), 1), round(y.at(100 * risk), 1),
                 f"{models[place]['name']}: {percent(share)} accepted, {percent(risk)} of them "
                 "wrong", r=1.6)
            for share, risk in zip(curve["coverage"], curve["risk"], strict=True)
        ]  # fmt: skip
        lines.append(Line(place, _path(marks), marks))
    ends = "; ".join(f"{models[p]['name']} {number(c['aurc'])}" for p, c in curves.items())
    ticks = [Tick(tick.at, f"{tick.text}%") for tick in y.ticks(4)]
    summary = f"{title}: error rate over the share accepted. AURC: {ends}."
    return Chart(key, title, "share accepted", "error rate", _shares(x), ticks, summary, lines)


def distribution_bars(place: int, model: dict[str, Any], key: str) -> Bars | None:
    """Distribution of one quantity, right above wrong."""
    part = model[key]
    if "edges" not in part:
        return None
    edges = np.array(part["edges"])
    axis = Axis(float(edges[0]), float(edges[-1]), 6.0, 354.0)
    ups, downs = part["right"], part["wrong"]
    # each half has its own scale: a good model has too few wrong examples to be seen otherwise
    up, down = 70 / max(1, *ups), 50 / max(1, *downs)
    width = (axis.end - axis.start) / len(ups)
    bars = [
        (round(axis.start + i * width, 2), round(width, 2), _height(a, up), _height(b, down),
         f"{number(edges[i])} to {number(edges[i + 1])}: {count(a)} right, {count(b)} wrong")
        for i, (a, b) in enumerate(zip(ups, downs, strict=True))
        if a or b
    ]  # fmt: skip
    zero = round(axis.at(0.0), 1) if key == "margin" and axis.low < 0 < axis.high else None
    middle = part["all"]["median"]
    return Bars(place, axis.ticks(5), bars, zero, f"{model['name']}: median {number(middle)}.")


def energy_chart(models: list[dict[str, Any]], classes: list[str]) -> Chart | None:
    """Quartiles of the conditional energy per class: a bar from Q1 to Q3 and a dot."""
    rows = [(c, place, energy) for c in range(len(classes)) for place, model in enumerate(models)
            if (energy := model["energy"][c])]  # fmt: skip
    # with more classes the chart is too long to read; card.json has all of them
    if not rows or len(classes) > 40:
        return None
    ends = np.array([energy[key] for _, _, energy in rows for key in ("q1", "q3")])
    x = axis_for(ends, 96.0, 712.0)
    step = max(22, 7 * len(models) + 6)  # at least a line of text, which phones show at half size
    lines = []
    for c, place, energy in rows:
        y = round(10 + c * step + (place + 0.5) * (step - 4) / len(models), 1)
        quartiles = f"quartiles {number(energy['q1'])} to {number(energy['q3'])}"
        text = (
            f"{classes[c]}, {models[place]['name']}: median {number(energy['median'])}, {quartiles}"
        )
        path = f"M{x.at(energy['q1']):.1f} {y}H{x.at(energy['q3']):.1f}"
        lines.append(Line(place, path, [Mark(round(x.at(energy["median"]), 1), y, text)]))
    marks = [Tick(10 + c * step + (step - 4) / 2, name) for c, name in enumerate(classes)]
    summary = f"Conditional energy of {len(classes)} classes, quartiles per model."
    return Chart("energy", "", "conditional energy E(y|x)", "", x.ticks(6), marks, summary, lines)


def feature_cloud(place: int, model: dict[str, Any], key: str) -> Cloud | None:
    """The map of features, or their directions on the circle or sphere."""
    part = model["representation"].get(key)
    if not part:
        return None
    points, labels = np.array(part["points"], dtype=float), np.array(part["labels"])
    far = np.zeros(len(points), bool)
    if key == "sphere":
        if points.shape[1] == 3:
            points, far = _turned(points)
        x, y = Axis(-1.1, 1.1, 10, 310), Axis(-1.1, 1.1, 310, 10)
    else:
        x, y = axis_for(points[:, 0], 10, 310), axis_for(points[:, 1], 310, 10)
    across, up = x.place(points[:, 0]), y.place(points[:, 1])
    paths = [
        (int(label) % CLASS_COLOURS, hidden,
         # a line of length 0 with round caps is a dot, so one path draws a thousand dots
         "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(across[rows], up[rows], strict=True)))
        # the far side is drawn first, so that the near side covers it
        for hidden in (True, False)
        for label in np.unique(labels)
        if (rows := (labels == label) & (far == hidden)).any()
    ]  # fmt: skip
    shown = "directions" if key == "sphere" else "t-SNE map"
    summary = f"{model['name']}: {shown} of {len(points):,} examples, coloured by class."
    return Cloud(place, paths, summary, circle=key == "sphere")


def _turned(points: Any) -> tuple[Any, Any]:
    """Project points on a sphere, seen from the front and above; True for the far side."""
    a, b = np.deg2rad(30), np.deg2rad(25)
    x = points[:, 0] * np.cos(a) - points[:, 1] * np.sin(a)
    depth = points[:, 0] * np.sin(a) + points[:, 1] * np.cos(a)
    y = points[:, 2] * np.cos(b) - depth * np.sin(b)
    return np.stack([x, y], axis=1), depth * np.cos(b) + points[:, 2] * np.sin(b) > 0


def _path(marks: list[Mark]) -> str:
    return "M" + "L".join(f"{mark.x} {mark.y}" for mark in marks)


def _height(n: int, scale: float) -> float:
    return round(max(1.0, n * scale), 2) if n else 0.0


def _shares(axis: Axis) -> list[Tick]:
    return [Tick(axis.at(v), f"{100 * v:.0f}%") for v in (0.0, 0.25, 0.5, 0.75, 1.0)]
