"""Sources for a user's own torch datasets: map-style, streamed, or inside a DataLoader."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data.formats._readings import check_reading, evenly_spaced_samples
from hardsight.data.source import (
    Example,
    ExampleSource,
    Fingerprint,
    Loading,
    add_sample,
    class_indices,
    class_names,
    content_digest,
    in_memory,
    single_class_index,
    states_kept,
    stream_digest,
)
from hardsight.errors import BadExampleError, DataError, HardsightError, RunMismatchError

_MOST_KEPT = 320  # samples that are kept in memory; no check looks at more
INPUT_KEYS = ("pixel_values", "image", "images", "img", "input", "inputs", "x")
LABEL_KEYS = ("labels", "label", "target", "targets", "y")


class StreamSamples:
    """The samples of a stream, whose first ones can be looked at without losing them.

    The first full pass continues the iterator that earlier looks have started. Some datasets cannot
    start again and do not say so, such as those that wrap a generator: if every look started an
    iterator, the first examples would be lost.

    Args:
        dataset: a generator, or any iterable.
    """

    def __init__(self, dataset: Iterable[Any]) -> None:
        self._dataset, self._name = dataset, type(dataset).__name__
        self._iterator: Iterator[Any] | None = None
        self._kept: list[Any] = []
        self._count = 0  # samples that the first pass has read
        self._end: Exception | None = None  # what it ended with

    def __iter__(self) -> Iterator[Any]:
        return self._started_again() if self._count > _MOST_KEPT else self._first_pass()

    @property
    def first_read(self) -> list[Any]:
        """The first samples as far as they were read; empty if they are not kept any more."""
        return list(self._kept) if self._count <= _MOST_KEPT else []

    def _first_pass(self) -> Iterator[Any]:
        position = 0
        while position < self._count or self._reads_one():
            # beyond what is kept there is one reader, who takes each sample as it is read
            assert self._count <= _MOST_KEPT or position == self._count - 1
            yield self._kept[min(position, len(self._kept) - 1)]
            position += 1

    def _reads_one(self) -> bool:
        """Read one more sample; false at the end, however often it is asked for."""
        try:
            if self._end is not None:
                raise self._end
            if self._iterator is None:
                self._iterator = iter(self._dataset)
            sample = next(self._iterator)
        except Exception as err:  # a generator that broke would look like one that is at its end
            self._end = err
            if isinstance(err, StopIteration):
                return False
            raise
        self._count += 1
        if self._count > _MOST_KEPT:
            self._kept = []
        self._kept.append(sample)
        return True

    def _started_again(self) -> Iterator[Any]:
        again = iter(self._dataset)
        if again is self._iterator:
            raise DataError(
                f"a {self._name} can be read only once, and more than its first {_MOST_KEPT:,} "
                "samples have been read; pass a list, a Dataset, or an IterableDataset that can "
                "start again"
            )
        count = 0
        for sample in again:
            count += 1
            yield sample
        if count < self._count:
            raise DataError(
                f"the stream {self._name} ended after {count:,} samples, but had {self._count:,} "
                "before; make its __iter__ start again from the first sample"
            )


class DatasetSource(ExampleSource):
    """A map-style dataset: items are ``(input, label, ...)`` or mappings with such keys.

    Order is the dataset's own. An ordinary exception of the dataset's ``__getitem__`` is a bad
    example.

    Args:
        dataset: has ``__len__`` and ``__getitem__``.
        classes: names, position = label; ``dataset.classes`` if not given.
        loading: of the DataLoader the dataset came in.

    Attributes:
        spec: the dataset's class name.
        classes: names; numbered if only labels are known, empty if not even those.
        dataset: as given.
        loading: as given.
    """

    is_model_ready = True

    def __init__(
        self, dataset: Any, *, classes: Sequence[str] | None = None, loading: Loading | None = None
    ) -> None:
        self.dataset, self.loading = dataset, loading or Loading()
        self.spec = type(dataset).__name__
        if not len(dataset):
            raise DataError(f"no examples in {self.spec}: its length is 0")
        known = class_names(classes) if classes is not None else stored_classes(dataset)
        labels = stored_labels(dataset)
        self._lists_labels = labels is not None
        self.classes = known or ()
        if labels is not None:
            where = f"the labels of {self.spec}"
            self.labels, self.classes = class_indices(labels, classes=known, where=where)
        if self.loading.collate is None:  # which may put the values of a sample in another order
            check_reading(evenly_spaced_samples(dataset), spec=self.spec, listed=labels)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Example:
        content, value = split_sample(self.sample(index))
        label = single_class_index(in_memory(value), self.classes, where=self._place(index))
        return Example(self.id_of(index), label, content)

    def sample(self, index: int) -> Any:
        """What the dataset itself yields."""
        try:
            return self.dataset[index]
        except HardsightError:
            raise
        except (Exception, SystemExit) as err:  # sys.exit(0) would end a command with success
            raise BadExampleError(reason(err)) from err

    def label_of(self, index: int) -> int:
        """Label of the example; reads it if the dataset does not list its labels."""
        return int(self.labels[index]) if self._lists_labels else self[index].label

    def fingerprint(self) -> str:
        """SHA-256 over type, length, labels, stored arrays and evenly spaced examples.

        It misses a change of examples between the 16 that are read, if the dataset keeps them
        neither as ``tensors`` nor as ``data``; of labels between them, if it lists none; of content
        that is neither picture, array, number nor text; and, if the dataset draws random numbers
        from a generator of its own, of all values. Other random transforms play no part.
        """
        mark = Fingerprint("dataset").add(self.spec, len(self)).add_names(self.classes)
        if self._lists_labels:
            mark.add_array(self.labels)
        _add_content(mark, self.dataset)
        return mark.add(content_digest(self.dataset.__getitem__, len(self))).hexdigest()

    def _place(self, index: int) -> str:
        return f"example {index} of {self.spec}"


class StreamSource(ExampleSource):
    """An iterable dataset, in its own order; the position in the stream is the index.

    It is read in this process: several workers would each see the whole stream. Reading at a
    position passes over everything before it.

    Args:
        dataset: any iterable of samples. One that cannot start again, such as a generator or a
            dataset around one, serves for a single pass, and for a look at its first samples
            before it.
        classes: names, position = label; ``dataset.classes`` if not given.
        loading: of the DataLoader the dataset came in.
    """

    is_stream = True  # going back means reading from the start
    is_model_ready = True

    def __init__(
        self, dataset: Any, *, classes: Sequence[str] | None = None, loading: Loading | None = None
    ) -> None:
        self.dataset, self._samples = dataset, StreamSamples(dataset)
        self.loading = loading or Loading()
        self.spec = type(dataset).__name__
        self.classes = class_names(classes) if classes else stored_classes(dataset) or ()
        self._first: list[Any] = []  # the first sample, once it was read
        self._is_checked = False  # whether its samples were looked at
        self._marks: dict[int, str] = {}
        self._known: Mapping[int, str] = {}
        self._every: int | None = None  # without it nothing is taken in

    def __len__(self) -> int:
        try:
            return len(self.dataset)
        except (TypeError, NotImplementedError) as err:
            raise DataError(
                f"the length of the stream {self.spec} is not known before it was read "
                f"({reason(err)}); give the dataset a __len__ or iterate with batches(...)"
            ) from err

    def __getitem__(self, index: int) -> Example:
        if index == 0 and self._first:
            return self.example(0, self._first[0])
        for _, sample in self.samples(index):
            return self.example(index, sample)
        raise IndexError(f"the stream {self.spec} ends before position {index}")

    def samples(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Positions and samples of the dataset, beginning at ``start``.

        Raises:
            DataError: the stream broke; what comes after is lost, so this is not a bad example.
            RunMismatchError: it is not the stream that it is held to.
        """
        position, count, mark = start, 0, Fingerprint("read")
        try:
            for position, sample in enumerate(self._samples):
                if not self._first:
                    self._first.append(sample)
                if self._every is not None:
                    add_sample(mark, sample)
                    count = position + 1
                    if count % self._every == 0:
                        self._note(count, mark.hexdigest())
                if position >= start:
                    yield position, sample
            self._check_end(count)
        except HardsightError:
            raise
        except Exception as err:
            raise DataError(
                f"the stream {self.spec} broke after position {position}: {reason(err)}; make its "
                "__iter__ skip what it cannot read"
            ) from err

    def hold_to(self, marks: Mapping[int, str], *, every: int) -> None:
        """Compare what is read with what was read before; see :class:`ExampleSource`."""
        self._known, self._every, self._marks = dict(marks), every, {}

    def mark_at(self, position: int) -> str | None:
        """A digest of labels and a part of the contents of all examples before ``position``."""
        return self._marks.get(position)

    def _note(self, position: int, mark: str) -> None:
        self._marks[position] = mark
        if self._known.get(position, mark) != mark:
            raise RunMismatchError(
                f"the first {position:,} examples of the stream {self.spec} are not those that "
                "were scored before, although it begins in the same way; pass the same stream in "
                "the same order, choose another --out, or replace the run with --overwrite "
                "(overwrite=True)"
            )

    def _check_end(self, count: int) -> None:
        wanted = max(self._known, default=0)
        if count < wanted:
            raise RunMismatchError(
                f"the stream {self.spec} ends after {count:,} examples, and {wanted:,} of them "
                "were scored before; pass the same stream, choose another --out, or replace the "
                "run with --overwrite (overwrite=True)"
            )

    def example(self, index: int, sample: Any) -> Example:
        """One sample of the stream as an example."""
        content, value = split_sample(sample)
        place = f"example {index} of {self.spec}"
        return Example(
            str(index), single_class_index(in_memory(value), self.classes, where=place), content
        )

    def label_of(self, index: int) -> int:
        """Label of the example; reads the stream up to it."""
        return self[index].label

    def fingerprint(self) -> str:
        """SHA-256 over type, classes and the first 16 examples; what follows is not read.

        They are kept for the pass that follows. What follows is compared by :meth:`hold_to`, when
        it is read.
        """
        mark = Fingerprint("stream").add(self.spec).add_names(self.classes)
        mark.add(stream_digest(self._samples))
        self._check_reading()
        return mark.hexdigest()

    def _check_reading(self) -> None:
        """Look at the samples that :func:`stream_digest` has read, once."""
        if self.loading.collate is not None or self._is_checked:
            return
        self._is_checked = True
        check_reading(enumerate(self._samples.first_read), spec=self.spec)


