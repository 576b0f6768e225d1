"""Score the same pictures at every level of a degradation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data import DegradedSource, EmbeddingSource, ExampleSource
from hardsight.data.pixels import PixelOptions
from hardsight.errors import DataError, OptionError
from hardsight.run.loop import chosen_device, loaded_model
from hardsight.run.score import score
from hardsight.run_folder import state_digest
from hardsight.table import ScoreTable

Levels = tuple[
    str, dict[str, NDArray[np.float64]], NDArray[np.bool_], dict[str, bool], dict[str, Any]
]


def facts_of(
    model: Any, source: ExampleSource | EmbeddingSource, *, seed: int, **options: Any
) -> tuple[dict[str, Any], dict[str, str | None]]:
    """The settings of a study with defaults filled in, and fingerprints of data and model."""
    weights, classes = options.get("weights"), options.get("num_classes")
    name = os.fspath(model) if isinstance(model, os.PathLike) else model
    place = chosen_device(str(options.get("device", "auto")))
    pixels = PixelOptions(*(options.get(key) for key in PixelOptions._fields))
    loaded = loaded_model(
        name, weights, classes, seed=seed, device=place, is_stated=pixels.are_complete,
        preprocessing=options.get("preprocessing"),
        trust_remote_code=bool(options.get("trust_remote_code")),
    )  # fmt: skip
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
    """For each kind: its name, scores and correctness ``[L, N]``, directions, class order."""
    kinds = {kind: levels for kind, levels in kinds.items() if len(levels)}
    if not kinds:
        raise OptionError("expected levels of noise or of contrast, got none")
    for kind, levels in kinds.items():
        # checked before anything is scored
        if len(levels) < 2 or len(set(levels)) < len(levels):
            raise OptionError(
                f"expected at least 2 levels of {kind}, each once, got {list(levels)}"
            )
    if limit is not None and limit < 1:
        raise OptionError(f"expected a limit of at least 1 picture, got {limit}")
    if isinstance(source, EmbeddingSource) or source.is_stream:
        raise DataError(f"only pictures by position can be degraded, got {source.spec}")
    if limit is not None and limit < len(source):
        source = source.subset(np.linspace(0, len(source) - 1, limit).round().astype(int))
    # unchanged pictures are a level of both kinds, so keep their table and score them once
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
            name: np.stack([table.column(name).astype(np.float64) for table in tables])
            for name in scores
        }
        right = np.stack([table.column("label") == table.column("prediction") for table in tables])
        directions = {name: tables[0].higher_is_harder(name) for name in scores}
        yield kind, values, right, directions, tables[0].metadata["class_order"]
