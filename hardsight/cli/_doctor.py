from __future__ import annotations

import click


@click.command()
def doctor() -> None:
    """Say what is installed, what is missing, and how to install it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from hardsight.run.doctor import findings

    table = Table(box=None, pad_edge=False)
    for column in ("part", "found", "for", "next step"):
        table.add_column(column, overflow="fold")
    for finding in findings():
        mark = "green" if finding.ok else "yellow"
        table.add_row(
            finding.part,
            f"[{mark}]{escape(finding.found)}[/]",
            finding.purpose,
            escape(finding.step),
        )
    Console(highlight=False).print(table)