def split_sample(sample: Any) -> tuple[Any, Any]:
    """Input and label of a sample or of a collated batch.

    Raises:
        DataError: it is neither a pair nor a mapping with a label.
    """
    if isinstance(sample, Mapping):
        label = next((key for key in LABEL_KEYS if key in sample), None)
        if label is not None:
            _check_one_label(sample)
            single = next((key for key in INPUT_KEYS if key in sample), None)
            rest = {key: value for key, value in sample.items() if key != label}
            return (rest if single is None else sample[single]), sample[label]
        got = f"a mapping with the keys {', '.join(map(str, sample))}"
    elif isinstance(sample, tuple | list) and len(sample) >= 2:
        return sample[0], sample[1]
    else:
        got = type(sample).__name__
    raise DataError(
        "expected every item of the dataset to be (input, label) or a mapping with 'image' and "
        f"'label', got {got}"
    )


def _check_one_label(sample: Mapping[Any, Any]) -> None:
    """Raise if a sample has several labels that differ; ``y`` may be a place in the picture."""
    named = [key for key in LABEL_KEYS if key in sample and key != "y"]
    values = [in_memory(sample[key]) for key in named] if len(named) > 1 else []
    for key, value in zip(named[1:], values[1:], strict=False):
        # a class and its one-hot form are the same label
        if value.shape == values[0].shape and not np.array_equal(value, values[0]):
            first, second = sorted([(named[0], values[0]), (key, value)], key=lambda pair: pair[0])
            raise DataError(
                f"the labels {first[0]} and {second[0]} of a sample differ ({_short(first[1])} and "
                f"{_short(second[1])}), so it is unclear which one is meant; leave one out"
            )


