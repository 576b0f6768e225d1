"""Graphs of TU folders: read, refused in words, put into batches, drawn and scored."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

import hardsight as hs
from hardsight.data import open_source
from hardsight.data.graphs import Graph, drawing, joined
from hardsight.errors import ConfigError, DataError, HardsightWarning, OptionError
from hardsight.models import SAGPoolNet

FILES = {  # a triangle, a pair, a chain of three
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n3, 1\n1, 3\n4, 5\n5, 4\n6, 7\n7, 6\n7, 8\n8, 7\n",
    "graph_indicator": "1\n1\n1\n2\n2\n3\n3\n3\n",
    "graph_labels": "1\n-1\n1\n",
    "node_labels": "5\n5\n7\n5\n7\n9\n5\n5\n",
}


def tu_folder(folder, **changes):
    folder.mkdir()
    for name, text in {**FILES, **changes}.items():
        if text is not None:
            (folder / f"TOY_{name}.txt").write_text(text)
    return folder


def test_a_folder_is_read_as_graphs(tmp_path):
    source = open_source(tu_folder(tmp_path / "toy"))
    assert len(source) == 3
    assert source.classes == ("-1", "1")  # by value; the names say which
    np.testing.assert_array_equal(source.labels, [1, 0, 1])
    chain = source[2].content
    np.testing.assert_array_equal(chain.edges, [[0, 1, 1, 2], [1, 0, 2, 1]])
    np.testing.assert_array_equal(chain.features, [[0, 0, 1], [1, 0, 0], [1, 0, 0]])


def test_several_kinds_of_a_node_all_count(tmp_path):
    kinds = "5, 1\n5, 1\n7, 2\n5, 1\n7, 1\n7, 2\n5, 2\n5, 2\n"
    source = open_source(tu_folder(tmp_path / "toy", node_labels=kinds))
    np.testing.assert_array_equal(
        source[0].content.features, [[1, 0, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    )
    np.testing.assert_array_equal(source[0].content.kinds, [0, 0, 1])


def test_numbers_beside_nodes_serve_if_there_are_no_kinds(tmp_path):
    numbers = "".join(f"{value}.5, 1\n" for value in range(8))
    plain = tu_folder(tmp_path / "plain", node_labels=None)
    np.testing.assert_array_equal(open_source(plain)[1].content.features, np.ones((2, 1)))
    numbered = tu_folder(tmp_path / "numbered", node_labels=None, node_attributes=numbers)
    np.testing.assert_array_equal(open_source(numbered)[1].content.features, [[3.5, 1], [4.5, 1]])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"A": ""}, "no edges in"),
        ({"A": "1, 9\n"}, r"edges between the nodes 1 to 8 of .*, got 1 to 9"),
        ({"A": "1, 4\n"}, "1 edges of .* join nodes of two graphs"),
        (
            {"graph_labels": "1\n-1\n"},
            "nodes of graphs 1 to 2 in .*, as there are labels",
        ),
        ({"graph_labels": None}, "has no TOY_graph_labels.txt"),
        ({"graph_labels": "1, 0\n-1, 0\n1, 0\n"}, "one number per line in TOY_graph_labels.*got 2"),
        ({"graph_indicator": "1, 1\n1, 2\n2, 3\n3, 3\n"}, "one number per line in TOY_graph_ind"),
        ({"node_labels": "5\n"}, "each of 8 nodes in TOY_node_labels.txt of .*, got 1"),
        ({"node_labels": ""}, "each of 8 nodes in TOY_node_labels.txt of .*, got 0"),
        (
            {"node_labels": None, "node_attributes": "5\n5\n"},
            "8 nodes in TOY_node_attributes.txt of .*, got 2",
        ),
        ({"graph_labels": ""}, "no examples in .*: there are no labels of graphs"),
        ({"node_labels": "a\n"}, "cannot be read as numbers"),
        ({"graph_indicator": "1\n1\n2\n1\n2\n3\n3\n3\n"}, "graph after graph"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_files_that_do_not_fit_are_refused(tmp_path, changes, says):
    with pytest.raises(DataError, match=says):
        open_source(tu_folder(tmp_path / "toy", **changes))


def test_lonely_nodes_and_empty_graphs_are_said(tmp_path):
    lonely = tu_folder(tmp_path / "lonely", A="1, 2\n2, 1\n4, 5\n5, 4\n6, 7\n7, 8\n")
    with pytest.warns(HardsightWarning, match="1 of 3 graphs of .* have nodes without edges"):
        open_source(lonely)
    empty = tu_folder(tmp_path / "empty", graph_labels="1\n-1\n1\n-1\n")
    torch.manual_seed(0)
    with pytest.warns(HardsightWarning, match="1 examples could not be read"):
        table = hs.score(SAGPoolNet(3, width=8), empty, out=tmp_path / "run")
    assert len(table) == 3
    with pytest.raises(OptionError, match=r"split cannot be used here: .* graphs without splits"):
        open_source(lonely, split="train")


def test_graphs_are_joined_without_touching():
    pair = Graph(np.array([[0], [1]]), np.ones((2, 1), np.float32), np.zeros(2, np.int64))
    inputs = joined([pair, pair])
    assert inputs["edge_index"].tolist() == [[0, 2], [1, 3]]
    assert inputs["batch"].tolist() == [0, 0, 1, 1]


def test_a_row_is_that_of_its_graph_alone_and_the_report_draws_it(tmp_path):
    source = open_source(tu_folder(tmp_path / "toy"))
    torch.manual_seed(0)
    model = SAGPoolNet(source.width, width=8).eval()
    table = hs.score(model, tmp_path / "toy", out=tmp_path / "run")
    with torch.inference_mode():
        logits = torch.cat([model(**joined([graph])) for graph in source.graphs])
    np.testing.assert_allclose(table.column("min_energy"), -logits.amax(1), rtol=1e-5, atol=1e-6)
    assert "avh" in table.scores
    assert "data:image/png" in hs.write_report(tmp_path / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("nodes", [1, 2, 12, 500])
def test_graphs_of_any_size_are_drawn(nodes):
    ends = np.arange(max(nodes - 1, 0))
    graph = Graph(np.stack([ends, ends + 1]), np.ones((nodes, 1)), np.zeros(nodes, np.int64))
    image = Image.open(io.BytesIO(drawing(graph)))
    assert image.size == (160, 160)
    assert len(image.getcolors(1 << 16)) > 1
    assert drawing(graph) == drawing(graph)


NET = """
import torch
from torch import nn


class MeanNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body, self.head = nn.Linear(2, 8), nn.Linear(8, num_classes)

    def forward(self, x, edge_index, batch):
        nodes = torch.tanh(self.body(x))
        sums = nodes.new_zeros(int(batch.max()) + 1, 8).index_add(0, batch, nodes)
        return self.head(sums / torch.bincount(batch)[:, None])


def make(num_classes):
    return MeanNet(num_classes)
"""


def labelled_folder(folder, count=40):
    """Chains of one to five nodes; the kind of their nodes is their class."""
    sizes = [1 + at % 5 for at in range(count)]
    kinds = [at // 5 % 2 for at in range(count)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    edges = [(node, node + 1) for first, size in zip(starts, sizes, strict=False)
             for node in range(first + 1, first + size)]  # fmt: skip
    return tu_folder(
        folder,
        A="".join(f"{a}, {b}\n{b}, {a}\n" for a, b in edges),
        graph_indicator="".join(f"{at + 1}\n" * size for at, size in enumerate(sizes)),
        graph_labels="".join(f"{kind}\n" for kind in kinds),
        node_labels="".join(f"{kind}\n" * size for kind, size in zip(kinds, sizes, strict=True)),
    )


@pytest.mark.filterwarnings("ignore:.* have nodes without edges")
def test_a_recipe_trains_on_graphs_and_tracks_every_one(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    data, model = labelled_folder(tmp_path / "toy"), f"{tmp_path / 'net.py'}:make"
    options = {"epochs": 20, "batch_size": 16, "track": True, "device": "cpu",
               "optimizer": {"name": "adam", "lr": 0.05}}  # fmt: skip
    done = hs.train(model, data, out=tmp_path / "run", **options)
    assert done.history[-1]["val_accuracy"] == 1.0
    dynamics = hs.read_table(tmp_path / "run")
    assert sorted(dynamics.column("index").tolist()) == list(range(40))
    # the stored model takes graphs as any other does, without what packed them for training
    scores = hs.score(model, data, weights=tmp_path / "run" / "model.safetensors", device="cpu")
    assert scores.accuracy() == 1.0
    assert "data:image/png" in hs.write_report(tmp_path / "run").read_text(encoding="utf-8")
    named = (None, model, tmp_path / "run" / "model.safetensors")
    card = hs.evaluation_card([named], data, feature_examples=10, map_examples=10, device="cpu")
    assert card["models"][0]["accuracy"]["top1"]["value"] == 1.0
    assert "holds the kind 'graph'" in card["models"][0]["robustness"]["note"]
    with pytest.raises(ConfigError, match=r"data.tokenizer plays no part: .* holds no texts"):
        hs.train(model, {"name": str(data), "tokenizer": "x"}, out=tmp_path / "other", **options)


def test_a_tokenizer_plays_no_part_for_graphs(tmp_path):
    with pytest.raises(OptionError, match=r"tokenizer cannot be used here: .* holds no texts"):
        hs.score(SAGPoolNet(3, width=8), tu_folder(tmp_path / "toy"), tokenizer=tmp_path)
