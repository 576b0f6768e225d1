from __future__ import annotations

from dataclasses import dataclass

import pytest

from hardsight.experiments import Claim, Lab, Result, Table, experiment, spread
from hardsight.experiments.lab import EXPERIMENTS
from hardsight.report.figures import panels


@dataclass(frozen=True)
class Setting:
    epochs: int = 1
    seeds: tuple[int, ...] = (0, 1)

    @property
    def limit(self) -> None:
        return None

    @property
    def dataset(self) -> str:
        return "builtin:digits"


@pytest.fixture
def planted(monkeypatch):
    """A small real experiment under the name ``planted``, for the time of one test."""
    monkeypatch.setattr(EXPERIMENTS, "_specs", dict(EXPERIMENTS._specs))

    @experiment(
        "planted",
        title="A small network on digits",
        reproduces="no paper",
        scales={"smoke": Setting(), "short": Setting(epochs=2)},
    )
    def run(lab: Lab, setting: Setting) -> Result:
        """Trains one small network per seed ({seeds}) for {epochs} epochs on {limit} images of
        {dataset}.
        """
        train, test = (lab.source("builtin:digits", split) for split in ("train", "test"))
        runs = [
            lab.train("small_cnn", train, seed=seed, epochs=setting.epochs)
            for seed in setting.seeds
        ]
        accuracy = [100 * lab.outputs(done, test).accuracy for done in runs]
        figure, (axes,) = panels()
        axes.plot(setting.seeds, accuracy, "o")
        return Result(
            tables=[
                Table("Accuracy", ("loss", "%"), [("CE", spread(accuracy))], paper=[("CE", 99.0)])
            ],
            claims=[Claim("digits are learned", "99 %", f"{accuracy[0]:.1f} %", accuracy[0] > 99)],
            figures=[lab.figure(figure, "accuracy", caption="By seed.", alt="Points.")],
            data={"accuracy": accuracy},
        )

    return EXPERIMENTS["planted"]
