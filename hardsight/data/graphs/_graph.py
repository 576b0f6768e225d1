"""A graph as an example: how several graphs become one batch, and how a graph is drawn.

A batch of graphs is one graph with unconnected parts, and states for every node which graph it
belongs to. This is what the graph networks of torch-geometric take.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data.source import InputKind

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_COLOURS = (
    "#1971c2", "#e8590c", "#2f9e44", "#9c36b5", "#e03131", "#0c8599", "#f08c00", "#5f3dc4",
    "#846358", "#868e96",
)  # fmt: skip
_STEPS = 60  # steps of the spring layout
# Larger graphs are drawn on a circle: springs take time and memory quadratic in the nodes.
_MOST_NODES = 400


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes with features, and edges between them.

    Attributes:
        edges: pairs of nodes, ``[2, E]``; an edge in both directions is listed twice.
        features: features of the nodes, ``[n, F]``.
        kinds: kinds of the nodes, ``[n]``, which give the colours of a drawing.
    """

    edges: NDArray[np.int64]
    features: NDArray[np.float32]
    kinds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.features)


class Graphs(InputKind):
    """Graphs for a network that takes ``x``, ``edge_index`` and ``batch``."""

    name = "graph"
    origin = "nodes with their features, edges, and the number of its graph for every node"
    in_processes = False
    has_one_shape = False

    def __init__(self) -> None:
        self._packed: list[Graph | None] = []

    def read_for(self, model: Any, reader: Any, *, batch_size: int) -> Graphs:
        """Return a new instance, which keeps packed graphs only while this model reads them."""
        return Graphs()

    def packed(self, contents: list[Any]) -> tuple[Tensor, int]:
        """Return a number for each graph, by which :meth:`unpacked` finds the graph in memory.

        Graphs have no common shape, and a shape that fits all of them would mostly be empty.
        """
        import torch

        first = len(self._packed)
        self._packed += contents
        return torch.arange(first, len(self._packed)).view(-1, 1, 1), 0

    def unpacked(self, rows: Tensor) -> dict[str, Tensor]:
        """Return one graph made of all graphs that the rows name."""
        graphs: list[Any] = [self._packed[number] for number in rows.flatten().long().tolist()]
        return {name: part.to(rows.device) for name, part in joined(graphs).items()}

    def collated(self, contents: list[Any]) -> tuple[Any, dict[str, list[bool]]]:
        """Return one graph made of all graphs, with unconnected parts."""
        return joined(contents), {}

    def small(self, content: Any) -> bytes:
        """Return a drawing."""
        return drawing(content)

    def large(self, content: Any) -> bytes:
        """Return a larger drawing."""
        return drawing(content, size=640)


def joined(graphs: Sequence[Graph]) -> dict[str, Tensor]:
    """Join graphs into one: features ``x [n, F]``, ``edge_index [2, E]``, and ``batch [n]``."""
    import torch

    sizes = np.array([len(graph) for graph in graphs])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    edges = [graph.edges + start for graph, start in zip(graphs, starts, strict=True)]
    return {
        "x": torch.from_numpy(np.concatenate([graph.features for graph in graphs])),
        "edge_index": torch.from_numpy(np.concatenate(edges, axis=1)),
        "batch": torch.from_numpy(np.repeat(np.arange(len(graphs)), sizes)),
    }


def drawing(graph: Graph, *, size: int = 160) -> bytes:
    r"""Return a graph as a PNG: nodes coloured by kind and laid out by springs.

    Example:
        >>> edges = np.array([[0, 1, 2], [1, 2, 0]])
        >>> drawing(Graph(edges, np.ones((3, 1), np.float32), np.zeros(3, np.int64)))[:4]
        b'\x89PNG'
    """
    from PIL import Image, ImageDraw

    places = _laid_out(graph) * (size - 24) + 12
    # drawn at twice the size and halved below, which smooths the lines
    image = Image.new("RGB", (2 * size, 2 * size), "white")
    pen = ImageDraw.Draw(image)
    for first, second in graph.edges.T.tolist():
        ends = [tuple((2 * places[node]).tolist()) for node in (first, second)]
        pen.line(ends, fill="#adb5bd", width=2)
    radius = max(3.0, 13.0 - len(graph) / 12)
    for node, (across, down) in enumerate((2 * places).tolist()):
        box = (across - radius, down - radius, across + radius, down + radius)
        pen.ellipse(box, fill=_COLOURS[int(graph.kinds[node]) % len(_COLOURS)])
    sink = io.BytesIO()
    image.resize((size, size), Image.Resampling.LANCZOS).save(sink, "PNG")
    return sink.getvalue()


def _laid_out(graph: Graph) -> NDArray[np.float64]:
    """Return positions in the unit square by Fruchterman-Reingold, always the same for a graph."""
    count = len(graph)
    # starts from a circle instead of random positions, so that the drawing can be reproduced
    turn = 2 * np.pi * np.arange(count) / max(count, 1)
    places = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    if 2 < count <= _MOST_NODES:
        links = np.zeros((count, count), dtype=bool)
        links[graph.edges[0], graph.edges[1]] = True
        links |= links.T
        ideal = (4 / count) ** 0.5  # edge length at which nodes fill the area evenly
        for step in range(_STEPS):
            apart = places[:, None] - places[None]  # [n, n, 2]
            far = np.maximum(np.linalg.norm(apart, axis=2), 1e-3)
            # all nodes repel each other, edges attract, and a weak attraction among all nodes keeps
            # unconnected parts together
            push = ideal**2 / far**2 - np.where(links, far / ideal, 0) - 0.05 * far
            move = (apart * push[..., None]).sum(axis=1)
            length = np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-9)
            # steps shrink to 0, so the layout comes to rest
            places = places + move / length * np.minimum(length, 0.2 * (1 - step / _STEPS))
    low, high = places.min(axis=0), places.max(axis=0)
    spread = max(float((high - low).max()), 1e-9)
    found: NDArray[np.float64] = (places - (low + high) / 2) / spread + 0.5
    return found
