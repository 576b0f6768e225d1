"""Tables on a terminal, whose words stay whole where there is room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2  # columns of the terminal between two columns of the table


def print_table(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Print a table of plain text; markup in it is printed as it is.

    No lines between columns, and no column narrower than its words: broken words are harder to
    read than cells of several lines.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    cells = [list(row) for row in rows]
    texts = [[heading, *(row[at] for row in cells)] for at, heading in enumerate(columns)]
    padding = (0, _GAP - 1, 0, 0)
    table = Table(box=box.SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
    for heading, width in zip(columns, _widths(texts, console.width), strict=True):
        table.add_column(escape(heading), overflow="fold", width=width)
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(escape(title), style="bold")  # a table would fold it to its own width
    console.print(table)


def _widths(texts: Sequence[Sequence[str]], room: int) -> list[int]:
    """Of each column its longest word; then what is left, to those whose cells need most lines.

    Where not even the words fit, the widest give way.
    """
    room -= _GAP * len(texts)
    whole = [max(map(len, column)) for column in texts]
    widths = [
        max(len(word) for text in column for word in [*text.split(), " "]) for column in texts
    ]
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    while sum(widths) < min(room, sum(whole)):
        lines = [wanted / width for wanted, width in zip(whole, widths, strict=True)]
        widths[lines.index(max(lines))] += 1
    return widths
