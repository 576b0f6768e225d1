"""Figures of a study: what they draw is not covered by what names it."""

from __future__ import annotations

import numpy as np
import pytest

from hardsight.report.study import _figures

AROUND = {"value": 0.5, "low": 0.4, "high": 0.6}
CURVES = {
    part: {name: [0.2, 0.5, 0.9] for name in ("norm", "avh", "confidence", "correct")}
    for part in ("means", "stds")
}
CONTENT = {
    "human": {
        "figures": {
            "histograms": {
                "avh": {"counts": np.eye(3).tolist(), "x_edges": [0, 1, 2, 3],
                        "y_edges": [0, 1, 2, 3]},
                "margin": None,
            }
        },
        "result": {
            "scores": [
                {"name": name, "correlations": {"spearman": AROUND, "pearson": AROUND}}
                for name in ("avh", "entropy")
            ]
            + [{"name": "margin", "correlations": {}}]
        },
    },
    "degradation": {
        "titles": {"avh": "Angle share"},
        "result": [
            {
                "kind": kind, "levels": [0.0, 0.5], "accuracy": [AROUND, AROUND],
                "scores": [{"name": "avh", "means": [0.2, 0.4], "stds": [0.1, 0.1]}],
            }
            for kind in ("noise", "contrast")
        ]
    },
    "dynamics": {
        "titles": {"norm": "Length", "confidence": "P(label)", "correct": "Accuracy"},
        "result": {
            "runs": [
                {
                    "name": f"a run with a long name {place}", "epochs": 3, "overall": CURVES,
                    "groups": [{"group": f"{n}0 %", "n": 1000 * n, **CURVES} for n in range(5)],
                }
                for place in range(2)
            ]
        }
    },
}  # fmt: skip
NAMES = {
    "human-histograms.svg": [],
    "human-scores.svg": ["Spearman", "Pearson"],
    "degradation-noise.svg": ["mean over pictures", "± standard deviation"],
    "degradation-contrast.svg": ["mean over pictures", "± standard deviation"],
    "dynamics.svg": ["a run with a long name 0", "a run with a long name 1"],
    "dynamics-groups-1.svg": [f"{n}0 %, n {1000 * n:,}" for n in range(5)],
    "dynamics-groups-2.svg": [f"{n}0 %, n {1000 * n:,}" for n in range(5)],
}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every figure of every kind of study, by the name of its file."""
    found, save, folder = {}, _figures.save, tmp_path_factory.mktemp("figures")

    def keep(figure, file):
        found[file.name] = figure
        return save(figure, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_figures, "save", keep)
        for kind, content in CONTENT.items():
            made = getattr(_figures, f"{kind}_figures")(content, folder)
            assert all((folder / name).stat().st_size for name, _ in made)
    return found


def test_every_line_is_named_once_below_the_panels(drawn):
    said = {
        file: [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        for file, figure in drawn.items()
    }
    assert said == NAMES


def test_panels_have_the_titles_that_the_study_states(drawn):
    said = {file: [axis.get_title() for axis in figure.axes] for file, figure in drawn.items()}
    assert said["degradation-noise.svg"] == ["accuracy (95 % interval)", "Angle share"]
    assert said["dynamics.svg"] == ["Length", "AVH", "P(label)", "Accuracy"]
    # a study of an older version states none, and its columns are named in words
    assert said["human-histograms.svg"][0] == "AVH: Spearman 0.500"


def test_no_legend_covers_a_panel(drawn):
    for file, figure in drawn.items():
        assert not any(axis.get_legend() for axis in figure.axes), file
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        panels = [axis.get_tightbbox(renderer) for axis in figure.axes]
        for legend in figure.legends:
            shown = legend.get_window_extent(renderer)
            assert all(shown.y1 <= panel.y0 + 1 for panel in panels), file
            assert figure.bbox.x0 <= shown.x0, file
            assert shown.x1 <= figure.bbox.x1, file


def test_drawing_leaves_the_users_own_matplotlib_alone(drawn):
    from matplotlib import pyplot as plt

    assert plt.get_fignums() == []
