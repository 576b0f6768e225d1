"""A small EfficientNet: inverted bottlenecks with channel attention, for small images."""

from collections.abc import Callable

from torch import Tensor, nn

from hardsight.errors import OptionError
from hardsight.models._classifier import Classifier, pooled

# per stage: expansion, channels, blocks, stride of the first block, kernel size. The stages of
# EfficientNet-B0 with two blocks at most, and strides for 32 x 32 instead of 224 x 224.
_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 2, 1, 3),
    (6, 112, 2, 1, 5),
    (6, 192, 2, 2, 5),
)
_STEM, _LAST = 32, 640


class EfficientNetSmall(Classifier):
    """EfficientNet-B0's stages at two thirds of its depth, for small images; 1,521,350 parameters.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        width: factor of all widths.
        seed: of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> EfficientNetSmall().features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 640])

    Reference:
        Tan and Le, EfficientNet, ICML 2019: MBConv blocks with squeeze-and-excitation and SiLU.
        Deviation: at most two blocks per stage, no stage of 320 channels, a stem of stride 1, no
        dropout and no stochastic depth, so that a few epochs train it.
    """

    def __init__(
        self, *, num_classes: int = 10, channels: int = 3, width: float = 1.0, seed: int = 0
    ) -> None:
        if not width > 0:
            raise OptionError(f"expected width above 0, got {width}")

        def scaled(size: int) -> int:
            return max(4, round(size * width / 4) * 4)

        super().__init__(
            lambda: _body(channels, scaled),
            embedding_width=scaled(_LAST),
            num_classes=num_classes,
            seed=seed,
        )


class _SqueezeExcite(nn.Module):
    """Scales channels by what their means say."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.Conv2d(channels, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, maps: Tensor) -> Tensor:
        scaled: Tensor = maps * self.gate(maps.mean(dim=(2, 3), keepdim=True))
        return scaled


class _MBConv(nn.Module):
    """Expand, convolve each channel, attend, project; added to the input where shapes agree."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, size: int) -> None:
        super().__init__()
        wide = expansion * inputs
        expand = () if expansion == 1 else (*_conv(inputs, wide, 1), nn.SiLU())
        self.branch = nn.Sequential(
            *expand,
            *_conv(wide, wide, size, stride=stride, groups=wide),
            nn.SiLU(),
            _SqueezeExcite(wide, max(1, inputs // 4)),
            *_conv(wide, outputs, 1),
        )
        self._adds = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.branch(inputs)
        return inputs + made if self._adds else made


def _body(channels: int, scaled: Callable[[int], int]) -> nn.Sequential:
    inputs = scaled(_STEM)
    layers: list[nn.Module] = [*_conv(channels, inputs, 3), nn.SiLU()]
    for expansion, width, blocks, stride, size in _STAGES:
        for block in range(blocks):
            layers.append(_MBConv(inputs, scaled(width), expansion, 1 if block else stride, size))
            inputs = scaled(width)
    last = scaled(_LAST)
    return nn.Sequential(*layers, *_conv(inputs, last, 1), nn.SiLU(), *pooled())


def _conv(
    inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(
        inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False
    )
    return convolution, nn.BatchNorm2d(outputs)
