import datasets
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from hardsight.data import DATASETS, open_source
from hardsight.errors import DataError, MissingDataError, OptionError


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    """Nothing is fetched; what a test wants of the hub it says itself."""

    def load(name, config, *, split):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.delenv("HARDSIGHT_DATA", raising=False)


def pixels(source, index):
    return np.asarray(source[index].content)


def test_mnist_is_read_from_idx_files_below_the_data_root(tmp_path, write_idx):
    images = np.arange(2 * 28 * 28).reshape(2, 28, 28).astype(np.uint8)
    write_idx(tmp_path / "mnist", "train", images, np.array([7, 1]))
    write_idx(tmp_path / "mnist", "t10k", images[::-1], np.array([1, 7]))
    train = open_source("mnist", split="train", data_root=tmp_path)
    test = open_source("mnist", split="test", data_root=tmp_path)
    np.testing.assert_array_equal(pixels(train, 0), images[0])
    assert (train.label_of(0), test.label_of(0), len(train.classes)) == (7, 1, 10)
    assert train.spec == "mnist"


@pytest.mark.parametrize("file", ["cifar10-{}.parquet", "plain_text/{}-00000-of-00001.parquet"])
def test_cifar10_is_read_from_parquet_files_named_by_split(
    tmp_path, write_pictures, pictures, file
):
    for split, label in (("train", 3), ("test", 9)):
        write_pictures(tmp_path / "cifar10" / file.format(split), pictures, [label] * 6)
    train = open_source("cifar10", split="train", data_root=tmp_path)
    test = open_source("cifar10", split="test", data_root=tmp_path)
    assert train.classes[train.label_of(0)] == "cat"
    assert test.classes[test.label_of(5)] == "truck"


def test_the_environment_names_the_data_root(tmp_path, monkeypatch, write_pictures, pictures):
    write_pictures(tmp_path / "cifar10" / "test.parquet", pictures, range(6))
    monkeypatch.setenv("HARDSIGHT_DATA", str(tmp_path))
    assert len(open_source("cifar10", split="test")) == 6


def test_without_a_root_the_folder_data_is_looked_into(
    tmp_path, monkeypatch, write_pictures, pictures
):
    write_pictures(tmp_path / "data" / "cifar10" / "test.parquet", pictures, range(6))
    monkeypatch.chdir(tmp_path)
    assert len(open_source("cifar10", split="test")) == 6


def test_cifar10_is_read_from_its_binary_version(tmp_path, pictures):
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    planes = pictures.transpose(0, 3, 1, 2).reshape(6, -1)
    labels = np.array([[5], [0], [1], [2], [3], [9]], dtype=np.uint8)
    records = np.concatenate([labels, planes], axis=1)
    (folder / "data_batch_1.bin").write_bytes(records[:4].tobytes())
    (folder / "data_batch_2.bin").write_bytes(records[4:].tobytes())
    (folder / "test_batch.bin").write_bytes(records[:1].tobytes())
    train = open_source("cifar10", split="train", data_root=tmp_path)
    assert [train.label_of(i) for i in range(6)] == [5, 0, 1, 2, 3, 9]
    np.testing.assert_array_equal(pixels(train, 5), pictures[5])
    assert len(open_source("cifar10", split="test", data_root=tmp_path)) == 1


def test_a_truncated_binary_file_is_named(tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "test_batch.bin").write_bytes(bytes(100))
    with pytest.raises(
        DataError, match=r"test_batch.bin is not a CIFAR batch: .*3,073 .*100 bytes"
    ):
        open_source("cifar10", split="test", data_root=tmp_path)


