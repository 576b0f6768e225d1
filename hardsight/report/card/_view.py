"""The tables of an evaluation card, with a row per number and a column per model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hardsight.registry import INDICATORS
from hardsight.report.page import NONE, group_view, number, percent


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: the number.
        detail: a smaller line below it, such as an interval.
        best: whether no model has a better value.
        is_note: whether the detail is a sentence, which may take several lines.
    """

    text: str
    detail: str = ""
    best: bool = False
    is_note: bool = False


@dataclass(frozen=True)
class Row:
    """One number for all models; ``key`` is the key of its definition."""

    key: str
    title: str
    cells: list[Cell]


class Tables:
    """The tables of one card."""

    def __init__(self, card: dict[str, Any]) -> None:
        self.card, self.models = card, card["models"]

    def headline(self) -> list[Row]:
        """The few numbers everyone should see."""
        ood = [
            self._estimates("auroc", "ood", place, "min_energy", "auroc",
                            title=f"AUROC, minimum energy, {_short(data['spec'])}")
            for place, data in enumerate(self.card["ood"])
        ]  # fmt: skip
        rows = [
            self._estimates("top1", "accuracy", "top1"),
            self._values("nll", "calibration", "before", "nll"),
            self._values("ece", "calibration", "before", "ece", shape=percent),
            *ood,
            self._estimates("worst", "robustness", "masking", "worst"),
            self._estimates("probe", "representation", "probe", "accuracy"),
            self._values("silhouette", "representation", "silhouette", "mean"),
        ]
        # no empty rows for what was not computed, such as numbers on foreign data
        return [row for row in rows if any(cell.text != NONE for cell in row.cells)]

    def accuracy(self) -> list[Row]:
        """Accuracy of all examples and by number of training examples."""
        rows = [
            self._estimates("top1", "accuracy", "top1"),
            self._values("balanced", "accuracy", "balanced", shape=percent),
        ]
        if any(model["accuracy"]["shots"] for model in self.models):
            rows += [
                self._estimates("shots", "accuracy", "shots", name,
                                title=f"{name.capitalize()}-shot accuracy")
                for name in ("many", "medium", "few")
            ]  # fmt: skip
        return rows

    def classes(self) -> list[tuple[str, int, list[Cell]]]:
        """Name, number of examples and accuracy of each class."""
        rows = []
        for place, name in enumerate(self.card["data"]["classes"]):
            estimates = [model["accuracy"]["classes"][place] for model in self.models]
            # the data is the same for all models; a class without examples has no estimate
            n = next((estimate["n"] for estimate in estimates if estimate), 0)
            cells, values = list(map(_estimate, estimates)), list(map(_value, estimates))
            rows.append((name, n, _marked(cells, values, "higher")))
        return rows

    def groups(self, place: int) -> list[dict[str, Any]]:
        """A table for every attribute of one model."""
        findings: dict[str, Any] = self.models[place]["groups"]
        return [group_view(name, rows, findings) for name, rows in findings["attributes"].items()]

    def class_name(self, number: int) -> str:
        """The name of a class; a dash for -1, which stands for no prediction."""
        names = self.card["data"]["classes"]
        return str(names[number]) if 0 <= number < len(names) else NONE

    def ood(self, place: int) -> list[tuple[str, list[Row]]]:
        """Rows per indicator for one foreign dataset."""
        tables = []
        for name in INDICATORS:
            rows = [self._estimates("auroc", "ood", place, name, "auroc")]
            for key in ("aupr_in", "aupr_out", "fpr95"):
                rows.append(self._values(key, "ood", place, name, key, shape=percent))
            parts = [_got(model, ("ood", place, name)) or {} for model in self.models]
            tables.append((name, [_noted(row, parts) for row in rows]))
        return tables

    def calibration(self) -> list[Row]:
        """Errors and scores before and after temperature scaling."""
        rows = []
        for key in ("ece", "adaptive_ece", "brier", "nll"):
            shape = percent if key.endswith("ece") else number
            after = f"{self._title(key)}, after scaling"
            rows.append(self._values(key, "calibration", "before", key, shape=shape))
            rows.append(self._values(key, "calibration", "after", key, shape=shape, title=after))
        return [*rows, self._values("temperature", "calibration", "temperature")]

    def refusal(self) -> list[Row]:
        """The area under the curve of each indicator, and the effect of the chosen threshold."""
        rows = []
        for name in INDICATORS:
            of = self._title(name).lower()
            rows.append(self._values("aurc", "refusal", name, "aurc", title=f"AURC, {of}"))
            rows += [
                self._values(
                    "open_aurc", "refusal", name, "open", place,
                    title=f"AURC with {_short(data['spec'])}, {of}",
                )
                for place, data in enumerate(self.card["ood"])
            ]  # fmt: skip
        for name in INDICATORS:
            of, chosen = self._title(name).lower(), ("refusal", name, "chosen")
            accepted = self._estimates("rejection", *chosen, "judged_coverage")
            # never marked as best: fewer errors may only mean that fewer examples were accepted
            wrong = [_estimate(_got(model, (*chosen, "judged_risk"))) for model in self.models]
            rows.append(replace(accepted, title=f"Accepted, {of}"))
            rows.append(Row("rejection", f"Wrong among them, {of}", wrong))
        return rows

    def representation(self) -> list[Row]:
        """Probe, clusters and silhouette."""
        rows = [self._estimates("probe", "representation", "probe", "accuracy")]
        for key, of in (("kmeans", "k-means of features"), ("predictions", "predictions")):
            for name in ("homogeneity", "completeness", "v_measure"):
                title = f"{name.replace('v_', 'V-')}, {of}"
                title = title[0].upper() + title[1:]
                rows.append(self._values(key, "representation", key, name, title=title))
        return [*rows, self._values("silhouette", "representation", "silhouette", "mean")]

    def explanation(self) -> list[Row]:
        """Compactness of maps, and what they do to the prediction."""
        keys = ("top_share", "entropy", "deletion", "insertion")
        return [self._values(key, "explanation", key) for key in keys]

    def distributions(self, key: str) -> Row:
        """Median and quartiles of one quantity."""
        cells = []
        for model in self.models:
            spread = model[key].get("all")
            text = f"{number(spread['q1'])} to {number(spread['q3'])}" if spread else ""
            cells.append(Cell(number(spread["median"]), text) if spread else Cell(NONE))
        return Row(key, f"{self._title(key)}, median", cells)

    def _title(self, key: str) -> str:
        title: str = self.card["definitions"][key]["title"]
        return title

    def _estimates(self, key: str, *path: str | int, title: str | None = None) -> Row:
        estimates = [_got(model, path) for model in self.models]
        cells, values = list(map(_estimate, estimates)), list(map(_value, estimates))
        return Row(key, title or self._title(key), _marked(cells, values, self._better(key)))

    def _values(
        self,
        key: str,
        *path: str | int,
        shape: Callable[[float | None], str] = number,
        title: str | None = None,
    ) -> Row:
        estimates = [_got(model, path) for model in self.models]
        cells = [Cell(shape(estimate)) for estimate in estimates]
        return Row(key, title or self._title(key), _marked(cells, estimates, self._better(key)))

    def _better(self, key: str) -> str:
        better: str = self.card["definitions"][key]["better"]
        return better


