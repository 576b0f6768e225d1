"""The figures of the guide on human studies: ``python docs/_figures/study.py``, on a CPU."""

import shutil
import tempfile
from pathlib import Path

import numpy as np

import hardsight as hs
from hardsight.data import decoded, open_source
from hardsight.experiments.avh import with_simulated_annotators

ASSETS = Path(__file__).parents[1] / "assets"


def main() -> None:
    """Train, score, let simulated annotators choose, study, and keep the figures."""
    train, test = (decoded(open_source("builtin:digits", split=part)) for part in ("train", "test"))
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        hs.train(
            "small_cnn", "builtin:digits", split="train", test_split="test", out=here / "run",
            epochs=6, device="cpu",
        )  # fmt: skip
        table = hs.score(
            str(here / "run"), "builtin:digits", split="test", device="cpu", out=here / "scores",
            sample="out-of-sample",
        )  # fmt: skip
        np.save(here / "counts.npy", with_simulated_annotators(train, test).human_counts)
        hs.study_human(table, here / "counts.npy", out=here / "study")
        hs.report.write_study(here / "study")
        for name in ("human-histograms.svg", "human-scores.svg"):
            shutil.copy(here / "study" / name, ASSETS / f"study-{name}")
        print((here / "study" / "study.md").read_text())


if __name__ == "__main__":
    main()
