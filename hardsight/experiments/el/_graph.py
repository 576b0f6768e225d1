"""Encouraging Loss, Table 1, the columns of graphs: PROTEINS and NCI1."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hardsight import __version__
from hardsight.data import open_source
from hardsight.data.formats import GraphSource
from hardsight.data.graphs import Graph, joined
from hardsight.errors import DataError, HardsightWarning, MissingDataError
from hardsight.experiments import lab as kit
from hardsight.experiments.el._recipes import CLAMP, loss_name
from hardsight.losses import encouraging_loss
from hardsight.models import SAGPoolNet
from hardsight.report.figures import panels
from hardsight.run.loop import seed_of
from hardsight.run_folder import write_text

MADE_UP = "rings"
_TITLES = {"proteins": "PROTEINS", "nci1": "NCI1", MADE_UP: "rings and chains, made up"}
_PAPER = {"proteins": ("72.32 ± 0.12", "72.76 ± 0.18"), "nci1": ("70.53 ± 0.28", "71.04 ± 0.38")}
_MEASURES = ("validation", "test", "epochs")


def _title(name: str) -> str:
    return _TITLES.get(name, name)


@dataclass(frozen=True)
class Setting:
    """Keys of ``el-graph``.

    Attributes:
        datasets: folders of graphs below the data root, or ``rings``, which is made up.
        log_ends: LE of Encouraging Loss.
        bonus_from: epoch, from 0, from which on the bonus plays a part, by dataset; cross-entropy
            is trained before.
        patience: epochs without a better validation accuracy after which a run ends.
        epochs: most of a run.
        batch_size: graphs of a step.
        lr: of Adam.
        weight_decay: of Adam.
        width: features of a hidden node.
        limit: most graphs of a dataset; ``None`` for all.
        seeds: each draws a split, the weights and the order of a run, the same for every loss.
    """

    datasets: tuple[str, ...] = ("proteins", "nci1")
    log_ends: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    bonus_from: dict[str, int] = field(default_factory=lambda: {"proteins": 25, "nci1": 130})
    patience: int = 51
    epochs: int = 1000
    batch_size: int = 128
    lr: float = 5e-4
    weight_decay: float = 1e-4
    width: int = 128
    limit: int | None = None
    seeds: tuple[int, ...] = tuple(range(20))

    @property
    def deferred(self) -> str:
        """When the bonus begins, in words."""
        starts = (f"{self.bonus_from.get(name, 0)} on {_title(name)}" for name in self.datasets)
        return ", ".join(starts)

    @property
    def names(self) -> str:
        """The datasets in words."""
        return " and ".join(_title(name) for name in self.datasets)


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    grid = kit.Grid.read(data, setting.seeds, "data", "loss")
    ends = [loss_name(end) for end in setting.log_ends]
    questions = [
        grid.at(data=name).question(
            f"{_title(name)}: Encouraging Loss is more accurate ({loss})",
            _paper_difference(name) if loss == loss_name(0.5) else "not in the paper",
            "test", {"loss": loss}, {"loss": "CE"},
            effect=_paper_effect(name) if loss == loss_name(0.5) else 0.0,
        )
        for name in data
        for loss in ends
    ]  # fmt: skip
    theirs = [_PAPER.get(name) for name in data]
    table = grid.table(
        "Test accuracy, %",
        {"loss": "loss"},
        grid.across("data", "test", {name: _title(name) for name in data}),
        note=f"Mean and standard deviation over {len(setting.seeds)} random splits.",
        paper=[
            [label, *(None if pair is None else pair[at] for pair in theirs)]
            for at, label in enumerate(("CE", "EL, LE=0.5"))
            if any(theirs)
        ],
    )
    return [table, _epochs_table(grid)], questions


@kit.experiment(
    "el-graph",
    title="Encouraging Loss against cross-entropy on graphs",
    reproduces="Encouraging Loss, Table 1, graphs",
    scales={
        "smoke": Setting(
            datasets=(MADE_UP,), log_ends=(0.5,), bonus_from={MADE_UP: 1}, patience=8, epochs=8,
            lr=1e-2, width=16, limit=120, seeds=(0, 1),
        ),
        "short": Setting(datasets=("proteins",)),
        "paper": Setting(seeds=tuple(range(50))),
    },
    asks=_asks,
)  # fmt: skip
def el_graph(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Compares cross-entropy with Encouraging Loss with LE = {log_ends}, on {names}.

    The network is GCN with self-attention pooling and three rounds of {width} features, and it sees
    only the kinds of the nodes. It is trained by Adam with a learning rate of {lr} and a weight
    decay of {weight_decay}, in batches of {batch_size}. Each seed draws its own weights and its own
    split: 80 % to train, 10 % to validate and 10 % to test. All losses share them, so they are
    compared in pairs. A run ends after {patience} epochs without a better validation accuracy, and
    the test accuracy is that of the best epoch.

    As in the published code, the bonus is deferred: it begins in epoch {deferred}, counted from 0,
    so all losses share the epochs before. The published five runs repeat the same 50 splits and
    seeds; here every split counts once.
    """
    rows = []
    for name in setting.datasets:
        source = _source(name, lab, setting)
        with lab.progress(f"splits of {_title(name)}", len(setting.seeds)) as advance:
            for seed in setting.seeds:
                found = _kept(lab, setting, name, source, seed)
                rows += [{"data": name, "loss": loss, "seed": seed, **numbers}
                         for loss, numbers in found.items()]  # fmt: skip
                advance(1)
    grid = kit.Grid.of(rows, "data", "loss", measures=_MEASURES)
    return kit.Result(figures=[_figure(lab, grid)], data=grid.data())


