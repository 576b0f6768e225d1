"""The same pictures scored at every level of a degradation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data import DegradedSource, EmbeddingSource, ExampleSource
from hardsight.data import Example as Example
from hardsight.errors import DataError, OptionError
from hardsight.run.loop import chosen_device, loaded_model, state_digest
from hardsight.run.score import score
from hardsight.table import ScoreTable

Levels = tuple[str, dict[str, NDArray[np.float64]], NDArray[np.bool_], dict[str, bool]]


def facts_of(
    model: Any, source: ExampleSource | EmbeddingSource, *, seed: int, **options: Any
) -> tuple[dict[str, Any], dict[str, str | None]]:
    """What a study is made of: settings as they are meant, and fingerprints of data and model."""
    weights, classes = options.get("weights"), options.get("num_classes")
    name = os.fspath(model) if isinstance(model, os.PathLike) else model
    place = chosen_device(str(options.get("device", "auto")))
    loaded = loaded_model(name, weights, classes, seed=seed, device=place)
    settings = {**options, "model": loaded.spec, "data": source.spec, "device": place.type}
    return settings, {"data": source.fingerprint(), "model": state_digest(loaded.model)}


def level_scores(
    model: Any,
    source: ExampleSource | EmbeddingSource,
    kinds: Mapping[str, Sequence[float]],
    *,
    scores: Sequence[str],
    limit: int | None,
    seed: int,
    **options: Any,
) -> Iterator[Levels]:
    """For each kind of degradation: its name, scores and correctness ``[L, N]``, directions."""
    kinds = {kind: levels for kind, levels in kinds.items() if len(levels)}
    if not kinds:
        raise OptionError("expected levels of noise or of contrast, got none")
    if limit is not None and limit < 1:
        raise OptionError(f"expected a limit of at least 1 picture, got {limit}")
    if isinstance(source, EmbeddingSource) or hasattr(source, "samples"):
        raise DataError(f"only pictures by position can be degraded, got {source.spec}")
    if limit is not None and limit < len(source):
        source = SomeExamples(source, np.linspace(0, len(source) - 1, limit).round().astype(int))
    known: dict[tuple[float, float], ScoreTable] = {}

    def table(noise: float, contrast: float) -> ScoreTable:
        if (noise, contrast) not in known:
            degraded = DegradedSource(source, noise=noise, contrast=contrast, seed=seed)
            known[noise, contrast] = score(
                model, degraded, scores=list(scores), thumbnails=0, seed=seed,
                strict=True, **options,
            )  # fmt: skip
        return known[noise, contrast]

    for kind, levels in kinds.items():
        tables = [table(level, 1.0) if kind == "noise" else table(0.0, level) for level in levels]
        values = {
            name: np.stack([one.column(name).astype(np.float64) for one in tables])
            for name in scores
        }
        right = np.stack([one.column("label") == one.column("prediction") for one in tables])
        yield kind, values, right, {name: tables[0].higher_is_harder(name) for name in scores}


class SomeExamples:
    """Chosen positions of a source, as a source.

    Args:
        source: of all examples.
        rows: positions in it.
    """

    def __init__(self, source: ExampleSource, rows: NDArray[np.int64]) -> None:
        self._source, self._rows = source, [int(row) for row in rows]
        self.spec, self.classes = f"{len(self._rows):,} of {source.spec}", source.classes

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Example:
        return self._source[self._rows[index]]

    def id_of(self, index: int) -> str:
        """Name of the example."""
        return self._source.id_of(self._rows[index])

    def label_of(self, index: int) -> int:
        """Label of the example."""
        return self._source.label_of(self._rows[index])

    def fingerprint(self) -> str:
        """That of the source, and the positions."""
        import hashlib

        said = f"{self._source.fingerprint()} {self._rows}"
        return hashlib.sha256(said.encode()).hexdigest()
