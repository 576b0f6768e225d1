"""The named datasets: their splits, classes, and names on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_TRAIN_TEST = {"train": ("train",), "test": ("test", "t10k")}


@dataclass(frozen=True)
class NamedDataset:
    """What is known about one dataset.

    Attributes:
        folders: names that its folder below a data root may have; messages ask for the first.
        splits: the splits, each with the words that its files contain.
        classes: class names; the position of a name is its label. Empty if the data has them.
        hub: ``OWNER/NAME[:CONFIG]`` on the Hugging Face hub; empty if it is not there.
        label_columns: names that the column of labels may have in parquet files.
        domain_column: column of the hub's copy whose values are the splits, if that is so.
        files: what its folder may contain, for the message if it is missing.
        groups: the new label of each label, if the classes are grouped.
        group_names: names of the groups.
    """

    folders: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    files: str
    classes: tuple[str, ...] = ()
    hub: str = ""
    label_columns: tuple[str, ...] = ("label", "labels")
    domain_column: str = ""
    groups: tuple[int, ...] = ()
    group_names: tuple[str, ...] = field(default=())


_DIGITS = tuple("0123456789")
_CIFAR100_GROUPS = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
_CIFAR100_GROUP_OF = {
    name: group for group, names in enumerate(_CIFAR100_GROUPS.values()) for name in names.split()
}
# CIFAR-100 numbers its classes alphabetically
_CIFAR100_CLASSES = tuple(sorted(_CIFAR100_GROUP_OF))

_CIFAR100 = NamedDataset(
    folders=("cifar100", "cifar-100"),
    splits={"train": ("train",), "test": ("test",)},
    classes=_CIFAR100_CLASSES,
    hub="uoft-cs/cifar100",
    label_columns=("fine_label", "label"),
    files="train and test parquet files, or train.bin and test.bin of cifar-100-binary.tar.gz",
)

DATASETS: Mapping[str, NamedDataset] = {
    "mnist": NamedDataset(
        folders=("mnist",),
        splits=_TRAIN_TEST,
        classes=_DIGITS,
        hub="ylecun/mnist",
        files="the four idx files, packed or not (train-images-idx3-ubyte.gz, ...)",
    ),
    "fashion-mnist": NamedDataset(
        folders=("fashion-mnist", "fashion_mnist"),
        splits=_TRAIN_TEST,
        classes=(
            "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker",
            "bag", "ankle boot",
        ),
        hub="zalando-datasets/fashion_mnist",
        files="the four idx files, packed or not (Debian: apt install dataset-fashion-mnist)",
    ),
    "cifar10": NamedDataset(
        folders=("cifar10", "cifar-10"),
        splits={"train": ("train", "data_batch"), "test": ("test", "test_batch")},
        classes=(
            "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
            "truck",
        ),
        hub="uoft-cs/cifar10",
        files="train and test parquet files, or the .bin files of cifar-10-binary.tar.gz",
    ),
    "cifar100": _CIFAR100,
    "cifar100-coarse": NamedDataset(
        **{
            **vars(_CIFAR100),
            "groups": tuple(_CIFAR100_GROUP_OF[name] for name in _CIFAR100_CLASSES),
            "group_names": tuple(_CIFAR100_GROUPS),
        }
    ),
    "svhn": NamedDataset(
        folders=("svhn",),
        splits={"train": ("train",), "test": ("test",), "extra": ("extra",)},
        classes=_DIGITS,
        hub="ufldl-stanford/svhn:cropped_digits",
        files="train_32x32.mat and test_32x32.mat, or parquet files",
    ),
    "pacs": NamedDataset(
        folders=("pacs", "PACS"),
        splits={name: (name,) for name in ("art_painting", "cartoon", "photo", "sketch")},
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        hub="flwrlabs/pacs",
        domain_column="domain",
        files="one parquet file or one folder of class folders per domain",
    ),
    "visda17": NamedDataset(
        folders=("visda17", "visda-17", "visda2017", "VisDA-2017", "visda"),
        splits={"train": ("train",), "validation": ("validation", "val"), "test": ("test",)},
        classes=(
            "aeroplane", "bicycle", "bus", "car", "horse", "knife", "motorcycle", "person", "plant",
            "skateboard", "train", "truck",
        ),
        files="train/ and validation/ as unpacked from train.tar and validation.tar, with one "
        "folder per class or image_list.txt",
    ),
    "inaturalist": NamedDataset(
        folders=("inaturalist", "inaturalist2018", "iNaturalist2018", "inat2018"),
        splits={"train": ("train", "train2018"), "val": ("val", "val2018", "validation", "test")},
        files="train2018.json and val2018.json beside train_val2018/, as unpacked",
    ),
    "imagenet": NamedDataset(
        folders=("imagenet", "ILSVRC2012", "imagenet-1k"),
        splits={"train": ("train",), "val": ("val", "validation")},
        files="train/ and val/ with one folder per class",
    ),
}  # fmt: skip
"""Named datasets; see :func:`hardsight.data.open_source`."""