def _short(value: NDArray[Any]) -> str:
    return str(value.tolist())[:40]


def stored_classes(dataset: Any) -> tuple[str, ...] | None:
    """``dataset.classes``, also of what a Subset or ConcatDataset holds."""
    names = getattr(dataset, "classes", None)
    if isinstance(names, list | tuple) and names:
        return tuple(str(name) for name in names)
    features: Any = getattr(dataset, "features", None)  # of a Hugging Face dataset
    for key in LABEL_KEYS if isinstance(features, Mapping) else ():
        if getattr(features.get(key), "names", None):
            return tuple(features[key].names)
    if _is_subset(dataset):
        return stored_classes(dataset.dataset)
    if _is_concatenation(dataset):
        names_of_parts = {stored_classes(part) for part in dataset.datasets}
        return names_of_parts.pop() if len(names_of_parts) == 1 else None
    return None


def stored_labels(dataset: Any) -> Any:
    """Labels a dataset lists without reading its examples; ``None`` if it does not."""
    if _is_subset(dataset):
        inner = stored_labels(dataset.dataset)
        return None if inner is None else np.asarray(inner)[np.asarray(dataset.indices)]
    if _is_concatenation(dataset):
        parts = [stored_labels(part) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate(parts)
    values = getattr(dataset, "targets", None)
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:  # torch.utils.data.TensorDataset
        values = tensors[1]
    if values is None or getattr(dataset, "target_transform", None) is not None:
        return None
    labels = in_memory(values)
    return labels if labels.shape == (len(dataset),) and labels.dtype.kind in "biufU" else None


def reason(err: BaseException) -> str:
    """An exception in one line: type and message."""
    text = " ".join(str(err).split())
    return f"{type(err).__name__}: {text[:300]}" if text else type(err).__name__


def _is_subset(dataset: Any) -> bool:
    return hasattr(dataset, "dataset") and hasattr(dataset, "indices")


def _is_concatenation(dataset: Any) -> bool:
    return hasattr(dataset, "datasets") and hasattr(dataset, "cumulative_sizes")


def _add_content(mark: Fingerprint, dataset: Any) -> None:
    """Evenly spaced rows of the arrays a dataset keeps, and the paths it lists."""
    if _is_subset(dataset):
        mark.add_array(np.asarray(dataset.indices))
        _add_content(mark, dataset.dataset)
    for part in dataset.datasets if _is_concatenation(dataset) else ():
        _add_content(mark, part)
    for array in (*(getattr(dataset, "tensors", None) or ()), getattr(dataset, "data", None)):
        if (isinstance(array, np.ndarray) or hasattr(array, "detach")) and array.ndim:
            mark.add_rows(in_memory(array))
    mark.add(getattr(dataset, "_fingerprint", ""))  # of a Hugging Face dataset
    samples = getattr(dataset, "samples", None)
    if isinstance(samples, list):  # torchvision's (path, label)
        mark.add_names(str(sample) for sample in itertools.islice(samples, 1_000_000))


def sampled_rows(loader: Any) -> NDArray[np.int64] | None:
    """Positions that a DataLoader's sampler names, ascending; ``None`` if they are all there are.

    The sampler is asked once, and the random state it draws from is put back. ``drop_last`` plays
    no part: an example in an incomplete batch is one too.

    Raises:
        DataError: the sampler draws examples more than once, names none, or names something that
            is not a position.
    """
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    batches = loader.batch_sampler
    if batches is None:  # batch_size=None
        sampler, items = loader.sampler, loader.sampler
    elif type(batches) is BatchSampler:
        sampler, items = batches.sampler, batches.sampler
    else:
        sampler, items = batches, (item for batch in batches for item in batch)
    length = len(loader.dataset)
    # a sampler may count something shorter than the dataset, such as range(10)
    if type(sampler) is SequentialSampler and len(sampler) == length:
        return None
    if (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source) == length
    ):
        return None
    inner = (sampler, getattr(sampler, "sampler", None))
    own = [drawn for part in inner if (drawn := getattr(part, "generator", None)) is not None]
    with states_kept(*own):
        rows = _positions(items, length, type(sampler).__name__)
    return None if len(rows) == length else rows


def _positions(items: Iterable[Any], length: int, name: str) -> NDArray[np.int64]:
    seen: set[int] = set()
    for item in items:
        position = _position(item)
        if position is None or not 0 <= position < length:
            raise DataError(
                f"expected positions in [0, {length}) from the sampler {name}, got {item!r}; pass "
                "a torch Subset with the positions instead"
            )
        if position in seen:  # which also ends an endless sampler
            raise DataError(
                f"the sampler {name} draws examples more than once, so chance would decide which "
                "examples have a row; pass loader.dataset to read all of them, or a torch Subset"
            )
        seen.add(position)
    if not seen:
        raise DataError(f"the sampler {name} selects no examples; pass one that does")
    return np.array(sorted(seen), dtype=np.int64)


def _position(item: Any) -> int | None:
    try:
        return operator.index(item)
    except TypeError:
        return None
