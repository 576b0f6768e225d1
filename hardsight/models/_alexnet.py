"""AlexNet for small images."""

from torch import nn

from hardsight.models._classifier import Classifier


class AlexNet(Classifier):
    """The five convolutions of AlexNet and one linear head; 2,472,266 parameters at 10 classes.

    The form in common use for 32x32 images: the first convolution is 11x11 with stride 4, and the
    two hidden layers of 4,096, which a map of one pixel does not need, are left out.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        seed: of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> AlexNet()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    Reference:
        Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks, 2012.
    """

    def __init__(self, *, num_classes: int = 10, channels: int = 3, seed: int = 0) -> None:
        super().__init__(
            lambda: _body(channels), embedding_width=256, num_classes=num_classes, seed=seed
        )


def _body(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 64, kernel_size=11, stride=4, padding=5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 192, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(192, 384, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveMaxPool2d(1),  # 2x2 to 1x1 at 32x32, and one value per channel at any size
        nn.Flatten(),
    )
