"""Train, track, score and report on embedded data, in about a minute."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from hardsight._checks import versions
from hardsight.data import (
    EmbeddingSource,
    ExampleSource,
    batches,
    open_source,
    with_label_errors,
)
from hardsight.models import SmallCNN
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop import pictures, progress
from hardsight.run.score import score
from hardsight.run_folder import DEMO, RunFolder, replacing, writing
from hardsight.table import HISTORIES, THUMBNAILS, ScoreTable
from hardsight.tracking import HardnessTracker

_ERROR_SHARE = 0.04
_MODEL = "small_cnn"


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo.

    Attributes:
        folder: holds ``model.safetensors``, the data files, and both runs.
        train: table of the training part, including the planted label errors.
        heldout: table of the part that the model never saw.
        planted: source positions of the planted label errors.
    """

    folder: Path
    train: ScoreTable
    heldout: ScoreTable
    planted: NDArray[np.int64]

    def found(self, by: str) -> int:
        """How many planted errors are among equally many hardest training examples, by a score."""
        suspects = self.train.hardest(len(self.planted), by)["index"].to_numpy()
        return int(np.isin(suspects, self.planted).sum())


def run_demo(
    out: str | os.PathLike[str] = "demo",
    *,
    epochs: int = 12,
    seed: int = 0,
    show: bool | None = None,
) -> DemoResult:
    """Plant label errors in scikit-learn's digits, train a small CNN, and find them again.

    Args:
        out: folder to write; an earlier demo there is replaced.
        epochs: of training.
        seed: of the planted errors, the initial weights and the order of training.
        show: force progress bars on or off.

    Raises:
        RunExistsError: ``out`` holds something that is not a demo.
    """
    with RunFolder(out).claimed(DEMO, overwrite=True) as demo:
        demo.describe({"epochs": epochs, "seed": seed}, fingerprints={}, versions=versions())
        demo.begin()
        folder = demo.folder
        train_file, planted = _write_data(folder, "train", seed, errors=_ERROR_SHARE)
        heldout_file, _ = _write_data(folder, "heldout", seed, errors=0.0)
        histories = folder / "train" / HISTORIES
        model, tracker = _trained(train_file, histories, epochs=epochs, seed=seed, show=show)
        weights = folder / "model.safetensors"
        with replacing(weights) as partial:
            save_file(model.state_dict(), partial)
        options: dict[str, Any] = {
            "mean": (0.0,), "std": (1.0,),  # as in training: pixels from 0 to 1, not normalised
            "device": "cpu", "seed": seed, "show_progress": show,
            "weights": weights,  # named, so that the review app can build the model again
        }  # fmt: skip
        train = score(_MODEL, train_file, out=folder / "train", sample="in-sample", **options)
        train = _with_dynamics(RunFolder(folder / "train"), tracker.table(train), train_file, show)
        heldout = score(
            _MODEL, heldout_file, out=folder / "heldout", sample="out-of-sample", **options
        )
        demo.finish()
    return DemoResult(folder, train, heldout, planted)


def _with_dynamics(run: RunFolder, table: ScoreTable, file: Path, show: bool | None) -> ScoreTable:
    """Add the dynamics to the table of a run, and thumbnails of the rows that a report shows."""
    run.write_side_file(THUMBNAILS, pictures(_examples(file), table, most=600, show=show))
    return run.replace_table(table)


def _write_data(
    folder: Path, part: str, seed: int, *, errors: float
) -> tuple[Path, NDArray[np.int64]]:
    """Write a part of the digits to a file, with planted label errors; returns their positions."""
    source = _examples("builtin:digits", split="test" if part == "heldout" else "train")
    examples = [source[index] for index in range(len(source))]
    labels = np.array([example.label for example in examples])
    labels, wrong = with_label_errors(labels, num_classes=10, share=errors, seed=seed)
    images = np.stack([np.asarray(example.content) for example in examples])
    file = folder / f"{part}.npz"
    kept = writing(folder, step="free some space or choose another --out")
    with kept, replacing(file) as partial, partial.open("wb") as sink:
        np.savez(sink, images=images, labels=labels)
    return file, np.flatnonzero(wrong)


def _trained(
    file: Path, histories: Path, *, epochs: int, seed: int, show: bool | None
) -> tuple[nn.Module, HardnessTracker]:
    """Train a small CNN in a plain loop, since the demo must run on the core installation."""
    data = list(batches(_examples(file), Preprocessing(), batch_size=64))
    inputs = torch.cat([batch.inputs for batch in data])
    labels = torch.cat([batch.labels for batch in data])
    model = SmallCNN(num_classes=10, seed=seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    steps = epochs * len(data)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    order = torch.Generator().manual_seed(seed)
    tracker = HardnessTracker(num_examples=len(labels), head=model.head, folder=histories)
    with progress("training a small CNN", total=epochs * len(labels), show=show) as advance:
        for _ in range(epochs):
            for rows in torch.randperm(len(labels), generator=order).split(64):
                embeddings = model.features(inputs[rows])
                logits = model.head(embeddings)
                tracker.update(rows, embeddings, logits, labels[rows])
                loss = functional.cross_entropy(logits, labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                advance(len(rows))
            tracker.end_epoch()
    return model.eval(), tracker


def _examples(data: str | Path, *, split: str | None = None) -> ExampleSource:
    source = open_source(data, split=split)
    assert not isinstance(source, EmbeddingSource)
    return source
