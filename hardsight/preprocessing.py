"""How a model wants its images: read by ``models``, applied by ``data``, recorded in tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

# an input beside those of a language model, which says which of its tokens have a row
PLACES = "places"


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a model's input.

    Attributes:
        size: height and width of the input; ``None`` keeps the image's own.
        mean: per channel, on the pixel scale ``[0, 1]``; a single value is used for all channels.
        std: per channel, on the same scale.
        crop: share of the resized image that the centre crop keeps. 1.0 crops only to the aspect
            ratio of ``size``; larger values add black borders.
        squash: resize to ``size`` without keeping the aspect ratio.
        interpolation: ``"nearest"``, ``"bilinear"``, ``"bicubic"``, ``"lanczos"``, ``"box"`` or
            ``"hamming"``.
        channels: 1 or 3; ``None`` keeps grey images grey and converts all others to RGB. Three
            values of ``mean`` or ``std`` imply 3, since they belong to a model of RGB images.
        origin: where the values come from, in words for the metadata.
        resize: size of images before the centre crop, if ``crop`` and ``squash`` cannot express it:
            the length of the short side, or height and width. ``size`` may then be ``None``, for no
            crop.
        crop_first: cut out the central square, ``crop`` times the short side of the image, and
            resize it to ``size``.
        crop_rounds_down: if a centre crop leaves an odd number of pixels, the smaller half is
            above and to the left, as in transformers; otherwise halves are rounded, as in
            torchvision and timm.
        resize_in_float: resize pixels as floats, without rounding to bytes in between, as DINOv3's
            processor does. Takes two to three times as long.
        bgr: the channels are blue, green, red; ``mean`` and ``std`` are in the same order.
        white: value of white; ``None`` for 255 in pictures of 8 bits, 65535 in arrays of 16 bits,
            and 1 in arrays and tensors of floats.
        stated: which of the values above the user has stated. Only these are applied to float
            tensors of the user's own dataset, which otherwise go to the model as they are.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    crop: float = 1.0
    squash: bool = False
    interpolation: str = "bilinear"
    channels: int | None = None
    origin: str = "default: pixels in [0, 1]"
    resize: int | tuple[int, int] | None = None
    crop_first: bool = False
    crop_rounds_down: bool = False
    bgr: bool = False
    white: float | None = None
    stated: tuple[str, ...] = ()
    resize_in_float: bool = False

    @property
    def normalises(self) -> bool:
        """Whether mean or std change anything."""
        return any(self.mean) or any(value != 1 for value in self.std)

    @property
    def of_tensors(self) -> Preprocessing:
        """The part that applies to float tensors of a user's own dataset, as in ``stated``.

        Example:
            >>> how = Preprocessing(size=(64, 64), mean=(0.5,), std=(0.2,), stated=("mean",))
            >>> how.of_tensors.size, how.of_tensors.mean, how.of_tensors.std
            (None, (0.5,), (0.2,))
        """
        plain = Preprocessing()
        kept = {"white", "channels"} & set(self.stated)
        if not {"mean", "std"}.isdisjoint(self.stated):  # mean and std belong together
            kept |= {"mean", "std"}
        if not {"size", "crop", "squash"}.isdisjoint(self.stated):
            kept |= {"size", "crop", "squash", "interpolation", "resize", "crop_first",
                     "crop_rounds_down"}  # fmt: skip
        changes = {name: getattr(self, name) for name in kept}
        return replace(plain, **changes, origin=self.origin, stated=self.stated)

    def at_size(self, size: tuple[int, int]) -> Preprocessing:
        """Return a copy for inputs of another size, with the same share of the image cropped.

        Example:
            >>> how = Preprocessing(size=(224, 160), resize=256)
            >>> how.at_size((112, 80)).resize, Preprocessing(resize=256).at_size((64, 48)).resize
            (128, None)
        """
        if self.resize is None or self.size is None:
            return replace(self, size=size, resize=None)
        ratios = [new / old for new, old in zip(size, self.size, strict=True)]
        if isinstance(self.resize, int):
            return replace(self, size=size, resize=round(self.resize * max(ratios)))
        height, width = (round(n * r) for n, r in zip(self.resize, ratios, strict=True))
        return replace(self, size=size, resize=(height, width))
