import io

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from hardsight.data import batches, open_source
from hardsight.errors import BadExampleError, DataError, MissingDataError, OptionError
from hardsight.preprocessing import Preprocessing


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No network, and a cache of the test's own."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def images(count=4):
    return [Image.new("RGB", (3, 2), (number, 0, 0)) for number in range(count)]


@pytest.fixture
def dataset():
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["no", "yes"])
    )
    rows = {"image": images(), "label": [0, 1, 1, 0]}
    return datasets.Dataset.from_dict(rows, features=features)


def red(example):
    return example.content.getpixel((0, 0))[0]


def test_images_labels_and_names_are_taken_from_the_features(dataset):
    source = open_source(dataset)
    assert (source.classes, len(source)) == (("no", "yes"), 4)
    assert [red(source[index]) for index in range(4)] == [0, 1, 2, 3]
    assert [source.label_of(index) for index in range(4)] == [0, 1, 1, 0]


def test_selected_and_shuffled_rows_keep_their_order(dataset):
    source = open_source(dataset.select([3, 1]))
    assert [(red(source[index]), source.label_of(index)) for index in range(2)] == [(3, 0), (1, 1)]


def test_images_are_turned_upright_and_bad_ones_reported(dataset):
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.new("RGB", (30, 10)).save(buffer, "JPEG", exif=exif)
    rows = {
        "image": [{"bytes": buffer.getvalue(), "path": None}, {"bytes": b"no", "path": None}, None],
        "label": [0, 1, 1],
    }
    source = open_source(datasets.Dataset.from_dict(rows, features=dataset.features))
    assert source[0].content.size == (10, 30)
    with pytest.raises(BadExampleError, match="not an image"):
        source[1]
    with pytest.raises(BadExampleError, match="no image is stored"):
        source[2]


def test_images_named_by_path_are_read(dataset, tmp_path):
    Image.new("RGB", (3, 2), (77, 0, 0)).save(tmp_path / "a.png")
    rows = {"image": [str(tmp_path / "a.png"), str(tmp_path / "gone.png")], "label": [0, 1]}
    source = open_source(datasets.Dataset.from_dict(rows, features=dataset.features))
    assert red(source[0]) == 77
    with pytest.raises(BadExampleError, match="cannot be opened"):
        source[1]


def test_other_column_names_are_found_by_their_type():
    features = datasets.Features(photo=datasets.Image(), kind=datasets.ClassLabel(num_classes=3))
    rows = {"photo": images(2), "kind": [0, 2]}
    source = open_source(datasets.Dataset.from_dict(rows, features=features))
    assert (source.label_of(1), red(source[1])) == (2, 1)


def test_two_possible_labels_are_named():
    kind = datasets.ClassLabel(num_classes=3)
    features = datasets.Features(image=datasets.Image(), fine=kind, coarse=kind)
    rows = {"image": images(2), "fine": [0, 2], "coarse": [0, 1]}
    with pytest.raises(DataError, match=r"one label column .* 2 columns could be \(fine, coarse\)"):
        open_source(datasets.Dataset.from_dict(rows, features=features))


def test_a_dataset_with_a_format_of_its_own_is_left_alone(dataset):
    source = open_source(dataset.with_format("torch"))
    assert isinstance(source[1].content, torch.Tensor)
    assert (source.classes, source[1].label) == (("no", "yes"), 1)


def test_a_dataset_dict_asks_for_a_split(dataset):
    both = datasets.DatasetDict(train=dataset, test=dataset.select([3, 1]))
    assert len(open_source(both, split="test")) == 2
    with pytest.raises(DataError, match=r"one split of a DatasetDict \(train, test\); pass split="):
        open_source(both)
    with pytest.raises(OptionError, match="a Dataset is one split already"):
        open_source(dataset, split="train")


def test_a_streamed_dataset_is_read_in_order(dataset):
    source = open_source(dataset.to_iterable_dataset())
    assert source.classes == ("no", "yes")
    (batch,) = batches(source, Preprocessing())
    assert batch.labels.tolist() == [0, 1, 1, 0]
    torch.testing.assert_close(batch.inputs[:, 0, 0, 0] * 255, torch.arange(4.0))


def test_the_fingerprint_follows_images_and_labels(dataset):
    base = open_source(dataset).fingerprint()
    again = datasets.Dataset.from_dict(
        {"image": images(), "label": [0, 1, 1, 0]}, features=dataset.features
    )
    assert base == open_source(again).fingerprint()
    assert base != open_source(dataset.select([3, 1, 2, 0])).fingerprint()


def test_loader_workers_read_the_dataset(dataset):
    (batch,) = batches(open_source(dataset), Preprocessing(), workers=1)
    assert batch.labels.tolist() == [0, 1, 1, 0]


@pytest.fixture
def hub_folder(dataset, tmp_path):
    """A dataset in the layout of a hub repository: parquet files per split."""
    (tmp_path / "repo" / "data").mkdir(parents=True)
    data = tmp_path / "repo" / "data"
    dataset.to_parquet(data / "train-00000-of-00001.parquet")
    dataset.select([3]).to_parquet(data / "test-00000-of-00001.parquet")
    return tmp_path / "repo"


def test_a_hub_name_is_loaded_by_split(hub_folder):
    source = open_source(f"hub:{hub_folder}", split="train")
    assert (source.spec, source.classes, len(source)) == (f"hub:{hub_folder}", ("no", "yes"), 4)
    assert red(source[2]) == 2
    np.testing.assert_equal([red(open_source(f"hub:{hub_folder}", split="test")[0])], [3])


def test_a_hub_name_with_several_splits_asks_for_one(hub_folder):
    with pytest.raises(DataError, match=r"has the splits (train, test|test, train); pass split="):
        open_source(f"hub:{hub_folder}")


def test_an_unknown_split_or_config_of_a_hub_name_is_explained(hub_folder):
    with pytest.raises(DataError, match=r"cannot load hub:.* split='val': .*val.*; check the name"):
        open_source(f"hub:{hub_folder}", split="val")
    with pytest.raises(DataError, match=r"cannot load hub:.*:odd .*odd"):
        open_source(f"hub:{hub_folder}:odd", split="train")


def test_an_unknown_hub_name_is_explained():
    with pytest.raises((MissingDataError, DataError), match="hub:nobody/nothing"):
        open_source("hub:nobody/nothing", split="train")


def test_a_hub_name_without_a_name_is_told_its_form():
    with pytest.raises(DataError, match=r"expected hub:OWNER/NAME .*, got 'hub:'"):
        open_source("hub:")
