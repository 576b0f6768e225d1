"""Examples that a model is judged by and that it learns from."""

import json

import numpy as np
import pytest
from PIL import Image

import hardsight as hs
from hardsight.errors import HardsightWarning

FAST = {
    "device": "cpu", "batch_size": 16, "epochs": 1, "show_progress": False, "workers": 0,
}  # fmt: skip


def pictures(folder, seed, count=12):
    draw = np.random.default_rng(seed)
    for number in range(count):
        place = folder / f"class-{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number:02d}.png")


@pytest.fixture
def photos(tmp_path):
    """Pictures for training, and others for validation and test."""
    for seed, split in enumerate(("train", "validation", "test")):
        pictures(tmp_path / "photos" / split, seed)
    return tmp_path / "photos"


SPLITS = {"split": "train", "validation_split": "validation", "test_split": "test"}


def record(run):
    return json.loads((run.folder / "result.json").read_text())["shared_with_training"]


@pytest.mark.parametrize("judge", ["validation", "test"])
def test_pictures_of_the_training_data_in_another_split_are_told_of(photos, net, tmp_path, judge):
    for name in ("class-0/00.png", "class-1/03.png"):
        (photos / judge / name).write_bytes((photos / "train" / name).read_bytes())
    said = rf"2 of 12 {judge} examples looked at are also in the training data.*class-0/00\.png"
    with pytest.warns(HardsightWarning, match=said):
        run = hs.train(net, photos, out=tmp_path / "run", **SPLITS, **FAST)
    found = record(run)
    assert found[judge]["shared"] == 2
    assert [found[name]["shared"] for name in found if name != judge] == [0]


def test_nothing_is_said_of_splits_without_common_pictures(photos, net, tmp_path):
    run = hs.train(net, photos, out=tmp_path / "run", **SPLITS, **FAST)
    assert {name: found["looked_at"] for name, found in record(run).items()} == {
        "validation": 12,
        "test": 12,
    }


def test_examples_that_hold_a_users_own_pictures_are_compared_too(images, net, tmp_path):
    with pytest.warns(HardsightWarning, match="120 of 120 validation examples looked at"):
        hs.train(net, images, out=tmp_path / "run", validation=images, **FAST)


def test_it_is_on_record_that_nothing_was_looked_for(vectors, linear, tmp_path):
    run = hs.train(linear, vectors, out=tmp_path / "run", validation=vectors, **FAST)
    assert record(run) == {"validation": None}
    alone = hs.train(linear, vectors, out=tmp_path / "alone", **FAST)
    assert record(alone) == {}