def _got(model: dict[str, Any], path: tuple[str | int, ...]) -> Any:
    """The value at a path of a model's card; ``None`` if that part is missing or a note."""
    part: Any = model
    for step in path:
        try:
            part = part[step]
        except (KeyError, TypeError):
            return None
    return part


def _noted(row: Row, parts: list[dict[str, Any]]) -> Row:
    """The row with a reason in the cells of models that have no number."""
    pairs = zip(row.cells, parts, strict=True)
    return replace(row, cells=[_note(part) if part.get("note") else cell for cell, part in pairs])


def _note(part: dict[str, Any]) -> Cell:
    return Cell("constant" if part.get("is_constant") else NONE, part["note"], is_note=True)


def _estimate(estimate: dict[str, Any] | None) -> Cell:
    if not estimate:
        return Cell(NONE)
    interval = f"{100 * estimate['low']:.1f} to {100 * estimate['high']:.1f}%"
    return Cell(percent(estimate["value"]), interval)


def _value(estimate: dict[str, Any] | None) -> float | None:
    return None if not estimate else estimate["value"]


def _marked(cells: list[Cell], values: list[float | None], better: str) -> list[Cell]:
    """The cells with the best ones marked, unless all values are equal."""
    present = [value for value in values if value is not None]
    if not better or len(present) < 2 or min(present) == max(present):
        return cells
    best = max(present) if better == "higher" else min(present)
    return [replace(cell, best=value == best) for cell, value in zip(cells, values, strict=True)]


def _short(spec: str) -> str:
    return spec.rsplit("/", 1)[-1] or spec
