from __future__ import annotations

import shlex
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
  hardsight score config.toml --engine ray --ray-address auto --out /shared/run
"""


@click.command(epilog=_EPILOG)
@click.argument("config", required=False, type=click.Path(dir_okay=False, path_type=Path))
@flags_of(
    "run/score/_score.py:score", without=("preprocessing", "show_progress"),
    first=("data", "model", "weights", "out"),
    last=("batch_size", "workers", "device", "precision", "sample", "thumbnails", "shard_rows",
          "seed", "engine", "ray_address", "ray_actors", "ray_cpus", "ray_gpus", "resume",
          "overwrite", "strict"),
)  # fmt: skip
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Override one key of CONFIG, in TOML syntax.")  # fmt: skip
def score(config: Path | None, overrides: tuple[str, ...], **flags: Any) -> None:
    """Score every example of labelled data and write one table, a row per example.

    CONFIG is an optional TOML file with the same keys as the options; options override it.
    """
    from hardsight.run.score import ScoreConfig, run_score  # torch loads only when this runs

    set_flags = {name: value for name, value in flags.items() if value is not None}
    if config is None and "data" not in set_flags:
        raise click.UsageError("name the data: --data photos/ (or a CONFIG file that does)")
    settings = ScoreConfig.load(config, overrides, **set_flags)
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
    from rich.markup import escape

    assert table.path is not None

    console = Console(highlight=False)
    console.print(f"[bold]{len(table):,} rows[/] -> {escape(str(table.path))}", soft_wrap=True)
    scores = ", ".join(table.scores)
    console.print(f"accuracy {table.accuracy():.2%}, scores: {scores}", soft_wrap=True)
    step = shlex.join(["hardsight", "report", str(table.path.parent)])
    console.print(f"next: {step}", soft_wrap=True, markup=False)
