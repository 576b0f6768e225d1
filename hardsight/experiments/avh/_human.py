"""AVH, Section 4: which scores agree with people?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.experiments import lab as kit
from hardsight.experiments.avh._models import (
    PAPER,
    SHORT,
    SMOKE,
    ModelSetting,
    Subjects,
    agreement_of_networks,
    density,
    gates_of,
    say,
)
from hardsight.registry import SCORES
from hardsight.report.figures import panels
from hardsight.run.study import HumanStudy, concordance, human_study, said_p
from hardsight.stats import HUMAN_BINS

Floats = NDArray[np.float64]
Studies = dict[str, list[HumanStudy]]

AVH, CONFIDENCE, NORM = "avh", "model_confidence", "class_normalized_feature_norm"
TITLES = {AVH: "AVH", CONFIDENCE: "Model confidence", NORM: "‖x‖ within class"}
BINS = ("[0, .2)", "[.2, .4)", "[.4, .6)", "[.6, .8)", "[.8, 1]")
METHODS = {"spearman": "Spearman", "pearson": "Pearson", "kendall": "Kendall"}
assert len(BINS) == len(HUMAN_BINS) - 1
_ENOUGH = 50  # examples in a bin whose coefficient is compared
_VEHICLES = ("airplane", "automobile", "ship", "truck")
# Tables 2 and 6 to 9: coefficient with AVH and with confidence, z of both, z value, p
_PAPER_TESTS: Mapping[str, tuple[str, Mapping[str, tuple[float, float, float, float, float, str]]]]
_PAPER_TESTS = {
    "alexnet": ("AlexNet", {
        "spearman": (0.339, 0.325, 0.352, 0.337, 1.92, "0.027"),
        "pearson": (0.324, 0.31, 0.336, 0.320, 1.90, "0.028"),
        "kendall": (0.244, 0.23, 0.249, 0.234, 1.81, "0.035"),
    }),
    "vgg19": ("VGG-19", {
        "spearman": (0.349, 0.335, 0.364, 0.348, 1.94, "0.026"),
        "pearson": (0.358, 0.343, 0.374, 0.357, 2.09, "0.018"),
        "kendall": (0.244, 0.229, 0.249, 0.233, 1.94, "0.026"),
    }),
    "resnet50": ("ResNet-50", {
        "spearman": (0.360, 0.325, 0.377, 0.337, 4.85, "< .00001"),
        "pearson": (0.385, 0.341, 0.406, 0.355, 6.2, "< .00001"),
        "kendall": (0.257, 0.231, 0.263, 0.235, 3.38, ".0003"),
    }),
    "densenet121": ("DenseNet-121", {
        "spearman": (0.367, 0.329, 0.4059, 0.355, 6.2, "< .00001"),
        "pearson": (0.390, 0.347, 0.412, 0.362, 6.09, "< .00001"),
        "kendall": (0.262, 0.234, 0.268, 0.238, 3.65, ".0001"),
    }),
}  # fmt: skip
_STANDS_FOR = {"resnet18": "resnet50"}  # a network that the paper does not have
_PAPER_BINS: Sequence[Sequence[kit.Cell]] = (
    ("Number of samples", None, 29987, 837, 2732, 6541, 11066, 8811),
    ("AVH", 0.377, 0.36, 0.228, 0.125, 0.124, 0.103, 0.094),
    ("Model confidence", 0.337, 0.325, 0.192, 0.122, 0.102, 0.078, 0.056),
    ("‖x‖ within class", None, 0.0017, 0.0013, 0.0007, 0.0005, 0.0004, 0.0003),
)


@kit.experiment(
    "avh-human",
    title="Do the model's scores agree with people?",
    reproduces="Angular Visual Hardness, Tables 1, 2, 6-9, Figs. 5, 16, 19",
    scales={"smoke": SMOKE, "short": SHORT, "paper": PAPER},
    gates=lambda setting, data: gates_of(setting.dataset, data["accuracy"]),
)
def avh_human(lab: kit.Lab, setting: ModelSetting) -> kit.Result:
    """Compares every score of a network with how often people choose the label.

    {networks} are trained on {dataset} with seeds {seeds} and applied to its test split. CIFAR-10H
    tells how many of about 50 people chose the label of each CIFAR-10 test picture (human selection
    frequency). If the data has no such counts, annotators are simulated; these are not people.

    Each score is correlated with that frequency: in total, within bins of the frequency and within
    classes. AVH and model confidence are compared by two tests: the paper's, which treats the two
    coefficients as independent, and Steiger's, which accounts for what they share.

    Nothing is selected: every network is taken after its last epoch. The paper uses ImageNet and 90
    epochs, with the learning rate divided by 10 after 30 and 60. Here there are {epochs} epochs,
    and the rate {rates}.
    """
    subjects = Subjects(lab, setting)
    studies: Studies = {model: [] for model in setting.models}
    columns: dict[str, dict[str, Floats]] = {}
    accuracy: dict[str, list[float]] = {model: [] for model in setting.models}
    for model in setting.models:
        for seed in setting.seeds:
            outputs = lab.outputs(subjects.run(model, seed), subjects.test)
            scores = outputs.scores()
            columns.setdefault(model, scores)
            accuracy[model].append(outputs.accuracy)
            studies[model].append(
                human_study(
                    scores,
                    subjects.frequency,
                    labels=subjects.test.labels,
                    higher_is_harder={name: SCORES[name].higher_is_harder for name in scores},
                )
            )
    main = _main_model(setting.models)
    who = subjects.annotators
    return kit.Result(
        tables=[
            _bin_table(studies[main], main, who),
            _quantile_table(studies[main], main, who),
            _test_table(studies),
            _score_table(studies, accuracy, who),
            _hypothesis_table(studies),
        ],
        claims=human_claims(studies, accuracy, who, main),
        figures=[
            three_panels(lab, columns[main], subjects, main),
            by_model(lab, columns, subjects),
            by_granularity(lab, columns[main], subjects, main),
        ],
        data={
            "annotators": who,
            "accuracy": accuracy,
            **coefficients(studies),
            "hypotheses": {
                model: [
                    {hypothesis.name: hypothesis.outcome for hypothesis in study.hypotheses}
                    for study in of_seeds
                ]
                for model, of_seeds in studies.items()
            },
        },
    )


def _means(studies: Sequence[HumanStudy], name: str, which: str, count: int) -> list[kit.Cell]:
    """|Spearman| within bins; empty if too few examples are in one."""
    per_bin = (bin_values(studies, name, which, place) for place in range(count))
    return [kit.spread(values) if values else None for values in per_bin]


def _bin_table(studies: Sequence[HumanStudy], model: str, who: str) -> kit.Table:
    counts = [group.n for group in studies[0].score(AVH).bins]
    rows: list[list[kit.Cell]] = [["Number of samples", None, studies[0].n, *counts]]
    for name, title in TITLES.items():
        total = np.abs(spearman_of(studies, name))
        whole = [kit.spread(x.tolist()) if len(total) else None for x in (np.arctanh(total), total)]
        rows.append([title, *whole, *_means(studies, name, "bins", len(BINS))])
    return kit.Table(
        f"Table 1: |Spearman| with the frequency of {who}, {say(model)}",
        ("score", "z-score", "total", *BINS),
        rows,
        "Mean ± standard deviation over seeds. Bins are half-open, the last one is closed; an "
        "empty cell has too few examples. The paper's rows: ResNet-50, ImageNet validation set.",
        paper=_PAPER_BINS,
    )


def _quantile_table(studies: Sequence[HumanStudy], model: str, who: str) -> kit.Table:
    bins = studies[0].score(AVH).quantile_bins
    edges = [
        f"[{group.low:.3g}, {group.high:.3g}{']' if group is bins[-1] else ')'}" for group in bins
    ]
    rows: list[list[kit.Cell]] = [["Number of samples", *(group.n for group in bins)]]
    for name, title in TITLES.items():
        rows.append([title, *_means(studies, name, "quantile_bins", len(bins))])
    return kit.Table(
        f"The same within quantile bins, {say(model)}",
        ("score", *edges),
        rows,
        f"Most images have a frequency near 1 among {who}, which leaves little to rank: bins of "
        "about equal size, merged if frequencies are equal.",
    )


def _test_table(studies: Studies) -> kit.Table:
    rows: list[list[kit.Cell]] = []
    paper: list[list[kit.Cell]] = []
    for model, of_seeds in studies.items():
        for place, (method, title) in enumerate(METHODS.items()):
            tests = [study.comparisons[2 * place : 2 * place + 2] for study in of_seeds]
            tests = [pair for pair in tests if len(pair) == 2]
            if not tests:
                continue
            ours, theirs = ([pair[k] for pair in tests] for k in (0, 1))
            first, second = ([getattr(own, key) for own in ours] for key in ("first", "second"))
            z_scores = [kit.spread(np.arctanh(values).tolist()) for values in (first, second)]
            rows.append([
                say(model), title, kit.spread(first), kit.spread(second), *z_scores,
                kit.spread([other.z for other in theirs]),
                said_p(max(other.p / 2 if other.z > 0 else 1 - other.p / 2 for other in theirs)),
                kit.spread([own.z for own in ours]), said_p(max(own.p for own in ours)),
            ])  # fmt: skip
            theirs_of = _PAPER_TESTS.get(_STANDS_FOR.get(model, model))
            if theirs_of is not None:
                name, numbers = theirs_of
                paper.append([name, title, *numbers[method], None, None])
    return kit.Table(
        "Tables 2, 6-9: AVH against model confidence",
        ("network", "coefficient", "with AVH", "with confidence", "Z avh", "Z mc",
         "Z value (independent)", "p, one-sided", "z (Steiger, dependent)", "p, two-sided"),
        rows,
        "Absolute coefficients, mean ± standard deviation over seeds; p: the largest over seeds. "
        "A negative z means that confidence is the stronger. The independent test is the paper's.",
        paper=paper or None,
    )  # fmt: skip


def _score_table(studies: Studies, accuracy: Mapping[str, Sequence[float]], who: str) -> kit.Table:
    names = [score.name for score in next(iter(studies.values()))[0].scores if score.correlations]
    spearman = {name: [spearman_of(of, name) for of in studies.values()] for name in names}
    strength = {
        name: float(np.mean([np.mean(np.abs(values)) for values in by_model]))
        for name, by_model in spearman.items()
        if all(by_model)
    }
    rows: list[list[kit.Cell]] = [
        [
            "accuracy, %",
            *(kit.spread([100 * value for value in accuracy[model]]) for model in studies),
        ]
    ]
    for name in sorted(strength, key=strength.__getitem__, reverse=True):
        rows.append([name, *(kit.spread(values) for values in spearman[name])])
    return kit.Table(
        f"Every score: Spearman with the frequency of {who}",
        ("score", *(say(model) for model in studies)),
        rows,
        "Mean ± standard deviation over seeds, strongest first. A hardness is negative.",
    )


def _hypothesis_table(studies: Studies) -> kit.Table:
    words = {True: "rejected", False: "not rejected", None: "not tested"}
    rows: list[list[kit.Cell]] = []
    for place, hypothesis in enumerate(every_run(studies)[0].hypotheses):
        cells = []
        for of_seeds in studies.values():
            outcomes = [words[study.hypotheses[place].rejected] for study in of_seeds]
            counted = {word: outcomes.count(word) for word in dict.fromkeys(outcomes)}
            cells.append(", ".join(f"{word} ({n})" for word, n in counted.items()))
        rows.append([hypothesis.name, hypothesis.says, hypothesis.paper, *cells])
    return kit.Table(
        "Hypotheses: the null hypothesis is ...",
        ("", "hypothesis", "paper", *(say(model) for model in studies)),
        rows,
        "Level 0.05, Holm's correction over the four; in brackets: number of seeds. H3 by the "
        "dependent test; only a stronger AVH counts.",
    )


def _main_model(models: Sequence[str]) -> str:
    """The network of Table 1: a ResNet if there is one."""
    return next((model for model in models if model.startswith("resnet")), models[-1])


def every_run(studies: Studies) -> list[HumanStudy]:
    """The studies of all networks and seeds in one list."""
    return [study for of_seeds in studies.values() for study in of_seeds]


def spearman_of(studies: Sequence[HumanStudy], name: str) -> list[float]:
    """Spearman of a score with the frequency, one for each study in which it is defined."""
    correlations = [study.score(name).correlations.get("spearman") for study in studies]
    return [correlation.value for correlation in correlations if correlation is not None]


def bin_values(studies: Sequence[HumanStudy], name: str, which: str, place: int) -> list[float]:
    """|Spearman| within one of the bins (``which``: ``bins`` or ``quantile_bins``), by study."""
    every = [getattr(study.score(name), which) for study in studies]
    correlations = [bins[place].correlation for bins in every if place < len(bins)]
    return [abs(correlation.value) for correlation in correlations if correlation is not None]


def coefficients(studies: Studies) -> dict[str, Any]:
    """Every coefficient of every score by network, one per seed."""
    rows = [
        {"model": model, "score": score.name, "seed": seed}
        | {key: correlation.value for key, correlation in score.correlations.items()}
        | ({"within_class": within.value} if score.correlations and within else {})
        for model, of_seeds in studies.items()
        for seed, study in enumerate(of_seeds)
        for score in study.scores
        for within in [score.within_class]
    ]
    measures = (*METHODS, "within_class")
    grid = kit.Grid.of(rows, "model", "score", measures=measures)
    return {
        measure: {
            model: {name: grid.values(measure, model=model, score=name)
                    for name in grid.names("score")}
            for model in studies
        }
        for measure in measures
    }  # fmt: skip


def human_claims(
    studies: Studies, accuracy: Mapping[str, Sequence[float]], who: str, main: str
) -> list[kit.Claim]:
    """The paper's sentences, held against the studies."""
    return [
        _correlates(studies, "H1", AVH, f"AVH has a correlation with the frequency of {who}.",
                    "Spearman 0.36 (ResNet-50), p < 0.001"),
        _correlates(studies, "H2", CONFIDENCE,
                    f"Model confidence has a correlation with the frequency of {who}.",
                    "Spearman 0.325 (ResNet-50), p < 0.001"),
        _stronger(studies, who),
        _no_norm(studies, who),
        _better_models(studies, accuracy),
        _weaker_where_easy(studies[main], main),
    ]  # fmt: skip


