"""Self-training by angular visual confidence: AVH, Tables 3 and 4, Figures 6 and 21."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image

from hardsight.data import MemorySource
from hardsight.errors import ConfigError
from hardsight.experiments import lab as kit
from hardsight.experiments.avh._models import degraded
from hardsight.registry import unknown_name
from hardsight.report.figures import panels
from hardsight.run.adapt import ADAPT_RULES, AdaptResult, adapt
from hardsight.run_folder import read_parquet

# the target domains of a dataset that has only one: the same pictures, harder to see
_DEGRADED: dict[str, dict[str, Any]] = {
    "contrast": {"contrast": 0.5, "noise": 0.1},
    "noise": {"contrast": 0.6, "noise": 0.3},
    "inversion": {"invert": True},
}
_AVH, _CBST, _SOURCE = "cbst+avh", "cbst", "source-only"
_PAPER = {  # mean accuracy of VisDA-17's classes, Table 3
    _SOURCE: 51.6, "entropy": 57.0, _CBST: 76.4, "crst": 78.1, _AVH: 81.5,
}  # fmt: skip
_CONTROL = "a control, not in the paper"
_ALIKE = 0.02  # true-positive rates closer than this are called similar
_QUALITY = {
    "TP rate": "true_positive_rate", "AVH": "mean_avh", "AVC": "mean_avc",
    "confidence": "mean_confidence", "norm": "mean_norm",
}  # fmt: skip
_COLUMNS = 6  # pictures that each rule shows


@dataclass(frozen=True)
class Setting:
    """See ``--set``.

    Attributes:
        dataset: ``pacs``, or one domain that is degraded: ``mnist``, ``builtin:digits``.
        pairs: ``photo>sketch`` and so on; for one domain what is done to it: ``contrast``,
            ``noise``, ``inversion``.
        model: the network.
        rules: of :func:`hardsight.adapt`.
        limit: examples per domain; all by default.
        rounds: of select and retrain.
        source_epochs: on the source.
        epochs: per round.
        lr: of AdamW on the source.
        round_lr: of AdamW in a round.
        batch_size: examples per step.
        crop_padding: of random crops.
        flip: mirror half of the images.
        mean: of the pixels, if the model needs a certain one.
        std: of the pixels, in the same case.
        precision: of training.
        seeds: of weights, order and augmentation.
    """

    dataset: str = "pacs"
    pairs: tuple[str, ...] = ("photo>sketch", "art_painting>cartoon", "sketch>photo")
    model: str = "efficientnet_lite0:pretrained=true"
    rules: tuple[str, ...] = ADAPT_RULES
    limit: int | None = None
    rounds: int = 3
    source_epochs: int = 5
    epochs: int = 1
    lr: float = 1e-3
    round_lr: float = 3e-4
    batch_size: int = 128
    crop_padding: int = 8
    flip: bool = True
    mean: float | None = 127 / 255
    std: float | None = 128 / 255
    precision: str = "auto"
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def network(self) -> str:
        """The model in words."""
        name, _, options = self.model.partition(":")
        title = {"efficientnet_lite0": "EfficientNet-Lite0"}.get(name, name)
        return f"{title} with ImageNet weights" if options == "pretrained=true" else self.model


_SMOKE = Setting(
    dataset="builtin:digits", pairs=("contrast",), model="small_cnn", limit=200, rounds=2,
    source_epochs=4, lr=5e-3, round_lr=2e-3, batch_size=64, crop_padding=0, flip=False, mean=None,
    std=None, seeds=(0, 1),
)  # fmt: skip

Runs = dict[tuple[str, int], AdaptResult]  # by pair and seed


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    classes = data["classes"]
    rows = (
        {"pair": pair, "rule": rule, "seed": seed}
        | _numbers(data[f"{pair}, seed {seed}"][rule]["rounds"], classes)
        for pair in setting.pairs
        for seed in setting.seeds
        for rule in setting.rules
    )
    grid = kit.Grid.of(rows, "pair", "rule")
    by_class = [
        grid.at(pair=pair).table(
            f"Accuracy by class, {_arrow(pair)} (as Table 3)",
            {"rule": "rule"},
            {**{name: name for name in classes}, "mean": "accuracy"},
            note="In percent, mean ± standard deviation over seeds.",
        )
        for pair in setting.pairs
    ]
    return [_overview(grid, setting), *by_class, _quality(grid)], _questions(grid.mean_over("pair"))


def _numbers(rounds: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> dict[str, float]:
    """Of the last model in percent: its accuracy, by class as well; of the first round: quality.

    Table 4 is of what a rule selects from the source model's predictions.
    """
    last = rounds[-1]["evaluation"]
    quality = (rounds[1]["quality"] if len(rounds) > 1 else None) or {}
    selected = {key: quality.get(key) for key in _QUALITY.values()}
    return {
        "accuracy": 100 * last["mean_class_accuracy"],
        **{name: 100 * x for name, x in zip(classes, last["class_accuracy"], strict=True)},
        **{key: v["value"] if isinstance(v, Mapping) else v for key, v in selected.items()},
    }


def _questions(grid: kit.Grid) -> list[kit.Question]:
    """Of means over the pairs of domains: a seed counts once."""
    # what is said, paper, measure, rule, other rule, more of the question
    asked: Sequence[tuple[str, str, str, str, str, dict[str, Any]]] = (
        ("CBST+AVH outperforms CBST", "81.5 against 76.4, Table 3", "accuracy", _AVH, _CBST,
         {"effect": 81.5 - 76.4}),
        ("CBST+AVH outperforms CRST", "81.5 against 78.1, Table 3", "accuracy", _AVH, "crst",
         {"effect": 81.5 - 78.1}),
        ("CBST+AVH outperforms MRKLD alone", "not in the paper, whose CRST has both parts",
         "accuracy", _AVH, "crst-mrkld", {}),
        ("CBST+AVH outperforms LRENT alone", "not in the paper, whose CRST has both parts",
         "accuracy", _AVH, "crst-lrent", {}),
        ("self-training (CBST) improves on the source model", "76.4 against 51.6, Table 3",
         "accuracy", _CBST, _SOURCE, {"effect": 76.4 - 51.6}),
        ("minimal entropy improves on batch statistics of the target alone", _CONTROL, "accuracy",
         "entropy", "bn-only", {}),
        ("self-training (CBST) improves on batch statistics of the target alone", _CONTROL,
         "accuracy", _CBST, "bn-only", {}),
        ("true-positive rates of both selections are similar", "0.844 against 0.848, Table 4",
         "true_positive_rate", _AVH, _CBST,
         {"within": _ALIKE, "told": f"{{}}; similar: within {_ALIKE}"}),
        ("CBST+AVH selects examples of lower confidence", "0.961, 0.976, Table 4",
         "mean_confidence", _AVH, _CBST, {"larger": False, "effect": 0.961 - 0.976}),
        ("CBST+AVH selects examples of smaller norm", "20.84, 21.28, Table 4", "mean_norm", _AVH,
         _CBST, {"larger": False, "effect": 20.84 - 21.28}),
    )  # fmt: skip
    return [
        grid.question(says, paper, measure, {"rule": rule}, {"rule": other}, **more)
        for says, paper, measure, rule, other, more in asked
        if {rule, other} <= set(grid.names("rule"))
    ]


_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
_PAPERS_ROUNDS = Setting(  # as many rounds as its figure has, over all pairs of domains
    pairs=tuple(f"{start}>{end}" for start in _DOMAINS for end in _DOMAINS if start != end),
    rounds=7,
    source_epochs=10,
    epochs=2,
    round_lr=1e-4,
    seeds=(0, 1, 2, 3, 4),
)


@kit.experiment(
    "avh-selftrain",
    title="Self-training with angular visual confidence against CBST and CRST",
    reproduces="Angular Visual Hardness, Tables 3 and 4, Figures 6 and 21",
    scales={"smoke": _SMOKE, "short": Setting(), "paper": _PAPERS_ROUNDS},
    asks=_asks,
)
def avh_selftrain(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Every rule and baseline starts from the same source model of each seed.

    All run the same rounds: predict the target, select a growing portion of each class (20 % by 5
    points), retrain on source and selection. Target labels choose nothing. The model of the last
    round counts, the source model is selected on held-out source images, and settings are the same
    for all rules.

    The paper uses VisDA-17 and ResNet-101. Here it is {network} on pairs of domains of {dataset},
    with {source_epochs} epochs on the source, then {rounds} rounds of training; epochs per round:
    {epochs}. Accuracy is the mean over classes, in percent.
    """
    runs: Runs = {}
    with lab.progress("adapting", len(setting.pairs) * len(setting.seeds)) as advance:
        for pair in setting.pairs:
            source, target = _domains(lab, setting, pair)
            for seed in setting.seeds:
                runs[pair, seed] = _adapted(lab, setting, pair, seed, source, target)
                advance(1)
    kept = ("round", "portion", "quality", "evaluation", "never_predicted", "compared", "seconds")
    numbers = {
        f"{pair}, seed {seed}": {
            rule: {
                "rounds": [{key: round_.get(key) for key in kept} for round_ in run.rounds],
                "stopped": run.stopped,
            }
            for rule, run in done.runs.items()
        }
        for (pair, seed), done in runs.items()
    }
    return kit.Result(
        figures=[_by_round(lab, runs, setting), *_pictures(lab, runs, setting)],
        data={"classes": next(iter(runs.values())).classes, **numbers},
    )


