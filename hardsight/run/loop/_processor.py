"""Image processors of transformers: our reading of their settings, held to the processor itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from hardsight._checks import warn
from hardsight.data import model_input
from hardsight.errors import ModelError
from hardsight.preprocessing import Preprocessing

_STEP = (
    "say what to do instead by preprocessing=Preprocessing(...), or by size, mean and std together "
    "(--size, --mean, --std)"
)


def check_processor(processor: Any, how: Preprocessing) -> None:
    """Try our reading of an image processor against the processor itself, on a few pictures.

    Two that share their settings may still differ in what they do with them.

    Args:
        processor: of transformers.
        how: our reading of its settings.

    Raises:
        ModelError: the inputs differ by more than the rounding of pixels.
    """
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
    # tall, wide, smaller and larger than usual inputs
    for height, width in ((48, 67), (67, 48), (19, 23), (301, 420)):
        shape = (height, width) if channels == 1 else (height, width, 3)
        yield Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8))


def warn_of_no_processor(how: Preprocessing) -> None:
    """Warn of settings that are followed without the processor to compare with, as of DINOv3."""
    warn(
        f"the {how.origin} cannot be built here, so that its settings are followed as they are "
        "written, and nothing is compared with the processor itself; install torchvision to "
        "have it compared, or state size, mean and std together (--size, --mean, --std)"
    )