def _kept(
    lab: kit.Lab, setting: Setting, name: str, source: GraphSource, seed: int
) -> dict[str, dict[str, float]]:
    """What the losses reach on one split, measured once for all runs that share a folder."""
    key = {
        **asdict(setting), "datasets": name, "seeds": seed, "data": source.fingerprint(),
        "version": __version__,
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    file = lab.runs / f"graph-{digest}.json"
    if not file.exists():
        lab.runs.mkdir(parents=True, exist_ok=True)
        found = compared_losses(source, setting, seed, bonus_from=setting.bonus_from.get(name, 0))
        write_text(file, json.dumps(found))
    stored: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))
    return stored


def compared_losses(
    source: GraphSource, setting: Setting, seed: int, *, bonus_from: int
) -> dict[str, dict[str, float]]:
    """Validation and test accuracy of every loss on one split, in per cent.

    The losses share weights, order and draws, and the epochs before the bonus begins.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "weights") % 2**31)
        start = _Run.begun(source, setting, seed)
        start.train(None, until=bonus_from)
        found = {}
        for end in (None, *setting.log_ends):
            run = start.copied()
            run.train(end, until=setting.epochs)
            found[loss_name(end)] = {
                "validation": 100 * run.best, "test": 100 * run.test, "epochs": float(run.epoch)
            }  # fmt: skip
    return found


@dataclass
class _Run:
    """A network in training, as far as it has come."""

    source: GraphSource
    setting: Setting
    seed: int
    parts: tuple[list[int], list[int], list[int]]  # to train, validate and test
    model: SAGPoolNet
    optimizer: torch.optim.Adam
    draws: Tensor  # state of the generator, so that losses see the same draws
    epoch: int = 0
    best: float = -1.0
    best_epoch: int = -1
    test: float = 0.0

    @classmethod
    def begun(cls, source: GraphSource, setting: Setting, seed: int) -> _Run:
        model = SAGPoolNet(source.width, len(source.classes), width=setting.width)
        optimizer = torch.optim.Adam(
            model.parameters(), lr=setting.lr, weight_decay=setting.weight_decay
        )
        parts = split_of(len(source), seed)
        return cls(source, setting, seed, parts, model, optimizer, torch.get_rng_state())

    def copied(self) -> _Run:
        """The same run, to be gone on with otherwise."""
        model, optimizer = copy.deepcopy((self.model, self.optimizer))
        return _Run(
            self.source, self.setting, self.seed, self.parts, model, optimizer,
            self.draws.clone(), self.epoch, self.best, self.best_epoch, self.test,
        )  # fmt: skip

    def train(self, log_end: float | None, *, until: int) -> None:
        """Go on, until an epoch or until nothing has become better for long."""
        torch.set_rng_state(self.draws)
        while self.epoch < until and self.epoch - self.best_epoch <= self.setting.patience:
            self._one_epoch(log_end)
            found = self._accuracy(self.parts[1])
            if found > self.best:
                self.best, self.best_epoch = found, self.epoch
                self.test = self._accuracy(self.parts[2])
            self.epoch += 1
        self.draws = torch.get_rng_state()

    def _one_epoch(self, log_end: float | None) -> None:
        rows = torch.tensor(self.parts[0])[torch.randperm(len(self.parts[0]))]
        self.model.train()
        for some in rows.split(self.setting.batch_size):
            logits, labels = self._outputs(some.tolist())
            if log_end is None:
                loss = nn.functional.cross_entropy(logits, labels)
            else:
                clamp = CLAMP if log_end == 1 else 0.0
                loss = encouraging_loss(logits, labels, log_end=log_end, clamp=clamp)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def _accuracy(self, rows: list[int]) -> float:
        self.model.eval()
        logits, labels = self._outputs(rows)
        return float((logits.argmax(dim=1) == labels).double().mean())

    def _outputs(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        inputs = joined([self.source.graphs[row] for row in rows])
        return self.model(**inputs), torch.from_numpy(self.source.labels[rows])


def split_of(count: int, seed: int) -> tuple[list[int], list[int], list[int]]:
    """A random split: four fifths to train, a tenth to validate, the rest to test.

    Example:
        >>> [len(part) for part in split_of(1113, 0)]
        [890, 111, 112]
    """
    order = np.random.default_rng(seed_of(seed, "split")).permutation(count).tolist()
    first, second = int(0.8 * count), int(0.8 * count) + int(0.1 * count)
    return order[:first], order[first:second], order[second:]


def _source(name: str, lab: kit.Lab, setting: Setting) -> GraphSource:
    if name == MADE_UP:
        return made_up(setting.limit or 400)
    roots = (lab.data_root, os.environ.get("HARDSIGHT_DATA"), "data", ".")
    folders = [Path(root).expanduser() / name for root in roots if root]
    folder = next((place for place in folders if place.is_dir()), None)
    if folder is None:
        raise MissingDataError(
            f"no folder {name} of graphs below {folders[0].parent}; put the files of the TU "
            "collection there (NAME_A.txt and its companions), or pass --data-root"
        )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", HardsightWarning
        )  # nodes without edges: both sets have them
        source = open_source(folder)
    if not isinstance(source, GraphSource):
        raise DataError(f"{folder} holds no graphs")
    if setting.limit is None or setting.limit >= len(source):
        return source
    rows = np.random.default_rng(0).permutation(len(source))[: setting.limit]
    return GraphSource(
        [source.graphs[row] for row in rows], source.labels[rows], spec=source.spec,
        classes=source.classes,
    )  # fmt: skip


def made_up(count: int, seed: int = 0) -> GraphSource:
    """Rings and chains of nodes of three kinds, for a run without data."""
    draw = np.random.default_rng(seed)
    graphs = []
    for row in range(count):
        size = int(draw.integers(5, 16))
        ends = np.arange(size if row % 2 else size - 1)
        pairs = np.stack([ends, (ends + 1) % size])
        kinds = draw.choice(3, size, p=(0.7, 0.2, 0.1) if row % 2 else (0.2, 0.2, 0.6))
        edges = np.concatenate([pairs, pairs[::-1]], axis=1).astype(np.int64)
        graphs.append(Graph(edges, np.eye(3, dtype=np.float32)[kinds], kinds))
    labels = np.arange(count) % 2
    return GraphSource(graphs, labels, spec=MADE_UP, classes=("chain", "ring"))


def _paper_difference(name: str) -> str:
    theirs = _PAPER.get(name)
    if theirs is None:
        return "not in the paper"
    return f"{_paper_effect(name):+.2f} ({theirs[0]} to {theirs[1]})"


def _paper_effect(name: str) -> float:
    """Points that the paper's Encouraging Loss is above its cross-entropy; 0 if it is not there."""
    ce, el = (float(text.partition(" ")[0]) for text in _PAPER.get(name, ("0", "0")))
    return el - ce


