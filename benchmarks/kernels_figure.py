"""Time and memory of the fused loss and its peers, drawn from the rows of ``benchmarks.kernels``.

python -m benchmarks.kernels_figure benchmarks/results/kernels.json docs/assets/kernels.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardsight.report.figures import COLOURS, legend, panels, save

# method: label; the order is that of the colours
METHODS = {
    "hardsight": "hardsight",
    "compile": "torch.compile",
    "eager": "eager PyTorch",
    "cut-cross-entropy (plain CE)": "cut-cross-entropy (plain CE)",
    "Liger (plain CE)": "Liger (plain CE)",
    "pytorch-metric-learning ArcFace": "pytorch-metric-learning ArcFace",
}


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="kernels.json of a run")
    parser.add_argument("out", type=Path, help="SVG file to write")
    options = parser.parse_args(args)
    rows = json.loads(options.rows.read_text(encoding="utf-8"))["rows"]
    draw([row for row in rows if row["work"] == "AVH loss"], options.out)


def draw(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """One panel for each number of classes: extra memory against time in units of 3 GEMMs."""
    counts = sorted({row["classes"] for row in rows})
    figure, axes = panels(1, len(counts), width=3.2, height=3.0)
    for axis, classes in zip(axes, counts, strict=True):
        here = {row["method"]: row for row in rows if row["classes"] == classes}
        base = here["3 GEMMs"]
        axis.axhline(1.0, color="#868e96", linewidth=1.0, linestyle=":")
        axis.axvline(base["extra_mib"], color="#868e96", linewidth=1.0, linestyle=":")
        for (method, label), colour in zip(METHODS.items(), COLOURS, strict=False):
            row = here.get(method)
            if row is None or row["median_ms"] is None:
                continue
            axis.scatter(row["extra_mib"], row["ratio"], color=colour, s=36, label=label, zorder=3)
            if row["graph_ratio"] is not None:  # without the time Python takes for its launches
                ends = [row["extra_mib"]] * 2, [row["graph_ratio"], row["ratio"]]
                axis.plot(*ends, color=colour, linewidth=1.2)
                axis.scatter(row["extra_mib"], row["graph_ratio"], s=26, zorder=3,
                             facecolor="white", edgecolor=colour)  # fmt: skip
        axis.set(
            title=f"{classes:,} classes", xscale="log", yscale="log", xlabel="extra memory, MiB",
            ylabel="time / 3 GEMMs" if axis is axes[0] else "",
        )  # fmt: skip
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter("{x:g}")
    legend(figure, axes)
    save(figure, out)


if __name__ == "__main__":
    main()
