"""The base class of our own networks, and the smallest network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    """A body that makes embeddings ``[N, D]``, and a linear head that makes logits ``[N, C]``.

    Args:
        body: builds the body; it is called under the seed from which its weights are drawn.
        embedding_width: D.
        num_classes: C.
        seed: seed of the initial weights; the global random state is neither used nor changed.
    """

    def __init__(
        self,
        body: Callable[[], nn.Module],
        *,
        embedding_width: int,
        num_classes: int,
        seed: int,
    ) -> None:
        super().__init__()
        with drawn_from(seed):
            self.body = body()
            self.head = nn.Linear(embedding_width, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Return embeddings ``[N, D]`` of images ``[N, channels, H, W]``."""
        embeddings: Tensor = self.body(images)
        return embeddings

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``[N, C]`` of images ``[N, channels, H, W]``."""
        logits: Tensor = self.head(self.features(images))
        return logits


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Draw weights on the CPU from a seed inside the block; all random states are restored.

    ``torch.manual_seed`` would also seed every GPU, which forking the CPU's state does not undo.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def conv_block(
    inputs: int,
    outputs: int,
    *,
    size: int = 3,
    padding: int | None = None,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> tuple[nn.Module, ...]:
    """Return convolution, batch norm and activation; ``padding=None`` keeps height and width."""
    pad = size // 2 if padding is None else padding
    # no bias, which the batch norm after it would remove
    convolution = nn.Conv2d(inputs, outputs, kernel_size=size, padding=pad, bias=False)
    return convolution, nn.BatchNorm2d(outputs), activation()


def pooled() -> tuple[nn.Module, nn.Module]:
    """Return layers for global average pooling to ``[N, D]``."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten()


class SmallCNN(Classifier):
    """Three convolutions, one hidden layer and a linear head; about 52,000 parameters.

    It is made for digits of 8x8 pixels, on which it trains well in a minute on two cores; 28x28
    works too.

    Args:
        num_classes: number of outputs of the head.
        channels: number of channels of the input images.
        embedding_width: width of the features that enter the head.
        seed: seed of the initial weights; the global random state is neither used nor changed.

    Example:
        >>> net = SmallCNN(seed=1)
        >>> net(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
        >>> net.features(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 64])
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        channels: int = 1,
        embedding_width: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(
            lambda: _small_body(channels, embedding_width),
            embedding_width=embedding_width,
            num_classes=num_classes,
            seed=seed,
        )


class _QuadrantMeans(nn.Module):
    """``nn.AdaptiveAvgPool2d(2)`` from plain means, whose gradient is deterministic on GPUs too."""

    def forward(self, maps: Tensor) -> Tensor:
        """Return means ``[N, C, 2, 2]`` of the four quadrants of maps ``[N, C, H, W]``."""
        for dim in (2, 3):
            # an odd length is split like torch does it, with the middle row in both halves
            half, rest = (maps.shape[dim] + 1) // 2, maps.shape[dim] // 2
            near = maps.narrow(dim, 0, half).mean(dim, keepdim=True)
            far = maps.narrow(dim, rest, half).mean(dim, keepdim=True)
            maps = torch.cat((near, far), dim)
        return maps


def _small_body(channels: int, embedding_width: int) -> nn.Sequential:
    return nn.Sequential(
        *conv_block(channels, 16),
        *conv_block(16, 48),
        nn.MaxPool2d(2),
        *conv_block(48, 64),
        _QuadrantMeans(),
        nn.Flatten(),
        nn.Linear(4 * 64, embedding_width),
        nn.ReLU(),
    )
