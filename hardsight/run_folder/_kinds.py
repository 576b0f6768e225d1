"""What kinds of runs there are, and what each leaves in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from hardsight.run_folder._files import open_parquet

TABLE, DYNAMICS = "table.parquet", "dynamics.parquet"
ERRORS, THUMBNAILS, SHARDS = "errors.parquet", "thumbnails.parquet", "shards"
HISTORIES = "dynamics"
TRACKED = "tracked"  # a folder of epochs for each set of examples that is never trained on
HELD_OUT = "held-out"  # its name for those that a training run holds out
TABLE_METADATA = b"hardsight"  # where a parquet file of ours describes itself


@dataclass(frozen=True)
class RunKind:
    """One kind of run.

    Attributes:
        name: in the manifest.
        what: it is, in words.
        command: that makes one.
        files: names and patterns of all that it leaves in its folder, its page included.
        result: the file that every finished run has.
        mark: the file that tells a run of an older version, which has no manifest.
        mark_keys: what such a JSON file has at its top; none for other files.
        progress: patterns of what would be lost with an unfinished run.
        is_alone: whether it refuses a folder with other files in it.
        can_resume: whether the command has ``--resume``.
    """

    name: str
    what: str
    command: str
    files: tuple[str, ...]
    result: str
    mark: str
    mark_keys: tuple[str, ...] = ()
    progress: tuple[str, ...] = ()
    is_alone: bool = False
    can_resume: bool = True

    def owned(self, folder: Path) -> Iterator[Path]:
        """What a run of this kind may have left in a folder."""
        for pattern in self.files:
            yield from sorted(folder.glob(pattern))

    def is_older_run(self, folder: Path) -> bool:
        """Whether an older version, which wrote no manifest, left such a run here."""
        file = folder / self.mark
        if file.suffix == ".json":
            return _has_keys(file, self.mark_keys)
        if file.suffix == ".parquet":
            return _is_ours(file) or (folder / SHARDS).is_dir()
        return file.exists()


SCORE = RunKind(
    "score", "scored dataset", "hardsight score",
    (TABLE, ERRORS, THUMBNAILS, SHARDS, "report.html"),
    TABLE, TABLE, progress=(f"{SHARDS}/rows-*",),
)  # fmt: skip
TRAIN = RunKind(
    "train", "training run", "hardsight train",
    ("recipe.json", "result.json", "metrics.csv", "model.json", "model.safetensors", "checkpoints",
     "tensorboard", TRACKED, "outputs", "measured", HISTORIES, DYNAMICS, THUMBNAILS,
     "report.html"),
    "result.json", "recipe.json", ("config", "data_fingerprint"),
    is_alone=True, progress=("checkpoints/last.ckpt", "checkpoints/previous.ckpt"),
)  # fmt: skip
ADAPT = RunKind(
    "adapt", "adaptation", "hardsight adapt",
    ("adapt.json", "result.json", "start.safetensors", "source", "adapt.html"),
    "result.json", "adapt.json", ("config", "fingerprints"),
    is_alone=True, progress=("start.safetensors", "source", "*/round-*"),
)  # fmt: skip
EVALUATE = RunKind(
    "evaluate", "evaluation", "hardsight evaluate", ("card.json", "card.html"),
    "card.json", "card.json", ("data", "models", "definitions"), progress=("card.json",),
)  # fmt: skip
STUDY = RunKind(
    "study", "study", "hardsight study",
    ("study.json", "study.md", "human-histograms.svg", "human-scores.svg", "degradation-noise.svg",
     "degradation-contrast.svg", "dynamics.svg", "dynamics-groups-*.svg"),
    "study.json", "study.json", ("kind", "settings", "result"), progress=("study.json",),
)  # fmt: skip
EXPERIMENT = RunKind(
    "experiment", "result of an experiment", "hardsight experiment run",
    ("result.json", "README.md"),
    "result.json", "result.json", ("name", "setting", "claims"), progress=("result.json",),
    can_resume=False,
)  # fmt: skip
DEMO = RunKind(
    "demo", "demo", "hardsight demo",
    (".hardsight-demo", "model.safetensors", "train.npz", "heldout.npz", "train", "heldout"),
    "model.safetensors", ".hardsight-demo", is_alone=True, progress=("*.npz",), can_resume=False,
)  # fmt: skip
KINDS = {
    kind.name: kind for kind in (SCORE, TRAIN, ADAPT, EVALUATE, STUDY, EXPERIMENT, DEMO)
}  # fmt: skip


def older_kind(folder: Path) -> RunKind | None:
    """The kind of the run that an older version left in a folder, if one did."""
    return next((kind for kind in KINDS.values() if kind.is_older_run(folder)), None)


def _has_keys(file: Path, keys: tuple[str, ...]) -> bool:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and all(key in content for key in keys)


def _is_ours(file: Path) -> bool:
    try:
        with open_parquet(file) as opened:
            return TABLE_METADATA in (opened.schema_arrow.metadata or {})
    except (pa.ArrowInvalid, OSError):
        return False
