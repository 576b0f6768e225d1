"""Datasets by name: from the files of a data root, or from the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.data.formats import (
    ArraySource,
    FolderSource,
    HuggingFaceSource,
    MemoryArray,
    ParquetSource,
    idx_array,
    labels_beside,
    load_from_hub,
    visda_images,
)
from hardsight.data.named._catalogue import DATASETS, NamedDataset
from hardsight.data.named._locate import Location, locate, missing, split_names
from hardsight.data.named._originals import cifar_arrays, svhn_arrays
from hardsight.data.source import SourceView
from hardsight.errors import DataError, MissingDataError

if TYPE_CHECKING:
    from hardsight.data.source import ExampleSource


def named_source(
    name: str, split: str | None, root: str | os.PathLike[str] | None
) -> ExampleSource:
    """One or several splits of a named dataset.

    Args:
        name: key of :data:`hardsight.data.DATASETS`.
        split: one of its splits, or several as ``"photo+sketch"``.
        root: folder above the dataset's own.

    Raises:
        MissingDataError: it is neither there nor on the hub; the message says what to do.
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
    found = locate(name, part, root)
    if found is not None:
        return _from_files(name, dataset, found)
    if not dataset.hub:
        raise MissingDataError(missing(name, part, root, ""))
    try:
        return _from_hub(name, dataset, part)
    except DataError as err:
        raise MissingDataError(missing(name, part, root, str(err))) from err


def _from_files(name: str, dataset: NamedDataset, found: Location) -> ExampleSource:
    classes, files = dataset.classes or None, found.files
    if found.form == "parquet":
        return ParquetSource(
            list(files), spec=name, classes=classes, label_columns=dataset.label_columns
        )
    if found.form == "list" and classes is not None:
        return visda_images(files[0], spec=name, classes=classes)
    if found.form in ("folder", "list"):
        folder = files[0] if found.form == "folder" else files[0].parent
        return FolderSource(folder, spec=name, classes=_class_folders(folder, classes))
    if found.form == "idx":
        images, labels = idx_array(files[0]), idx_array(labels_beside(files[0])).whole()
        return ArraySource(name, images, labels, classes=classes)
    arrays, values = cifar_arrays(files) if found.form == "cifar" else svhn_arrays(files[0])
    return ArraySource(name, MemoryArray(arrays), values, classes=classes)


def _class_folders(folder: Path, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Our class names, if the folders carry them; else the folders' own order counts."""
    return classes if classes and all((folder / name).is_dir() for name in classes) else None


def _from_hub(name: str, dataset: NamedDataset, part: str) -> ExampleSource:
    if dataset.domain_column:  # its splits are values of a column
        whole = load_from_hub(dataset.hub, "train")
        rows = [at for at, value in enumerate(whole[dataset.domain_column]) if value == part]
        return HuggingFaceSource(whole.select(rows), spec=name, classes=dataset.classes)
    loaded: Any = load_from_hub(dataset.hub, part)
    column = next((c for c in dataset.label_columns if c in loaded.column_names), None)
    if column not in (None, "label"):
        loaded = loaded.rename_column(column, "label")
    return HuggingFaceSource(loaded, spec=name, classes=dataset.classes or None)
