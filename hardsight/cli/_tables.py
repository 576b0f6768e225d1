"""Print tables on a terminal, without breaking words if there is room."""

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

    There are no lines between columns, and no column is narrower than its longest word: broken
    words are harder to read than cells of several lines. Columns that do not fit are printed below
    the others, next to a copy of the first column.
    """
    from rich.markup import escape

    cells = [list(row) for row in rows]
    texts = [[heading, *(row[at] for row in cells)] for at, heading in enumerate(columns)]
    console.print(escape(title), style="bold")  # a table would fold it to its own width
    for place, part in enumerate(_parts(texts, console.width)):
        if place:
            console.print()
        _print_part(console, [texts[at] for at in part])


def _print_part(console: Console, texts: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    padding = (0, _GAP - 1, 0, 0)
    table = Table(box=box.SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
    for (heading, *_), width in zip(texts, _widths(texts, console.width), strict=True):
        table.add_column(escape(heading), overflow="fold", width=width)
    for row in list(zip(*texts, strict=True))[1:]:
        table.add_row(*map(escape, row))
    console.print(table)


def _parts(texts: Sequence[Sequence[str]], room: int) -> list[list[int]]:
    """Groups of columns whose longest words fit beside each other; each has the first column."""
    needed = [_GAP + _longest_word(column) for column in texts]
    parts = [[0]] if texts else []
    for at in range(1, len(texts)):
        if len(parts[-1]) > 1 and sum(needed[other] for other in parts[-1]) + needed[at] > room:
            parts.append([0])
        parts[-1].append(at)
    return parts


def _widths(texts: Sequence[Sequence[str]], room: int) -> list[int]:
    """The width of each column: its longest word, and a share of the room that is left.

    Room that is left goes to the column whose cells would take the most lines. If not even the
    words fit, the widest columns become narrower.
    """
    room -= _GAP * len(texts)
    whole = [max(map(len, column)) for column in texts]
    widths = [_longest_word(column) for column in texts]
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    while sum(widths) < min(room, sum(whole)):
        lines = [wanted / width for wanted, width in zip(whole, widths, strict=True)]
        widths[lines.index(max(lines))] += 1
    return widths


def _longest_word(column: Sequence[str]) -> int:
    return max(len(word) for text in column for word in [*text.split(), " "])
