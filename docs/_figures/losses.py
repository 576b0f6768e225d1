"""Curves and gradients of every loss, as drawn on its page: ``python docs/_figures/losses.py``.

Every line is computed by the public function and by autograd through it.
"""

import math
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor

from hardsight import losses as hl

mpl.use("Agg")
mpl.rcParams.update({"svg.hashsalt": "hardsight", "svg.fonttype": "none", "font.size": 9})

import matplotlib.pyplot as plt  # noqa: E402 (the backend comes first)

OUT = Path(__file__).parents[1] / "losses" / "figures"
Curve = Callable[[Tensor], Tensor]


def draw(
    name: str, x: Tensor, curves: dict[str, Curve], *, xlabel: str, slope: str, low: float = -6
) -> None:
    """One figure: the losses on the left, their slopes on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for label, curve in curves.items():
        leaf = x.clone().requires_grad_()
        values = curve(leaf)
        (grad,) = torch.autograd.grad(values.sum(), leaf)
        left.plot(x, values.detach(), label=label)
        right.plot(x, grad, label=label)
    left.set(xlabel=xlabel, ylabel="loss", ylim=(max(left.get_ylim()[0], low), None))
    right.set(xlabel=xlabel, ylabel=slope)
    left.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / f"{name}.svg", metadata={"Date": None}, transparent=False)
    plt.close(figure)


def of_log_odds(loss: Callable[..., Tensor], **options: object) -> Curve:
    """A loss of two logits (m, 0), over m; the target is the first."""

    def curve(m: Tensor) -> Tensor:
        logits = torch.stack([m, torch.zeros_like(m)], dim=1)
        return loss(logits, torch.zeros(len(m)).long(), reduction="none", **options)

    return curve


def of_angle(loss: Callable[..., Tensor], *, similar: bool, **options: object) -> Curve:
    """A loss of pairs, over the angle (or distance) between the two rows."""

    def curve(distance: Tensor) -> Tensor:
        angular = loss is hl.amc_loss
        fixed = (
            torch.tensor([1.0, 0.0] if angular else [0.0, 0.0]).double().expand(len(distance), 2)
        )
        zero = torch.zeros_like(distance)
        moving = [distance.cos(), distance.sin()] if angular else [distance, zero]
        rows = torch.cat([fixed, torch.stack(moving, dim=1)])
        labels = torch.arange(len(distance)).repeat(2)
        labels[len(distance) :] += 0 if similar else len(distance)
        return loss(rows, labels, reduction="none", **options)

    return curve


def of_target_angle(loss: Callable[..., Tensor], **options: object) -> Curve:
    """A loss of a head with classes at 0 and 90 degrees, over the angle to the first."""

    def curve(angle: Tensor) -> Tensor:
        rows = torch.stack([angle.cos(), angle.sin()], dim=1)
        weights = torch.eye(2, dtype=angle.dtype) * options.get("norm", 1.0)
        given = {key: value for key, value in options.items() if key != "norm"}
        return loss(rows, torch.zeros(len(angle)).long(), weights, reduction="none", **given)

    return curve


def main() -> None:
    """Draw every figure."""
    odds = torch.linspace(-6, 8, 701, dtype=torch.float64)
    angle = torch.linspace(1e-3, math.pi / 2, 400, dtype=torch.float64)
    wide_angle = torch.linspace(1e-3, math.pi - 1e-3, 400, dtype=torch.float64)
    per_odds = {"xlabel": "log-odds of the label, log p / (1 - p)", "slope": "slope"}
    draw(
        "encouraging",
        odds,
        {
            "cross-entropy": of_log_odds(hl.focal_loss, gamma=0.0),
            "log_end=0.5": of_log_odds(hl.encouraging_loss, log_end=0.5),
            "log_end=0.75": of_log_odds(hl.encouraging_loss),
            "log_end=1": of_log_odds(hl.encouraging_loss, log_end=1.0),
            "bonus_start=0.5": of_log_odds(hl.encouraging_loss, bonus_start=0.5),
        },
        **per_odds,
    )
    draw(
        "bonus",
        odds,
        {
            "log, log_end=0.75": of_log_odds(hl.encouraging_bonus),
            "log, log_end=1": of_log_odds(hl.encouraging_bonus, log_end=1.0),
            "power": of_log_odds(hl.encouraging_bonus, bonus="power"),
            "cosine": of_log_odds(hl.encouraging_bonus, bonus="cosine"),
        },
        **per_odds,
    )
    draw(
        "focal",
        odds,
        {
            "gamma=0 (cross-entropy)": of_log_odds(hl.focal_loss, gamma=0.0),
            "gamma=2": of_log_odds(hl.focal_loss),
            "gamma=2 plus bonus": lambda m: (
                of_log_odds(hl.focal_loss)(m) + of_log_odds(hl.encouraging_bonus)(m)
            ),
        },
        **per_odds,
    )
    draw(
        "mirror-mse",
        odds,
        {
            "softmax": of_log_odds(hl.mirror_mse_loss),
            "sigmoid, other logit 0": of_log_odds(hl.mirror_mse_loss, activation="sigmoid"),
        },
        **per_odds,
    )
    draw(
        "mrkld",
        odds,
        {"mrkld": lambda m: hl.mrkld(torch.stack([m, 0 * m], dim=1), reduction="none")},
        **per_odds,
    )
    draw(
        "avh",
        angle,
        {f"scale={s}": of_target_angle(hl.avh_loss, scale=s) for s in (1.0, 4.0, 16.0)},
        xlabel="angle to the own class, rad",
        slope="slope per rad",
    )
    draw(
        "large-margin",
        wide_angle,
        {
            f"margin={m}": of_target_angle(hl.large_margin_softmax_loss, margin=m, norm=2.0)
            for m in (1, 2, 4)
        },
        xlabel="angle to the own class, rad",
        slope="slope per rad",
    )
    draw(
        "amc",
        wide_angle,
        {
            "similar": of_angle(hl.amc_loss, similar=True),
            "dissimilar, margin 0.5": of_angle(hl.amc_loss, similar=False),
            "dissimilar, margin 1.5": of_angle(hl.amc_loss, similar=False, margin_rad=1.5),
        },
        xlabel="angle between the pair, rad",
        slope="slope per rad",
    )
    draw(
        "euclidean-contrastive",
        torch.linspace(1e-3, 2.5, 400, dtype=torch.float64),
        {
            "similar": of_angle(hl.euclidean_contrastive_loss, similar=True),
            "dissimilar, margin 1": of_angle(hl.euclidean_contrastive_loss, similar=False),
        },
        xlabel="distance between the pair",
        slope="slope",
    )
    mining()
    ramps()


def mining() -> None:
    """Which examples the hardest share holds, and the triplet loss over both of its angles."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    losses = torch.linspace(1.9, -1.5, 24).exp()
    for keep, marker in ((1.0, "o"), (0.5, "s"), (0.25, "^")):
        leaf = losses.clone().requires_grad_()
        (grad,) = torch.autograd.grad(hl.hardest(leaf, keep=keep), leaf)
        left.plot(losses, grad, marker, markersize=4, label=f"keep={keep}")
    left.set(xlabel="loss of an example in a batch of 24", ylabel="its weight in the gradient")
    left.legend(frameon=False)
    to_other = torch.linspace(0.05, 1.5, 200, dtype=torch.float64)
    for to_own in (0.2, 0.6, 1.0):
        values = [_triplet(to_own, float(angle)) for angle in to_other]
        right.plot(to_other, values, label=f"{to_own} rad to its own class")
    right.set(xlabel="angle to the row of another class, rad", ylabel="angular triplet loss")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(OUT / "mining.svg", metadata={"Date": None}, transparent=False)
    plt.close(figure)


