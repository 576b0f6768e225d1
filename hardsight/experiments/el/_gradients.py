"""Encouraging Loss, its remark on gradient norms, on images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hardsight.experiments import lab as kit
from hardsight.experiments.el import _norms as norms
from hardsight.experiments.el._recipes import CLAMP, Task, loss_name
from hardsight.losses import encouraging_loss
from hardsight.models import load_model
from hardsight.run.loop import generator, seed_of, seeded
from hardsight.tracking import GradientNorms

_CE = "CE"
_POINTS = 50  # of a curve
_BATCH = 1000


@dataclass(frozen=True)
class Setting:
    """Keys of ``el-gradients``.

    Attributes:
        task: ``DATASET/NETWORK``.
        log_ends: of Encouraging Loss, in addition to cross-entropy; 1 with the paper's clamp.
        epochs: of training.
        batch_size: examples per step.
        lr: learning rate of SGD with momentum .9, falling to 0 along a cosine.
        limit: training images; all by default.
        seeds: of weights and order, the same for every loss.
    """

    task: str = "mnist/small_cnn"
    log_ends: tuple[float, ...] = (0.75, 1.0)
    epochs: int = 4
    batch_size: int = 32
    lr: float = 0.05
    limit: int | None = 6000
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    @property
    def title(self) -> str:
        """The task in words."""
        return Task.named(self.task).title


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    grid = kit.Grid.read(data, setting.seeds, "loss")
    gate = Task.named(setting.task).gate(grid.values("accuracy", loss=_CE))
    rows = [
        [loss, grid.cell("norm", loss=loss), kit.spread(norms.ratios(grid, loss, _CE)),
         grid.cell("accuracy", loss=loss)]
        for loss in grid.names("loss")
    ]  # fmt: skip
    table = kit.Table(
        "Norm of the gradient over the second half of training",
        ("loss", "norm", "times that of CE", "test accuracy, %"),
        rows,
        note="Mean ± standard deviation over seeds; lost runs are left out. The paper's remark is "
        "about translation: LE=1 has more than 5 times the norm of CE, and LE=0.75 less than 1.7 "
        "times.",
    )
    questions = norms.questions(grid, loss_name, _CE, weak=gate.weak)
    return [table, kit.networks_table([gate])], questions


@kit.experiment(
    "el-gradients",
    title="How large the gradient of Encouraging Loss is",
    reproduces="Encouraging Loss, the remark on gradient norms beside Table 2 (there: translation)",
    scales={
        "smoke": Setting(
            task="builtin:digits/small_cnn", epochs=2, limit=200, seeds=(0, 1)
        ),
        "short": Setting(),
        "paper": Setting(
            task="mnist/el_mnist", log_ends=(0.5, 0.75, 1.0), epochs=100, batch_size=256, lr=0.1,
            limit=None,
        ),
    },
    asks=_asks,
)  # fmt: skip
def el_gradients(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Trains with each loss from the same weights and in the same order; watches the gradient.

    The task is {title}, {epochs} epochs over {limit} training images in batches of {batch_size},
    with SGD with momentum .9 at a learning rate of {lr} that falls to 0 along a cosine, and seeds
    {seeds}. The norm of the whole gradient is recorded at every step. The losses are cross-entropy,
    and Encouraging Loss with LE = {log_ends}, of which 1 has the paper's clamp. We compare the mean
    over the second half of training, as in el-translation. Nothing is selected: the last step
    counts.
    """
    task = Task.named(setting.task)
    train = lab.source(task.dataset, "train", limit=setting.limit)
    test = lab.source(task.dataset, "test")
    images = [kit.channels_first(source).float() / 255 for source in (train, test)]
    mean, std = float(images[0].mean()), float(images[0].std())
    inputs = [(part - mean) / std for part in images]
    labels = [torch.from_numpy(source.labels.copy()) for source in (train, test)]
    data: dict[str, dict[str, list[Any]]] = {}
    with lab.progress("training", len(_losses(setting)) * len(setting.seeds)) as advance:
        for name, loss in _losses(setting).items():
            runs = []
            for seed in setting.seeds:
                runs.append(_fitted(lab, setting, loss, seed, inputs, labels, len(train.classes)))
                advance(1)
            data[name] = {key: [run[key] for run in runs] for key in runs[0]}
    # the curve of a lost run is empty
    curves = {name: [curve for curve in part["curve"] if curve] for name, part in data.items()}
    return kit.Result(figures=[norms.figure(lab, curves)], data=data)


def _losses(setting: Setting) -> dict[str, Any]:
    ends = {
        loss_name(end): partial(encouraging_loss, log_end=end, clamp=CLAMP if end == 1 else 0.0)
        for end in setting.log_ends
    }
    return {_CE: cross_entropy, **ends}


def _fitted(
    lab: kit.Lab, setting: Setting, loss: Any, seed: int, inputs: Sequence[Tensor],
    labels: Sequence[Tensor], num_classes: int,
) -> dict[str, Any]:  # fmt: skip
    """Norms of one run, and what it reaches; NaN if its loss became infinite or NaN."""
    loaded = load_model(
        Task.named(setting.task).model, num_classes=num_classes,
        options={"seed": seed}, if_taken={"channels": inputs[0].shape[1]},
    )  # fmt: skip
    model, recorder = loaded.model.to(lab.device).train(), GradientNorms()
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.lr, momentum=0.9, nesterov=True)
    steps = setting.epochs * (len(inputs[0]) // setting.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draws = generator(seed, "el-gradients")
    with seeded(seed_of(seed, "dropout") % 2**31, lab.device):
        for rows in _batches(setting, len(inputs[0]), draws):
            value = loss(model(inputs[0][rows].to(lab.device)), labels[0][rows].to(lab.device))
            optimizer.zero_grad()
            value.backward()
            recorder.record(model)
            optimizer.step()
            schedule.step()
    found = recorder.values()
    if not np.isfinite(found).all():
        return {"norm": math.nan, "accuracy": math.nan, "curve": []}
    accuracy = _accuracy(model.eval(), inputs[1], labels[1], lab.device)
    half = float(found[len(found) // 2 :].mean())
    return {"norm": half, "accuracy": accuracy, "curve": norms.thinned(found, _POINTS)}


def _batches(setting: Setting, length: int, draws: torch.Generator) -> Any:
    for _ in range(setting.epochs):
        order = torch.randperm(length, generator=draws)
        yield from (
            rows for rows in order.split(setting.batch_size) if len(rows) == setting.batch_size
        )


@torch.no_grad()
def _accuracy(model: nn.Module, inputs: Tensor, labels: Tensor, device: torch.device) -> float:
    guessed = [model(some.to(device)).argmax(dim=1).cpu() for some in inputs.split(_BATCH)]
    return 100 * float((torch.cat(guessed) == labels).float().mean())
