from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hardsight.cli._command import DATA_IN_SHORT, Command, json_option, tell
from hardsight.cli._flags import flags_of

_CARD = "run/evaluate/_card.py:evaluation_card"
_WEIGHTS = "Weights of MODEL, if they are not given after an @."

_EPILOG = """A model is written [NAME=]SPEC[@WEIGHTS]. SPEC is the folder of a trained model,
a name such as resnet18, package.module:factory, file.py:factory, timm:NAME,
torchvision:NAME or hf:NAME.

Attacks need to know how pixels become the model's input. That comes from the model's own
configuration, or from --mean and --std (0 and 1 for plain pixels). If neither is there, the card
has no attacks and says so.

\b
Examples:
  hardsight evaluate net.py:make@ce.safetensors --data test/ --out card
  hardsight evaluate CE=net.py:make@ce.pt --compare EL=net.py:make@el.pt \\
                     --data mnist --split test --ood fashion/ --out card
  hardsight evaluate timm:resnet18@w.safetensors --data val.parquet \\
                     --epsilons 0,1/255,4/255 --out card
"""


@click.command(
    cls=Command,
    epilog=_EPILOG,
    rare=dict.fromkeys(("validation_share", "wanted_error"), "The run"),
    brief={"data": f"Labelled, not trained on: {DATA_IN_SHORT[0].lower()}{DATA_IN_SHORT[1:]}"},
)
@click.argument("model")
@flags_of(_CARD, "data", data={"required": True})
@flags_of(
    "run/evaluate/_card.py:EvaluateConfig", "compare", "ood",
    compare={"metavar": "MODEL", "callback": None}, ood={"metavar": "DATA", "callback": None},
)  # fmt: skip
@flags_of(_CARD, "train", "out", train={"metavar": "DATA"}, out={"required": True})
@flags_of("run/evaluate/_card.py:EvaluateConfig", "weights", weights={"help": _WEIGHTS})
@flags_of(
    _CARD, without=("models", "data", "ood", "train", "out", "preprocessing", "show_progress"),
    last=("resume", "overwrite"),
)  # fmt: skip
@json_option
def evaluate(**flags: Any) -> None:
    """Evaluate MODEL on labelled data, and write a card as JSON and as HTML.

    The card shows accuracy, margins and energy, detection of foreign data, calibration, robustness
    with checks for gradient masking, the quality of the features, and Grad-CAM. With --compare, all
    models are shown side by side, with paired tests.
    """
    from hardsight.report import write_card
    from hardsight.run.evaluate import EvaluateConfig, run_evaluate  # torch loads only now

    set_flags = {name: value for name, value in flags.items() if value is not None}
    settings = EvaluateConfig.load(None, (), **set_flags)
    card = run_evaluate(settings)
    assert settings.out is not None
    page = write_card(settings.out)
    models = [
        {"name": model["name"], "accuracy": model["accuracy"]["top1"]} for model in card["models"]
    ]
    facts = {"card": page.with_name("card.json"), "page": page, "models": models}
    tell(facts, lambda: _print(card, page))


def _print(card: Mapping[str, Any], page: Path) -> None:
    for model in card["models"]:
        top = model["accuracy"]["top1"]
        click.echo(
            f"{model['name']}: accuracy {top['value']:.2%} "
            f"({top['low']:.2%} to {top['high']:.2%}, n {top['n']:,})"
        )
    click.echo(f"{page.with_name('card.json')}\n{page}")
    click.echo(f"next: open it in a browser: {page.resolve().as_uri()}")
