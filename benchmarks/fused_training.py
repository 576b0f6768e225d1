"""A short training run with the fused AVH loss against the plain one: same data, same seeds.

    python -m benchmarks.fused_training --data MNIST_FOLDER --out results.csv

Needs a CUDA device. The test set is looked at once, after the last epoch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks._measure import arguments, publish
from hardsight.data import EmbeddingSource, open_source
from hardsight.losses import LinearAVHLoss, avh_logits
from hardsight.models import SmallCNN

_SCALE, _BATCH = 8.0, 256


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", required=True, help="folder with MNIST's idx files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(args)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = (_tensors(options.data, split, device) for split in ("train", "test"))
    rows = []
    for seed in range(options.seeds):
        for impl in ("torch", "triton"):
            start = time.perf_counter()
            accuracy, loss = _trained(train, test, impl, seed, options.epochs)
            seconds = round(time.perf_counter() - start, 2)
            rows.append(
                {
                    "name": impl,
                    "seed": seed,
                    "epochs": options.epochs,
                    "batch": _BATCH,
                    "test_accuracy": round(accuracy, 4),
                    "last_loss": round(loss, 4),
                    "seconds": seconds,
                }
            )
    publish("MNIST, SmallCNN, AVH loss: plain and fused", rows, file=options.out)


def _tensors(folder: str, split: str, device: str) -> tuple[Tensor, Tensor]:
    source = open_source(folder, split=split)
    assert not isinstance(source, EmbeddingSource)
    examples = [source[index] for index in range(len(source))]
    images = np.stack([np.asarray(example.content) for example in examples])
    labels = torch.tensor([example.label for example in examples], device=device)
    return torch.from_numpy(images).to(device)[:, None].float() / 255, labels


def _trained(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], impl: str, seed: int, epochs: int
) -> tuple[float, float]:
    images, labels = train
    model = SmallCNN(seed=seed).to(images.device)
    criterion = LinearAVHLoss.from_head(model.head, scale=_SCALE, impl=impl)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=order).to(images.device).split(_BATCH):
            loss = criterion(model.features(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.inference_mode():
        features = torch.cat([model.features(part) for part in test[0].split(2048)])
        logits = avh_logits(features, model.head.weight, scale=_SCALE)
    accuracy = (logits.argmax(1) == test[1]).float().mean()
    return float(accuracy), float(loss.detach())


if __name__ == "__main__":
    main()
