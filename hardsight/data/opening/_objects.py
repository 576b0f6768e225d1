"""Open data that a user has in Python: datasets, loaders, data frames, arrays, texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data.formats import (
    IMAGE_COLUMNS,
    LABELS,
    DatasetSource,
    EmbeddingSource,
    HuggingFaceSource,
    MemoryArray,
    StreamSource,
    TextSource,
    frame_source,
    has_images,
    is_text_list,
    plain_array,
    sampled_rows,
    table_column,
    text_columns,
)
from hardsight.data.opening._files import FORMS, LABEL_NAMES, array_source, embedding_source
from hardsight.data.opening._sentences import (
    are_texts,
    sentences_in_list,
    sentences_of_dataset,
    sentences_of_frame,
)
from hardsight.data.source import ExampleSource, Loading, in_memory
from hardsight.errors import DataError

if TYPE_CHECKING:
    from hardsight.data.opening._open import Options

_STRINGS = ("string", "large_string")


def source_of_object(data: Any, options: Options) -> ExampleSource | EmbeddingSource:
    """Examples in memory, in a frame, or behind a dataset or loader of another library."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    if hasattr(data, "without_index"):  # wrapped for a tracker; a table numbers its rows itself
        data = data.without_index()
    name = type(data).__name__
    if isinstance(data, ExampleSource | EmbeddingSource):
        options.images_only()
        options.refuse("split", "classes", because=f"a {name} is one split with its own classes")
        return data
    if name == "DataFrame" and not {"embedding", "embeddings"}.isdisjoint(data.columns):
        return _frame_of_embeddings(data, options)
    if are_texts(data) and options.are_sentences:
        return sentences_in_list(data, options)
    if are_texts(data) and (options.labels is not None or not options.labelled):
        values = None
        if options.labelled:
            values = plain_array(options.labels, names=LABEL_NAMES, option="labels")
        return TextSource(
            data, values, spec=name, classes=options.classes, max_tokens=options.max_tokens
        )
    if isinstance(data, np.ndarray | torch.Tensor):
        return array_source({"": MemoryArray(in_memory(data))}, name, options)
    options.images_only()
    # duck typing would work at first, and fail later in a method that has a default in the base
    if hasattr(data, "id_of") and hasattr(data, "fingerprint"):
        raise DataError(
            f"a {name} looks like a source of examples but is not one; derive {name} from "
            "hardsight.data.ExampleSource"
        )
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and name == "DataFrame":
        return _frame(data, options)
    if library == "datasets":
        return _huggingface(data, options)
    options.refuse("split", because=f"a {name} is one split already")
    loading, loader = Loading(), None
    if isinstance(data, DataLoader):
        # its sampler is read at the end, because that needs the length of the dataset
        loading, loader, data = _loading(data), data, data.dataset
        if loading.collate is None and hasattr(data, "without_index"):
            data = data.without_index()
    is_iterator = hasattr(data, "__iter__") and not hasattr(data, "__getitem__")
    if isinstance(data, IterableDataset) or is_iterator:
        return StreamSource(data, classes=options.classes, loading=loading)
    # a mapping has both members, and positions are not its keys
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not indexed or isinstance(data, Mapping):
        raise DataError(
            f"cannot read examples from a {name}; expected {FORMS}, a torch Dataset or "
            "DataLoader, or a Hugging Face Dataset"
        )
    source = DatasetSource(data, classes=options.classes, loading=loading)
    rows = None if loader is None else sampled_rows(loader)
    return source if rows is None else source.subset(rows)


def _frame(frame: Any, options: Options) -> ExampleSource:
    if options.are_sentences:
        return sentences_of_frame(frame, options)
    names = [str(name) for name in frame.columns]
    has_pictures = not set(IMAGE_COLUMNS).isdisjoint(names)
    if options.text_column is not None or (
        options.image_column is None and not has_pictures and is_text_list(names)
    ):
        # NaN in pandas means an empty cell
        missing = frame.astype(object).where(frame.notna(), None)
        columns = {name: missing.iloc[:, at].to_list() for at, name in enumerate(names)}
        return text_columns(columns, spec=type(frame).__name__, **options.of_texts())
    return frame_source(
        frame, classes=options.classes, split=options.split, image=options.image_column,
        label=options.label_column,
    )  # fmt: skip


def _frame_of_embeddings(frame: Any, options: Options) -> EmbeddingSource:
    """A data frame with a column of equally long vectors."""
    options.refuse("split", because="a DataFrame of embeddings is one split")
    columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    column = "embedding" if "embedding" in columns else "embeddings"
    try:
        rows = np.stack([np.asarray(row) for row in columns[column]])
    except ValueError as err:
        raise DataError(f"the column {column!r} holds vectors of different length: {err}") from err
    options.one_label_source()
    labels = options.labels
    if labels is None:
        stated = options.label_column
        labels = columns[table_column(list(columns), stated, LABELS, "label", "DataFrame")]
    return embedding_source(
        "DataFrame", MemoryArray(rows), options, labels=labels, ids=columns.get("id")
    )


def _loading(loader: Any) -> Loading:
    from torch.utils.data import default_collate, default_convert

    custom = loader.collate_fn not in (default_collate, default_convert)
    return Loading(
        batch_size=loader.batch_size,
        workers=loader.num_workers,
        collate=loader.collate_fn if custom else None,
        worker_init=loader.worker_init_fn,
        context=loader.multiprocessing_context,
    )


def _huggingface(data: Any, options: Options) -> ExampleSource:
    import datasets

    if isinstance(data, dict):  # DatasetDict and IterableDatasetDict
        if options.split not in data:
            splits = ", ".join(data)
            raise DataError(f"expected one split of a DatasetDict ({splits}); pass split=NAME")
        data = data[options.split]
    else:
        options.refuse("split", because="a Dataset is one split already")
    if isinstance(data, datasets.IterableDataset):
        return StreamSource(data, classes=options.classes)
    if options.are_sentences:
        return sentences_of_dataset(data, "Dataset", options)
    if options.text_column is not None or holds_texts(data):
        return texts_of(data, replace(options, split=None))
    if has_images(data):
        return HuggingFaceSource(data, classes=options.classes, label=options.label_column)
    return DatasetSource(data, classes=options.classes)


def holds_texts(data: Any) -> bool:
    """Whether a dataset holds texts and labels, and neither pictures nor tokens."""
    plain = data.format["type"] is None and "input_ids" not in data.column_names
    kinds = [getattr(data.features.get(name), "dtype", None) for name in data.column_names]
    texts = [name for name, kind in zip(data.column_names, kinds, strict=True) if kind in _STRINGS]
    return plain and not has_images(data) and is_text_list(texts)


def texts_of(data: Any, options: Options) -> TextSource:
    """Texts of a Hugging Face dataset."""
    columns = {name: data[name] for name in data.column_names}
    label = options.label_column or next((n for n in columns if n in LABELS), "")
    names = getattr(data.features.get(label), "names", None)
    given = options.of_texts()
    given["classes"] = options.classes or names
    return text_columns(columns, spec="Dataset", **given)
