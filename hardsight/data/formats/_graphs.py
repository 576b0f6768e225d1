"""Graphs in the text files of the TU collection: ``NAME_A.txt`` and the files beside it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight._checks import warn
from hardsight.data.graphs import Graph, Graphs
from hardsight.data.source import Example, ExampleSource, Fingerprint, class_indices
from hardsight.errors import BadExampleError, DataError

GRAPHS = "_graph_indicator.txt"  # a folder with a file of this ending is a folder of graphs


class GraphSource(ExampleSource):
    """Labelled graphs in memory.

    Args:
        graphs: one graph per example; a graph without nodes counts as unreadable.
        labels: one label per graph, in any form that :func:`class_indices` takes.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
    """

    kind = Graphs()

    def __init__(
        self,
        graphs: Sequence[Graph],
        labels: Any,
        *,
        spec: str,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.spec, self.graphs = spec, list(graphs)
        where = f"the labels of {spec}"
        self.labels, self.classes = class_indices(labels, classes=classes, where=where)
        if len(self.labels) != len(self.graphs):
            raise DataError(
                f"expected one label per graph, got {len(self.graphs):,} graphs and "
                f"{len(self.labels):,} labels in {spec}"
            )

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Example:
        graph = self.graphs[index]
        if not len(graph):
            raise BadExampleError("the graph has no nodes")
        return Example(self.id_of(index), self.label_of(index), graph)

    @property
    def width(self) -> int:
        """Number of features per node."""
        return int(self.graphs[0].features.shape[1])

    def fingerprint(self) -> str:
        """Return the SHA-256 of labels, classes and all graphs."""
        mark = Fingerprint("graphs").add_array(self.labels).add_names(self.classes)
        for graph in self.graphs:
            mark.add_array(graph.edges).add_array(graph.features)
        return mark.hexdigest()


def tu_graphs(
    folder: Path, *, spec: str, classes: Sequence[str] | None = None, attributes: bool = False
) -> GraphSource:
    """Return the graphs of a TU folder; their features are the one-hot kinds of the nodes.

    Without kinds, the features are the numeric attributes of the nodes, and without those a
    constant. The graphs' labels are numbered in ascending order, and their text is the class name.

    Args:
        folder: holds ``NAME_A.txt``, ``NAME_graph_indicator.txt`` and ``NAME_graph_labels.txt``.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        attributes: whether to append the numeric attributes of the nodes to their kinds, if there
            are any.

    Raises:
        DataError: a file is missing, or the files contradict each other.
    """
    names = sorted(file.name.removesuffix(GRAPHS) for file in folder.glob(f"*{GRAPHS}"))
    if len(names) > 1:
        raise DataError(
            f"{spec} holds several sets of graphs ({', '.join(names)}); put each in its own folder"
        )
    read = _Files(folder, names[0], spec)
    graph_of = read.column(GRAPHS)
    values = read.column("_graph_labels.txt")
    edges = read.numbers("_A.txt")
    _check(graph_of, values, edges, spec)
    kinds, features = _node_features(read, len(graph_of), attributes=attributes)
    # the files count nodes and graphs from 1
    graphs = _cut(graph_of - 1, edges.T - 1, kinds, features, len(values))
    lonely = sum(_has_lonely(graph) for graph in graphs)
    if lonely:
        warn(
            f"{lonely:,} of {len(graphs):,} graphs of {spec} have nodes without edges, which a "
            "graph network sees by themselves alone"
        )
    distinct, labels = np.unique(values, return_inverse=True)
    own = tuple(str(value) for value in distinct.tolist())
    return GraphSource(graphs, labels, spec=spec, classes=classes or own)


class _Files:
    """The text files of one set of graphs."""

    def __init__(self, folder: Path, name: str, spec: str) -> None:
        self._folder, self._name, self._spec = folder, name, spec

    def numbers(self, suffix: str, kind: type = np.int64) -> NDArray[Any]:
        """Return the numbers in a file, one row per line."""
        file = self._folder / f"{self._name}{suffix}"
        if not file.is_file():
            raise DataError(f"{self._spec} has no {file.name}, which a set of graphs needs")
        try:
            with warnings.catch_warnings():
                # what an empty file means is said by whoever needs its numbers
                warnings.filterwarnings("ignore", "loadtxt: input contained no data")
                return np.loadtxt(file, dtype=kind, delimiter=",", ndmin=2)
        except ValueError as err:
            raise DataError(f"{file} cannot be read as numbers: {err}") from err

    def of_nodes(self, suffix: str, count: int, kind: type = np.int64) -> NDArray[Any]:
        """Return the numbers in a file that has a line for each of ``count`` nodes.

        Raises:
            DataError: the file has more or fewer lines.
        """
        found = self.numbers(suffix, kind)
        if len(found) != count:
            raise DataError(
                f"expected a line for each of {count:,} nodes in {self._name}{suffix} of "
                f"{self._spec}, got {len(found):,}"
            )
        return found

    def column(self, suffix: str) -> NDArray[Any]:
        """Return the numbers in a file that has one per line.

        Raises:
            DataError: a line has more than one number.
        """
        found = self.numbers(suffix)
        if found.size and found.shape[1] != 1:
            raise DataError(
                f"expected one number per line in {self._name}{suffix} of {self._spec}, got "
                f"{found.shape[1]}; keep the column that is meant"
            )
        return found.reshape(-1)

    def has(self, suffix: str) -> bool:
        """Return whether the set has such a file."""
        return (self._folder / f"{self._name}{suffix}").is_file()


def _check(graph_of: NDArray[Any], values: NDArray[Any], edges: NDArray[Any], spec: str) -> None:
    if not len(values):
        raise DataError(f"no examples in {spec}: there are no labels of graphs")
    if graph_of.size and (graph_of.min() < 1 or graph_of.max() > len(values)):
        raise DataError(
            f"expected nodes of graphs 1 to {len(values)} in {spec}, as there are labels, got "
            f"{graph_of.min()} to {graph_of.max()}"
        )
    if (np.diff(graph_of) < 0).any():
        raise DataError(f"expected the nodes of {spec} graph after graph; sort them")
    if not edges.size:
        raise DataError(f"no edges in {spec}: a graph network has nothing to pass on")
    if edges.shape[1] != 2 or edges.min() < 1 or edges.max() > len(graph_of):
        raise DataError(
            f"expected edges between the nodes 1 to {len(graph_of):,} of {spec}, got "
            f"{edges.min()} to {edges.max()} in {edges.shape[1]} columns"
        )
    apart = int((graph_of[edges[:, 0] - 1] != graph_of[edges[:, 1] - 1]).sum())
    if apart:
        raise DataError(f"{apart:,} edges of {spec} join nodes of two graphs; repair its files")


def _node_features(
    read: _Files, count: int, *, attributes: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the kind and the features of every node."""
    kinds: NDArray[Any] = np.zeros(count, dtype=np.int64)
    parts: list[NDArray[Any]] = []
    if read.has("_node_labels.txt"):
        columns = [
            np.unique(column, return_inverse=True)[1]
            for column in read.of_nodes("_node_labels.txt", count).T
        ]
        kinds = columns[0]  # a drawing shows only the first column
        parts += [np.eye(int(column.max()) + 1, dtype=np.float32)[column] for column in columns]
    if read.has("_node_attributes.txt") and (attributes or not parts):
        parts.append(read.of_nodes("_node_attributes.txt", count, np.float32))
    features = np.concatenate(parts, axis=1) if parts else np.ones((count, 1), dtype=np.float32)
    return kinds, features


def _cut(
    graph_of: NDArray[Any], edges: NDArray[Any], kinds: NDArray[Any], features: NDArray[Any],
    count: int,
) -> list[Graph]:  # fmt: skip
    """Return the graphs one by one; ``graph_of`` must be ascending."""
    of_edge = graph_of[edges[0]]
    # sorted by graph, so that the edges of each graph are one slice; stable keeps their order
    edges = edges[:, np.argsort(of_edge, kind="stable")]
    numbers = np.arange(count + 1)
    nodes = np.searchsorted(graph_of, numbers)
    cuts = np.searchsorted(np.sort(of_edge), numbers)
    return [
        Graph(
            edges[:, cuts[at] : cuts[at + 1]] - nodes[at],
            features[nodes[at] : nodes[at + 1]],
            kinds[nodes[at] : nodes[at + 1]],
        )
        for at in range(count)
    ]


def _has_lonely(graph: Graph) -> bool:
    return len(np.unique(graph.edges)) < len(graph)
