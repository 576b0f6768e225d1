"""An evaluation card as one self-contained HTML page."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardsight.errors import OptionError
from hardsight.registry import INDICATORS
from hardsight.report.card import _figures as figures
from hardsight.report.card._view import Tables
from hardsight.report.page import Record, filled, page_file, replace_page

_CARD, _PAGE = "card.json", "card.html"
_ATTACKS = ("fgsm", "pgd_linf", "pgd_l2")
_RECORD = Record(
    "an evaluation card",
    "hardsight evaluate",
    ("data", "ood", "models", "comparisons", "explanations", "definitions"),
)


def write_card(
    card: str | os.PathLike[str] | Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write one self-contained HTML page about an evaluation.

    The page needs no network and no server. Every number on it links to its definition.

    Args:
        card: the values that ``hs.evaluation_card`` returns, a ``card.json``, or its folder.
        out: the file to write, or an existing folder; by default ``card.html`` beside the card.
        title: heading of the page; by default the names of the models.
        overwrite: whether to replace an existing file. The page beside its own card is always
            replaced.

    Returns:
        The page. An older page is replaced only once the new one is complete.

    Raises:
        MissingDataError: there is no such file.
        DataError: the file is not an evaluation card.
        OptionError: the card has no file, and ``out`` is not given.
        RunExistsError: the file exists, and ``overwrite`` is not given.
        OutputError: the page cannot be written.
    """
    values, home = _read(card)
    if out is None and home is None:
        raise OptionError("this card has no file to put the page beside; pass out='card.html'")
    file = page_file(out, run=home, name=_PAGE, overwrite=overwrite)
    replace_page(file, _page(values, title))
    return file


def _read(card: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[dict[str, Any], Path | None]:
    if isinstance(card, Mapping):
        return _RECORD.checked(card, "this mapping"), None
    path = Path(card)
    file = path / _CARD if path.is_dir() else path
    return _RECORD.read(file), file.parent


def _page(card: dict[str, Any], title: str | None) -> str:
    models, titles = card["models"], card["definitions"]
    attacks = [figures.attack_chart(key, titles[key]["title"], models) for key in _ATTACKS]
    places = list(enumerate(models))
    return filled(
        "card.html",
        styles=("report.css", "card.css"),
        scripts=("theme.js",),
        title=title or " / ".join(model["name"] for model in models),
        card=card,
        models=models,
        tables=Tables(card),
        attacks=[chart for chart in attacks if chart],
        reliability=[c for i, m in places if (c := figures.reliability_chart(i, m))],
        refusals=[
            chart
            for key in INDICATORS
            if (chart := figures.refusal_chart(key, titles[key]["title"], models))
        ],
        bars={
            key: [b for i, m in places if (b := figures.distribution_bars(i, m, key))]
            for key in ("margin", "norm", "angle")
        },
        energy=figures.energy_chart(models, card["data"]["classes"]),
        clouds={
            key: [p for i, m in places if (p := figures.feature_cloud(i, m, key))]
            for key in ("map", "sphere")
        },
        colours=figures.COLOURS,
        class_colours=figures.CLASS_COLOURS,
        record=_record(card),
    )


def _record(card: dict[str, Any]) -> str:
    """Everything needed to reproduce the numbers, without the numbers themselves."""
    keys = ("spec", "weights", "weights_digest", "digest", "head", "preprocessing")
    about = {key: card.get(key) for key in ("data", "ood", "train", "settings", "versions")}
    about["models"] = {
        model["name"]: {key: model.get(key) for key in keys} for model in card["models"]
    }
    return json.dumps(about, indent=2, ensure_ascii=False)
