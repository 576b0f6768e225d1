"""From what a user says about a model to the model, its preprocessing and its classes."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
from torch import nn

from hardsight.data import EmbeddingSource, ExampleSource
from hardsight.errors import LabelError, OptionError
from hardsight.models import LoadedModel, load_model
from hardsight.preprocessing import Preprocessing


def loaded_model(
    model: Any, weights: str | os.PathLike[str] | None, num_classes: int | None, seed: int
) -> LoadedModel:
    """The model a user passes or names; what it draws at random comes from ``seed``."""
    if not isinstance(model, str | nn.Module):
        raise OptionError(
            f"images need a model, got {type(model).__name__}; pass an nn.Module or a name such "
            "as file.py:factory (--model)"
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return load_model(model, weights=weights, num_classes=num_classes)


def wanted_preprocessing(
    known: Preprocessing,
    size: tuple[int, int] | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> Preprocessing:
    """What the model wants, with the user's own values over it.

    Raises:
        OptionError: a deviation that cannot be divided by.
    """
    if std is not None and not all(value > 0 for value in std):
        raise OptionError(f"expected every std to be above 0, got {std}; 1 leaves pixels alone")
    given = {"size": size, "mean": mean, "std": std}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not changes:
        return known
    origin = f"{', '.join(changes)} as given; otherwise {known.origin}"
    return dataclasses.replace(known, **changes, origin=origin)


def class_names(source: ExampleSource | EmbeddingSource, count: int) -> list[str]:
    """A name for every class of the model, also for those without examples.

    Raises:
        LabelError: the data has more classes than the model.
    """
    names = [str(name) for name in source.classes]
    if len(names) > count:
        raise LabelError(
            f"{source.spec} has {len(names)} classes, the model {count}; score data with the "
            "model's classes, or a model with the data's"
        )
    return names + [str(index) for index in range(len(names), count)]
