"""From what a user names to a source of examples or embeddings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data.formats import (
    ARRAY_SUFFIXES,
    EMBEDDING_COLUMNS,
    GRAPHS,
    IDX_NAME,
    IMAGE_COLUMNS,
    JSON_SUFFIXES,
    LABEL_COLUMNS,
    LABELS,
    LINE_SUFFIXES,
    LIST_SUFFIXES,
    SPLITS,
    ArraySource,
    CellSource,
    DatasetSource,
    EmbeddingSource,
    FolderSource,
    HuggingFaceSource,
    ListedImages,
    MemoryArray,
    ParquetEmbeddings,
    ParquetSource,
    SentenceSource,
    StreamSource,
    TextSource,
    UnlabelledFolder,
    array_place,
    chosen_column,
    column_values,
    common_schema,
    csv_cells,
    csv_images,
    digits,
    frame_source,
    has_images,
    head_arrays,
    holds_paths,
    idx_array,
    idx_images_in,
    is_idx,
    is_text_list,
    labels_beside,
    load_from_hub,
    one_column,
    parquet_paths,
    plain_array,
    sampled_rows,
    sentence_columns,
    sentence_file,
    split_folders,
    stored_arrays,
    stored_class_names,
    table_columns,
    text_columns,
    text_file,
    text_parquet,
    tu_graphs,
)
from hardsight.data.named import DATASETS, named_source
from hardsight.data.source import (
    ExampleSource,
    Fingerprint,
    LabelPlace,
    Loading,
    check_listable,
    class_indices,
    existing,
    fixed_labels,
    in_memory,
    is_pattern,
    is_regular,
    matching,
    patched,
)
from hardsight.errors import DataError, MissingDataError, OptionError, UnknownNameError
from hardsight.patch import Patch, read_patch
from hardsight.registry import nearest_name, unknown_name
from hardsight.selection import read_rows

if TYPE_CHECKING:
    from hardsight.data.formats import StoredArray

_STRINGS = ("string", "large_string")
_LABEL_NAMES = ("labels", "label", "y", "targets")
_EXAMPLE_NAMES = ("embeddings", "embedding", "images", "x", "image")
_FORMS = (
    "a folder of class folders, a .csv list, a .jsonl or .parquet file, idx files, hub:OWNER/NAME, "
    f"builtin:digits, a name ({', '.join(DATASETS)}), or .npy/.npz/.safetensors arrays"
)


@dataclass(frozen=True)
class _Options:
    """The keyword arguments of :func:`open_source`; what a form of data has no use for, raises."""

    split: str | None
    labels: Any
    class_weights: Any
    bias: Any
    classes: Sequence[str] | None
    data_root: str | os.PathLike[str] | None
    text_column: str | None = None
    label_column: str | None = None
    image_column: str | None = None
    max_tokens: int | None = None
    tokens: bool | None = None
    target: Any = None

    @property
    def are_sentences(self) -> bool:
        """Whether tokens are to have rows, by the user's word."""
        return bool(self.tokens) or self.target is not None

    def of_texts(self) -> dict[str, Any]:
        """What :func:`text_columns` takes."""
        return {
            "text": self.text_column, "label": self.label_column, "classes": self.classes,
            "split": self.split, "max_tokens": self.max_tokens,
        }  # fmt: skip

    def check_used(self, source: Any) -> None:
        """Raise if columns are named, and the data has none, or not of this kind."""
        are_texts = isinstance(source, TextSource | SentenceSource)
        has_columns = are_texts or isinstance(source, ListedImages | CellSource)
        if not has_columns:
            self.refuse("label_column", "image_column", because=f"{source.spec} has no columns")
        if not are_texts:
            nothing = f"{source.spec} holds no texts"
            self.refuse("text_column", "max_tokens", "tokens", "target", because=nothing)
        if isinstance(source, SentenceSource):
            theirs = "the classes of tokens are the vocabulary, and each is its own label"
            self.refuse("classes", "labels", "label_column", because=theirs)

    def refuse(self, *names: str, because: str) -> None:
        """Raise if an option that plays no part was given."""
        for name in names:
            if getattr(self, name) is not None:
                raise OptionError(f"{name} cannot be used here: {because}")


