"""AVH, Section 4: which scores agree with people?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hardsight.experiments.avh import _human_studies as human
from hardsight.experiments.avh._human_claims import human_claims
from hardsight.experiments.avh._human_draw import by_granularity, by_model, three_panels
from hardsight.experiments.avh._human_studies import AVH, BINS, METHODS, TITLES, Floats, Studies
from hardsight.experiments.avh._models import SHORT, SMOKE, ModelSetting, Subjects, say
from hardsight.experiments.lab import Cell, Lab, Result, Table, experiment, spread
from hardsight.registry import SCORES
from hardsight.run.study import HumanStudy, human_study, said_p

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
    "resnet18": ("ResNet-50", {
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
_PAPER_BINS: Sequence[Sequence[Cell]] = (
    ("Number of samples", None, 29987, 837, 2732, 6541, 11066, 8811),
    ("AVH", 0.377, 0.36, 0.228, 0.125, 0.124, 0.103, 0.094),
    ("Model confidence", 0.337, 0.325, 0.192, 0.122, 0.102, 0.078, 0.056),
    ("‖x‖ within class", None, 0.0017, 0.0013, 0.0007, 0.0005, 0.0004, 0.0003),
)


@experiment(
    "avh-human",
    title="Do the model's scores agree with people?",
    reproduces="Angular Visual Hardness, Tables 1, 2, 6-9, Figs. 5, 16, 19",
    scales={"smoke": SMOKE, "short": SHORT},
)
def avh_human(lab: Lab, setting: ModelSetting) -> Result:
    """Holds every score of a network against how often people choose the label.

    {networks} are trained on {dataset} with seeds {seeds} and applied to its test split. CIFAR-10H
    says how many of about 50 people chose the label of each CIFAR-10 test picture (human selection
    frequency); if the data has no such counts, annotators are simulated, who are not people. Each
    score is correlated with that frequency: in total, within bins of it and within classes; AVH and
    model confidence are compared by the paper's test, which takes the two coefficients for
    independent, and by Steiger's, which allows for what they share. Nothing is selected: every
    network is taken after its last epoch. The paper uses ImageNet and 90 epochs; here it is
    {epochs} with the learning rate divided by 10 after each third.
    """
    subjects = Subjects(lab, setting)
    studies: Studies = {model: [] for model in setting.models}
    columns: dict[str, dict[str, Floats]] = {}
    accuracy: dict[str, list[float]] = {model: [] for model in setting.models}
    for model in setting.models:
        for seed in setting.seeds:
            outputs = lab.outputs(subjects.run(model, seed), subjects.test)
            found = outputs.scores()
            columns.setdefault(model, found)
            accuracy[model].append(outputs.accuracy)
            studies[model].append(
                human_study(
                    found,
                    subjects.frequency,
                    labels=subjects.test.labels,
                    higher_is_harder={name: SCORES[name].higher_is_harder for name in found},
                )
            )
    main = _main_model(setting.models)
    who = subjects.annotators
    return Result(
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
            **human.coefficients(studies),
            "hypotheses": {
                model: [
                    {hypothesis.name: hypothesis.outcome for hypothesis in study.hypotheses}
                    for study in of_seeds
                ]
                for model, of_seeds in studies.items()
            },
        },
    )


def _means(studies: Sequence[HumanStudy], name: str, which: str, count: int) -> list[Cell]:
    """|Spearman| within bins; empty if too few examples are in one."""
    found = (human.bin_values(studies, name, which, place) for place in range(count))
    return [spread(values) if values else None for values in found]


def _bin_table(studies: Sequence[HumanStudy], model: str, who: str) -> Table:
    counts = [group.n for group in studies[0].score(AVH).bins]
    rows: list[list[Cell]] = [["Number of samples", None, studies[0].n, *counts]]
    for name, title in TITLES.items():
        total = np.abs(human.spearman_of(studies, name))
        whole = [spread(x.tolist()) if len(total) else None for x in (np.arctanh(total), total)]
        rows.append([title, *whole, *_means(studies, name, "bins", len(BINS))])
    return Table(
        f"Table 1: |Spearman| with the frequency of {who}, {say(model)}",
        ("score", "z-score", "total", *BINS),
        rows,
        "Mean ± standard deviation over seeds. Bins are half-open, the last one is closed; an "
        "empty cell has too few examples. The paper's rows: ResNet-50, ImageNet validation set.",
        paper=_PAPER_BINS,
    )


def _quantile_table(studies: Sequence[HumanStudy], model: str, who: str) -> Table:
    bins = studies[0].score(AVH).quantile_bins
    edges = [
        f"[{group.low:.3g}, {group.high:.3g}{']' if group is bins[-1] else ')'}" for group in bins
    ]
    rows: list[list[Cell]] = [["Number of samples", *(group.n for group in bins)]]
    for name, title in TITLES.items():
        rows.append([title, *_means(studies, name, "quantile_bins", len(bins))])
    return Table(
        f"The same within quantile bins, {say(model)}",
        ("score", *edges),
        rows,
        f"Most images have a frequency near 1 among {who}, which leaves little to rank: bins of "
        "about equal size, merged if frequencies are equal.",
    )


def _test_table(studies: Studies) -> Table:
    rows: list[list[Cell]] = []
    paper: list[list[Cell]] = []
    for model, of_seeds in studies.items():
        for place, (method, title) in enumerate(METHODS.items()):
            tests = [study.comparisons[2 * place : 2 * place + 2] for study in of_seeds]
            tests = [pair for pair in tests if len(pair) == 2]
            if not tests:
                continue
            ours, theirs = ([pair[k] for pair in tests] for k in (0, 1))
            first, second = ([getattr(own, key) for own in ours] for key in ("first", "second"))
            z_scores = [spread(np.arctanh(values).tolist()) for values in (first, second)]
            rows.append([
                say(model), title, spread(first), spread(second), *z_scores,
                spread([other.z for other in theirs]),
                said_p(max(other.p / 2 if other.z > 0 else 1 - other.p / 2 for other in theirs)),
                spread([own.z for own in ours]), said_p(max(own.p for own in ours)),
            ])  # fmt: skip
            if model in _PAPER_TESTS:
                name, numbers = _PAPER_TESTS[model]
                paper.append([name, title, *numbers[method], None, None])
    return Table(
        "Tables 2, 6-9: AVH against model confidence",
        ("network", "coefficient", "with AVH", "with confidence", "Z avh", "Z mc",
         "Z value (independent)", "p, one-sided", "z (Steiger, dependent)", "p, two-sided"),
        rows,
        "Absolute coefficients, mean ± standard deviation over seeds; p: the largest over seeds. "
        "A negative z means that confidence is the stronger. The independent test is the paper's.",
        paper=paper or None,
    )  # fmt: skip


def _score_table(studies: Studies, accuracy: Mapping[str, Sequence[float]], who: str) -> Table:
    names = [score.name for score in next(iter(studies.values()))[0].scores if score.correlations]
    found = {name: [human.spearman_of(of, name) for of in studies.values()] for name in names}
    strength = {
        name: float(np.mean([np.mean(np.abs(values)) for values in by_model]))
        for name, by_model in found.items()
        if all(by_model)
    }
    rows: list[list[Cell]] = [
        ["accuracy, %", *(spread([100 * value for value in accuracy[model]]) for model in studies)]
    ]
    for name in sorted(strength, key=strength.__getitem__, reverse=True):
        rows.append([name, *(spread(values) for values in found[name])])
    return Table(
        f"Every score: Spearman with the frequency of {who}",
        ("score", *(say(model) for model in studies)),
        rows,
        "Mean ± standard deviation over seeds, strongest first. A hardness is negative.",
    )


def _hypothesis_table(studies: Studies) -> Table:
    words = {True: "rejected", False: "not rejected", None: "not tested"}
    rows: list[list[Cell]] = []
    for place, hypothesis in enumerate(human.every_run(studies)[0].hypotheses):
        cells = []
        for of_seeds in studies.values():
            outcomes = [words[study.hypotheses[place].rejected] for study in of_seeds]
            counted = {word: outcomes.count(word) for word in dict.fromkeys(outcomes)}
            cells.append(", ".join(f"{word} ({n})" for word, n in counted.items()))
        rows.append([hypothesis.name, hypothesis.says, hypothesis.paper, *cells])
    return Table(
        "Hypotheses: the null hypothesis is ...",
        ("", "hypothesis", "paper", *(say(model) for model in studies)),
        rows,
        "Level 0.05, Holm's correction over the four; in brackets: number of seeds. H3 by the "
        "dependent test; only a stronger AVH counts.",
    )


def _main_model(models: Sequence[str]) -> str:
    """The network of Table 1: a ResNet if there is one."""
    return next((model for model in models if model.startswith("resnet")), models[-1])
