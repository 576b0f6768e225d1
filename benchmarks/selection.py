"""Pseudo-label selection against one numpy argmax and a per-class partition of the same array.

Rules on angles have to multiply embeddings with class weights first; they are also compared with
that product followed by the same argmax and partition.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._measure import arguments, extra_mib, interleaved, publish, row
from hardsight.selftrain import RULES, pseudo_labels

_PORTION = 0.2
_SHARPNESS = {"flat": 2.0, "confident": 8.0}  # of the logits
_PRODUCT, _PRODUCT_ROWS = "product, numpy", 1024
_ON_ANGLES = {"cbst+avh", "avc"}


def argmax_and_partition(probs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Predictions and the confidence at the portion of each class; the least anybody has to do."""
    predictions = probs.argmax(axis=1)
    confidence = probs[np.arange(len(probs)), predictions]
    return _partitioned(confidence, predictions, probs.shape[1])


def _partitioned(
    confidence: NDArray[np.float32], predictions: NDArray[np.int64], classes: int
) -> NDArray[np.float32]:
    order = np.argsort(predictions, kind="stable")
    ends = np.cumsum(np.bincount(predictions, minlength=classes))
    thresholds = np.ones(classes, dtype=confidence.dtype)
    for c, own in enumerate(np.split(confidence[order], ends[:-1])):
        rank = int(len(own) * _PORTION)
        if rank:
            thresholds[c] = np.partition(own, len(own) - rank)[len(own) - rank]
    return thresholds


def product_and_partition(
    embeddings: NDArray[np.float32], weights: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The same, of cosines: the least anybody has to do for a rule on angles."""
    factor, best = torch.from_numpy(weights).T, np.empty(len(embeddings), dtype=np.float32)
    predictions = np.empty(len(embeddings), dtype=np.int64)
    for at in range(0, len(embeddings), _PRODUCT_ROWS):
        part = torch.mm(torch.from_numpy(embeddings[at : at + _PRODUCT_ROWS]), factor).numpy()
        found = part.argmax(axis=1)
        predictions[at : at + _PRODUCT_ROWS] = found
        best[at : at + _PRODUCT_ROWS] = part[np.arange(len(part)), found]
    return _partitioned(best, predictions, len(weights))


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--width", type=int, default=128, help="of embeddings")
    parser.add_argument(
        "--rules", nargs="+", choices=RULES, default=[r for r in RULES if r not in _ON_ANGLES],
        help="all on probabilities by default; those on angles need a matrix product first",
    )  # fmt: skip
    options = parser.parse_args(args)
    rows = []
    for kind, sharpness in _SHARPNESS.items():
        probs = _probabilities(options.examples, options.classes, sharpness)
        angles = _embeddings(probs, options.width) if _ON_ANGLES & {*options.rules} else None
        rows += _compared(probs, angles, kind, options.rules, options.repeats)
        del probs  # before the next one is made
    shape = f"{options.examples:,} x {options.classes:,} float32, portion {_PORTION}"
    threads = f"{torch.get_num_threads()} threads"
    target = "target: 0.5 of numpy's speed, 2048 MiB"
    publish(f"Selection, {shape}, {threads} ({target})", rows, file=options.out)


def _compared(
    probs: NDArray[np.float32],
    angles: tuple[NDArray[np.float32], NDArray[np.float32]] | None,
    kind: str,
    rules: Sequence[str],
    repeats: int,
) -> list[dict[str, Any]]:
    given: dict[str, Any] = {}
    runs: dict[str, Callable[[], Any]] = {"numpy": partial(argmax_and_partition, probs)}
    if angles is not None:
        given = dict(zip(("embeddings", "class_weights"), angles, strict=True))
        runs[_PRODUCT] = partial(product_and_partition, *angles)
    for rule in rules:
        runs[rule] = partial(pseudo_labels, probs, portion=_PORTION, rule=rule, **given)
    # first, because memory that a run gives back stays with the process
    extra = {name: extra_mib(run) for name, run in runs.items()}
    seconds = interleaved(runs, repeats=repeats)
    rows = [row(f"{kind}: {name}", values) for name, values in seconds.items()]
    for name, entry in zip(runs, rows, strict=True):
        entry["speed_of_numpy"] = _speed(seconds["numpy"], seconds[name])
        entry["speed_of_product"] = entry["width"] = ""
        if angles is not None and name in {_PRODUCT, *_ON_ANGLES}:
            entry["speed_of_product"] = _speed(seconds[_PRODUCT], seconds[name])
            entry["width"] = angles[0].shape[1]
        entry["extra_mib"] = extra[name]
        entry["examples"], entry["classes"] = probs.shape
        entry["threads"] = torch.get_num_threads()
    return rows


def _speed(peer: Sequence[float], own: Sequence[float]) -> float:
    """Median over turns of the peer's time over the own: both met the same load."""
    return round(statistics.median(a / b for a, b in zip(peer, own, strict=True)), 3)


def _embeddings(
    probs: NDArray[np.float32], width: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Noise around the weight of the most probable class, as a trained model gives; and weights."""
    draw = np.random.default_rng(1)
    weights = draw.standard_normal((probs.shape[1], width), dtype=np.float32)
    embeddings = draw.standard_normal((len(probs), width), dtype=np.float32)
    embeddings += 0.4 * weights[probs.argmax(axis=1)]
    return embeddings, weights


def _probabilities(examples: int, classes: int, sharpness: float) -> NDArray[np.float32]:
    draw = np.random.default_rng(0)
    probs = np.empty((examples, classes), dtype=np.float32)
    for first in range(0, examples, 10_000):
        part = probs[first : first + 10_000]
        draw.standard_normal(dtype=np.float32, out=part)
        part *= sharpness
        part -= part.max(axis=1, keepdims=True)
        np.exp(part, out=part)
        part /= part.sum(axis=1, keepdims=True)
    return probs


if __name__ == "__main__":
    main()
