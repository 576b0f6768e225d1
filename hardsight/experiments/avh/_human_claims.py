"""The claims of ``avh-human``: the paper's sentences on people and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hardsight.experiments.avh._human_studies import (
    AVH,
    BINS,
    CONFIDENCE,
    NORM,
    Studies,
    bin_values,
    every_run,
    spearman_of,
)
from hardsight.experiments.avh._models import agreement_of_networks, say
from hardsight.experiments.lab import Claim, spread
from hardsight.registry import SCORES
from hardsight.run.study import HumanStudy, concordance

_ENOUGH = 50  # examples in a bin whose coefficient is compared


def human_claims(
    studies: Studies, accuracy: Mapping[str, Sequence[float]], who: str, main: str
) -> list[Claim]:
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


def _correlates(studies: Studies, name: str, score: str, says: str, paper: str) -> Claim:
    runs = every_run(studies)
    sign = -1 if SCORES[score].higher_is_harder else 1
    held = [
        bool(_outcome(study, name)) and all(sign * rho > 0 for rho in spearman_of([study], score))
        for study in runs
    ]
    seen = f"Spearman {_range(spearman_of(runs, score))}; null hypothesis rejected, in the expected"
    seen += f" direction, in {sum(held)} of {len(runs)} runs"
    return Claim.of_runs(says, paper, seen, held)


def _stronger(studies: Studies, who: str) -> Claim:
    runs = [study for study in every_run(studies) if study.comparisons]
    differences = [study.comparisons[0].difference for study in runs]
    ahead = [bool(_outcome(study, "H3")) for study in runs]
    behind = sum(
        study.comparisons[0].difference < 0 and study.comparisons[0].p < study.alpha
        for study in runs
    )
    return Claim.of_runs(
        f"AVH has a stronger correlation with the frequency of {who} than model confidence.",
        "difference +0.014 (AlexNet) to +0.038 (DenseNet-121), p < 0.05 for all four networks",
        f"difference of |Spearman| {_range(differences)}; by the dependent test AVH is the "
        f"stronger in {sum(ahead)} of {len(runs)} runs, confidence in {behind}",
        ahead,
    )


def _no_norm(studies: Studies, who: str) -> Claim:
    runs = every_run(studies)
    rejected = [bool(_outcome(study, "H4")) for study in runs]
    return Claim.of_runs(
        f"The norm, scaled within its class, has no correlation with the frequency of {who}.",
        "Spearman 0.0017, p > 0.05",
        f"Spearman {_range(spearman_of(runs, NORM))}; a correlation is shown in {sum(rejected)} of "
        f"{len(runs)} runs",
        [not is_rejected for is_rejected in rejected],
    )


def _better_models(studies: Studies, accuracy: Mapping[str, Sequence[float]]) -> Claim:
    points = [
        (float(np.mean(accuracy[model])), -float(np.mean(np.abs(spearman_of(of_seeds, AVH)))))
        for model, of_seeds in studies.items()
    ]
    agree, pairs = concordance(points)
    listed = ", ".join(
        f"{say(model)} {100 * point[0]:.1f} %: {-point[1]:.3f}"
        for model, point in zip(studies, points, strict=True)
    )
    return Claim(
        "Better models tend to have higher coefficients.",
        "0.339 (AlexNet), 0.349 (VGG-19), 0.360 (ResNet-50), 0.367 (DenseNet-121)",
        f"{agree} of {pairs} pairs of networks agree; accuracy and |Spearman| of AVH: {listed}",
        agreement_of_networks(agree, pairs),
    )


def _weaker_where_easy(studies: Sequence[HumanStudy], model: str) -> Claim:
    """Of the bins with enough examples, the hardest against the easiest."""
    says = (
        "The correlation of AVH within a bin is weakest among the easiest examples (the numbers of "
        "Table 1; its text says that the harder the sample, the weaker the correlation)."
    )
    paper = "0.228 in [0, .2], 0.094 in [.8, 1]"
    counts = [group.n for group in studies[0].score(AVH).bins]
    found = [bin_values(studies, AVH, "bins", place) for place in range(len(counts))]
    usable = [at for at, n in enumerate(counts) if n >= _ENOUGH and len(found[at]) == len(studies)]
    if len(usable) < 2:
        return Claim(says, paper, f"fewer than two bins hold {_ENOUGH} examples", None)
    hard, easy = usable[0], usable[-1]
    in_hard, in_easy = spread(found[hard]), spread(found[easy])
    # the bins hold different examples, so here the in_easy coefficients are independent
    error = np.sqrt(1 / (counts[hard] - 3) + 1 / (counts[easy] - 3))
    z = float((np.arctanh(in_hard.mean) - np.arctanh(in_easy.mean)) / error)
    seen = (
        f"{say(model)}: {in_hard} in {BINS[hard]} (n {counts[hard]}), {in_easy} in {BINS[easy]} "
        f"(n {counts[easy]}), z of the difference {z:.2f}"
    )
    return Claim(says, paper, seen, None if abs(z) < 1.96 else z > 0)
