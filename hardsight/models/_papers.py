"""The networks of the three papers: AVH, AMC-Loss and Encouraging Loss."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from hardsight.errors import OptionError
from hardsight.models._classifier import Classifier, conv_block, drawn_from, pooled

_leaky_block = partial(conv_block, activation=partial(nn.LeakyReLU, 0.1))


class CNN10(Classifier):
    """Ten convolutions and a hidden layer of 512; 12,587,463 parameters at 7 classes, 144x144.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        image_size: height and width of the input, on which the hidden layer's size depends.
        embedding_width: width of the hidden layer.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Raises:
        OptionError: ``image_size`` is below 16, so that nothing is left after four poolings.

    Example:
        >>> import torch
        >>> CNN10(image_size=32).features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 512])

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Appendix F: [7x7, 64], then [3x3, 64] x 3,
        [3x3, 128] x 3 and [3x3, 256] x 3, each followed by 2x2 max pooling, with batch norm and
        ReLU. The paper gives no strides; here they are 1, and pooling does the rest. "By default"
        is read as batch norm and ReLU after the 512-dimensional layer as well.
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
            lambda: _ten(channels, image_size, embedding_width),
            embedding_width=embedding_width,
            num_classes=num_classes,
            seed=seed,
        )


def _ten(channels: int, image_size: int, embedding_width: int) -> nn.Sequential:
    layers: list[nn.Module] = [*conv_block(channels, 64, size=7), nn.MaxPool2d(2)]
    inputs = 64
    for width in (64, 128, 256):
        for _ in range(3):
            layers += conv_block(inputs, width)
            inputs = width
        layers.append(nn.MaxPool2d(2))
    side = image_size // 16  # four poolings halve the image
    hidden = nn.Linear(inputs * side * side, embedding_width, bias=False)
    norm = nn.BatchNorm1d(embedding_width)
    return nn.Sequential(*layers, nn.Flatten(), hidden, norm, nn.ReLU())


