from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardsight.cli._command import Command, json_option, tell
from hardsight.cli._flags import flags_of

if TYPE_CHECKING:
    from rich.table import Table

_EPILOG = """What happens: the model is trained on the source (or is a trained one). Then,
in every round, it predicts the target, the rule selects the predictions to
trust, and the model is trained on the source and the selected target examples.
The portion of each class that is selected grows from round to round. If the
target has labels, they are used for evaluation only.

\b
Rules:
  cbst         class-balanced: the most probable share of each class
  cbst+avh     label by probability, selected by angular visual confidence
  avc          angular visual confidence for both
  crst-mrkld   like cbst, with a regulariser that keeps predictions soft
  crst-lrent   like cbst, with soft labels
  crst         both: soft labels and the regulariser
  source-only, bn-only, entropy, threshold      baselines in the same loop

\b
Examples:
  hardsight adapt --model runs/photos --source photos/ --target street/ \\
                  --unlabelled --out runs/street
  hardsight adapt adapt.toml --rule cbst --rule source-only --out runs/both
  hardsight adapt adapt.toml --resume
"""

_ADAPT, _TRAIN = "run/adapt/_config.py", "run/train/_config.py"
_SETTINGS = f"{_ADAPT}:AdaptConfig"
_WEIGHTS = "Weights of a trained model, which is then not trained on the source."
_OF_SOURCE, _OF_TARGET = {"help": "Split of --source."}, {"help": "Split of --target."}
_SOURCE_EPOCHS = {
    "type": click.IntRange(min=0), "help": "Epochs on the source (10; 0 for a trained model).",
}  # fmt: skip
_CLASSES = {"metavar": "NAME[,NAME]|FILE"}
_PIXELS = ("size", "crop", "squash", "channels", "mean", "std", "white")
# flag -> key of the settings; a flag that is missing here has the name of its key
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
    **{name: f"source.{name}" for name in _PIXELS},
    "source_epochs": "pretrain.epochs",
    "epochs": "retrain.epochs",
}


@click.command(
    cls=Command,
    epilog=_EPILOG,
    rare=dict.fromkeys(("portion", "portion_step", "portion_max"), "The run"),
    brief={"rule": "The target examples to trust, by the rules below"},
)
@click.argument("config", required=False, type=click.Path(dir_okay=False, path_type=Path))
@flags_of(_SETTINGS, "model")
@flags_of(_TRAIN + ":ModelConfig", "weights", weights={"help": _WEIGHTS})
@flags_of(_SETTINGS, "source")
@flags_of(_TRAIN + ":DataConfig", "split", names_of={"split": "source_split"}, split=_OF_SOURCE)
@flags_of(_SETTINGS, "target")
@flags_of(
    _ADAPT + ":TargetConfig", "split", "unlabelled", names_of={"split": "target_split"},
    split=_OF_TARGET,
)  # fmt: skip
@flags_of(_SETTINGS, "rule", "out", "rounds", "portion", "portion_step", "portion_max")
@flags_of(
    _ADAPT + ":StageConfig", "epochs", names_of={"epochs": "source_epochs"}, epochs=_SOURCE_EPOCHS
)
@flags_of(_ADAPT + ":StageConfig", "epochs", epochs={"help": "Epochs of every round (2)."})
@flags_of(
    _TRAIN + ":ModelConfig", "classes", "class_order", "trust_remote_code",
    names_of={"classes": "model_classes"}, classes=_CLASSES,
)  # fmt: skip
@flags_of(_TRAIN + ":DataConfig", *_PIXELS)
@flags_of(_SETTINGS, "batch_size")
@flags_of(_TRAIN + ":DataConfig", "root", names_of={"root": "data_root"})
@flags_of(_SETTINGS, "device", "seed", "resume", "overwrite")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Set any key of the configuration, in TOML syntax.")  # fmt: skip
@json_option
def adapt(config: Path | None, overrides: tuple[str, ...], **flags: Any) -> None:
    """Adapt a model to a domain without labels by self-training.

    CONFIG is a TOML file with the same settings. Flags override it.
    """
    from hardsight.report import write_adaptation
    from hardsight.run.adapt import AdaptConfig, run_adapt  # torch loads only when this runs

    set_flags = {name: value for name, value in flags.items() if value not in (None, ())}
    root = set_flags.pop("data_root", None)
    if root is not None:
        set_flags |= {"source.root": root, "target.root": root}
    # flags become overrides like those of --set, which can name a key inside a table
    nested = {_NESTED.get(name, name): value for name, value in set_flags.items()}
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
    facts = {
        "out": result.folder,
        "page": page,
        "rules": {
            rule: {
                "model": run.folder,
                "accuracy": result.accuracy(rule),
                "selected": [
                    (record.get("quality") or {}).get("selected") for record in run.rounds
                ],
            }
            for rule, run in result.runs.items()
        },
    }
    tell(facts, lambda: _print_result(result, page))


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
    filled = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    for at in filled:  # without labels of the target, "right" and "accuracy" stay empty
        table.add_column(columns[at], justify="right")
    for row in rows:
        table.add_row(*(row[at] for at in filled))
    return table


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    quality, evaluation = record.get("quality") or {}, record["evaluation"] or {}
    rate = quality.get("true_positive_rate") or {}
    return (
        "source" if record["round"] == 0 else str(record["round"]),
        _share(record.get("portion")),
        f"{quality['selected']:,}" if quality else "",
        _share(rate.get("value")),
        _number(quality.get("mean_confidence")),
        _share(evaluation.get("accuracy")),
        _share(evaluation.get("mean_class_accuracy")),
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
