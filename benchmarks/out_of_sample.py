"""Planted label errors: found out of sample by folds, in sample, and by training dynamics.

The same recipe judges the same wrong labels in three ways: five models on five folds, where each
example is scored by the model that did not see it; one model on everything, scored on its own
training data; and the dynamics of that model. This is done once with few epochs, and once with so
many that the wrong labels are memorised. It is also done with stored embeddings, with a head fitted
for every fold.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hardsight as hs
from benchmarks._measure import arguments, publish
from hardsight.data import ExampleSource, open_source

RECIPE = {
    "model": "small_cnn", "batch_size": 64, "optimizer": {"name": "adamw", "lr": 0.005},
    "schedule": "one_cycle", "select": "last", "validation": 0.0, "show_progress": False,
    "thumbnails": 0,
}  # fmt: skip
EPOCHS = {"digits": (8, 40), "cifar10": (6, 30)}


def planted(source: ExampleSource, share: float, seed: int) -> tuple[ExampleSource, NDArray[Any]]:
    """The data with wrong labels, and which they are."""
    noisy, wrong = hs.data.with_label_errors(
        source.labels, num_classes=len(source.classes), share=share, seed=seed
    )
    return source.relabelled(noisy), np.asarray(wrong)


def found(hardness: NDArray[Any], wrong: NDArray[Any]) -> dict[str, float]:
    """How well a ranking finds the planted errors."""
    worst = np.nan_to_num(hardness, nan=-np.inf)
    at = int(wrong.sum())
    return {
        "auroc": round(float(hs.stats.auroc(worst, wrong).value), 4),
        "precision": round(float(hs.stats.precision_at_k(worst, wrong, at).value), 4),
    }


def hardness(table: Any, by: str) -> NDArray[Any]:
    """A column in the order of the data, larger for harder."""
    order = np.argsort(table.column("index"))
    sign = 1.0 if table.higher_is_harder(by) else -1.0
    values: NDArray[Any] = sign * table.column(by)[order]
    return values


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and how many seconds it took."""
    start = time.perf_counter()
    result = call()
    return result, round(time.perf_counter() - start, 1)


def compared(
    name: str,
    source: ExampleSource,
    epochs: int,
    *,
    folds: int,
    share: float,
    seed: int,
    device: str,
) -> Iterator[dict[str, Any]]:
    """A row for each way to find the errors."""
    noisy, wrong = planted(source, share, seed)
    facts = {"data": name, "examples": len(source), "epochs": epochs, "seed": seed}
    how: dict[str, Any] = {**RECIPE, "epochs": epochs, "seed": seed, "device": device}
    model = how.pop("model")
    with tempfile.TemporaryDirectory() as home:
        apart, seconds = timed(
            lambda: hs.train(model, noisy, out=f"{home}/folds", folds=folds, **how)
        )
        yield {
            "name": f"out of sample, {folds} folds", **facts,
            **found(hardness(apart.table, "logit_margin"), wrong), "seconds": seconds,
        }  # fmt: skip
        how.pop("thumbnails")
        done, seconds = timed(lambda: hs.train(model, noisy, out=f"{home}/all", track=True, **how))
        inside = hs.score(
            done.model, noisy, preprocessing=done.preprocessing, sample="in-sample", device=device,
            show_progress=False,
        )  # fmt: skip
        yield {
            "name": "in sample, one model", **facts,
            **found(hardness(inside, "logit_margin"), wrong), "seconds": seconds,
        }  # fmt: skip
        yield {
            "name": "dynamics of that model", **facts,
            **found(hardness(done.dynamics, "suspicion"), wrong), "seconds": seconds,
        }  # fmt: skip


