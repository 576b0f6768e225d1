from __future__ import annotations

from fractions import Fraction
from typing import Any

import click

from hardsight.cli._options import (
    model_options,
    names,
    output_option,
    pixel_options,
    run_options,
    work_options,
)

_EPILOG = """\b
A model is [NAME=]SPEC[@WEIGHTS], with SPEC the folder of a trained model, a name such as
resnet18, package.module:factory, file.py:factory, timm:NAME, torchvision:NAME or hf:NAME.

\b
Examples:
  hardsight evaluate net.py:make@ce.safetensors --data test/ --out card
  hardsight evaluate CE=net.py:make@ce.safetensors --compare EL=net.py:make@el.safetensors \\
                     --data mnist --split test --ood fashion/ --mean 0.1307 --std 0.3081 \\
                     --train mnist --train-split train --out card
  hardsight evaluate timm:resnet18@w.safetensors --data val.parquet --epsilons 0,1/255,4/255 \\
                     --out card

Attacks need to know how inputs are made from pixels: from the model's own configuration, or from
--mean and --std (0 and 1 for plain pixels). Without either they are left out, and the card says so.
"""


def _radii(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[float, ...] | None:
    """``0,0.01`` or ``0,1/255,8/255``."""
    if value is None:
        return None
    try:
        return tuple(float(Fraction(part.strip())) for part in value.split(","))
    except (ValueError, ZeroDivisionError):
        raise click.BadParameter(f"expected numbers such as 0,1/255,0.03, got {value!r}") from None


@click.command(epilog=_EPILOG)
@click.argument("model")
@click.option("--data", required=True, help="Labelled data the model was not trained on: folder of "
              "class folders, .csv of path,label, .parquet, idx, .npz, hub:OWNER/NAME, "
              "builtin:digits, or a name such as cifar10.")  # fmt: skip
@click.option("--compare", multiple=True, metavar="MODEL",
              help="A further model, compared with the first; may be repeated.")  # fmt: skip
@click.option("--ood", multiple=True, metavar="DATA",
              help="Foreign data to be told apart; may be repeated.")  # fmt: skip
@click.option("--train", metavar="DATA", help="The training data: for the linear probe and for "
              "many/medium/few-shot accuracy.")  # fmt: skip
@click.option("--out", required=True, help="Folder; card.json and card.html appear in it.")
@click.option("--weights", help="Weights of MODEL, if they do not stand behind an @.")
@click.option("--head", help="Name of the classifier layer or bare parameter, if it is not found "
              "by itself.")  # fmt: skip
@output_option
@click.option("--split", help="Split of --data, such as test.")
@click.option("--ood-split", help="Split of --ood.")
@click.option("--train-split", help="Split of --train.")
@click.option("--data-root", help="Folder above those of named datasets, such as cifar10/.")
@click.option("--classes", multiple=True, callback=names, metavar="NAME[,NAME]",
              help="Class names of the data, position = label.")  # fmt: skip
@click.option("--num-classes", type=int, help="Given to a model factory that takes it.")
@model_options
@pixel_options
@click.option("--epsilons", callback=_radii, metavar="E,E,...", help="Radii of FGSM and PGD in "
              "L-infinity, in pixels 0..1 (0,1/255,2/255,4/255,8/255).")  # fmt: skip
@click.option("--epsilons-l2", callback=_radii, metavar="E,E,...",
              help="Radii of PGD in L2, in pixels 0..1 (0,0.25,0.5,1).")  # fmt: skip
@click.option("--attack-steps", type=click.IntRange(min=1), help="Steps of PGD (10).")
@click.option("--attack-examples", type=click.IntRange(min=0),
              help="Examples to attack (256); 0 for no attacks.")  # fmt: skip
@click.option("--explain-examples", type=click.IntRange(min=0),
              help="Examples for Grad-CAM (64); 0 for none.")  # fmt: skip
@click.option("--cam-layer", help="Layer of Grad-CAM, if it is not found by itself.")
@click.option("--feature-examples", type=click.IntRange(min=10),
              help="Most examples for probe and clusters (5000).")  # fmt: skip
@click.option("--map-examples", type=click.IntRange(min=10),
              help="Most points on the map of features (1000).")  # fmt: skip
@click.option("--validation-share", type=click.FloatRange(0, 1, min_open=True, max_open=True),
              help="Share of --data that the temperature is fitted on (0.2).")  # fmt: skip
@work_options
@click.option("--seed", type=int, help="Of everything that is drawn.")
@run_options
def evaluate(**flags: Any) -> None:
    """Evaluate MODEL on labelled data: one JSON and one HTML card.

    The card has accuracy, margins and energy, detection of foreign data, calibration, robustness
    with checks for gradient masking, the features' quality, and Grad-CAM. With --compare all models
    stand side by side, with paired tests.
    """
    from hardsight.report import write_card
    from hardsight.run.evaluate import EvaluateConfig, run_evaluate  # torch loads only now

    given = {name: value for name, value in flags.items() if value is not None}
    settings = EvaluateConfig.load(None, (), **given)
    card = run_evaluate(settings)
    assert settings.out is not None
    page = write_card(settings.out)
    for model in card["models"]:
        top = model["accuracy"]["top1"]
        click.echo(
            f"{model['name']}: accuracy {top['value']:.2%} "
            f"({top['low']:.2%} to {top['high']:.2%}, n {top['n']:,})"
        )
    click.echo(f"{page.with_name('card.json')}\n{page}")
    click.echo(f"next: open it in a browser: {page.resolve().as_uri()}")