def open_source(
    data: Any,
    *,
    split: str | None = None,
    labels: Any = None,
    class_weights: Any = None,
    bias: Any = None,
    classes: Sequence[str] | None = None,
    data_root: str | os.PathLike[str] | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    image_column: str | None = None,
    max_tokens: int | None = None,
    tokens: bool = False,
    target: Any = None,
    patch: str | os.PathLike[str] | Patch | Sequence[Any] | None = None,
    rows: Any = None,
) -> ExampleSource | EmbeddingSource:
    """Labelled data, in any of the forms a user may name.

    ==============================  ==============================================================
    ``photos/``                     one folder per class, nested as you like
    ``photos.csv``                  columns ``path`` and ``label``, maybe ``split``; relative
                                    paths start from the folder of the file
    ``reviews.csv``                 columns ``text`` and ``label``, or ``text_column`` and
                                    ``label_column``; also ``.jsonl`` and ``.parquet``
    ``book.txt``                    a sentence per line, whose tokens a language model predicts;
                                    with ``target`` the translation of each line, ``.gz`` too
    ``photos.parquet``              ``image`` ``{bytes, path}``, bytes or a path, and ``label``;
                                    also a folder of such files or a pattern ``data/*.parquet``
    ``train-images-idx3-ubyte.gz``  idx files, or their folder and ``split``
    ``hub:OWNER/NAME[:CONFIG]``     a dataset of the Hugging Face hub
    ``builtin:digits``              1,797 digits of 8x8 pixels
    ``proteins/``                   graphs of the TU collection: ``NAME_A.txt`` and its companions
    ``cifar10``                     a dataset by name, and ``split``: mnist, fashion-mnist,
                                    cifar10, cifar100, cifar100-coarse, svhn, pacs, visda17,
                                    imagenet; from ``data_root``, else from the hub
    ``images.npz``                  arrays ``images`` and ``labels``, or ``x`` and ``y``
    ``embeddings.npz``              ``embeddings``, ``labels``, and maybe ``class_weights``,
                                    ``bias``, ``ids``; also .npy, .safetensors, .parquet
    ==============================  ==============================================================

    In Python also a torch ``Dataset`` or ``DataLoader``, a Hugging Face ``Dataset``, a pandas
    ``DataFrame`` with such columns (paths start from the working directory), arrays with
    ``labels``, and a source such as :class:`DegradedSource` or :class:`MemorySource`. Of a
    DataLoader, the dataset, ``collate_fn``, batch size and workers are used, and of its sampler
    which examples it names: each is read once, in the dataset's own order, and keeps its index in
    the dataset. A sampler that repeats examples is refused.

    Args:
        data: a name as above, or an object.
        split: of data that has several; of a dataset by name also several, ``"photo+sketch"``.
        labels: for arrays without: values, or a file that holds them.
        class_weights: head of stored embeddings, ``[C, D]``: values, a file (also a state dict, in
            which the head is found by its width), or ``FILE:NAME``.
        bias: of the head, ``[C]``, in the same ways.
        classes: names of the classes, position = label.
        data_root: folder with a folder per named dataset; by default the environment's
            ``HARDSIGHT_DATA``, else ``data/`` and the working directory. ``./cifar10`` is a path.
        text_column: column that holds the texts to classify, if it has another name than ``text``.
        label_column: column that holds the labels, if it has another name than ``label``.
        image_column: column that holds the paths of pictures, if it has another name than
            ``path``, or there are texts as well.
        max_tokens: most tokens of a text that a model is to see; by default its own limit.
        tokens: each token of the texts gets a row, by a language model, instead of each text.
        target: translations whose tokens get a row each: a file with as many lines as ``data``,
            a column of the same table, or a list.
        patch: decisions about the labels, as a file or from :func:`hardsight.read_patch`; several
            are laid over the data in their order. What nobody could tell keeps its label.
        rows: the examples to take, by their numbers in the data: a file of ``hardsight select``,
            another .parquet or .csv with a column ``index``, an .npy file, or an array of numbers
            or of booleans. They come in the order of the data and keep their numbers.

    Returns:
        An :class:`EmbeddingSource` for stored embeddings, else an :class:`ExampleSource`.

    Raises:
        MissingDataError: nothing is there.
        DataError: it cannot be used; the message says what to do.
        LabelError: labels are not class indices in ``[0, C)``.
        ShapeError: arrays do not fit each other.
        OptionError: an option has no meaning for this form of data.
        UnsafeFileError: a file would have to run code to be loaded.
        PatchError: a patch is about other data, or people disagree in it.

    Example:
        >>> source = open_source("builtin:digits", split="test")
        >>> len(source), source.classes[:3], source[0].content.size
        (449, ('0', '1', '2'), (8, 8))
    """
    options = _Options(
        split, labels, class_weights, bias, classes, data_root, text_column, label_column,
        image_column, max_tokens, tokens or None, target,
    )  # fmt: skip
    if text_column is not None and image_column is not None:
        raise OptionError("text_column and image_column both name the examples; leave one out")
    is_named = isinstance(data, str | os.PathLike)
    source = _named(os.fspath(data), options) if is_named else _object(data, options)
    options.check_used(source)
    for one in _patches(patch):  # decisions are about all of the data
        source = _with_patch(source, one)
    return source if rows is None else _with_rows(source, rows)


