"""What the outputs of a model are called, if the model itself says so."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

_WRAPPERS = ("module", "_orig_mod")  # names by which DataParallel and torch.compile hold a model


@dataclass(frozen=True)
class ClassNames:
    """Names of a model's outputs.

    Attributes:
        names: position = output; empty if nothing names them.
        origin: who says so, in words.
        others: further lists of names in the same order, such as WordNet ids.
        possible: names that nothing states of the model itself: those of a part of it, which count
            if there are as many as outputs; see :attr:`is_guess` for the others.
        is_guess: from nothing but the number of outputs, so that they count only if they match.
    """

    names: tuple[str, ...] = ()
    origin: str = ""
    others: tuple[tuple[str, ...], ...] = ()
    possible: tuple[ClassNames, ...] = ()
    is_guess: bool = False


def own_classes(model: nn.Module, kind: str = "") -> ClassNames:
    """What a module says about its classes.

    Looked for in this order: ``classes`` or ``class_names``, a list of names or a mapping by their
    numbers; ``class_to_idx``; ``id2label``, also of ``config``, as in transformers;
    ``pretrained_cfg["label_names"]``, as in timm. If the module itself says nothing, a part of it
    may, such as a model of transformers in a wrapper that returns its logits alone; and a model of
    timm or torchvision may be one of ImageNet.

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
    return ClassNames(possible=(*_of_parts(model, kind), *_of_imagenet(model)))


def _inside(wrapper: nn.Module) -> nn.Module | None:
    """What DataParallel, or a compiled module, holds."""
    children = dict(wrapper.named_children())
    return next((children[name] for name in _WRAPPERS if set(children) == {name}), None)


def _of_parts(model: nn.Module, kind: str) -> list[ClassNames]:
    """The names that parts of a model state, if all of them state the same."""
    stated = [_stated(part, f"{type(part).__name__} in {kind}") for part in model.modules()]
    found = [names for names in stated if names.names]
    return found[:1] if len({names.names for names in found}) == 1 else []


def _of_imagenet(model: nn.Module) -> Iterator[ClassNames]:
    """Names of the ImageNet classes, if a part of a model is of a package that trains on them."""
    timm, meta = sys.modules.get("timm"), sys.modules.get("torchvision.models._meta")
    for part in model.modules():
        if timm is not None and isinstance(getattr(part, "pretrained_cfg", None), Mapping):
            guess = imagenet_of_timm(timm, part)
            if guess.names:
                yield replace(guess, is_guess=True)
                return
        if meta is not None and type(part).__module__.startswith("torchvision.models."):
            words = tuple(getattr(meta, "_IMAGENET_CATEGORIES", ()))
            yield ClassNames(words, "torchvision's ImageNet", is_guess=True)
            return


def imagenet_of_timm(timm: Any, model: nn.Module) -> ClassNames:
    """Names of the ImageNet that a timm model has as many outputs as, if there is one."""
    subset = timm.data.infer_imagenet_subset(model)
    if subset is None:
        return ClassNames()
    info = timm.data.ImageNetInfo(subset)
    words = tuple(info.label_descriptions())
    return ClassNames(words, f"timm's {subset}", (tuple(info.label_names()),))


def _stated(model: Any, kind: str) -> ClassNames:
    for attribute in ("classes", "class_names"):
        names = _listed(getattr(model, attribute, None))
        if names is not None:
            return named(names, f"{attribute} of {kind}")
    numbers = getattr(model, "class_to_idx", None)
    if isinstance(numbers, Mapping):
        names = _in_order({number: name for name, number in numbers.items()}, len(numbers))
        if names is not None:
            return named(names, f"class_to_idx of {kind}")
    for holder in (getattr(model, "config", None), model):
        labels = getattr(holder, "id2label", None)
        names = _in_order(labels, len(labels)) if isinstance(labels, Mapping) else None
        if names is not None:
            return named(names, f"id2label of {kind}")
    config = getattr(model, "pretrained_cfg", None)
    names = _listed(config.get("label_names")) if isinstance(config, Mapping) else None
    return ClassNames() if names is None else named(names, f"label_names of {kind}")


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


def _listed(value: Any) -> list[str] | None:
    """Names in their order from a list, an array of text or a mapping by their numbers."""
    if isinstance(value, Mapping):
        return _in_order(value, len(value))
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    is_list = isinstance(value, list | tuple) and bool(value)
    return list(value) if is_list and all(isinstance(name, str) for name in value) else None


def _in_order(labels: Mapping[Any, Any], count: int) -> list[str] | None:
    """Names by their number; ``None`` if the numbers are not 0, 1, 2, ... or there are none."""
    try:
        by_number = {int(key): str(value) for key, value in labels.items()}
    except (TypeError, ValueError):
        return None
    if not count or sorted(by_number) != list(range(count)):
        return None
    return [by_number[number] for number in range(count)]
