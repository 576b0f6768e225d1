from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardsight.cli._options import (
    model_options,
    names,
    output_option,
    pixel_options,
    run_options,
    work_options,
)

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
@click.option("--data", help="Folder of class folders, .csv of path,label, .parquet, idx, "
              ".npz/.npy/.safetensors, hub:OWNER/NAME, builtin:digits, or a name such as "
              "cifar10.")  # fmt: skip
@click.option("--model", help="Folder of a trained model, a name such as resnet18, "
              "package.module:factory, file.py:factory, timm:NAME, torchvision:NAME or hf:NAME. "
              "None for stored embeddings.")  # fmt: skip
@click.option("--weights", help="The model's weights: safetensors or a torch file of tensors.")
@click.option("--out", help="Folder of the run; table.parquet and more appear in it.")
@click.option("--scores", multiple=True, callback=names, metavar="NAME[,NAME]",
              help="Scores to compute; all by default.")  # fmt: skip
@click.option("--head", help="Name of the classifier layer or bare parameter, if it is not found "
              "by itself.")  # fmt: skip
@output_option
@click.option("--split", help="Split of data that has several, such as train or test.")
@click.option("--data-root", help="Folder above those of named datasets, such as cifar10/.")
@click.option("--labels", help="Stored embeddings: file with their labels.")
@click.option("--class-weights", help="Stored embeddings: file with the head's weights.")
@click.option("--bias", help="Stored embeddings: file with the head's bias.")
@click.option("--classes", multiple=True, callback=names, metavar="NAME[,NAME]",
              help="Class names of the data, position = label.")  # fmt: skip
@click.option("--num-classes", type=int, help="Given to a model factory that takes it.")
@model_options
@pixel_options
@work_options
@click.option("--precision", type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
              help="Of the forward pass; auto is bfloat16 on a GPU.")  # fmt: skip
@click.option("--sample", type=click.Choice(["in-sample", "out-of-sample", "unknown"]),
              help="Whether the model was trained on this data; stated in the table.")  # fmt: skip
@click.option("--thumbnails", type=click.IntRange(min=0),
              help="Most pictures kept for the report (600).")  # fmt: skip
@click.option("--shard-rows", type=click.IntRange(min=1),
              help="Source positions per shard; a kill loses at most one.")  # fmt: skip
@click.option("--seed", type=int, help="Of a model that is initialised at random.")
@run_options
@click.option("--strict", is_flag=True, default=None, help="Stop at the first unreadable example.")
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
    from rich.markup import escape

    assert table.path is not None

    console = Console(highlight=False)
    console.print(f"[bold]{len(table):,} rows[/] -> {escape(str(table.path))}", soft_wrap=True)
    scores = ", ".join(table.scores)
    console.print(f"accuracy {table.accuracy():.2%}, scores: {scores}", soft_wrap=True)
    step = shlex.join(["hardsight", "report", str(table.path.parent)])
    console.print(f"next: {step}", soft_wrap=True, markup=False)
