"""Who finds planted label errors: every score, every summary of the dynamics, and cleanlab."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from hardsight._optional import require
from hardsight.data import MemorySource, with_label_errors
from hardsight.errors import ConfigError
from hardsight.experiments._lab import Lab, Outputs
from hardsight.experiments._plots import COLOURS, panels
from hardsight.experiments._registry import experiment
from hardsight.experiments._result import Cell, Claim, Figure, Result, Table, spread
from hardsight.registry import SCORES, SUMMARIES
from hardsight.stats import TTest, adjusted_p_values, precision_at_k, t_test
from hardsight.table import SUSPICION

if TYPE_CHECKING:
    from hardsight.run.train import TrainResult

Values = NDArray[np.float64]
KINDS = ("symmetric", "pairs")
MEASURES = ("AUROC", "precision")
_SNAPSHOT, _DYNAMICS, _PEER = "score at the end", "dynamics", "cleanlab"
_LEVEL = 0.05
# Classes that look alike, for noise that depends on the class; both ways, every class once.
_ALIKE = {
    "digits": ((0, 2), (1, 7), (3, 8), (4, 9), (5, 6)),
    # airplane - ship, automobile - truck, bird - frog, cat - dog, deer - horse
    "cifar10": ((0, 8), (1, 9), (2, 6), (3, 5), (4, 7)),
}
_PAIRS = {"mnist": _ALIKE["digits"], "builtin:digits": _ALIKE["digits"], **_ALIKE}


@dataclass(frozen=True)
class Setting:
    """Keys of the experiment.

    Attributes:
        datasets: to plant errors in.
        epochs: of training, one per dataset; a multiple of ``folds - 1``.
        shares: of the labels that are made wrong.
        kinds: of noise, ``symmetric`` or ``pairs``.
        folds: of the cross-validation that gives cleanlab its probabilities.
        model: to train.
        batch_size: of training.
        lr: largest learning rate.
        limit: take so many training examples; all by default.
        seeds: of the errors, the weights and the order.
    """

    datasets: tuple[str, ...] = ("mnist", "cifar10")
    epochs: tuple[int, ...] = (6, 10)
    shares: tuple[float, ...] = (0.05, 0.2, 0.4)
    kinds: tuple[str, ...] = KINDS
    folds: int = 3
    model: str = "small_cnn"
    batch_size: int = 1024
    lr: float = 0.01
    limit: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.datasets):
            raise ConfigError(
                f"expected one number of epochs per dataset, got {len(self.epochs)} for "
                f"{', '.join(self.datasets)}"
            )
        if self.folds < 2 or any(epochs % (self.folds - 1) for epochs in self.epochs):
            raise ConfigError(
                f"expected at least 2 folds and epochs that are a multiple of folds - 1, so that "
                f"both sides train equally long; got {self.folds} folds and epochs {self.epochs}"
            )
        if not set(self.kinds) <= set(KINDS):
            raise ConfigError(f"expected kinds among {', '.join(KINDS)}, got {self.kinds}")


@dataclass(frozen=True)
class Trial:
    """One noisy training set and what every method made of it.

    Attributes:
        dataset: whose labels.
        kind: of noise.
        share: of wrong labels.
        seed: of everything random.
        found: AUROC and precision at the noise rate by method.
    """

    dataset: str
    kind: str
    share: float
    seed: int
    found: Mapping[str, tuple[float, float]]


@experiment(
    "label-errors",
    title="Finding planted label errors: suspicion against every score and cleanlab",
    reproduces="no paper; after AUM (Pleiss et al. 2020) and confident learning "
    "(Northcutt et al. 2021)",
    scales={
        "smoke": Setting(
            datasets=("builtin:digits",), epochs=(4,), shares=(0.2,), folds=2, batch_size=32,
            lr=0.005, limit=320, seeds=(0, 1),
        ),
        "paper": Setting(),
    },
)  # fmt: skip
def label_errors(lab: Lab, setting: Setting) -> Result:
    """Finds wrong labels that were planted in training data.

    Labels are made wrong at random (symmetric noise), or swapped between classes that look alike
    (pairs: noise that depends on the class). One network is trained on the noisy labels while its
    dynamics are recorded; every score of the final network on its own training data and every
    summary of the dynamics then ranks the examples. cleanlab ranks them by out-of-sample
    probabilities from cross-validation with the same network, whose folds together see as many
    training examples as the one tracked run. A method is as good as its area under the ROC curve
    and its precision among as many examples as there are errors. The definition of suspicion was
    chosen before, on small subsets, and nothing is tuned here. Short on purpose: a small network,
    6 epochs for MNIST and 10 for CIFAR-10 at paper scale, too few for it to memorise wrong labels,
    which is where scores at the end are at their best.
    """
    _cleanlab()  # fail before an hour of training, not after it
    trials: list[Trial] = []
    runs = [
        (name, epochs, kind, share, seed)
        for name, epochs in zip(setting.datasets, setting.epochs, strict=True)
        for kind in setting.kinds
        for share in setting.shares
        for seed in setting.seeds
    ]
    with lab.progress("noisy training sets", len(runs)) as advance:
        for name, epochs, kind, share, seed in runs:
            lab.step(f"{name}: {kind} noise of {share:.0%}, seed {seed}")
            trials.append(_trial(lab, setting, name, epochs, kind, share, seed))
            advance(1)
    return _result(lab, trials)


def _trial(
    lab: Lab, setting: Setting, name: str, epochs: int, kind: str, share: float, seed: int
) -> Trial:
    source = lab.source(name, "train", limit=setting.limit)
    labels, wrong = with_label_errors(
        source.labels,
        num_classes=len(source.classes),
        share=share,
        seed=seed,
        towards=None if kind == "symmetric" else partners(name, len(source.classes)),
    )
    noisy = source.relabelled(labels)
    run = _trained(lab, setting, noisy, epochs=epochs, seed=seed, track=True)
    assert run.dynamics is not None
    suspects = {
        **_by_scores(lab.outputs(run, noisy)),
        **_by_dynamics(run),
        **by_cleanlab(labels, _held_out_probs(lab, setting, noisy, epochs=epochs, seed=seed)),
    }
    return Trial(name, kind, share, seed, {m: _found(v, wrong) for m, v in suspects.items()})


def partners(dataset: str, num_classes: int) -> dict[int, int]:
    """For every class the one it is swapped with: one that looks alike where that is known."""
    if dataset not in _PAIRS:
        return {label: (label + 1) % num_classes for label in range(num_classes)}
    return {a: b for pair in _PAIRS[dataset] for a, b in (pair, pair[::-1])}


def _trained(
    lab: Lab, setting: Setting, source: MemorySource, *, epochs: int, seed: int, track: bool
) -> TrainResult:
    return lab.train(
        setting.model,
        source,
        seed=seed,
        epochs=epochs,
        batch_size=setting.batch_size,
        optimizer={"name": "adamw", "lr": setting.lr},
        schedule="one_cycle",
        validation=0.0,
        select="last",
        track=track,
        thumbnails=0,
    )


def _by_scores(outputs: Outputs) -> dict[str, Values]:
    """Every score of the final network on its own training data, larger = more suspect."""
    specs = [spec for spec in SCORES.values() if not spec.per_class]
    found = {
        spec.name: spec.function(*(getattr(outputs, n) for n in spec.inputs)) for spec in specs
    }
    return {
        spec.name: _suspect(found[spec.name].double().numpy(), spec.higher_is_harder)
        for spec in specs
    }


def _by_dynamics(run: TrainResult) -> dict[str, Values]:
    """Every summary of the dynamics, larger = more suspect."""
    table = run.dynamics
    assert table is not None
    return {
        name: _suspect(table.column(name).astype(np.float64), spec.higher_is_harder)
        for name, spec in SUMMARIES.items()
    }


def _suspect(values: Values, higher_is_harder: bool) -> Values:
    return np.nan_to_num(values if higher_is_harder else -values, nan=-np.inf)


def _held_out_probs(
    lab: Lab, setting: Setting, source: MemorySource, *, epochs: int, seed: int
) -> Values:
    """Probabilities ``[N, C]`` of every example by a network that did not see it.

    Each of K networks trains on (K - 1) / K of the data for E / (K - 1) epochs: E N examples.
    """
    fold = np.random.default_rng([seed, setting.folds]).permutation(len(source)) % setting.folds
    probs = np.zeros((len(source), len(source.classes)))
    for number in range(setting.folds):
        rest, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        run = _trained(
            lab, setting, source.subset(rest), epochs=epochs // (setting.folds - 1), seed=seed,
            track=False,
        )  # fmt: skip
        logits = lab.outputs(run, source.subset(held)).logits
        probs[held] = logits.double().softmax(dim=1).numpy()
    return probs


def _cleanlab() -> Any:
    require("cleanlab", extra="experiments", feature="the experiment label-errors")
    from cleanlab import filter as filters
    from cleanlab import rank

    return filters, rank


def by_cleanlab(labels: NDArray[np.int64], probs: Values) -> dict[str, Values]:
    """Cleanlab's rankings from out-of-sample probabilities, larger = more suspect.

    Its label quality by self-confidence (its default) and by normalised margin, the latter also
    with probabilities adjusted by the class thresholds of confident learning, and confident
    learning itself: the examples it calls errors first, each part by normalised margin.
    """
    filters, rank = _cleanlab()

    def quality(method: str, adjust: bool = False) -> Values:
        found: Values = rank.get_label_quality_scores(
            labels, probs, method=method, adjust_pred_probs=adjust
        )
        return found

    margin = quality("normalized_margin")
    called = filters.find_label_issues(labels, probs, n_jobs=1)  # a mask; pruned by noise rate
    return {
        "cleanlab self-confidence": -quality("self_confidence"),
        "cleanlab normalised margin": -margin,
        "cleanlab adjusted margin": -quality("normalized_margin", adjust=True),
        "cleanlab confident learning": called.astype(np.float64) - margin,
    }


def _found(suspect: Values, wrong: NDArray[np.bool_]) -> tuple[float, float]:
    """AUROC, and precision among as many suspects as there are errors."""
    return area(suspect, wrong), precision_at_k(suspect, wrong, int(wrong.sum())).value


def area(suspect: Values, wrong: NDArray[np.bool_]) -> float:
    """Area under the ROC curve by ranks; ``hs.stats.auroc`` without the time for its interval."""
    positives = int(wrong.sum())
    above = rankdata(suspect)[wrong].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(wrong) - positives)))


def source_of(method: str) -> str:
    """Where a method's numbers come from."""
    if method in SUMMARIES:
        return _DYNAMICS
    return _SNAPSHOT if method in SCORES else _PEER


