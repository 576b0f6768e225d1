"""Datasets opened by name, from the files below a data root or from the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hardsight.data.formats import (
    IMAGE_LIST,
    ArraySource,
    FolderSource,
    HuggingFaceSource,
    MemoryArray,
    ParquetSource,
    annotated_images,
    idx_array,
    idx_images_in,
    labels_beside,
    load_from_hub,
    visda_images,
)
from hardsight.data.named._catalogue import DATASETS, NamedDataset
from hardsight.data.source import ExampleSource, SourceView
from hardsight.errors import DataError, MissingDataError, UnknownPartError
from hardsight.registry import unknown_name

ROOT_VARIABLE = "HARDSIGHT_DATA"
_ENDINGS = (".parquet", ".bin", ".mat")
_PIXELS = 3 * 32 * 32  # bytes of a picture in CIFAR's binary version


def named_source(
    name: str, split: str | None, root: str | os.PathLike[str] | None
) -> ExampleSource:
    """Return one or several splits of a named dataset.

    Args:
        name: a key of :data:`hardsight.data.DATASETS`.
        split: one of its splits, or several as ``"photo+sketch"``.
        root: the folder that contains the dataset's folder.

    Raises:
        MissingDataError: the dataset is neither below the root nor on the hub; the message says
            what to do.
        DataError: there is no such split.
    """
    dataset = DATASETS[name]
    parts = [(part, _part(name, dataset, part, root)) for part in split_names(name, split)]
    source: ExampleSource = parts[0][1]
    if len(parts) > 1:
        names, sources = zip(*parts, strict=True)
        source = SourceView(sources, names=names, spec=name)
    if not dataset.groups:
        return source
    return source.renumbered(dataset.groups, dataset.group_names, spec=name)


def _part(
    name: str, dataset: NamedDataset, part: str, root: str | os.PathLike[str] | None
) -> ExampleSource:
    location = locate(name, part, root)
    if location is not None:
        return _from_files(name, dataset, location)
    if not dataset.hub:
        raise MissingDataError(missing(name, part, root, ""))
    try:
        return _from_hub(name, dataset, part)
    except DataError as err:
        raise MissingDataError(missing(name, part, root, str(err))) from err


def _from_files(name: str, dataset: NamedDataset, location: Location) -> ExampleSource:
    classes, files = dataset.classes or None, location.files
    if location.form == "parquet":
        return ParquetSource(
            list(files), spec=name, classes=classes, label_columns=dataset.label_columns
        )
    if location.form == "list" and classes is not None:
        return visda_images(files[0], spec=name, classes=classes)
    if location.form == "json":
        return annotated_images(files[0], spec=name)
    if location.form in ("folder", "list"):
        folder = files[0] if location.form == "folder" else files[0].parent
        return FolderSource(folder, spec=name, classes=_class_folders(folder, classes))
    if location.form == "idx":
        images, labels = idx_array(files[0]), idx_array(labels_beside(files[0])).whole()
        return ArraySource(name, images, labels, classes=classes)
    arrays, values = cifar_arrays(files) if location.form == "cifar" else svhn_arrays(files[0])
    return ArraySource(name, MemoryArray(arrays), values, classes=classes)


def _class_folders(folder: Path, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return our class names if the folders have these names; else the folders' order counts."""
    return classes if classes and all((folder / name).is_dir() for name in classes) else None


def _from_hub(name: str, dataset: NamedDataset, part: str) -> ExampleSource:
    if dataset.domain_column:  # the splits are values of a column
        whole = load_from_hub(dataset.hub, "train")
        rows = [at for at, value in enumerate(whole[dataset.domain_column]) if value == part]
        return HuggingFaceSource(whole.select(rows), spec=name, classes=dataset.classes)
    loaded: Any = load_from_hub(dataset.hub, part)
    column = next((c for c in dataset.label_columns if c in loaded.column_names), None)
    # HuggingFaceSource looks for a column "label"
    if column not in (None, "label"):
        loaded = loaded.rename_column(column, "label")
    return HuggingFaceSource(loaded, spec=name, classes=dataset.classes or None)


@dataclass(frozen=True)
class Location:
    """Files of one split.

    Attributes:
        form: how the files are read.
        files: the files in order; a single folder for ``"folder"``.
    """

    form: Literal["parquet", "idx", "cifar", "svhn", "folder", "list", "json"]
    files: tuple[Path, ...]