def _domains(lab: kit.Lab, setting: Setting, pair: str) -> tuple[MemorySource, MemorySource]:
    if ">" in pair:
        source, _, target = pair.partition(">")
        first, second = (
            lab.source(setting.dataset, split, limit=setting.limit) for split in (source, target)
        )
        return first, second
    if pair not in _DEGRADED:
        raise ConfigError(unknown_name("pair", pair, list(_DEGRADED)))
    first, second = (
        lab.source(setting.dataset, split, limit=setting.limit) for split in ("train", "test")
    )
    return first, second.with_images(degraded(second.images, **_DEGRADED[pair]))


def _adapted(
    lab: kit.Lab, setting: Setting, pair: str, seed: int, source: MemorySource, target: MemorySource
) -> AdaptResult:
    lab.step(f"{pair}, seed {seed}: {len(source):,} labelled, {len(target):,} target examples")
    settings: dict[str, Any] = {
        "rule": setting.rules,
        "rounds": setting.rounds,
        "pretrain": _stage(setting.source_epochs, setting.lr),
        "retrain": _stage(setting.epochs, setting.round_lr),
        "batch_size": setting.batch_size,
        "augment": {"crop_padding": setting.crop_padding, "flip": setting.flip},
        "precision": setting.precision,
        "seed": seed,
        "examples": _COLUMNS,
    }
    how = {key: value for key, value in asdict(setting).items() if key not in ("pairs", "seeds")}
    key = [how, settings, source.fingerprint(), target.fingerprint()]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    stated = {"mean": (setting.mean,) * 3, "std": (setting.std,) * 3} if setting.mean else {}
    return adapt(
        setting.model, {"name": source, **stated}, target, out=lab.runs / f"adapt-{digest}",
        device=str(lab.device), keep_models=False, resume=True, show_progress=lab.show,
        **settings,
    )  # fmt: skip


