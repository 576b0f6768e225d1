"""Open a file that a user names: arrays, embeddings, tables and lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.data.formats import (
    EMBEDDING_COLUMNS,
    IMAGE_COLUMNS,
    ArraySource,
    EmbeddingSource,
    ParquetEmbeddings,
    ParquetSource,
    TarSource,
    array_place,
    column_values,
    common_schema,
    head_arrays,
    holds_paths,
    idx_array,
    is_text_list,
    labels_beside,
    one_column,
    parquet_paths,
    plain_array,
    stored_class_names,
    text_parquet,
)
from hardsight.data.named import DATASETS
from hardsight.data.opening._sentences import sentences_in
from hardsight.data.source import (
    ExampleSource,
    LabelPlace,
    class_indices,
    existing,
    is_pattern,
)
from hardsight.errors import DataError

if TYPE_CHECKING:
    from hardsight.data.formats import StoredArray
    from hardsight.data.opening._open import Options

LABEL_NAMES = ("labels", "label", "y", "targets")
_EXAMPLE_NAMES = ("embeddings", "embedding", "images", "x", "image")
FORMS = (
    "a folder of class folders, a .csv list, a .jsonl, .parquet or .tar file, idx files, "
    f"hub:OWNER/NAME, builtin:digits, a name ({', '.join(DATASETS)}), or arrays in "
    ".npy/.npz/.safetensors"
)


def idx_source(
    images: Path, text: str, options: Options, *, split_done: bool = False
) -> ExampleSource:
    """Pictures of an idx file, with the labels file beside it unless other labels are named."""
    options.refuse("class_weights", "bias", because="they belong to stored embeddings")
    if not split_done:
        options.refuse("split", because=f"{text} is a single file")
    labels = plain_array(options.labels, names=LABEL_NAMES, option="labels")
    place = _place_apart(options, text)
    if labels is None:
        file = labels_beside(images)
        labels = idx_array(file).whole()
        place = LabelPlace("idx", (file,), existing(text), beside=(images,))
    source = ArraySource(text, idx_array(images), labels, classes=options.classes)
    source.label_place = place
    return source


def tar_source(
    files: list[Path], text: str, options: Options, *, split_done: bool = False
) -> TarSource:
    """Pictures in tar files, as webdataset stores them."""
    options.images_only()
    options.refuse("image_column", because=f"{text} has one picture for every example")
    if not split_done:
        options.refuse("split", because=f"{text} names the files themselves")
    return TarSource(files, spec=text, classes=options.classes, label=options.label_column)


def _place_apart(options: Options, text: str) -> LabelPlace | None:
    """The file of labels that an option names."""
    place = array_place(options.labels, names=LABEL_NAMES, option="labels")
    if place is None:
        return None
    return LabelPlace("arrays", (place[0],), existing(text), name=place[1], is_apart=True)


def parquet_source(
    files: list[Path], text: str, options: Options, *, split_done: bool = False
) -> ExampleSource | EmbeddingSource:
    """Texts, pictures, paths of pictures or embeddings, depending on the columns."""
    schema = common_schema(files)
    if options.are_sentences:
        return sentences_in({n: column_values(files, n) for n in schema.names}, text, options)
    images, labels_in = options.columns_of(schema.names, text)
    has_images = not set(images).isdisjoint(schema.names)
    has_embeddings = not set(EMBEDDING_COLUMNS).isdisjoint(schema.names)
    are_texts = options.text_column is not None or (
        options.class_weights is None
        and not (has_images or has_embeddings or holds_paths(schema, options.image_column))
        and is_text_list(schema.names)
    )
    if are_texts:
        options.images_only()
        return text_parquet(files, spec=text, **options.of_texts())
    # if a head is named, lists of numbers are embeddings even beside a column of pictures
    may_be_pictures = options.class_weights is None and (has_images or not has_embeddings)
    if may_be_pictures and holds_paths(schema, options.image_column):
        options.images_only()
        return parquet_paths(
            files, schema, spec=text, classes=options.classes, split=options.split,
            by_column=not split_done, image=options.image_column, label=options.label_column,
        )  # fmt: skip
    if not split_done:
        options.refuse("split", because=f"{text} names the files themselves")
    if may_be_pictures:
        options.images_only()
        if has_images:
            pictures = ParquetSource(
                files, spec=text, classes=options.classes, label_columns=labels_in,
                image_columns=images,
            )  # fmt: skip
            label = one_column(schema, labels_in, text)
            image = one_column(schema, images, text)
            root = _root(files, text)
            pictures.label_place = LabelPlace("parquet", tuple(files), root, label, paths=image)
            return pictures
    if not has_embeddings:
        one_column(schema, (*IMAGE_COLUMNS, *EMBEDDING_COLUMNS), text)
    options.refuse("image_column", because=f"{text} holds embeddings")
    column = one_column(schema, EMBEDDING_COLUMNS, text)
    options.one_label_source()
    labels, stored, place = options.labels, None, None
    if labels is None:
        label = one_column(schema, labels_in, text)
        labels, stored = column_values(files, label), stored_class_names(schema, label)
        place = LabelPlace("parquet", tuple(files), _root(files, text), name=label)
    ids = column_values(files, "id") if "id" in schema.names else None
    rows = ParquetEmbeddings(files, column, spec=text)
    source = embedding_source(text, rows, options, labels=labels, classes=stored, ids=ids)
    source.label_place = place or _place_apart(options, text)
    return source


def _root(files: list[Path], text: str) -> Path:
    """The file or folder that was named; for a pattern, the folder of its files."""
    return files[0].parent if is_pattern(text) else existing(text)


def array_source(
    arrays: dict[str, StoredArray], text: str, options: Options
) -> ExampleSource | EmbeddingSource:
    """Embeddings or examples among the arrays of a file."""
    options.refuse("split", because=f"{text} holds arrays without splits")
    options.refuse("label_column", because=f"{text} holds arrays, which have no columns")

    def first(*names: str) -> StoredArray | None:
        return next((arrays[name] for name in names if name in arrays), None)

    labels = options.labels
    if labels is None:
        stored = first(*LABEL_NAMES)
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
    # a single array is embeddings if it has two dimensions; pictures have at least three
    if embeddings is None and alone is not None and len(alone.shape) == 2:
        embeddings = alone
    if embeddings is not None:
        return embedding_source(
            text, embeddings, options, labels=labels, ids=ids_array, arrays=arrays
        )
    examples = first("images", "x", "image") if alone is None else alone
    if examples is None:
        raise DataError(
            f"expected arrays named images, x or embeddings in {text}, got "
            f"{', '.join(arrays) or 'none'}; save with np.savez(FILE, embeddings=..., labels=...)"
        )
    options.refuse("class_weights", "bias", because="they belong to stored embeddings")
    labels = plain_array(labels, names=LABEL_NAMES, option="labels")
    return ArraySource(text, examples, labels, classes=options.classes, ids=ids_array)


def array_place_of(
    arrays: dict[str, StoredArray], file: Path, text: str, options: Options
) -> LabelPlace | None:
    """Where the labels of a file of arrays are stored; ``None`` if they are in memory."""
    if options.labels is not None:
        return _place_apart(options, text)
    label = next(name for name in LABEL_NAMES if name in arrays)
    per_example = [name for name in (*_EXAMPLE_NAMES, "ids", "id") if name in arrays]
    return LabelPlace("arrays", (file,), file, name=label, per_example=tuple(per_example))


def embedding_source(
    text: str,
    rows: StoredArray,
    options: Options,
    *,
    labels: Any,
    classes: Sequence[str] | None = None,
    ids: Any = None,
    arrays: dict[str, StoredArray] | None = None,
) -> EmbeddingSource:
    """Stored embeddings with their labels, and the head that is named or in the same file."""
    names = classes if options.classes is None else options.classes
    values = plain_array(labels, names=LABEL_NAMES, option="labels")
    # without a width the head cannot be searched for; EmbeddingSource reports the wrong shape
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
    # a head that was named takes precedence over one in the file
    if weights is None and "class_weights" in own:
        weights = own["class_weights"].whole()
        bias = own["bias"].whole() if "bias" in own else None
    if options.bias is not None:
        bias = plain_array(options.bias, names=("bias",), option="bias")
    return EmbeddingSource(
        text, rows, values, class_weights=weights, bias=bias, classes=names, ids=ids
    )
