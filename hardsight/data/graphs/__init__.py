"""Graphs: how they are put into batches, and drawn."""

from hardsight.data.graphs._graph import Graph as Graph
from hardsight.data.graphs._graph import Graphs as Graphs
from hardsight.data.graphs._graph import drawing as drawing
from hardsight.data.graphs._graph import joined as joined
