"""Where people and the network disagree: ranks by hand, pictures in their place."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import hardsight as hs
from hardsight.errors import DataError, OptionError
from hardsight.report import write_study
from hardsight.run.study import HARD_FOR_NETWORK, HARD_FOR_PEOPLE, human_study, study_human

CLASSES = ("cat", "dog", "owl")


def galleries(avh, frequency, **options):
    found = human_study(
        {"avh": avh}, frequency, labels=np.zeros(len(avh), int), higher_is_harder={"avh": True},
        **options,
    )  # fmt: skip
    return {gallery.title: gallery.examples for gallery in found.galleries}


def test_the_largest_distance_between_two_ranks_comes_first():
    # by people from easy to hard: rows 0, 1, 2, 3, 4; by the network: 4, 1, 2, 0, 3
    frequency = [1.0, 0.9, 0.6, 0.4, 0.1]
    avh = [0.09, 0.03, 0.05, 0.12, 0.01]
    found = galleries(avh, frequency, gallery=2)
    hard_for_people, hard_for_network = found[HARD_FOR_PEOPLE], found[HARD_FOR_NETWORK]
    assert [one.row for one in hard_for_people] == [4]  # nobody else is harder for people
    assert (hard_for_people[0].people, hard_for_people[0].network) == (1.0, 0.0)
    assert [one.row for one in hard_for_network] == [0, 3]
    assert (hard_for_network[0].people, hard_for_network[0].network) == (0.0, 0.75)
    assert (hard_for_network[0].frequency, hard_for_network[0].score) == (1.0, 0.09)


def test_ties_count_half_and_unknown_examples_are_left_out():
    found = galleries([0.1, 0.2, 0.3, 0.4, np.nan, 0.5], [1.0, 1.0, 0.5, np.nan, 0.0, 1.0])
    every = [one for examples in found.values() for one in examples]
    assert {one.row for one in every} <= {0, 1, 2, 5}
    by_row = {one.row: one for one in every}
    assert by_row[5].people == pytest.approx(1 / 3)  # rank 2 of 4 from three that tie
    assert by_row[5].network == 1.0


def test_none_are_shown_if_none_are_wanted_or_there_is_no_angle():
    frequency = np.linspace(0, 1, 8)
    assert (
        human_study({"avh": frequency[::-1]}, frequency, labels=np.zeros(8), gallery=0).galleries
        == ()
    )
    assert human_study({"el2n": frequency[::-1]}, frequency, labels=np.zeros(8)).galleries == ()
    with pytest.raises(OptionError, match="expected gallery of at least 0, got -1"):
        human_study({"avh": frequency}, frequency, labels=np.zeros(8), gallery=-1)


@pytest.fixture
def scored(tmp_path):
    """Pictures whose grey says which they are, with counts of people, and their table."""
    draw = np.random.default_rng(0)
    rows = []
    for row in range(30):
        data = io.BytesIO()
        Image.fromarray(np.full((8, 8), 8 * row, np.uint8)).save(data, format="PNG")
        counts = draw.multinomial(20, np.roll([0.7, 0.2, 0.1], row % 3))
        image = {"bytes": data.getvalue(), "path": f"{row:02d}.png"}
        rows.append({"image": image, "label": row % 3, "human_counts": counts.tolist()})
    file = tmp_path / "pictures.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    np.save(tmp_path / "counts.npy", np.array([row["human_counts"] for row in rows]))
    from hardsight.models import SmallCNN

    model = SmallCNN(num_classes=3, seed=1)
    hs.score(model, file, out=tmp_path / "scores", mean=(0.5,), std=(0.5,), device="cpu")
    return tmp_path


def grey(text):
    return int(np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))).mean())


def test_a_page_shows_the_pictures_of_the_file_that_people_answered(scored):
    out = scored / "study"
    study = study_human(scored / "scores", scored / "pictures.parquet", out=out, gallery=4)
    content = json.loads((out / "study.json").read_text())
    for gallery in study.galleries:
        pictures = content["figures"]["galleries"][gallery.title]
        assert 0 < len(gallery.examples) <= 4
        assert [grey(text) for text in pictures] == [8 * one.row for one in gallery.examples]
        assert all(one.id and one.prediction for one in gallery.examples)
    page = write_study(out).read_text()
    assert "## Hard for people, easy for the network" in page
    assert "(easy-for-people-hard-for-the-network.svg)" in page
    assert (out / "hard-for-people-easy-for-the-network.svg").stat().st_size > 1000
    again = study_human(
        scored / "scores", scored / "pictures.parquet", out=out, gallery=4, resume=True
    )
    assert again.galleries == study.galleries


def test_counts_alone_give_tables_and_named_data_its_pictures(scored):
    human = scored / "counts.npy"
    study_human(scored / "scores", human, out=scored / "plain")
    assert json.loads((scored / "plain" / "study.json").read_text())["figures"]["galleries"] == {}
    page = write_study(scored / "plain").read_text()
    assert "## Hard for people, easy for the network" in page
    assert "hard-for-people-easy-for-the-network.svg" not in page
    study = study_human(
        scored / "scores", human, out=scored / "named", pictures=scored / "pictures.parquet"
    )
    shown = json.loads((scored / "named" / "study.json").read_text())["figures"]["galleries"]
    first = study.galleries[0]
    assert [grey(text) for text in shown[first.title]] == [8 * one.row for one in first.examples]


def test_pictures_of_other_data_are_refused(scored):
    rows = pq.read_table(scored / "pictures.parquet").slice(0, 5)
    pq.write_table(rows, scored / "few.parquet")
    with pytest.raises(DataError, match="of the 30 examples of the table, got 5 examples from"):
        study_human(
            scored / "scores", scored / "counts.npy", out=scored / "study",
            pictures=scored / "few.parquet",
        )  # fmt: skip
