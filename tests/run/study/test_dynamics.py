"""Curves along training, and the four observations."""

from __future__ import annotations

import dataclasses
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

import hardsight as hs
from hardsight.errors import (
    MissingDataError,
    OptionError,
    ShapeError,
    StatisticError,
    TableError,
)
from hardsight.run.study import (
    Histories,
    concordance,
    observations,
    read_histories,
    run_dynamics,
    settled_epoch,
)

PEOPLE = np.linspace(0.05, 0.95, 200)


def histories(name="net", *, accuracy=0.9, avh=0.05, rising=True, epochs=8):
    """AVH falls in the first two epochs and accuracy goes on rising; people follow AVH."""
    draw = np.random.default_rng(0)
    at = np.arange(epochs)[:, None]
    noise = draw.normal(size=(epochs, 200))
    return Histories(
        name,
        {
            "norm": (10 + at if rising else 30 - at) + 0.1 * noise,
            "avh": avh + 0.05 * np.exp(-3.0 * at) - 0.02 * PEOPLE + 0.001 * noise,
            "confidence": np.clip(0.1 * at + 0.1 * PEOPLE, 0, 1),
            "loss": 2 - 0.2 * at + 0 * noise,
            "correct": (np.linspace(0, 1, 200) < accuracy * (at + 1) / epochs).astype(float),
        },
        np.arange(200),
    )


def found(*runs):
    made = [run_dynamics(one, frequency=PEOPLE) for one in runs]
    return {one.name: one for one in observations(made)}


def test_observations_hold_where_the_data_was_made_so():
    seen = found(histories("a", accuracy=0.9, avh=0.05), histories("b", accuracy=0.7, avh=0.07))
    assert {name: one.holds for name, one in seen.items()} == {
        "O1": True, "O2": True, "O3": True, "O4": True,
    }  # fmt: skip
    first, last, rank = re.match(
        r"a: ‖x‖ (\S+) → (\S+), Spearman with the epoch (\S+)", seen["O1"].seen
    ).groups()
    assert [float(first), float(last)] == pytest.approx([10, 17], rel=0.01)
    assert rank == "+1.00"
    assert "a: settled from epoch 2 (AVH), 8 (accuracy), 8 (loss)" in seen["O2"].seen
    assert seen["O4"].seen.startswith("1 of 1 pairs of runs agree")


def test_observations_flip_when_the_data_does():
    falling = histories("a", rising=False)
    late = dict(falling.measures)
    late["avh"] = falling.measures["avh"][:1] - 0.005 * np.arange(8)[:, None] * (1 + PEOPLE)
    late["loss"], late["correct"] = late["loss"] * 0 + 1, np.ones((8, 200))
    flipped = dataclasses.replace(falling, measures=late)
    seen = {one.name: one for one in observations([run_dynamics(flipped, frequency=1 - PEOPLE)])}
    assert seen["O1"].holds is False
    assert seen["O2"].holds is False
    assert seen["O3"].holds is False
    assert seen["O4"].holds is None  # one run has nothing to be compared with
    worse = found(histories("a", accuracy=0.9, avh=0.07), histories("b", accuracy=0.7, avh=0.05))
    assert worse["O4"].holds is False


def test_too_few_epochs_decide_nothing():
    seen = found(histories("a", epochs=3))
    assert seen["O1"].holds is None
    assert seen["O2"].holds is None


def test_without_people_the_third_observation_is_not_tested():
    seen = observations([run_dynamics(histories())])
    assert seen[2].holds is None
    assert "no human frequencies were given" in seen[2].seen
    with pytest.raises(OptionError, match="at least one run"):
        observations([])


def test_groups_are_the_half_open_bins_of_human_frequency():
    run = run_dynamics(histories(), frequency=PEOPLE)
    counts, _ = np.histogram(PEOPLE, bins=[0, 0.2, 0.4, 0.6, 0.8, 1])
    assert [group.n for group in run.groups] == counts.tolist()
    expected = histories().measures["avh"][:, PEOPLE < 0.2].mean(axis=1)
    np.testing.assert_allclose(run.groups[0].means["avh"], expected)
    assert run.groups[4].group == "people [0.8, 1]"
    unknown = np.where(PEOPLE < 0.5, np.nan, PEOPLE)
    assert sum(g.n for g in run_dynamics(histories(), frequency=unknown).groups) == 100


def test_a_frequency_of_another_length_is_refused():
    with pytest.raises(ShapeError, match=r"expected 200 human frequencies, got \[3\]"):
        run_dynamics(histories(), frequency=[0.1, 0.2, 0.3])
    with pytest.raises(ShapeError, match="in the group 'x'"):
        run_dynamics(histories(), groups={"x": [True]})


@pytest.mark.parametrize(
    ("curve", "epoch"),
    [([5.0, 5.0, 5.0], 1), ([0.0, 1.0, 1.0], 2), ([1.0, 0.0, 1.0], 3), ([0.0, 0.91, 1.0], 2)],
)
def test_a_curve_has_settled_once_a_tenth_of_its_change_is_left(curve, epoch):
    assert settled_epoch(curve) == epoch
    assert settled_epoch([-value for value in curve]) == epoch


def test_a_curve_that_falls_and_comes_back_a_little_has_settled_when_it_is_down():
    assert settled_epoch([1.0, 0.0, 0.1, 0.3]) == 2
    # but not while it is still more than a tenth of its whole way off
    assert settled_epoch([1.0, 0.4, 0.5, 0.3, 0.32]) == 4


