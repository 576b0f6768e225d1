"""What our own networks share: a body, a linear head, and weights that a seed decides."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    """A body that makes embeddings ``[N, D]`` and a linear head that makes logits ``[N, C]``.

    Args:
        body: makes the body; called under the seed, so that its weights are drawn from it.
        embedding_width: D.
        num_classes: C.
        seed: of the initial weights; the global random state is neither used nor changed.
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
        """Embeddings ``[N, D]`` of images ``[N, channels, H, W]``."""
        embeddings: Tensor = self.body(images)
        return embeddings

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[N, C]`` of images ``[N, channels, H, W]``."""
        logits: Tensor = self.head(self.features(images))
        return logits


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Draw weights on the CPU from a seed; no random state differs afterwards.

    ``torch.manual_seed`` would also seed every GPU, which ``fork_rng`` of the CPU does not undo.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class GaussianNoise(nn.Module):
    """Adds normal noise while training; the identity in eval mode.

    Args:
        std: of the noise, on the scale of the input.
    """

    def __init__(self, std: float) -> None:
        super().__init__()
        self.std = std

    def forward(self, inputs: Tensor) -> Tensor:
        """``inputs`` of any shape, plus noise."""
        return inputs + self.std * torch.randn_like(inputs) if self.training else inputs

    def extra_repr(self) -> str:
        """The deviation."""
        return f"std={self.std}"


def conv_block(
    inputs: int,
    outputs: int,
    *,
    size: int = 3,
    padding: int | None = None,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> tuple[nn.Module, ...]:
    """Convolution, batch norm and activation; ``padding=None`` keeps height and width."""
    pad = size // 2 if padding is None else padding
    convolution = nn.Conv2d(inputs, outputs, kernel_size=size, padding=pad, bias=False)
    return convolution, nn.BatchNorm2d(outputs), activation()


def pooled() -> tuple[nn.Module, nn.Module]:
    """Global average pooling to ``[N, D]``."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten()
