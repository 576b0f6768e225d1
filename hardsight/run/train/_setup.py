"""From a recipe to what is trained on: splits, normalisation, batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardsight.data import (
    EmbeddingSource,
    ExampleSource,
    applied_preprocessing,
    long_tailed_rows,
    open_source,
)
from hardsight.errors import DataError, OptionError
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop import (
    ClassOrder,
    PixelOptions,
    chosen_layout,
    generator,
    seed_of,
    wanted_preprocessing,
)
from hardsight.run.train._batches import (
    EvaluationBatches,
    ResidentBatches,
    StreamedBatches,
    TrainBatches,
)
from hardsight.run.train._config import DataConfig, TrainConfig
from hardsight.run.train._images import (
    Decoded,
    Pixels,
    Shard,
    TrainBatch,
    decoded_whole,
    fits,
    loaded,
)

_STATISTICS_ROWS = 5000


@dataclass(frozen=True)
class Sources:
    """The data of a run.

    Attributes:
        train: examples to learn from.
        validation: held out to select the model; ``None`` where the recipe wants none.
        test: evaluated once at the end; ``None`` where the recipe names none.
        classes: names, position = label.
        fingerprint: of the training split.
        order: which label of the data is which output of the model, once that is known.
        holds_out: whether ``validation`` is a share of the data that ``train`` is the rest of.
    """

    train: Decoded
    validation: Decoded | None
    test: Decoded | None
    classes: tuple[str, ...]
    fingerprint: str
    order: ClassOrder | None = None
    holds_out: bool = False

    def numbered_as(self, order: ClassOrder) -> Sources:
        """The same examples with the model's numbers as labels."""
        if not order.labels:
            return replace(self, order=order)

        def numbered(data: Decoded) -> Decoded:
            return Decoded(order.of(data.source), data.how, data.rows, kept=data.kept)

        return replace(self._each(numbered), classes=order.names, order=order)

    def prepared(self, how: Preprocessing) -> Sources:
        """The same examples with another preprocessing of the same size and channels."""

        def again(data: Decoded) -> Decoded:
            kept = data.kept if how.bgr == data.how.bgr else None
            return Decoded(data.source, how, data.rows, kept=kept)

        return self._each(again)

    def _each(self, change: Callable[[Decoded], Decoded]) -> Sources:
        parts = (self.train, self.validation, self.test)
        train, validation, test = (None if part is None else change(part) for part in parts)
        assert train is not None
        return replace(self, train=train, validation=validation, test=test)


def opened_sources(config: DataConfig, data: Any, *, seed: int, validation: Any = None) -> Sources:
    """Open the splits, hold out the validation part, and measure the normalisation.

    Args:
        config: the recipe's table.
        data: what to open; the recipe's name, or a user's object.
        seed: of the validation part.
        validation: examples to validate on, instead of a part or a split of ``data``.

    Raises:
        DataError: the data holds embeddings, too few examples, or other classes in another split.
    """
    train = _examples(data, config, config.split)
    pixels = PixelOptions(
        config.size, config.mean, config.std, config.channels, config.crop, config.squash,
        config.white,
    )  # fmt: skip
    how = wanted_preprocessing(Preprocessing(), pixels)
    rows, held_out = split_rows(train, config.validation if not config.validation_split else 0.0,
                                seed=seed)  # fmt: skip
    if config.imbalance > 1:
        rows = _long_tailed(train, rows, config.imbalance, seed=seed)
    others = {
        name: None if split is None else _other_split(data, config, split, train)
        for name, split in (("validation", config.validation_split), ("test", config.test_split))
    }
    for name, source in others.items():
        if source is not None:
            _check_apart(f"{name}_split", source, train, config)
    if validation is not None:
        others["validation"] = _other_split(validation, config, None, train)
    first = Decoded(train, how, rows)
    measured = _measured(first, config, how)
    other, held = others["validation"], None
    if other is not None:
        held = Decoded(other, measured, range(len(other)))
    elif held_out:
        held = Decoded(train, measured, held_out)
    test = others["test"]
    return Sources(
        train=Decoded(train, measured, rows, kept=first.kept),
        validation=held,
        test=None if test is None else Decoded(test, measured, range(len(test))),
        classes=train.named_classes,
        fingerprint=train.fingerprint(),
        holds_out=other is None and bool(held_out),
    )


def normalised_for(known: Preprocessing | None, sources: Sources, config: DataConfig) -> Sources:
    """The data as a model wants it that states its own mean and deviation, such as a trained one.

    What the recipe states goes first; size and channels stay those of the images or the recipe.

    Raises:
        OptionError: the model states values for other channels than the images have.
    """
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
    return sources.prepared(how)


