"""The base class of all sources of examples, one example, and fingerprints of data."""

from __future__ import annotations

import copy
import glob
import hashlib
import math
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import DataError, MissingDataError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from hardsight.data.source._view import SourceView

# what a fingerprint reads of a file or an array: enough to notice a change, without reading it all
_SAMPLES, _SAMPLE_BYTES, _SAMPLE_ROWS = 16, 4096, 64
_MARKED_BYTES, _MARKED_ROWS = 64, 4096  # bytes of a row that a mark reads; rows read at once
_RANGE, _MOST_BRACED = re.compile(r"\{(\d+)\.\.(\d+)\}"), 1_000_000
HUMAN_COUNTS = "human_counts"  # the column of how many people chose each class


def in_memory(value: Any) -> NDArray[Any]:
    """Convert a tensor, sequence or array to an array in native byte order.

    bfloat16 becomes float32.

    Raises:
        DataError: some values of a masked array are masked, and their numbers mean nothing.
    """
    # a tensor is recognised by its method, so that torch need not be imported
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return np.asarray(value.float() if str(value.dtype) == "torch.bfloat16" else value)
    if isinstance(value, np.ma.MaskedArray) and (masked := int(np.sum(value.mask))):
        raise DataError(
            f"{masked:,} of {value.size:,} values of a masked array are masked; fill them "
            "(array.filled(...)), or remove their rows"
        )
    array = np.asarray(value)
    if array.dtype.isnative:
        return array
    native: NDArray[Any] = array.astype(array.dtype.newbyteorder("="))
    return native


def existing(path: str | os.PathLike[str]) -> Path:
    """The path, with ``~`` expanded.

    Raises:
        MissingDataError: it does not exist; the message says up to where the path does.
        DataError: it cannot be accessed, or is a pipe or device, reading which would block.
    """
    file = Path(path).expanduser()
    try:
        if file.is_dir() or is_regular(file):
            return file
        if file.exists():
            raise DataError(
                f"{path} is neither a file nor a folder, but a pipe, socket or device; write its "
                "content to a file first"
            )
        above = next((parent for parent in file.parents if parent.exists()), Path("."))
    except OSError as err:
        raise DataError(f"cannot open {path}: {err.strerror or err}") from err
    raise MissingDataError(f"no file or folder {path}; the path exists up to {above.resolve()}")


def is_regular(file: Path) -> bool:
    """Whether a path leads to a plain file; reading a pipe or a device might never end."""
    return stat.S_ISREG(file.stat().st_mode) if file.exists() else False


def check_listable(folder: Path) -> None:
    """Raise ``DataError`` if the folder may not be listed."""
    try:
        os.scandir(folder).close()
    except OSError as err:
        raise DataError(
            f"cannot list {folder}: {err.strerror or err}; check its permissions"
        ) from err


def matching(pattern: str) -> list[Path]:
    """The files that match a glob pattern, sorted.

    Raises:
        MissingDataError: no file matches.
    """
    paths = (Path(name) for name in glob.glob(os.path.expanduser(pattern), recursive=True))
    files = sorted(path for path in paths if path.is_file())
    if not files:
        raise MissingDataError(f"no file matches {pattern}; check the pattern and its folder")
    return files


