"""Runs with made-up but structured numbers: angles, norms, confusions, pictures."""

import io
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from hardsight.run_folder import SCORE
from hardsight.scores import SCORES
from hardsight.table import (
    THUMBNAIL_SCHEMA,
    THUMBNAILS,
    RunFolder,
    ScoreTable,
    error_rows,
    with_metadata,
)

_RANGES = {  # low, high, higher is harder
    "avh": (0.0, 1.0, True),
    "target_angle": (0.0, float(np.pi), True),
    "angular_margin": (-float(np.pi), float(np.pi), False),
    "feature_norm": (0.0, None, False),
    "model_confidence": (0.0, 1.0, False),
    "logit_margin": (None, None, False),
    "el2n": (0.0, 1.4142135, True),
    "entropy": (0.0, None, True),
    "free_energy": (None, None, True),
}
_MEANINGS = {
    "avh": "Share of the total angle that separates an example from its own class. "
    "Near 1/C the model has no opinion; well above it, the example looks like another class.",
    "feature_norm": "Length of the feature vector before the head. "
    "Models tend to give long vectors to examples with clear evidence.",
}


def make_rows(n=400, num_classes=10, seed=0):
    """Columns of a scored dataset: classes differ in difficulty and blur into a neighbour."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, n)
    difficulty = rng.uniform(0.25, 1.0, num_classes)[labels]
    margin = rng.gamma(3.0, 0.28, n) - 0.35 * difficulty  # own class nearer than the next: > 0
    target = np.clip(1.42 - 0.75 * margin + 0.12 * rng.standard_normal(n), 0.03, 3.0)
    neighbour = (labels + rng.choice([1, 1, 1, 2, 3], n)) % num_classes
    predictions = np.where(margin > 0, labels, neighbour)
    norm = np.exp(2.2 + 0.45 * np.abs(margin) + 0.18 * rng.standard_normal(n))
    others = np.clip(rng.normal(1.62, 0.04, n), 1.2, 1.9) * (num_classes - 1)
    logit_margin = norm * margin * 0.35
    confidence = 1 / (1 + np.exp(-logit_margin) * 1.2)
    binary = np.clip(confidence, 1e-6, 1 - 1e-6)
    entropy = -(binary * np.log(binary) + (1 - binary) * np.log(1 - binary)) * 1.4
    return {
        "index": np.arange(n),
        "id": [f"class-{label}/img_{i:05d}.png" for i, label in enumerate(labels)],
        "label": labels,
        "prediction": predictions,
        "finite": np.ones(n, bool),
        "avh": (target / (target + others)).astype(np.float32),
        "target_angle": target.astype(np.float32),
        "angular_margin": margin.astype(np.float32),
        "feature_norm": norm.astype(np.float32),
        "model_confidence": confidence.astype(np.float32),
        "logit_margin": logit_margin.astype(np.float32),
        "el2n": (np.sqrt(2) * (1 - confidence)).astype(np.float32),
        "entropy": entropy.astype(np.float32),
        "free_energy": (-norm * 0.4 + rng.standard_normal(n)).astype(np.float32),
    }


def make_metadata(columns, num_classes=10, **more):
    """Metadata as a scoring run writes it."""
    return {
        "classes": [f"kind {i}" for i in range(num_classes)],
        "scores": {
            name: {
                "version": 1,
                "low": low,
                "high": high,
                "higher_is_harder": harder,
                "meaning": _MEANINGS.get(name, f"What {name} says. And a second sentence."),
            }
            for name, (low, high, harder) in _RANGES.items()
            if name in columns
        },
        "columns": {name: SCORES[name].shown() for name in _RANGES if name in columns},
        "config": {"batch_size": 256, "device": "cpu", "scores": ["avh"]},
        "seed": 0,
        "versions": {"hardsight": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
        "data": {"spec": "photos/", "fingerprint": "9f2c41d07b", "rows": len(columns["index"])},
        "model": {"spec": "net.py:make", "head": "fc", "weights_digest": "51aa90"},
        "preprocessing": {"size": [32, 32], "mean": [0.5], "std": [0.5]},
        "sample": "out-of-sample",
        "bias": {"flip_rate": 0.0123},
        "counts": {"errors": 2, "non_finite": 0},
        **more,
    }


def make_table(columns, metadata):
    return ScoreTable(with_metadata(pa.table(columns), json.loads(json.dumps(metadata))))


def make_png(seed, label, side=16):
    """A small blob whose hue is its class."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:side, 0:side] / side - 0.5
    centre_x, centre_y = rng.uniform(-0.2, 0.2, 2)
    blob = np.exp(-((x - centre_x) ** 2 + (y - centre_y) ** 2) * rng.uniform(15, 45))
    hue = np.array([np.cos(label + shift) * 0.5 + 0.5 for shift in (0, 2.1, 4.2)])
    pixels = blob[..., None] * hue * 235 + rng.integers(0, 20, (side, side, 3))
    sink = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(sink, "PNG")
    return sink.getvalue()