def _patches(given: Any) -> list[Patch]:
    """The patches that were named or given, in their order."""
    if given is None:
        return []
    if isinstance(given, str | os.PathLike | Patch):
        given = [given]
    return [one if isinstance(one, Patch) else read_patch(one) for one in given]


def _with_patch(
    source: ExampleSource | EmbeddingSource, patch: Patch
) -> ExampleSource | EmbeddingSource:
    if isinstance(source, ExampleSource):
        return patched(source, patch)
    fixed = fixed_labels(source, patch)
    if not fixed.kept.all():
        raise DataError(
            f"rows of the stored embeddings {source.spec} cannot be left out while they are read; "
            "write a copy without them: `hardsight patch apply`"
        )
    other = source.relabelled(fixed.labels)
    other.patches = (*source.patches, fixed.facts)
    return other


def unlabelled_source(
    data: Any,
    *,
    split: str | None = None,
    classes: Sequence[str] | None = None,
    data_root: str | os.PathLike[str] | None = None,
) -> ExampleSource | EmbeddingSource:
    """Data whose labels play no part: images below a folder as they lie, or any other form.

    Args:
        data: a folder of images, in class folders or not, or anything :func:`open_source` takes.
        split: of data that has several.
        classes: names of the classes, position = label, for forms that have labels.
        data_root: folder with a folder per named dataset.
    """
    if isinstance(data, str | os.PathLike) and data not in DATASETS:
        folder = Path(data) / (split or "")
        if folder.is_dir() and not any(folder.glob("*.parquet")) and not any(folder.glob("*idx*")):
            return UnlabelledFolder(folder, spec=os.fspath(data))
    return open_source(data, split=split, classes=classes, data_root=data_root)


def _with_rows(
    source: ExampleSource | EmbeddingSource, rows: Any
) -> ExampleSource | EmbeddingSource:
    """The examples that a list of rows names."""
    if isinstance(source, ExampleSource) and source.is_stream:
        raise OptionError(f"rows cannot be used here: {source.spec} is a stream, without positions")
    if source.numbers is not None:
        raise OptionError(
            f"rows cannot be used here: {source.spec} holds some rows of other data already, such "
            "as those of a sampler; choose all of them in one place"
        )
    listed = read_rows(rows)
    found = listed.numbers(len(source), source.spec)
    if listed.fingerprint is not None and listed.fingerprint != source.fingerprint():
        raise DataError(
            f"{listed.origin} was selected from other data than {source.spec}, or the data has "
            "changed since; select from a table of this data, or pass the numbers alone, as an "
            "array or an .npy file"
        )
    return source.chosen(found)


