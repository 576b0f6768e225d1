"""Training dynamics on the page: what is counted, what is drawn, what is said where it is not."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from hardsight.errors import MissingDataError, TableError
from hardsight.gallery import gallery_rows
from hardsight.report import write_report
from hardsight.table import RunFolder, read_table


@pytest.fixture(scope="module")
def page(make, tracked):
    return make.page(write_report(tracked))


@pytest.fixture(scope="module")
def values(tracked):
    """Columns of the tracked run, by name."""
    return read_table(tracked).column


def bars(figure):
    """What the bars of a figure say, in order, and how many examples each holds."""
    texts = re.findall(r"<title>(.*?)</title>", figure)
    return texts, [int(text.split(": ")[1].split()[0].replace(",", "")) for text in texts]


def test_planted_errors_come_first_among_the_suspects_of_the_page(tracked, page):
    assert set(gallery_rows(read_table(tracked)).suspects[:20].tolist()) == set(range(20))
    cards = page.text.split('data-strip="suspects"')[1].split("</ol>")[0]
    shown = [int(row) for row in re.findall(r'class="open" data-row="(\d+)"', cards)]
    assert len(shown) >= 10
    assert set(shown[:20]) <= set(range(20))
    strips = re.findall(r"<h3>([^<]+) <small>by ([^<]+)</small></h3>", page.text)
    assert strips[0] == ("Probably mislabelled", "Suspicion")
    assert ("Learned last", "First learned epoch") in strips


def test_bars_hold_every_example_once(page, values):
    learned, forgotten = map(bars, list(page.figures("dynamics").values()))
    for _, counts in (learned, forgotten):
        assert sum(counts) == 300
    never = int((values("map_correctness") == 0).sum())
    assert never >= 15
    assert learned[0][-1].startswith(f"never: {never} examples")
    assert forgotten[0][-1].startswith(f"never: {never} examples")
    in_first = int((values("first_learned_epoch") == 1).sum())
    assert learned[0][0].startswith(f"1: {in_first} examples")


def test_many_epochs_share_bars_and_keep_their_sum(make, tmp_path):
    # as many examples as its number less one are learned in every epoch, and seven never
    learned = np.r_[np.repeat(np.arange(1, 101), np.arange(100)), [101] * 7]
    columns = {**make.rows(len(learned)), "first_learned_epoch": learned.astype(np.float32)}
    about = make.metadata(columns, tracking={"epochs": 100, "num_examples": len(learned)})
    about["scores"]["first_learned_epoch"] = {"higher_is_harder": True}
    page = make.page(write_report(make.table(columns, about), out=tmp_path / "page.html"))
    (figure,) = page.figures("dynamics").values()
    texts, counts = bars(figure)
    assert len(texts) == 21
    assert texts[0].startswith("1–5: 10 examples")
    assert sum(counts) == 4950 + 7


def test_the_data_map_is_coloured_by_the_share_of_wrong_epochs(page):
    cells = page.cells("dynamics")
    titles = re.findall(r'class="axis-title[^"]*">(.*?)</p>', page.part("dynamics"))
    assert titles == ["↑ Confidence over epochs", "Variability over epochs →"]
    assert sum(int(text.split()[0]) for *_, text in cells) == 300
    _, _, wrong, text = max(cells, key=lambda cell: cell[1])  # the page's y axis points down
    assert wrong == 4
    assert "right in 0%" in text
    assert {wrong for _, _, wrong, text in cells if "right in 100%" in text} <= {0}


def test_curves_are_those_of_the_epoch_files(tracked, page):
    title, suspects = page.part("dynamics").split("<h4>")[1].split("</h4>")
    assert title.startswith("Probably mislabelled")
    curve = suspects.split("<li>")[1].split("</li>")[0]
    row = int(re.search(r'data-copy="(\d+)"', curve)[1])
    stored = [
        pq.read_table(tracked / "dynamics" / f"epoch-{epoch:05d}.parquet").to_pandas()
        for epoch in range(1, 9)
    ]
    heights = [4 + 56 * (1 - rows["confidence"][row]) for rows in stored]
    line = re.search(r'class="line" d="M(.*?)"', curve)[1]
    drawn = [float(point.split()[1]) for point in line.split("L")]
    np.testing.assert_allclose(drawn, heights, atol=0.06)
    right = ["right" if rows["label"][row] == rows["prediction"][row] else "wrong"
             for rows in stored]  # fmt: skip
    assert re.findall(r'<circle class="(\w+)"', curve) == right


@pytest.mark.parametrize("damage", ["absent", "short", "of another dataset"])
def test_without_its_epochs_the_page_says_what_the_curves_need(make, tmp_path, damage):
    folder = make.tracked(tmp_path / "run", histories=damage != "absent")
    if damage == "short":
        (folder / "dynamics" / "epoch-00008.parquet").unlink()
    if damage == "of another dataset":
        file = folder / "dynamics" / "epoch-00003.parquet"
        pq.write_table(pq.read_table(file).slice(0, 7), file)
    page = make.page(write_report(folder))
    assert 'class="curves"' not in page.text
    assert page.cells("dynamics")
    assert 'Pass <code>folder="RUN/dynamics"</code> to the tracker' in page.text


def test_a_damaged_epoch_is_named_and_not_taken_for_a_missing_one(make, tmp_path):
    folder = make.tracked(tmp_path / "run", histories=True)
    (folder / "dynamics" / "epoch-00003.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(TableError, match=r"epoch-00003.parquet cannot be read .* train again"):
        write_report(folder)


def test_a_table_without_dynamics_has_no_such_part(run):
    text = write_report(run).read_text("utf-8")
    assert 'id="dynamics"' not in text
    assert "Probably mislabelled" not in text


def test_the_summary_counts_labels_that_lost_to_a_rival(page, values):
    suspect = int((values("suspicion") > 0.5).sum())
    assert page.fact("Suspect labels")[0] == str(suspect)


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
    page = make.page(write_report(folder, overwrite=True))
    assert sum(int(text.split()[0]) for *_, text in page.cells("dynamics")) == 250


def test_a_training_run_without_dynamics_says_the_next_step(tmp_path):
    (tmp_path / "recipe.json").write_text('{"config": {}, "data_fingerprint": ""}')
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(MissingDataError, match=r"training run without dynamics; .*track=true"):
        write_report(tmp_path)
