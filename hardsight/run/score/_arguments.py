"""The arguments of a call of :func:`hardsight.score`, checked and prepared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from hardsight.data import EmbeddingSource, ExampleSource
from hardsight.data.pixels import PixelOptions
from hardsight.errors import OptionError
from hardsight.heads import Head
from hardsight.models import ClassNames
from hardsight.patch import Patch
from hardsight.preprocessing import Preprocessing
from hardsight.run.score._refit import Refit
from hardsight.run.score._rows import ScorePlan, Scorer


@dataclass(frozen=True)
class ScoreArguments:
    """The arguments of a call of :func:`hardsight.score`, by name and of the same type.

    Ray's driver sends them to its workers, which prepare the same work from them. The docstring of
    the function says what they mean; a test compares the two lists.
    """

    model: str | os.PathLike[str] | nn.Module | Head | Tensor | Any | None
    data: Any
    scores: str | Sequence[str] | None
    head: str | Head | None
    output: int | str | None
    batch_size: int | None
    device: str | torch.device
    out: str | os.PathLike[str] | None
    resume: bool
    overwrite: bool
    weights: str | os.PathLike[str] | None
    split: str | None
    data_root: str | os.PathLike[str] | None
    text_column: str | None
    label_column: str | None
    image_column: str | None
    tokenizer: Any
    max_tokens: int | None
    tokens: bool
    target: Any
    patch: (
        str | os.PathLike[str] | Patch | Sequence[str] | Sequence[os.PathLike[str] | Patch] | None
    )
    rows: Any
    group: str | Sequence[str] | Mapping[str, Any] | None
    labels: Any
    class_weights: Any
    bias: Any
    classes: Sequence[str] | None
    num_classes: int | None
    preprocessing: Preprocessing | None
    size: int | tuple[int, int] | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    channels: int | None
    crop: float | None
    squash: bool | None
    white: float | None
    model_classes: Sequence[str] | str | os.PathLike[str] | None
    class_order: str
    trust_remote_code: bool
    workers: int | None
    precision: str
    sample: str
    out_of_sample: int | None
    strict: bool
    thumbnails: int
    keep_embeddings: bool
    shard_rows: int | None
    seed: int
    engine: str
    ray_address: str | None
    ray_actors: int | tuple[int, int] | None
    ray_cpus: float | None
    ray_gpus: float | None
    show_progress: bool | None


@dataclass(frozen=True)
class Ready:
    """Examples and scorer, ready to run, for any kind of model.

    Attributes:
        source: the examples, as the model takes them.
        scorer: of these examples.
        plan: which scores to compute, without those that the model cannot give.
        names: of the model's outputs, if they are known.
        class_order: how the outputs are matched with the classes of the data.
        about: what the metadata says about the model.
        refit: fits heads to the embeddings before they are scored.
    """

    source: ExampleSource | EmbeddingSource
    scorer: Scorer
    plan: ScorePlan
    names: ClassNames | None
    class_order: str
    about: dict[str, Any]
    refit: Refit | None = None


def refuse(what: str, **options: Any) -> None:
    """Raise if any of ``options`` is set, since none has an effect together with ``what``."""
    named = [name for name, value in options.items() if value is not None]
    if named:
        raise OptionError(f"{', '.join(named)} cannot be used with {what}")


def refuse_pixel_options(options: ScoreArguments) -> None:
    refuse(
        "stored embeddings, which have no pixels; leave it out",
        **PixelOptions(*(getattr(options, name) for name in PixelOptions._fields)).stated(),
        preprocessing=options.preprocessing,
    )


def refuse_folds(count: int) -> NoReturn:
    """Raise an error that says how to score other data than stored embeddings out of sample."""
    raise OptionError(
        "out_of_sample fits heads to stored embeddings; other data needs a model trained for each "
        f"fold: hs.train(..., folds={count}), or `hardsight score --out-of-sample {count} "
        "--recipe recipe.toml`"
    )
