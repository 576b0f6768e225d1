"""Whom a model fails: planted slices that must be found, domains it never saw, unclear pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data import MemorySource, with_uniform_noise
from hardsight.errors import DataError
from hardsight.experiments import lab as kit
from hardsight.experiments.acting import _recipes as recipes
from hardsight.report.figures import COLOURS, panels
from hardsight.stats import by_group, wilson_interval, worst_slices

UNFAIR, FAIR = "one slice is harder to see", "fair"
_PLANTED = (("camera", "B"), ("light", "night"))
_LEVEL = 0.05
# shares of people who chose the label, by the name of the group; the first that fits
_AGREEMENT = {"all agree": 1.0, "9 of 10 agree": 0.9, "fewer agree": 0.0}


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of the experiment, in addition to those of :class:`Recipe`.

    Attributes:
        draws: of two made-up attributes, for each network.
        width: of the uniform noise on the pictures of the planted slice.
        domains: of PACS, each of which is left out of training once; none to skip this part.
        domain_model: trained on the others.
        domain_limit: examples per domain; two thirds of them to train on.
        domain_epochs: of training.
        shrink: the side of a PACS picture is divided by this.
        people: data with counts of what people chose; empty to skip this part.
        people_model: trained on it.
        people_limit: training examples.
        people_test: test examples.
        people_epochs: of training.
    """

    limit: int | None = 200
    epochs: int = 12
    draws: int = 100
    width: float = 0.9
    domains: tuple[str, ...] = ("art_painting", "cartoon", "photo", "sketch")
    domain_model: str = "small_cnn"
    domain_limit: int | None = 300
    domain_epochs: int = 8
    shrink: int = 4
    people: str = "cifar10"
    people_model: str = "small_cnn"
    people_limit: int | None = 2000
    people_test: int | None = 3000
    people_epochs: int = 6


def asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    """What was found in each part, and whether it had to be."""
    tables, claims = [_made_table(data["made"])], _made_claims(setting, data["made"])
    if data["domains"]:
        grid = kit.Grid.of(data["domains"], "left_out", "group")
        titles = {name: name.replace("_", " ") for name in setting.domains}
        tables.append(
            grid.table(
                "Accuracy by domain, for each domain left out of training",
                {"left_out": "left out"},
                grid.across("group", "accuracy", titles),
                note="In per cent, mean ± standard deviation over seeds.",
            )
        )
        claims.append(_domains_claim(data["domains"]))
    if data["people"]:
        tables.append(
            kit.Grid.of(data["people"], "group").table(
                "Accuracy by how many people chose the label",
                {"group": "people"},
                {"examples": "n", "accuracy, %": "accuracy",
                 "expected of their classes, %": "expected"},
                note="Mean ± standard deviation over seeds.",
            )
        )  # fmt: skip
        claims.append(_people_claim(data["people"]))
    return tables, claims


def _made_table(rows: Sequence[Mapping[str, Any]]) -> kit.Table:
    grid = kit.Grid.of(rows, "world")
    return grid.table(
        "Made-up attributes",
        {"world": "data"},
        {
            "accuracy, %": "accuracy",
            "accuracy in the slice, %": "inside",
            "draws in which the slice is found": "found",
            "draws in which anything is found": "any",
        },
        note=f"Mean ± standard deviation over networks, of {rows[0]['draws']:g} draws each.",
    )


def _made_claims(setting: Setting, rows: Sequence[Mapping[str, Any]]) -> list[kit.Claim]:
    unfair = [row for row in rows if row["world"] == UNFAIR]
    fair = [row for row in rows if row["world"] == FAIR]
    alarms, draws = (int(sum(row[key] for row in fair)) for key in ("any", "draws"))
    low, high = wilson_interval(alarms, draws)
    told = ", ".join(f"{row['found']:g} of {row['draws']:g}" for row in unfair)
    return [
        kit.Claim.of_runs(
            "a planted slice of two attributes is found", "ours; in at least 95 % of the draws",
            f"found in {told} draws of the networks",
            [row["found"] >= (1 - _LEVEL) * row["draws"] for row in unfair],
        ),
        kit.Claim(
            "in fair data nothing is found", f"ours; in no more than {_LEVEL:.0%} of the draws",
            f"{alarms} of {draws} draws, 95 % interval {low:.1%} to {high:.1%}",
            True if high <= _LEVEL else None if low <= _LEVEL else False,
        ),
    ]  # fmt: skip


def _domains_claim(rows: Sequence[Mapping[str, Any]]) -> kit.Claim:
    outcomes = []
    for left_out, seed in dict.fromkeys((row["left_out"], row["seed"]) for row in rows):
        groups = [row for row in rows if (row["left_out"], row["seed"]) == (left_out, seed)]
        worst = min(groups, key=lambda row: row["accuracy"] - row["expected"])
        outcomes.append(worst["group"] == left_out and _fails(worst))
    return kit.Claim.of_runs(
        "a domain that the network never saw is its worst group, by a corrected test", "ours",
        f"in {sum(outcomes)} of {len(outcomes)} networks", outcomes,
    )  # fmt: skip


