"""The plain 10-layer network of the AVH domain generalisation experiment."""

from torch import nn

from hardsight.errors import OptionError
from hardsight.models._classifier import Classifier, conv_block

_STAGES = (64, 128, 256)


class CNN10(Classifier):
    """Ten convolutions and a hidden layer of 512; 12,587,463 parameters at 7 classes, 144x144.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        image_size: height and width of the input; the hidden layer's inputs depend on it.
        embedding_width: width of the hidden layer.
        seed: of the initial weights; the global random state is neither used nor changed.

    Raises:
        OptionError: ``image_size`` is smaller than 16, which four poolings reduce to nothing.

    Example:
        >>> import torch
        >>> CNN10(image_size=32).features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 512])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Appendix F: [7x7, 64], then [3x3, 64] x 3,
        [3x3, 128] x 3 and [3x3, 256] x 3, 2x2 max pooling after each, batch norm and ReLU.
        The paper gives no strides: here 1, the pooling does the rest. Batch norm and ReLU "by
        default" are read as also after the 512-dimensional layer.
    """

    def __init__(
        self,
        *,
        num_classes: int = 7,
        channels: int = 3,
        image_size: int = 144,
        embedding_width: int = 512,
        seed: int = 0,
    ) -> None:
        if image_size < 16:
            raise OptionError(f"expected image_size of at least 16 for CNN10, got {image_size}")
        super().__init__(
            lambda: _body(channels, image_size, embedding_width),
            embedding_width=embedding_width,
            num_classes=num_classes,
            seed=seed,
        )


def _body(channels: int, image_size: int, embedding_width: int) -> nn.Sequential:
    layers: list[nn.Module] = [*conv_block(channels, 64, size=7), nn.MaxPool2d(2)]
    inputs = 64
    for width in _STAGES:
        for _ in range(3):
            layers += conv_block(inputs, width)
            inputs = width
        layers.append(nn.MaxPool2d(2))
    side = image_size // 16
    hidden = nn.Linear(inputs * side * side, embedding_width, bias=False)
    norm = nn.BatchNorm1d(embedding_width)
    return nn.Sequential(*layers, nn.Flatten(), hidden, norm, nn.ReLU())
