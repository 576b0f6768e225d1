"""Examples for a model: what lies on the disk, and what the model must be fed from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.fuzz.draw import Array, Draw


@dataclass
class Examples:
    """Data on the disk, and what a model must be fed from it.

    Attributes:
        flags: that name it on the command line.
        ids: of the examples that can be read, in order.
        index: their positions, those that cannot be read counted too.
        labels: their classes.
        classes: names, position = label.
        pixels: what the files say: on the scale [0, 1] for pictures, ``[N, C, H, W]``, as they
            are for vectors, ``[N, D]``.
        errors: ids of the examples that cannot be read.
        must_refuse: why no table could be right; empty if one can.
        may_refuse: whether a refusal is as good an answer.
        must_tell: what the output has to say of them.
        remedy: flags with which a refusal is not as good an answer.
    """

    flags: list[str]
    ids: list[str]
    labels: Array
    classes: list[str]
    pixels: Array
    index: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    must_refuse: str = ""
    may_refuse: bool = False
    must_tell: str = ""
    remedy: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.index = self.index or list(range(len(self.ids)))

    @property
    def is_flat(self) -> bool:
        """Whether every picture is of one colour, so that no resizing changes it."""
        return self.pixels.ndim == 4 and bool((self.pixels == self.pixels[:, :, :1, :1]).all())


@dataclass(frozen=True)
class Shape:
    """Of the pictures of a case."""

    count: int
    height: int
    width: int
    rgb: bool
    flat: bool  # every picture is of one colour, so that no resizing changes it

    def pixels(self, draw: Draw, name: str) -> Array:
        """``[H, W]`` or ``[H, W, 3]``, 8 bits."""
        shape = (1, 1) if self.flat else (self.height, self.width)
        values = draw.bytes_of(name, *shape, *((3,) if self.rgb else ()))
        grown = np.ones((self.height, self.width, *((1,) if self.rgb else ())), np.int64)
        return (values * grown).astype(np.uint8)


def make_shape(draw: Draw) -> Shape:
    return Shape(
        draw.whole("data.count", 4, 16),
        draw.whole("data.height", 3, 6),
        draw.whole("data.width", 3, 6),
        rgb=draw.pick("data.rgb", (True, False)),
        flat=draw.chance("data.flat", 0.25),
    )


def planes(picture: Array) -> Array:
    """``[C, H, W]`` on the scale [0, 1] from 8 bits."""
    values = picture / 255
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
