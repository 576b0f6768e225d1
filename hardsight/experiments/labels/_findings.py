"""What the trials of ``label-errors`` say: comparisons, tables, claims, a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardsight.experiments import lab as kit
from hardsight.registry import SCORES, SUMMARIES
from hardsight.report.figures import COLOURS, panels
from hardsight.table import SUSPICION

MEASURES = ("AUROC", "precision")
_NOISE = ("dataset", "kind", "share")
_SNAPSHOT, _DYNAMICS, _PEER = "score at the end", "dynamics", "cleanlab"
_AUM = ("AUM", "AUROC")
# by method and measure: suspicion against it
Found = Mapping[tuple[str, str], kit.Compared]


class Findings:
    """All trials, by method and measure.

    Args:
        trials: each with dataset, kind and share of the noise, its seed, and under ``found`` the
            measures by method; every one with the same methods.

    Attributes:
        grid: AUROC and precision by noise and method.
        overall: their means over the kinds of noise: a seed counts once.
    """

    def __init__(self, trials: Sequence[Mapping[str, Any]]) -> None:
        rows = [
            {key: trial[key] for key in (*_NOISE, "seed")} | {"method": method, **measures}
            for trial in trials
            for method, measures in trial["found"].items()
        ]
        self.grid = kit.Grid.of(rows, *_NOISE, "method")
        self.overall = self.grid
        for key in _NOISE:
            self.overall = self.overall.mean_over(key)
        self._means = {measure: self.overall.series(measure, "method") for measure in MEASURES}

    def mean(self, method: str, measure: str = "AUROC", **noise: Any) -> float:
        """Mean over seeds, and over the kinds of noise that are not stated."""
        if not noise:
            return self._means[measure][method].mean
        return float(self.grid.at(method=method, **noise).frame[measure].mean())

    def both(self, method: str, *, digits: int = 3, **noise: Any) -> str:
        """Both measures in words; AUROC with so many digits."""
        area, precision = (self.mean(method, measure, **noise) for measure in MEASURES)
        return f"{area:.{digits}f} / {precision:.3f}"

    def ranked(self, measure: str = "AUROC") -> list[str]:
        """Methods, best first."""
        return sorted(self.overall.names("method"), key=lambda method: -self.mean(method, measure))

    def others(self, measure: str = "AUROC") -> list[str]:
        """Methods but suspicion, best first."""
        return [method for method in self.ranked(measure) if method != SUSPICION]

    def best(self, source: str, measure: str = "AUROC") -> str:
        """The best method of one source, suspicion aside."""
        return next(method for method in self.others(measure) if source_of(method) == source)

    def rivals(self) -> list[str]:
        """Suspicion and the best other method of each source."""
        return [SUSPICION, *(self.best(source) for source in (_DYNAMICS, _SNAPSHOT, _PEER))]

    def groups(self) -> list[tuple[str, str]]:
        """Dataset and kind of noise, in the order of the trials."""
        frame = self.grid.frame
        return list(dict.fromkeys(zip(frame["dataset"], frame["kind"], strict=True)))

    def compared(self) -> dict[tuple[str, str], kit.Compared]:
        """Suspicion against every other method by each measure, and AUM against the last margin."""
        pairs: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        for measure in MEASURES:
            values = {name: self.overall.values(measure, method=name) for name in self.ranked()}
            pairs |= {(name, measure): (values[SUSPICION], values[name]) for name in self.others()}
            pairs |= {_AUM: (values["aum"], values["logit_margin"])} if measure == "AUROC" else {}
        return kit.compared_in_pairs(pairs)


def source_of(method: str) -> str:
    """Where a method's numbers come from."""
    if method in SUMMARIES:
        return _DYNAMICS
    return _SNAPSHOT if method in SCORES else _PEER


