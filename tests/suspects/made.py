"""Tables whose wrong labels are known."""

import numpy as np
import pyarrow as pa

from hardsight import scores, tracking  # noqa: F401  they register
from hardsight.registry import SCORES, SUMMARIES
from hardsight.table import ScoreTable, with_metadata

CLASSES = ["ant", "bee", "cat", "dog"]


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def about(columns, **more):
    specs = {**SCORES, **SUMMARIES}
    known = [name for name in columns if name in specs]
    return {
        "classes": CLASSES,
        "scores": {name: specs[name].facts() for name in known},
        "columns": {name: specs[name].shown() for name in known},
        **more,
    }


def table_of(columns, **more):
    n = len(next(iter(columns.values())))
    keys = {"index": np.arange(n), "id": [f"{i}.png" for i in range(n)]}
    rows = pa.table({**keys, **columns})
    return ScoreTable(with_metadata(rows, about(columns, **more)))


def one_pass(probs, labels, **more):
    """The table of one pass whose probabilities are given, ``[N, C]``."""
    probs, labels = np.asarray(probs, float), np.asarray(labels)
    at = np.arange(len(labels)), np.maximum(labels, 0)
    others = probs.copy()
    others[at] = 0
    columns = {
        "label": labels,
        "prediction": probs.argmax(axis=1),
        "finite": np.ones(len(labels), bool),
        "logit_margin": (np.log(probs[at]) - np.log(others.max(axis=1))).astype(np.float32),
        "model_confidence": probs[at].astype(np.float32),
    }
    extra = {name: more.pop(name) for name in list(more) if name in ("fold", "finite")}
    return table_of({**columns, **extra}, **more)


def tracked(suspicion, labels, *, rival=None, right=None, seen=10, **columns):
    """The table of a tracked training."""
    n = len(labels)
    suspicion = np.asarray(suspicion, float)
    right = 1 - np.rint(suspicion * seen) / seen if right is None else np.asarray(right)
    columns = {
        "label": np.asarray(labels),
        "prediction": np.asarray(labels),  # all of it memorised
        "finite": np.ones(n, bool),
        "epochs_seen": np.full(n, seen),
        "suspicion": suspicion,
        "map_confidence": 0.9 * (1 - suspicion),
        "map_correctness": right,
        **columns,
    }
    if rival is not None:
        columns["rival"] = np.asarray(rival)
    return table_of(columns, sample="in-sample")


def noisy_probs(n, *, seed=0, num_classes=4, sharp=6.0):
    """Probabilities of a model that is calibrated on the truth, and the truth."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * sharp * rng.uniform(0.05, 1, (n, 1))
    probs = np.maximum(softmax(logits), 1e-300)
    return probs, (probs.cumsum(axis=1) > rng.uniform(size=(n, 1))).argmax(axis=1)


def noisy_pass(n=4000, share=0.1, *, seed=0, num_classes=4, sharp=6.0):
    """A table of such a model whose labels are wrong in part, and which of them are."""
    probs, truth = noisy_probs(n, seed=seed, num_classes=num_classes, sharp=sharp)
    rng = np.random.default_rng([seed, 1])
    wrong = rng.uniform(size=n) < share
    labels = np.where(wrong, (truth + rng.integers(1, num_classes, n)) % num_classes, truth)
    return one_pass(probs, labels, sample="out-of-sample"), wrong
