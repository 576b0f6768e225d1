"""AVH, Section 3: norm and angle along training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hardsight.data import MemorySource
from hardsight.experiments.avh._dynamics_claims import (
    SETTLED,
    SETTLES,
    Runs,
    dynamics_claims,
    stored_runs,
)
from hardsight.experiments.avh._dynamics_draw import (
    MEASURES,
    confidence_figure,
    human_figure,
    level_figure,
    overall_figure,
    steps_figure,
)
from hardsight.experiments.avh._models import (
    KINDS,
    SHORT,
    SMOKE,
    ModelSetting,
    Subjects,
    levels_of,
    say,
    set_name,
)
from hardsight.experiments.lab import (
    Cell,
    Claim,
    Lab,
    Result,
    Table,
    channels_first,
    experiment,
    spread,
)
from hardsight.heads import capture, find_head
from hardsight.models import SmallCNN
from hardsight.run.study import Curves, RunDynamics, read_histories, run_dynamics, settled_epoch
from hardsight.scores import angular_visual_hardness, feature_norm

# by kind of degradation and network, one list over levels per seed
Levels = dict[str, dict[str, list[list[Curves]]]]


@dataclass(frozen=True)
class DynamicsSetting(ModelSetting):
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


def _setting(shared: ModelSetting, **more: int | str) -> DynamicsSetting:
    values = {field.name: getattr(shared, field.name) for field in dataclasses.fields(shared)}
    return DynamicsSetting(**values, **more)  # type: ignore[arg-type]


def _judge(setting: DynamicsSetting, data: Mapping[str, Any]) -> tuple[list[Table], list[Claim]]:
    runs, digits = stored_runs(data)
    who = data["annotators"]
    claims = dynamics_claims(runs, digits, who=who, dataset=setting.digits)
    return [_curve_table(runs, digits, who), _gap_table(runs)], claims


@experiment(
    "avh-dynamics",
    title="Norm and angle along training",
    reproduces="Angular Visual Hardness, Figs. 4, 9-13, 15, Observations 1-4",
    scales={
        "smoke": _setting(
            SMOKE, digits="builtin:digits", digits_epochs=4, iterations=12, watched=200
        ),
        "short": _setting(SHORT),
    },
    judge=_judge,
)
def avh_dynamics(lab: Lab, setting: DynamicsSetting) -> Result:
    """Watches the networks of avh-human along training.

    After every epoch one pass over the test split, which is never trained on, records norm, AVH,
    confidence and correctness of each example, and the same of {degraded} of them at every level of
    noise and contrast. Curves are means over examples, then over seeds ({seeds}); epochs count from
    1. {networks} train on {dataset}, and the learning rate is divided by 10 after each third of the
    {epochs} epochs (the paper: of 90). A small network on {digits} is watched over {digits_epochs}
    epochs, and over its first {iterations} steps. Fig. 14 (CIFAR-100) is left out. If the data has
    no counts of people, annotators are simulated.
    """
    subjects = Subjects(lab, setting)
    runs: Runs = {model: [] for model in setting.models}
    levels: Levels = {kind: {} for kind in KINDS}
    for model in setting.models:
        for seed in setting.seeds:
            done = subjects.run(model, seed)
            test = dataclasses.replace(subjects.histories(done), name=f"{say(model)}, seed {seed}")
            runs[model].append(run_dynamics(test, frequency=subjects.frequency))
            clean = np.isin(np.arange(len(subjects.test)), subjects.rows)
            first = run_dynamics(test, groups={"clean": clean}).groups[0]
            for kind, by_model in levels.items():
                others = [
                    run_dynamics(subjects.histories(done, set_name(kind, level))).overall
                    for level in levels_of(kind)[1:]
                ]
                by_model.setdefault(model, []).append([first, *others])
    digits = _digits_runs(lab, setting)
    loops = [_first_steps(lab, setting, seed) for seed in setting.seeds]
    return Result(
        figures=[
            human_figure(lab, runs, subjects),
            confidence_figure(lab, runs, subjects),
            overall_figure(lab, runs),
            *(level_figure(lab, by_model, kind) for kind, by_model in levels.items()),
            steps_figure(lab, loops, digits, setting.digits),
        ],
        data={"annotators": subjects.annotators, **_curve_data(runs, levels),
              "digits": [dict(run.overall.means) for run in digits], "first_steps": loops},
    )  # fmt: skip


def _curve_data(runs: Runs, levels: Levels) -> dict[str, Any]:
    """The curves of every network and seed: overall, by frequency, by level."""
    return {
        "overall": {
            model: [dict(run.overall.means) for run in of_seeds] for model, of_seeds in runs.items()
        },
        "by_frequency": {
            model: [
                {group.group: {"n": group.n, **group.means} for group in run.groups}
                for run in of_seeds
            ]
            for model, of_seeds in runs.items()
        },
        "spearman_with_frequency": {
            model: [
                {key: [one.value for one in found] for key, found in run.human.items()}
                for run in of_seeds
            ]
            for model, of_seeds in runs.items()
        },
        "by_level": {
            kind: {
                model: [[dict(curves.means) for curves in of_level] for of_level in of_seeds]
                for model, of_seeds in by_model.items()
            }
            for kind, by_model in levels.items()
        },
    }


def _digits_runs(lab: Lab, setting: DynamicsSetting) -> list[RunDynamics]:
    """The small network, watched on its test split after every epoch."""
    train = lab.source(setting.digits, "train", limit=setting.train_limit)
    test = lab.source(setting.digits, "test", limit=setting.test_limit)
    found = []
    for seed in setting.seeds:
        lab.step(f"SmallCNN on {setting.digits}, seed {seed}")
        done = lab.train(
            "small_cnn", train, seed=seed, epochs=setting.digits_epochs,
            batch_size=setting.batch_size, optimizer={"name": "sgd", "lr": 0.1},
            schedule={"name": "step", "step_epochs": max(1, setting.digits_epochs // 3)},
            validation=0.0, select="last", track_on={"test": test},
        )  # fmt: skip
        name = f"SmallCNN on {setting.digits}, seed {seed}"
        found.append(run_dynamics(read_histories(done.folder, examples="test", name=name)))
    return found


def _first_steps(lab: Lab, setting: DynamicsSetting, seed: int) -> dict[str, list[float]]:
    """Mean norm, AVH and accuracy on the test split after each of the first steps."""
    train = lab.source(setting.digits, "train")
    test = lab.source(setting.digits, "test", limit=setting.watched)
    net = SmallCNN(num_classes=len(train.classes), seed=seed).to(lab.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(seed)
    inputs, labels = _inputs(test, lab.device)
    pixels, targets = _inputs(train, lab.device)
    means: dict[str, list[float]] = {key: [] for key in MEASURES}
    with capture(net, find_head(net, inputs[:2])) as forward:
        for _ in range(setting.iterations):
            rows = torch.randint(len(targets), (setting.batch_size,), generator=draw)
            rows = rows.to(lab.device)
            net.train()
            loss = cross_entropy(net(pixels[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                embeddings, logits = forward(inputs)
                weights = net.head.weight
                means["norm"].append(float(feature_norm(embeddings).mean()))
                hardness = angular_visual_hardness(embeddings, labels, weights)
                means["avh"].append(float(hardness.mean()))
                means["correct"].append(float((logits.argmax(1) == labels).float().mean()))
    return means


def _inputs(source: MemorySource, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    images = channels_first(source).float() / 255
    return images.to(device), torch.from_numpy(source.labels.copy()).to(device)


def _last(curves: Sequence[Curves], key: str, epoch: int = -1) -> Cell:
    return spread([one.means[key][epoch] for one in curves])


def _curve_table(runs: Runs, digits: Sequence[RunDynamics], who: str) -> Table:
    titles = {"norm": "‖x‖", "avh": "AVH", "confidence": "confidence", "correct": "accuracy"}
    rows: list[list[Cell]] = []
    for name, of_seeds in [*((say(m), of) for m, of in runs.items()), ("SmallCNN, digits", digits)]:
        curves = [run.overall for run in of_seeds]
        people = [run.human["avh"][-1].value for run in of_seeds if run.human]
        rows.append([
            name,
            *(_last(curves, key, epoch) for key in titles for epoch in (0, -1)),
            *(spread([run.settled[key] for run in of_seeds]) for key in SETTLED),
            spread(people) if people else None,
        ])  # fmt: skip
    heads = [head for title in titles.values() for head in (f"{title} first", "last")]
    settled = [f"{title} settled" for title in SETTLED.values()]
    return Table(
        "First and last epoch, and when a curve settles",
        ("network", *heads, *settled, f"Spearman of AVH with {who}, last"),
        rows,
        "Mean ± standard deviation over seeds, on examples never trained on. Settled: the first "
        f"epoch, counted from 1, from which {SETTLES}.",
    )


def _gap_table(runs: Runs) -> Table:
    rows: list[list[Cell]] = []
    for model, of_seeds in runs.items():
        for place, group in enumerate(of_seeds[0].groups):
            curves = [run.groups[place] for run in of_seeds]
            cells = (_last(curves, key) for key in ("norm", "avh", "confidence", "correct"))
            settled = spread([settled_epoch(one.means["avh"]) for one in curves])
            rows.append([say(model), group.group, group.n, *cells, settled])
    return Table(
        "Last epoch by human frequency",
        ("network", "examples", "n", "‖x‖", "AVH", "confidence", "accuracy", "AVH settled"),
        rows,
        "Mean ± standard deviation over seeds. Bins are half-open, the last one is closed.",
    )
