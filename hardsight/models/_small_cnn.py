"""A compact network for small grey images."""

import torch
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Three convolutions, one hidden layer, one linear head; about 52,000 parameters.

    Made for 8x8 digits, where a minute on two cores trains it well; 28x28 works as well.

    Args:
        num_classes: outputs of the head.
        channels: of the input images.
        embedding_width: width of the features that enter the head.
        seed: of the initial weights; the global random state is neither used nor changed.

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
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                *_block(channels, 16),
                *_block(16, 48),
                nn.MaxPool2d(2),
                *_block(48, 64),
                _QuadrantMeans(),
                nn.Flatten(),
                nn.Linear(4 * 64, embedding_width),
                nn.ReLU(),
            )
            self.head = nn.Linear(embedding_width, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Embeddings ``[N, D]`` of images ``[N, channels, H, W]``."""
        embeddings: Tensor = self.body(images)
        return embeddings

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[N, C]`` of images ``[N, channels, H, W]``."""
        logits: Tensor = self.head(self.features(images))
        return logits


class _QuadrantMeans(nn.Module):
    """``nn.AdaptiveAvgPool2d(2)``, whose gradient on a GPU is not deterministic, by plain means."""

    def forward(self, maps: Tensor) -> Tensor:
        """Means ``[N, C, 2, 2]`` of the four quadrants of maps ``[N, C, H, W]``."""
        for dim in (2, 3):
            half, rest = (maps.shape[dim] + 1) // 2, maps.shape[dim] // 2
            near = maps.narrow(dim, 0, half).mean(dim, keepdim=True)
            far = maps.narrow(dim, rest, half).mean(dim, keepdim=True)
            maps = torch.cat((near, far), dim)
        return maps


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU()