def split_rows(source: ExampleSource, share: float, *, seed: int) -> tuple[list[int], list[int]]:
    """Rows to train on and rows held out, the same share of every class.

    Raises:
        DataError: nothing would be left to train on.
    """
    labels = source.labels
    order = torch.randperm(len(labels), generator=generator(seed, "validation")).numpy()
    held: list[int] = []
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        held += rows[: round(share * len(rows))].tolist()
    out = set(held)
    rows = [index for index in range(len(labels)) if index not in out]
    if not rows or (share and not held):
        raise DataError(
            f"{source.spec} has {len(labels)} examples, too few for validation = {share}; pass "
            "another share, or 0 and select = 'last'"
        )
    return rows, sorted(held)


def _long_tailed(source: ExampleSource, rows: list[int], ratio: float, *, seed: int) -> list[int]:
    found = long_tailed_rows(
        source.labels[rows], num_classes=len(source.named_classes), ratio=ratio,
        seed=seed_of(seed, "imbalance"),
    )  # fmt: skip
    return [rows[at] for at in found]


def class_counts(sources: Sources) -> list[int]:
    """Training examples of each class."""
    return torch.bincount(sources.train.labels, minlength=len(sources.classes)).tolist()


def batches_of(
    sources: Sources,
    config: TrainConfig,
    *,
    device: torch.device,
    shard: Shard,
    workers: int,
    show: bool | None,
) -> tuple[TrainBatches, EvaluationBatches | None, Pixels]:
    """Training and validation batches, resident on the device where they fit."""
    layout = chosen_layout(config.channels_last, device)
    pixels = Pixels(sources.train.how, channels_last=layout, device=device)
    resident = config.resident
    if resident is None:
        resident = fits(sources.train, device, config.augment.crop_padding)

    def whole(data: Decoded) -> TrainBatch | None:
        return decoded_whole(data, workers=workers, show=show) if resident else None

    common: dict[str, Any] = {
        "batch_size": config.batch_size, "seed": config.seed, "shard": shard,
        "balanced": sources.train.labels if config.sampling == "class_balanced" else None,
    }  # fmt: skip
    train: TrainBatches
    decoded = whole(sources.train)
    if decoded is not None:
        train = ResidentBatches(decoded, pixels, config.augment, **common)
    else:
        train = StreamedBatches(sources.train, pixels, config.augment, workers=workers, **common)
    if not len(train):
        raise DataError(
            f"{len(sources.train)} examples are too few for {shard.count} devices; use fewer"
        )
    held = sources.validation
    if held is None:
        return train, None, pixels
    validation = EvaluationBatches(
        held,
        pixels,
        batch_size=max(256, config.batch_size),
        shard=shard,
        workers=workers,
        whole=whole(held),
    )
    return train, validation, pixels


def _examples(data: Any, config: DataConfig, split: str | None) -> ExampleSource:
    source = open_source(data, split=split, classes=config.classes, data_root=config.root)
    if isinstance(source, EmbeddingSource):
        raise DataError(f"{source.spec} holds embeddings; training needs images or arrays")
    if source.is_stream:
        raise DataError(f"{source.spec} is a stream; training needs examples by position")
    return source


def _other_split(
    data: Any, config: DataConfig, split: str | None, train: ExampleSource
) -> ExampleSource:
    """A further split, its labels those of the training split.

    Folders number their classes by name: a split without one of them is opened again with the
    names of all.

    Raises:
        DataError: a class that the training split does not have.
    """
    found = _examples(data, config, split)
    if found.classes == train.classes[: len(found.classes)]:
        return found
    if set(found.classes) <= set(train.classes):
        again = _examples(data, replace(config, classes=train.classes), split)
        if _named_labels(again) == _named_labels(found):
            return again
    raise DataError(
        f"expected the {len(train.classes)} classes of the training split, got "
        f"{len(found.classes)} others in {_part_of(found, split)}: expected "
        f"({', '.join(train.classes[:8])}), got {', '.join(found.classes[:8])} in this order; pass "
        "data.classes"
    )


def _check_apart(key: str, other: ExampleSource, train: ExampleSource, config: DataConfig) -> None:
    """Raise where a further split holds the examples of the training split.

    Raises:
        DataError: it is the same data by another name, or the training split is all of the data.
    """
    split = getattr(config, key)
    if len(other) == len(train) and other.fingerprint() == train.fingerprint():
        raise DataError(
            f"{key} {split!r} holds the examples of the training split of {train.spec}; name "
            "another one, or leave it out"
        )
    if config.split is None:  # by then names are those of one whole
        known = {train.id_of(index) for index in range(len(train))}
        if all(other.id_of(index) in known for index in range(len(other))):
            raise DataError(
                f"{train.spec} without a split is all of its examples, those of {key} {split!r} "
                "too; set data.split, such as 'train'"
            )


