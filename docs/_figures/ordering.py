"""Which examples each order draws, for the guide: ``python docs/_figures/ordering.py``."""

from pathlib import Path

import matplotlib as mpl
import numpy as np

from hardsight.tracking import ORDERS, HardnessSampler

mpl.use("Agg")
mpl.rcParams.update({"svg.hashsalt": "hardsight", "svg.fonttype": "none", "font.size": 9})

import matplotlib.pyplot as plt  # noqa: E402 (the backend comes first)

OUT = Path(__file__).parents[1] / "assets" / "ordering.svg"
ROWS, EPOCHS, BINS = 2000, 15, 20


def main() -> None:
    """One picture per order: epochs across, ranks upwards."""
    figure, panels = plt.subplots(1, 3, figsize=(8, 2.4), sharey=True, layout="constrained")
    for axes, order in zip(panels, ORDERS, strict=True):
        sampler = HardnessSampler(np.arange(ROWS), order=order, full_epoch=10, power=2.0)
        counts = np.zeros((BINS, EPOCHS))
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            counts[:, epoch] = np.histogram(list(sampler), BINS, (0, ROWS))[0]
        axes.pcolormesh(counts * BINS / ROWS, cmap="Blues", vmin=0, vmax=3.4, rasterized=False)
        axes.set(title=order, xlabel="epoch", yticks=[0, BINS], yticklabels=["easy", "hard"])
    figure.savefig(OUT, metadata={"Date": None}, transparent=False)


if __name__ == "__main__":
    main()