def _outcome(study: HumanStudy, name: str) -> bool | None:
    return next(hypothesis.rejected for hypothesis in study.hypotheses if hypothesis.name == name)


def _range(values: Sequence[float]) -> str:
    if not values:
        return "undefined"
    return f"{min(values):+.3f} to {max(values):+.3f}"


def _correlates(studies: Studies, name: str, score: str, says: str, paper: str) -> kit.Claim:
    runs = every_run(studies)
    sign = -1 if SCORES[score].higher_is_harder else 1
    held = [
        bool(_outcome(study, name)) and all(sign * rho > 0 for rho in spearman_of([study], score))
        for study in runs
    ]
    seen = f"Spearman {_range(spearman_of(runs, score))}; null hypothesis rejected, in the expected"
    seen += f" direction, in {sum(held)} of {len(runs)} runs"
    return kit.Claim.of_runs(says, paper, seen, held)


def _stronger(studies: Studies, who: str) -> kit.Claim:
    runs = [study for study in every_run(studies) if study.comparisons]
    differences = [study.comparisons[0].difference for study in runs]
    ahead = [bool(_outcome(study, "H3")) for study in runs]
    behind = sum(
        study.comparisons[0].difference < 0 and study.comparisons[0].p < study.alpha
        for study in runs
    )
    return kit.Claim.of_runs(
        f"AVH has a stronger correlation with the frequency of {who} than model confidence.",
        "difference +0.014 (AlexNet) to +0.038 (DenseNet-121), p < 0.05 for all four networks",
        f"difference of |Spearman| {_range(differences)}; by the dependent test AVH is the "
        f"stronger in {sum(ahead)} of {len(runs)} runs, confidence in {behind}",
        ahead,
    )


