"""The galleries of a report: pictures and numbers of the examples it shows."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hardsight.report.page import count, number
from hardsight.report.table._view import View
from hardsight.table import SUSPICION

_MIMES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
_TINY = 64  # pictures up to this many pixels a side keep their pixels sharp when enlarged
_OUTCOMES = {1: "right", 0: "wrong", -1: "unknown"}


@dataclass(frozen=True)
class Picture:
    """An encoded thumbnail as a ``data:`` address, which needs no file beside the page."""

    uri: str
    width: int
    height: int

    @property
    def tiny(self) -> bool:
        """Whether enlarging it should keep its pixels sharp."""
        return max(self.width, self.height) <= _TINY


@dataclass(frozen=True)
class Doubt:
    """Why the label of an example may be wrong."""

    group: str
    suggestion: str
    share: str
    reason: str


@dataclass(frozen=True)
class Example:
    """One shown example."""

    row: int
    id: str
    label: str
    prediction: str
    outcome: str
    facts: list[tuple[str, str]]
    values: list[str]
    picture: Picture | None
    doubt: Doubt | None = None
    text: str = ""

    @property
    def file(self) -> str:
        """The last part of the id, which says most if there is little room."""
        return self.id.rsplit("/", 1)[-1] or self.id

    @property
    def alt(self) -> str:
        """What a screen reader says in place of the picture."""
        return f"{self.text or self.id}: label {self.label}, predicted {self.prediction}"


@dataclass(frozen=True)
class Strip:
    """One row of cards under a heading."""

    key: str
    title: str
    empty: str
    examples: list[Example]
    by: str = ""


@dataclass(frozen=True)
class ClassPanel:
    """The three strips of one class."""

    label: int
    name: str
    about: str
    strips: list[Strip]

    @property
    def few(self) -> bool:
        """Whether the strips are short enough to stand side by side."""
        return all(len(strip.examples) <= 4 for strip in self.strips)


@dataclass(frozen=True)
class Galleries:
    """All shown examples, overall and per class."""

    by: str
    confidence_by: str
    overall: list[Strip]
    panels: list[ClassPanel]
    classes_left_out: int
    examples: dict[int, Example]
    columns: list[tuple[str, str]]  # title and unit
    marks_held_out: bool = False

    def island(self) -> dict[str, Any]:
        """The data of the enlarged view, which the script of the page reads as JSON."""
        marks = [("Held out", "")] if self.marks_held_out else []
        return {
            "columns": [*marks, *self.columns],
            "examples": {
                str(example.row): {
                    "id": example.id,
                    "label": example.label,
                    "prediction": example.prediction,
                    "outcome": example.outcome,
                    "values": example.values,
                    **({"reason": example.doubt.reason} if example.doubt else {}),
                    **({"text": example.text} if example.text else {}),
                }
                for example in self.examples.values()
            },
        }


def galleries(view: View) -> Galleries:
    """The galleries of one table."""
    gallery, scores = view.gallery, view.table.scores
    examples = _examples(view)

    def strip(key: str, title: str, empty: str, rows: NDArray[np.int64], by: str = "") -> Strip:
        return Strip(key, title, empty, [examples[row] for row in rows.tolist()], by)

    hard, confident = view.title_of(gallery.by or ""), view.title_of(gallery.confidence_by or "")
    tracked = [
        strip("suspects", "Probably mislabelled", "", gallery.suspects, _judged_by(view)),
        strip("late", "Learned last", "", gallery.learned_last, "First learned epoch"),
        strip("easiest", "Easiest overall", "", gallery.easiest, hard),
    ]
    tracked = [part for part in tracked if part.examples]

    no_wrong = "No wrong predictions here."
    return Galleries(
        by=hard,
        confidence_by=confident,
        overall=[
            *(part for part in tracked if part.key == "suspects"),
            strip("hardest", "Hardest overall", "Nothing to rank.", gallery.hardest, hard),
            strip(
                "wrong", "Most confidently wrong", no_wrong, gallery.confidently_wrong, confident
            ),
            *(part for part in tracked if part.key != "suspects"),
        ],
        panels=[
            ClassPanel(
                label=panel.label,
                name=view.class_name(panel.label),
                about=_about_class(view, panel.label),
                strips=[
                    strip("hardest", "Hardest", "", panel.hardest),
                    strip("wrong", "Most confidently wrong", no_wrong, panel.confidently_wrong),
                    strip("easiest", "Easiest", "", panel.easiest),
                ],
            )
            for panel in gallery.classes
        ],
        classes_left_out=gallery.classes_left_out,
        examples=examples,
        columns=[(about["title"], about["unit"]) for about in map(view.table.about, scores)],
        marks_held_out=bool(view.held_out.any()),
    )


def picture(encoded: bytes) -> Picture | None:
    """A thumbnail as a ``data:`` address; ``None`` if it is not a readable picture."""
    try:
        with Image.open(io.BytesIO(encoded), formats=list(_MIMES)) as image:
            width, height = image.size
            mime = _MIMES[str(image.format)]
            image.verify()  # the table may come from anybody
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    return Picture(f"data:{mime};base64,{base64.b64encode(encoded).decode()}", width, height)


def _examples(view: View) -> dict[int, Example]:
    rows = view.gallery.rows()
    scores = {name: view.values(name)[rows].tolist() for name in view.table.scores}
    about = {name: view.table.about(name) for name in scores}
    ranked = sorted((about[name]["on_card"], name) for name in scores if about[name]["on_card"])
    # the score by which the examples were chosen comes first on each card
    shown = list(dict.fromkeys([view.gallery.by, *(name for _, name in ranked)]))[:3]
    facts = [(name, about[name]["short_title"]) for name in shown if name in scores]
    examples, doubted = {}, set(view.gallery.suspects.tolist())
    for i, (row, key) in enumerate(zip(rows.tolist(), view.ids(rows), strict=True)):
        encoded = view.thumbnails.get(int(view.gallery.source[row]))
        own, marks = [], []
        if view.held_out.any():
            marks = ["yes" if view.held_out[row] else "no"]
            own = [("Held out", "yes")] if view.held_out[row] else []
        examples[row] = Example(
            row=row,
            id=key,
            label=view.class_name(int(view.labels[row])),
            prediction=view.class_name(int(view.predictions[row])),
            outcome=_OUTCOMES[int(view.outcome[row])],
            facts=[*own, *((title, _short(scores[name][i])) for name, title in facts)],
            values=[*marks, *(number(values[i]) for values in scores.values())],
            picture=picture(encoded) if encoded else None,
            doubt=_doubt(view, row) if row in doubted else None,
            text=view.excerpts.get(int(view.gallery.source[row]), ""),
        )
    return examples


def _judged_by(view: View) -> str:
    """The heading of what the suspects are ranked by."""
    if SUSPICION in view.table.scores:
        return view.title_of(SUSPICION)
    return "the chance of a wrong label" if len(view.gallery.suspects) else ""


def _doubt(view: View, row: int) -> Doubt:
    doubts, share = view.doubts, view.doubts.error_share
    suggestion = int(doubts.suggestion[row])
    most = "at most " if doubts.share_note else ""
    return Doubt(
        group=doubts.groups[int(doubts.group[row])],
        suggestion=view.class_name(suggestion) if suggestion >= 0 else "",
        share="" if share is None else f"{most}about {_tenths(share[row])} of 10 wrong here",
        reason=doubts.reason(row),
    )


def _tenths(share: float) -> int:
    return round(10 * float(share))


def _short(value: float) -> str:
    return number(value, digits=3, trim=False)


def _about_class(view: View, label: int) -> str:
    rows = view.labels == label
    wrong = int((rows & view.wrong).sum())
    return f"{count(rows.sum())} examples, {count(wrong)} wrong"
