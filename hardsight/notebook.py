"""HTML of results in a notebook: a few facts, a small table, and the next step.

Names come from data, so everything is escaped. Styles are inline, since notebooks drop style
sheets, and colours are inherited from the notebook, which keeps dark themes readable.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

Cell = str | bytes | None  # text, a picture as PNG, JPEG or WebP, or nothing

_KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp"}
_QUIET = "opacity:.7"
_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:middle"
_PICTURE = "height:48px;max-width:96px;image-rendering:pixelated"


def shown(
    title: str,
    facts: Mapping[str, str],
    *,
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[Cell]] = (),
    note: str = "",
) -> str:
    """Return a small piece of HTML for a notebook.

    Args:
        title: heading, in bold.
        facts: a line of names and values below it.
        columns: headings of the table.
        rows: its cells; bytes are pictures.
        note: a sentence below the table, such as the next step.

    Example:
        >>> "<script>" in shown("<script>", {"classes": "2"})
        False
    """
    line = " · ".join(f"{html.escape(name)} <b>{html.escape(said)}</b>"
                      for name, said in facts.items())  # fmt: skip
    parts = [f"<b>{html.escape(title)}</b>", f"<div>{line}</div>" if line else ""]
    if rows:
        parts.append(_table(columns, rows))
    if note:
        parts.append(f'<div style="{_QUIET}">{html.escape(note)}</div>')
    return f"<div>{''.join(parts)}</div>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    head = "".join(f'<th scope="col" style="{_CELL}">{html.escape(name)}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_cell(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return html.escape(cell)
    kind = next((kind for start, kind in _KINDS.items() if (cell or b"").startswith(start)), None)
    if cell is None or kind is None:
        return ""
    code = base64.b64encode(cell).decode("ascii")
    return f'<img alt="" style="{_PICTURE}" src="data:image/{kind};base64,{code}">'
