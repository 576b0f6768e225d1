"""Open the data of a recipe: splits, normalisation, and checks of keys that do not fit it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardsight._checks import warn
from hardsight.data import (
    EmbeddingSource,
    ExampleSource,
    applied_preprocessing,
    data_marks,
    long_tailed_rows,
    open_source,
)
from hardsight.data.pixels import PixelOptions, wanted_preprocessing
from hardsight.data.source import SharedExamples, shared_examples
from hardsight.errors import ConfigError, DataError, OptionError
from hardsight.models import LoadedModel
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop import ClassOrder, decoded_once, generator, seed_of
from hardsight.run.train._config import DataConfig, TrainConfig
from hardsight.run.train._images import Decoded, statistics

_STATISTICS_ROWS = 5000  # images on which mean and deviation are measured, at most


def is_first_process() -> bool:
    """Return whether this process writes and prints, if several train together."""
    from lightning.pytorch.utilities import rank_zero_only

    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


Read = Callable[[ExampleSource], ExampleSource]


@dataclass(frozen=True)
class Sources:
    """The data of a run.

    Attributes:
        train: examples to learn from.
        validation: examples held out to select the model; ``None`` if the recipe wants none.
        test: examples for one evaluation at the end; ``None`` if the recipe names none.
        classes: class names; the position of a name is its label.
        fingerprint: fingerprint of the training split.
        chosen: fingerprint of the chosen rows, if only some rows of the split are used.
        order: which label of the data is which output of the model, once that is known.
        holds_out: whether ``validation`` is a share held out of the data, and ``train`` the rest.
        shared: for each other split, by name, how many of its examples are also in ``train``;
            ``None`` if that was not checked.
    """

    train: Decoded
    validation: Decoded | None
    test: Decoded | None
    classes: tuple[str, ...]
    fingerprint: str
    chosen: str | None = None
    order: ClassOrder | None = None
    holds_out: bool = False
    shared: Mapping[str, SharedExamples | None] = field(default_factory=dict)

    def numbered_as(self, order: ClassOrder) -> Sources:
        """Return the same examples, with the model's numbers as labels."""
        if not order.labels:
            return replace(self, order=order)

        def numbered(data: Decoded) -> Decoded:
            return Decoded(order.of(data.source), data.how, data.rows, kept=data.kept)

        return replace(self._each(numbered), classes=order.names, order=order)

    def prepared(self, how: Preprocessing) -> Sources:
        """Return the same examples with another preprocessing of the same size and channels."""

        def again(data: Decoded) -> Decoded:
            # decoded pixels have the old order of channels
            kept = data.kept if how.bgr == data.how.bgr else None
            return Decoded(data.source, how, data.rows, kept=kept)

        return self._each(again)

    def _each(self, change: Callable[[Decoded], Decoded]) -> Sources:
        parts = (self.train, self.validation, self.test)
        train, validation, test = (None if part is None else change(part) for part in parts)
        assert train is not None
        return replace(self, train=train, validation=validation, test=test)


@dataclass(frozen=True)
class PartOfData:
    """The part of the training split that one of several models is trained on.

    Attributes:
        source: the whole split, opened.
        rows: positions in it, ascending, ``[N]``.
        what: the part in words, such as ``all but fold 2 of 5``.
    """

    source: ExampleSource
    rows: NDArray[np.int64]
    what: str

    def digest(self) -> str:
        """Return a digest of the rows, which differs between two parts of the same data."""
        return hashlib.sha256(np.ascontiguousarray(self.rows).tobytes()).hexdigest()