def _no_norm(studies: Studies, who: str) -> kit.Claim:
    runs = every_run(studies)
    rejected = [bool(_outcome(study, "H4")) for study in runs]
    return kit.Claim.of_runs(
        f"The norm, scaled within its class, has no correlation with the frequency of {who}.",
        "Spearman 0.0017, p > 0.05",
        f"Spearman {_range(spearman_of(runs, NORM))}; a correlation is shown in {sum(rejected)} of "
        f"{len(runs)} runs",
        [not is_rejected for is_rejected in rejected],
    )


def _better_models(studies: Studies, accuracy: Mapping[str, Sequence[float]]) -> kit.Claim:
    points = [
        (float(np.mean(accuracy[model])), -float(np.mean(np.abs(spearman_of(of_seeds, AVH)))))
        for model, of_seeds in studies.items()
    ]
    agree, pairs = concordance(points)
    listed = ", ".join(
        f"{say(model)} {100 * point[0]:.1f} %: {-point[1]:.3f}"
        for model, point in zip(studies, points, strict=True)
    )
    return kit.Claim(
        "Better models tend to have higher coefficients.",
        "0.339 (AlexNet), 0.349 (VGG-19), 0.360 (ResNet-50), 0.367 (DenseNet-121)",
        f"{agree} of {pairs} pairs of networks agree; accuracy and |Spearman| of AVH: {listed}",
        agreement_of_networks(agree, pairs),
    )