def data_marks(source: ExampleSource | EmbeddingSource) -> dict[str, str | None]:
    """Fingerprints of the data a user named and of the rows chosen of it, if any were."""
    if source.whole is None:
        return {"data": source.fingerprint(), "rows": None}
    assert source.numbers is not None
    chosen = Fingerprint("rows").add_array(source.numbers).hexdigest()
    return {"data": source.whole.fingerprint(), "rows": chosen}


def _named(text: str, options: _Options) -> ExampleSource | EmbeddingSource:
    if not text:  # as a path it would be the working folder
        raise OptionError(f"expected the name of data (--data), got an empty name; name {_FORMS}")
    if text.startswith("builtin:"):
        return _builtin(text, options)
    if text in DATASETS:
        _images_only(options)
        options.refuse("classes", because=f"{text} has names of its own")
        return named_source(text, options.split, options.data_root)
    options.refuse(
        "data_root", because=f"{text} is not the name of a dataset ({', '.join(DATASETS)})"
    )
    if text.startswith("hub:"):
        _images_only(options)
        dataset = load_from_hub(text.removeprefix("hub:"), options.split)
        if options.are_sentences:
            columns = {name: dataset[name] for name in dataset.column_names}
            return _sentences_in(columns, text, replace(options, split=None))
        if options.text_column is not None or _holds_texts(dataset):
            return _texts_of(dataset, replace(options, split=None))
        return HuggingFaceSource(dataset, spec=text, classes=options.classes)
    if is_pattern(text):
        return _parquet(matching(text), text, options)
    path = _existing(text)
    if path.is_dir():
        return _folder(path, text, options)
    return _file(path, text, options)


def _existing(text: str) -> Path:
    try:
        return existing(text)
    except MissingDataError as err:
        near = nearest_name(text, list(DATASETS))
        if near is None:
            raise
        raise MissingDataError(f"{err}; did you mean the dataset {near!r}?") from None


def _builtin(text: str, options: _Options) -> ExampleSource:
    if text != "builtin:digits":
        raise UnknownNameError(unknown_name("built-in data", text, ["builtin:digits"]))
    _images_only(options)
    images, labels, ids = digits(options.split)
    return ArraySource(text, MemoryArray(images), labels, classes=options.classes, ids=ids)


def _images_only(options: _Options) -> None:
    options.refuse("labels", because="these examples have labels of their own")
    options.refuse("class_weights", "bias", because="they belong to stored embeddings")


def _folder(folder: Path, text: str, options: _Options) -> ExampleSource | EmbeddingSource:
    check_listable(folder)
    listed = sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))
    files = [file for file in listed if is_regular(file)]
    if files:
        return _parquet(_of_split(files, text, options.split), text, options, split_done=True)
    has_idx = any(IDX_NAME.search(entry.name) for entry in folder.iterdir())
    images = idx_images_in(folder, options.split) if has_idx else None
    if images is not None:
        return _idx(images, text, options, split_done=True)
    _images_only(options)
    if any(folder.glob(f"*{GRAPHS}")):
        options.refuse("split", because=f"{text} holds graphs without splits")
        return tu_graphs(folder, spec=text, classes=options.classes)
    if options.split is not None:
        if not (folder / options.split).is_dir():
            raise DataError(f"no folder {options.split!r} in {text}, so there is no such split")
        return _class_folders(folder / options.split, text, options)
    splits = split_folders(folder)
    if splits:
        raise DataError(
            f"{text} holds the splits {', '.join(splits)} instead of classes; pass "
            f"split={splits[0]!r} or name {Path(text) / splits[0]}"
        )
    return _class_folders(folder, text, options)


