from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hardsight.table import ScoreTable, with_metadata

FACTS = {"avh": True, "model_confidence": False, "feature_norm": False}


@pytest.fixture
def people():
    """Frequencies of 600 examples in 3 classes, and scores that follow them to a known degree."""
    draw = np.random.default_rng(3)
    truth = draw.uniform(size=600)
    return {
        "frequency": np.round(truth, 2),
        "labels": np.arange(600) % 3,
        "avh": 0.3 - 0.2 * truth + 0.05 * draw.normal(size=600),
        "model_confidence": truth + 0.6 * draw.normal(size=600),
        "feature_norm": 10 + (np.arange(600) % 3) + draw.normal(size=600),
    }


@pytest.fixture
def table(people):
    rows = pa.table(
        {
            "index": np.arange(600),
            "id": [f"{number}.png" for number in range(600)],
            "label": people["labels"],
            "prediction": people["labels"],
            "finite": np.ones(600, bool),
            **{name: people[name] for name in FACTS},
        }
    )
    about = {
        "classes": ["a", "b", "c"],
        "scores": {name: {"higher_is_harder": harder} for name, harder in FACTS.items()},
    }
    return ScoreTable(with_metadata(rows, about))


@pytest.fixture
def embeddings_file(tmp_path):
    draw = np.random.default_rng(0)
    np.savez(
        tmp_path / "embeddings.npz", embeddings=draw.normal(size=(9, 4)).astype(np.float32),
        labels=np.arange(9) % 3, class_weights=draw.normal(size=(3, 4)).astype(np.float32),
    )  # fmt: skip
    return tmp_path / "embeddings.npz"
