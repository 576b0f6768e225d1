import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hardsight.report.figures._chart import axis_for
from hardsight.report.table._classes import class_rows, confusions_of
from hardsight.report.table._galleries import picture
from hardsight.report.table._histograms import histograms
from hardsight.report.table._map import HEX, _hexagons, angle_norm_map
from hardsight.report.table._summary import summary_of
from hardsight.report.table._view import view_of

finite_numbers = st.floats(-1e300, 1e300, allow_nan=False)


@pytest.fixture
def view(make):
    columns = make.rows(500, 5)
    return view_of(make.table(columns, make.metadata(columns, 5)), folder=None, title=None)


def view_from(make, **columns):
    about = {"scores": {"avh": {"higher_is_harder": True}}, "classes": ["a", "b", "c"]}
    columns = {"index": np.arange(len(columns["label"])), **columns}
    return view_of(make.table(columns, about), folder=None, title=None)


def test_classes_are_counted_by_hand(make):
    view = view_from(
        make,
        label=[0, 0, 0, 1, 1, 2],
        prediction=[0, 1, 1, 0, 1, 2],
        avh=[0.1, 0.4, 0.7, 0.9, 0.1, 0.2],
    )
    confusions = confusions_of(view)
    assert [(c.label_name, c.prediction_name, c.count) for c in confusions] == [
        ("a", "b", 2),
        ("b", "a", 1),
    ]
    rows = class_rows(view, confusions)
    assert [row.name for row in rows] == ["b", "a", "c"]  # means 0.5, 0.4, 0.2
    assert [row.mean for row in rows] == pytest.approx([0.5, 0.4, 0.2])
    assert [row.accuracy for row in rows] == pytest.approx([1 / 2, 1 / 3, 1.0])
    assert [(one.prediction_name, one.count) for one in rows[1].taken_for] == [("b", 2)]
    assert [(one.label_name, one.count) for one in rows[1].taken_from] == [("b", 1)]
    assert summary_of(view, rows, confusions).facts[3].value == "b"


@pytest.mark.parametrize(
    ("score", "said"), [("avh", "mean AVH 0.9,"), ("mean_avh", "Mean AVH 0.9,")]
)
def test_the_hardest_class_is_said_with_one_mean(make, score, said):
    facts = {"higher_is_harder": True, "title": "AVH" if score == "avh" else "Mean AVH"}
    about = {"scores": {score: facts}, "classes": ["a", "b"]}
    columns = {"index": [0, 1], "label": [0, 1], "prediction": [0, 1], score: [0.1, 0.9]}
    view = view_of(make.table(columns, about), folder=None, title=None)
    fact = summary_of(view, class_rows(view, []), []).facts[3]
    assert fact.value == "b"
    assert fact.detail.startswith(said)


def test_histogram_bars_hold_every_example_once(view):
    for one in histograms(view):
        numbers = [bar.text.split(": ", 1)[1].replace(",", "").split() for bar in one.bins]
        right = sum(int(words[0]) for words in numbers)
        wrong = sum(int(words[5]) for words in numbers)
        assert (right, wrong) == (view.right.sum(), view.wrong.sum())


def test_quartiles_match_numpy(make):
    view = view_from(make, label=[0] * 5, prediction=[0] * 5, avh=[1.0, 2.0, 3.0, 4.0, 10.0])
    right, wrong = histograms(view)[0].groups
    assert right.quartiles == ("2.000", "3.000", "4.000")
    assert wrong.places is None


def test_chance_level_of_avh_is_one_over_the_number_of_classes(make):
    view = view_from(make, label=[0, 1, 2], prediction=[0, 1, 2], avh=[0.0, 0.5, 1.0])
    chance = histograms(view)[0].chance
    assert chance.text == "1/3"
    assert chance.at == pytest.approx(6 + 468 / 3, abs=0.01)


def test_cells_of_the_map_hold_every_example_once(view):
    drawn = angle_norm_map(view)
    counts = [cell.text.replace(",", "").split() for cell in drawn.cells]
    assert sum(int(words[0]) for words in counts) == view.right.sum()
    assert sum(int(words[2]) for words in counts) == view.wrong.sum()
    assert {point.row for point in drawn.points} == set(view.gallery.rows().tolist())


def test_a_cell_with_only_wrong_examples_has_the_wrong_colour(make):
    columns = make.rows(40, 3)
    columns["prediction"] = (columns["label"] + 1) % 3
    view = view_of(make.table(columns, make.metadata(columns, 3)), folder=None, title=None)
    assert {cell.wrong for cell in angle_norm_map(view).cells} == {4}


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 800), st.floats(0, 500)), min_size=1, max_size=30))
def test_every_point_lies_within_its_hexagon(points):
    x, y = np.array(points).T
    centre_x, centre_y, codes = _hexagons(x, y)
    assert np.hypot(x - centre_x, y - centre_y).max() <= HEX * (1 + 1e-9)
    centres = {code: (a, b) for code, a, b in zip(codes, centre_x, centre_y, strict=True)}
    for code, a, b in zip(codes, centre_x, centre_y, strict=True):
        assert centres[code] == pytest.approx((a, b))


@settings(derandomize=True, deadline=None)
@given(st.lists(finite_numbers, min_size=0, max_size=50))
def test_an_axis_keeps_values_and_ticks_inside(values):
    axis = axis_for(np.array(values, np.float64), 10.0, 110.0)
    assert axis.high > axis.low
    assert np.all(
        (axis.place(np.array(values)) >= 9.999) & (axis.place(np.array(values)) <= 110.001)
    )
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8
    assert all(9.99 <= tick.at <= 110.01 for tick in ticks)


def test_a_far_value_is_clipped_and_counted():
    values = np.append(np.linspace(0, 1, 5000), 1e9)
    axis = axis_for(values, 0.0, 1.0)
    assert axis.high < 2
    assert axis.clipped > 0


def test_pictures_keep_their_type_and_say_whether_they_are_tiny(make):
    small = picture(make.png(0, 0, side=8))
    assert small.uri.startswith("data:image/png;base64,")
    assert small.tiny
    sink = io.BytesIO()
    Image.new("RGB", (96, 96)).save(sink, "JPEG")
    large = picture(sink.getvalue())
    assert large.uri.startswith("data:image/jpeg;base64,")
    assert not large.tiny


@pytest.mark.parametrize("encoded", [b"", b"<svg onload=alert(1)>", b"\x89PNG\r\n\x1a\nbroken"])
def test_what_is_no_picture_becomes_a_placeholder(encoded):
    assert picture(encoded) is None