def save_run(folder, table, *, errors=(), pictures=True, side=16):
    """Write a finished run folder for a table in memory, pictures of all shown rows included."""
    from hardsight.gallery import gallery_rows

    rows = table.to_arrow()
    with RunFolder(folder).claimed(SCORE) as run:
        run.describe({}, fingerprints={}, versions={})
        run.begin()
        run.write_shard(0, rows, error_rows(list(errors)))
        if pictures:
            gallery = gallery_rows(table)
            shown = gallery.rows()
            images = [make_png(int(r), int(table.column("label")[r]), side) for r in shown]
            columns = [gallery.source[shown].tolist(), images]
            run.write_side_file(THUMBNAILS, pa.table(columns, schema=THUMBNAIL_SCHEMA))
        with run.new_table([rows], rows.schema):
            pass
        run.finish()
    return folder


def make_histories(table_rows, epochs=8, seed=0):
    """Confidence and predictions ``[E, N]`` of rows whose first twenty labels are wrong."""
    rng = np.random.default_rng(seed)
    labels, n = table_rows["label"], len(table_rows["label"])
    speed = rng.uniform(0.6, 3.0, n)
    time = np.arange(1, epochs + 1)[:, None]
    margin = speed * time - 2 + rng.normal(0, 0.6, (epochs, n))
    margin[:, :20] = -3 + 0.2 * time + rng.normal(0, 0.3, (epochs, 20))
    confidence = 1 / (1 + np.exp(-margin))
    others = (labels + 1) % 10
    predictions = np.where(margin > 0, labels, others)
    return {"margin": margin, "confidence": confidence, "prediction": predictions}


def make_tracked(folder, *, histories=True, epochs=8):
    """A finished run with dynamics, and the epochs a tracker would have left beside it."""
    from hardsight import tracking

    columns = make_rows(300)
    history = make_histories(columns, epochs)
    right = (history["prediction"] == columns["label"]).astype(float)
    summaries = {
        "suspicion": tracking.suspicion(history["margin"]),
        "aum": tracking.area_under_margin(history["margin"]),
        "forgetting_events": tracking.forgetting_events(right),
        "map_confidence": tracking.map_confidence(history["confidence"]),
        "map_variability": tracking.map_variability(history["confidence"]),
        "map_correctness": tracking.map_correctness(right),
        "first_learned_epoch": tracking.first_learned_epoch(right),
    }
    columns = {**columns, "prediction": history["prediction"][-1], **summaries}
    about = make_metadata(columns, tracking={"epochs": epochs, "num_examples": 300})
    for name in summaries:
        about["scores"][name] = tracking.SUMMARIES[name].facts()
        about["columns"][name] = tracking.SUMMARIES[name].shown()
    save_run(folder, make_table(columns, {**about, "sample": "in-sample"}))
    if histories:
        (folder / "dynamics").mkdir()
        for epoch in range(epochs):
            rows = {
                "confidence": history["confidence"][epoch].astype(np.float32),
                "label": columns["label"].astype(np.int32),
                "prediction": history["prediction"][epoch].astype(np.int32),
            }
            pq.write_table(pa.table(rows), folder / "dynamics" / f"epoch-{epoch + 1:05d}.parquet")
    return folder


class Page:
    """The text of a written page, for tests of what it shows."""

    def __init__(self, file):
        self.text = file.read_text("utf-8")

    def part(self, name):
        """One section, by its id."""
        return self.text.split(f'<section id="{name}"')[1].split("</section>")[0]

    def fact(self, title):
        """Value and detail of a fact at the top."""
        value = rf"<dt>{title}</dt><dd><bdi class=\"value\">(.*?)</bdi><span>(.*?)</span>"
        return re.search(value, self.part("summary")).groups()

    def cells(self, part):
        """Hexagons of the map in a part: x, y, shade of wrong and text of each."""
        cell = r'<use href="[^"]*" x="([^"]*)" y="([^"]*)" class="w(\d) d\d"><title>(.*?)</title>'
        found = re.findall(cell, self.part(part))
        return [(float(x), float(y), int(wrong), text) for x, y, wrong, text in found]

    def figures(self, part):
        """Figures of a part, by their titles."""
        found = self.part(part).split("<figcaption><h3>")[1:]
        return dict(figure.split("</h3>", 1) for figure in found)


class Make:
    """The helpers above under one name, since tests cannot import a conftest."""

    page = staticmethod(Page)

    rows = staticmethod(make_rows)
    metadata = staticmethod(make_metadata)
    table = staticmethod(make_table)
    png = staticmethod(make_png)
    save = staticmethod(save_run)
    tracked = staticmethod(make_tracked)


@pytest.fixture(scope="session")
def make():
    return Make


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A finished run of 400 examples in 10 classes, with pictures and two unreadable files."""
    columns = make_rows()
    table = make_table(columns, make_metadata(columns))
    errors = [(400, "class-3/broken.png", "truncated file"), (401, "class-1/zero.png", "0 bytes")]
    return save_run(tmp_path_factory.mktemp("run"), table, errors=errors)


@pytest.fixture(scope="session")
def tracked(tmp_path_factory):
    """A finished run with dynamics of 8 epochs; its first 20 labels are wrong."""
    return make_tracked(tmp_path_factory.mktemp("tracked"))
