"""What the trials of ``label-errors`` say: comparisons, tables, claims, a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardsight.experiments.lab import Cell, Claim, Figure, Lab, Result, Table, spread
from hardsight.registry import SCORES, SUMMARIES
from hardsight.report.figures import COLOURS, legend, panels
from hardsight.stats import TTest, adjusted_p_values, t_test
from hardsight.table import SUSPICION

MEASURES = ("AUROC", "precision")
_SNAPSHOT, _DYNAMICS, _PEER = "score at the end", "dynamics", "cleanlab"
_LEVEL = 0.05


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


def result_of(lab: Lab, trials: Sequence[Trial]) -> Result:
    """Tables, claims and the figure of all trials, and their numbers."""
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

    ``None`` if it cannot be tested: a single trial, or the same difference in all.
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
    legend(figure)
    return lab.figure(
        figure,
        "label-errors",
        caption="How well planted label errors are found, against the share of wrong labels; mean "
        "over seeds. Precision is among as many examples as there are errors.",
        alt=f"Lines of {', '.join(shown)} for each dataset and kind of noise, AUROC above and "
        "precision below.",
    )
