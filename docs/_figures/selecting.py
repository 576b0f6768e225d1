"""Which rows each rule keeps, for the guide: ``python docs/_figures/selecting.py``."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa

from hardsight.selection import RULES, select
from hardsight.table import ScoreTable, with_metadata

mpl.use("Agg")
mpl.rcParams.update({"svg.hashsalt": "hardsight", "svg.fonttype": "none", "font.size": 9})

import matplotlib.pyplot as plt  # noqa: E402 (the backend comes first)

OUT = Path(__file__).parents[1] / "assets" / "select.svg"


def main() -> None:
    """A made score of 5,000 rows: most are easy, a few are very hard."""
    draw = np.random.default_rng(0)
    score = np.clip(
        np.concatenate([draw.gamma(1.2, 0.16, 4600), draw.beta(6, 2, 400) * 1.4]), 0, 1.4
    )
    rows = pa.table({"index": np.arange(len(score)), "el2n": score})
    table = ScoreTable(with_metadata(rows, {"scores": {"el2n": {"higher_is_harder": True}}}))
    figure, panels = plt.subplots(
        1, len(RULES), figsize=(9, 2.2), sharey=True, layout="constrained"
    )
    bins = np.linspace(0, 1.4, 36)
    for axes, how in zip(panels, RULES, strict=True):
        axes.hist(score, bins, color="0.85")
        axes.hist(score[select(table, keep=0.2, how=how)], bins, color="tab:blue")
        axes.set(title=how, yscale="log", xlabel="EL2N")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("rows")
    figure.savefig(OUT, metadata={"Date": None}, transparent=False)


if __name__ == "__main__":
    main()
