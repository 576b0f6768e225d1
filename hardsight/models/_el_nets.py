"""The two networks for MNIST in the published code of Encouraging Loss."""

from torch import nn

from hardsight.errors import OptionError
from hardsight.models._classifier import Classifier, drawn_from


class ELMNISTNet(Classifier):
    """The network of Encouraging Loss on MNIST; 522,125 parameters for grey images of 28 pixels.

    Batch norm of the pixels, then eleven convolutions of 64 channels in three stages, each with a
    PReLU of one slope and batch norm after it. The embedding is a linear layer with batch norm and
    no activation; the head has no bias and Kaiming-normal weights.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        image_size: height and width of the images; 28 for MNIST.
        seed: of the initial weights; the global random state is neither used nor changed.

    Raises:
        OptionError: nothing of the image would be left after three poolings.

    Example:
        >>> import torch
        >>> ELMNISTNet().features(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 256])

    Reference:
        Zhao et al., Well-classified Examples are Underestimated in Classification with Deep
        Neural Networks, AAAI 2022, Table 1 (MNIST), there "the CNN model from Liu et al. (2016)";
        the layers are those of the published code. Liu's own release is wider and ends in ReLU.
    """

    def __init__(
        self, *, num_classes: int = 10, channels: int = 1, image_size: int = 28, seed: int = 0
    ) -> None:
        side = (image_size - 2) // 8  # one convolution without padding, three poolings
        if side < 1:
            raise OptionError(f"expected image_size of at least 10, got {image_size}")
        super().__init__(
            lambda: _eleven(channels, 64 * side**2),
            embedding_width=256,
            num_classes=num_classes,
            seed=seed,
        )
        with drawn_from(seed):
            self.head = nn.Linear(256, num_classes, bias=False)
            nn.init.kaiming_normal_(self.head.weight)  # the head alone, as published


class ELAttackNet(Classifier):
    """The small network that the published code of Encouraging Loss attacks; 123,222 parameters.

    Three convolutions of 5x5 without padding, ReLU, two poolings, a hidden layer of 100.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        image_size: height and width of the images; 28 for MNIST.
        seed: of the initial weights; the global random state is neither used nor changed.

    Raises:
        OptionError: nothing of the image would be left after the convolutions.

    Example:
        >>> import torch
        >>> ELAttackNet().features(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 100])

    Reference:
        The attacks beside Figure 7 of Zhao et al., AAAI 2022, in the published code.
    """

    def __init__(
        self, *, num_classes: int = 10, channels: int = 1, image_size: int = 28, seed: int = 0
    ) -> None:
        side = ((image_size - 8) // 2 - 4) // 2
        if side < 1:
            raise OptionError(f"expected image_size of at least 20, got {image_size}")
        super().__init__(
            lambda: _three(channels, 64 * side**2),
            embedding_width=100,
            num_classes=num_classes,
            seed=seed,
        )


def _eleven(channels: int, pixels: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.BatchNorm2d(channels), *_block(channels, padding=0)]
    for blocks in (3, 4, 3):
        for _ in range(blocks):
            layers += _block(64)
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(pixels, 256), nn.BatchNorm1d(256))


def _block(inputs: int, *, padding: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, 64, kernel_size=3, padding=padding), nn.PReLU(), nn.BatchNorm2d(64)


def _three(channels: int, pixels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=5),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(pixels, 100),
        nn.ReLU(),
    )
