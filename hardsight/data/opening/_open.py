"""Open what a user names as a source of examples or embeddings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hardsight._checks import is_url
from hardsight.data.formats import (
    ARRAY_SUFFIXES,
    GRAPHS,
    IDX_NAME,
    IMAGE_COLUMNS,
    JSON_SUFFIXES,
    LABEL_COLUMNS,
    LINE_SUFFIXES,
    LIST_SUFFIXES,
    PACKED_TAR,
    SPLITS,
    TAR,
    ArraySource,
    CellSource,
    EmbeddingSource,
    FolderSource,
    HuggingFaceSource,
    ListedImages,
    MemoryArray,
    ParquetSource,
    SentenceSource,
    TarSource,
    TextSource,
    UnlabelledFolder,
    csv_cells,
    csv_images,
    digits,
    idx_images_in,
    is_idx,
    is_text_list,
    load_from_hub,
    named_column,
    split_folders,
    stored_arrays,
    text_file,
    tu_graphs,
)
from hardsight.data.named import DATASETS, named_source
from hardsight.data.opening._files import (
    FORMS,
    array_place_of,
    array_source,
    idx_source,
    parquet_source,
    tar_source,
)
from hardsight.data.opening._objects import holds_texts, source_of_object, texts_of
from hardsight.data.opening._sentences import sentences_in_file, sentences_of_dataset
from hardsight.data.source import (
    ExampleSource,
    Fingerprint,
    LabelPlace,
    braced,
    check_index,
    check_listable,
    existing,
    fixed_labels,
    is_pattern,
    is_regular,
    local_copy,
    matching,
    patched,
)
from hardsight.errors import (
    DataError,
    HardsightError,
    MissingDataError,
    OptionError,
    UnknownNameError,
    UnknownPartError,
)
from hardsight.patch import Patch, read_patch
from hardsight.registry import nearest_name, unknown_name
from hardsight.selection import read_rows


@dataclass(frozen=True)
class Options:
    """The keyword arguments of :func:`open_source`; those a form of data cannot use, raise."""

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
    labelled: bool = True  # False if labels are not needed, so texts may have none

    @property
    def are_sentences(self) -> bool:
        """Whether the user wants a row for each token."""
        return bool(self.tokens) or self.target is not None

    def of_texts(self) -> dict[str, Any]:
        """The arguments of :func:`text_columns`."""
        return {
            "text": self.text_column, "label": self.label_column, "classes": self.classes,
            "split": self.split, "max_tokens": self.max_tokens, "labelled": self.labelled,
        }  # fmt: skip

    def columns_of(self, header: Sequence[str], spec: str) -> tuple[Sequence[str], Sequence[str]]:
        """Names that the columns of pictures and of labels may have, in a table of this header.

        Raises:
            UnknownPartError: a column that the user names is not there.
        """
        pictures, labels = self.image_column, self.label_column
        if pictures is not None:
            named_column(header, pictures, "image", spec)
        if labels is not None:
            named_column(header, labels, "label", spec)
        return (
            IMAGE_COLUMNS if pictures is None else (pictures,),
            LABEL_COLUMNS if labels is None else (labels,),
        )

    def one_label_source(self) -> None:
        """Raise if labels are given and a column of them is named, too."""
        if self.labels is not None:
            self.refuse("label_column", because="labels are given by labels= (--labels)")

    def check_used(self, source: Any) -> None:
        """Raise if columns are named that this kind of data does not have."""
        are_texts = isinstance(source, TextSource | SentenceSource)
        names_pictures = isinstance(source, ListedImages | CellSource | TarSource | ParquetSource)
        is_table = isinstance(source, EmbeddingSource | HuggingFaceSource)  # or arrays: refused
        if not (are_texts or names_pictures):
            self.refuse("image_column", because=f"{source.spec} has no column of pictures to name")
        if not (are_texts or names_pictures or is_table):
            self.refuse("label_column", because=f"{source.spec} has no columns")
        if not are_texts:
            nothing = f"{source.spec} holds no texts"
            self.refuse("text_column", "max_tokens", "tokens", "target", because=nothing)
        if isinstance(source, SentenceSource):
            theirs = "the classes of tokens are the vocabulary, and each is its own label"
            self.refuse("classes", "labels", "label_column", because=theirs)

    def images_only(self) -> None:
        """Raise if an option was given that only makes sense for embeddings or bare arrays."""
        self.refuse("labels", because="these examples have labels of their own")
        self.refuse("class_weights", "bias", because="they belong to stored embeddings")

    def refuse(self, *names: str, because: str) -> None:
        """Raise if an option was given that has no effect here."""
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
    """Open labelled data, in any of the forms that can be named.

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
    ``train-{000..146}.tar``        shards of webdataset: a picture and ``cls``, or ``json`` with
                                    ``label``; also ``data/*.tar`` or a folder of such files
    ``train-images-idx3-ubyte.gz``  idx files, or their folder and ``split``
    ``hub:OWNER/NAME[:CONFIG]``     a dataset of the Hugging Face hub
    ``builtin:digits``              1,797 digits of 8x8 pixels
    ``proteins/``                   graphs of the TU collection: ``NAME_A.txt`` and its companions
    ``cifar10``                     a dataset by name, and ``split``: mnist, fashion-mnist,
                                    cifar10, cifar100, cifar100-coarse, svhn, pacs, visda17,
                                    inaturalist, imagenet; from ``data_root``, else from the hub
    ``images.npz``                  arrays ``images`` and ``labels``, or ``x`` and ``y``
    ``embeddings.npz``              ``embeddings``, ``labels``, and maybe ``class_weights``,
                                    ``bias``, ``ids``; also .npy, .safetensors, .parquet
    ==============================  ==============================================================

    Each may be the URL of an object store (``s3://bucket/photos``), whose files are copied to this
    machine once; so may ``labels``, ``class_weights``, ``bias`` and ``target``. In Python, data can
    also be a torch ``Dataset`` or ``DataLoader``, a Hugging Face
    ``Dataset``, a pandas ``DataFrame`` with such columns (paths start from the working directory),
    arrays with ``labels``, or a source such as :class:`DegradedSource` or :class:`MemorySource`.
    For a DataLoader, the dataset, ``collate_fn``, batch size and workers are used. Its sampler only
    selects examples: each is read once, in the order of the dataset, and keeps its index in the
    dataset. A sampler that repeats examples is refused.

    Args:
        data: a name as above, or an object.
        split: the split to take; for a named dataset also several, ``"photo+sketch"``.
        labels: labels for arrays without any: values, or a file that holds them.
        class_weights: head of stored embeddings, ``[C, D]``: values, a file (also a state dict, in
            which the head is found by its width), or ``FILE:NAME``.
        bias: bias of the head, ``[C]``, in the same forms.
        classes: names of the classes, position = label.
        data_root: folder with a folder per named dataset; by default the environment's
            ``HARDSIGHT_DATA``, else ``data/`` and the working directory. ``./cifar10`` is a path.
        text_column: column that holds the texts to classify, if it has another name than ``text``.
        label_column: column that holds the labels, if it has another name than ``label``.
        image_column: column that holds pictures or their paths, if it has another name than
            ``path``, or there are texts as well.
        max_tokens: largest number of tokens of a text that the model reads; by default its own
            limit.
        tokens: whether each token of the texts gets a row, by a language model, instead of each
            text.
        target: translations whose tokens get a row each: a file with as many lines as ``data``,
            a column of the same table, or a list.
        patch: decisions about the labels, as a file or from :func:`hardsight.read_patch`; several
            are applied in order. Examples whose class nobody could tell keep their label.
        rows: the examples to take, by their numbers in the data: a file of ``hardsight select``,
            another .parquet or .csv with a column ``index``, an .npy file, or an array of numbers
            or of booleans. They come in the order of the data and keep their numbers.

    Returns:
        An :class:`EmbeddingSource` for stored embeddings, else an :class:`ExampleSource`.

    Raises:
        MissingDataError: there is no such data.
        DataError: the data cannot be used; the message says what to do.
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
    labels, class_weights, bias, target = map(_on_disk, (labels, class_weights, bias, target))
    options = Options(
        split, labels, class_weights, bias, classes, data_root, text_column, label_column,
        image_column, max_tokens, tokens or None, target,
    )  # fmt: skip
    # either column would contain the examples
    if text_column is not None and image_column is not None:
        raise OptionError("text_column and image_column both name the examples; leave one out")
    if labels is not None:
        check_index(labels, data, option="labels")
    source = _opened(data, options)
    for decisions in _patches(patch):  # before rows are chosen: a patch is about all of the data
        source = _with_patch(source, decisions)
    return source if rows is None else _with_rows(source, rows)


def _on_disk(named: Any) -> Any:
    """What belongs to the data, as it is given; for the URL of a file its copy on this machine."""
    text = os.fspath(named) if isinstance(named, os.PathLike) else named
    if not isinstance(text, str) or not is_url(text):
        return named
    folder, _, file = text.rpartition("/")
    name, colon, part = file.partition(":")  # FILE:NAME is an array in a file
    return local_copy(f"{folder}/{name}") + colon + part


def _opened(data: Any, options: Options) -> ExampleSource | EmbeddingSource:
    is_named = isinstance(data, str | os.PathLike)
    source = _named(os.fspath(data), options) if is_named else source_of_object(data, options)
    options.check_used(source)
    return source


def _patches(given: Any) -> list[Patch]:
    """The patches in their order, read from files if they are named."""
    if given is None:
        return []
    if isinstance(given, str | os.PathLike | Patch):
        given = [given]
    return [patch if isinstance(patch, Patch) else read_patch(patch) for patch in given]


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


def reopened_source(
    data: str | os.PathLike[str], labels: Any, **options: Any
) -> ExampleSource | EmbeddingSource:
    """Open the data of a table again, to look at its examples.

    A table does not record labels that were passed separately from arrays, so the labels of the
    table are used in their place.

    Args:
        data: the data that the table was made from.
        labels: the labels of the table, as numbers.
        options: options of :func:`open_source`.

    Raises:
        DataError: the data cannot be opened.
    """
    try:
        return open_source(data, **options)
    except DataError:
        if Path(data).suffix not in (".npy", ".npz", ".safetensors", ".parquet"):
            raise
        try:
            return open_source(data, labels=labels, **options)
        except HardsightError:
            pass  # the first error is the useful one
        raise


def unlabelled_source(
    data: Any,
    *,
    split: str | None = None,
    classes: Sequence[str] | None = None,
    data_root: str | os.PathLike[str] | None = None,
    text_column: str | None = None,
    max_tokens: int | None = None,
) -> ExampleSource | EmbeddingSource:
    """Open data whose labels are not needed: images in any folders, or any other form.

    Args:
        data: a folder of images, in class folders or not; texts with labels or without; or
            anything :func:`open_source` takes.
        split: of data that has several.
        classes: names of the classes, position = label, for forms that have labels.
        data_root: folder with a folder per named dataset.
        text_column: column that holds the texts, if it has another name than ``text``.
        max_tokens: most tokens of a text that a model is to see; by default its own limit.
    """
    is_file = isinstance(data, str | os.PathLike) and text_column is None
    if is_file and data not in DATASETS:
        # a folder without parquet, tar, idx or graph files: the pictures in it, at any depth
        folder = Path(data) / (split or "")
        patterns = ("*.parquet", f"*{TAR}", "*idx*", f"*{GRAPHS}")
        stored = (name for pattern in patterns for name in folder.glob(pattern))
        if folder.is_dir() and not any(stored):
            return UnlabelledFolder(folder, spec=os.fspath(data))
    return _opened(
        data,
        Options(
            split, None, None, None, classes, data_root, text_column, max_tokens=max_tokens,
            labelled=False,
        ),
    )  # fmt: skip


def _with_rows(
    source: ExampleSource | EmbeddingSource, rows: Any
) -> ExampleSource | EmbeddingSource:
    """The examples that a list of rows names."""
    if isinstance(source, ExampleSource) and source.is_stream:
        raise OptionError(f"rows cannot be used here: {source.spec} is a stream, without positions")
    # row numbers could refer to this selection or to the whole data
    if source.numbers is not None:
        raise OptionError(
            f"rows cannot be used here: {source.spec} holds some rows of other data already, such "
            "as those of a sampler; choose all of them in one place"
        )
    listed = read_rows(rows)
    numbers = listed.numbers(len(source), source.spec)
    if listed.fingerprint is not None and listed.fingerprint != source.fingerprint():
        raise DataError(
            f"{listed.origin} was selected from other data than {source.spec}, or the data has "
            "changed since; select from a table of this data, or pass the numbers alone, as an "
            "array or an .npy file"
        )
    return source.chosen(numbers)


def data_marks(source: ExampleSource | EmbeddingSource) -> dict[str, str | None]:
    """Fingerprints of the data that was named and of the rows chosen from it, if there are any."""
    if source.whole is None:
        return {"data": source.fingerprint(), "rows": None}
    assert source.numbers is not None
    chosen = Fingerprint("rows").add_array(source.numbers).hexdigest()
    return {"data": source.whole.fingerprint(), "rows": chosen}


def _named(text: str, options: Options) -> ExampleSource | EmbeddingSource:
    if not text:  # as a path, "" means the working folder
        raise OptionError(f"expected the name of data (--data), got an empty name; name {FORMS}")
    if text.startswith("builtin:"):
        return _builtin(text, options)
    if text in DATASETS:
        options.images_only()
        options.refuse("classes", because=f"{text} has names of its own")
        known = f"the columns of {text} are known; name its files to choose others"
        options.refuse("label_column", "image_column", because=known)
        return named_source(text, options.split, options.data_root)
    options.refuse(
        "data_root", because=f"{text} is not the name of a dataset ({', '.join(DATASETS)})"
    )
    if text.startswith("hub:"):
        options.images_only()
        dataset = load_from_hub(text.removeprefix("hub:"), options.split)
        if options.are_sentences:
            return sentences_of_dataset(dataset, text, options)
        if options.text_column is not None or holds_texts(dataset):
            return texts_of(dataset, replace(options, split=None))
        return HuggingFaceSource(
            dataset, spec=text, classes=options.classes, label=options.label_column
        )
    if is_url(text):
        source = _named(local_copy(text), options)
        source.spec = text
        return source
    if is_pattern(text):
        files = matching(text)
        are_tar = all(file.suffix.lower() == TAR for file in files)
        return (tar_source if are_tar else parquet_source)(files, text, options)
    if len(names := braced(text)) > 1 and not os.path.exists(text):
        return tar_source([existing(name) for name in names], text, options)
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


def _builtin(text: str, options: Options) -> ExampleSource:
    if text != "builtin:digits":
        raise UnknownNameError(unknown_name("built-in data", text, ["builtin:digits"]))
    options.images_only()
    images, labels, ids = digits(options.split)
    return ArraySource(text, MemoryArray(images), labels, classes=options.classes, ids=ids)


def _folder(folder: Path, text: str, options: Options) -> ExampleSource | EmbeddingSource:
    check_listable(folder)
    listed = sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))
    files = [file for file in listed if is_regular(file)]
    if files:
        return parquet_source(_of_split(files, text, options.split), text, options, split_done=True)
    shards = [file for file in sorted(folder.glob(f"*{TAR}")) if is_regular(file)]
    if shards:
        return tar_source(_of_split(shards, text, options.split), text, options, split_done=True)
    # idx files before class folders: their names are unambiguous
    has_idx = any(IDX_NAME.search(entry.name) for entry in folder.iterdir())
    images = idx_images_in(folder, options.split) if has_idx else None
    if images is not None:
        return idx_source(images, text, options, split_done=True)
    options.images_only()
    if any(folder.glob(f"*{GRAPHS}")):
        options.refuse("split", because=f"{text} holds graphs without splits")
        return tu_graphs(folder, spec=text, classes=options.classes)
    if options.split is not None:
        if not (folder / options.split).is_dir():
            raise UnknownPartError(
                f"no folder {options.split!r} in {text}, so there is no such split"
            )
        return _class_folders(folder / options.split, text, options)
    splits = split_folders(folder)
    if splits:
        raise DataError(
            f"{text} holds the splits {', '.join(splits)} instead of classes; pass "
            f"split={splits[0]!r} or name {Path(text) / splits[0]}"
        )
    return _class_folders(folder, text, options)


def _class_folders(folder: Path, text: str, options: Options) -> FolderSource:
    source = FolderSource(folder, spec=text, classes=options.classes)
    source.label_place = LabelPlace("folder", (folder,), existing(text))
    return source


def _of_split(files: list[Path], text: str, split: str | None) -> list[Path]:
    """The files of a split, by the beginning of their names, as on the Hugging Face hub."""

    def belongs(file: Path, name: str) -> bool:
        return file.stem == name or file.stem.startswith((f"{name}-", f"{name}_", f"{name}."))

    present = [name for name in SPLITS if any(belongs(file, name) for file in files)]
    if split is None and len(present) > 1:
        raise DataError(
            f"{text} holds {files[0].suffix} files of the splits {', '.join(present)}; pass "
            f"split={present[0]!r}"
        )
    chosen = files if split is None else [file for file in files if belongs(file, split)]
    if not chosen:
        raise DataError(
            f"no {files[0].suffix} file of {text} begins with {split!r}, so there is no split"
        )
    return chosen


def _file(file: Path, text: str, options: Options) -> ExampleSource | EmbeddingSource:
    """Open one file, by its suffix and the names of its columns."""
    suffix = file.suffix.lower()
    is_list = suffix in (*JSON_SUFFIXES, *LIST_SUFFIXES)
    if suffix in LINE_SUFFIXES or (options.are_sentences and suffix != ".parquet"):
        return sentences_in_file(file, text, options, is_table=is_list)
    if suffix == ".parquet":
        return parquet_source([file], text, options)
    if suffix in JSON_SUFFIXES or (suffix in LIST_SUFFIXES and _lists_texts(file, text, options)):
        options.images_only()
        return text_file(file, spec=text, **options.of_texts())
    if suffix in LIST_SUFFIXES:
        options.images_only()
        return csv_images(
            file, spec=text, classes=options.classes, split=options.split,
            image=options.image_column, label=options.label_column,
        )  # fmt: skip
    if is_idx(file):
        return idx_source(file, text, options)
    if suffix == TAR:
        return tar_source([file], text, options)
    if file.name.lower().endswith(PACKED_TAR):
        raise DataError(
            f"{text} is compressed, so single examples cannot be read from it; unpack it"
        )
    if suffix in ARRAY_SUFFIXES:
        arrays = stored_arrays(file)
        source = array_source(arrays, text, options)
        source.label_place = array_place_of(arrays, file, text, options)
        return source
    raise DataError(f"cannot tell what {text} is; expected {FORMS}")


def _lists_texts(file: Path, text: str, options: Options) -> bool:
    """Whether a list holds texts: as the user says, or by the names of its columns."""
    if options.text_column is not None or options.image_column is not None:
        return options.text_column is not None
    return is_text_list(csv_cells(file, text)[0])
