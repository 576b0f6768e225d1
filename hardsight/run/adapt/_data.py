"""Open the images of both domains, check them against each other, and decode them once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hardsight.data import EmbeddingSource, ExampleSource, open_source, unlabelled_source
from hardsight.errors import DataError, NoClassFoldersError
from hardsight.run.adapt._config import AdaptConfig, TargetConfig
from hardsight.run.loop import ClassOrder, chosen_layout, decoded_once
from hardsight.run.train import (
    Decoded,
    Examples,
    Pixels,
    ResidentBatches,
    Row,
    Shard,
    Sources,
    StreamedBatches,
    TrainBatch,
    TrainBatches,
    decoded_whole,
    fits,
    loaded,
)


@dataclass(frozen=True)
class Target:
    """The target domain.

    Attributes:
        source: the examples, with hidden labels.
        labels: the true labels ``[N]``, for evaluation only; ``None`` if they are not known.
        fingerprint: of the data.
    """

    source: ExampleSource
    labels: Tensor | None
    fingerprint: str

    def __len__(self) -> int:
        return len(self.source)

    def numbered_as(self, order: ClassOrder) -> Target:
        """The same examples with labels renumbered to the model's outputs."""
        if self.labels is None or not order.labels:
            return self
        return replace(self, labels=torch.tensor(order.labels)[self.labels])


def only_pictures(source: ExampleSource) -> ExampleSource:
    """The same examples, if they are pictures or arrays.

    Raises:
        DataError: they are of another kind.
    """
    if source.kind is not None:
        raise DataError(
            f"{source.spec} holds examples of the kind {source.kind.name!r}, but adapting needs "
            "pictures or arrays; train on its labelled examples with `hardsight train`, and "
            "compare both domains with `hardsight evaluate --ood`"
        )
    return source


def opened_target(config: TargetConfig, data: Any, classes: tuple[str, ...]) -> Target:
    """Open the target domain and check that its classes are those of the source.

    Args:
        config: its table.
        data: what to open; its name, or a user's object.
        classes: of the source domain.

    Raises:
        DataError: there are no examples, other classes, or nothing to train on by position.
    """
    source = _opened(config, data)
    if isinstance(source, EmbeddingSource) or source.is_stream:
        kind = "embeddings" if isinstance(source, EmbeddingSource) else "a stream"
        raise DataError(f"{source.spec} holds {kind}; adapting needs images or arrays by position")
    only_pictures(source)
    if not len(source):
        raise DataError(
            f"the target {source.spec} has no examples; name a folder or split that has some"
        )
    labels = None
    if not config.unlabelled:
        _check_classes(source, classes)
        # labels that are partly missing would make an accuracy of the labelled examples alone
        known = torch.tensor(source.labels)
        labels = known if bool((known >= 0).all()) else None
    return Target(source.without_labels(), labels, source.fingerprint())


def _opened(config: TargetConfig, data: Any) -> ExampleSource | EmbeddingSource:
    opened = unlabelled_source if config.unlabelled else open_source
    try:
        return decoded_once(
            opened(data, split=config.split, classes=config.classes, data_root=config.root)
        )
    except NoClassFoldersError as err:
        raise DataError(
            f"{err}; or pass target.unlabelled = true (--unlabelled), which takes images from any "
            "folders"
        ) from err


def _check_classes(source: ExampleSource, classes: tuple[str, ...]) -> None:
    names = source.classes
    if names == classes:
        return
    if not names:  # a user's dataset without class names: compare the labels
        highest = int(source.labels.max())
        if highest >= len(classes):
            raise DataError(
                f"the target {source.spec} has the label {highest}, the source only "
                f"{len(classes)} classes; give both domains the same classes"
            )
        return
    missing = [name for name in classes if name not in names]
    extra = [name for name in names if name not in classes]
    if not missing and not extra:
        raise DataError(
            f"the target {source.spec} has the source's classes in another order; pass "
            "target.classes in the source's order"
        )
    said = [f"lacks {', '.join(missing[:5])}"] if missing else []
    said += [f"has {', '.join(extra[:5])}, which the source lacks"] if extra else []
    raise DataError(
        f"expected the source's {len(classes)} classes in the target {source.spec}: it "
        f"{' and '.join(said)}; give both domains the same classes (target.classes), or pass "
        "target.unlabelled = true (--unlabelled) to leave its labels alone"
    )


