"""Cases of ``hardsight score`` on folders of graphs, whose rows must be those of each alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fuzz.cases import Step
from tests.fuzz.draw import Array, Draw
from tests.fuzz.heads import text_of
from tests.fuzz.oracle import Expected, Outputs
from tests.fuzz.scoring import scored

_WIDTH = 4
_NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear({inputs}, {width})
        self.body.weight.data.copy_({body})
        self.body.bias.data.zero_()
        self.head = nn.Linear({width}, {classes})
        self.head.weight.data.copy_({weight})
        self.head.bias.data.copy_({bias})

    def forward(self, x, edge_index, batch):
        source, target = edge_index
        x = x + torch.zeros_like(x).index_add(0, target, x[source])
        nodes = torch.tanh(self.body(x))
        graphs = nodes.new_zeros(int(batch.max()) + 1, {width}).index_add(0, batch, nodes)
        return self.head(graphs)


make = Net
"""
# how labels of graphs may be written, and the names of their classes in order
_VALUES = {
    "from 0": ([0, 1, 2], ["0", "1", "2"]),
    "from 1": ([1, 2, 3], ["1", "2", "3"]),
    "signs": ([-1, 1, 3], ["-1", "1", "3"]),
}
_FAULTS = {
    "two columns": "a line has two labels",
    "no labels": "there are no labels",
    "across": "an edge joins two graphs",
    "node 0": "nodes count from 1",
    "a node too few": "a node has no features",
    "unsorted": "nodes of a graph are apart",
}


def score_graphs(draw: Draw, folder: Path) -> Iterator[Step]:
    """A graph network on a folder of the TU collection."""
    sizes = (draw.bytes_of("graphs.sizes", draw.whole("graphs.count", 4, 12), high=5) + 1).tolist()
    if draw.chance("graphs.empty", 0.15):
        sizes[1] = 0
    classes = draw.whole("graphs.classes", 2, 3)
    labels = np.array(draw.shuffled("graphs.labels", [at % classes for at in range(len(sizes))]))
    values, names = _VALUES[draw.pick("graphs.values", list(_VALUES), plain=0.4)]
    features, files = _nodes(draw, sum(sizes))
    starts = np.cumsum([0, *sizes])
    edges = [_edges(draw, at, size) for at, size in enumerate(sizes)]
    joined = np.concatenate([own + start + 1 for own, start in zip(edges, starts, strict=False)])
    files |= {
        "A": joined,
        "graph_indicator": np.repeat(np.arange(len(sizes)), sizes)[:, None] + 1,
        "graph_labels": np.array(values)[labels][:, None],
    }
    must = _spoilt(draw, files)
    (folder / "toy").mkdir()
    for name, rows in files.items():
        lines = [", ".join(map(str, row)) for row in rows.tolist()]
        (folder / "toy" / f"TOY_{name}.txt").write_text("\n".join(lines) + "\n")
    outputs = _net(draw, folder, features, edges, starts, classes)
    readable = [at for at, size in enumerate(sizes) if size]
    expected = Expected(
        readable, [str(at) for at in readable], labels[readable], names[:classes],
        outputs, [str(at) for at, size in enumerate(sizes) if not size],
    )  # fmt: skip
    flags = ["--data", "toy", "--model", "net.py:make"]
    yield from scored(draw, folder, flags, expected, must_refuse=must, may_refuse=False)


def _nodes(draw: Draw, count: int) -> tuple[Array, dict[str, Array]]:
    """Features of all nodes, and the files that say them."""
    kind = draw.pick("graphs.nodes", ("kinds", "two kinds", "numbers", "none"), plain=0.4)
    if kind == "none":
        return np.ones((count, 1)), {}
    if kind == "numbers":
        numbers = draw.weights("graphs.numbers", count, 2)
        return numbers, {"node_attributes": numbers}
    marks = draw.bytes_of("graphs.kinds", count, 1 if kind == "kinds" else 2, high=3) * 4 - 1
    seen = [(column[:, None] == np.unique(column)).astype(float) for column in marks.T]
    return np.concatenate(seen, axis=1), {"node_labels": marks}


def _edges(draw: Draw, at: int, size: int) -> Array:
    """Pairs of nodes of one graph, counted from 0; twice, one way and to itself too."""
    count = draw.whole(f"graphs.edges {at}", 1 if at == 0 else 0, 6) if size else 0
    return draw.bytes_of(f"graphs.ends {at}", count, 2, high=max(size, 1))


def _spoilt(draw: Draw, files: dict[str, Array]) -> str:
    """Change the files so that nothing can be made of them, in some cases, and say why."""
    fault = draw.pick("graphs.fault", ("none",), faults=list(_FAULTS), plain=0.5)
    nodes = files["graph_indicator"]
    if fault == "two columns":
        files["graph_labels"] = files["graph_labels"].repeat(2, axis=1)
    elif fault == "no labels":
        del files["graph_labels"]
    elif fault == "across":
        files["A"] = np.concatenate([files["A"], [[1, len(nodes)]]])
    elif fault == "node 0":
        files["A"] = np.concatenate([files["A"], [[0, 0]]])
    elif fault == "a node too few":
        files["node_labels"] = np.zeros((len(nodes) - 1, 1), int)
    elif fault == "unsorted":
        files["graph_indicator"] = nodes[::-1]
    return _FAULTS.get(fault, "")


def _net(
    draw: Draw, folder: Path, features: Array, edges: list[Array], starts: Array, classes: int
) -> Outputs:
    """Write the network, and work it out graph by graph."""
    body = draw.weights("graphs.body", _WIDTH, features.shape[1])
    weight = draw.weights("graphs.weight", classes, _WIDTH)
    weight[:, 0] += np.arange(classes) / 8 + 1 / 32
    bias = draw.weights("graphs.bias", classes)
    text = _NET.format(
        inputs=features.shape[1], width=_WIDTH, classes=classes, body=text_of(body),
        weight=text_of(weight), bias=text_of(bias),
    )  # fmt: skip
    (folder / "net.py").write_text(text)
    found = []
    for own, start, end in zip(edges, starts, starts[1:], strict=False):
        nodes = features[start:end].copy()
        for source, target in own.tolist():
            nodes[target] += features[start + source]
        if len(nodes):
            found.append(np.tanh(nodes @ body.T).sum(axis=0))
    pooled = np.stack(found)
    # the parts of a sum may cancel
    magnitude = np.linalg.norm(pooled, axis=1) + np.diff(starts)[np.diff(starts) > 0]
    return Outputs(pooled @ weight.T + bias, pooled, weight, magnitude)
