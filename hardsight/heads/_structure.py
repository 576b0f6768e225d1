"""The head of a model that is not run: what its structure alone leaves possible."""

from collections.abc import Iterable, Mapping

from torch import nn

from hardsight.errors import AmbiguousHeadError, HeadNotFoundError
from hardsight.heads._layers import is_linear, is_pointwise, num_outputs, weight_and_bias


def name_from_structure(model: nn.Module, layers: dict[str, nn.Module]) -> str:
    """The head's name where the structure leaves only one possibility.

    A linear layer followed by another one in an ``nn.Sequential`` is none. The rest is narrowed
    down as long as something is left: to layers with the number of outputs the model states for
    itself, to those whose outputs no other layer could take, to dense layers.

    Raises:
        AmbiguousHeadError: more than one layer is left.
        HeadNotFoundError: there is no linear layer.
    """
    linear = {name: layer for name, layer in layers.items() if is_linear(layer)}
    left = [name for name in linear if not _feeds_another(model, name, linear)]
    stated = stated_classes(model)
    for wanted in (
        lambda name: num_outputs(linear[name]) == stated,
        lambda name: not _could_feed_another(name, linear),
        lambda name: not is_pointwise(linear[name]),
    ):
        left = list(filter(wanted, left)) or left
    if len(left) == 1:
        return left[0]
    kind = type(model).__name__
    if not left:
        raise HeadNotFoundError(
            f"{kind} has no linear layer or 1x1 convolution; pass inputs=..., a batch, to look for "
            "a head of another type, or score stored embeddings and class weights"
        )
    widths = {num_outputs(linear[name]) for name in left}
    what = f"have {widths.pop()} outputs" if len(widths) == 1 else "could be the head"
    shown = ", ".join(left) if len(left) <= 6 else f"{', '.join(left[:2])}, ..., {left[-1]}"
    raise AmbiguousHeadError(
        f"{len(left)} linear layers {what} ({shown}) in {kind}; {choose(left[-1])}, or pass "
        "inputs=..., a batch that tells which one makes the logits"
    )


def choose(name: str) -> str:
    """The next step for a user who has to name a layer."""
    return f'pass head="{name}" (to find_head: name="{name}")'


def _feeds_another(model: nn.Module, name: str, linear: Iterable[str]) -> bool:
    """Whether a later part of an enclosing ``nn.Sequential`` holds another linear layer."""
    parts = name.split(".")
    for depth, part in enumerate(parts if name else []):
        above = ".".join(parts[:depth])
        container = model.get_submodule(above)
        if isinstance(container, nn.Sequential):
            order = list(container._modules)
            later = order[order.index(part) + 1 :]
            inside = tuple(f"{above}.{step}.".lstrip(".") for step in later)
            if any(f"{other}.".startswith(inside) for other in linear):
                return True
    return False


def _could_feed_another(name: str, linear: Mapping[str, nn.Module]) -> bool:
    """Whether another linear layer takes as many inputs as this one has outputs."""
    outputs = num_outputs(linear[name])
    return any(
        weight_and_bias(layer)[0].shape[1] == outputs
        for other, layer in linear.items()
        if other != name
    )


def stated_classes(model: nn.Module) -> int | None:
    """The number of classes a model states: Hugging Face ``num_labels``, timm ``num_classes``."""
    config = getattr(model, "config", None)
    stated = getattr(config, "num_labels", getattr(model, "num_classes", None))
    return stated if isinstance(stated, int) else None
