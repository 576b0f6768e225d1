"""What a model wants done to an image: found by ``models``, applied by ``data``, kept in tables."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a model's input.

    Attributes:
        size: height and width of the input; ``None`` keeps the image's own.
        mean: per channel, on the pixel scale ``[0, 1]``; one value serves all channels.
        std: per channel, on the same scale.
        crop: share of the resized image that the centre crop keeps; 1.0 crops only what the
            aspect ratio leaves over.
        squash: resize to ``size`` without keeping the aspect ratio.
        interpolation: ``"nearest"``, ``"bilinear"``, ``"bicubic"`` or ``"lanczos"``.
        channels: 1 or 3; ``None`` keeps grey images grey and makes all others RGB. Three values of
            ``mean`` or ``std`` mean 3: they are those of a model of RGB images.
        origin: where the values come from, in words for the metadata.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    crop: float = 1.0
    squash: bool = False
    interpolation: str = "bilinear"
    channels: int | None = None
    origin: str = "default: pixels in [0, 1]"
