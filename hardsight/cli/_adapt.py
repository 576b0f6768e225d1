from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardsight.cli._options import model_options, pixel_options, run_options

if TYPE_CHECKING:
    from rich.table import Table

_EPILOG = """\b
What happens: the model is trained on the source (or is a trained one). Then, in every round,
it predicts the target, the rule selects the predictions to trust, and the model is trained on
the source and the selected target examples. The portion of each class that is selected grows
from round to round. Labels of the target, if it has some, are read to evaluate only.

\b
Rules:
  cbst         class-balanced: the most probable share of each class
  cbst+avh     label by probability, selected by angular visual confidence
  avc          angular visual confidence for both
  crst-mrkld   as cbst, with a regulariser that keeps predictions soft
  crst-lrent   as cbst, with soft labels
  source-only, entropy, threshold      baselines in the same loop

\b
Examples:
  hardsight adapt --model efficientnet_lite0:pretrained=true --source pacs --source-split photo \\
                  --target pacs --target-split sketch --rule cbst+avh --out runs/sketch
  hardsight adapt --model runs/photos --source photos/ --target street/ --unlabelled \\
                  --out runs/street
  hardsight adapt adapt.toml --rule cbst --rule cbst+avh --rule source-only --out runs/compared
  hardsight adapt adapt.toml --resume
"""

# flag -> key of the settings
_NESTED = {
    "model": "model.name",
    "weights": "model.weights",
    "model_classes": "model.classes",
    "class_order": "model.class_order",
    "trust_remote_code": "model.trust_remote_code",
    "source": "source.name",
    "source_split": "source.split",
    "target": "target.name",
    "target_split": "target.split",
    "unlabelled": "target.unlabelled",
    **{
        name: f"source.{name}"
        for name in ("size", "crop", "squash", "channels", "mean", "std", "white")
    },
    "source_epochs": "pretrain.epochs",
    "epochs": "retrain.epochs",
}


@click.command(epilog=_EPILOG)
@click.argument("config", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", help="A network by name, file.py:factory, or the folder of a trained "
              "model.")  # fmt: skip
@click.option("--weights", help="Weights of a trained model; it is not trained on the source then.")
@click.option("--source", help="Labelled data: folder of class folders, .csv, .parquet, idx, ...")
@click.option("--source-split", help="Split of --source.")
@click.option("--target", help="The domain to adapt to; its labels are never trained on.")
@click.option("--target-split", help="Split of --target.")
@click.option("--unlabelled", is_flag=True, default=None,
              help="--target has no labels: any folder of images.")  # fmt: skip
@click.option("--rule", multiple=True, help="Which target examples to trust (cbst); may be "
              "repeated, all from the same source model.")  # fmt: skip
@click.option("--out", help="Folder of the run.")
@click.option("--rounds", type=click.IntRange(min=1), help="Of select and retrain (7).")
@click.option("--portion", type=float, help="Share of each class in the first round (0.2).")
@click.option("--portion-step", type=float, help="Added per round (0.05).")
@click.option("--portion-max", type=float, help="Largest share (0.5).")
@click.option("--source-epochs", type=click.IntRange(min=0),
              help="Epochs on the source (10; 0 for a trained model).")  # fmt: skip
@click.option("--epochs", type=click.IntRange(min=1), help="Epochs of every round (2).")
@model_options
@pixel_options
@click.option("--batch-size", type=click.IntRange(min=1), help="Examples per step (128).")
@click.option("--data-root", help="Folder above those of named datasets, such as pacs/.")
@click.option("--device", help="auto (default), cpu, cuda, cuda:1, mps.")
@click.option("--seed", type=int, help="Of everything random.")
@run_options
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Set any key of the configuration, in TOML syntax.")  # fmt: skip
def adapt(config: Path | None, overrides: tuple[str, ...], **flags: Any) -> None:
    """Adapt a model to a domain without labels by self-training.

    CONFIG is a TOML file with the same settings; flags go over it.
    """
    from hardsight.report import write_adaptation
    from hardsight.run.adapt import AdaptConfig, run_adapt  # torch loads only when this runs

    given = {name: value for name, value in flags.items() if value not in (None, ())}
    root = given.pop("data_root", None)
    if root is not None:
        given |= {"source.root": root, "target.root": root}
    nested = {_NESTED.get(name, name): value for name, value in given.items()}
    pairs = tuple(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in nested.items())
    if config is None:
        _check_named((*overrides, *pairs))
    settings = AdaptConfig.load(config, (*overrides, *pairs))
    try:
        result = run_adapt(settings)
    except KeyboardInterrupt:
        raise click.ClickException(
            "interrupted; continue with the same command and --resume"
        ) from None
    page = write_adaptation(result.folder)
    _print_result(result, page)


def _check_named(pairs: tuple[str, ...]) -> None:
    named = {pair.split("=")[0].split(".")[0] for pair in pairs}
    missing = [f"--{key}" for key in ("model", "source", "target", "out") if key not in named]
    if missing:
        raise click.UsageError(f"name {', '.join(missing)}, or a CONFIG file that does")


def _print_result(result: Any, page: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for rule, run in result.runs.items():
        console.print(_table(rule, run))
    console.print(f"page -> {page}", soft_wrap=True, markup=False)
    console.print(f"next: {result.next_step}", soft_wrap=True, markup=False)


def _table(rule: str, run: Any) -> Table:
    from rich.table import Table

    table = Table(title=rule, title_justify="left")
    columns = ("round", "portion", "selected", "right", "confidence", "accuracy", "class mean")
    rows = [_row(record) for record in run.rounds]
    told = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    for at in told:  # without labels of the target nothing is right or wrong
        table.add_column(columns[at], justify="right")
    for row in rows:
        table.add_row(*(row[at] for at in told))
    return table


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    quality, seen = record.get("quality") or {}, record["evaluation"] or {}
    rate = quality.get("true_positive_rate") or {}
    return (
        "source" if record["round"] == 0 else str(record["round"]),
        _share(record.get("portion")),
        f"{quality['selected']:,}" if quality else "",
        _share(rate.get("value")),
        _number(quality.get("mean_confidence")),
        _share(seen.get("accuracy")),
        _share(seen.get("mean_class_accuracy")),
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
