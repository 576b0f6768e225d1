"""The tables of an evaluation card: a row per number, a column per model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hardsight.report._format import NONE, number, percent

_INDICATORS = ("min_energy", "free_energy", "max_probability", "avc")


@dataclass(frozen=True)
class Cell:
    """What a table says about one model; ``best`` where no model has a better value."""

    text: str
    detail: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """One number for all models; ``key`` leads to its definition."""

    key: str
    title: str
    cells: list[Cell]


class Tables:
    """The tables of one card."""

    def __init__(self, card: dict[str, Any]) -> None:
        self.card, self.models = card, card["models"]

    def headline(self) -> list[Row]:
        """The few numbers everyone should see."""
        rows = [
            self._estimates("top1", lambda m: m["accuracy"]["top1"]),
            self._values("nll", lambda m: m["calibration"]["before"]["nll"]),
            self._values("ece", lambda m: m["calibration"]["before"]["ece"], percent),
        ]
        for place, data in enumerate(self.card["ood"]):
            rows.append(
                self._estimates(
                    "auroc",
                    lambda m, place=place: m["ood"][place]["min_energy"]["auroc"],
                    f"AUROC, minimum energy, {_short(data['spec'])}",
                )
            )
        rows += [
            self._estimates("worst", lambda m: m["robustness"]["masking"]["worst"]),
            self._estimates("probe", lambda m: m["representation"]["probe"]["accuracy"]),
            self._values("silhouette", lambda m: m["representation"]["silhouette"]["mean"]),
        ]
        return [row for row in rows if any(cell.text != NONE for cell in row.cells)]

    def accuracy(self) -> list[Row]:
        """Accuracy of all examples and by number of training examples."""
        rows = [
            self._estimates("top1", lambda m: m["accuracy"]["top1"]),
            self._values("balanced", lambda m: m["accuracy"]["balanced"], percent),
        ]
        if any(model["accuracy"]["shots"] for model in self.models):
            for name in ("many", "medium", "few"):
                rows.append(
                    self._estimates(
                        "shots",
                        lambda m, name=name: m["accuracy"]["shots"][name],
                        f"{name.capitalize()}-shot accuracy",
                    )
                )
        return rows

    def classes(self) -> list[tuple[str, int, list[Cell]]]:
        """Name, number of examples and accuracy of each class."""
        rows = []
        for place, name in enumerate(self.card["data"]["classes"]):
            found = [model["accuracy"]["classes"][place] for model in self.models]
            n = next((one["n"] for one in found if one), 0)
            rows.append((name, n, _marked([_estimate(one) for one in found],
                                          [_value(one) for one in found], "higher")))  # fmt: skip
        return rows

    def ood(self, place: int) -> list[tuple[str, list[Row]]]:
        """Rows per indicator for one foreign dataset."""
        tables = []
        for name in _INDICATORS:
            notes = [m["ood"][place].get(name, {}).get("note") for m in self.models]
            rows = [
                self._estimates("auroc", lambda m, n=name: m["ood"][place][n]["auroc"]),
                *(
                    self._values(key, lambda m, n=name, k=key: m["ood"][place][n][k], percent)
                    for key in ("aupr_in", "aupr_out", "fpr95")
                ),
            ]
            rows = [
                replace(row, cells=[Cell("constant", note) if note else cell
                                    for cell, note in zip(row.cells, notes, strict=True)])
                for row in rows
            ]  # fmt: skip
            tables.append((name, rows))
        return tables

    def calibration(self) -> list[Row]:
        """Errors and scores before and after temperature scaling."""
        rows = []
        for key in ("ece", "adaptive_ece", "brier", "nll"):
            shape = percent if key.endswith("ece") else number
            title = self._title(key)
            rows.append(self._values(key, lambda m, k=key: m["calibration"]["before"][k], shape))
            rows.append(
                self._values(
                    key,
                    lambda m, k=key: m["calibration"]["after"][k],
                    shape,
                    f"{title}, after scaling",
                )
            )
        return [*rows, self._values("temperature", lambda m: m["calibration"]["temperature"])]

    def representation(self) -> list[Row]:
        """Probe, clusters and silhouette."""
        rows = [self._estimates("probe", lambda m: m["representation"]["probe"]["accuracy"])]
        for key, of in (("kmeans", "k-means of features"), ("predictions", "predictions")):
            for name in ("homogeneity", "completeness", "v_measure"):
                title = f"{name.replace('v_', 'V-').capitalize()}, {of}"
                rows.append(
                    self._values(
                        key, lambda m, k=key, n=name: m["representation"][k][n], number, title
                    )
                )
        return [*rows, self._values("silhouette",
                                    lambda m: m["representation"]["silhouette"]["mean"])]  # fmt: skip

    def explanation(self) -> list[Row]:
        """Compactness of maps, and what they do to the prediction."""
        return [
            self._values(key, lambda m, k=key: m["explanation"][k])
            for key in ("top_share", "entropy", "deletion", "insertion")
        ]

    def distributions(self, key: str) -> Row:
        """Median and quartiles of one quantity."""
        cells = []
        for model in self.models:
            one = model[key].get("all")
            text = f"{number(one['q1'])} to {number(one['q3'])}" if one else ""
            cells.append(Cell(number(one["median"]), text) if one else Cell(NONE))
        return Row(key, f"{self._title(key)}, median", cells)

    def _title(self, key: str) -> str:
        title: str = self.card["definitions"][key]["title"]
        return title

    def _estimates(
        self, key: str, get: Callable[[dict[str, Any]], Any], title: str | None = None
    ) -> Row:
        found = [_got(get, model) for model in self.models]
        cells = [_estimate(one) for one in found]
        better = self.card["definitions"][key]["better"]
        values = [_value(one) for one in found]
        return Row(key, title or self._title(key), _marked(cells, values, better))

    def _values(
        self,
        key: str,
        get: Callable[[dict[str, Any]], Any],
        shape: Callable[[float | None], str] = number,
        title: str | None = None,
    ) -> Row:
        found = [_got(get, model) for model in self.models]
        better = self.card["definitions"][key]["better"]
        cells = [Cell(shape(one)) for one in found]
        return Row(key, title or self._title(key), _marked(cells, found, better))


def _got(get: Callable[[dict[str, Any]], Any], model: dict[str, Any]) -> Any:
    """A number of a model, or ``None`` where that part of its card is a note."""
    try:
        return get(model)
    except (KeyError, TypeError):
        return None


def _estimate(one: dict[str, Any] | None) -> Cell:
    if not one:
        return Cell(NONE)
    interval = f"{100 * one['low']:.1f} to {100 * one['high']:.1f}%"
    return Cell(percent(one["value"]), interval)


def _value(one: dict[str, Any] | None) -> float | None:
    return None if not one else one["value"]


def _marked(cells: list[Cell], values: list[float | None], better: str) -> list[Cell]:
    """The best cells marked, where there is a choice."""
    present = [value for value in values if value is not None]
    if not better or len(present) < 2 or min(present) == max(present):
        return cells
    best = max(present) if better == "higher" else min(present)
    return [replace(cell, best=value == best) for cell, value in zip(cells, values, strict=True)]


def _short(spec: str) -> str:
    return spec.rsplit("/", 1)[-1] or spec