def asks(setting: Any, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    """Tables and claims of all trials."""
    findings = Findings(data["trials"])
    comparisons = findings.compared()
    tables = [
        _ranking(findings),
        *(_comparison_table(findings, measure, comparisons) for measure in MEASURES),
        _by_setting(findings),
    ]
    early, late = (findings.mean(method) for method in ("aum", "logit_margin"))
    return tables, [
        *(_at_least_as_good(findings, measure, comparisons) for measure in MEASURES),
        *(_against_cleanlab(findings, measure, comparisons) for measure in MEASURES),
        kit.Claim(
            "the margin averaged over training (AUM) finds more wrong labels than the margin at "
            "its end",
            "Pleiss et al. 2020, Section 4",
            f"AUROC {early:.4f} against {late:.4f}, difference {comparisons[_AUM]}",
            comparisons[_AUM].is_above,
        ),
    ]


def _ranking(findings: Findings) -> kit.Table:
    groups = {f"{d.removeprefix('builtin:')}, {k}": (d, k) for d, k in findings.groups()}
    rows: list[list[kit.Cell]] = [
        [f"**{method}**" if method == SUSPICION else method, source_of(method)]
        + [findings.overall.cell(measure, method=method) for measure in MEASURES]
        + [findings.both(method, dataset=name, kind=kind) for name, kind in groups.values()]
        for method in findings.ranked()
    ]
    return kit.Table(
        "Which method finds the planted errors",
        ("method", "from", *MEASURES, *groups),
        rows,
        note="Means over all noise rates; ± is the standard deviation over seeds, and the 95 % "
        "interval is in result.json. The right-hand columns are AUROC / precision among as many "
        "examples as there are errors. Scores and dynamics come from one training run; cleanlab's "
        "numbers come from a cross-validation that costs the same.",
    )


def _comparison_table(findings: Findings, measure: str, comparisons: Found) -> kit.Table:
    rows: list[list[kit.Cell]] = []
    for method in findings.others(measure):
        compared = comparisons[method, measure]
        p = None if math.isnan(compared.p) else f"{compared.p:.2g}"
        rows.append([method, compared.difference, compared.low, compared.high, p])
    return kit.Table(
        f"Suspicion minus each other method: {measure}",
        ("method", "difference", "low", "high", "p (Holm)"),
        rows,
        note="Means over all kinds of noise, paired over seeds, with the 95 % t-interval of the "
        f"mean difference. P-values are raised by Holm's method for all {len(comparisons)} "
        "comparisons of this page. If the difference is positive, suspicion found more.",
    )


def _by_setting(findings: Findings) -> kit.Table:
    rivals, shares = findings.rivals(), sorted(findings.grid.names("share"))
    rows = [
        [name, kind, f"{share:.0%}"]
        + [findings.both(rival, digits=4, dataset=name, kind=kind, share=share) for rival in rivals]
        for name, kind in findings.groups()
        for share in shares
    ]
    return kit.Table(
        "By noise: AUROC / precision",
        ("dataset", "noise", "rate", *rivals),
        rows,
        note="Means over seeds. Suspicion is shown beside the best other summary, the best score "
        "at the end and the best of cleanlab. Best means the best AUROC over all settings.",
    )


def _at_least_as_good(findings: Findings, measure: str, comparisons: Found) -> kit.Claim:
    others = findings.others(measure)
    ahead = [method for method in others if comparisons[method, measure].difference < 0]
    surely = [method for method in ahead if comparisons[method, measure].is_above is False]
    seen = (
        f"mean {findings.mean(SUSPICION, measure):.4f}; the best other method is {others[0]} with "
        f"{findings.mean(others[0], measure):.4f} (difference {comparisons[others[0], measure]}); "
        f"{len(ahead)} of {len(others)} have a higher mean, {len(surely)} of them significantly"
    )
    return kit.Claim(
        f"suspicion is at least as good as every peer by {measure}",
        "ours",
        seen,
        kit.all_of([comparisons[method, measure].is_above for method in others]),
    )


def _against_cleanlab(findings: Findings, measure: str, comparisons: Found) -> kit.Claim:
    peer = findings.best(_PEER, measure)
    ours, theirs = (findings.mean(method, measure) for method in (SUSPICION, peer))
    return kit.Claim(
        f"with the same training, suspicion finds more than the best of cleanlab by {measure}",
        "ours",
        f"{ours:.4f} against {theirs:.4f} of {peer}, difference {comparisons[peer, measure]}",
        comparisons[peer, measure].is_above,
    )


def finding_figure(lab: kit.Lab, trials: Sequence[Mapping[str, Any]]) -> kit.Figure:
    """Both measures of some methods against the share of wrong labels."""
    findings = Findings(trials)
    groups, shares = findings.groups(), sorted(findings.grid.names("share"))
    shown = list(dict.fromkeys([*findings.rivals(), "aum", "mean_avh", "avh"]))
    figure, axes = panels(len(MEASURES), len(groups), width=2.9, height=2.5)
    for place, ax in enumerate(axes):
        measure, (name, kind) = MEASURES[place // len(groups)], groups[place % len(groups)]
        for number, method in enumerate(shown):
            means = [
                findings.mean(method, measure, dataset=name, kind=kind, share=s) for s in shares
            ]
            ax.plot(
                100 * np.array(shares), means, "o-", markersize=3,
                color=COLOURS[number % len(COLOURS)], label=method,
                linewidth=2.4 if method == SUSPICION else 1.2,
            )  # fmt: skip
        title = f"{name.removeprefix('builtin:')}, {kind}"
        ax.set(title=title, xlabel="wrong labels, %", ylabel=measure)
    return lab.figure(
        figure, "label-errors",
        caption="How well planted label errors are found, against the share of wrong labels; mean "
        "over seeds. Precision is among as many examples as there are errors.",
        alt=f"Lines of {', '.join(shown)} for each dataset and kind of noise, AUROC above and "
        "precision below.",
    )  # fmt: skip