def opened_sources(
    config: DataConfig,
    data: Any,
    *,
    seed: int,
    validation: Any = None,
    read: Read = lambda source: source,
    rows: Any = None,
    part: PartOfData | None = None,
) -> Sources:
    """Open the splits, hold out the validation part, and measure the normalisation.

    Args:
        config: the recipe's table.
        data: what to open: the recipe's name, or a user's object.
        seed: seed of the validation part.
        validation: examples to validate on, instead of a part or a split of ``data``.
        read: applied to every source first, for example to turn texts into tokens.
        rows: numbers of the examples to train on, instead of the file that ``config`` names.
        part: the only examples of the training split that the run may use; ``rows`` were applied
            to it already.

    Raises:
        DataError: the data holds embeddings, too few examples, or other classes in another split.
    """
    opened = training_split(config, data, rows=rows) if part is None else part.source
    marks, train = data_marks(opened), read(opened)
    pixels = PixelOptions(
        config.size, config.mean, config.std, config.channels, config.crop, config.squash,
        config.white,
    )  # fmt: skip
    how = wanted_preprocessing(Preprocessing(), pixels)
    share = 0.0 if config.validation_split else config.validation
    among = None if part is None else part.rows
    learned, held_out = split_rows(train, share, seed=seed, among=among)
    # after the split, so that the held-out share keeps the class shares of the data
    if config.imbalance > 1:
        learned = _long_tailed(train, learned, config.imbalance, seed=seed)
    others = {
        name: None if split is None else read(_other_split(data, config, split, train))
        for name, split in (("validation", config.validation_split), ("test", config.test_split))
    }
    for name, source in others.items():
        if source is not None:
            _check_apart(f"{name}_split", source, train, config)
    if validation is not None:
        others["validation"] = read(_other_split(validation, config, None, train))
    first = Decoded(train, how, learned)
    # measured only on the training images, and applied to all splits
    measured = _measured(first, config, how)
    other, held = others["validation"], None
    if other is not None:
        held = Decoded(other, measured, range(len(other)))
    elif held_out:
        held = Decoded(train, measured, held_out)
    test = others["test"]
    shared = {
        name: shared_examples(source, train, learned)
        for name, source in others.items()
        if source is not None
    }
    return Sources(
        train=Decoded(train, measured, learned, kept=first.kept),
        validation=held,
        test=None if test is None else Decoded(test, measured, range(len(test))),
        classes=train.named_classes,
        fingerprint=marks["data"] or "",
        chosen=marks["rows"],
        holds_out=other is None and bool(held_out),
        shared=shared,
    )


def warn_of_shared(sources: Sources) -> None:
    """Warn about examples that the model learns from and is also judged by."""
    for name, overlap in sources.shared.items():
        said = overlap and overlap.warning(f"{name} examples", "the training data")
        if said:
            warn(
                f"{said}: what is measured on them says nothing about new data; remove them from "
                "one of the two"
            )


def normalised_for(loaded: LoadedModel, sources: Sources, config: DataConfig) -> Sources:
    """Return the data normalised as the model states, for example if it was trained before.

    The recipe's own values take precedence. Size and channels stay those of the images or the
    recipe, with a warning if the model was trained on others.

    Raises:
        OptionError: the model states values for another number of channels than the images have.
    """
    known = loaded.preprocessing
    is_for_tensors = known is not None and not {"mean", "std"}.isdisjoint(known.stated)
    if known is None or not (sources.train.are_ours or is_for_tensors):
        return sources
    if sources.train.row(0)[1].ndim != 3:
        return sources
    mean = known.mean if config.mean is None else config.mean
    std = known.std if config.std is None else config.std
    stated = tuple(dict.fromkeys((*sources.train.how.stated, *known.stated)))
    how = replace(
        sources.train.how, mean=mean, std=std, bgr=known.bgr, stated=stated, origin=known.origin
    )
    _check_normalisation(how, how.channels, whose="model")
    if sources.train.are_ours and not loaded.is_random:
        _warn_of_other_pictures(type(loaded.model).__name__, known, how)
    return sources.prepared(how)


def _warn_of_other_pictures(model: str, known: Preprocessing, how: Preprocessing) -> None:
    """Warn if the model was trained on pictures of another size, crop or aspect ratio."""
    others = [key for key in ("crop", "squash") if getattr(known, key) != getattr(how, key)]
    if known.size is None or (known.size == how.size and not others):
        return
    stated = "".join(f", {key} = {getattr(known, key)}" for key in others)
    taken = "pictures of their own sizes" if how.size is None else _pixels(how.size)
    warn(
        f"{model} states that it takes pictures of {_pixels(known.size)} pixels{stated}, but is "
        f"trained on {taken}; if it should see pictures as before, set size, crop and squash in "
        "the table of the data"
    )