def _weaker_where_easy(studies: Sequence[HumanStudy], model: str) -> kit.Claim:
    """Of the bins with enough examples, the hardest against the easiest."""
    says = (
        "The correlation of AVH within a bin is weakest among the easiest examples (the numbers of "
        "Table 1; its text says that the harder the sample, the weaker the correlation)."
    )
    paper = "0.228 in [0, .2], 0.094 in [.8, 1]"
    counts = [group.n for group in studies[0].score(AVH).bins]
    per_bin = [bin_values(studies, AVH, "bins", place) for place in range(len(counts))]
    usable = [
        at for at, n in enumerate(counts) if n >= _ENOUGH and len(per_bin[at]) == len(studies)
    ]
    if len(usable) < 2:
        return kit.Claim(says, paper, f"fewer than two bins hold {_ENOUGH} examples", None)
    hard, easy = usable[0], usable[-1]
    in_hard, in_easy = kit.spread(per_bin[hard]), kit.spread(per_bin[easy])
    # the bins hold different examples, so here the in_easy coefficients are independent
    error = np.sqrt(1 / (counts[hard] - 3) + 1 / (counts[easy] - 3))
    z = float((np.arctanh(in_hard.mean) - np.arctanh(in_easy.mean)) / error)
    seen = (
        f"{say(model)}: {in_hard} in {BINS[hard]} (n {counts[hard]}), {in_easy} in {BINS[easy]} "
        f"(n {counts[easy]}), z of the difference {z:.2f}"
    )
    return kit.Claim(says, paper, seen, None if abs(z) < 1.96 else z > 0)


