from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from hardsight.cli._command import Command, json_option, tell
from hardsight.cli._flags import flags_of

if TYPE_CHECKING:
    from hardsight.table import ScoreTable

_EPILOG = """\b
Examples:
  hardsight queue runs/photos --data pool/ --unlabelled --budget 500 \\
                  --out next.parquet
  hardsight queue runs/photos --data pool/ --unlabelled --budget 500 \\
                  --by coverage --balanced --out next.parquet
  hardsight review next.parquet
"""


@click.command(cls=Command, epilog=_EPILOG)
@click.argument("model")
@flags_of(
    "run/queue/_queue.py:queue", without=("model", "show_progress"),
    first=("data", "budget", "by", "balanced", "unlabelled", "out", "overwrite"),
    data={"required": True}, budget={"required": True}, out={"required": True},
    by={"type": click.Choice(["margin", "entropy", "angular_margin", "avc", "coverage", "random"])},
)  # fmt: skip
@json_option
def queue(model: str, data: str, **flags: Any) -> None:
    """List the examples of a pool that are worth labelling next for MODEL.

    MODEL is named as in score: the folder of a trained model, file.py:factory, timm:NAME, ...
    """
    from hardsight.run.queue import queue as queued  # torch loads only when this runs

    set_flags = {name: value for name, value in flags.items() if value is not None}
    table = queued(model, data, **set_flags)
    facts = {
        "rows": len(table),
        "of": table.metadata["queue"]["pool"],
        "unreadable": table.metadata["queue"]["unreadable"],
        "out": table.path,
    }
    tell(facts, lambda: _print(table))


def _print(table: ScoreTable) -> None:
    pool = table.metadata["queue"]["pool"]
    click.echo(f"{len(table):,} of {pool:,} examples, most urgent first -> {table.path}")
    if table.metadata["queue"]["unreadable"]:
        click.echo(f"{table.metadata['queue']['unreadable']:,} examples could not be read")
    click.echo(f"next: {shlex.join(['hardsight', 'review', str(table.path)])}")
