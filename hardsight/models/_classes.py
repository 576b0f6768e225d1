"""What the outputs of a model are called, if the model itself says so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

_WRAPPERS = ("module", "_orig_mod")  # names by which DataParallel and torch.compile hold a model


@dataclass(frozen=True)
class ClassNames:
    """Names of a model's outputs.

    Attributes:
        names: position = output; empty if nothing names them.
        origin: who says so, in words.
        others: further lists of names in the same order, such as WordNet ids.
    """

    names: tuple[str, ...] = ()
    origin: str = ""
    others: tuple[tuple[str, ...], ...] = ()


def own_classes(model: nn.Module, kind: str = "") -> ClassNames:
    """What a module says about its classes.

    Looked for in this order: ``classes``, a list of names; ``config.id2label``, as in
    transformers; ``pretrained_cfg["label_names"]``, as in timm.

    Args:
        model: any module, also inside DataParallel or torch.compile.
        kind: how messages call it; its class by default.
    """
    kind = kind or type(model).__name__
    inner: nn.Module | None = model
    while inner is not None:
        stated = _stated(inner, kind)
        if stated.names:
            return stated
        inner = _inside(inner)
    return ClassNames()


def _inside(wrapper: nn.Module) -> nn.Module | None:
    """What DataParallel, or a compiled module, holds."""
    children = dict(wrapper.named_children())
    return next((children[name] for name in _WRAPPERS if set(children) == {name}), None)


def _stated(model: Any, kind: str) -> ClassNames:
    listed: Any = getattr(model, "classes", None)
    if _are_names(listed):
        return named(listed, f"classes of {kind}")
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(labels, Mapping) and labels:
        in_order = _in_order(labels)
        if in_order is not None:
            return named(in_order, f"id2label of {kind}")
    config = getattr(model, "pretrained_cfg", None)
    if isinstance(config, Mapping) and _are_names(config.get("label_names")):
        return named(config["label_names"], f"label_names of {kind}")
    return ClassNames()


def named(names: Sequence[Any], origin: str) -> ClassNames:
    """Names with their origin; none if they are placeholders such as ``LABEL_0``.

    Numbers are kept: the classes of digits are called so.
    """
    texts = tuple(str(name) for name in names)
    return ClassNames() if are_placeholders(texts) else ClassNames(texts, origin)


def are_placeholders(names: Sequence[str]) -> bool:
    """Whether names say no more than their position.

    Example:
        >>> are_placeholders(["LABEL_0", "LABEL_1"]), are_placeholders(["cat", "LABEL_1"])
        (True, False)
    """
    words = re.compile(r"(?:label|class)[ _-]?0*(\d+)", re.IGNORECASE)
    return all(
        (number := words.fullmatch(name)) is not None and int(number[1]) == position
        for position, name in enumerate(names)
    )


def _are_names(value: Any) -> bool:
    is_list = isinstance(value, list | tuple)
    return is_list and bool(value) and all(isinstance(name, str) for name in value)


def _in_order(labels: Mapping[Any, Any]) -> list[str] | None:
    """Names by their number; ``None`` if the numbers are not 0, 1, 2, ..."""
    try:
        by_number = {int(key): str(value) for key, value in labels.items()}
    except (TypeError, ValueError):
        return None
    if sorted(by_number) != list(range(len(labels))):
        return None
    return [by_number[number] for number in range(len(labels))]
