"""Write the page of a study, in Markdown with figures beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hardsight.errors import DataError, MissingExtraError
from hardsight.report.page import Record, page_file, replace_page

_STUDY, _PAGE = "study.json", "study.md"
_RECORD = Record("a study", "hardsight study", ("kind",))
_TITLES = {
    "human": "Scores against people",
    "degradation": "Scores against degraded pictures",
    "dynamics": "Hardness along training",
}


def write_study(study: str | os.PathLike[str]) -> Path:
    """Write ``study.md`` and its figures (SVG) beside a ``study.json``.

    Figures need matplotlib. Without it, the page only has the tables and says why.

    Args:
        study: the folder that ``hardsight study`` or :func:`hardsight.study_human` wrote to, or
            the ``study.json`` in it.

    Returns:
        The page.

    Raises:
        MissingDataError: there is no study.
        DataError: the file does not hold a study.
        OutputError: the page cannot be written.
    """
    path = Path(study)
    file = path / _STUDY if path.is_dir() else path
    content = _read(file)
    try:
        figures = _figures(content, file.parent)
        missing = ""
    except MissingExtraError as err:
        figures, missing = [], f"No figures: {err}."
    page = page_file(None, run=file.parent, name=_PAGE, overwrite=False)
    replace_page(page, _markdown(content, figures, missing))
    return page


def _read(file: Path) -> dict[str, Any]:
    content = _RECORD.read(file)
    if content["kind"] not in _TITLES:
        raise DataError(f"{file} is not a study; make one with hardsight study")
    return content


def _figures(content: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Draw the figures, and return their file names and captions."""
    from hardsight.report.study import _figures as draw

    by_kind: dict[str, Callable[[Mapping[str, Any], Path], list[tuple[str, str]]]] = {
        "human": draw.human_figures,
        "degradation": draw.degradation_figures,
        "dynamics": draw.dynamics_figures,
    }
    return by_kind[content["kind"]](content, folder)


def _markdown(content: Mapping[str, Any], figures: list[tuple[str, str]], missing: str) -> str:
    lines = [f"# {_TITLES[content['kind']]}", ""]
    for table in content["tables"]:
        lines += [f"## {table['title']}", "", *_table(table), ""]
        lines += [table["note"], ""] if table["note"] else []
    for name, caption in figures:
        lines += [f"![{caption}]({name})", "", caption, ""]
    lines += [missing, ""] if missing else []
    record = {key: content[key] for key in ("settings", "versions")}
    text = json.dumps(record, indent=1, ensure_ascii=False)
    return "\n".join([*lines, "## Made from", "", "```json", text, "```", ""])


def _table(table: Mapping[str, Any]) -> list[str]:
    rows = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    return ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or " "
