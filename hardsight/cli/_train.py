from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from hardsight.cli._command import Command, json_option, tell
from hardsight.cli._flags import flags_of

_RECIPE = "run/train/_config.py:TrainConfig"
_EPILOG = """\b
A recipe:
  model = "resnet18"
  out = "runs/cifar10"
  epochs = 30
  loss = ["cross_entropy", {name = "amc", weight = 0.1, ramp = "linear"}]
  augment = {crop_padding = 4, flip = true}
  [data]
  name = "cifar10"
  split = "train"
  test_split = "test"

\b
Examples:
  hardsight train recipe.toml
  hardsight train recipe.toml --set optimizer.lr=0.05 --out runs/short
  hardsight train recipe.toml --resume
  hardsight train recipe.toml --folds 5 --out runs/unseen
"""


@click.command(cls=Command, on_ranks=True, epilog=_EPILOG)
@click.argument("recipe", type=click.Path(dir_okay=False, path_type=Path))
@flags_of(_RECIPE, "out", out={"help": "Folder of the run, in place of the recipe's."})
@flags_of("run/train/_config.py:DataConfig", "root", names_of={"root": "data_root"})
@flags_of(_RECIPE, "folds", "device", "epochs", "seed", "resume", "overwrite", defaults=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Override one key of RECIPE, in TOML syntax.")  # fmt: skip
@json_option
def train(recipe: Path, overrides: tuple[str, ...], data_root: str | None, **flags: Any) -> None:
    """Train the model that RECIPE, a TOML file, describes.

    The folder of the run can be given to `hardsight score --model`.
    """
    from hardsight.run.train import (
        FoldsResult,
        TrainConfig,
        run_train,
    )  # torch loads only when this runs

    set_flags = {name: value for name, value in flags.items() if value is not None}
    if data_root is not None:
        overrides = (*overrides, f"data.root={json.dumps(data_root)}")
    config = TrainConfig.load(recipe, overrides, **set_flags)
    try:
        result = run_train(config)
    except KeyboardInterrupt:
        raise click.ClickException(
            f"interrupted; continue with: {_continued(recipe, config.out, overrides, set_flags)}"
        ) from None
    if isinstance(result, FoldsResult):
        tell_folds(result)
    elif result.is_first_process:
        facts = {
            "out": result.folder,
            "model": result.folder / "model.safetensors",
            "best_epoch": result.best_epoch,
            "history": result.history,
            "test": result.test,
            "dynamics": None if result.dynamics is None else result.dynamics.path,
        }
        tell(facts, lambda: _print_result(result, config))


def _continued(
    recipe: Path, out: str, overrides: tuple[str, ...], set_flags: dict[str, Any]
) -> str:
    """The command that continues an interrupted run, with the same flags and overrides."""
    words = ["hardsight", "train", str(recipe), "--resume", "--out", out]
    for name, value in set_flags.items():
        if name not in ("out", "resume", "overwrite"):
            words += [f"--{name}", str(value)]
    for override in overrides:
        words += ["--set", override]
    return shlex.join(words)


def tell_folds(result: Any) -> None:
    """Print the result of training by folds, also for `hardsight score --out-of-sample`."""
    facts = {
        "out": result.folder,
        "table": result.table.path,
        "rows": len(result.table),
        "accuracy": result.table.accuracy(),
        "folds": [{"accuracy": fold["accuracy"], "test": fold["test"]} for fold in result.folds],
    }
    tell(facts, lambda: _print_folds(result))


def _print_folds(result: Any) -> None:
    from rich.console import Console

    console, table = Console(highlight=False), result.table
    each = [fold["accuracy"] for fold in result.folds]
    console.print(
        f"[bold]{len(table):,} rows[/], each scored by the one of {len(each)} models that was not "
        "trained on it",
        soft_wrap=True,
    )
    console.print(
        f"accuracy {table.accuracy():.2%} ({min(each):.2%} to {max(each):.2%} by fold)",
        soft_wrap=True,
    )
    tests = [fold["test"]["accuracy"] for fold in result.folds if fold["test"]]
    if tests:
        console.print(f"test accuracy {min(tests):.2%} to {max(tests):.2%}", soft_wrap=True)
    console.print(f"table -> {table.path}", soft_wrap=True, markup=False)
    report = shlex.join(["hardsight", "report", str(result.folder)])
    console.print(f"next: {result.next_step}, or {report}", soft_wrap=True, markup=False)


def _print_result(result: Any, config: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    best = result.history[result.best_epoch - 1]
    said = ", ".join(
        f"{name.replace('_', ' ')} {best[name]:.4f}"
        for name in ("train_loss", "val_loss", "val_accuracy")
        if name in best
    )
    console.print(
        f"[bold]epoch {result.best_epoch} of {len(result.history)}[/] selected: {said}",
        soft_wrap=True,
    )
    if result.test is not None:
        console.print(
            f"test accuracy {result.test['accuracy']:.2%} of {result.test['examples']:,} examples "
            f"({config.data.test_split})",
            soft_wrap=True,
            markup=False,
        )
    if result.dynamics is not None:
        held_out = int(result.dynamics.column("held_out").sum())
        aside = f" ({held_out:,} of them held out)" if held_out else ""
        console.print(
            f"dynamics of {len(result.dynamics):,} examples{aside} -> {result.dynamics.path}",
            soft_wrap=True,
            markup=False,
        )
        for what, verb in (("look at them", "report"), ("fix their labels", "review")):
            step = shlex.join(["hardsight", verb, str(result.folder)])
            console.print(f"{what}: {step}", soft_wrap=True, markup=False)
    console.print(f"model -> {result.folder / 'model.safetensors'}", soft_wrap=True, markup=False)
    console.print(f"next: {result.next_step}", soft_wrap=True, markup=False)
