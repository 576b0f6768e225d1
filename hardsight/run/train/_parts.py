"""Keys of a recipe that would play no part with the data of a run.

What a recipe can tell by itself is checked where it is read. What nobody would expect to happen
is refused; what is merely without effect is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from hardsight.errors import ConfigError, HardsightWarning
from hardsight.run.train._config import DataConfig, TrainConfig
from hardsight.run.train._folder import is_first_process
from hardsight.run.train._images import Decoded

_OF_IMAGES = ("size", "channels", "mean", "std")


def check_parts(config: TrainConfig, train: Decoded, *, is_validated: bool = True) -> None:
    """Raise where a key has no part to play; say where it plays none in this run.

    Args:
        config: the recipe.
        train: the examples to train on.
        is_validated: whether there are examples to select the model by.

    Raises:
        ConfigError: the examples are not images, or not ours to change, or none is held out for
            what shall be selected by them.
    """
    if config.select == "loss" and not is_validated:
        raise ConfigError(
            "select = 'loss' needs examples that are held out, and validation = 0 leaves none; use "
            "select = 'last', or name a validation_split"
        )
    check_image_keys(config.data, train)
    augment, shape = config.augment, train.row(0)[1].shape
    if (augment.flip or augment.crop_padding) and len(shape) != 3:
        raise ConfigError(
            f"augment needs images (channels, height, width), got examples {list(shape)} from "
            f"{train.source.spec}; leave it out"
        )
    for text in _without_effect(config, train) if is_first_process() else ():
        warnings.warn(text, HardsightWarning, stacklevel=4)


def check_image_keys(config: DataConfig, train: Decoded) -> None:
    """Raise where the recipe says what to do to images, and it cannot be done.

    Raises:
        ConfigError: the examples are vectors, or tensors that are used as they are.
    """
    stated = {key: value for key in _OF_IMAGES if (value := getattr(config, key)) is not None}
    if not stated:
        return
    shape, spec = train.row(0)[1].shape, train.source.spec
    if len(shape) != 3:
        raise ConfigError(
            f"data.{next(iter(stated))} plays no part without images, got examples {list(shape)} "
            f"from {spec}; leave it out"
        )
    # the mean and deviation of tensors are taken off on the device, as those of images are
    own = {"size": tuple(shape[1:]), "channels": shape[0]}
    for key, value in own.items():
        if not train.are_ours and stated.get(key, value) != value:
            raise ConfigError(
                f"data.{key} plays no part: tensors of {spec} are used as they are, {list(shape)} "
                "(channels, height, width); change them in the dataset, or leave it out"
            )


def _without_effect(config: TrainConfig, train: Decoded) -> Iterator[str]:
    """What this run does not do, although the recipe says so."""
    if config.thumbnails != TrainConfig.thumbnails and not config.track:
        yield "thumbnails plays no part without track = true"
    if config.channels_last and train.row(0)[1].ndim != 3:
        yield "channels_last plays no part: the examples are not images"
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