def _class_folders(folder: Path, text: str, options: _Options) -> FolderSource:
    source = FolderSource(folder, spec=text, classes=options.classes)
    source.label_place = LabelPlace("folder", (folder,), existing(text))
    return source


def _of_split(files: list[Path], text: str, split: str | None) -> list[Path]:
    """The files of a split by the beginning of their names, as the hub names them."""

    def belongs(file: Path, name: str) -> bool:
        return file.stem == name or file.stem.startswith((f"{name}-", f"{name}_", f"{name}."))

    present = [name for name in SPLITS if any(belongs(file, name) for file in files)]
    if split is None and len(present) > 1:
        raise DataError(
            f"{text} holds parquet files of the splits {', '.join(present)}; pass "
            f"split={present[0]!r}"
        )
    chosen = files if split is None else [file for file in files if belongs(file, split)]
    if not chosen:
        raise DataError(f"no parquet file of {text} begins with {split!r}, so there is no split")
    return chosen


def _file(file: Path, text: str, options: _Options) -> ExampleSource | EmbeddingSource:
    suffix = file.suffix.lower()
    is_table = suffix in (".parquet", *JSON_SUFFIXES, *LIST_SUFFIXES)
    if suffix in LINE_SUFFIXES or (options.are_sentences and not is_table):
        _images_only(options)
        options.refuse("text_column", "split", because=f"{text} has lines, not columns")
        target = _target_name(options)
        return sentence_file(file, spec=text, target=target, max_tokens=options.max_tokens)
    if suffix == ".parquet":
        return _parquet([file], text, options)
    if suffix in JSON_SUFFIXES or (suffix in LIST_SUFFIXES and _lists_texts(file, text, options)):
        _images_only(options)
        if options.are_sentences:
            columns = table_columns(file, text)
            return _sentences_in(columns, text, options)
        return text_file(file, spec=text, **options.of_texts())
    if suffix in LIST_SUFFIXES:
        _images_only(options)
        return csv_images(
            file, spec=text, classes=options.classes, split=options.split,
            image=options.image_column, label=options.label_column,
        )  # fmt: skip
    if is_idx(file):
        return _idx(file, text, options)
    if suffix in ARRAY_SUFFIXES:
        arrays = stored_arrays(file)
        source = _arrays(arrays, text, options)
        source.label_place = _array_place(arrays, file, text, options)
        return source
    raise DataError(f"cannot tell what {text} is; expected {_FORMS}")


def _lists_texts(file: Path, text: str, options: _Options) -> bool:
    """Whether a list is one of texts: by the user's word, or by the names of its columns."""
    if options.text_column is not None or options.image_column is not None:
        return options.text_column is not None
    if options.are_sentences:
        return True
    return is_text_list(csv_cells(file, text)[0])


def _idx(images: Path, text: str, options: _Options, *, split_done: bool = False) -> ExampleSource:
    options.refuse("class_weights", "bias", because="they belong to stored embeddings")
    if not split_done:
        options.refuse("split", because=f"{text} is a single file")
    labels = plain_array(options.labels, names=_LABEL_NAMES, option="labels")
    place = _place_apart(options, text)
    if labels is None:
        file = labels_beside(images)
        labels = idx_array(file).whole()
        place = LabelPlace("idx", (file,), existing(text), beside=(images,))
    source = ArraySource(text, idx_array(images), labels, classes=options.classes)
    source.label_place = place
    return source


def _place_apart(options: _Options, text: str) -> LabelPlace | None:
    """The file of labels that an option names."""
    found = array_place(options.labels, names=_LABEL_NAMES, option="labels")
    if found is None:
        return None
    return LabelPlace("arrays", (found[0],), existing(text), name=found[1], is_apart=True)


