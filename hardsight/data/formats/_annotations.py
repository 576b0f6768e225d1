"""Images that a JSON file lists with their classes, in the layout of COCO and iNaturalist."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from hardsight.data.formats._folder import ImageFiles
from hardsight.errors import DataError

_KEYS = ("images", "annotations", "categories")


def annotated_images(file: Path, *, spec: str) -> ImageFiles:
    """Images of a file with ``images``, ``annotations`` and ``categories``, one class each.

    Args:
        file: the JSON file; names of images are relative to its folder and may not leave it.
        spec: as the user named it.

    Returns:
        The images in the order of the file. Classes are in the order of their category ids, named
        by ``name``, with the id behind it if several have the same.

    Raises:
        DataError: the file is not such a list, or an image has no class or several.
    """
    images, annotations, categories = _parts(file)
    ids = sorted(category["id"] for category in categories)
    place = {number: at for at, number in enumerate(ids)}
    label_of: dict[Any, int] = {}
    for entry in annotations:
        image, category = entry["image_id"], entry["category_id"]
        if category not in place:
            raise DataError(f"{file}: category {category!r} of image {image!r} is not listed")
        if label_of.setdefault(image, place[category]) != place[category]:
            raise DataError(
                f"{file}: image {image!r} has several categories; expected one per image"
            )
    names, labels = [], []
    for image in images:
        if image["id"] not in label_of:
            raise DataError(
                f"{file}: image {image['id']!r} ({image['file_name']}) has no annotation, as in "
                "the unlabelled test split; expected one per image"
            )
        names.append(_checked(image["file_name"], file))
        labels.append(label_of[image["id"]])
    classes = _names({category["id"]: str(category["name"]) for category in categories}, ids)
    return ImageFiles(file.parent, names, labels, classes=classes, spec=spec, kind="folder")


def _parts(file: Path) -> tuple[list[Any], list[Any], list[Any]]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as err:
        raise DataError(f"cannot read {file} as JSON: {err}") from err
    missing = [key for key in _KEYS if not isinstance(content, dict) or not content.get(key)]
    if missing:
        raise DataError(
            f"{file} has no {', '.join(missing)}; expected the layout of iNaturalist's "
            "train2018.json"
        )
    wanted = (("id", "file_name"), ("image_id", "category_id"), ("id", "name"))
    for key, needed in zip(_KEYS, wanted, strict=True):
        for at, entry in enumerate(content[key]):
            if not isinstance(entry, dict) or not all(name in entry for name in needed):
                raise DataError(f"{file}: entry {at} of {key} lacks {' or '.join(needed)}")
    return content["images"], content["annotations"], content["categories"]


def _checked(name: str, file: Path) -> bytes:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{file}: {name!r} leaves the folder of the file")
    return name.encode()


def _names(by_id: dict[Any, str], ids: list[Any]) -> tuple[str, ...]:
    counts = Counter(by_id.values())
    return tuple(
        by_id[number] if counts[by_id[number]] == 1 else f"{by_id[number]} ({number})"
        for number in ids
    )
