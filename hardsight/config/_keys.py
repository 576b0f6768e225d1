"""Keyword types for editors, which cannot see settings made at run time.

``Settings`` makes its fields from the signature of a function when a class is defined. Editors and
type checkers do not run that, so the keys are written out here; a test compares the two.
"""

# no ``from __future__ import annotations``: as text, ``Required`` would not count in Python 3.11
from typing import Required, TypedDict


class _ModelKeys(TypedDict, total=False):
    """Settings of a model, its data and its run."""

    data: Required[str]
    weights: str | None
    head: str | None
    output: int | str | None
    out: str | None
    resume: bool
    overwrite: bool
    split: str | None
    data_root: str | None
    group: str | tuple[str, ...] | None
    classes: tuple[str, ...] | None
    num_classes: int | None
    size: int | tuple[int, int] | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    channels: int | None
    crop: float | None
    squash: bool | None
    white: float | None
    model_classes: tuple[str, ...] | str | None
    class_order: str
    trust_remote_code: bool
    batch_size: int | None
    workers: int | None
    device: str
    seed: int


class ScoreKeys(_ModelKeys, total=False):
    """The settings of :class:`ScoreConfig`."""

    model: str | None
    scores: str | tuple[str, ...] | None
    text_column: str | None
    label_column: str | None
    image_column: str | None
    tokenizer: str | None
    max_tokens: int | None
    tokens: bool
    target: str | None
    patch: str | tuple[str, ...] | None
    rows: str | None
    labels: str | None
    class_weights: str | None
    bias: str | None
    precision: str
    sample: str
    out_of_sample: int | None
    strict: bool
    thumbnails: int
    keep_embeddings: bool
    shard_rows: int | None
    engine: str
    ray_address: str | None
    ray_actors: int | tuple[int, int] | None
    ray_cpus: float | None
    ray_gpus: float | None


class EvaluateKeys(_ModelKeys, total=False):
    """The settings of :class:`EvaluateConfig`."""

    model: Required[str]
    compare: tuple[str, ...]
    ood: tuple[str, ...]
    train: str | None
    ood_split: str | None
    train_split: str | None
    text_column: str | None
    label_column: str | None
    epsilons: tuple[float, ...] | None
    epsilons_l2: tuple[float, ...] | None
    attack_steps: int
    ensemble_steps: int
    attack_examples: int
    explain_examples: int
    cam_layer: str | None
    feature_examples: int
    map_examples: int
    validation_share: float
    wanted_error: float
