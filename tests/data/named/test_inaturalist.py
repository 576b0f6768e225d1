"""iNaturalist from its JSON files, on a small made tree."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from hardsight.data import open_source
from hardsight.errors import DataError, MissingDataError

# ids with a gap and in no order, two of one name
CATEGORIES = [
    {"id": 7, "name": "Parus major", "supercategory": "Aves"},
    {"id": 2, "name": "Quercus robur", "supercategory": "Plantae"},
    {"id": 4, "name": "Quercus robur", "supercategory": "Plantae"},
]


def content(split, per_class):
    images, annotations = [], []
    for category in CATEGORIES:
        for number in range(per_class):
            identity = 100 * category["id"] + number
            file = f"train_val2018/{category['supercategory']}/{category['id']}/{split}{number}.jpg"
            images.append({"id": identity, "file_name": file, "width": 6, "height": 4})
            annotations.append(
                {"id": identity, "image_id": identity, "category_id": category["id"]}
            )
    return {"images": images, "annotations": annotations[::-1], "categories": CATEGORIES}


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "inaturalist"
    for split, per_class in (("train", 3), ("val", 1)):
        made = content(split, per_class)
        for image in made["images"]:
            file = root / image["file_name"]
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (6, 4), (image["id"] // 100 * 30, 0, 0)).save(file)
        (root / f"{split}2018.json").write_text(json.dumps(made))
    return tmp_path


def change(tree, **parts):
    file = tree / "inaturalist" / "val2018.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))


def test_labels_are_the_places_of_category_ids_and_images_keep_their_order(tree):
    source = open_source("inaturalist", split="train", data_root=tree)
    assert len(source) == 9
    assert source.classes == ("Quercus robur (2)", "Quercus robur (4)", "Parus major")
    assert [source.label_of(at) for at in (0, 3, 6)] == [2, 0, 1]
    assert source.id_of(0) == "train_val2018/Aves/7/train0.jpg"
    assert abs(source[0].content.getpixel((0, 0))[0] - 210) < 6
    assert abs(source[3].content.getpixel((0, 0))[0] - 60) < 6


@pytest.mark.parametrize("split", ["val", "val2018", "test"])
def test_the_validation_split_is_the_one_that_papers_test_on(tree, split):
    assert len(open_source("inaturalist", split=split, data_root=tree)) == 3


def test_both_splits_together_are_one_source(tree):
    assert len(open_source("inaturalist", split="train+val", data_root=tree)) == 12


def test_it_is_scored_like_any_other_data(tree, tmp_path):
    import hardsight as hs
    from hardsight.models import SmallCNN

    table = hs.score(
        SmallCNN(num_classes=3, channels=3), "inaturalist", split="val", data_root=tree,
        size=(8, 8), mean=(0.5,) * 3, std=(0.5,) * 3, device="cpu",
    )  # fmt: skip
    assert table.column("label").tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"annotations": [{"image_id": 700, "category_id": 7}]}, "image 200 .* has no annotation"),
        ({"categories": []}, "val2018.json has no categories; expected the layout of iNat"),
        ({"images": [{"id": 1}]}, "entry 0 of images lacks id or file_name"),
        (
            {"annotations": [{"image_id": 700, "category_id": 9}]},
            "category 9 of image 700 is not listed",
        ),
        (
            {"annotations": [{"image_id": 700, "category_id": c} for c in (2, 7)]},
            "image 700 has several categories",
        ),
        (
            {"images": [{"id": 700, "file_name": "../../etc/passwd"}]},
            "'../../etc/passwd' leaves the folder of the file",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(tree, parts, message):
    change(tree, **parts)
    with pytest.raises(DataError, match=message):
        open_source("inaturalist", split="val", data_root=tree)


def test_a_damaged_file_says_so(tree):
    (tree / "inaturalist" / "val2018.json").write_text("{")
    with pytest.raises(DataError, match=r"cannot read .*val2018.json as JSON"):
        open_source("inaturalist", split="val", data_root=tree)


def test_a_missing_split_says_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"split of inaturalist.*train2018\.json and val"):
        open_source("inaturalist", split="val", data_root=tmp_path)
