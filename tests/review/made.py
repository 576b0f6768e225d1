"""Runs to be reviewed, with known labels, and the app around them."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from PIL import Image

from hardsight.run_folder import SCORE, RunFolder
from hardsight.scores import SCORES
from hardsight.table import THUMBNAIL_SCHEMA, THUMBNAILS, error_rows, with_metadata

TOKEN = "a-token-of-tests-0123456789"
SCORE_NAMES = ("avh", "target_angle", "angular_margin", "feature_norm", "logit_margin")


def rows_of(n=60, num_classes=4, seed=0):
    """Columns in which the last label of every ten is wrong, and margins that tell it."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % num_classes
    is_wrong = np.arange(n) % 10 == 9
    label = np.where(is_wrong, (truth + 1) % num_classes, truth)
    margin = np.where(is_wrong, -1.0, 1.0) * rng.uniform(0.5, 3, n)
    angle = np.where(is_wrong, 1.4, 0.6) + rng.uniform(-0.1, 0.1, n)
    return {
        "index": np.arange(n) * 2,  # every second example of the data
        "id": [f"class-{name}/{i:04d}.png" for i, name in enumerate(truth)],
        "label": label,
        "prediction": truth,
        "finite": np.ones(n, bool),
        "avh": (angle / 5).astype(np.float32),
        "target_angle": angle.astype(np.float32),
        "angular_margin": np.where(is_wrong, -0.5, 0.5).astype(np.float32),
        "feature_norm": rng.uniform(5, 20, n).astype(np.float32),
        "logit_margin": margin.astype(np.float32),
    }


def png_of(label, side=12):
    pixels = np.full((side, side, 3), 40, np.uint8)
    pixels[2:-2, 2 + label : 6 + label] = (250, 60 * label % 255, 90)
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def metadata_of(columns, classes, **more):
    return {
        "classes": classes,
        "scores": {name: SCORES[name].facts() for name in SCORE_NAMES if name in columns},
        "columns": {name: SCORES[name].shown() for name in SCORE_NAMES if name in columns},
        "data": {"spec": "nowhere/photos", "split": None, "fingerprint": "f00d"},
        "sample": "out-of-sample",
        **more,
    }


def save(folder, columns=None, *, classes=None, thumbnails=True, **more):
    """A finished run, with a small picture of every row unless told otherwise."""
    columns = rows_of() if columns is None else columns
    classes = ["ant", "bee", "cat", "dog"] if classes is None else classes
    about = json.loads(json.dumps(metadata_of(columns, classes, **more)))
    rows = with_metadata(pa.table(columns), about)
    with RunFolder(folder).claimed(SCORE) as run:
        run.describe({}, fingerprints={}, versions={})
        run.begin()
        run.write_shard(0, rows, error_rows([]))
        if thumbnails:
            pictures = [png_of(int(label)) for label in columns["prediction"]]
            kept = pa.table([pa.array(columns["index"]), pictures], schema=THUMBNAIL_SCHEMA)
            run.write_side_file(THUMBNAILS, kept)
        with run.new_table([rows], rows.schema):
            pass
        run.finish()
    return folder


class App:
    """A running app of a run, and requests to it as its own page would send them."""

    def __init__(self, run, **options):
        from starlette.testclient import TestClient

        from hardsight.review import Review

        defaults = {"host": "127.0.0.1", "port": None, "token": TOKEN, "allow_hosts": (),
                    "data": None, "is_framed": False}  # fmt: skip
        self.review = Review(run, **{**defaults, **options})
        self.origin = f"http://127.0.0.1:{self.review.port}"
        self.client = TestClient(self.review.app, base_url=self.origin)

    def close(self):
        self.review.close()

    def headers(self, **changes):
        wanted = {"x-hardsight-token": TOKEN, "origin": self.origin, **changes}
        return {name: value for name, value in wanted.items() if value is not None}

    def get(self, path, reviewer="anna", headers=None, **values):
        query = {"reviewer": reviewer, **values}
        return self.client.get(f"/api/{path}", params=query, headers=headers or self.headers())

    def post(self, path, reviewer="anna", headers=None, **body):
        content = {"reviewer": reviewer, **body}
        return self.client.post(f"/api/{path}", json=content, headers=headers or self.headers())

    def queue(self, reviewer="anna", **values):
        return self.get("queue", reviewer, **{"only": "suspects", "count": 20, **values}).json()

    def decide(self, item, action, new=None, reviewer="anna"):
        return self.post("decide", reviewer, index=item["index"], action=action, new=new,
                         base=item["base"])  # fmt: skip

    def example(self, index, reviewer="anna"):
        return SimpleNamespace(**self.get(f"example/{index}", reviewer).json())