def _unit(values: Floats) -> Floats:
    """Linearly to [0, 1], as the paper draws AVH."""
    scaled: Floats = (values - values.min()) / max(float(values.max() - values.min()), 1e-12)
    return scaled


def three_panels(
    lab: kit.Lab, columns: Mapping[str, Floats], subjects: Subjects, model: str
) -> kit.Figure:
    """Human frequency against AVH, confidence and norm (Fig. 5)."""
    figure, axes = panels(1, 3, width=3.8, height=3.2)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        values = _unit(columns[name]) if name == AVH else columns[name]
        density(figure, axis, subjects.frequency, values, title=title)
        axis.set(xlabel=f"frequency among {subjects.annotators}",
                 ylabel=f"{title}, scaled to [0, 1]" if name == AVH else title)  # fmt: skip
    return lab.figure(
        figure, "histograms",
        caption=f"Fig. 5: {say(model)}, first seed. Share of {subjects.annotators} who chose the "
        "label against AVH (scaled to [0, 1]), model confidence and the norm within its class; "
        "colour: number of examples.",
        alt="Three two-dimensional histograms of human frequency against a score.",
    )  # fmt: skip


def by_model(
    lab: kit.Lab, columns: Mapping[str, Mapping[str, Floats]], subjects: Subjects
) -> kit.Figure:
    """Human frequency against AVH, network by network (Fig. 16)."""
    figure, axes = panels(1, len(columns), width=3.8, height=3.2)
    for axis, (model, scores) in zip(axes, columns.items(), strict=True):
        density(figure, axis, subjects.frequency, _unit(scores[AVH]), title=say(model))
        axis.set(ylabel="AVH, scaled to [0, 1]", xlabel=f"frequency among {subjects.annotators}")
    return lab.figure(
        figure, "networks",
        caption=f"Fig. 16: share of {subjects.annotators} who chose the label against AVH, by "
        "network, first seed.",
        alt="Two-dimensional histograms of human frequency against AVH, one per network.",
    )  # fmt: skip


