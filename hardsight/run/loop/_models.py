"""From what a user says about a model to the model, its preprocessing and its classes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hardsight.data import EmbeddingSource, ExampleSource
from hardsight.errors import LabelError, OptionError
from hardsight.models import LoadedModel, load_model
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop._random import seeded


def loaded_model(
    model: Any,
    weights: str | os.PathLike[str] | None,
    num_classes: int | None,
    *,
    seed: int,
    device: torch.device,
) -> LoadedModel:
    """The model a user passes or names; what it draws at random comes from ``seed``."""
    if not isinstance(model, str | nn.Module):
        raise OptionError(
            f"images need a model, got {'none' if model is None else type(model).__name__}; pass "
            "an nn.Module or a name such as file.py:factory (--model)"
        )
    with seeded(seed, device):
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


def check_labels_agree(
    known: Sequence[str], found: Sequence[str], *, whose: str, where: str, step: str
) -> None:
    """Raise where a class has one label in one place and another one in another.

    Folders number their classes by name, so that a folder without one of them numbers all behind
    it anew. Classes of different names pass: the same class may be called ``car`` and ``auto``.

    Args:
        known: names of the classes, position = label.
        found: those of other data.
        whose: what ``known`` belongs to, in words.
        where: what ``found`` belongs to.
        step: how to give names, in words.

    Raises:
        LabelError: the next step is to give all names in one order.
    """
    label_of = {name: label for label, name in enumerate(known)}
    for label, name in enumerate(found):
        if label_of.get(name, label) != label:
            raise LabelError(
                f"the class {name!r} is label {label} in {where} and label {label_of[name]} in "
                f"{whose}; pass {step} with all names in one order: {', '.join(known)}"
            )


def class_names(
    source: ExampleSource | EmbeddingSource, count: int, known: Sequence[str] = ()
) -> list[str]:
    """A name for every class of the model, also for those without examples.

    Args:
        source: the data.
        count: how many classes the model has.
        known: their names, where the model tells them.

    Raises:
        LabelError: the data has more classes than the model, or the same in another order.
    """
    names = [str(name) for name in source.classes]
    if count == 1:
        raise LabelError(
            f"the model has 1 output, and {source.spec} needs a logit for each class; where it is "
            "meant for a sigmoid, give its last layer two outputs: torch.cat([-w / 2, w / 2]) as "
            "weight, and the bias likewise"
        )
    if len(names) > count:
        more = ", ..." if len(names) > 10 else ""
        raise LabelError(
            f"{source.spec} has {len(names)} classes, the model {count}; score data with the "
            f"model's classes, or a model with the data's: {', '.join(names[:10])}{more}"
        )
    check_labels_agree(
        known, names, whose="the model", where=source.spec, step="classes= (--classes)"
    )
    return names + [str(index) for index in range(len(names), count)]
