from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hardsight.cli._command import Command, json_option, old_option, tell

if TYPE_CHECKING:
    from hardsight.exchange import Exported

_EPILOG = """\b
Examples:
  hardsight export run --to csv --out run.csv
  hardsight export run --to cleanlab --out issues.parquet
  hardsight export run --to huggingface --out dataset/
  hardsight export run --to label-studio --out tasks/
  hardsight export run --to fiftyone --out fiftyone/
  hardsight export run --to argilla --limit 1000 --out suspects/
"""


@click.command(cls=Command, epilog=_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", required=True,
              type=click.Choice(["csv", "cleanlab", "huggingface", "label-studio", "fiftyone",
                                 "argilla"]),
              help="Tool to export to.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path),
              help="File (csv and cleanlab) or folder (all others) to write.")  # fmt: skip
@click.option("--data", help="Where the data is now, if it has moved since it was scored.")
@old_option("--rows", "--examples", type=click.Choice(["all", "suspects"]))
@click.option("--examples", is_eager=True, type=click.Choice(["all", "suspects"]),
              help="Export all examples, or only the suspects, most suspect first. The default is "
              "suspects for Label Studio and Argilla, and all for the others.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="Largest number of examples to export.")
@click.option("--image-url", metavar="URL",
              help="For Label Studio: the URL that the paths of pictures are appended to. By "
              "default Label Studio reads them from its local storage.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace what is at --out.")
@json_option
def export(
    run: Path,
    to: str,
    out: Path,
    data: str | None,
    examples: str | None,
    limit: int | None,
    image_url: str | None,
    overwrite: bool,
) -> None:
    """Export RUN to another tool, with labels, suggestions, reasons, scores and decisions."""
    from hardsight.exchange import export_run

    done = export_run(
        run, to, out=out, data=data, examples=examples, limit=limit, image_url=image_url,
        overwrite=overwrite,
    )  # fmt: skip
    facts = {"to": to, "rows": done.rows, "out": done.out, "notes": list(done.notes)}
    tell(facts, lambda: _print(done))


def _print(done: Exported) -> None:
    click.echo(f"{done.rows:,} examples -> {done.out}")
    for note in done.notes:
        click.echo(f"  {note}")
