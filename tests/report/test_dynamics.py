"""Training dynamics on the page: what is counted, what is drawn, what is said where it is not."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from hardsight.errors import MissingDataError, TableError
from hardsight.report import write_report
from hardsight.report.table._dynamics import _bars, dynamics_of
from hardsight.report.table._map import data_map
from hardsight.report.table._view import view_of
from hardsight.table import RunFolder, read_table


def view_at(folder):
    return view_of(read_table(folder), folder=RunFolder(folder), title=None)


@pytest.fixture(scope="module")
def view(tracked):
    return view_at(tracked)


def test_planted_errors_come_first_among_the_suspects_of_the_page(tracked, view):
    assert set(view.gallery.suspects[:20].tolist()) == set(range(20))
    text = write_report(tracked).read_text("utf-8")
    strips = re.findall(r"<h3>([^<]+) <small>by ([^<]+)</small></h3>", text)
    assert strips[0] == ("Probably mislabelled", "Suspicion")
    assert ("Learned last", "First learned epoch") in strips


def test_bars_hold_every_example_once(view):
    learned, forgotten = dynamics_of(view).bars
    for bars in (learned, forgotten):
        counts = [int(bar.text.split(": ")[1].split()[0].replace(",", "")) for bar in bars.bars]
        assert sum(counts) == 300
    never = int((view.values("map_correctness") == 0).sum())
    assert never >= 15
    assert learned.bars[-1].text.startswith(f"never: {never} examples")
    assert forgotten.bars[-1].text.startswith(f"never: {never} examples")
    in_first = int((view.values("first_learned_epoch") == 1).sum())
    assert learned.bars[0].text.startswith(f"1: {in_first} examples")


def test_many_epochs_share_bars_and_keep_their_sum():
    counts = np.arange(100)
    bars = _bars("x", "X", "", counts, first=1, never=7)
    assert len(bars.bars) == 21
    assert bars.bars[0].text.startswith("1–5: 10 examples")
    assert sum(int(b.text.split(": ")[1].split()[0].replace(",", "")) for b in bars.bars) == (
        counts.sum() + 7
    )


def test_the_data_map_is_coloured_by_the_share_of_wrong_epochs(view):
    drawn = data_map(view)
    assert (drawn.x_name, drawn.y_name) == ("map_variability", "map_confidence")
    assert sum(int(cell.text.split()[0]) for cell in drawn.cells) == 300
    lowest = max(drawn.cells, key=lambda cell: cell.y)  # the page's y axis points down
    assert lowest.wrong == 4
    assert "right in 0%" in lowest.text
    assert {cell.wrong for cell in drawn.cells if "right in 100%" in cell.text} <= {0}


def test_curves_are_those_of_the_epoch_files(tracked, view):
    suspects = dynamics_of(view).groups[0]
    assert suspects.title == "Probably mislabelled"
    curve = suspects.curves[0]
    stored = [
        pq.read_table(tracked / "dynamics" / f"epoch-{epoch:05d}.parquet").to_pandas()
        for epoch in range(1, 9)
    ]
    heights = [4 + 56 * (1 - rows["confidence"][curve.row]) for rows in stored]
    drawn = [float(point.split()[1]) for point in curve.line[1:].split("L")]
    np.testing.assert_allclose(drawn, heights, atol=0.06)
    right = [bool(rows["label"][curve.row] == rows["prediction"][curve.row]) for rows in stored]
    assert [dot[2] for dot in curve.dots] == right


@pytest.mark.parametrize("damage", ["absent", "short", "of another dataset"])
def test_without_its_epochs_the_page_says_what_the_curves_need(make, tmp_path, damage):
    folder = make.tracked(tmp_path / "run", histories=damage != "absent")
    if damage == "short":
        (folder / "dynamics" / "epoch-00008.parquet").unlink()
    if damage == "of another dataset":
        file = folder / "dynamics" / "epoch-00003.parquet"
        pq.write_table(pq.read_table(file).slice(0, 7), file)
    found = dynamics_of(view_at(folder))
    assert found.groups == []
    assert found.map is not None
    text = write_report(folder).read_text("utf-8")
    assert 'give the tracker <code>folder="RUN/dynamics"</code>' in text


def test_a_damaged_epoch_is_named_and_not_taken_for_a_missing_one(make, tmp_path):
    folder = make.tracked(tmp_path / "run", histories=True)
    (folder / "dynamics" / "epoch-00003.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(TableError, match=r"epoch-00003.parquet cannot be read .* train again"):
        dynamics_of(view_at(folder))


def test_a_table_without_dynamics_has_no_such_part(run):
    assert dynamics_of(view_at(run)) is None
    text = write_report(run).read_text("utf-8")
    assert 'id="dynamics"' not in text
    assert "Probably mislabelled" not in text


def test_the_summary_counts_labels_that_lost_to_a_rival(tracked, view):
    suspect = int((view.values("suspicion") > 0.5).sum())
    text = write_report(tracked).read_text("utf-8")
    fact = text.split("<dt>Suspect labels</dt>")[1].split("</dd>")[0]
    assert f">{suspect}<" in fact


def test_an_example_that_was_never_seen_does_not_break_the_page(make, tmp_path):
    folder = make.tracked(tmp_path / "run")
    table = read_table(folder)
    frame = table.to_pandas()
    for name in ("suspicion", "map_confidence", "map_variability", "map_correctness",
                 "first_learned_epoch", "forgetting_events", "aum"):  # fmt: skip
        frame.loc[250:, name] = np.nan
    rows = table.to_arrow()
    for name in frame.columns[-7:]:
        rows = rows.set_column(rows.column_names.index(name), name, [frame[name].to_numpy()])
    RunFolder(folder).write_side_file("table.parquet", rows)
    found = dynamics_of(view_at(folder))
    assert sum(int(cell.text.split()[0]) for cell in found.map.cells) == 250


def test_a_training_run_without_dynamics_says_the_next_step(tmp_path):
    (tmp_path / "recipe.json").write_text('{"config": {}, "data_fingerprint": ""}')
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(MissingDataError, match=r"training run without dynamics; .*track=true"):
        write_report(tmp_path)
