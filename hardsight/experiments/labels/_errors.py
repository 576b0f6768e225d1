"""Which method finds planted label errors: scores, summaries of the dynamics, and cleanlab."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from hardsight._checks import require
from hardsight.data import MemorySource, with_label_errors
from hardsight.errors import ConfigError
from hardsight.experiments import lab as kit
from hardsight.experiments.labels._findings import asks, finding_figure
from hardsight.registry import SCORES, SUMMARIES
from hardsight.run.train import TrainResult
from hardsight.stats import precision_at_k

Values = NDArray[np.float64]
KINDS = ("symmetric", "pairs")
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

    @property
    def plan(self) -> str:
        """What is trained for how long, in words."""
        rows = zip(self.datasets, self.epochs, strict=True)
        return ", ".join(
            f"{epochs} epochs on {kit.DATASETS.get(name, name)}" for name, epochs in rows
        )

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


@kit.experiment(
    "label-errors",
    title="Finding planted label errors: suspicion against every score and cleanlab",
    reproduces="not from a paper; after AUM (Pleiss et al. 2020) and confident learning "
    "(Northcutt et al. 2021)",
    scales={
        "smoke": Setting(
            datasets=("builtin:digits",), epochs=(3,), shares=(0.2,), folds=2, batch_size=32,
            lr=0.005, limit=200, seeds=(0, 1),
        ),
        "short": Setting(),
    },
    asks=asks,
)  # fmt: skip
def label_errors(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Finds wrong labels that were planted in training data.

    Labels are made wrong at random (symmetric noise), or swapped between classes that look alike
    (pairs: noise that depends on the class). One network is trained on the noisy labels while its
    dynamics are recorded. Every score of the final network on its own training data, and every
    summary of the dynamics, then ranks the examples. cleanlab ranks them by out-of-sample
    probabilities from cross-validation with the same network; its folds together see as many
    training examples as the one tracked run. A method is judged by its area under the ROC curve,
    and by its precision among as many examples as there are errors.

    The definition of suspicion was chosen before, on small subsets, and nothing is tuned here. The
    network is {model}: {plan}, on {limit} training images. Training is deliberately too short to
    memorise wrong labels, which is when scores at the end are at their best.
    """
    _cleanlab()  # fail before an hour of training, not after it
    noises: list[dict[str, Any]] = [
        {"dataset": name, "kind": kind, "share": share, "seed": seed}
        for name in setting.datasets
        for kind in setting.kinds
        for share in setting.shares
        for seed in setting.seeds
    ]
    trials = []
    with lab.progress("noisy training sets", len(noises)) as advance:
        for noise in noises:
            lab.step("{dataset}: {kind} noise of {share:.0%}, seed {seed}".format(**noise))
            trials.append({**noise, "found": _found(lab, setting, **noise)})
            advance(1)
    return kit.Result(figures=[finding_figure(lab, trials)], data={"trials": trials})


def _found(
    lab: kit.Lab, setting: Setting, *, dataset: str, kind: str, share: float, seed: int
) -> dict[str, dict[str, float]]:
    """What every method finds in a noisy training set."""
    source = lab.source(dataset, "train", limit=setting.limit)
    epochs = setting.epochs[setting.datasets.index(dataset)]
    classes = len(source.classes)
    labels, wrong = with_label_errors(
        source.labels, num_classes=classes, share=share, seed=seed,
        towards=None if kind == "symmetric" else partners(dataset, classes),
    )  # fmt: skip
    noisy = source.relabelled(labels)
    run = trained(lab, setting, noisy, epochs=epochs, seed=seed, track=True)
    assert run.dynamics is not None
    summaries = {name: run.dynamics.column(name).astype(np.float64) for name in SUMMARIES}
    harder = {name: spec.higher_is_harder for name, spec in (*SCORES.items(), *SUMMARIES.items())}
    suspects = {  # larger = more suspect
        name: np.nan_to_num(values if harder[name] else -values, nan=-np.inf)
        for name, values in {**lab.outputs(run, noisy).scores(), **summaries}.items()
    }
    probs = held_out_probs(lab, setting, noisy, epochs=epochs, seed=seed)
    return {
        method: {
            "AUROC": area(suspect, wrong),
            # among as many suspects as there are errors
            "precision": precision_at_k(suspect, wrong, int(wrong.sum())).value,
        }
        for method, suspect in {**suspects, **by_cleanlab(labels, probs)}.items()
    }


def partners(dataset: str, num_classes: int) -> dict[int, int]:
    """For every class the one it is swapped with: one that looks alike, if that is known."""
    if dataset not in _PAIRS:
        return {label: (label + 1) % num_classes for label in range(num_classes)}
    return {a: b for pair in _PAIRS[dataset] for a, b in (pair, pair[::-1])}


def trained(
    lab: kit.Lab, setting: Any, source: MemorySource, *, epochs: int, seed: int, track: bool = False
) -> TrainResult:
    """A network on noisy labels, as both experiments about them train it."""
    return lab.train(
        setting.model, source, seed=seed, epochs=epochs, batch_size=setting.batch_size,
        optimizer={"name": "adamw", "lr": setting.lr}, schedule="one_cycle", validation=0.0,
        select="last", track=track, thumbnails=0,
    )  # fmt: skip


def held_out_probs(
    lab: kit.Lab, setting: Setting, source: MemorySource, *, epochs: int, seed: int
) -> Values:
    """Probabilities ``[N, C]`` of every example by a network that did not see it.

    Each of K networks trains on (K - 1) / K of the data for E / (K - 1) epochs: E N examples.
    """
    fold = np.random.default_rng([seed, setting.folds]).permutation(len(source)) % setting.folds
    probs = np.zeros((len(source), len(source.classes)))
    for number in range(setting.folds):
        rest, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        share = epochs // (setting.folds - 1)
        run = trained(lab, setting, source.subset(rest), epochs=share, seed=seed)
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
        quality_scores: Values = rank.get_label_quality_scores(
            labels, probs, method=method, adjust_pred_probs=adjust
        )
        return quality_scores

    margin = quality("normalized_margin")
    called = filters.find_label_issues(labels, probs, n_jobs=1)  # a mask; pruned by noise rate
    return {
        "cleanlab self-confidence": -quality("self_confidence"),
        "cleanlab normalised margin": -margin,
        "cleanlab adjusted margin": -quality("normalized_margin", adjust=True),
        "cleanlab confident learning": called.astype(np.float64) - margin,
    }


def area(suspect: Values, wrong: NDArray[np.bool_]) -> float:
    """Area under the ROC curve by ranks; ``hs.stats.auroc`` without the time for its interval."""
    positives = int(wrong.sum())
    above = rankdata(suspect)[wrong].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(wrong) - positives)))
