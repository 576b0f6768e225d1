"""Pictures made harder to see by noise or lower contrast (AVH, Definition 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hardsight.data.pixels import eight_bit, pixels_of
from hardsight.data.source import ExampleSource, Loading, SourceView
from hardsight.errors import DataError, OptionError
from hardsight.preprocessing import Preprocessing

NOISE_LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4)
"""The paper's levels of additive uniform noise; larger is harder."""

CONTRAST_LEVELS = (1.0, 0.6, 0.3, 0.2, 0.1)
"""The paper's levels of contrast; smaller is harder."""

_PURPOSE = 0xDE64ADE  # its own random stream, so these draws do not shift any others


def with_uniform_noise(
    pixels: NDArray[np.floating[Any]], *, width: float, seed: int, index: int
) -> NDArray[np.float32]:
    r"""Return an image with uniform noise added to every value, clipped to ``[0, 1]``.

    .. math:: x' = \min(1, \max(0, x + w u)), \quad u \sim U(-1, 1)

    The draw :math:`u` depends only on ``seed`` and ``index``, so the levels of one image differ
    only by the factor :math:`w`.

    Args:
        pixels: any shape, in ``[0, 1]``.
        width: :math:`w` in ``[0, 1]``; the paper uses :data:`NOISE_LEVELS`.
        seed: seed for all examples.
        index: position of this example.

    Returns:
        the shape of ``pixels``, in ``[0, 1]``, float32.

    Raises:
        OptionError: ``width`` is outside ``[0, 1]``.
        DataError: a value is outside ``[0, 1]``.

    Example:
        >>> grey = np.full((1, 3), 0.5, dtype=np.float32)
        >>> with_uniform_noise(grey, width=0.1, seed=0, index=7).round(3)
        array([[0.531, 0.531, 0.408]], dtype=float32)

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Definition 4 and Fig. 11: "the amount of
        pixel-wise additive uniform noise". The sides of the interval follow Geirhos et al. 2018,
        whom the paper cites. Every channel of a pixel gets its own draw.
    """
    if not 0 <= width <= 1:
        raise OptionError(f"expected a noise width in [0, 1], got {width}")
    values = _checked(pixels)
    draw = np.random.default_rng([seed, _PURPOSE, index])
    noise = 2 * draw.random(values.shape, dtype=np.float32) - 1
    return np.clip(values + np.float32(width) * noise, 0, 1)


def reduced_contrast(pixels: NDArray[np.floating[Any]], *, level: float) -> NDArray[np.float32]:
    r"""Return an image pulled towards mid-grey.

    .. math:: x' = c x + (1 - c) / 2

    Args:
        pixels: any shape, in ``[0, 1]``.
        level: :math:`c` in ``[0, 1]``; 1 leaves the image as it is. The paper uses
            :data:`CONTRAST_LEVELS`.

    Returns:
        the shape of ``pixels``, in ``[0, 1]``, float32.

    Raises:
        OptionError: ``level`` is outside ``[0, 1]``.
        DataError: a value is outside ``[0, 1]``.

    Example:
        >>> reduced_contrast(np.array([0.0, 0.5, 1.0]), level=0.2)
        array([0.4, 0.5, 0.6], dtype=float32)

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Definition 4 and Fig. 12; the formula is
        that of Geirhos et al. 2018, whom the paper cites.
    """
    if not 0 <= level <= 1:
        raise OptionError(f"expected a contrast level in [0, 1], got {level}")
    values = _checked(pixels)
    return np.float32(level) * values + np.float32((1 - level) / 2)


class DegradedSource(SourceView):
    """A source whose pictures have noise or less contrast, by a fixed amount.

    Args:
        source: a source of pictures.
        noise: width of the uniform noise, which is added last.
        contrast: level of contrast.
        seed: seed of the noise; each example's draw depends on its position.

    Raises:
        OptionError: a level is outside ``[0, 1]``.

    Example:
        >>> from hardsight.data import open_source
        >>> dim = DegradedSource(open_source("builtin:digits"), contrast=0.1)
        >>> dim[0].content.max().round(2), dim.spec
        (np.float32(0.54), 'builtin:digits with contrast 0.1')
    """

    def __init__(
        self, source: ExampleSource, *, noise: float = 0.0, contrast: float = 1.0, seed: int = 0
    ) -> None:
        for name, value in (("noise", noise), ("contrast", contrast)):
            if not 0 <= value <= 1:
                raise OptionError(f"expected {name} in [0, 1], got {value}")
        self._noise, self._contrast, self._seed = noise, contrast, seed
        said = [f"contrast {contrast}"] if contrast < 1 else []
        said += [f"noise {noise}, seed {seed}"] if noise else []
        super().__init__(
            [source], spec=f"{source.spec} with {' and '.join(said)}" if said else None
        )
        # what the source says about its stored images no longer holds for the degraded ones
        self.images, self.loading, self.is_model_ready = None, Loading(), False

    def content(self, content: Any, index: int) -> Any:
        """Return the degraded picture, ``[H, W]`` or ``[H, W, C]`` in ``[0, 1]``."""
        pixels = _pixels(content, self.parts[0])
        if self._contrast < 1:
            pixels = reduced_contrast(pixels, level=self._contrast)
        if self._noise:
            pixels = with_uniform_noise(pixels, width=self._noise, seed=self._seed, index=index)
        return pixels

    def _facts(self) -> tuple[object, ...]:
        return self._noise, self._contrast, self._seed if self._noise else ""


def _pixels(content: Any, source: ExampleSource) -> NDArray[np.float32]:
    """Return a picture as ``[H, W]`` or ``[H, W, C]`` in ``[0, 1]``."""
    if source.is_model_ready:
        own = pixels_of(content, Preprocessing(), source)
        content = content if own is None else own.content
    if isinstance(content, Image.Image):
        return np.asarray(eight_bit(content), dtype=np.float32) / np.float32(255)
    if isinstance(content, np.ndarray) and content.ndim > 1 and content.dtype.kind in "uf":
        white = float(np.iinfo(content.dtype).max) if content.dtype.kind == "u" else 1.0
        return content.astype(np.float32) / np.float32(white)
    raise DataError(
        f"only pictures can be degraded, got {type(content).__name__} from {source.spec}; degrade "
        "your own arrays with with_uniform_noise and reduced_contrast"
    )


def _checked(pixels: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    values = np.asarray(pixels, dtype=np.float32)
    if values.size and not (values.min() >= 0 and values.max() <= 1):  # "not" also catches NaN
        raise DataError(
            f"expected pixels in [0, 1], got {values.min()} to {values.max()}; divide by white "
            "first, and degrade before the mean is subtracted"
        )
    return values
