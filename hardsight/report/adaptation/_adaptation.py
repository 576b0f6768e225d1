"""An adaptation as one self-contained HTML page."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardsight.report.figures import Axis, Chart, Line, Mark, Tick, axis_for
from hardsight.report.page import Record, filled, page_file, percent, replace_page
from hardsight.run_folder import read_parquet

_RESULT, _PAGE = "result.json", "adapt.html"
_RECORD = Record(
    "a finished adaptation", "hardsight adapt", ("classes", "source", "target", "runs", "config")
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 352, 12, 196  # the frame of a chart in the template
_COLOURS = 10  # of rules, as in card.css; further rules repeat them


@dataclass(frozen=True)
class Picture:
    """An example that one rule selects and another does not."""

    id: str
    label: str
    truth: str | None
    probability: float
    avc: float
    image: str  # a data address, empty if there is no picture

    @property
    def is_wrong(self) -> bool:
        """Whether the pseudo-label is known to be wrong."""
        return self.truth is not None and self.truth != self.label


@dataclass(frozen=True)
class Difference:
    """What two rules selected from the same predictions in one round."""

    rule: str
    other: str
    round: int
    counts: dict[str, Any]
    mine: list[Picture]
    theirs: list[Picture]


def write_adaptation(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write one self-contained HTML page about an adaptation.

    It shows accuracy by round, the quality of the pseudo-labels of every round, accuracy by class,
    and examples that one rule selects and another does not. It needs no network and no server.

    Args:
        run: the folder of a finished run of ``hardsight adapt``.
        out: the file to write, or an existing folder; by default ``adapt.html`` in the run.
        title: heading of the page; by default the names of the two domains.
        overwrite: whether to replace an existing file. The page in its own run is always replaced.

    Returns:
        The page. An older page is replaced only once the new one is complete.

    Raises:
        MissingDataError: there is no finished run there.
        DataError: the file there is not the result of an adaptation.
        RunExistsError: the file exists, and ``overwrite`` is not given.
        OutputError: the page cannot be written.
    """
    folder = Path(run)
    values = _RECORD.read(folder / _RESULT)
    file = page_file(out, run=folder, name=_PAGE, overwrite=overwrite)
    replace_page(file, _page(values, folder, title))
    return file


def _page(values: dict[str, Any], folder: Path, title: str | None) -> str:
    keys = ("config", "fingerprints", "weights_digest", "preprocessing", "versions")
    source, target = (values[key]["spec"] for key in ("source", "target"))
    return filled(
        "adapt.html",
        styles=("report.css", "card.css"),
        scripts=("theme.js",),
        title=title
        or f"{_with_split(source, values, 'source')} → {_with_split(target, values, 'target')}",
        result=values,
        runs=values["runs"],
        classes=values["classes"],
        chart=accuracy_chart(values["runs"]),
        differences=[
            difference
            for rule, run in values["runs"].items()
            for difference in _differences(folder / rule, run["rounds"], values["classes"])
        ],
        record=json.dumps({key: values.get(key) for key in keys}, indent=2, ensure_ascii=False),
        colours=_COLOURS,
    )


def _with_split(spec: str, values: dict[str, Any], domain: str) -> str:
    split = values["config"][domain].get("split")
    return f"{spec} ({split})" if split else spec


def accuracy_chart(runs: dict[str, Any]) -> Chart | None:
    """Accuracy on the target over rounds, one line per rule; ``None`` without true labels."""
    points = {
        rule: [
            (record["round"], record["evaluation"]["accuracy"])
            for record in run["rounds"]
            if record["evaluation"]
        ]
        for rule, run in runs.items()
    }
    shares = np.array([share for series in points.values() for _, share in series])
    if not len(shares):
        return None
    most = max(number for series in points.values() for number, _ in series)
    x = Axis(0.0, float(max(1, most)), _LEFT, _RIGHT)
    y = axis_for(shares, _BOTTOM, _TOP)
    lines = []
    for place, (rule, series) in enumerate(points.items()):
        marks = [
            Mark(round(x.at(number), 1), round(y.at(share), 1),
                 f"{rule}, {'source model' if not number else f'round {number}'}: {percent(share)}")
            for number, share in series
        ]  # fmt: skip
        path = "M" + "L".join(f"{mark.x} {mark.y}" for mark in marks)
        lines.append(Line(place, path, marks, dashed=len(marks) == 1))
    ends = "; ".join(f"{rule} {percent(series[-1][1])}" for rule, series in points.items())
    rounds = [Tick(x.at(number), str(number)) for number in range(most + 1)]
    heights = [Tick(tick.at, percent(_value(y, tick.at))) for tick in y.ticks(5)]
    return Chart(
        "accuracy", "Accuracy by round", "round", "accuracy", rounds, heights,
        f"Accuracy on the target over rounds. Last: {ends}.", lines,
    )  # fmt: skip


def _value(axis: Axis, place: float) -> float:
    return axis.low + (place - axis.start) / (axis.end - axis.start) * (axis.high - axis.low)


def _differences(
    folder: Path, rounds: list[dict[str, Any]], classes: list[str]
) -> list[Difference]:
    """Differences in the first and the last round that was compared with another rule."""
    compared = [record for record in rounds if record.get("compared")]
    shown = compared[:1] + compared[1:][-1:]
    return [_difference(folder, record, classes) for record in shown]


def _difference(folder: Path, record: dict[str, Any], classes: list[str]) -> Difference:
    file = folder / f"round-{record['round']:02d}" / "examples.parquet"
    rows = read_parquet(file).to_pylist() if file.is_file() else []
    sides: dict[bool, list[Picture]] = {True: [], False: []}
    for row in rows:
        truth = None if row["true_label"] is None else classes[row["true_label"]]
        picture = Picture(
            row["id"], classes[row["label"]], truth, row["probability"], row["avc"],
            _address(row["thumbnail"]),
        )  # fmt: skip
        sides[row["selected_by"] == record["rule"]].append(picture)
    return Difference(
        record["rule"], record["compared"]["with"], record["round"], record["compared"],
        sides[True], sides[False],
    )  # fmt: skip


def _address(picture: bytes | None) -> str:
    if not picture:
        return ""
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
