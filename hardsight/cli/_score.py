from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardsight.cli._command import DATA_IN_SHORT, Command, json_option, tell
from hardsight.cli._flags import flags_of

if TYPE_CHECKING:
    from hardsight.table import ScoreTable

_EPILOG = """\b
Examples:
  hardsight score --model net.py:make --weights w.safetensors --data photos/ \\
                  --out run
  hardsight score --model hf:google/vit-base-patch16-224 --data val.parquet \\
                  --out run
  hardsight score config.toml --engine ray --ray-address auto --resume

\b
Score every example by a model that did not see it, which finds wrong labels:
  hardsight score --out-of-sample 5 --recipe recipe.toml --out run
  hardsight score --out-of-sample 5 --data e.npy --labels labels.npy --out run
"""
_OF_RECIPES = ("out", "data_root", "device", "seed", "resume", "overwrite")
_RECIPE = (
    "With --out-of-sample: a recipe of `hardsight train`, which trains a model for each fold. It "
    "names the data and the model."
)


@click.command(
    cls=Command,
    epilog=_EPILOG,
    rare={"target": "Texts", "thumbnails": "The run", "recipe": "The run"},
    brief={
        "data": DATA_IN_SHORT,
        "keep_embeddings": "Keep embeddings, to find near-duplicates",
        "out_of_sample": "Score stored embeddings in this many folds, each by a head that is "
        "fitted to the others",
    },
)
@click.argument("config", required=False, type=click.Path(dir_okay=False, path_type=Path))
@flags_of(
    "run/score/_score.py:score", without=("preprocessing", "show_progress"),
    first=("data", "model", "weights", "out"),
    last=("batch_size", "workers", "device", "precision", "sample", "out_of_sample", "thumbnails",
          "shard_rows", "seed", "engine", "ray_address", "ray_actors", "ray_cpus", "ray_gpus",
          "resume", "overwrite", "strict"),
)  # fmt: skip
@click.option("--recipe", type=click.Path(dir_okay=False, path_type=Path), help=_RECIPE)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Override one key of CONFIG, in TOML syntax.")  # fmt: skip
@json_option
def score(
    config: Path | None, recipe: Path | None, overrides: tuple[str, ...], **flags: Any
) -> None:
    """Score every example of labelled data, and write one row for each to a table.

    CONFIG is an optional TOML file with the same keys as the options. Options override it.
    """
    set_flags = {name: value for name, value in flags.items() if value is not None}
    if recipe is not None:
        _by_recipe(recipe, overrides, config, set_flags)
        return
    from hardsight.run.score import ScoreConfig, run_score  # torch loads only when this runs

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
    tell(summary_of(table), lambda: _print_summary(table))


def summary_of(table: ScoreTable) -> dict[str, Any]:
    """The facts about a scored run that ``--json`` prints."""
    return {
        "table": table.path,
        "rows": len(table),
        "accuracy": table.accuracy(),
        "sample": table.metadata.get("sample"),
        "scores": list(table.scores),
    }


def _by_recipe(
    recipe: Path, overrides: tuple[str, ...], config: Path | None, set_flags: dict[str, Any]
) -> None:
    """Train a model for each fold, as `hardsight train --folds` does."""
    folds = set_flags.pop("out_of_sample", None)
    if folds is None:
        raise click.UsageError(
            "--recipe trains a model for each fold; say how many folds with --out-of-sample 5"
        )
    others = [f"--{name.replace('_', '-')}" for name in set_flags if name not in _OF_RECIPES]
    if config is not None or others:
        named = ", ".join([*(["CONFIG"] if config else []), *others])
        raise click.UsageError(
            f"{named} cannot be used with --recipe, which says what is trained and scored; change "
            "a key of the recipe with --set KEY=VALUE"
        )
    from hardsight.cli._train import tell_folds
    from hardsight.run.train import TrainConfig, run_train

    root = set_flags.pop("data_root", None)
    if root is not None:
        overrides = (*overrides, f"data.root={json.dumps(root)}")
    try:
        result = run_train(TrainConfig.load(recipe, overrides, folds=folds, **set_flags))
    except KeyboardInterrupt:
        raise click.ClickException("stopped; continue with the same command and --resume") from None
    tell_folds(result)


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