def _part_of(source: ExampleSource, split: str | None) -> str:
    return source.spec if split is None else f"the split {split!r} of {source.spec}"


def _named_labels(source: ExampleSource) -> list[str]:
    return [source.classes[label] for label in source.labels]


def _measured(data: Decoded, config: DataConfig, how: Preprocessing) -> Preprocessing:
    """Mean and deviation of the training images, unless the recipe states them.

    From at most 5,000 evenly spaced images, so that it does not depend on where they are kept.
    """
    given = {"mean": config.mean, "std": config.std}
    stated = {key: value for key, value in given.items() if value is not None}
    origin = "stated by the recipe"
    if len(stated) < 2 and data.are_ours and data.row(0)[1].ndim == 3:
        picked = np.linspace(0, len(data) - 1, min(len(data), _STATISTICS_ROWS)).astype(int)
        mean, std = _statistics(data, torch.from_numpy(np.unique(picked)))
        stated = {"mean": mean, "std": std, **stated}
        origin = "measured on the training images"
    size = config.size or _size(data)
    channels = _channels(data) if data.are_ours else how.channels
    found = replace(how, **stated, size=size, channels=channels, origin=origin)  # type: ignore[arg-type]
    _check_normalisation(found, _channels(data), whose="recipe")
    return applied_preprocessing(data.source, found)


def _channels(data: Decoded) -> int | None:
    """Of the images as they are decoded; ``None`` where the examples are no images."""
    image = data.row(0)[1]
    return image.shape[0] if image.ndim == 3 else None


def _check_normalisation(how: Preprocessing, channels: int | None, *, whose: str) -> None:
    """Raise where means would give the images other channels than they have.

    Raises:
        OptionError: neither one value nor one per channel.
    """
    for name, values in (("mean", how.mean), ("std", how.std)):
        if channels is not None and len(values) not in (1, channels):
            plural = "channel" if channels == 1 else "channels"
            raise OptionError(
                f"{name} of the {whose} has {len(values)} values, but the images have {channels} "
                f"{plural}; give one value, or one per channel. To make RGB of grey images, or the "
                "other way round, set channels = 3 or 1 in the table of the data"
            )


def _size(data: Decoded) -> tuple[int, int] | None:
    image = data.row(0)[1]
    return (image.shape[1], image.shape[2]) if image.ndim == 3 and data.are_ours else None


def _statistics(data: Decoded, rows: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if data.is_ready:
        mean, std = _counted(data, rows.numpy())
    else:
        mean, std = _summed(data, rows)
    # rounded: they are printed, stored and typed again
    centre, spread = ([round(value, 4) for value in found.tolist()] for found in (mean, std))
    return tuple(centre), tuple(max(value, 1e-4) for value in spread)


def _summed(data: Decoded, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of every channel, from images as they are read."""
    total = squares = torch.zeros(1, dtype=torch.float64)
    count = 0
    white = data.how.white or 255
    batches = loaded(data, rows, batch_size=256, workers=0)
    for part, (_, images, _) in zip(rows.split(256), batches, strict=True):
        data.keep(part, images)
        values = images.double() / (white if images.dtype == torch.uint8 else 1)
        total = total + values.sum(dim=(0, 2, 3))
        squares = squares + (values**2).sum(dim=(0, 2, 3))
        count += values.numel() // values.shape[1]
    mean = total / count
    return mean, (squares / count - mean**2).clamp_min(1e-12).sqrt()


def _counted(data: Decoded, rows: NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of pictures in memory, by counting their 256 values."""
    assert data.source.images is not None
    counts = _value_counts(data.source.images, np.asarray(data.rows)[rows])
    share = torch.from_numpy(counts / counts.sum(axis=1, keepdims=True))
    values = torch.arange(256, dtype=torch.float64) / (data.how.white or 255)
    mean = share @ values
    return mean, (share @ values**2 - mean**2).clamp_min(1e-12).sqrt()


def _value_counts(images: NDArray[np.uint8], rows: NDArray[Any]) -> NDArray[np.int64]:
    """How often each value occurs in each channel, ``[channels, 256]``."""
    channels = 1 if images.ndim == 3 else images.shape[3]
    counts = np.zeros((channels, 256), dtype=np.int64)
    for some in np.array_split(rows, max(1, len(rows) // 64)):
        pixels = images[some].reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += np.bincount(pixels[:, channel], minlength=256)
    return counts