def _epochs_table(grid: kit.Grid) -> kit.Table:
    titles = {name: _title(name) for name in grid.names("data")}
    return grid.table("Epochs of a run", {"loss": "loss"}, grid.across("data", "epochs", titles))


def _figure(lab: kit.Lab, grid: kit.Grid) -> kit.Figure:
    names = grid.names("data")
    figure, axes = panels(1, len(names), width=3.4, ylabel="EL minus CE, points of test accuracy")
    for place, name in zip(axes, names, strict=True):
        runs = grid.at(data=name)
        plain = np.array(runs.values("test", loss="CE"))
        for at, loss in enumerate(loss for loss in runs.names("loss") if loss != "CE"):
            apart = np.array(runs.values("test", loss=loss)) - plain
            place.scatter(np.full(len(apart), at), apart, s=9, alpha=0.45, color="#1971c2",
                          label="one split" if at == 0 else None)  # fmt: skip
            place.plot([at - 0.2, at + 0.2], [apart.mean()] * 2, color="#e8590c", lw=2,
                       label="mean" if at == 0 else None)  # fmt: skip
        place.axhline(0, color="#868e96", lw=1)
        losses = [loss.replace("EL, ", "") for loss in runs.names("loss") if loss != "CE"]
        place.set(title=_title(name), xticks=range(len(losses)), xticklabels=losses)
    return lab.figure(
        figure, "differences",
        caption="Test accuracy of Encouraging Loss minus that of cross-entropy on the same split.",
        alt="One panel per dataset: a dot for every split at each LE, and the mean as a bar.",
    )  # fmt: skip
