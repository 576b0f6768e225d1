"""A short training run with the fused AVH loss against the plain one: same data, same seeds.

    python -m benchmarks.fused_training --data MNIST_FOLDER --out results.csv
    TRITON_INTERPRET=1 python -m benchmarks.fused_training --data MNIST_FOLDER --limit 1000

The network is in float32. ``--dtype`` is the dtype of the embeddings and class weights that the
loss gets, so it decides which kernels run: bfloat16 runs those for Hopper, if there is one, and
float32 the portable ones. Without a CUDA device, Triton has to interpret them. The learning rate
falls linearly to 0, so the last step does not decide. The test set is looked at once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks._measure import arguments, publish
from hardsight.data import EmbeddingSource, open_source
from hardsight.losses import avh_logits, linear_avh_loss
from hardsight.models import SmallCNN
from hardsight.stats import t_test

_SCALE, _BATCH = 8.0, 256


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", required=True, help="folder with MNIST's idx files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16", help="of the loss's inputs")
    parser.add_argument("--limit", type=int, help="training images; all by default")
    options = parser.parse_args(args)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, options.dtype)
    train = _tensors(options.data, "train", device, options.limit)
    test = _tensors(options.data, "test", device, None)
    rows = []
    for seed in range(options.seeds):
        for impl in ("torch", "triton"):
            start = time.perf_counter()
            accuracy, loss = _trained(train, test, impl, dtype, seed, options.epochs)
            seconds = round(time.perf_counter() - start, 2)
            rows.append(
                {
                    "name": impl,
                    "dtype": options.dtype,
                    "images": len(train[1]),
                    "seed": seed,
                    "epochs": options.epochs,
                    "batch": _BATCH,
                    "test_accuracy": round(accuracy, 4),
                    "last_loss": round(loss, 4),
                    "seconds": seconds,
                }
            )
    publish("MNIST, SmallCNN, AVH loss: plain and fused", rows, file=options.out)
    plain, fused = (
        [100 * row["test_accuracy"] for row in rows if row["name"] == impl]
        for impl in ("torch", "triton")
    )
    print(f"mean accuracy: plain {np.mean(plain):.2f} %, fused {np.mean(fused):.2f} %")
    if options.seeds > 1:
        found = t_test(fused, plain, paired=True)
        print(
            f"fused - plain, paired by seed: {found.difference:+.2f} "
            f"({found.low:+.2f} to {found.high:+.2f}) points, n {options.seeds}"
        )


def _tensors(folder: str, split: str, device: str, limit: int | None) -> tuple[Tensor, Tensor]:
    source = open_source(folder, split=split)
    assert not isinstance(source, EmbeddingSource)
    examples = [source[index] for index in range(len(source))][:limit]
    images = np.stack([np.asarray(example.content) for example in examples])
    labels = torch.tensor([example.label for example in examples], device=device)
    return torch.from_numpy(images).to(device)[:, None].float() / 255, labels


def _trained(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    impl: str,
    dtype: torch.dtype,
    seed: int,
    epochs: int,
) -> tuple[float, float]:
    images, labels = train
    model = SmallCNN(seed=seed).to(images.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps = epochs * -(-len(labels) // _BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=order).to(images.device).split(_BATCH):
            features, weights = model.features(images[rows]).to(dtype), model.head.weight.to(dtype)
            loss = linear_avh_loss(features, labels[rows], weights, scale=_SCALE, impl=impl)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.inference_mode():
        features = torch.cat([model.features(part) for part in test[0].split(2048)])
        logits = avh_logits(features, model.head.weight, scale=_SCALE)
    accuracy = (logits.argmax(1) == test[1]).float().mean()
    return float(accuracy), float(loss.detach())


if __name__ == "__main__":
    main()
