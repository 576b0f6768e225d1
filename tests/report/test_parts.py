import io
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hardsight.gallery import gallery_rows
from hardsight.report import write_report
from hardsight.report.figures import axis_for
from hardsight.report.table._map import HEX, _hexagons
from hardsight.table import THUMBNAIL_SCHEMA, THUMBNAILS, RunFolder

finite_numbers = st.floats(-1e300, 1e300, allow_nan=False)


@pytest.fixture(scope="module")
def table(make):
    columns = make.rows(500, 5)
    return make.table(columns, make.metadata(columns, 5))


@pytest.fixture(scope="module")
def page(make, table, tmp_path_factory):
    return make.page(write_report(table, out=tmp_path_factory.mktemp("parts") / "page.html"))


@pytest.fixture
def page_of(make, tmp_path):
    """Write the page of a few rows, and read it."""

    def write(score="avh", facts=None, **columns):
        facts = {"higher_is_harder": True, **(facts or {})}
        about = {"scores": {score: facts}, "classes": ["a", "b", "c"]}
        columns = {"index": np.arange(len(columns["label"])), **columns}
        return make.page(write_report(make.table(columns, about), out=tmp_path / "page.html"))

    return write


def right_and_wrong(table):
    right = table.column("label") == table.column("prediction")
    return int(right.sum()), int((~right).sum())


def test_classes_are_counted_by_hand(page_of):
    page = page_of(
        label=[0, 0, 0, 1, 1, 2],
        prediction=[0, 1, 1, 0, 1, 2],
        avh=[0.1, 0.4, 0.7, 0.9, 0.1, 0.2],
    )
    pair = r"<li><bdi>(.*?)</bdi> .*?<bdi>(.*?)</bdi> <b>(\d+)</b></li>"
    assert re.findall(pair, page.part("summary")) == [("a", "b", "2"), ("b", "a", "1")]
    rows = page.part("classes").split("<tbody>")[1].split("<tr>")[1:]
    shown = [re.findall(r'data-v="(.*?)"', row) for row in rows]
    assert [row[0] for row in shown] == ["b", "a", "c"]  # means 0.5, 0.4, 0.2
    assert [float(row[2]) for row in shown] == pytest.approx([1 / 2, 1 / 3, 1.0])
    assert [float(row[3]) for row in shown] == pytest.approx([0.5, 0.4, 0.2])
    blurs = re.findall(r'<td class="blur" data-v="\d+">(.*?)</td>', rows[1])
    counted = [re.findall(r"<bdi>(.*?)</bdi> <b>(\d+)</b>", cell) for cell in blurs]
    assert counted == [[("b", "2")], [("b", "1")]]  # taken for, mistaken for it
    assert page.fact("Hardest class")[0] == "b"


@pytest.mark.parametrize(
    ("score", "said"), [("avh", "mean AVH 0.9,"), ("mean_avh", "Mean AVH 0.9,")]
)
def test_the_hardest_class_is_said_with_one_mean(page_of, score, said):
    facts = {"title": "AVH" if score == "avh" else "Mean AVH"}
    page = page_of(score, facts, label=[0, 1], prediction=[0, 1], **{score: [0.1, 0.9]})
    value, detail = page.fact("Hardest class")
    assert value == "b"
    assert detail.startswith(said)


def test_histogram_bars_hold_every_example_once(page, table):
    figures = page.figures("distributions")
    assert len(figures) == len(table.scores)
    for figure in figures.values():
        bars = re.findall(r": ([\d,]+) right \(.*? of them\), ([\d,]+) wrong", figure)
        sums = [sum(int(bar[side].replace(",", "")) for bar in bars) for side in (0, 1)]
        assert tuple(sums) == right_and_wrong(table)


def test_quartiles_match_numpy(page_of):
    page = page_of(label=[0] * 5, prediction=[0] * 5, avh=[1.0, 2.0, 3.0, 4.0, 10.0])
    (figure,) = page.figures("distributions").values()
    right = figure.split('<tr class="right">')[1].split("</tr>")[0]
    assert re.findall(r"<td>(.*?)</td>", right) == ["5", "2.000", "3.000", "4.000"]
    assert 'class="median right"' in figure
    assert 'class="median wrong"' not in figure  # there are none whose median could be drawn


def test_chance_level_of_avh_is_one_over_the_number_of_classes(page_of):
    page = page_of(label=[0, 1, 2], prediction=[0, 1, 2], avh=[0.0, 0.5, 1.0])
    chance = r'<g class="chance"><path d="M([\d.]+) .*?"/><text .*?>(.*?): no opinion</text>'
    ((at, text),) = re.findall(chance, page.part("distributions"))
    assert text == "1/3"
    assert float(at) == pytest.approx(6 + 468 / 3, abs=0.01)


def test_cells_of_the_map_hold_every_example_once(page, table):
    counts = [text.replace(",", "").split() for *_, text in page.cells("map")]
    sums = sum(int(words[0]) for words in counts), sum(int(words[2]) for words in counts)
    assert sums == right_and_wrong(table)
    points = re.findall(r'class="pt[^"]*" data-row="(\d+)"', page.part("map"))
    assert set(map(int, points)) == set(gallery_rows(table).rows().tolist())


def test_a_cell_with_only_wrong_examples_has_the_wrong_colour(make, tmp_path):
    columns = make.rows(40, 3)
    columns["prediction"] = (columns["label"] + 1) % 3
    table = make.table(columns, make.metadata(columns, 3))
    page = make.page(write_report(table, out=tmp_path / "page.html"))
    assert {wrong for _, _, wrong, _ in page.cells("map")} == {4}


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


def jpeg():
    sink = io.BytesIO()
    Image.new("RGB", (96, 96)).save(sink, "JPEG")
    return sink.getvalue()


@pytest.fixture
def page_with_pictures(make, tmp_path):
    """Write the page of two examples with pictures as they are stored, and read it."""

    def write(*encoded):
        columns = make.rows(len(encoded), 2)
        make.save(tmp_path / "run", make.table(columns, make.metadata(columns, 2)), pictures=False)
        stored = pa.table([list(range(len(encoded))), encoded], schema=THUMBNAIL_SCHEMA)
        RunFolder(tmp_path / "run").write_side_file(THUMBNAILS, stored)
        return make.page(write_report(tmp_path / "run")).part("examples")

    return write


def test_pictures_keep_their_type_and_say_whether_they_are_tiny(page_with_pictures, make):
    shown = page_with_pictures(make.png(0, 0, side=8), jpeg())
    images = {}
    for image in re.findall(r"<img .*?>", shown):
        kind = re.search(r'src="data:image/(\w+);base64,', image)
        if kind:
            images[kind[1]] = 'class="tiny"' in image
    assert images == {"png": True, "jpeg": False}


@pytest.mark.parametrize("encoded", [b"", b"<svg onload=alert(1)>", b"\x89PNG\r\n\x1a\nbroken"])
def test_what_is_no_picture_becomes_a_placeholder(page_with_pictures, make, encoded):
    shown = page_with_pictures(make.png(0, 0), encoded)
    whole, broken = (shown.split(f'data-row="{row}"')[1].split("</button>")[0] for row in (0, 1))
    assert "<img" in whole
    assert "<img" not in broken
    assert '<span class="blank">' in broken