def _triplet(to_own: float, to_other: float) -> float:
    """Loss of a row at angle 0, with one row of its class and one of another."""
    angles = torch.tensor([0.0, -to_own, to_other], dtype=torch.float64)
    rows = torch.stack([angles.cos(), angles.sin()], dim=1)
    return float(hl.angular_triplet_loss(rows, torch.tensor([0, 0, 1]), reduction="none")[0])


def ramps() -> None:
    """Loss weight, learning rate and beta1 over the epochs of both presets."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for axes, (name, preset) in zip(panels, hl.AMC_PRESETS.items(), strict=True):
        epochs = range(preset.total_epochs)
        up = [hl.gaussian_ramp_up(t, ramp_epochs=preset.ramp_up_epochs) for t in epochs]
        down = [
            hl.gaussian_ramp_down(
                t,
                total_epochs=preset.total_epochs,
                ramp_epochs=preset.ramp_down_epochs,
                sharpness=preset.sharpness,
            )
            for t in epochs
        ]
        share = [preset.weight_at(t) / preset.weight for t in epochs]
        rate = [a * b for a, b in zip(up, down, strict=True)]
        axes.plot(epochs, share, label=f"loss weight / {preset.weight:g}")
        axes.plot(epochs, rate, "--", label=f"learning rate / {preset.learning_rate:g}")
        axes.plot(epochs, [hl.ramped_beta1(d) for d in down], ":", label="Adam beta1")
        axes.set(title=f'preset "{name}"', xlabel="epoch", ylim=(0, 1.05))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(OUT / "ramps.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
