"""From what a user says about a model to the model and its preprocessing."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn

from hardsight.data import model_input
from hardsight.errors import ModelError, OptionError
from hardsight.models import LoadedModel, load_model
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop._random import seeded

_STEP = (
    "say what to do instead by preprocessing=Preprocessing(...), or by size, mean and std together "
    "(--size, --mean, --std)"
)


class PixelOptions(NamedTuple):
    """What a user says about the pixels of a model's inputs, over what the model says."""

    size: int | tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channels: int | None = None
    crop: float | None = None
    squash: bool | None = None
    white: float | None = None

    @property
    def are_complete(self) -> bool:
        """Whether nothing that matters is left to the model."""
        return None not in (self.size, self.mean, self.std)

    def stated(self) -> dict[str, Any]:
        """Those that a user gave, checked.

        Raises:
            OptionError: one is outside its range.
        """
        values = {key: value for key, value in self._asdict().items() if value is not None}
        if isinstance(self.size, int):
            values["size"] = (self.size, self.size)
        if min(values.get("size", (1, 1))) < 1 or len(values.get("size", (1, 1))) != 2:
            raise OptionError(f"expected a size of at least 1 x 1 pixels, got {self.size}")
        if self.mean is not None and not all(map(math.isfinite, self.mean)):
            raise OptionError(
                f"expected every mean to be finite, got {self.mean}; 0 leaves pixels alone"
            )
        if self.std is not None and not all(0 < value < math.inf for value in self.std):
            raise OptionError(
                f"expected every std to be above 0 and finite, got {self.std}; 1 leaves pixels "
                "alone"
            )
        if self.channels not in (None, 1, 3):
            raise OptionError(f"expected 1 or 3 channels, got {self.channels}")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise OptionError(
                f"expected crop, the share that the centre crop keeps, in (0, 1], got {self.crop}"
            )
        if self.white is not None and not 0 < self.white < math.inf:
            raise OptionError(f"expected white to be above 0 and finite, got {self.white}")
        return values


def loaded_model(
    model: Any,
    weights: str | os.PathLike[str] | None,
    num_classes: int | None,
    *,
    seed: int,
    device: torch.device,
    preprocessing: Preprocessing | None = None,
    is_stated: bool = False,
    trust_remote_code: bool = False,
    **factory: Any,
) -> LoadedModel:
    """The model a user passes or names; what it draws at random comes from ``seed``.

    Args:
        model: a module, or its name.
        weights: file with its weights.
        num_classes: given to a factory that takes it.
        seed: of a model that is initialised at random.
        device: where it will be.
        preprocessing: in place of the model's own, which is not read then.
        is_stated: the user states all that matters of it, so that the model's own need not be
            followed.
        trust_remote_code: run Python files that an ``hf:`` model brings.
        factory: further keywords of :func:`hardsight.models.load_model`.

    Raises:
        OptionError: there is no model.
        ModelError: it cannot be built, or its preprocessing cannot be followed.
    """
    if not isinstance(model, str | nn.Module):
        raise OptionError(
            f"images need a model, got {'none' if model is None else type(model).__name__}; pass "
            "an nn.Module or a name such as file.py:factory (--model)"
        )

    def load(how: Preprocessing | None) -> LoadedModel:
        with seeded(seed, device):
            return load_model(
                model,
                weights=weights,
                num_classes=num_classes,
                preprocessing=how,
                trust_remote_code=trust_remote_code,
                **factory,
            )

    try:
        loaded = load(preprocessing)
        check_processor(loaded)
    except ModelError:
        if preprocessing is not None or not is_stated:
            raise
        return load(Preprocessing(origin="default: the model's own cannot be followed"))
    return loaded


def wanted_preprocessing(known: Preprocessing, pixels: PixelOptions) -> Preprocessing:
    """What the model wants, with the user's own values over it.

    Raises:
        OptionError: a value is outside its range, or a crop has no size to be one of.
    """
    changes = pixels.stated()
    if not changes:
        return known
    origin = f"{', '.join(changes)} as given; otherwise {known.origin}"
    known = known.at_size(changes["size"]) if "size" in changes else known
    if "crop" in changes or "squash" in changes:  # which say all there is to say
        known = dataclasses.replace(known, resize=None, crop_first=False)
        if known.size is None:
            raise OptionError(
                "crop and squash say how pictures are brought to a size; pass size=(H, W) (--size) "
                "as well"
            )
    stated = tuple(dict.fromkeys((*known.stated, *changes)))
    return dataclasses.replace(known, **changes, stated=stated, origin=origin)


def stated_preprocessing(preprocessing: Preprocessing | None) -> Preprocessing | None:
    """A user's own preprocessing, marked as hers wherever it differs from the default."""
    if preprocessing is None:
        return None
    plain = Preprocessing()
    names = [field.name for field in dataclasses.fields(plain)]
    changed = [
        name
        for name in names
        if name not in ("origin", "stated") and getattr(preprocessing, name) != getattr(plain, name)
    ]
    stated = tuple(dict.fromkeys((*preprocessing.stated, *changed)))
    return dataclasses.replace(preprocessing, stated=stated)


def check_processor(loaded: LoadedModel) -> None:
    """Try our reading of an image processor against the processor itself, on a few pictures.

    Two that share their settings may still differ in what they do with them.

    Raises:
        ModelError: the inputs differ by more than the rounding of pixels.
    """
    how, processor = loaded.preprocessing, loaded.processor
    if processor is None or how is None:
        return
    kind = type(processor).__name__
    # pixels are rounded before or after they are resized, and then scaled
    rounding = 2.5 / 255 / min(how.std) + 1e-4
    for picture in _pictures(how.channels):
        ours = model_input(picture, how)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the package, about its own defaults
                theirs = np.asarray(processor(picture, return_tensors="pt")["pixel_values"])[0]
        except Exception as err:  # a processor of another task asks for other things
            reason = (str(err).strip().splitlines() or [""])[0]
            raise ModelError(
                f"the {how.origin} is a {kind}, which fails on a picture of {picture.width} x "
                f"{picture.height} pixels ({type(err).__name__}: {reason}); {_STEP}"
            ) from err
        if theirs.shape != ours.shape:
            raise ModelError(
                f"the {how.origin} is a {kind}, which gives inputs of shape {list(theirs.shape)} "
                f"while its settings say {list(ours.shape)}; {_STEP}"
            )
        worst = float(np.abs(theirs - ours).max())
        if not worst <= rounding:
            raise ModelError(
                f"the {how.origin} is a {kind}, which does something else to pictures than its "
                f"settings say: inputs differ by up to {worst:.3g}; {_STEP}"
            )


def _pictures(channels: int | None) -> Iterator[Image.Image]:
    """Noise in a few sizes; a crop that is off by a pixel shows."""
    draw = np.random.default_rng(0)
    for height, width in ((48, 67), (67, 48), (19, 23), (301, 420)):
        shape = (height, width) if channels == 1 else (height, width, 3)
        yield Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8))