def _pixels(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def split_rows(
    source: ExampleSource, share: float, *, seed: int, among: NDArray[np.int64] | None = None
) -> tuple[list[int], list[int]]:
    """Split rows into those to train on and those held out, with the same share of every class.

    Args:
        source: the data.
        share: share of the rows to hold out.
        seed: seed of the draw.
        among: the rows to split; by default all of them.

    Raises:
        DataError: nothing would be left to train on.
    """
    labels = source.labels
    order = torch.randperm(len(labels), generator=generator(seed, "validation")).numpy()
    known = np.arange(len(labels)) if among is None else among
    if among is not None:
        order = order[np.isin(order, among)]
    held: list[int] = []
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        held += rows[: round(share * len(rows))].tolist()
    out = set(held)
    rows = [index for index in known.tolist() if index not in out]
    if not rows or (share and not held):
        raise DataError(
            f"{source.spec} has {len(known)} examples, too few for validation = {share}; pass "
            "another share, or 0 and select = 'last'"
        )
    return rows, sorted(held)


def _long_tailed(source: ExampleSource, rows: list[int], ratio: float, *, seed: int) -> list[int]:
    kept = long_tailed_rows(
        source.labels[rows], num_classes=len(source.named_classes), ratio=ratio,
        seed=seed_of(seed, "imbalance"),
    )  # fmt: skip
    return [rows[at] for at in kept]


def class_counts(sources: Sources) -> list[int]:
    """Return the number of training examples of each class."""
    return torch.bincount(sources.train.labels, minlength=len(sources.classes)).tolist()


def training_split(config: DataConfig, data: Any, *, rows: Any = None) -> ExampleSource:
    """Return the examples to learn from, including those that are held out.

    Args:
        config: the recipe's table.
        data: what to open.
        rows: numbers of the examples, instead of the file that ``config`` names.
    """
    rows = config.rows if rows is None else rows
    return _examples(data, config, config.split, patch=config.patch, rows=rows)


def _examples(
    data: Any, config: DataConfig, split: str | None, *, patch: Any = None, rows: Any = None
) -> ExampleSource:
    source = open_source(
        data, split=split, classes=config.classes, data_root=config.root, patch=patch, rows=rows,
        text_column=config.text_column, label_column=config.label_column,
        image_column=config.image_column, max_tokens=config.max_tokens,
    )  # fmt: skip
    if isinstance(source, EmbeddingSource):
        raise DataError(f"{source.spec} holds embeddings; training needs images or arrays")
    if source.is_stream:
        raise DataError(f"{source.spec} is a stream; training needs examples by position")
    return decoded_once(source)


def _other_split(
    data: Any, config: DataConfig, split: str | None, train: ExampleSource
) -> ExampleSource:
    """Return another split, with the labels of the training split.

    Folders number their classes by name. If a split lacks one of the classes, all classes after it
    have other numbers, so the split is opened again with the names of all classes.

    Raises:
        DataError: a class that the training split does not have.
    """
    other = _examples(data, config, split)
    if other.classes == train.classes[: len(other.classes)]:
        return other
    if set(other.classes) <= set(train.classes):
        again = _examples(data, replace(config, classes=train.classes), split)
        if _named_labels(again) == _named_labels(other):
            return again
    where = other.spec if split is None else f"the split {split!r} of {other.spec}"
    raise DataError(
        f"expected the {len(train.classes)} classes of the training split, got "
        f"{len(other.classes)} different ones in {where}: expected "
        f"({', '.join(train.classes[:8])}), got {', '.join(other.classes[:8])} in this order; pass "
        "data.classes"
    )


def _check_apart(key: str, other: ExampleSource, train: ExampleSource, config: DataConfig) -> None:
    """Raise if another split holds the examples of the training split.

    Raises:
        DataError: it is the same data by another name, or the training split is all of the data.
    """
    split = getattr(config, key)
    if len(other) == len(train) and other.fingerprint() == train.fingerprint():
        raise DataError(
            f"{key} {split!r} holds the examples of the training split of {train.spec}; name "
            "another split, or leave it out"
        )
    if config.split is None:  # ids can only be compared if both sources number the whole data
        known = {train.id_of(index) for index in range(len(train))}
        if all(other.id_of(index) in known for index in range(len(other))):
            raise DataError(
                f"{train.spec} without a split is all of its examples, including those of {key} "
                f"{split!r}; set data.split, such as 'train'"
            )


def _named_labels(source: ExampleSource) -> list[str]:
    return [source.classes[label] for label in source.labels]


def _measured(data: Decoded, config: DataConfig, how: Preprocessing) -> Preprocessing:
    """Complete the preprocessing with mean and deviation of the training images.

    Values that the recipe states are kept. The others are measured on at most 5,000 evenly spaced
    images, so they do not depend on whether images are resident or streamed.
    """
    normalisation = {"mean": config.mean, "std": config.std}
    stated = {key: value for key, value in normalisation.items() if value is not None}
    origin = "stated by the recipe"
    if len(stated) < 2 and data.are_ours and data.row(0)[1].ndim == 3:
        picked = np.linspace(0, len(data) - 1, min(len(data), _STATISTICS_ROWS)).astype(int)
        mean, std = statistics(data, torch.from_numpy(np.unique(picked)))
        stated = {"mean": mean, "std": std, **stated}
        origin = "measured on the training images"
    size = config.size or _size(data)
    channels = _channels(data) if data.are_ours else how.channels
    completed = replace(how, **stated, size=size, channels=channels, origin=origin)  # type: ignore[arg-type]
    _check_normalisation(completed, _channels(data), whose="recipe")
    return applied_preprocessing(data.source, completed)


def _channels(data: Decoded) -> int | None:
    """Return the channels of decoded images, or ``None`` if the examples are not images."""
    image = data.row(0)[1]
    return image.shape[0] if image.ndim == 3 else None


def _check_normalisation(how: Preprocessing, channels: int | None, *, whose: str) -> None:
    """Raise unless mean and deviation have one value, or one per channel of the images.

    Raises:
        OptionError: another number of values, which would change the number of channels.
    """
    for name, values in (("mean", how.mean), ("std", how.std)):
        if channels is not None and len(values) not in (1, channels):
            plural = "channel" if channels == 1 else "channels"
            raise OptionError(
                f"{name} of the {whose} has {len(values)} values, but the images have {channels} "
                f"{plural}; give one value, or one per channel. To turn grey images into RGB, or "
                "the other way round, set channels = 3 or 1 in the table of the data"
            )


def _size(data: Decoded) -> tuple[int, int] | None:
    image = data.row(0)[1]
    return (image.shape[1], image.shape[2]) if image.ndim == 3 and data.are_ours else None


def check_parts(config: TrainConfig, train: Decoded, *, is_validated: bool = True) -> None:
    """Raise if a key cannot be applied to the data; warn if it has no effect in this run.

    Args:
        config: the recipe.
        train: the examples to train on.
        is_validated: whether there are examples to select the model by.

    Raises:
        ConfigError: ``augment`` without images, or ``select = "loss"`` without held-out examples.
    """
    if config.select == "loss" and not is_validated:
        raise ConfigError(
            "select = 'loss' needs examples that are held out, but validation = 0 leaves none; use "
            "select = 'last', or name a validation_split"
        )
    augment, shape = config.augment, train.row(0)[1].shape
    if (augment.flip or augment.crop_padding) and len(shape) != 3:
        raise ConfigError(
            f"augment needs images (channels, height, width), got examples {list(shape)} from "
            f"{train.source.spec}; leave it out"
        )
    for text in _without_effect(config, train) if is_first_process() else ():
        warn(text)


def _without_effect(config: TrainConfig, train: Decoded) -> Iterator[str]:
    """Warnings about keys of the recipe that have no effect in this run."""
    if config.thumbnails != TrainConfig.thumbnails and not config.track:
        yield "thumbnails plays no part without track = true"
    if config.model.trust_remote_code and not config.model.name.startswith("hf:"):
        yield "model.trust_remote_code plays no part: only hf: models bring code"
    if config.channels_last and train.row(0)[1].ndim != 3:
        yield "channels_last plays no part: the examples are not images"
    if config.optimizer.lr == 0:
        yield "nothing is learned: optimizer.lr = 0 changes no weight"
    for loss in config.loss:
        if loss.start_epoch >= config.epochs:
            yield (
                f"loss {loss.name} plays no part: it starts in epoch {loss.start_epoch} (counted "
                f"from 0) and the run has {_epochs(config)}"
            )
    schedule = config.schedule
    if schedule.name == "step":
        key, first = "step_epochs", schedule.step_epochs + 1  # the epoch of the first drop, from 1
        if schedule.drop_epochs is not None:
            key, first = "drop_epochs", min(schedule.drop_epochs, default=config.epochs + 1)
        if first > config.epochs:
            stated = getattr(schedule, key)
            yield (
                f"the learning rate never drops: {key} = {stated} and the run has {_epochs(config)}"
            )


def _epochs(config: TrainConfig) -> str:
    return f"{config.epochs} epoch{'s' if config.epochs > 1 else ''}"
