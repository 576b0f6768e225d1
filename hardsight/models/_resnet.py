"""ResNets for small images."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import relu

from hardsight.errors import OptionError
from hardsight.models._classifier import Classifier, pooled

Branch = Callable[[int, int, int], tuple[nn.Sequential, int]]


class ResNet18(Classifier):
    """ResNet-18 with a 3x3 stem and no first pooling; 11,173,962 parameters at 10 classes.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        width: channels of the first stage; the embedding has 8 times as many.
        seed: of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> ResNet18().features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 512])

    Reference:
        He et al., Deep Residual Learning for Image Recognition, 2016; the stem for 32x32 images.
    """

    def __init__(
        self, *, num_classes: int = 10, channels: int = 3, width: int = 64, seed: int = 0
    ) -> None:
        if width < 1:
            raise OptionError(f"expected width of at least 1, got {width}")
        super().__init__(
            lambda: _body(channels, (2, 2, 2, 2), _basic, width),
            embedding_width=8 * width,
            num_classes=num_classes,
            seed=seed,
        )


class ResNet50(Classifier):
    """ResNet-50 with a 3x3 stem and no first pooling; 23,520,842 parameters at 10 classes.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        seed: of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> ResNet50().features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 2048])

    Reference:
        He et al., Deep Residual Learning for Image Recognition, 2016; stride in the 3x3
        convolution, the stem for 32x32 images.
    """

    def __init__(self, *, num_classes: int = 10, channels: int = 3, seed: int = 0) -> None:
        super().__init__(
            lambda: _body(channels, (3, 4, 6, 3), _bottleneck),
            embedding_width=2048,
            num_classes=num_classes,
            seed=seed,
        )


class _Residual(nn.Module):
    """``relu(branch(x) + shortcut(x))``."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        return relu(self.branch(inputs) + self.shortcut(inputs))


def _body(channels: int, depths: tuple[int, ...], branch: Branch, width: int = 64) -> nn.Sequential:
    layers: list[nn.Module] = [*_conv(channels, width, 3), nn.ReLU(inplace=True)]
    inputs = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            made, outputs = branch(inputs, width * 2**stage, stride)
            layers.append(_Residual(made, _shortcut(inputs, outputs, stride)))
            inputs = outputs
    return nn.Sequential(*layers, *pooled())


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*_conv(inputs, outputs, 1, stride))


def _basic(inputs: int, width: int, stride: int) -> tuple[nn.Sequential, int]:
    first, second = _conv(inputs, width, 3, stride), _conv(width, width, 3)
    return nn.Sequential(*first, nn.ReLU(inplace=True), *second), width


def _bottleneck(inputs: int, width: int, stride: int) -> tuple[nn.Sequential, int]:
    outputs = 4 * width
    narrow, middle, wide = (
        _conv(inputs, width, 1),
        _conv(width, width, 3, stride),
        _conv(width, outputs, 1),
    )
    relus = nn.ReLU(inplace=True), nn.ReLU(inplace=True)
    return nn.Sequential(*narrow, relus[0], *middle, relus[1], *wide), outputs


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)