def _parquet(
    files: list[Path], text: str, options: _Options, *, split_done: bool = False
) -> ExampleSource | EmbeddingSource:
    schema = common_schema(files)
    has_images = not set(IMAGE_COLUMNS).isdisjoint(schema.names)
    has_embeddings = not set(EMBEDDING_COLUMNS).isdisjoint(schema.names)
    if options.are_sentences:
        _images_only(options)
        columns = {name: column_values(files, name) for name in schema.names}
        return _sentences_in(columns, text, options)
    are_texts = options.text_column is not None or (
        options.class_weights is None
        and not (has_images or has_embeddings or holds_paths(schema))
        and is_text_list(schema.names)
    )
    if are_texts:
        _images_only(options)
        return text_parquet(files, spec=text, **options.of_texts())
    may_be_pictures = options.class_weights is None and (has_images or not has_embeddings)
    if may_be_pictures and holds_paths(schema):
        _images_only(options)
        return parquet_paths(
            files, schema, spec=text, classes=options.classes, split=options.split,
            by_column=not split_done,
        )  # fmt: skip
    if not split_done:
        options.refuse("split", because=f"{text} names the files themselves")
    if may_be_pictures:
        _images_only(options)
        if has_images:
            pictures = ParquetSource(files, spec=text, classes=options.classes)
            label = one_column(schema, LABEL_COLUMNS, text)
            image = one_column(schema, IMAGE_COLUMNS, text)
            root = _root(files, text)
            pictures.label_place = LabelPlace("parquet", tuple(files), root, label, paths=image)
            return pictures
    if not has_embeddings:
        one_column(schema, (*IMAGE_COLUMNS, *EMBEDDING_COLUMNS), text)
    column = one_column(schema, EMBEDDING_COLUMNS, text)
    labels, stored, place = options.labels, None, None
    if labels is None:
        label = one_column(schema, LABEL_COLUMNS, text)
        labels, stored = column_values(files, label), stored_class_names(schema, label)
        place = LabelPlace("parquet", tuple(files), _root(files, text), name=label)
    ids = column_values(files, "id") if "id" in schema.names else None
    rows = ParquetEmbeddings(files, column, spec=text)
    source = _embeddings(text, rows, options, labels=labels, classes=stored, ids=ids)
    source.label_place = place or _place_apart(options, text)
    return source


def _root(files: list[Path], text: str) -> Path:
    """What was named: a file, a folder, or the folder of a pattern's files."""
    return files[0].parent if is_pattern(text) else existing(text)


def _arrays(
    arrays: dict[str, StoredArray], text: str, options: _Options
) -> ExampleSource | EmbeddingSource:
    """Embeddings or examples among the arrays of a file."""
    options.refuse("split", because=f"{text} holds arrays without splits")

    def first(*names: str) -> StoredArray | None:
        return next((arrays[name] for name in names if name in arrays), None)

    labels = options.labels
    if labels is None:
        stored = first(*_LABEL_NAMES)
        if stored is None:
            names = ", ".join(name for name in arrays if name)
            raise DataError(
                f"{text} holds no labels; pass labels=FILE or the labels themselves"
                + (f", or name them labels: its arrays are {names}" if names else "")
            )
        labels = stored.whole()
    ids, alone = first("ids", "id"), arrays.get("")
    ids_array = None if ids is None else ids.whole()
    embeddings = first("embeddings", "embedding")
    if embeddings is None and alone is not None and len(alone.shape) == 2:
        embeddings = alone
    if embeddings is not None:
        return _embeddings(text, embeddings, options, labels=labels, ids=ids_array, arrays=arrays)
    examples = first("images", "x", "image") if alone is None else alone
    if examples is None:
        raise DataError(
            f"expected arrays named images, x or embeddings in {text}, got "
            f"{', '.join(arrays) or 'none'}; save with np.savez(FILE, embeddings=..., labels=...)"
        )
    options.refuse("class_weights", "bias", because="they belong to stored embeddings")
    labels = plain_array(labels, names=_LABEL_NAMES, option="labels")
    return ArraySource(text, examples, labels, classes=options.classes, ids=ids_array)


