"""Where the files of a named dataset lie."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hardsight.data.formats import IMAGE_LIST, idx_images_in
from hardsight.data.named._catalogue import DATASETS, NamedDataset
from hardsight.errors import DataError, MissingDataError
from hardsight.registry import unknown_name

ROOT_VARIABLE = "HARDSIGHT_DATA"
_ENDINGS = (".parquet", ".bin", ".mat")


@dataclass(frozen=True)
class Location:
    """Files of one split.

    Attributes:
        form: how to read them.
        files: in order; one folder for ``"folder"``.
    """

    form: Literal["parquet", "idx", "cifar", "svhn", "folder", "list"]
    files: tuple[Path, ...]


def split_names(name: str, split: str | None) -> list[str]:
    """The parts that ``split`` names: ``"photo"``, or several as ``"photo+sketch"``.

    Raises:
        DataError: there is no such split, or none was named.
    """
    known = DATASETS[name].splits
    if split is None:
        first = next(iter(known))
        raise DataError(f"{name} has the splits {', '.join(known)}; pass split={first!r}")
    found = []
    for given in (part.strip() for part in split.split("+")):
        part = next((part for part, words in known.items() if given in (part, *words)), None)
        if part is None:
            raise DataError(unknown_name(f"split of {name}", given, list(known)))
        found.append(part)
    return found


def locate(name: str, part: str, root: str | os.PathLike[str] | None) -> Location | None:
    """Files of one split below the data root; ``None`` if there are none."""
    dataset = DATASETS[name]
    for folder in folders_of(dataset, root):
        if folder.is_dir():
            found = _location(folder, part, dataset.splits[part])
            if found is not None:
                return found
    return None


def folders_of(dataset: NamedDataset, root: str | os.PathLike[str] | None) -> list[Path]:
    """The folders looked into, in order."""
    return [base / folder for base in _roots(root, dataset) for folder in dataset.folders]


def _roots(root: str | os.PathLike[str] | None, dataset: NamedDataset) -> list[Path]:
    """A given root alone; else that of the environment; else ``data/`` and this folder."""
    if root is not None:
        base = Path(root).expanduser()
        if not base.is_dir():
            raise MissingDataError(
                f"no folder {base}; the data root is the one above {dataset.folders[0]}/"
            )
        return [base]
    stated = os.environ.get(ROOT_VARIABLE)
    return [Path(stated).expanduser()] if stated else [Path("data"), Path(".")]


def missing(name: str, part: str, root: str | os.PathLike[str] | None, hub: str) -> str:
    """Message for a dataset that is nowhere: where to put it, or how to fetch it."""
    dataset = DATASETS[name]
    looked = ", ".join(str(folder) for folder in folders_of(dataset, root))
    fetch = dataset.hub.partition(":")[0]
    ways = [
        f"put {dataset.files} into ROOT/{dataset.folders[0]} and pass --data-root ROOT "
        f"(data_root=ROOT) or set {ROOT_VARIABLE}=ROOT"
    ]
    if fetch:
        ways.append(
            f"hf download {fetch} --repo-type dataset --local-dir ROOT/{dataset.folders[0]}"
        )
    said = f" (the hub said: {hub})" if hub else ""
    return f"no {part} split of {name} in {looked}; " + ", or ".join(ways) + said


def _location(folder: Path, part: str, words: Sequence[str]) -> Location | None:
    files = [file for file in _files_near(folder) if _mentions(file, folder, words)]
    if packed := [path for path in files if path.suffix == ".parquet"]:
        return Location("parquet", tuple(packed))
    images = _idx_images(folder, part)
    if images is not None:
        return Location("idx", (images,))
    if batches := [path for path in files if path.suffix == ".bin" and "meta" not in path.name]:
        return Location("cifar", tuple(batches))
    if matlab := [path for path in files if path.suffix == ".mat"]:
        return Location("svhn", (matlab[0],))
    split_folder = next((folder / word for word in words if (folder / word).is_dir()), None)
    if split_folder is not None and (split_folder / IMAGE_LIST).is_file():
        return Location("list", (split_folder / IMAGE_LIST,))
    return None if split_folder is None else Location("folder", (split_folder,))


def _files_near(folder: Path) -> list[Path]:
    """Data files in the folder and the folders in it; deeper ones are images of class folders."""
    found = [path for ending in _ENDINGS for path in folder.glob(f"*{ending}")]
    return sorted(found + [path for ending in _ENDINGS for path in folder.glob(f"*/*{ending}")])


def _mentions(path: Path, folder: Path, words: Sequence[str]) -> bool:
    """Whether a split's word stands in the file's path below the dataset's folder."""
    text = str(path.relative_to(folder)).lower()
    return any(re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", text) for word in words)


def _idx_images(folder: Path, part: str) -> Path | None:
    try:
        return idx_images_in(folder, part)
    except DataError:  # idx files of other splits
        return None
