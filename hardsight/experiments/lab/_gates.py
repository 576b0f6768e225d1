"""Whether a network is good enough to judge: what it reaches, and what it could reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hardsight.experiments.lab._claims import PerSeed
from hardsight.experiments.lab._result import Claim, Table, gated, spread

SLACK = 2.0  # points below a good recipe at which a network may still speak for a loss


@dataclass(frozen=True)
class GoodAccuracy:
    """What a network reaches on a dataset with a good recipe and cross-entropy.

    Attributes:
        accuracy: on the test split, per cent.
        source: a table of a paper, or where it was measured.
        stored: folder of ``results/`` and the keys within its data, if it is one of ours.
    """

    accuracy: float
    source: str
    stored: tuple[str, ...] = ()


def _ours(accuracy: float, *stored: str) -> GoodAccuracy:
    return GoodAccuracy(accuracy, f"the best run here: results/{stored[0]}", stored)


_UNSEEN = "Angular Visual Hardness, Table 5: CNN-10 with ImageNet weights, on unseen domains"
# By DATASET/NETWORK. A narrower network (an option after a colon) stands for the whole one and is
# asked for what that reaches.
GOOD = {
    "mnist/el_mnist": GoodAccuracy(99.42, "Encouraging Loss, Table 1"),
    "mnist/el_attack": GoodAccuracy(98.69, "the published log of the attacks on Encouraging Loss"),
    "mnist/small_cnn": _ours(99.12, "el-table1", "mnist/small_cnn", "losses", "CE", "test"),
    "fashion-mnist/small_cnn": _ours(
        91.07, "el-table1", "fashion-mnist/small_cnn", "losses", "CE", "test"
    ),
    "mnist/amc13": GoodAccuracy(99.63, "AMC-Loss, Table 1"),
    "cifar10/amc13": GoodAccuracy(82.35, "AMC-Loss, Table 1"),
    "cifar10/resnet18": GoodAccuracy(91.0, "measured on these JPEG pictures in 25 s of one H200"),
    "cifar10/efficientnet_small": GoodAccuracy(
        93.21, "Encouraging Loss, Table 1: EfficientNet-B0, for which it stands"
    ),
    "cifar10/alexnet": _ours(74.2, "avh-human-paper", "accuracy", "alexnet"),
    "cifar10/vgg19": _ours(88.3, "avh-human-paper", "accuracy", "vgg19"),
    "cifar10/resnet50": _ours(88.8, "avh-human-paper", "accuracy", "resnet50"),
    "cifar10/densenet121": _ours(85.7, "avh-human", "accuracy", "densenet121"),
    "pacs/cnn10": GoodAccuracy(68.94, _UNSEEN),
    "pacs/efficientnet_lite0": GoodAccuracy(68.94, f"{_UNSEEN}, for which it stands"),
}


@dataclass(frozen=True)
class Gate:
    """A network of a page, and what it must reach.

    Attributes:
        title: for people.
        network: ``DATASET/NETWORK``, options after a colon.
        reached: accuracy with the plain recipe, per cent, one per seed; none if it is not stored.
    """

    title: str
    network: str
    reached: Sequence[float | None]

    @property
    def good(self) -> GoodAccuracy | None:
        """What it could reach; ``None`` if nobody has measured it."""
        return GOOD.get(self.network, GOOD.get(self.network.partition(":")[0]))

    @property
    def weak(self) -> str:
        """Why it is too weak to judge, in words; empty if it is not, or if nothing is known."""
        return weakness(self.reached, None if self.good is None else self.good.accuracy)


def weakness(reached: Sequence[float | None], good: float | None) -> str:
    """Why a network is too weak to judge, in words; empty if it is strong enough.

    Args:
        reached: accuracy per seed with the plain recipe, per cent.
        good: what the same network reaches on this data with a good recipe; ``None`` if that
            is not known, and nothing is asked.

    Example:
        >>> weakness([99.3, 99.1], 99.4), weakness([90.0, 92.0], 99.4)
        ('', '91.0 % reached, and at least 97.4 % are needed')
    """
    accuracy = spread(reached)
    if good is None or not accuracy.n:
        return ""
    least = good - SLACK
    if accuracy.mean >= least:
        return ""
    return f"{accuracy.mean:.1f} % reached, and at least {least:.1f} % are needed"


def below_chance(reached: PerSeed, classes: int) -> str:
    """Why a comparison of accuracies says nothing, in words: the plain recipe is below chance.

    Args:
        reached: accuracy per seed of the recipe to compare with, per cent.
        classes: to choose from.

    Example:
        >>> below_chance([0.0, 1.0], 10), below_chance([30.0, 31.0], 10)
        ('0.5 % reached, but guessing reaches 10.0 %', '')
    """
    accuracy, chance = spread(reached), 100 / classes
    if not accuracy.n or accuracy.mean > chance:
        return ""
    return f"{accuracy.mean:.1f} % reached, but guessing reaches {chance:.1f} %"


def weakness_of(gates: Sequence[Gate]) -> str:
    """Why a claim that rests on several networks cannot be judged; empty if all are good enough."""
    return "; ".join(f"{gate.title}: {gate.weak}" for gate in gates if gate.weak)


def gated_claims(claims: Sequence[Claim], gates: Sequence[Gate]) -> list[Claim]:
    """Claims that rest on all of some networks: not judged if one of these is too weak."""
    return [gated(claim, weakness_of(gates)) for claim in claims]


def networks_table(gates: Sequence[Gate]) -> Table:
    """What every network of a page reaches and must reach."""
    rows = []
    for gate in gates:
        accuracy, good = spread(gate.reached), gate.good
        rows.append(
            [
                gate.title,
                accuracy if accuracy.n else "not stored",
                "not known" if good is None else f"{good.accuracy - SLACK:.1f}",
                "not measured" if good is None else f"{good.accuracy:.2f}, {good.source}",
            ]
        )
    return Table(
        "Are the networks good enough?",
        ("network", "accuracy, %", "needed, %", "with a good recipe, %"),
        rows,
        note=f"Mean ± standard deviation over seeds, without the change that the page is about. A "
        f"network more than {SLACK:g} points below a good recipe is too weak to judge.",
    )
