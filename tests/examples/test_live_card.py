"""The script behind the live card of the documentation stays a valid recipe."""

from __future__ import annotations

import runpy
from pathlib import Path

from hardsight.config import config_from
from hardsight.run.train import TotalLoss, TrainConfig

SCRIPT = Path(__file__).parents[2] / "examples" / "live_card.py"


def test_the_three_losses_of_the_live_card_differ_in_the_loss_alone():
    losses = runpy.run_path(str(SCRIPT))["losses"](30)
    assert list(losses) == ["CE", "EL", "AMC"]
    names = {}
    for key, loss in losses.items():
        given = {"model": "small_cnn", "data": "fashion-mnist", "out": "run", "loss": loss}
        config = config_from(TrainConfig, given, where="the live card")
        total = TotalLoss(config.loss)  # every name and option is known
        names[key] = [term.config.name for term in total.terms]
    assert names == {
        "CE": ["cross_entropy"],
        "EL": ["encouraging"],
        "AMC": ["cross_entropy", "amc"],
    }
    # the paper's share: 80 of 300 epochs are 8 of 30
    assert losses["AMC"][1]["ramp_epochs"] == 8