def test_cifar100_is_fine_or_in_its_20_super_classes(tmp_path, pictures):
    (tmp_path / "cifar100").mkdir()
    planes = pictures.transpose(0, 3, 1, 2).reshape(6, -1)
    # super-class and class as the original files store them: apple is fruit, baby is people
    labels = np.array([[4, 0], [1, 1], [14, 2], [8, 3], [0, 4], [6, 5]], dtype=np.uint8)
    records = np.concatenate([labels, planes], axis=1)
    (tmp_path / "cifar100" / "train.bin").write_bytes(records.tobytes())
    fine = open_source("cifar100", split="train", data_root=tmp_path)
    coarse = open_source("cifar100-coarse", split="train", data_root=tmp_path)
    assert [fine.label_of(i) for i in range(6)] == [0, 1, 2, 3, 4, 5]
    assert [coarse.label_of(i) for i in range(6)] == labels[:, 0].tolist()
    assert coarse[2].label == 14
    assert (fine.classes[2], coarse.classes[14]) == ("baby", "people")
    assert fine.fingerprint() != coarse.fingerprint()


def test_the_super_classes_of_cifar100_hold_five_classes_each():
    dataset = DATASETS["cifar100-coarse"]
    assert len(dataset.classes) == len(dataset.groups) == 100
    assert np.bincount(dataset.groups).tolist() == [5] * 20
    # rows 0, 20, 40, 60 and 80 of the table as the authors' files have it
    assert [dataset.groups[i] for i in (0, 20, 40, 60, 80)] == [4, 6, 5, 10, 16]


def test_cifar100_takes_the_fine_column_of_a_parquet_file(tmp_path, write_pictures, pictures):
    path = tmp_path / "cifar100" / "test.parquet"
    write_pictures(path, pictures, range(6), label="fine_label", coarse_label=[9] * 6)
    fine = open_source("cifar100", split="test", data_root=tmp_path)
    assert fine.label_of(5) == 5


def test_svhn_is_read_from_its_matlab_files_with_ten_as_zero(tmp_path, pictures):
    (tmp_path / "svhn").mkdir()
    content = {"X": pictures.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [2], [3], [4], [9]])}
    savemat(tmp_path / "svhn" / "test_32x32.mat", content)
    source = open_source("svhn", split="test", data_root=tmp_path)
    assert [source.label_of(i) for i in range(6)] == [0, 1, 2, 3, 4, 9]
    np.testing.assert_array_equal(pixels(source, 3), pictures[3])
    (tmp_path / "svhn" / "train_32x32.mat").write_bytes(b"MATLAB")
    with pytest.raises(DataError, match=r"train_32x32.mat is not a readable SVHN file"):
        open_source("svhn", split="train", data_root=tmp_path)


def test_domains_of_pacs_are_splits_that_can_be_joined(tmp_path, write_pictures, pictures):
    for domain in ("photo", "sketch"):
        write_pictures(tmp_path / "pacs" / f"pacs-{domain}.parquet", pictures, [0, 1, 2, 3, 4, 6])
    both = open_source("pacs", split="photo+sketch", data_root=tmp_path)
    assert len(both) == 12
    assert (both.id_of(0), both.id_of(6), both[11].id) == ("photo/0", "sketch/0", "sketch/5")
    assert both.classes[both.label_of(11)] == both.classes[both[11].label] == "person"
    np.testing.assert_array_equal(pixels(both, 7), pictures[1])
    with pytest.raises(IndexError, match="example 12 of 12"):
        both[12]


def test_domains_of_pacs_may_be_folders_of_class_folders(tmp_path, pictures):
    for number, name in enumerate(DATASETS["pacs"].classes[:3]):
        folder = tmp_path / "pacs" / "cartoon" / name
        folder.mkdir(parents=True)
        Image.fromarray(pictures[number]).save(folder / "1.png")
    source = open_source("pacs", split="cartoon", data_root=tmp_path)
    assert (len(source), source.classes) == (3, ("dog", "elephant", "giraffe"))


def test_imagenet_is_a_folder_of_class_folders_per_split(tmp_path, pictures):
    for number, name in enumerate(("n01", "n02")):
        folder = tmp_path / "imagenet" / "val" / name
        folder.mkdir(parents=True)
        Image.fromarray(pictures[number]).save(folder / f"{number}.JPEG")
    source = open_source("imagenet", split="validation", data_root=tmp_path)
    assert (len(source), source.classes, source.id_of(1)) == (2, ("n01", "n02"), "n02/1.JPEG")