def embedded(source: ExampleSource, *, folds: int, share: float, seed: int) -> dict[str, Any]:
    """The same errors from pixels as stored embeddings: only the head is fitted, per fold."""
    noisy, wrong = planted(source, share, seed)
    pixels = np.stack([np.asarray(source[at].content, np.float32) for at in range(len(source))])
    rows = pixels.reshape(len(source), -1)
    table, seconds = timed(
        lambda: hs.score(None, rows, labels=noisy.labels, out_of_sample=folds, seed=seed)
    )
    return {
        "name": f"heads on raw pixels, {folds} folds", "data": source.spec,
        "examples": len(source), "epochs": "-", "seed": seed,
        **found(hardness(table, "logit_margin"), wrong), "seconds": seconds,
    }  # fmt: skip


def sized(
    rows: int, width: int, classes: int, *, folds: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Made embeddings of some size with a tenth of the labels wrong: ours, and scikit-learn's."""
    from sklearn.linear_model import LogisticRegression

    draw = np.random.default_rng(seed)
    truth = draw.integers(0, classes, rows)
    spread = (np.exp(-np.arange(width) / 120) + 0.05).astype(np.float32)  # as uneven as features
    made = draw.normal(size=(classes, width)).astype(np.float32)[truth] / 4
    made += draw.standard_normal((rows, width), dtype=np.float32)
    made = np.maximum(made * spread + np.float32(0.3), 0)
    labels, wrong = hs.data.with_label_errors(truth, num_classes=classes, share=0.1, seed=seed)
    facts = {"data": f"made, {width} wide, {classes} classes", "examples": rows, "epochs": "-",
             "seed": seed}  # fmt: skip
    table, seconds = timed(
        lambda: hs.score(None, made, labels=labels, out_of_sample=folds, seed=seed)
    )
    how_well = found(hardness(table, "logit_margin"), np.asarray(wrong))
    yield {"name": f"heads, {folds} folds", **facts, **how_well, "seconds": seconds}
    learn = table.column("fold") != 1
    penalty = table.metadata["folds"]["each"][0]["penalty"] * float(made[learn].var(axis=0).mean())
    peer = LogisticRegression(C=1 / penalty, max_iter=200)
    _, seconds = timed(lambda: peer.fit(made[learn], labels[learn]))
    none = {"auroc": "", "precision": ""}
    yield {"name": "scikit-learn, one fold, penalty given", **facts, **none, "seconds": seconds}


def main(given: Sequence[str] | None = None) -> None:
    """Run it: ``python -m benchmarks.out_of_sample --data-root DATA``."""
    parser = arguments(__doc__)
    parser.set_defaults(repeats=3)
    parser.add_argument("--data-root", type=Path, help="where cifar10/ lies; without it digits")
    parser.add_argument("--examples", type=int, default=3000, help="of CIFAR-10")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.1, help="of labels that are wrong")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", nargs="*", type=int, help="rows of made embeddings, alone")
    parser.add_argument("--width", type=int, default=512, help="of them")
    parser.add_argument("--classes", type=int, default=10, help="of them")
    options = parser.parse_args(given)
    if options.sizes:
        made = [
            row
            for size in options.sizes
            for row in sized(size, options.width, options.classes, folds=options.folds, seed=0)
        ]
        publish("A head for each fold", made, file=options.out)
        return
    digits = open_source("builtin:digits", split="train")
    sources = {"digits": digits}
    if options.data_root is not None:
        cifar = open_source("cifar10", split="train", data_root=options.data_root)
        assert isinstance(cifar, ExampleSource)
        sources["cifar10"] = cifar.subset(np.arange(min(options.examples, len(cifar))))
    rows: list[dict[str, Any]] = []
    same = {"folds": options.folds, "share": options.share}
    for seed in range(options.repeats):
        assert isinstance(digits, ExampleSource)
        rows.append(embedded(digits, seed=seed, **same))
        print(rows[-1], flush=True)
        for name, source in sources.items():
            for epochs in EPOCHS[name]:
                for row in compared(name, source, epochs, seed=seed, device=options.device, **same):
                    print(row, flush=True)  # a long run that is stopped has said something
                    rows.append(row)
    rows.sort(key=lambda row: (row["data"], str(row["epochs"]), row["name"], row["seed"]))
    publish("Planted label errors", rows, file=options.out)


if __name__ == "__main__":
    main()
