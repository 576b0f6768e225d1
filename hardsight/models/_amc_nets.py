"""The two networks of AMC-Loss: 13 layers for 32x32 images, and one to be drawn in a plane."""

from functools import partial

from torch import nn

from hardsight.errors import OptionError
from hardsight.models._classifier import Classifier, GaussianNoise, conv_block, pooled

_LeakyReLU = partial(nn.LeakyReLU, 0.1)


class AMCNet(Classifier):
    """The 13-layer network of AMC-Loss; 3,121,802 parameters at 10 classes and full width.

    Noise, three blocks of three convolutions with leaky ReLU and batch norm, dropout between
    them, global average pooling, one head.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        width: factor on every layer's width: 1 is the paper's 128, 256, 512-256-128; 0.5 is what
            the published code runs, 64, 128, 256-128-64.
        noise_std: of the Gaussian noise added to the input while training.
        dropout: share of dropped activations after each pooling.
        seed: of the initial weights; the global random state is neither used nor changed.

    Raises:
        OptionError: ``width`` leaves a layer without channels.

    Example:
        >>> import torch
        >>> AMCNet(width=0.5).features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])

    Reference:
        Choi et al., AMC-Loss, CVPR Workshops 2020, Table 2 (top).
        Deviation: convolutions without bias, which the batch norm behind them would remove.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        channels: int = 3,
        width: float = 1.0,
        noise_std: float = 0.15,
        dropout: float = 0.5,
        seed: int = 0,
    ) -> None:
        embedding_width = round(128 * width)
        if embedding_width < 1:
            raise OptionError(f"expected width of at least 1/128, got {width}; 0.5 is common")
        super().__init__(
            lambda: _thirteen(channels, width, noise_std, dropout),
            embedding_width=embedding_width,
            num_classes=num_classes,
            seed=seed,
        )


class MNISTNet(Classifier):
    """A small network with an embedding of 2 or 3 dimensions; 120,160 parameters in the plane.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        embedding_width: dimensions of the embedding.
        noise_std: of the Gaussian noise added to the input while training.
        dropout: share of dropped activations after each pooling.
        seed: of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> MNISTNet(embedding_width=3).features(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 3])

    Reference:
        Choi et al., AMC-Loss, CVPR Workshops 2020, Table 2 (bottom); AVH (Figs. 2 and 8) says
        only "a very simple CNN".
        Deviation: Table 2 goes from 64 pooled channels to a head of 3 inputs without saying how;
        here one linear layer, without an activation, so that all directions can be used.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        channels: int = 1,
        embedding_width: int = 2,
        noise_std: float = 0.15,
        dropout: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__(
            lambda: _plane(channels, embedding_width, noise_std, dropout),
            embedding_width=embedding_width,
            num_classes=num_classes,
            seed=seed,
        )


def _thirteen(channels: int, width: float, noise_std: float, dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = [GaussianNoise(noise_std)]
    inputs = channels
    for stage in (128, 256):
        for _ in range(3):
            layers += _block(inputs, round(stage * width))
            inputs = round(stage * width)
        layers += [nn.MaxPool2d(2), nn.Dropout(dropout)]
    for stage, size in ((512, 3), (256, 1), (128, 1)):
        layers += _block(inputs, round(stage * width), size=size, padding=0)
        inputs = round(stage * width)
    return nn.Sequential(*layers, *pooled())


def _plane(channels: int, embedding_width: int, noise_std: float, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        GaussianNoise(noise_std),
        *_block(channels, 64),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        *_block(64, 64),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        *_block(64, 128, padding=0),
        *_block(128, 64, size=1, padding=0),
        *pooled(),
        nn.Linear(64, embedding_width),
    )


_block = partial(conv_block, activation=_LeakyReLU)