def test_missing_data_says_where_to_put_it_and_how_to_fetch_it(tmp_path):
    with pytest.raises(MissingDataError) as caught:
        open_source("svhn", split="extra", data_root=tmp_path)
    said = str(caught.value)
    assert str(tmp_path / "svhn") in said
    assert "put train_32x32.mat and test_32x32.mat" in said
    assert "--data-root ROOT" in said
    assert "HARDSIGHT_DATA=ROOT" in said
    assert "hf download ufldl-stanford/svhn --repo-type dataset" in said
    assert "the hub said: cannot load hub:ufldl-stanford/svhn:cropped_digits" in said
    assert "ConnectionError: no network" in said


def test_imagenet_is_not_fetched(tmp_path):
    with pytest.raises(
        MissingDataError, match=r"no val split of imagenet in .*one folder per class"
    ):
        open_source("imagenet", split="val", data_root=tmp_path)


def test_a_data_root_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(
        MissingDataError, match=r"no folder .*nowhere; the data root is the one above"
    ):
        open_source("mnist", split="test", data_root=tmp_path / "nowhere")


def test_a_split_must_be_one_of_the_datasets_own(tmp_path):
    with pytest.raises(DataError, match=r"pacs has the splits art_painting, .*; pass split='art"):
        open_source("pacs", data_root=tmp_path)
    with pytest.raises(DataError, match=r"split of pacs 'sketsh'. Did you mean 'sketch'\?"):
        open_source("pacs", split="photo+sketsh", data_root=tmp_path)


def test_options_that_play_no_part_are_refused(tmp_path):
    with pytest.raises(
        OptionError, match="classes cannot be used here: mnist has names of its own"
    ):
        open_source("mnist", split="test", classes=["a", "b"])
    with pytest.raises(
        OptionError, match=r"data_root cannot be used here: .* is not the name of a dataset"
    ):
        open_source(tmp_path, data_root=tmp_path)


def test_an_almost_known_name_is_answered_with_the_nearest():
    with pytest.raises(MissingDataError, match="did you mean the dataset 'fashion-mnist'"):
        open_source("fashion-mnits", split="test")


def hub_copy(pictures, **columns):
    features = datasets.Features(
        {"image": datasets.Image(), **{k: v[0] for k, v in columns.items()}}
    )
    rows = {
        "image": [Image.fromarray(p) for p in pictures],
        **{k: v[1] for k, v in columns.items()},
    }
    return datasets.Dataset.from_dict(rows, features=features)


def test_what_is_not_there_comes_from_the_hub(tmp_path, monkeypatch, pictures):
    whole = datasets.Value("int64")
    copy = hub_copy(pictures, fine_label=(whole, [5, 4, 3, 2, 1, 0]), coarse_label=(whole, [0] * 6))
    asked = []

    def load(name, config, *, split):
        asked.append((name, config, split))
        return copy

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = open_source("cifar100", split="test", data_root=tmp_path)
    assert asked == [("uoft-cs/cifar100", None, "test")]
    assert [source.label_of(i) for i in range(3)] == [5, 4, 3]
    np.testing.assert_array_equal(pixels(source, 1), pictures[1])


def test_a_domain_on_the_hub_is_chosen_by_its_column(tmp_path, monkeypatch, pictures):
    domains = ["photo", "sketch", "photo", "cartoon", "photo", "sketch"]
    copy = hub_copy(
        pictures,
        domain=(datasets.Value("string"), domains),
        label=(datasets.Value("int64"), [0, 1, 2, 3, 4, 5]),
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, *, split: copy)
    source = open_source("pacs", split="photo", data_root=tmp_path)
    assert [source.label_of(i) for i in range(len(source))] == [0, 2, 4]