def _array_place(
    arrays: dict[str, StoredArray], file: Path, text: str, options: _Options
) -> LabelPlace | None:
    """Where the labels of a file of arrays are; those in memory have no place."""
    if options.labels is not None:
        return _place_apart(options, text)
    label = next(name for name in _LABEL_NAMES if name in arrays)
    per_example = [name for name in (*_EXAMPLE_NAMES, "ids", "id") if name in arrays]
    return LabelPlace("arrays", (file,), file, name=label, per_example=tuple(per_example))


def _embeddings(
    text: str,
    rows: StoredArray,
    options: _Options,
    *,
    labels: Any,
    classes: Sequence[str] | None = None,
    ids: Any = None,
    arrays: dict[str, StoredArray] | None = None,
) -> EmbeddingSource:
    names = classes if options.classes is None else options.classes
    values = plain_array(labels, names=_LABEL_NAMES, option="labels")
    if len(rows.shape) != 2:
        width, least = 0, 0
    else:
        width = rows.shape[1]
        where = f"the labels of {text}"
        indices, _ = class_indices(values, classes=names, where=where, least=1)
        least = int(indices.max()) + 1
    weights, bias = head_arrays(
        options.class_weights,
        width=width,
        least_classes=least,
        classes=None if names is None else len(names),
    )
    own = arrays or {}
    if weights is None and "class_weights" in own:
        weights = own["class_weights"].whole()
        bias = own["bias"].whole() if "bias" in own else None
    if options.bias is not None:
        bias = plain_array(options.bias, names=("bias",), option="bias")
    return EmbeddingSource(
        text, rows, values, class_weights=weights, bias=bias, classes=names, ids=ids
    )


def _object(data: Any, options: _Options) -> ExampleSource | EmbeddingSource:
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    if hasattr(data, "without_index"):  # wrapped for a tracker; a table numbers its rows itself
        data = data.without_index()
    name = type(data).__name__
    if isinstance(data, ExampleSource | EmbeddingSource):
        _images_only(options)
        options.refuse("split", "classes", because=f"a {name} is one split with its own classes")
        return data
    if name == "DataFrame" and not {"embedding", "embeddings"}.isdisjoint(data.columns):
        return _frame_of_embeddings(data, options)
    if _are_texts(data) and options.are_sentences:
        return _sentence_lists(data, options)
    if _are_texts(data) and options.labels is not None:
        values = plain_array(options.labels, names=_LABEL_NAMES, option="labels")
        return TextSource(
            data, values, spec=name, classes=options.classes, max_tokens=options.max_tokens
        )
    if isinstance(data, np.ndarray | torch.Tensor):
        return _arrays({"": MemoryArray(in_memory(data))}, name, options)
    _images_only(options)
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
        loading, loader, data = _loading(data), data, data.dataset
        if loading.collate is None and hasattr(data, "without_index"):
            data = data.without_index()
    is_iterator = hasattr(data, "__iter__") and not hasattr(data, "__getitem__")
    if isinstance(data, IterableDataset) or is_iterator:
        return StreamSource(data, classes=options.classes, loading=loading)
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not indexed or isinstance(data, Mapping):
        raise DataError(
            f"cannot read examples from a {name}; expected {_FORMS}, a torch Dataset or "
            "DataLoader, or a Hugging Face Dataset"
        )
    source = DatasetSource(data, classes=options.classes, loading=loading)
    rows = None if loader is None else sampled_rows(loader)
    return source if rows is None else source.subset(rows)


def _are_texts(data: Any) -> bool:
    is_list = isinstance(data, list | tuple) and len(data) > 0
    return (is_list and all(isinstance(text, str) for text in data[:64])) or (
        isinstance(data, np.ndarray) and data.ndim == 1 and data.dtype.kind in "U"
    )


