from __future__ import annotations

import os
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from hardsight.errors import NonFiniteError
from hardsight.experiments import EXPERIMENTS, Claim, Lab, Result, Table, experiment, spread
from hardsight.experiments.lab import GOOD
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
def without_bars(monkeypatch):
    """No network is asked for an accuracy: for claims on numbers that are made up."""
    for network in list(GOOD):
        monkeypatch.delitem(GOOD, network)


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


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory):
    """A folder of trained models for all experiments, also of tests in other processes."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared-runs"


@pytest.fixture(scope="session")
def sources():
    """Decoded data that the experiments of one process share."""
    return {}


@pytest.fixture(autouse=True)
def places_of_panels(monkeypatch):
    """Where panels and legends stand is tested in tests/report; here it took a tenth of the time.

    Everything is still drawn and written.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, figure: None)


@pytest.fixture
def quiet(tmp_path):
    """A lab on the CPU."""
    return Lab(
        scale="smoke", out=tmp_path, runs=tmp_path / "runs", device="cpu", show_progress=False
    )


class ScriptedLab(Lab):
    """A lab whose models are not trained: a script says what each of them reaches.

    Args:
        script: from the recipe of a model, its seed among it, to validation and test accuracy as
            shares; ``None`` loses the run.
    """

    def __init__(self, script, **options):
        super().__init__(**options)
        self.script, self.recipes = script, []

    def train(self, model, source, *, seed, **settings):
        recipe = {"model": model, "seed": seed, "data": source.spec, **settings}
        self.recipes.append(recipe)
        reached = self.script(recipe)
        if reached is None:
            raise NonFiniteError("expected a finite loss")
        rows = [{"val_accuracy": reached[0], "seconds": 0.0}]
        name = f"run-{len(self.recipes)}"
        return SimpleNamespace(
            history=rows, best_epoch=1, test=reached[1], recipe=recipe, folder=self.runs / name
        )

    def outputs(self, run, source):
        return SimpleNamespace(accuracy=run.test)


@pytest.fixture
def scripted(tmp_path):
    """Run an experiment's smoke setting with scripted models: its result and the recipes."""

    def run(name, script=lambda recipe: (0.5, 0.5), make=ScriptedLab, **changes):
        spec = EXPERIMENTS[name]
        lab = make(script, scale="smoke", out=tmp_path, runs=tmp_path, device="cpu")
        return spec.result(lab, replace(spec.scales["smoke"], **changes)), lab.recipes

    return run
