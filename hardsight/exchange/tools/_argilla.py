"""Suspects of a run as a dataset of Argilla 2, with suggestions and what was decided."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.exchange.tools._rows import HERE, plain
from hardsight.run_folder import write_json, write_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardsight.exchange.tools._rows import Pictures, RunRows

_ADVISED = 10_000  # pictures at most, by Argilla's own guide, because records contain them
_SHARED = {"strategy": "overlap", "min_submitted": 1}


def write_argilla(
    run: RunRows, rows: NDArray[np.int64], target: Path, pictures: Pictures
) -> list[str]:
    """Write the folder that ``argilla.Dataset.from_disk`` reads: settings and records.

    Suggestions become suggestions of Argilla. Decisions become metadata, because a response in
    Argilla belongs to a user of its server, whom a file cannot name.

    Args:
        run: the rows of the table.
        rows: the rows to export.
        target: the folder to create.
        pictures: pictures or texts of the rows, which become part of the records.
    """
    (target / ".argilla").mkdir(parents=True)
    kind = "text" if pictures.are_texts else "image"
    write_json(target / ".argilla" / "settings.json", _settings(run, kind))
    about = {"name": "hardsight", "allow_extra_metadata": True, "distribution": _SHARED}
    write_json(target / ".argilla" / "dataset.json", about)
    records = []
    for row in rows.tolist():
        field = pictures.text_of(row) if pictures.are_texts else _picture(pictures.bytes_of(row))
        if field is not None:
            records.append(_record(run, row, kind, field))
    write_text(target / "records.json", json.dumps(records, ensure_ascii=False))
    notes = [f'read it with argilla.Dataset.from_disk("{HERE}", workspace=...)']
    notes += pictures.count_left_out(len(rows) - len(records), len(rows))
    if len(records) > _ADVISED and kind == "image":
        notes.append(
            f"{len(records):,} pictures are more than the {_ADVISED:,} that Argilla advises; "
            "--limit takes the most suspect ones"
        )
    return notes


def _picture(content: bytes | None) -> str | None:
    """A picture as a ``data:`` address."""
    if content is None:
        return None
    return f"data:{_kind_of(content)};base64,{base64.b64encode(content).decode()}"


def _record(run: RunRows, row: int, kind: str, field: str) -> dict[str, Any]:
    suspects, suggestion = run.suspects, int(run.suspects.suggestion[row])
    suspicion = plain(suspects.suspicion[row]) if len(suspects.suspicion) else None
    made = {"value": run.name_of(suggestion), "score": suspicion, "agent": "hardsight"}
    metadata = {
        "example": int(run.index[row]),  # Argilla does not accept "index" as a name
        "name": run.ids[row],
        "given": run.name_of(int(run.label[row])),
        "group": suspects.groups[int(suspects.group[row])],
        "suspicion": suspicion,
        "verdict": run.verdict[row] or None,
        "decided": run.name_of(int(run.decided[row])) or None,
    }
    return {
        "id": str(int(run.index[row])),
        "fields": {
            kind: field,
            "reason": suspects.reason(row),
        },
        "metadata": {key: value for key, value in metadata.items() if value is not None},
        "suggestions": {"label": made} if suggestion >= 0 else {},
        "responses": {},
        "vectors": {},
    }


def _kind_of(picture: bytes) -> str:
    if picture.startswith(b"\xff\xd8"):
        return "image/jpeg"
    if picture[:4] == b"RIFF" and picture[8:12] == b"WEBP":
        return "image/webp"
    return "image/gif" if picture.startswith(b"GIF8") else "image/png"


def _settings(run: RunRows, kind: str) -> dict[str, Any]:
    options = [{"text": name, "value": name} for name in run.classes]
    words = {"type": "text", "use_markdown": False}
    shown = words if kind == "text" else {"type": "image"}
    kinds = {"example": "integer", "suspicion": "float", "group": "terms", "given": "terms"}
    return {
        "guidelines": None,
        "allow_extra_metadata": True,
        "distribution": _SHARED,
        "fields": [
            _part(kind, shown, required=True),
            _part("reason", words, required=False),
        ],
        "questions": [
            _part("label", {"type": "label_selection", "options": options}, required=True)
        ],
        "metadata": [
            {"name": name, "title": name, "visible_for_annotators": True,
             "settings": {"type": kind, "visible_for_annotators": True}}
            for name, kind in kinds.items()
        ],
        "vectors": [],
        "mapping": None,
    }  # fmt: skip


def _part(name: str, settings: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {"name": name, "title": name, "required": required, "settings": settings,
            "type": settings["type"]}  # fmt: skip