def _people_claim(rows: Sequence[Mapping[str, Any]]) -> kit.Claim:
    unclear = [row for row in rows if row["group"] == list(_AGREEMENT)[-1]]
    lack = kit.spread([row["accuracy"] - row["expected"] for row in unclear])
    outcomes = [_fails(row) for row in unclear]
    return kit.Claim.of_runs(
        "networks fail pictures that people disagree about more often than the classes explain",
        "ours", f"{lack} points from what is expected; p < 0.05 in {sum(outcomes)} of "
        f"{len(outcomes)} networks", outcomes,
    )  # fmt: skip


def _fails(row: Mapping[str, Any]) -> bool:
    return row["p"] is not None and row["p"] < _LEVEL and row["accuracy"] < row["expected"]


@kit.experiment(
    "groups",
    title="Whom a model fails: finding the groups and slices that exist, and no others",
    reproduces="not from a paper; a check of what reports say about groups",
    scales={
        "smoke": Setting(**{**recipes.SMOKE, "draws": 5, "domains": (), "people": ""}),
        "short": Setting(),
        "paper": Setting(
            **{**recipes.PAPER, "limit": None, "width": 0.3, "domain_model": "resnet18",
               "domain_limit": None, "domain_epochs": 40, "shrink": 2, "people_model": "resnet18",
               "people_limit": None, "people_test": None, "people_epochs": 40}
        ),
    },
    asks=asks,
)  # fmt: skip
def groups(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Looks for groups that a network fails, in three ways.

    Made-up attributes: test pictures of {on} get a camera (A or B) and a light (day, dusk or night)
    at random, {draws} times for each network ({model}, {limit} training pictures). In the unfair
    world, the pictures of camera B at night have uniform noise of width {width}, and
    `hs.stats.worst_slices` must name that slice. In the fair world nothing differs, and it must
    name none.

    Domains of PACS ({domains}): a network ({domain_model}, {domain_epochs} epochs) learns all but
    one, and `hs.stats.by_group` looks at held-out pictures of all of them. The domain that was left
    out must be the worst.

    People: a network ({people_model}, {people_epochs} epochs on {people_limit} pictures) is tested
    on {people_test} pictures of CIFAR-10H, in groups by the share of people who chose the label.

    Tests allow for the classes of a group and are corrected by Holm's method.
    """
    parts: dict[str, list[dict[str, Any]]] = {"made": [], "domains": [], "people": []}
    with lab.progress("seeds", len(setting.seeds)) as advance:
        for seed in setting.seeds:
            lab.step(f"seed {seed}")
            parts["made"] += _made(lab, setting, seed)
            for domain in setting.domains:
                parts["domains"] += _left_out(lab, setting, domain, seed)
            if setting.people:
                parts["people"] += _people(lab, setting, seed)
            advance(1)
    return kit.Result(figures=[_figure(lab, parts)], data=parts)


def _made(lab: kit.Lab, setting: Setting, seed: int) -> list[dict[str, Any]]:
    """How often slices are found, with a planted one and without."""
    source, test = recipes.splits(lab, setting)
    run = recipes.trained(lab, setting, source, seed=seed, whole=len(source))
    clear, hard = (_predicted(lab, run, some) for some in (test, _noisy(test, setting.width)))
    draw = np.random.default_rng([seed, *b"groups"])
    rows: dict[str, dict[str, Any]] = {
        world: {"world": world, "seed": seed, "draws": setting.draws, "accuracy": 0.0,
                "inside": 0.0, "found": 0, "any": 0}
        for world in (UNFAIR, FAIR)
    }  # fmt: skip
    for _ in range(setting.draws):
        attributes = {
            "camera": draw.choice(["A", "B"], len(test)),
            "light": draw.choice(["day", "dusk", "night"], len(test)),
        }
        inside = np.logical_and.reduce([attributes[name] == value for name, value in _PLANTED])
        for world, row in rows.items():
            predicted = np.where(inside, hard, clear) if world == UNFAIR else clear
            slices = worst_slices(attributes, test.labels, predicted)
            right = predicted == test.labels
            row["accuracy"] += 100 * float(right.mean()) / setting.draws
            row["inside"] += 100 * float(right[inside].mean()) / setting.draws
            row["found"] += any(set(found.where) == set(_PLANTED) for found in slices)
            row["any"] += bool(slices)
    return list(rows.values())


def _noisy(source: MemorySource, width: float) -> MemorySource:
    pixels = source.images.astype(np.float32) / np.float32(255)
    noisy = [
        with_uniform_noise(image, width=width, seed=0, index=at) for at, image in enumerate(pixels)
    ]
    return source.with_images(np.rint(np.stack(noisy) * 255).astype(np.uint8))


def _left_out(lab: kit.Lab, setting: Setting, left_out: str, seed: int) -> list[dict[str, Any]]:
    """Numbers of every domain, by a network that did not see one of them."""
    train, test = [], []
    for domain in setting.domains:
        source = _shrunk(lab.source("pacs", domain, limit=setting.domain_limit), setting.shrink)
        order = np.random.default_rng([seed, *b"domains"]).permutation(len(source))
        cut = 2 * len(order) // 3
        test.append(source.subset(np.sort(order[cut:])))
        if domain != left_out:
            train.append(source.subset(np.sort(order[:cut])))
    names = np.repeat(list(setting.domains), [len(part) for part in test])
    recipe = replace(setting, model=setting.domain_model, epochs=setting.domain_epochs)
    learned, asked = _joined(train), _joined(test)
    run = recipes.trained(lab, recipe, learned, seed=seed, whole=len(learned))
    rows = _numbers(names, asked.labels, _predicted(lab, run, asked))
    return [{"left_out": left_out, "seed": seed, **row} for row in rows]


def _shrunk(source: MemorySource, factor: int) -> MemorySource:
    """Smaller pictures, by the mean of squares of pixels."""
    n, height, width, *channels = source.images.shape
    cells = (n, height // factor, factor, width // factor, factor, *channels)
    means = source.images.reshape(cells).mean(axis=(2, 4), dtype=np.float32)
    return source.with_images(np.rint(means).astype(np.uint8))


def _joined(parts: Sequence[MemorySource]) -> MemorySource:
    return MemorySource(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
        classes=parts[0].classes,
        spec=f"{len(parts)} domains of {parts[0].spec}",
    )


def _people(lab: kit.Lab, setting: Setting, seed: int) -> list[dict[str, Any]]:
    """Numbers by how many people chose the label of a test picture."""
    source = lab.source(setting.people, "train", limit=setting.people_limit)
    test = lab.source(setting.people, "test", limit=setting.people_test)
    if test.human_counts is None:
        raise DataError(f"the test split of {setting.people} has no counts of what people chose")
    counts = np.asarray(test.human_counts)
    chosen = counts[np.arange(len(test)), test.labels] / counts.sum(axis=1)
    names = np.select([chosen >= least for least in _AGREEMENT.values()], list(_AGREEMENT), "")
    recipe = replace(setting, model=setting.people_model, epochs=setting.people_epochs)
    run = recipes.trained(lab, recipe, source, seed=seed, whole=len(source))
    rows = _numbers(names, test.labels, _predicted(lab, run, test))
    return [{"seed": seed, **row} for row in sorted(rows, key=lambda row: -row["accuracy"])]


def _numbers(
    names: NDArray[Any], labels: NDArray[np.int64], predicted: NDArray[np.int64]
) -> list[dict[str, Any]]:
    return [
        {"group": group.name, "n": float(group.n), "accuracy": 100 * group.accuracy.value,
         "expected": 100 * group.expected_accuracy, "p": group.p_accuracy}
        for group in by_group(names, labels, predicted)
    ]  # fmt: skip


def _predicted(lab: kit.Lab, run: Any, source: MemorySource) -> NDArray[np.int64]:
    predicted: NDArray[np.int64] = lab.outputs(run, source).logits.argmax(dim=1).numpy()
    return predicted


def _figure(lab: kit.Lab, parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> kit.Figure:
    """Accuracy of groups minus what is expected of their classes; a dot is a network."""
    shown = {"made up: accuracy": {
        f"{world}, {where}": [row[key] for row in parts["made"] if row["world"] == world]
        for world in (UNFAIR, FAIR) for key, where in (("inside", "slice"), ("accuracy", "all"))
    }}  # fmt: skip
    for part, title in (("domains", "domain left out"), ("people", "people who chose the label")):
        lacks: dict[str, list[float]] = {}
        for row in parts[part]:
            if row.get("left_out", row["group"]) == row["group"]:
                lacks.setdefault(row["group"], []).append(row["accuracy"] - row["expected"])
        if lacks:
            shown[f"{title}: accuracy - expected"] = lacks
    figure, axes = panels(1, len(shown), width=3.8, height=3.2, ylabel="per cent, points")
    for axis, (title, values) in zip(axes, shown.items(), strict=True):
        for place, dots in enumerate(values.values()):
            kit.seed_dots(axis, place, dots, COLOURS[place % len(COLOURS)], width=0.25)
        names = [name.replace(", ", ",\n").replace("_", "\n").replace(" is ", "\nis ")
                 for name in values]  # fmt: skip
        axis.set_xticks(range(len(values)), names, fontsize=7)
        axis.set_title(title, fontsize=9)
    return lab.figure(
        figure, "groups",
        caption="Accuracy in a planted slice and in all; accuracy of each domain that was left out "
        "of training, and of pictures by how many people chose their label, minus what is expected "
        "of their classes. A dot is a network, a bar the mean.",
        alt="Dots of accuracy, and of its lack, by group.",
    )  # fmt: skip