def braced(text: str) -> list[str]:
    """The names that webdataset's ``{000..146}`` stands for; the text itself without one.

    Example:
        >>> braced("train-{08..10}.tar")
        ['train-08.tar', 'train-09.tar', 'train-10.tar']
    """
    braces = _RANGE.search(text)
    if braces is None:
        return [text]
    first, last = braces.groups()
    if int(last) - int(first) >= _MOST_BRACED:
        raise DataError(f"expected up to {_MOST_BRACED:,} files in {braces.group()}, got more")
    numbers = (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    before, behind = text[: braces.start()], text[braces.end() :]
    return [name for number in numbers for name in braced(f"{before}{number}{behind}")]


def is_pattern(text: str) -> bool:
    """Whether ``text`` is a glob pattern: it has wildcards, and there is no file of that name."""
    # a folder may be called photos[1]
    return glob.has_magic(text) and not os.path.exists(os.path.expanduser(text))


class Fingerprint:
    """A SHA-256 over several facts."""

    def __init__(self, kind: str) -> None:
        self._digest = hashlib.sha256()
        self.add(kind)

    def add(self, *facts: object) -> Fingerprint:
        """Add facts that their text describes completely."""
        for fact in facts:
            # file names that are not UTF-8 contain lone surrogates
            self._take(str(fact).encode("utf-8", "surrogatepass"))
        return self

    def add_names(self, names: Iterable[str]) -> Fingerprint:
        """Add names, such as those of the classes."""
        # their number first, so that two lists after each other cannot be read as one
        return self.add(len(names := list(names)), *names)

    def add_array(self, array: NDArray[Any]) -> Fingerprint:
        """Add all of a small array, such as the labels."""
        self.add(array.shape, array.dtype)
        # hash the buffer itself without a copy: there may be a hundred million labels
        flat = np.ascontiguousarray(array).reshape(-1)
        self._take(flat.view(np.uint8).data if flat.size else b"")
        return self

    def add_rows(self, array: Any) -> Fingerprint:
        """Add the shape, dtype and evenly spaced rows of a large array, in memory or stored."""
        self.add(array.shape, array.dtype)
        for row in evenly_spaced(array.shape[0], _SAMPLE_ROWS):
            rows = array.read(row, row + 1) if hasattr(array, "read") else array[row : row + 1]
            self._take(np.ascontiguousarray(rows).tobytes())
        return self

    def add_stamp(self, file: str | bytes | Path) -> Fingerprint:
        """Add the size and modification time of a file; ``OSError`` if it does not exist."""
        facts = os.stat(file)
        return self.add(facts.st_size, facts.st_mtime_ns)

    def add_file(self, file: Path) -> Fingerprint:
        """Add the size and evenly spaced pieces of a file, including its end."""
        size = file.stat().st_size
        self.add(size)
        with file.open("rb") as source:
            # footers of parquet and zip files are at the end, where changes show
            for offset in evenly_spaced(max(size - _SAMPLE_BYTES, 0) + 1, _SAMPLES):
                source.seek(offset)
                self._take(source.read(_SAMPLE_BYTES))
        return self

    def hexdigest(self) -> str:
        """The fingerprint of everything taken in so far."""
        return self._digest.hexdigest()

    def _take(self, content: bytes | memoryview) -> None:
        # the length before each fact: otherwise "ab", "c" and "a", "bc" would have the same digest
        self._digest.update(len(content).to_bytes(8, "little"))
        self._digest.update(content)


def evenly_spaced(length: int, count: int) -> list[int]:
    """Up to ``count`` distinct positions from first to last.

    Example:
        >>> evenly_spaced(100, 3)
        [0, 50, 99]
    """
    # a set, because in a short list the same position would occur twice
    return sorted({round(x) for x in np.linspace(0, length - 1, min(count, length))})


def row_marks(array: Any, *, most_bytes: int = 2**32) -> NDArray[np.int64] | None:
    """A number for every row of an array, in memory or stored, from evenly spaced bytes of it.

    ``None`` if the array is too large to read through quickly.
    """
    length, row_bytes = array.shape[0], array.dtype.itemsize * math.prod(array.shape[1:])
    if not 0 < length * row_bytes <= most_bytes:
        return None
    places = evenly_spaced(row_bytes, _MARKED_BYTES)
    # a random projection: equal rows have equal marks, and different rows almost never do
    weights = np.random.default_rng(0).integers(1, 2**40, len(places))
    marks = [np.empty(0, dtype=np.int64)]
    for start in range(0, length, _MARKED_ROWS):
        stop = min(start + _MARKED_ROWS, length)
        rows = array.read(start, stop) if hasattr(array, "read") else array[start:stop]
        plain = np.ascontiguousarray(rows).reshape(stop - start, -1).view(np.uint8)
        marks.append(plain[:, places].astype(np.int64) @ weights)
    return np.concatenate(marks)


@dataclass(frozen=True)
class Example:
    """One decoded example.

    Attributes:
        id: path relative to the folder, key, or position as text.
        label: class index.
        content: an upright RGB or grey ``PIL.Image``, a numpy array, or anything else that a
            user's own dataset yields.
    """

    id: str
    label: int
    content: Any


class InputKind(ABC):
    """One kind of input, such as text: how examples become a batch, and how they are shown.

    A source without a kind holds pictures, arrays, or what a user's own dataset yields.

    Attributes:
        name: its name in messages and metadata, such as ``"text"``.
        origin: what is done to examples before a model sees them, in words.
        batches_at_once: number of batches that are read together, so that examples of similar
            length can go through the model together; each still has its own row.
        in_processes: whether loader processes help.
        task: what a model does with an example: ``"classify"`` it, or ``"predict"`` its tokens.
        has_words: whether it needs a tokenizer.
        has_one_shape: whether batches with the same number of examples have the same shape.
    """

    name: str
    origin: str = ""
    task: str = "classify"
    batches_at_once: int = 1
    in_processes: bool = True
    has_words: bool = False
    has_one_shape: bool = True

    @abstractmethod
    def collated(self, contents: list[Any]) -> tuple[Any, Mapping[str, ArrayLike]]:
        """Inputs of a batch, and what was noticed of its rows, by name, ``[R]`` each."""

    @abstractmethod
    def small(self, content: Any) -> bytes | str | None:
        """A small view of an example: an encoded picture, or a few words."""

    def large(self, content: Any) -> bytes | str | None:
        """All of an example that a person can look at; as :meth:`small` by default."""
        return self.small(content)

    def read_for(self, model: Any, reader: Any, *, batch_size: int) -> InputKind:
        """The same kind, read as a model wants it.

        Args:
            model: the network.
            reader: what makes its inputs, such as a tokenizer; ``None`` if it has none.
            batch_size: examples at once.
        """
        return self

    def at_once(self, batch_size: int) -> InputKind:
        """The same kind, in batches of another size, to try a model on."""
        return self

    def padded_twice(self, inputs: Any) -> tuple[Any, Any] | None:
        """The same examples with little padding and with more, which a model must not notice.

        Returns:
            ``None`` if nothing of the kind is ever padded.
        """
        return None

    def without_padding(self) -> InputKind:
        """The same kind for a model that padding affects: batches have inputs of one length."""
        return self

    def spread(self, contents: list[Any]) -> Spread | None:
        """The rows of some examples; ``None`` if each example is a row."""
        return None

    def packed(self, contents: list[Any]) -> tuple[Tensor, int]:
        """Examples to train on, ``[N, K, L]``, and how many of them were cut.

        Args:
            contents: of the examples, ``None`` for one that cannot be read, whose row nobody sees.

        Raises:
            DataError: examples of this kind are not trained on.
        """
        raise DataError(f"examples of the kind {self.name!r} are not trained on; score them")

    def unpacked(self, rows: Tensor) -> dict[str, Tensor]:
        """Inputs of a model from some rows of :meth:`packed`, ``[B, K, L]``."""
        raise DataError(f"examples of the kind {self.name!r} are not packed")


@dataclass(frozen=True)
class Spread:
    """Rows of examples that have several each, example after example.

    Attributes:
        index: number of each row among those of all examples, ``[R]``.
        ids: names of the rows.
        labels: class index of each row, ``[R]``.
    """

    index: ArrayLike
    ids: list[str]
    labels: ArrayLike


@dataclass(frozen=True)
class Parts:
    """Inputs of a batch in parts that each go through the model by themselves.

    Attributes:
        inputs: of each part.
        order: for each row of the batch its place in all parts together, ``[R]``.
        sizes: rows of each part.
    """

    inputs: list[Any]
    order: list[int] | NDArray[np.int64]
    sizes: list[int]

    def split(self, of_rows: Sequence[str]) -> list[list[str]]:
        """What belongs to the rows of the batch, such as their names, part by part."""
        inside = iter([of_rows[row] for row in np.argsort(self.order)])
        return [list(islice(inside, size)) for size in self.sizes]


@dataclass(frozen=True)
class Loading:
    """How a user's DataLoader loads; ``None`` leaves the choice to the caller."""

    batch_size: int | None = None
    workers: int | None = None
    collate: Callable[[list[Any]], Any] | None = None
    worker_init: Callable[[int], None] | None = None
    context: Any = None


@dataclass(frozen=True)
class LabelPlace:
    """Where the labels of a source are stored, which is needed to write a corrected copy.

    Attributes:
        form: ``"folder"``, ``"list"``, ``"lines"``, ``"parquet"``, ``"idx"`` or ``"arrays"``.
        files: the files with the labels, in order; for class folders, their parent folder.
        root: what the user named: a folder, or the file itself.
        name: name of the column or array with the labels.
        rows: rows of the stored labels that the source has, ``[N]``, if it does not have all.
        per_example: names of other arrays with a row per example.
        paths: name of the column with the paths of pictures, if the data has paths.
        beside: other files of the data, such as the pictures of idx files.
        is_apart: whether the labels are in a file of their own, apart from the examples.
    """

    form: str
    files: tuple[Path, ...]
    root: Path
    name: str = ""
    rows: NDArray[np.int64] | None = None
    per_example: tuple[str, ...] = ()
    paths: str = ""
    beside: tuple[Path, ...] = ()
    is_apart: bool = False


class ExampleSource(ABC):
    """Labelled examples by position; must be picklable to be sent to loader workers.

    To write a source of your own, derive from this class and define ``spec``, ``classes``,
    ``__len__``, ``__getitem__`` and ``fingerprint``. Everything else has a default.

    Attributes:
        spec: the data as the user named it; for a Python object, the name of its class.
        classes: names, position = label; empty if a user's dataset does not name them.
        loading: settings of the DataLoader that the data came in.
        images: all pictures, uint8 ``[N, H, W]`` or ``[N, H, W, 3]``, if they are decoded in
            memory.
        numbers: position of every example in the data that was named, ascending, ``[N]``, if it
            differs from the position here, as for the sampler of a DataLoader.
        whole: the data that rows were chosen from with ``rows=``.
        passed_over: files beside the examples that are not examples, as ``{kind: count}``.
        is_stream: whether reading starts at the first example every time.
        is_model_ready: whether tensors and arrays of a user's own dataset are already the model's
            inputs.
        stored_form: what :meth:`stored_bytes` returns, rows of an array or files; examples of
            different forms cannot be compared.
        has_files: whether every example is a file of its own, see :meth:`file_of`.
        kind: kind of input; ``None`` for pictures, arrays, and what a user's own dataset yields.
        shown: the same examples as people see them, if they are different here, such as texts that
            were turned into tokens.
        label_place: where the labels are stored; ``None`` if they are not in a file of the user.
        patches: facts about the patches that changed its labels, in their order.
    """

    spec: str
    classes: tuple[str, ...]
    loading: Loading = Loading()
    images: NDArray[np.uint8] | None = None
    numbers: NDArray[np.int64] | None = None
    whole: ExampleSource | None = None
    passed_over: Mapping[str, int] = {}
    is_stream: bool = False
    is_model_ready: bool = False
    stored_form: str = "rows"
    has_files: bool = False
    kind: InputKind | None = None
    shown: ExampleSource | None = None
    label_place: LabelPlace | None = None
    patches: tuple[Mapping[str, Any], ...] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Example:
        """The decoded example; ``BadExampleError`` if it cannot be read."""
        ...

    @abstractmethod
    def fingerprint(self) -> str:
        """A SHA-256 that changes if the data changes, computed without reading all of it."""
        ...

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Class indices, ``[N]``, read once; by default this decodes every example."""
        return np.array([self[index].label for index in range(len(self))], dtype=np.int64)

    @property
    def named_classes(self) -> tuple[str, ...]:
        """``classes``, or numbers up to the highest label if the data does not name them.

        Raises:
            LabelError: labels are so few and so large that they must be identifiers.
        """
        from hardsight.data.source._labels import numbered_names

        return self.classes or numbered_names(self.labels, f"the labels of {self.spec}")

    def label_of(self, index: int) -> int:
        """Label of the example, without decoding it if possible."""
        return int(self.labels[index])

    def id_of(self, index: int) -> str:
        """Name of the example, without decoding it."""
        return str(index)

    def sample(self, index: int) -> Any:
        """What a user's own dataset yields, for the ``collate_fn`` of ``loading``."""
        raise NotImplementedError(f"{type(self).__name__} has no collate_fn to feed")

    def column(self, name: str) -> NDArray[Any] | None:
        """A column stored beside the examples, such as ``human_counts``; ``None`` without it."""
        return None

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns stored beside the examples, as far as they are known."""
        return ()

    def numbered(self, positions: ArrayLike) -> NDArray[np.int64]:
        """The numbers of the examples at ``positions``; see ``numbers``."""
        at = np.asarray(positions, dtype=np.int64)
        return at if self.numbers is None else self.numbers[at]

    @property
    def num_rows(self) -> int:
        """Number of rows in a table of this data: one per example, or more for some kinds."""
        return len(self)

    @property
    def row_columns(self) -> dict[str, Any]:
        """Additional columns for a table of this data, as arrays of pyarrow."""
        return {}

    @property
    def span(self) -> int:
        """One more than the largest number: how many rows a list by number has."""
        return len(self) if self.numbers is None else int(self.numbers[-1]) + 1

    def position_of(self, number: int) -> int:
        """The position of the example with this number; see ``numbers``."""
        return number if self.numbers is None else int(np.searchsorted(self.numbers, number))

    def file_of(self, index: int) -> Path:
        """The file of an example, if it has one of its own; see ``has_files``.

        Raises:
            DataError: it has none.
        """
        raise DataError(f"the examples of {self.spec} are not files of their own")

    def stored_marks(self) -> NDArray[np.int64] | None:
        """A number for every example, ``[N]``, that is equal if the same bytes are stored.

        It is computed without decoding, such as the size of a file, so different examples may have
        the same number. It is negative if there is nothing to compare. ``None`` if a source cannot
        tell.
        """
        return None if self.images is None else row_marks(self.images)

    def stored_bytes(self, index: int) -> bytes:
        """The example as it is stored, if :meth:`stored_marks` knows it.

        Raises:
            OSError: it cannot be read.
        """
        assert self.images is not None
        return bytes(self.images[index].tobytes())

    def pictures_mark(self) -> str | None:
        """A digest that changes when a stored picture may have changed, with any label.

        ``None`` if the pictures are not stored in files, or lie decoded in memory already.
        """
        return None

    def hold_to(self, marks: Mapping[int, str], *, every: int) -> None:  # noqa: B027 (a default)
        """Compare what is read of a stream with what was read of it before.

        The fingerprint of a stream only covers its first examples, so it is the same for two
        streams that begin alike. For other sources the fingerprint is enough.

        Args:
            marks: marks from :meth:`mark_at`, by position.
            every: number of examples between two marks.
        """

    def mark_at(self, position: int) -> str | None:
        """A digest of all examples of a stream before ``position``, once they have been read."""
        return None

    def subset(self, rows: ArrayLike) -> ExampleSource:
        """The examples at ``rows``, in that order."""
        view = self._view(rows=rows)
        view.spec = f"{len(view):,} of {self.spec}"
        return view

    def chosen(self, rows: ArrayLike) -> ExampleSource:
        """The examples at ``rows``, ascending, under the same name and with their own numbers."""
        view = self._view(rows=rows)
        view.whole = self
        return view

    def relabelled(
        self, labels: ArrayLike, *, classes: tuple[str, ...] | None = None, spec: str | None = None
    ) -> ExampleSource:
        """The same examples with other labels, ``[N]``, of the same or of other classes."""
        return self._view(labels=labels, classes=classes, spec=spec)

    def renumbered(
        self, labels: Sequence[int], classes: Sequence[str], *, spec: str | None = None
    ) -> ExampleSource:
        """The same examples with other numbers for their classes, also of a stream.

        Args:
            labels: new label of each old one, ``[C]``; several may become one.
            classes: names, position = new label.
            spec: what the result is called; as this source if ``None``.
        """
        return self._view(renumber=labels, classes=classes, spec=spec)

    def of_kind(self, kind: InputKind | None) -> ExampleSource:
        """The same examples, read in another way."""
        other = copy.copy(self)
        other.kind = kind
        return other

    def without_labels(self) -> ExampleSource:
        """The same examples with every label replaced by -1."""
        return self._view(labels=np.full(len(self), -1))

    def _view(self, **changes: Any) -> SourceView:
        from hardsight.data.source._view import SourceView

        return SourceView([self], **changes)


def check_lengths(spec: str, what: str, shape: tuple[int, ...], **columns: Any) -> None:
    """Raise ``ShapeError`` unless every column that is there has a value per example."""
    for name, values in columns.items():
        if values is not None and len(values) != shape[0]:
            raise ShapeError(
                f"expected one row per example, got {what} {list(shape)}, {name} [{len(values)}] "
                f"in {spec}; pass the {name} of these {what}"
            )


def id_at(ids: Any, index: int) -> str:
    """The stored id at a position as text; the position itself if none are stored."""
    if ids is None:
        return str(index)
    value = ids[index]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
