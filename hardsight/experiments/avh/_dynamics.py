"""AVH, Section 3: norm and angle during training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hardsight.data import MemorySource
from hardsight.experiments import lab as kit
from hardsight.experiments.avh import _models as models
from hardsight.experiments.avh._dynamics_claims import (
    SETTLED,
    SETTLES,
    STORED,
    Runs,
    dynamics_claims,
    stored_runs,
)
from hardsight.experiments.avh._models import KINDS, Subjects, levels_of, say
from hardsight.heads import find_head
from hardsight.models import SmallCNN
from hardsight.report.figures import COLOURS, panels
from hardsight.run.loop import ModelPass
from hardsight.run.study import Curves, RunDynamics, read_histories, run_dynamics, settled_epoch
from hardsight.scores import angular_visual_hardness, feature_norm

_DRAWN = {"norm": "norm ‖x‖", "avh": "AVH", "correct": "accuracy"}
_BAND = "Lines: mean over examples and seeds; bands: standard deviation over seeds."


@dataclass(frozen=True)
class DynamicsSetting(models.ModelSetting):
    """The shared networks, and a small one on MNIST.

    Attributes:
        digits: the dataset of the small network.
        digits_epochs: passes over it.
        iterations: of the loop that is watched step by step (Fig. 15).
        watched: test examples that are looked at after every iteration.
    """

    digits: str = "mnist"
    digits_epochs: int = 9
    iterations: int = 60
    watched: int = 2000


def _setting(shared: models.ModelSetting, **more: int | str) -> DynamicsSetting:
    values = {field.name: getattr(shared, field.name) for field in dataclasses.fields(shared)}
    return DynamicsSetting(**values, **more)  # type: ignore[arg-type]


def _asks(setting: DynamicsSetting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    runs, digits = stored_runs(data)
    who = data["annotators"]
    gates, small = (
        models.gates_of(
            dataset,
            {model: [run.overall.means["correct"][-1] for run in of] for model, of in by.items()},
        )
        for dataset, by in ((setting.dataset, runs), (setting.digits, {"small_cnn": digits}))
    )
    weak = (kit.weakness_of(gates), kit.weakness_of(small))
    asked = dynamics_claims(runs, digits, who=who, dataset=setting.digits, weak=weak)
    tables = [_curve_table(runs, digits, who), _gap_table(runs)]
    return [*tables, kit.networks_table([*gates, *small])], asked


@kit.experiment(
    "avh-dynamics",
    title="Norm and angle during training",
    reproduces="Angular Visual Hardness, Figs. 4, 9-13, 15, Observations 1-4",
    scales={
        "smoke": _setting(
            models.SMOKE, digits="builtin:digits", digits_epochs=2, iterations=8, watched=100
        ),
        "short": _setting(models.SHORT),
        "paper": _setting(models.PAPER),
    },
    asks=_asks,
)
def avh_dynamics(lab: kit.Lab, setting: DynamicsSetting) -> kit.Result:
    """Watches the networks of avh-human during training.

    After every epoch, one pass over the test split, which is never trained on, records norm, AVH,
    confidence and correctness of each example. The same is recorded for {degraded} of the examples
    at every level of noise and contrast. Curves are means over examples and then over seeds
    ({seeds}); epochs count from 1.

    {networks} train on {dataset} for {epochs} epochs, in which the learning rate {rates} (the
    paper: 90 epochs, and a tenth after 30 and 60). A small network on {digits} is watched over
    {digits_epochs} epochs, and over its first {iterations} steps. Fig. 14 (CIFAR-100) is left out.
    If the data has no human counts, annotators are simulated.
    """
    subjects = models.Subjects(lab, setting)
    is_clean = np.isin(np.arange(len(subjects.test)), subjects.rows)
    data: dict[str, Any] = {
        "annotators": subjects.annotators,
        **{key: {model: [] for model in setting.models} for key in STORED},
        "by_level": {kind: {model: [] for model in setting.models} for kind in KINDS},
    }
    for model in setting.models:
        for seed in setting.seeds:
            done = subjects.run(model, seed)
            test = subjects.histories(done)
            run = run_dynamics(test, frequency=subjects.frequency)
            of_run = (
                run.overall.means,
                {group.group: {"n": group.n, **group.means} for group in run.groups},
                {
                    key: [interval.value for interval in intervals]
                    for key, intervals in run.human.items()
                },
            )
            for key, part in zip(STORED, of_run, strict=True):
                data[key][model].append(part)
            clean = run_dynamics(test, groups={"clean": is_clean}).groups[0].means
            for kind, by_model in data["by_level"].items():
                sets = [models.set_name(kind, level) for level in models.levels_of(kind)[1:]]
                others = [run_dynamics(subjects.histories(done, name)).overall for name in sets]
                by_model[model].append([clean, *(other.means for other in others)])
    data["digits"] = [run.overall.means for run in _digits_runs(lab, setting)]
    data["first_steps"] = [_first_steps(lab, setting, seed) for seed in setting.seeds]
    runs, digits = stored_runs(data)
    return kit.Result(
        figures=[
            human_figure(lab, runs, subjects),
            confidence_figure(lab, runs, subjects),
            overall_figure(lab, runs),
            *(
                level_figure(lab, by_model, kind, count=len(subjects.rows))
                for kind, by_model in data["by_level"].items()
            ),
            steps_figure(lab, data["first_steps"], digits, setting.digits),
        ],
        data=data,
    )


def _digits_runs(lab: kit.Lab, setting: DynamicsSetting) -> list[RunDynamics]:
    """The small network, watched on its test split after every epoch."""
    train = lab.source(setting.digits, "train", limit=setting.train_limit)
    test = lab.source(setting.digits, "test", limit=setting.test_limit)
    runs = []
    for seed in setting.seeds:
        lab.step(f"SmallCNN on {setting.digits}, seed {seed}")
        done = lab.train(
            "small_cnn", train, seed=seed, epochs=setting.digits_epochs,
            batch_size=setting.batch_size, optimizer={"name": "sgd", "lr": 0.1},
            schedule={"name": "step", "step_epochs": max(1, setting.digits_epochs // 3)},
            validation=0.0, select="last", track_on={"test": test},
        )  # fmt: skip
        runs.append(run_dynamics(read_histories(done.folder, examples="test")))
    return runs


def _first_steps(lab: kit.Lab, setting: DynamicsSetting, seed: int) -> dict[str, list[float]]:
    """Mean norm, AVH and accuracy on the test split after each of the first steps."""
    train = lab.source(setting.digits, "train")
    test = lab.source(setting.digits, "test", limit=setting.watched)
    net = SmallCNN(num_classes=len(train.classes), seed=seed).to(lab.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    order = torch.Generator().manual_seed(seed)
    inputs, labels = _inputs(test, lab.device)
    pixels, targets = _inputs(train, lab.device)
    means: dict[str, list[float]] = {key: [] for key in _DRAWN}
    with ModelPass(net, find_head(net, inputs[:2]), device=lab.device) as running:
        for _ in range(setting.iterations):
            rows = torch.randint(len(targets), (setting.batch_size,), generator=order).to(
                lab.device
            )
            net.train()
            loss = cross_entropy(net(pixels[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                embeddings, logits = running.outputs(inputs)
                assert embeddings is not None
                weights = net.head.weight
                means["norm"].append(float(feature_norm(embeddings).mean()))
                hardness = angular_visual_hardness(embeddings, labels, weights)
                means["avh"].append(float(hardness.mean()))
                means["correct"].append(float((logits.argmax(1) == labels).float().mean()))
    return means


def _inputs(source: MemorySource, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    images = kit.channels_first(source).float() / 255
    return images.to(device), torch.from_numpy(source.labels.copy()).to(device)


def _last(curves: Sequence[Curves], key: str, epoch: int = -1) -> kit.Cell:
    return kit.spread([run.means[key][epoch] for run in curves])


def _curve_table(runs: Runs, digits: Sequence[RunDynamics], who: str) -> kit.Table:
    titles = {"norm": "‖x‖", "avh": "AVH", "confidence": "confidence", "correct": "accuracy"}
    rows: list[list[kit.Cell]] = []
    named = {say(model): of_seeds for model, of_seeds in runs.items()}
    for name, of_seeds in {**named, "SmallCNN, digits": digits}.items():
        curves = [run.overall for run in of_seeds]
        people = [run.human["avh"][-1].value for run in of_seeds if run.human]
        rows.append([
            name,
            *(_last(curves, key, epoch) for key in titles for epoch in (0, -1)),
            *(kit.spread([run.settled[key] for run in of_seeds]) for key in SETTLED),
            kit.spread(people) if people else None,
        ])  # fmt: skip
    heads = [head for title in titles.values() for head in (f"{title} first", "last")]
    settled = [f"{title} settled" for title in SETTLED.values()]
    return kit.Table(
        "First and last epoch, and when a curve settles",
        ("network", *heads, *settled, f"Spearman of AVH with {who}, last"),
        rows,
        "Mean ± standard deviation over seeds, on examples never trained on. Settled: the first "
        f"epoch, counted from 1, from which {SETTLES}.",
    )


def _gap_table(runs: Runs) -> kit.Table:
    rows: list[list[kit.Cell]] = []
    for model, of_seeds in runs.items():
        for place, group in enumerate(of_seeds[0].groups):
            curves = [run.groups[place] for run in of_seeds]
            cells = (_last(curves, key) for key in ("norm", "avh", "confidence", "correct"))
            settled = kit.spread([settled_epoch(run.means["avh"]) for run in curves])
            rows.append([say(model), group.group, group.n, *cells, settled])
    return kit.Table(
        "Last epoch by human frequency",
        ("network", "examples", "n", "‖x‖", "AVH", "confidence", "accuracy", "AVH settled"),
        rows,
        "Mean ± standard deviation over seeds. Bins are half-open, the last one is closed.",
    )


def _line(axis: Any, curves: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """Mean over seeds with a band of their standard deviation; epochs or steps from 1."""
    kit.band(axis, range(1, len(curves[0]) + 1), curves, colour, label)
    axis.locator_params(axis="x", integer=True)


def _curve_grid(names: Sequence[str], lines: Any) -> tuple[Any, list[Any]]:
    """A row of panels per network: norm, AVH and accuracy, with the lines of each.

    Args:
        names: of the networks.
        lines: from a network and a measure to curves, one per seed, by label.
    """
    figure, axes = panels(len(names), 3, width=3.7, height=2.5)
    places = [(name, key, title) for name in names for key, title in _DRAWN.items()]
    for axis, (name, key, title) in zip(axes, places, strict=True):
        for colour, (label, curves) in zip(COLOURS, lines(name, key).items(), strict=False):
            _line(axis, curves, colour, label)
        axis.set(title=f"{say(name)}: {title}", xlabel="epoch", ylabel=title)
    return figure, axes


def _by_frequency(of_seeds: Sequence[RunDynamics], key: str) -> dict[str, list[Any]]:
    """Curves of the bins of human frequency, one per seed, by name."""
    return {
        f"{group.group.replace('people ', '')}, n {group.n:,}": [
            run.groups[place].means[key] for run in of_seeds
        ]
        for place, group in enumerate(of_seeds[0].groups)
    }


def human_figure(
    lab: kit.Lab, runs: Mapping[str, Sequence[RunDynamics]], subjects: Subjects
) -> kit.Figure:
    """Norm, AVH and accuracy by epoch and human frequency (Fig. 4)."""
    figure, axes = _curve_grid(list(runs), lambda name, key: _by_frequency(runs[name], key))
    return lab.figure(
        figure, "human-bins",
        caption=f"Fig. 4: norm, AVH and accuracy by epoch, split by the share of "
        f"{subjects.annotators} who chose the label. {_BAND}",
        alt="Grid of curves: one row per network; norm, AVH and accuracy against the epoch.",
        legend={"axes": axes[:1], "title": f"share of {subjects.annotators} who chose the label"},
    )  # fmt: skip


def confidence_figure(
    lab: kit.Lab, runs: Mapping[str, Sequence[RunDynamics]], subjects: Subjects
) -> kit.Figure:
    """Confidence by epoch and human frequency (Fig. 9)."""
    figure, axes = panels(1, len(runs), width=3.4, height=2.7)
    for axis, (model, of_seeds) in zip(axes, runs.items(), strict=True):
        lines = _by_frequency(of_seeds, "confidence")
        for colour, (label, curves) in zip(COLOURS, lines.items(), strict=False):
            _line(axis, curves, colour, label)
        axis.set(title=say(model), xlabel="epoch", ylabel="model confidence")
    return lab.figure(
        figure, "confidence",
        caption=f"Fig. 9: model confidence by epoch, split in the same way. {_BAND}",
        alt="Curves of model confidence against the epoch, one panel per network.",
        legend={"axes": axes[:1], "title": f"share of {subjects.annotators} who chose the label"},
    )  # fmt: skip


def overall_figure(lab: kit.Lab, runs: Mapping[str, Sequence[RunDynamics]]) -> kit.Figure:
    """All test examples by epoch (Figs. 10, 13)."""
    figure, axes = panels(1, 4, width=3.4, height=2.7)
    titles = {**_DRAWN, "confidence": "model confidence"}
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for place, (model, of_seeds) in enumerate(runs.items()):
            _line(axis, [run.overall.means[key] for run in of_seeds], COLOURS[place], say(model))
        axis.set(title=title, xlabel="epoch", ylabel=title)
    return lab.figure(
        figure, "overall",
        caption=f"Figs. 10 and 13: all test examples by epoch. {_BAND}",
        alt="Four panels of curves against the epoch: norm, AVH, accuracy and confidence.",
    )  # fmt: skip


def level_figure(
    lab: kit.Lab, by_model: Mapping[str, Sequence[Sequence[Mapping[str, Sequence[float]]]]],
    kind: str, *, count: int,
) -> kit.Figure:  # fmt: skip
    """The levels of one degradation by epoch (Figs. 11, 12)."""
    levels = [f"{kind} {level:g}" for level in levels_of(kind)]

    def lines(model: str, key: str) -> dict[str, list[Any]]:
        every = enumerate(levels)
        return {name: [of[place][key] for of in by_model[model]] for place, name in every}

    figure, _ = _curve_grid(list(by_model), lines)
    number = 11 if kind == "noise" else 12
    return lab.figure(
        figure, kind,
        caption=f"Fig. {number}: the same {count:,} test pictures at the levels of {kind}. {_BAND}",
        alt=f"Grid of curves by level of {kind}: norm, AVH and accuracy against the epoch.",
    )  # fmt: skip


def steps_figure(
    lab: kit.Lab,
    loops: Sequence[Mapping[str, Sequence[float]]],
    digits: Sequence[RunDynamics],
    dataset: str,
) -> kit.Figure:
    """The small network over its first steps and over its epochs (Fig. 15)."""
    figure, axes = panels(2, 3, width=3.7, height=2.5)
    for column, (key, title) in enumerate(_DRAWN.items()):
        _line(axes[column], [loop[key] for loop in loops], COLOURS[0], "first steps")
        _line(axes[3 + column], [run.overall.means[key] for run in digits], COLOURS[1], "epochs")
        axes[column].set(title=title, xlabel="iteration", ylabel=title)
        axes[3 + column].set(title=title, xlabel="epoch", ylabel=title)
    return lab.figure(
        figure, "digits",
        caption=f"Fig. 15: SmallCNN on {dataset}: the first {len(loops[0]['norm'])} steps "
        f"(above) and whole epochs (below), on test examples. {_BAND}",
        alt="Curves of norm, AVH and accuracy against iterations and against epochs.",
    )  # fmt: skip
