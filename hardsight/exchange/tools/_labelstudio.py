"""Export suspects of a run as tasks of Label Studio, with suggestions and decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from hardsight.exchange.tools._rows import HERE_WHOLE, plain, under
from hardsight.patch import KEEP, RELABEL
from hardsight.run_folder import write_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from hardsight.exchange.tools._rows import Pictures, RunRows

_LOCAL = "/data/local-files/?d="  # how Label Studio names files below its document root


def write_labelstudio(
    run: RunRows,
    rows: NDArray[np.int64],
    target: Path,
    pictures: Pictures,
    *,
    image_url: str | None,
) -> list[str]:
    """Write ``tasks.json`` to import, and ``config.xml``, the labelling interface.

    Pictures that are files are named by their path below the data; others are written to
    ``images/``. Texts are part of their tasks. A suggestion becomes a prediction of Label Studio,
    and a decision an annotation.

    Args:
        run: the rows of the table.
        rows: the rows to export.
        target: the folder to create.
        pictures: pictures or texts of the rows.
        image_url: the URL that paths of pictures are appended to; by default Label Studio's local
            storage.
    """
    target.mkdir()
    begin = _LOCAL if image_url is None else image_url
    tasks: list[dict[str, Any]] = []
    kind = "text" if pictures.are_texts else "image"
    named: Iterable[tuple[int, str | None]]
    if pictures.are_texts:
        named = [(row, pictures.text_of(row)) for row in rows.tolist()]
    elif pictures.have_files:
        files = ((row, pictures.file_of(row)) for row in rows.tolist())
        named = [(row, None if f is None else under(f, pictures.root)) for row, f in files]
    else:
        written = pictures.written(rows, target / "images")
        named = [(row, None if name is None else f"images/{name}") for row, name in written]
    for row, content in named:
        if content is not None:
            value = content if kind == "text" else begin + quote(content)
            tasks.append(_task(run, row, kind, value))
    write_text(target / "tasks.json", json.dumps(tasks, ensure_ascii=False, indent=1))
    write_text(target / "config.xml", _config(run, kind))
    notes = []
    if image_url is None and kind == "image":
        root = pictures.root if pictures.have_files else HERE_WHOLE
        notes.append(
            "the pictures are local files of Label Studio; start it with "
            "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true "
            f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={root}"
        )
    return notes + pictures.count_left_out(len(rows) - len(tasks), len(rows))


def _task(run: RunRows, row: int, kind: str, value: str) -> dict[str, Any]:
    suspects = run.suspects
    index, suggestion = int(run.index[row]), int(suspects.suggestion[row])
    task: dict[str, Any] = {
        "data": {
            kind: value,
            "index": index,
            "id": run.ids[row],
            "label": run.name_of(int(run.label[row])),
            "reason": suspects.reason(row),
        }
    }
    if suggestion >= 0:
        score = plain(suspects.suspicion[row]) if len(suspects.suspicion) else None
        made = {"model_version": "hardsight", "result": [_choice(run, suggestion, index, kind)]}
        task["predictions"] = [made if score is None else {**made, "score": score}]
    if run.verdict[row] in (KEEP, RELABEL) and run.decided[row] >= 0:
        task["annotations"] = [{"result": [_choice(run, int(run.decided[row]), index, kind)]}]
    return task


def _choice(run: RunRows, label: int, index: int, kind: str) -> dict[str, Any]:
    return {
        "id": f"r{index}",
        "from_name": "label",
        "to_name": kind,
        "type": "choices",
        "value": {"choices": [run.name_of(label)]},
    }


def _config(run: RunRows, kind: str) -> str:
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in run.classes)
    return (
        f'<View>\n  <{kind.title()} name="{kind}" value="${kind}"/>\n'
        '  <Text name="reason" value="$reason"/>\n'
        f'  <Choices name="label" toName="{kind}" choice="single">\n'
        f"{choices}\n  </Choices>\n</View>\n"
    )
