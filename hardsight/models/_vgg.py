"""VGG-19 for small images."""

from torch import nn

from hardsight.models._classifier import Classifier, conv_block

_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


class VGG19(Classifier):
    """The 16 convolutions of VGG-19 with batch norm, one head; 20,035,018 parameters at 10 classes.

    The form in common use for 32x32 images: five times halved the map is one pixel, which goes to
    the head directly instead of through two hidden layers of 4,096. The convolutions have no bias,
    since batch norm would remove it (with biases: 20,040,522).

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        seed: of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> VGG19()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    Reference:
        Simonyan and Zisserman, Very Deep Convolutional Networks, 2015, configuration E.
    """

    def __init__(self, *, num_classes: int = 10, channels: int = 3, seed: int = 0) -> None:
        super().__init__(
            lambda: _body(channels), embedding_width=512, num_classes=num_classes, seed=seed
        )


def _body(channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = channels
    for outputs, count in _STAGES:
        for _ in range(count):
            layers += conv_block(width, outputs)
            width = outputs
        layers.append(nn.MaxPool2d(2))
    # the last one takes whatever is left: 2x2 at 32x32, a single pixel at 28x28
    layers[-1] = nn.AdaptiveMaxPool2d(1)
    return nn.Sequential(*layers, nn.Flatten())