def _stage(epochs: int, lr: float) -> dict[str, Any]:
    return {"epochs": epochs, "optimizer": {"name": "adamw", "lr": lr}}


def _overview(grid: kit.Grid, setting: Setting) -> kit.Table:
    means = grid.mean_over("pair")
    return grid.table(
        "Mean class accuracy after the last round",
        {"rule": "rule"},
        {
            **grid.across("pair", "accuracy", {pair: _arrow(pair) for pair in setting.pairs}),
            "mean": lambda _, rule: means.cell("accuracy", rule=rule),
            "paper, VisDA-17": lambda _, rule: _PAPER.get(rule),
        },
        note=f"Mean ± standard deviation over {len(setting.seeds)} seeds, in percent. The last "
        "column is the paper's, with another dataset and network (Table 3; its CRST is MRKLD and "
        "LRENT together). Compare the order of the rules, not the numbers.",
    )


def _arrow(pair: str) -> str:
    return pair.replace(">", " → ")


def _quality(grid: kit.Grid) -> kit.Table:
    selecting = [rule for rule in grid.names("rule") if rule not in (_SOURCE, "bn-only", "entropy")]
    return grid.only(rule=selecting).table(
        "What is selected in the first round (as Table 4)",
        {"rule": "rule"},
        {
            title: lambda runs, _, key=key: kit.spread(runs.frame[key].tolist())
            for title, key in _QUALITY.items()
        },
        note="Mean ± standard deviation over pairs and seeds; all rules see the same predictions. "
        "The paper's AVH column is probably our AVC: with 12 classes, the hardness of the nearest "
        "class is at most 0.083.",
        paper=[
            [_AVH, 0.844, 0.118, None, 0.961, 20.84],
            ["cbst / crst", 0.848, 0.117, None, 0.976, 21.28],
        ],
    )