class Findings:
    """All trials, by method and measure.

    Args:
        trials: every one with the same methods.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = trials
        self.methods = list(trials[0].found)
        self.seeds = sorted({trial.seed for trial in trials})

    def values(self, method: str, measure: str, **only: Any) -> list[float]:
        """One value per trial, of those whose fields are as given."""
        at = MEASURES.index(measure)
        chosen = [t for t in self.trials if all(getattr(t, k) == v for k, v in only.items())]
        return [trial.found[method][at] for trial in chosen]

    def by_seed(self, method: str, measure: str, **only: Any) -> list[float]:
        """Means over the noise settings, one per seed."""
        parts = [self.values(method, measure, seed=seed, **only) for seed in self.seeds]
        return [float(np.mean(part)) for part in parts]

    def mean(self, method: str, measure: str) -> float:
        """Mean over all trials."""
        return float(np.mean(self.values(method, measure)))

    def ranked(self, measure: str = "AUROC") -> list[str]:
        """Methods, best first."""
        return sorted(self.methods, key=lambda method: -self.mean(method, measure))

    def best(self, source: str, measure: str = "AUROC") -> str:
        """The best method of one source, suspicion aside."""
        return next(m for m in self.ranked(measure) if source_of(m) == source and m != SUSPICION)

    def groups(self) -> Iterator[dict[str, Any]]:
        """Dataset and kind of noise, in the order of the trials."""
        yield from (
            {"dataset": dataset, "kind": kind}
            for dataset, kind in dict.fromkeys((t.dataset, t.kind) for t in self.trials)
        )


def _result(lab: Lab, trials: Sequence[Trial]) -> Result:
    findings = Findings(trials)
    compared = {measure: comparisons(findings, measure) for measure in MEASURES}
    return Result(
        tables=[
            _ranking(findings),
            *(_comparison_table(findings, measure, compared[measure]) for measure in MEASURES),
            _by_setting(findings),
        ],
        claims=claims(findings, compared),
        figures=[_figure(lab, findings)],
        data={
            "trials": [
                {
                    "dataset": t.dataset, "kind": t.kind, "share": t.share, "seed": t.seed,
                    "found": {m: dict(zip(MEASURES, v, strict=True)) for m, v in t.found.items()},
                }
                for t in trials
            ]
        },
    )  # fmt: skip


def _ranking(findings: Findings) -> Table:
    groups = list(findings.groups())
    heads = [f"{g['dataset'].removeprefix('builtin:')}, {g['kind']}" for g in groups]
    rows: list[list[Cell]] = []
    for method in findings.ranked():
        row: list[Cell] = [f"**{method}**" if method == SUSPICION else method, source_of(method)]
        row += [spread(findings.by_seed(method, measure)) for measure in MEASURES]
        row += [
            f"{np.mean(findings.values(method, 'AUROC', **group)):.3f} / "
            f"{np.mean(findings.values(method, 'precision', **group)):.3f}"
            for group in groups
        ]
        rows.append(row)
    return Table(
        "Who finds the planted errors",
        ("method", "from", *MEASURES, *heads),
        rows,
        note="Means over all noise rates; ± is the standard deviation over seeds, the 95 % "
        "interval is in result.json. The right-hand columns are AUROC / precision among as many "
        "examples as there are errors. Scores and dynamics come from one training run, cleanlab's "
        "from cross-validation of the same cost.",
    )


def comparisons(findings: Findings, measure: str) -> dict[str, tuple[TTest | None, float]]:
    """Suspicion against every other method, paired by trial, with Holm's p-values.

    ``None`` stands for what cannot be tested: a single trial, or the same difference in all.
    """
    ours = findings.values(SUSPICION, measure)
    tests: dict[str, TTest | None] = {}
    for method in findings.methods:
        if method != SUSPICION:
            tests[method] = _paired(ours, findings.values(method, measure))
    raised = adjusted_p_values([1.0 if test is None else test.p for test in tests.values()])
    return {m: (t, float(p)) for (m, t), p in zip(tests.items(), raised, strict=True)}


def _paired(first: Sequence[float], second: Sequence[float]) -> TTest | None:
    varies = len(first) > 1 and np.ptp(np.subtract(first, second)) > 0
    return t_test(first, second, paired=True) if varies else None


def _comparison_table(
    findings: Findings, measure: str, compared: Mapping[str, tuple[TTest | None, float]]
) -> Table:
    rows: list[list[Cell]] = []
    for method in findings.ranked(measure):
        if method != SUSPICION:
            test, p = compared[method]
            ends = (None, None) if test is None else (test.low, test.high)
            rows.append([method, _lead(findings, method, measure), *ends, f"{p:.2g}"])
    return Table(
        f"Suspicion minus each other method: {measure}",
        ("method", "difference", "low", "high", "p (Holm)"),
        rows,
        note=f"Paired over {len(findings.trials)} noisy training sets; 95 % t-interval of the mean "
        f"difference; p-values raised by Holm's method for {len(compared)} comparisons. Positive: "
        "suspicion found more.",
    )


def _lead(findings: Findings, method: str, measure: str) -> float:
    return findings.mean(SUSPICION, measure) - findings.mean(method, measure)


def _by_setting(findings: Findings) -> Table:
    rivals = _rivals(findings)
    rows: list[list[Cell]] = []
    for group in findings.groups():
        for share in sorted({t.share for t in findings.trials}):
            only = {**group, "share": share}
            cells = [
                f"{np.mean(findings.values(m, 'AUROC', **only)):.4f} / "
                f"{np.mean(findings.values(m, 'precision', **only)):.3f}"
                for m in rivals
            ]
            rows.append([group["dataset"], group["kind"], f"{share:.0%}", *cells])
    return Table(
        "By noise: AUROC / precision",
        ("dataset", "noise", "rate", *rivals),
        rows,
        note="Suspicion beside the best other summary, the best score at the end and the best of "
        "cleanlab, each the best over all settings by AUROC; means over seeds.",
    )


def _rivals(findings: Findings) -> list[str]:
    return [SUSPICION, *(findings.best(source) for source in (_DYNAMICS, _SNAPSHOT, _PEER))]


def claims(
    findings: Findings, compared: Mapping[str, Mapping[str, tuple[TTest | None, float]]]
) -> list[Claim]:
    """What these trials say, whichever way they turned out."""
    return [
        *(_at_least_as_good(findings, measure, compared[measure]) for measure in MEASURES),
        *(_against_cleanlab(findings, measure, compared[measure]) for measure in MEASURES),
        _aum_claim(findings),
    ]


def _at_least_as_good(
    findings: Findings, measure: str, compared: Mapping[str, tuple[TTest | None, float]]
) -> Claim:
    ours = findings.mean(SUSPICION, measure)
    ahead = [m for m in compared if findings.mean(m, measure) > ours]
    surely = [m for m in ahead if compared[m][1] < _LEVEL]
    rival = next(m for m in findings.ranked(measure) if m != SUSPICION)
    seen = (
        f"mean {ours:.4f}; the best other method is {rival} with "
        f"{findings.mean(rival, measure):.4f} (p = {compared[rival][1]:.2g} after Holm); "
        f"{len(ahead)} of {len(compared)} have a higher mean, {len(surely)} of them significantly"
    )
    holds = False if surely else None if ahead else True
    return Claim(f"suspicion is at least as good as every peer by {measure}", "ours", seen, holds)


def _against_cleanlab(
    findings: Findings, measure: str, compared: Mapping[str, tuple[TTest | None, float]]
) -> Claim:
    peer = findings.best(_PEER, measure)
    _, p = compared[peer]
    difference = _lead(findings, peer, measure)
    seen = (
        f"{findings.mean(SUSPICION, measure):.4f} against {findings.mean(peer, measure):.4f} of "
        f"{peer}, difference {difference:+.4f} (p = {p:.2g} after Holm)"
    )
    return Claim(
        f"with the same training, suspicion finds more than the best of cleanlab by {measure}",
        "ours",
        seen,
        None if p >= _LEVEL else difference > 0,
    )


def _aum_claim(findings: Findings) -> Claim:
    early, late = (findings.values(m, "AUROC") for m in ("aum", "logit_margin"))
    test = _paired(early, late)
    seen = f"AUROC {np.mean(early):.4f} against {np.mean(late):.4f}"
    if test is not None:
        seen += f", difference {test.difference:+.4f} ({test.low:+.4f} … {test.high:+.4f})"
    return Claim(
        "the margin averaged over training (AUM) finds more wrong labels than the margin at its "
        "end",
        "Pleiss et al. 2020, Section 4",
        seen,
        None if test is None or test.low <= 0 <= test.high else test.difference > 0,
    )


def _figure(lab: Lab, findings: Findings) -> Figure:
    groups = list(findings.groups())
    shown = list(dict.fromkeys([*_rivals(findings), "aum", "mean_avh", "avh"]))
    figure, axes = panels(len(MEASURES), len(groups), width=2.9, height=2.5)
    shares = sorted({trial.share for trial in findings.trials})
    for place, ax in enumerate(axes):
        measure, group = MEASURES[place // len(groups)], groups[place % len(groups)]
        for number, method in enumerate(shown):
            means = [np.mean(findings.values(method, measure, share=s, **group)) for s in shares]
            ax.plot(
                [100 * share for share in shares], means, "o-", markersize=3,
                color=COLOURS[number % len(COLOURS)], label=method,
                linewidth=2.4 if method == SUSPICION else 1.2,
            )  # fmt: skip
        ax.set_title(f"{group['dataset'].removeprefix('builtin:')}, {group['kind']}")
        ax.set_xlabel("wrong labels, %")
        ax.set_ylabel(measure)
    axes[0].legend(fontsize=7)
    return lab.figure(
        figure,
        "label-errors",
        caption="How well planted label errors are found, against the share of wrong labels; mean "
        "over seeds. Precision is among as many examples as there are errors.",
        alt=f"Lines of {', '.join(shown)} for each dataset and kind of noise, AUROC above and "
        "precision below.",
    )