class SourceAndTarget(Examples):
    """Source examples followed by target examples; the position tells the domain.

    Args:
        source: the labelled examples.
        target: the unlabelled examples.
        rows: positions to use; all by default.
    """

    def __init__(self, source: Decoded, target: Decoded, rows: Tensor | None = None) -> None:
        self.source, self.target, self._rows = source, target, rows
        pixels = [data.row(0)[1] for data in (source, target)]
        shapes = [list(image.shape) for image in pixels]
        if shapes[0] != shapes[1]:
            raise DataError(
                f"expected examples of one shape in both domains, got {shapes[0]} in "
                f"{source.source.spec} and {shapes[1]} in {target.source.spec}; set source.size "
                "= [H, W] or source.channels, or give your own tensors one shape"
            )
        # one domain has 8-bit pixels and the other floats: use floats for both
        self._as_floats = pixels[0].dtype != pixels[1].dtype

    def __len__(self) -> int:
        return len(self.source) + len(self.target) if self._rows is None else len(self._rows)

    def subset(self, rows: Tensor) -> SourceAndTarget:
        """The same examples at some positions only."""
        return SourceAndTarget(self.source, self.target, rows)

    def __getitem__(self, at: int) -> Row | DataError:
        place = at if self._rows is None else int(self._rows[at])
        first = len(self.source)
        row = self.source[place] if place < first else self.target[place - first]
        if isinstance(row, DataError):
            return row
        return place, self._pixels(row[1]), row[2]

    def whole(self, *, workers: int, show: bool | None) -> TrainBatch:
        """All examples of both domains, decoded."""
        parts = [
            decoded_whole(data, workers=workers, show=show) for data in (self.source, self.target)
        ]
        images = torch.cat([self._pixels(part.inputs) for part in parts])
        labels = torch.cat([part.labels for part in parts])
        return TrainBatch(torch.arange(len(labels)), images, labels)

    def _pixels(self, images: Tensor) -> Tensor:
        is_bytes = self._as_floats and images.dtype == torch.uint8
        return images.float() / (self.source.how.white or 255) if is_bytes else images


class Pool:
    """All images of a run, on the device if they fit, for every round and rule.

    Args:
        sources: the source domain.
        target: the target domain.
        config: of the run.
        device: of the model.
        workers: loader processes.
        show: force the progress bar on or off.

    Attributes:
        num_source: labelled examples; positions from here on are target examples.
        labels: of the source examples, ``[num_source]``.
        pixels: normalisation.
    """

    def __init__(
        self,
        sources: Sources,
        target: Target,
        config: AdaptConfig,
        *,
        device: torch.device,
        workers: int,
        show: bool | None,
    ) -> None:
        how = sources.train.how
        hidden = Decoded(target.source, how, range(len(target)))
        self._both = SourceAndTarget(sources.train, hidden)
        self.num_source, self.num_target = len(sources.train), len(target)
        layout = chosen_layout(config.channels_last, device)
        self.pixels = Pixels(how, channels_last=layout, device=device)
        self._options: dict[str, Any] = {"batch_size": config.batch_size, "shard": Shard()}
        self._augment, self._workers = config.augment, workers
        self._resident: ResidentBatches | None = None
        padding = config.augment.crop_padding
        resident = config.resident
        if resident is None:
            resident = fits(sources.train, device, padding) and fits(hidden, device, padding)
        if resident:
            whole = self._both.whole(workers=workers, show=show)
            self._resident = ResidentBatches(
                whole, self.pixels, config.augment, seed=0, **self._options
            )
        self.labels = sources.train.labels

    def training(self, rows: Tensor, *, seed: int) -> TrainBatches:
        """Augmented batches of some positions."""
        if self._resident is not None:
            return self._resident.subset(rows, seed=seed)
        return StreamedBatches(
            self._both.subset(rows), self.pixels, self._augment, seed=seed, workers=self._workers,
            **self._options,
        )  # fmt: skip

    def targets(self, batch_size: int) -> Iterator[Tensor]:
        """Inputs of all target examples, in order, without augmentation."""
        rows = torch.arange(self.num_source, self.num_source + self.num_target)
        if self._resident is not None:
            for part in rows.split(batch_size):
                yield self._resident.plain(part).inputs
            return
        data = self._both.subset(rows)
        order = torch.arange(len(rows))
        for _, images, _ in loaded(data, order, batch_size=batch_size, workers=self._workers):
            yield self.pixels.normalised(images)
