"""Which points of a pool three rules take, for the guide: ``python docs/_figures/labelling.py``."""

from pathlib import Path

import matplotlib as mpl
import numpy as np

from hardsight.run.queue import ranked

mpl.use("Agg")
mpl.rcParams.update({"svg.hashsalt": "hardsight", "svg.fonttype": "none", "font.size": 9})

import matplotlib.pyplot as plt  # noqa: E402 (the backend comes first)

OUT = Path(__file__).parents[1] / "assets" / "queue.svg"
SETTINGS = {
    "margin": {"by": "margin"},
    "coverage": {"by": "coverage"},
    "margin, balanced": {"by": "margin", "balanced": True},
}


def main() -> None:
    """Three directions of different sizes; some points lie between them."""
    draw = np.random.default_rng(0)
    angles = np.concatenate([
        draw.normal(middle, 0.28, n) for middle, n in ((0.4, 260), (1.6, 100), (2.7, 40))
    ])  # fmt: skip
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * draw.uniform(0.6, 1.0, (400, 1))
    heads = np.stack([np.cos([0.4, 1.6, 2.7]), np.sin([0.4, 1.6, 2.7])], axis=1)
    logits = 6 * points @ heads.T
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    ordered = np.sort(probs, axis=1)
    columns = {"probability_gap": ordered[:, -1] - ordered[:, -2]}
    figure, panels = plt.subplots(1, 3, figsize=(8, 2.4), sharey=True, layout="constrained")
    for axes, (title, options) in zip(panels, SETTINGS.items(), strict=True):
        taken = ranked(
            columns, probs.argmax(axis=1), budget=30, embeddings=points.astype(np.float32),
            **options,
        )  # fmt: skip
        axes.scatter(*points.T, s=6, c="0.8")
        axes.scatter(*points[taken].T, s=14, c="tab:blue")
        axes.set(title=title, xticks=[], yticks=[], aspect="equal")
    figure.savefig(OUT, metadata={"Date": None}, transparent=False)


if __name__ == "__main__":
    main()
