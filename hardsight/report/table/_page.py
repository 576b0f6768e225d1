"""Write the report of a table: compute its parts and fill them into the templates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hardsight.errors import OptionError
from hardsight.gallery import is_finite
from hardsight.report.page import MINUS, NONE, filled, number, page_file, replace_page
from hardsight.report.table import _classes, _dynamics, _groups, _histograms, _map
from hardsight.report.table._galleries import galleries
from hardsight.report.table._sentences import sentences_of
from hardsight.report.table._summary import summary_of
from hardsight.report.table._view import View, view_of
from hardsight.table import DYNAMICS, TABLE, RunFolder, ScoreTable, read_table

_REPORT = "report.html"
_OF_RUNS = (TABLE, DYNAMICS)


def write_table_page(
    run: str | os.PathLike[str] | ScoreTable,
    *,
    out: str | os.PathLike[str] | None = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the page of a scored dataset or tracked training; see ``hardsight.write_report``."""
    table = run if isinstance(run, ScoreTable) else read_table(run)
    if out is None and table.path is None:
        raise OptionError("this table has no file to put the report beside; pass out='report.html'")
    is_of_run = table.path is not None and table.path.name in _OF_RUNS
    run_folder = RunFolder(table.path.parent) if table.path and is_of_run else None
    if out is None and table.path is not None and run_folder is None:
        out = table.path.with_suffix(".html")  # a table that was copied elsewhere
    home = None if run_folder is None else run_folder.folder
    file = page_file(out, run=home, name=_REPORT, overwrite=overwrite)
    replace_page(file, page(view_of(table, folder=run_folder, title=title)))
    return file


_NAMED = 100  # class names in the metadata of a page, if there are too many for all
_MOST_LISTED = 200  # unreadable or non-finite examples that are listed


def page(view: View) -> str:
    """The whole report as HTML."""
    confusions = _classes.confusions_of(view)
    rows = _classes.class_rows(view, confusions)
    return filled(
        "page.html",
        styles=("report.css",),
        scripts=("theme.js", "report.js"),
        view=view,
        summary=summary_of(view, rows, confusions[:5]),
        histograms=_histograms.histograms(view),
        map=_map.angle_norm_map(view),
        classes=rows[: _classes.MOST_ROWS],
        classes_hidden=max(0, len(rows) - _classes.MOST_ROWS),
        galleries=galleries(view),
        sentences=sentences_of(view),
        groups=_groups.groups_of(view),
        dynamics=_dynamics.dynamics_of(view),
        scores=_meanings(view),
        errors=view.errors.head(_MOST_LISTED).to_dict("records"),
        broken=view.ids((~is_finite(view.table)).nonzero()[0][:_MOST_LISTED]),
        broken_count=int((~is_finite(view.table)).sum()),
        run=_run_facts(view),
        metadata=json.dumps(
            _shortened(view.metadata), indent=2, sort_keys=True, ensure_ascii=False
        ),
        figures={"map": _map, "histogram": _histograms, "dynamics": _dynamics},
    )


def _shortened(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata with only the first names of very many classes, which would fill the page."""
    names = metadata.get("classes") or []
    if len(names) <= _classes.MOST_ROWS:
        return metadata
    rest = len(names) - _NAMED
    return {**metadata, "classes": [*names[:_NAMED], f"and {rest:,} more: see the table"]}


def _meanings(view: View) -> list[dict[str, Any]]:
    """Title, meaning, range, direction and version of each score."""
    described = []
    for name in view.table.scores:
        about = view.table.about(name)
        low, high = about.get("low"), about.get("high")
        described.append(
            {
                "name": name,
                "title": about["title"],
                "unit": about["unit"],
                "meaning": about.get("meaning") or "",
                "range": f"{_bound(low, MINUS + '∞')} to {_bound(high, '∞')}",
                "direction": _histograms.direction(view, name),
                "version": about.get("version"),
            }
        )
    return described


def _bound(value: Any, unbounded: str) -> str:
    text = number(value) if isinstance(value, int | float) else NONE
    return unbounded if text == NONE else text


def _run_facts(view: View) -> list[tuple[str, str]]:
    """The main facts of the metadata as pairs of name and value; missing ones are left out."""
    about = view.metadata
    data, model = about.get("data") or {}, about.get("model") or {}
    versions = about.get("versions") or {}
    facts = [
        ("Data", data.get("spec")),
        ("Data fingerprint", data.get("fingerprint")),
        ("Model", model.get("spec")),
        ("Head", model.get("head")),
        ("Weights digest", model.get("weights_digest")),
        ("Classes", (about.get("class_order") or {}).get("note")),
        ("Sample", about.get("sample")),
        ("Seed", about.get("seed")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]