def class_groups(classes: Sequence[str]) -> dict[str, list[int]]:
    """Three granularities: a wide group of classes, a narrow one, a single class."""
    vehicles = [at for at, name in enumerate(classes) if name in _VEHICLES]
    if len(vehicles) == len(_VEHICLES):
        animals = [at for at in range(len(classes)) if at not in vehicles]
        return {f"animals ({len(animals)} classes)": animals,
                f"vehicles ({len(vehicles)} classes)": vehicles,
                f"{classes[animals[1]]} (1 class)": animals[1:2]}  # fmt: skip
    count = len(classes)
    return {
        f"{count // 2} classes": list(range(count // 2)),
        f"{max(2, count // 3)} classes": list(range(max(2, count // 3))),
        "1 class": [0],
    }


def group_frequency(counts: NDArray[Any], group: Sequence[int]) -> Floats:
    """Share of annotators who chose any class of a group, ``[N]``.

    Example:
        >>> group_frequency(np.array([[5, 3, 2], [0, 1, 9]]), [0, 1])
        array([0.8, 0.1])
    """
    shares: Floats = counts[:, list(group)].sum(axis=1) / counts.sum(axis=1)
    return shares


def by_granularity(
    lab: kit.Lab, columns: Mapping[str, Floats], subjects: Subjects, model: str
) -> kit.Figure:
    """Human frequency of groups of classes against the norm (Fig. 19)."""
    test = subjects.test
    assert test.human_counts is not None
    groups = class_groups(test.classes)
    figure, axes = panels(1, len(groups), width=3.8, height=3.2)
    for axis, (title, group) in zip(axes, groups.items(), strict=True):
        rows = np.isin(test.labels, group)
        frequency = group_frequency(test.human_counts, group)[rows]
        density(figure, axis, frequency, columns[NORM][rows], title=title)
        axis.set(xlabel=f"frequency of the group among {subjects.annotators}",
                 ylabel="‖x‖ within class")  # fmt: skip
    return lab.figure(
        figure, "granularity",
        caption=f"Fig. 19: the norm against the frequency at three granularities of classes, "
        f"{say(model)}, first seed. A choice counts if it falls into the group.",
        alt="Two-dimensional histograms of human frequency against the norm, for three groups.",
    )  # fmt: skip
