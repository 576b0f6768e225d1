"""Keys of a recipe that would play no part with the data of a run.

What a recipe can tell by itself is checked where it is read. What nobody would expect to happen
is refused; what is merely without effect is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from hardsight.errors import ConfigError, HardsightWarning
from hardsight.run.train._config import TrainConfig
from hardsight.run.train._folder import is_first_process
from hardsight.run.train._images import Decoded


def check_parts(config: TrainConfig, train: Decoded, *, is_validated: bool = True) -> None:
    """Raise where a key has no part to play; say where it plays none in this run.

    Args:
        config: the recipe.
        train: the examples to train on.
        is_validated: whether there are examples to select the model by.

    Raises:
        ConfigError: the examples are not images, or none is held out for what shall be selected
            by them.
    """
    if config.select == "loss" and not is_validated:
        raise ConfigError(
            "select = 'loss' needs examples that are held out, and validation = 0 leaves none; use "
            "select = 'last', or name a validation_split"
        )
    augment, shape = config.augment, train.row(0)[1].shape
    if (augment.flip or augment.crop_padding) and len(shape) != 3:
        raise ConfigError(
            f"augment needs images (channels, height, width), got examples {list(shape)} from "
            f"{train.source.spec}; leave it out"
        )
    for text in _without_effect(config, train) if is_first_process() else ():
        warnings.warn(text, HardsightWarning, stacklevel=4)


def _without_effect(config: TrainConfig, train: Decoded) -> Iterator[str]:
    """What this run does not do, although the recipe says so."""
    if config.thumbnails != TrainConfig.thumbnails and not config.track:
        yield "thumbnails plays no part without track = true"
    if config.model.trust_remote_code and not config.model.name.startswith("hf:"):
        yield "model.trust_remote_code plays no part: only hf: models bring code"
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