def test_people_count_from_a_stated_accuracy_on():
    run = histories("a")  # accuracy rises by a ninth of 0.9 with every epoch, to 0.9
    turned = dict(run.measures)
    turned["avh"] = np.where(np.arange(8)[:, None] < 3, -run.measures["avh"], run.measures["avh"])
    early = dataclasses.replace(run, measures=turned)
    made = [run_dynamics(early, frequency=PEOPLE)]
    seen = {one.name: one for one in observations(made)}
    assert seen["O3"].holds is True
    assert "from epoch 5 on (accuracy of at least 50 %)" in seen["O3"].seen
    assert observations(made, accuracy=0.1)[2].holds is False
    never = observations(made, accuracy=0.95)[2]
    assert never.holds is None
    assert "not judged: accuracy stays below 95 %" in never.seen


def test_equal_accuracies_are_no_pair():
    assert concordance([(0.5, 0.1), (0.5, 0.2)]) == (0, 0)
    assert concordance([(0.5, 0.1), (0.6, 0.1)]) == (0, 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    hs.train(
        "small_cnn", "builtin:digits", split="train", test_split="test", track_test=True,
        track=True, out=folder, epochs=2, batch_size=256, device="cpu", show_progress=False,
    )  # fmt: skip
    return folder


def test_a_run_is_read_back_as_it_was_recorded(trained):
    test = read_histories(trained)
    assert test.measures["avh"].shape == (2, 449)
    first = pq.read_table(trained / "tracked" / "test" / "epoch-00001.parquet")
    np.testing.assert_allclose(test.measures["norm"][0], first["norm"].to_numpy())
    right = first["label"].to_numpy() == first["prediction"].to_numpy()
    np.testing.assert_array_equal(test.measures["correct"][0], right)
    train = read_histories(trained, examples="train")
    assert len(train.rows) == 1213  # what was held out was never seen
    assert np.isfinite(train.measures["loss"]).all()


def test_a_study_of_a_run_joins_people_by_position(trained, tmp_path):
    lines = [f"{at},{0.5 + 0.5 * (at % 2)}" for at in range(449)]
    (tmp_path / "people.csv").write_text("\n".join(["index,frequency", *lines]))
    study = hs.study_dynamics([trained], human=tmp_path / "people.csv", out=tmp_path / "study")
    assert [(g.group, g.n) for g in study.runs[0].groups] == [
        ("people [0.4, 0.6)", 225), ("people [0.8, 1]", 224),
    ]  # fmt: skip
    assert (tmp_path / "study" / "study.json").exists()
    with pytest.raises(TableError, match="has no ids of its examples"):
        hs.study_dynamics([trained], examples="train", human=tmp_path / "people.csv")


def test_runs_of_one_name_are_told_apart(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    study = hs.study_dynamics([trained, tmp_path / "run"])
    assert [run.name for run in study.runs] == [str(trained), str(tmp_path / "run")]


def test_what_was_not_recorded_is_explained(trained, tmp_path):
    with pytest.raises(MissingDataError, match=r"no training run at .*nothing"):
        read_histories(tmp_path / "nothing")
    with pytest.raises(MissingDataError, match=r"track_test = true .*: held-out, test, train"):
        read_histories(trained, examples="noise")
    (tmp_path / "bare").mkdir()
    with pytest.raises(MissingDataError, match=r"train with track = true in the recipe$"):
        read_histories(tmp_path / "bare", examples="train")


def test_epochs_that_do_not_fit_are_named(trained, tmp_path):
    for name, change, error, message in (
        ("gap", lambda f: (f / "epoch-00001.parquet").unlink(), TableError, "epoch 1 is missing"),
        ("bad", lambda f: (f / "epoch-00002.parquet").write_bytes(b"x"), TableError, "not a read"),
        ("short", lambda f: cut(f / "epoch-00002.parquet"), TableError, "expected 449 examples"),
        ("unseen", lambda f: [hide(f / f"epoch-0000{e}.parquet") for e in (1, 2)], StatisticError,
         "no example of .* was seen in all 2 epochs"),
    ):  # fmt: skip
        shutil.copytree(trained, tmp_path / name)
        change(tmp_path / name / "tracked" / "test")
        with pytest.raises(error, match=message):
            read_histories(tmp_path / name)


def cut(file):
    pq.write_table(pq.read_table(file).slice(0, 400), file)


def hide(file):
    rows = pq.read_table(file)
    labels = np.full(len(rows), -1, dtype=np.int32)
    pq.write_table(rows.set_column(rows.column_names.index("label"), "label", [labels]), file)


def test_a_run_that_comes_twice_is_refused(trained):
    with pytest.raises(OptionError, match=r"expected different runs, got .* twice"):
        hs.study_dynamics([trained, trained / ".." / trained.name])


def test_held_out_examples_can_be_studied_by_their_name(trained, tmp_path):
    held_out = read_histories(trained, examples="held-out")
    assert held_out.measures["avh"].shape == (2, 135)
    train = read_histories(trained, examples="train")
    assert not set(held_out.rows) & set(train.rows)
    assert len(held_out.rows) + len(train.rows) == 1348
    lines = [f"{at},{0.5 + 0.5 * (at % 2)}" for at in range(1348)]
    (tmp_path / "people.csv").write_text("\n".join(["index,frequency", *lines]))
    study = hs.study_dynamics([trained], examples="held-out", human=tmp_path / "people.csv")
    assert study.runs[0].overall.n == 135
