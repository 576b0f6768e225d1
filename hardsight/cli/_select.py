from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from hardsight.cli._command import Command, json_option, tell
from hardsight.cli._flags import flags_of
from hardsight.errors import RunExistsError

_EPILOG = """\b
Examples:
  hardsight select run --keep 0.5 --out half.parquet
  hardsight select runs/tracked --keep 20000 --by aum --drop-suspects 0.05 \\
                   --out rows.parquet
  hardsight train recipe.toml --set 'data.rows="half.parquet"' --out runs/half
"""


def _share_or_number(ctx: click.Context, param: click.Parameter, value: str) -> int | float:
    """Read ``0.5`` as a share and ``5000`` as a number of rows."""
    try:
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    except ValueError:
        raise click.BadParameter(
            f"expected a share such as 0.5, or a number of rows such as 5000, got {value!r}"
        ) from None


@click.command(cls=Command, epilog=_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@flags_of(
    "selection/_select.py:select", without=("table",), first=("keep", "by", "how"),
    keep={"required": True, "callback": _share_or_number, "metavar": "SHARE|ROWS", "type": str},
    how={"type": click.Choice(["coverage", "hardest", "easiest", "moderate", "random"]),
         "metavar": "RULE"},
)  # fmt: skip
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path),
              help="File to write the list of rows to, .parquet, for train and score.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the file at --out.")
@json_option
def select(run: Path, out: Path, overwrite: bool, **flags: Any) -> None:
    """Choose the rows of RUN that are worth keeping, and write a list of them.

    RUN is the folder of a scored dataset or of a tracked training run, or its table.
    """
    from hardsight.selection import select as selected
    from hardsight.selection import write_rows
    from hardsight.table import read_table

    if out.exists() and not overwrite:
        raise RunExistsError(f"{out} exists; name another file, or replace it with --overwrite")
    set_flags = {name: value for name, value in flags.items() if value is not None}
    table = read_table(run)
    rows = selected(table, **set_flags)
    write_rows(out, table, rows, **set_flags)
    facts = {"rows": len(rows), "of": len(table), "out": out}
    tell(facts, lambda: _print(len(rows), len(table), out))


def _print(kept: int, of: int, out: Path) -> None:
    click.echo(f"{kept:,} of {of:,} rows -> {out}")
    listed = shlex.quote(f'data.rows="{out}"')
    click.echo(f"next: hardsight train RECIPE --set {listed}, or hardsight score ... --rows {out}")
