from __future__ import annotations

import re
from pathlib import Path

import pytest

import hardsight
from hardsight.report.figures import legend, panels

PACKAGE = Path(hardsight.__file__).parent


def drawn(labels, *, columns=2):
    figure, axes = panels(1, columns)
    for axis in axes:
        for place, label in enumerate(labels):
            axis.plot([0, 1], [place, place], label=label)
    return figure, axes


def boxes(figure, axes):
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    (found,) = figure.legends
    panels = [axis.get_tightbbox(renderer) for axis in axes]
    return found.get_window_extent(renderer), panels, figure.bbox


@pytest.mark.parametrize("count", [2, 8])
def test_a_legend_covers_no_panel_and_stays_in_the_picture(count):
    figure, axes = drawn([f"a method with a long name {place}" for place in range(count)])
    legend(figure)
    shown, others, whole = boxes(figure, axes)
    assert all(shown.y1 <= other.y0 + 1 for other in others)
    assert whole.x0 <= shown.x0
    assert shown.x1 <= whole.x1


def test_a_legend_names_every_line_once_also_of_twin_axes():
    figure, axes = drawn(["one", "two"])
    axes[0].twinx().plot([0, 1], [1, 0], label="three")
    legend(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two", "three"]


def test_a_legend_of_some_axes_leaves_the_others_out():
    figure, axes = drawn(["one"])
    axes[1].plot([0, 1], [1, 0], label="two")
    legend(figure, axes[:1], title="which")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one"]
    assert figure.legends[0].get_title().get_text() == "which"


def test_nothing_drawn_gives_no_legend():
    # all runs of an experiment may be lost
    figure, _ = drawn([])
    legend(figure)
    assert not figure.legends


def own_legends(sources):
    """Lines of ``{name: source}`` that put a legend where it may cover a curve."""
    return [
        f"{name}: {line.strip()}"
        for name, source in sources.items()
        for line in source.splitlines()
        if re.search(r"\.legend\(", line)
    ]


def test_no_figure_has_a_legend_over_its_curves():
    files = [file for file in sorted(PACKAGE.rglob("*.py")) if file.name != "_plots.py"]
    assert own_legends({file.name: file.read_text() for file in files}) == []


def test_a_legend_inside_a_panel_is_found():
    assert own_legends({"a.py": "legend(figure)\naxis.legend(loc=1)"}) == [
        "a.py: axis.legend(loc=1)"
    ]