def _target_name(options: _Options) -> str | None:
    if options.target is None or isinstance(options.target, str | os.PathLike):
        return None if options.target is None else os.fspath(options.target)
    raise OptionError(
        f"expected target to be a file or a column, got {type(options.target).__name__}; pass "
        "both sides as lists: score(model, texts, target=translations)"
    )


def _sentence_lists(data: Any, options: _Options) -> SentenceSource:
    """Sentences in memory, maybe with their translations."""
    _images_only(options)
    options.refuse("text_column", "split", because="a list of sentences has no columns")
    target, name = options.target, type(data).__name__
    if target is None:
        return SentenceSource(list(data), spec=name, max_tokens=options.max_tokens)
    if not _are_texts(target):
        raise OptionError(
            f"expected target to be a list of sentences as data is, got {type(target).__name__}"
        )
    return SentenceSource(list(target), list(data), spec=name, max_tokens=options.max_tokens)


def _sentences_in(columns: Mapping[str, Any], text: str, options: _Options) -> SentenceSource:
    """Sentences in a column of a table."""
    return sentence_columns(
        columns, spec=text, text=options.text_column, target=_target_name(options),
        split=options.split, max_tokens=options.max_tokens,
    )  # fmt: skip


def _frame(frame: Any, options: _Options) -> ExampleSource:
    names = [str(name) for name in frame.columns]
    if options.are_sentences:
        missing = frame.astype(object).where(frame.notna(), None)
        columns = {name: missing.iloc[:, at].to_list() for at, name in enumerate(names)}
        return _sentences_in(columns, type(frame).__name__, options)
    has_pictures = not set(IMAGE_COLUMNS).isdisjoint(names)
    if options.text_column is not None or (
        options.image_column is None and not has_pictures and is_text_list(names)
    ):
        missing = frame.astype(object).where(frame.notna(), None)
        columns = {name: missing.iloc[:, at].to_list() for at, name in enumerate(names)}
        return text_columns(columns, spec=type(frame).__name__, **options.of_texts())
    return frame_source(
        frame, classes=options.classes, split=options.split, image=options.image_column,
        label=options.label_column,
    )  # fmt: skip


def _frame_of_embeddings(frame: Any, options: _Options) -> EmbeddingSource:
    """A data frame with a column of equally long vectors."""
    options.refuse("split", because="a DataFrame of embeddings is one split")
    columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    column = "embedding" if "embedding" in columns else "embeddings"
    try:
        rows = np.stack([np.asarray(row) for row in columns[column]])
    except ValueError as err:
        raise DataError(f"the column {column!r} holds vectors of different length: {err}") from err
    label = chosen_column(list(columns), LABELS, "labels", "the columns of DataFrame")
    labels = columns[label] if options.labels is None else options.labels
    return _embeddings(
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


def _huggingface(data: Any, options: _Options) -> ExampleSource:
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
        columns = {name: data[name] for name in data.column_names}
        return _sentences_in(columns, "Dataset", replace(options, split=None))
    if options.text_column is not None or _holds_texts(data):
        return _texts_of(data, replace(options, split=None))
    if has_images(data):
        return HuggingFaceSource(data, classes=options.classes)
    return DatasetSource(data, classes=options.classes)


def _holds_texts(data: Any) -> bool:
    """Whether a dataset holds texts and labels, and neither pictures nor tokens."""
    plain = data.format["type"] is None and "input_ids" not in data.column_names
    kinds = [getattr(data.features.get(name), "dtype", None) for name in data.column_names]
    texts = [name for name, kind in zip(data.column_names, kinds, strict=True) if kind in _STRINGS]
    return plain and not has_images(data) and is_text_list(texts)


def _texts_of(data: Any, options: _Options) -> TextSource:
    """Texts of a Hugging Face dataset."""
    columns = {name: data[name] for name in data.column_names}
    label = options.label_column or next((n for n in columns if n in LABELS), "")
    names = getattr(data.features.get(label), "names", None)
    given = options.of_texts()
    given["classes"] = options.classes or names
    return text_columns(columns, spec="Dataset", **given)