def _last(done: AdaptResult, rule: str) -> float:
    """Mean class accuracy of a rule's last model, in percent."""
    return 100 * float(done.runs[rule].rounds[-1]["evaluation"]["mean_class_accuracy"])


def _by_round(lab: kit.Lab, runs: Runs, setting: Setting) -> kit.Figure:
    figure, axes = panels(1, len(setting.pairs), width=3.4, ylabel="mean class accuracy (%)")
    for axis, pair in zip(axes, setting.pairs, strict=True):
        for rule in setting.rules:
            series = [
                [
                    100 * round_["evaluation"]["mean_class_accuracy"]
                    for round_ in done.runs[rule].rounds
                ]
                for seed in setting.seeds
                if (done := runs[pair, seed])
            ]
            # a rule that stopped keeps its model
            full = [[*curve, *[curve[-1]] * (setting.rounds + 1 - len(curve))] for curve in series]
            style = {"linestyle": "--", "color": "#1f1f1f"} if rule == _SOURCE else {}
            axis.plot(range(setting.rounds + 1), np.mean(full, axis=0), label=rule, **style)
        axis.set(title=_arrow(pair), xlabel="round", xticks=range(setting.rounds + 1))
    ends = "; ".join(
        f"{rule} {np.mean([_last(done, rule) for done in runs.values()]):.1f} %"
        for rule in setting.rules
    )
    return lab.figure(
        figure, "accuracy-by-round",
        caption=f"Accuracy on the target over rounds (as Fig. 6), mean of {len(setting.seeds)} "
        "seeds. Round 0 is the source model.",
        alt=f"One panel per pair of domains, one line per rule. After the last round: {ends}.",
    )  # fmt: skip


def _pictures(lab: kit.Lab, runs: Runs, setting: Setting) -> list[kit.Figure]:
    """What only one of the two rules selects, from the run that kept pictures (Fig. 21)."""
    if not {_AVH, _CBST} <= set(setting.rules):
        return []
    pair, seed = setting.pairs[0], setting.seeds[0]
    done = runs[pair, seed]
    file = done.runs[_AVH].folder / "round-01" / "examples.parquet"
    stored = read_parquet(file).to_pylist() if file.is_file() else []
    rows = [row for row in stored if row["thumbnail"]]
    if not rows:
        return []
    figure, axes = panels(2, _COLUMNS, width=1.1, height=1.35)
    for axis in axes:
        axis.set_axis_off()
    for place, rule in enumerate((_AVH, _CBST)):
        of_rule = [row for row in rows if row["selected_by"] == rule]
        for axis, row in zip(axes[_COLUMNS * place :][:_COLUMNS], of_rule, strict=False):
            _show(axis, row, done.classes)
        axes[_COLUMNS * place].set_title(f"only {rule}", fontsize=7, loc="left")
    counts = done.runs[_AVH].rounds[1]["compared"]
    said = [
        f"{counts[f'only_{side}']} by {rule} alone ({counts[f'only_{side}_right']} right)"
        for side, rule in (("rule", _AVH), ("other", _CBST))
    ]
    return [
        lab.figure(
            figure, "selected-by-one",
            caption=f"Selected by one rule only, {_arrow(pair)}, first round, seed "
            f"{seed} (as Fig. 21): {' and '.join(said)}. Below each: the pseudo-label, and the "
            "truth if it differs.",
            alt="Two rows of target images: above those that only CBST+AVH selects, below those "
            "that only CBST selects.",
        )
    ]  # fmt: skip


def _show(axis: Any, row: dict[str, Any], classes: Sequence[str]) -> None:
    image = np.asarray(Image.open(io.BytesIO(row["thumbnail"])))
    axis.imshow(image, cmap="gray", interpolation="nearest")
    said, truth = classes[row["label"]], classes[row["true_label"]]
    text = said if said == truth else f"{said} ({truth})"
    axis.text(0.5, -0.02, text, transform=axis.transAxes, ha="center", va="top", fontsize=6)