class GaussianNoise(nn.Module):
    """Adds normal noise during training, and is the identity in eval mode.

    Args:
        std: standard deviation of the noise, on the scale of the input.
    """

    def __init__(self, std: float) -> None:
        super().__init__()
        self.std = std

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``inputs``, of any shape, plus noise."""
        return inputs + self.std * torch.randn_like(inputs) if self.training else inputs

    def extra_repr(self) -> str:
        """Return the standard deviation in words."""
        return f"std={self.std}"


class AMCNet(Classifier):
    """The 13-layer network of AMC-Loss; 3,121,802 parameters at 10 classes and full width.

    Noise, three blocks of three convolutions with leaky ReLU and batch norm, dropout between them,
    global average pooling, and one head.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        width: factor for the width of every layer. 1 gives the paper's 128, 256, 512-256-128; 0.5
            gives 64, 128, 256-128-64, which the published code uses.
        noise_std: standard deviation of the Gaussian noise added to the input during training.
        dropout: share of activations dropped after each pooling.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Raises:
        OptionError: ``width`` leaves a layer without channels.

    Example:
        >>> import torch
        >>> AMCNet(width=0.5).features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])

    Reference:
        Choi et al., AMC-Loss, CVPR Workshops 2020, Table 2 (top).
        Deviation: convolutions have no bias, which the batch norm after them would remove.
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
    """A small network with an embedding of 2 or 3 dimensions; 120,160 parameters with 2.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        embedding_width: number of dimensions of the embedding.
        noise_std: standard deviation of the Gaussian noise added to the input during training.
        dropout: share of activations dropped after each pooling.
        decoupled: whether convolutions are :class:`SphereConv2d`, as in a decoupled SphereNet.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> import torch
        >>> MNISTNet(embedding_width=3).features(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 3])

    Reference:
        Choi et al., AMC-Loss, CVPR Workshops 2020, Table 2 (bottom); AVH (Figs. 2 and 8) only says
        "a very simple CNN".
        Deviation: Table 2 goes from 64 pooled channels to a head with 3 inputs without saying how.
        Here this is a linear layer without an activation, so that all directions can be used.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        channels: int = 1,
        embedding_width: int = 2,
        noise_std: float = 0.15,
        dropout: float = 0.5,
        decoupled: bool = False,
        seed: int = 0,
    ) -> None:
        def body() -> nn.Sequential:
            plain = _plane(channels, embedding_width, noise_std, dropout)
            return _decoupled(plain) if decoupled else plain

        super().__init__(
            body,
            embedding_width=embedding_width,
            num_classes=num_classes,
            seed=seed,
        )


def _thirteen(channels: int, width: float, noise_std: float, dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = [GaussianNoise(noise_std)]
    inputs = channels
    for stage in (128, 256):
        for _ in range(3):
            layers += _leaky_block(inputs, round(stage * width))
            inputs = round(stage * width)
        layers += [nn.MaxPool2d(2), nn.Dropout(dropout)]
    for stage, size in ((512, 3), (256, 1), (128, 1)):
        layers += _leaky_block(inputs, round(stage * width), size=size, padding=0)
        inputs = round(stage * width)
    return nn.Sequential(*layers, *pooled())


def _plane(channels: int, embedding_width: int, noise_std: float, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        GaussianNoise(noise_std),
        *_leaky_block(channels, 64),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        *_leaky_block(64, 64),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        *_leaky_block(64, 128, padding=0),
        *_leaky_block(128, 64, size=1, padding=0),
        *pooled(),
        nn.Linear(64, embedding_width),
    )


class SphereConv2d(nn.Conv2d):
    r"""A convolution of directions: the cosine between a filter and each patch.

    .. math:: f(w, x) = \cos\angle(w, x)

    in place of :math:`w^T x`. The brightness of a patch and the length of a filter do not matter. A
    patch of zeros has no direction and gives 0.

    Example:
        >>> import torch
        >>> layer, image = SphereConv2d(1, 4, 3, bias=False), torch.rand(2, 1, 5, 5)
        >>> torch.allclose(layer(image), layer(7 * image), atol=1e-5)
        True

    Reference:
        Liu et al., Deep Hyperspherical Learning, NeurIPS 2017 (SphereConv with a cosine); Liu et
        al., Decoupled Networks, CVPR 2018, where its magnitude function is constant.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return cosines ``[N, C', H', W']`` of images ``[N, C, H, W]``."""
        filters = nn.functional.normalize(self.weight.flatten(1), dim=1).view_as(self.weight)
        # convolving the squares with ones gives the squared length of every patch
        ones = torch.ones_like(self.weight[:1])
        squares = self._conv_forward(input * input, ones, None)
        # clamped, because a black patch is 0, where the square root has an infinite slope
        lengths = squares.clamp_min(torch.finfo(squares.dtype).eps).sqrt()
        cosines: Tensor = self._conv_forward(input, filters, None) / lengths
        return cosines


def _decoupled(body: nn.Sequential) -> nn.Sequential:
    """Replace the convolutions of a stack by :class:`SphereConv2d` with the same weights."""
    for name, layer in body.named_children():
        if isinstance(layer, nn.Conv2d):
            # draws no weights, so that all other layers start the same as in the plain network
            same = nn.utils.skip_init(
                SphereConv2d, layer.in_channels, layer.out_channels, layer.kernel_size[0],
                padding=layer.padding[0], bias=False,
            )  # fmt: skip
            same.weight = layer.weight
            setattr(body, name, same)
    return body


class ELMNISTNet(Classifier):
    """The network of Encouraging Loss on MNIST; 522,125 parameters for grey images of 28 pixels.

    Batch norm of the pixels, then eleven convolutions of 64 channels in three stages, each followed
    by a PReLU with a single slope and batch norm. The embedding is a linear layer with batch norm
    and no activation; the head has no bias and Kaiming-normal weights.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        image_size: height and width of the images; 28 for MNIST.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Raises:
        OptionError: nothing of the image would be left after three poolings.

    Example:
        >>> import torch
        >>> ELMNISTNet().features(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 256])

    Reference:
        Zhao et al., Well-classified Examples are Underestimated in Classification with Deep
        Neural Networks, AAAI 2022, Table 1 (MNIST), which cites "the CNN model from Liu et al.
        (2016)". The layers are those of the published code; Liu's own release is wider and ends in
        a ReLU.
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
            nn.init.kaiming_normal_(self.head.weight)  # only the head, as published


class ELAttackNet(Classifier):
    """The small network that the published code of Encouraging Loss attacks; 123,222 parameters.

    Three convolutions of 5x5 without padding, ReLU, two poolings, and a hidden layer of 100.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        image_size: height and width of the images; 28 for MNIST.
        seed: seed of the initial weights; the global random state is neither used nor changed.

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
        # each convolution of 5x5 takes 4 pixels: two come before the first pooling, one after it
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
    layers: list[nn.Module] = [nn.BatchNorm2d(channels), *_el_block(channels, padding=0)]
    for blocks in (3, 4, 3):
        for _ in range(blocks):
            layers += _el_block(64)
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(pixels, 256), nn.BatchNorm1d(256))


def _el_block(inputs: int, *, padding: int = 1) -> tuple[nn.Module, ...]:
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
