"""What more than one command has to say about its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console


def print_other_classes(console: Console, data: dict[str, Any], classes: Sequence[str]) -> None:
    """Say that the model has other classes than the data names, where it has.

    Args:
        console: to print on.
        data: facts about the data, with ``named``, the number of classes it names; 0 for none.
        classes: those of the model.
    """
    named = data.get("named")
    if named and named != len(classes):
        console.print(
            f"[yellow]the model has {len(classes)} classes, the data names {named}[/]: is it the "
            "model of this data?",
            soft_wrap=True,
        )
