from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from hardsight.cli._command import Command, json_option, tell

if TYPE_CHECKING:
    from hardsight.run.doctor import Finding

_EPILOG = """\b
Examples:
  hardsight doctor
  hardsight doctor --json
"""


@click.command(cls=Command, on_ranks=True, epilog=_EPILOG)
@json_option
def doctor() -> None:
    """Show what is installed, what is missing, and how to install it."""
    from hardsight.run.doctor import findings

    results = findings()
    tell([dataclasses.asdict(finding) for finding in results], lambda: _print(results))


def _print(results: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("part", "found", "for", "next step"):
        table.add_column(column, overflow="fold")
    for finding in results:
        mark = "green" if finding.ok else "yellow"
        table.add_row(
            finding.part,
            f"[{mark}]{escape(finding.found)}[/]",
            finding.purpose,
            escape(finding.step),
        )
    Console(highlight=False).print(table)
