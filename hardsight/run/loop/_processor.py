"""Check our reading of an image processor of transformers against the processor itself."""

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
    "pass preprocessing=Preprocessing(...) instead, or size, mean and std together (--size, "
    "--mean, --std)"
)


def check_processor(processor: Any, how: Preprocessing) -> None:
    """Compare our preprocessing with an image processor of transformers, on a few pictures.

    Processors with the same settings may still treat pictures differently.

    Args:
        processor: an image processor of transformers.
        how: our reading of its settings.

    Raises:
        ModelError: the inputs differ by more than the rounding of pixels.
    """
    kind = type(processor).__name__
    # Pixels may be rounded before or after resizing, by up to some 1/255, and are then divided by
    # the deviation.
    rounding = 2.5 / 255 / min(how.std) + 1e-4
    for picture in _pictures(how.channels):
        ours = model_input(picture, how)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the package warns about its own defaults
                theirs = np.asarray(processor(picture, return_tensors="pt")["pixel_values"])[0]
        except Exception as err:  # a processor for another task needs other arguments
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
    """Yield noise in a few sizes, in which a crop that is off by one pixel shows."""
    draw = np.random.default_rng(0)
    # tall, wide, smaller and larger than usual inputs
    for height, width in ((48, 67), (67, 48), (19, 23), (301, 420)):
        shape = (height, width) if channels == 1 else (height, width, 3)
        yield Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8))


def warn_of_no_processor(how: Preprocessing) -> None:
    """Warn about settings that cannot be compared with their processor, as for DINOv3."""
    warn(
        f"the {how.origin} cannot be built here, so its settings are followed as they are "
        "written, without a comparison with the processor itself; install torchvision to "
        "have it compared, or state size, mean and std together (--size, --mean, --std)"
    )
