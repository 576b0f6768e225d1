"""A graph network with torch-geometric: convolutions, each followed by self-attention pooling."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hardsight._checks import require


class SAGPoolNet(nn.Module):
    """Three rounds of convolution and self-attention pooling, whose readouts are added up.

    Each round passes features along edges (GCN), keeps the higher-scoring half of the nodes, and
    reads out the largest and the mean features. This is the hierarchical form of SAGPool, which
    Encouraging Loss trains on PROTEINS and NCI1.

    Args:
        features: number of features of a node.
        num_classes: number of classes of graphs.
        width: number of features of a hidden node.
        ratio: share of the nodes that a round keeps.
        dropout: dropout before the last hidden layer.

    Raises:
        MissingExtraError: torch-geometric is not installed.

    Reference:
        Lee et al., Self-Attention Graph Pooling, ICML 2019; Zhao et al., Well-classified Examples
        are Underestimated, AAAI 2022, Table 1.
    """

    def __init__(
        self,
        features: int,
        num_classes: int = 2,
        *,
        width: int = 128,
        ratio: float = 0.5,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        with warnings.catch_warnings():
            # on import, the package calls functions that newer releases of torch deprecate
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", "`torch.jit.script` is", FutureWarning)
            geometric = require("torch_geometric.nn", extra="graph", feature="SAGPoolNet")
        widths = (features, width, width)
        self.convolutions = nn.ModuleList(geometric.GCNConv(size, width) for size in widths)
        self.pools = nn.ModuleList(
            geometric.SAGPooling(width, ratio=ratio, GNN=geometric.GCNConv) for _ in widths
        )
        self.first, self.second = nn.Linear(2 * width, width), nn.Linear(width, width // 2)
        self.head = nn.Linear(width // 2, num_classes)
        self.dropout = dropout
        self._readouts: tuple[Any, Any] = (
            geometric.global_max_pool, geometric.global_mean_pool
        )  # fmt: skip

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Return logits ``[B, C]`` of graphs as :func:`hardsight.data.graphs.joined` joins them."""
        graphs = int(batch[-1]) + 1
        total = torch.zeros((), device=x.device)
        for convolution, pool in zip(self.convolutions, self.pools, strict=True):
            x = functional.relu(convolution(x, edge_index))
            x, edge_index, _, batch, _, _ = pool(x, edge_index, None, batch)
            total = total + torch.cat([read(x, batch, graphs) for read in self._readouts], dim=1)
        hidden = functional.relu(self.first(total))
        hidden = functional.dropout(hidden, p=self.dropout, training=self.training)
        logits: Tensor = self.head(functional.relu(self.second(hidden)))
        return logits
