"""Stored embeddings, and the classifier head that belongs to them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from hardsight._checks import warn
from hardsight.data.formats._stored import (
    ARRAY_SUFFIXES,
    ChosenRows,
    StoredArray,
    split_member,
    stored_arrays,
)
from hardsight.data.source import (
    ExampleSource,
    Fingerprint,
    LabelPlace,
    are_names,
    check_lengths,
    class_indices,
    class_names,
    evenly_spaced,
    existing,
    id_at,
    in_memory,
)
from hardsight.errors import AmbiguousHeadError, DataError, LabelError, OptionError, ShapeError

# Bounds of the sample that tells how a square head is stored: rows, and multiplications.
_SAMPLED_ROWS, _SAMPLED_PRODUCTS = 2048, 10**9
_CLEAR = 4.0  # standard deviations of a fair coin, beyond which the sample counts as clear
_LONGEST = 8  # bytes per number; torch has no longer floats


class EmbeddingSource:
    """Embeddings ``[N, D]`` with labels ``[N]``, read chunk by chunk.

    Args:
        spec: how the user named the data.
        rows: the embeddings.
        labels: one label per row, in any form that :func:`class_indices` takes.
        class_weights: rows of the classifier head, ``[C, D]``.
        bias: bias of the head, ``[C]``.
        classes: class names; the position of a name is its label.
        ids: one id per row; ``None`` uses positions.

    Attributes:
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        width: D.
        dtype: dtype of the chunks.
        labels: ``[N]`` int64.
        class_weights: ``[C, D]``, or ``None`` if the file holds none.
        bias: ``[C]`` or ``None``.
        shown: the examples that the embeddings were computed from, as people see them, if they are
            available.
        made_of: the source, opened by name, whose examples these are, row for row and label for
            label. If it is set, a run is about that source.
        label_place: where the labels are stored; ``None`` if they are not in a file of the user's.
        patches: facts about the patches that changed the labels, in the order they were applied.
        numbers: as in :class:`ExampleSource`.
        whole: the embeddings that rows were chosen from, if ``rows=`` chose some.

    Raises:
        ShapeError: lengths or widths do not match, or a square head is transposed.
        LabelError: a label is not an index in ``[0, C)``.
    """

    shown: ExampleSource | None = None
    made_of: ExampleSource | None = None
    label_place: LabelPlace | None = None
    patches: tuple[Mapping[str, Any], ...] = ()
    numbers: NDArray[np.int64] | None = None
    whole: EmbeddingSource | None = None

    def __init__(
        self,
        spec: str,
        rows: StoredArray,
        labels: Any,
        *,
        class_weights: NDArray[Any] | None = None,
        bias: NDArray[Any] | None = None,
        classes: Sequence[str] | None = None,
        ids: Any = None,
    ) -> None:
        self.spec, self._rows, self._ids = spec, rows, ids
        if len(rows.shape) != 2 or rows.dtype.kind != "f" or rows.dtype.itemsize > _LONGEST:
            raise ShapeError(
                f"expected embeddings [N, D] of floats of at most 64 bits in {spec}, got "
                f"{list(rows.shape)} of {rows.dtype}"
            )
        if not all(rows.shape):
            raise DataError(f"no embeddings in {spec}: the array is {list(rows.shape)}")
        self.width, self.dtype = rows.shape[1], rows.dtype
        self.class_weights, self.bias = class_weights, bias
        self._check_head()
        self.labels, self.classes = class_indices(
            labels, classes=self._names(classes, labels), where=f"the labels of {spec}"
        )
        # labels given by name do not mention classes without examples, which the head may have
        if class_weights is not None and len(self.classes) != len(class_weights):
            raise LabelError(
                f"the labels of {spec} name {len(self.classes)} classes, but class_weights has "
                f"{len(class_weights)} rows; pass classes=[...], one name per row"
            )
        check_lengths(spec, "embeddings", rows.shape, labels=self.labels, ids=ids)
        self._check_which_way()

    def __len__(self) -> int:
        return self._rows.shape[0]

    def chunk(self, start: int, stop: int) -> NDArray[Any]:
        """Return embeddings ``start`` to ``stop``, ``[n, D]``, as a view if possible."""
        return self._rows.read(start, stop)

    def ids(self, start: int, stop: int) -> pa.Array:
        """Return the ids of examples ``start`` to ``stop``, as the table's column."""
        if self._ids is None:
            return pa.array(self.numbered(range(start, min(stop, len(self))))).cast(pa.string())
        return pa.array([self.id_of(index) for index in range(start, min(stop, len(self)))])

    def id_of(self, index: int) -> str:
        """Return the id of the example."""
        return id_at(self._ids, index if self._ids is not None else int(self.numbered(index)))

    def numbered(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Return the numbers of the rows at ``positions``; see ``numbers``."""
        at = np.asarray(positions, dtype=np.int64)
        return at if self.numbers is None else self.numbers[at]

    def chosen(self, rows: NDArray[np.int64]) -> EmbeddingSource:
        """Return some rows, in ascending order, under the same name and with their old numbers."""
        other = copy.copy(self)
        other._rows, other.labels = ChosenRows(self._rows, rows), self.labels[rows]
        other._ids = None if self._ids is None else np.asarray(self._ids)[rows]
        other.numbers, other.whole = self.numbered(rows), self
        other.shown = None if self.shown is None else self.shown.subset(rows)
        return other

    def position_of(self, number: int) -> int:
        """Return the position of the example with this number; see ``numbers``."""
        return number if self.numbers is None else int(np.searchsorted(self.numbers, number))

    def label_of(self, index: int) -> int:
        """Return the label of the example."""
        return int(self.labels[index])

    def renumbered(self, labels: Sequence[int], classes: Sequence[str]) -> EmbeddingSource:
        """Return the same rows with their classes renumbered.

        Args:
            labels: the new label of each old one.
            classes: class names; the position of a name is its new label.
        """
        other = self.relabelled(np.asarray(labels, dtype=np.int64)[self.labels])
        other.classes = tuple(classes)
        return other

    def relabelled(self, labels: NDArray[np.int64]) -> EmbeddingSource:
        """Return the same rows with other labels, ``[N]``, of the same classes."""
        other = copy.copy(self)
        # with other labels, these are no longer the examples of that source
        other.labels, other.made_of = labels, None
        return other

    def fingerprint(self) -> str:
        """Return the SHA-256 of shapes, labels, class weights and evenly spaced rows."""
        if self.made_of is not None:
            return self.made_of.fingerprint()
        mark = Fingerprint("embeddings")
        self._rows.add_to(mark)
        mark.add_array(self.labels).add_names(self.classes)
        for array in (self.class_weights, self.bias):
            if array is not None:
                mark.add_rows(array)
        return mark.hexdigest()

    def _check_head(self) -> None:
        weights, bias = self.class_weights, self.bias
        for name, array in (("class_weights", weights), ("bias", bias)):
            if array is not None and (
                array.dtype.kind not in "fiu" or array.dtype.itemsize > _LONGEST
            ):
                raise ShapeError(
                    f"expected {name} of numbers of at most 64 bits, got {array.dtype}; convert "
                    f"them: {name}.astype(numpy.float64)"
                )
        if weights is not None and (weights.ndim != 2 or weights.shape[1] != self.width):
            raise ShapeError(
                f"expected embeddings [N, D] and class_weights [C, D] of the same width D, got "
                f"embeddings {list(self._rows.shape)}, class_weights {list(weights.shape)}; pass "
                "the head these embeddings feed"
            )
        if bias is not None and weights is not None and bias.shape != weights.shape[:1]:
            raise ShapeError(
                f"expected one bias per class, got class_weights {list(weights.shape)}, bias "
                f"{list(bias.shape)}"
            )

    def _check_which_way(self) -> None:
        """Check which way a square head is stored, since its shape does not tell.

        On a sample of rows, this counts how often each of the two readings predicts the label.

        Raises:
            ShapeError: the transposed head predicts far more labels than the head as given.
        """
        weights = self.class_weights
        if weights is None or weights.shape[0] != self.width or self.width < 2:
            return
        # a symmetric matrix is the same either way
        if np.array_equal(weights, weights.T):
            return
        # bounded, because a wide head costs D^2 multiplications per row
        most = max(64, min(_SAMPLED_ROWS, _SAMPLED_PRODUCTS // self.width**2))
        picked = evenly_spaced(len(self), most)
        with np.errstate(all="ignore"):  # scoring reports rows that are not finite
            rows = np.stack([self._rows.read(at, at + 1)[0] for at in picked]).astype(np.float32)
            head = weights.astype(np.float32, copy=False)
            bias = 0.0 if self.bias is None else self.bias.astype(np.float32)
            ways = [(rows @ way + bias).argmax(axis=1) for way in (head.T, head)]
        given, turned = (found == self.labels[picked] for found in ways)
        only_given, only_turned = int((given & ~turned).sum()), int((turned & ~given).sum())
        # A sign test: if neither reading were better, each would get half of the rows that only one
        # of them predicts correctly, like a fair coin.
        lead = (only_given - only_turned) / max(only_given + only_turned, 1) ** 0.5
        if lead > _CLEAR:
            return
        said = f"{given.mean():.1%} of {len(picked):,} sampled labels, and transposed"
        if lead < -_CLEAR:
            raise ShapeError(
                f"class_weights of {self.spec} are square, {list(weights.shape)}, and as given, a "
                f"row per class, they predict {said} {turned.mean():.1%}: they seem to be stored "
                "as a column per class; store or pass class_weights.T"
            )
        warn(
            f"class_weights of {self.spec} are square, {list(weights.shape)}, and are read as a "
            f"row per class, [C, D]: so they predict {said} {turned.mean():.1%}, which does not "
            "tell the two readings apart; if they are stored as a column per class, transpose them"
        )

    def _names(self, classes: Sequence[str] | None, labels: Any) -> tuple[str, ...] | None:
        """Return a name for every row of the head, including classes without examples."""
        if self.class_weights is None:
            return None if classes is None else class_names(classes)
        count = len(self.class_weights)
        if classes is None:
            # labels given by name bring their own class names
            return None if are_names(labels) else tuple(str(index) for index in range(count))
        if len(classes) != count:
            raise ShapeError(
                f"expected one class name per row of class_weights, got {len(classes)} names and "
                f"class_weights {list(self.class_weights.shape)}"
            )
        return class_names(classes)


def plain_array(value: Any, *, names: tuple[str, ...], option: str) -> NDArray[Any] | None:
    """Return an array given as an array, as a tensor, or as a file that holds it.

    Args:
        value: array, tensor, sequence, path, ``FILE:NAME``, or ``None``.
        names: names that the array may be stored under; the only array in a file needs no name.
        option: what the array is called in messages.
    """
    if value is None:
        return None
    if not _is_path(value):
        return in_memory(value)
    arrays, name = _opened(value, option)
    return arrays[_chosen_array(arrays, name, value, names, option)].whole()


def array_place(value: Any, *, names: tuple[str, ...], option: str) -> tuple[Path, str] | None:
    """Return file and name of the array that :func:`plain_array` reads; ``None`` if not a file."""
    if value is None or not _is_path(value):
        return None
    arrays, name = _opened(value, option)
    file = existing(split_member(str(value))[0])
    return file, _chosen_array(arrays, name, value, names, option)


def _chosen_array(
    arrays: dict[str, StoredArray],
    name: str | None,
    value: Any,
    names: tuple[str, ...],
    option: str,
) -> str:
    # documented names first; the only array in a file needs no name
    keys = [name] if name is not None else [key for key in names if key in arrays]
    if not keys and len(arrays) == 1:
        keys = list(arrays)
    if not keys:
        raise DataError(
            f'no {option} in {value}: it holds {_listed(arrays)}; pass {option}="{value}:NAME"'
        )
    return keys[0]


def head_arrays(
    value: Any, *, width: int, least_classes: int, classes: int | None
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return class weights ``[C, D]`` and bias ``[C]`` of the head in a file or array.

    In a state dict, the head is the only matrix of width ``D`` with enough rows. The bias of the
    same layer is returned with it.

    Args:
        value: array, tensor, path, ``FILE:NAME``, or ``None``.
        width: D.
        least_classes: the highest label plus one.
        classes: C, if it is known.

    Raises:
        ShapeError: no array has that width.
        AmbiguousHeadError: several arrays fit; the message names them.
    """
    if value is None:
        return None, None
    if not _is_path(value):
        return in_memory(value), None
    arrays, name = _opened(value, "class_weights")
    if name is None:
        name = _only_head(arrays, str(value), width, least_classes, classes)
    bias = arrays.get(_bias_name(name))
    weights = _matrix(arrays[name])
    # a vector of another length belongs to another layer, so it is not this head's bias
    if bias is None or bias.shape != weights.shape[:1]:
        return weights, None
    return weights, bias.whole()


def _is_path(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "__fspath__")


def _opened(value: Any, option: str) -> tuple[dict[str, StoredArray], str | None]:
    text, name = split_member(str(value))
    file = existing(text)
    if file.suffix.lower() not in ARRAY_SUFFIXES:
        raise OptionError(f"expected {option} in one of {', '.join(ARRAY_SUFFIXES)}, got {value}")
    arrays = stored_arrays(file)
    if name is not None and name not in arrays:
        raise DataError(f"no array {name!r} in {text}: it holds {_listed(arrays)}")
    return arrays, name


def _only_head(
    arrays: dict[str, StoredArray], file: str, width: int, least_classes: int, classes: int | None
) -> str:
    if "class_weights" in arrays:
        return "class_weights"
    wide = [name for name, array in arrays.items() if _could_be_head(array, width)]
    fitting = [
        name
        for name in wide
        # a head may have more classes than occur among the labels, but not fewer
        if arrays[name].shape[0] >= least_classes and classes in (None, arrays[name].shape[0])
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise ShapeError(
            f"expected class_weights [C, {width}] with C >= {least_classes} in {file}, as wide as "
            f"the embeddings and with a row for every label, got {_listed(arrays)}"
        )
    raise AmbiguousHeadError(
        f"{len(fitting)} arrays in {file} could be the head ({', '.join(fitting)}); pass "
        f'class_weights="{file}:{fitting[-1]}"'
    )


def _could_be_head(array: StoredArray, width: int) -> bool:
    shape = array.shape
    return (
        array.dtype.kind == "f"
        and len(shape) >= 2
        and shape[1] == width
        and all(length == 1 for length in shape[2:])  # a 1x1 convolution also serves as a head
    )


def _matrix(array: StoredArray) -> NDArray[Any]:
    values = array.whole()
    if values.ndim > 2 and all(length == 1 for length in values.shape[2:]):
        return values.reshape(values.shape[:2])
    return values


def _bias_name(name: str) -> str:
    return name.removesuffix("weight") + "bias" if name.endswith("weight") else "bias"


def _listed(arrays: dict[str, StoredArray], limit: int = 8) -> str:
    shown = [f"{name or 'one array'} {list(array.shape)}" for name, array in arrays.items()]
    return ", ".join(shown[:limit]) + (", ..." if len(shown) > limit else "") or "no arrays"
