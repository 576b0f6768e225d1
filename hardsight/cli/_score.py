from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardsight.cli._flags import flags_of

if TYPE_CHECKING:
    from hardsight.table import ScoreTable

_EPILOG = """\b
Examples:
  hardsight score --model net.py:make_net --weights net.safetensors --data photos/ --out run
  hardsight score --model hf:google/vit-base-patch16-224 --data val.parquet --out run
  hardsight score --data embeddings.npy --labels labels.npy --class-weights head.safetensors \\
                  --out run
  hardsight score config.toml --set device=cpu --resume
"""


@click.command(epilog=_EPILOG)
@click.argument("config", required=False, type=click.Path(dir_okay=False, path_type=Path))
@flags_of(
    "run/score/_score.py:score", first=("data", "model", "weights", "out"),
    without=("preprocessing", "show_progress"),
)  # fmt: skip
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Override one key of CONFIG, in TOML syntax.")  # fmt: skip
def score(config: Path | None, overrides: tuple[str, ...], **flags: Any) -> None:
    """Score every example of labelled data and write one table, a row per example.

    CONFIG is an optional TOML file with the same keys as the options; options override it.
    """
    from hardsight.run.score import ScoreConfig, run_score  # torch loads only when this runs

    given = {name: value for name, value in flags.items() if value is not None}
    if config is None and "data" not in given:
        raise click.UsageError("name the data: --data photos/ (or a CONFIG file that does)")
    settings = ScoreConfig.load(config, overrides, **given)
    if settings.out is None:
        raise click.UsageError("name the output folder: --out run")
    try:
        table = run_score(settings)
    except KeyboardInterrupt:
        raise click.ClickException(
            f"stopped; continue with the same command and --resume (out: {settings.out})"
        ) from None
    _print_summary(table)


def _print_summary(table: ScoreTable) -> None:
    from rich.console import Console

    assert table.path is not None

    counts = table.metadata["counts"]
    console = Console(highlight=False)
    console.print(f"[bold]{len(table):,} rows[/] -> {table.path}", soft_wrap=True)
    scores = ", ".join(table.scores)
    console.print(f"accuracy {table.accuracy():.2%}, scores: {scores}", soft_wrap=True)
    origin = table.metadata["model"].get("weights") or ""
    if origin == "random initialisation" or origin.startswith("as made by"):
        console.print(
            f"[yellow]no --weights were given[/]: the model was scored {origin}", soft_wrap=True
        )
    if counts["errors"]:
        console.print(
            f"[yellow]{counts['errors']:,} examples could not be read[/]: "
            f"{table.path.parent / 'errors.parquet'}",
            soft_wrap=True,
        )
    if counts["non_finite"]:
        console.print(
            f"[yellow]{counts['non_finite']:,} rows are not finite[/] (column 'finite')",
            soft_wrap=True,
        )
    console.print(f"next: hardsight report {table.path.parent}", soft_wrap=True)