def split_names(name: str, split: str | None) -> list[str]:
    """Return the parts that ``split`` names: ``"photo"``, or several as ``"photo+sketch"``.

    Raises:
        DataError: there is no such split, or no split was named.
    """
    known = DATASETS[name].splits
    if split is None:
        first = next(iter(known))
        raise DataError(f"{name} has the splits {', '.join(known)}; pass split={first!r}")
    parts = []
    for wanted in (part.strip() for part in split.split("+")):
        part = next((part for part, words in known.items() if wanted in (part, *words)), None)
        if part is None:
            raise UnknownPartError(unknown_name(f"split of {name}", wanted, list(known)))
        parts.append(part)
    return parts


def locate(name: str, part: str, root: str | os.PathLike[str] | None) -> Location | None:
    """Return the files of one split below the data root, or ``None`` if there are none."""
    dataset = DATASETS[name]
    for folder in folders_of(dataset, root):
        if folder.is_dir():
            location = _location(folder, part, dataset.splits[part])
            if location is not None:
                return location
    return None


def folders_of(dataset: NamedDataset, root: str | os.PathLike[str] | None) -> list[Path]:
    """Return the folders that are searched, in order."""
    return [base / folder for base in _roots(root, dataset) for folder in dataset.folders]


def _roots(root: str | os.PathLike[str] | None, dataset: NamedDataset) -> list[Path]:
    """Return only the given root; else the environment's; else ``data/`` and this folder."""
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
    """Return the message for a missing dataset: where to put it, or how to fetch it."""
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
    if lists := [path for path in sorted(folder.glob("*.json")) if path.stem in words]:
        return Location("json", (lists[0],))
    split_folder = next((folder / word for word in words if (folder / word).is_dir()), None)
    if split_folder is not None and (split_folder / IMAGE_LIST).is_file():
        return Location("list", (split_folder / IMAGE_LIST,))
    return None if split_folder is None else Location("folder", (split_folder,))


def _files_near(folder: Path) -> list[Path]:
    """Return data files at most one folder deep; deeper files are images in class folders."""
    patterns = [above + ending for above in ("*", "*/*") for ending in _ENDINGS]
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def _mentions(path: Path, folder: Path, words: Sequence[str]) -> bool:
    """Return whether the path below the dataset's folder contains one of the split's words."""
    text = str(path.relative_to(folder)).lower()
    # not inside a longer word: "val" must not match "interval.parquet"
    return any(re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", text) for word in words)


def _idx_images(folder: Path, part: str) -> Path | None:
    try:
        return idx_images_in(folder, part)
    except DataError:  # the idx files belong to other splits
        return None


def cifar_arrays(files: Sequence[Path]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images ``[N, 3, 32, 32]`` and labels from CIFAR's binary version.

    A record is one label byte (for CIFAR-100, the super-class and then the class) and 3,072 pixels.

    Raises:
        DataError: the size of a file is not a multiple of the record size.
    """
    images, labels = [], []
    for file in files:
        content = np.fromfile(file, dtype=np.uint8)
        # CIFAR-10 calls its files data_batch_1.bin and so on; CIFAR-100 calls them train and test
        is_hundred = "data_batch" not in file.name and "test_batch" not in file.name
        head = 2 if is_hundred else 1
        if not len(content) or len(content) % (head + _PIXELS):
            raise DataError(
                f"{file} is not a CIFAR batch: expected records of {head + _PIXELS:,} bytes, got "
                f"{len(content):,} bytes; unpack the archive again"
            )
        records = content.reshape(-1, head + _PIXELS)
        images.append(records[:, head:].reshape(-1, 3, 32, 32))
        labels.append(records[:, head - 1].astype(np.int64))
    return np.concatenate(images), np.concatenate(labels)


def svhn_arrays(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images ``[N, 32, 32, 3]`` and labels of SVHN's cropped digits.

    SVHN stores the digit 0 as 10.

    Raises:
        DataError: the file is damaged or contains something else.
    """
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(file)
        images, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
    except Exception as err:  # scipy raises almost anything on a damaged file
        raise DataError(
            f"{file} is not a readable SVHN file (X and y of the cropped digits): "
            f"{type(err).__name__}: {err}"
        ) from err
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels % 10
