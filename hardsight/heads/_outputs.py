"""Calling a model on whatever it takes, and finding the logits in whatever it returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from hardsight.errors import ModelError


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """The model's output: a mapping is passed as keywords, a tuple or list as positions."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def logits_of(output: Any) -> Tensor:
    """The logits in a model's output.

    Args:
        output: a tensor; anything with ``logits`` as attribute or key (Hugging Face outputs,
            dictionaries, dataclasses, named tuples); a tuple, of which the first tensor with at
            least two dimensions is taken, so that a leading loss is passed over; or a dictionary
            or dataclass that holds exactly one such tensor.

    Returns:
        the tensor as the model gave it, usually ``[B, C]``.

    Raises:
        ModelError: there is no such tensor, or more than one.

    Example:
        >>> import torch
        >>> logits_of({"loss": torch.tensor(0.3), "logits": torch.zeros(2, 10)}).shape
        torch.Size([2, 10])
    """
    if isinstance(output, Tensor):
        return output
    parts = _named_parts(output)
    logits = parts.get("logits")
    if isinstance(logits, Tensor):
        return logits
    found = {name: part for name, part in parts.items() if _may_be_logits(part)}
    ordered = isinstance(output, Sequence)  # a tuple has a first element, a dictionary only names
    if len(found) == 1 or (found and ordered):
        first: Tensor = next(iter(found.values()))
        return first
    held = f" with {', '.join(parts)}" if parts else ""
    count = "several tensors that" if found else "no tensor that"
    raise ModelError(
        f"expected the model to return logits [B, C], got {type(output).__name__}{held}: {count} "
        "could be the logits; wrap the model so that its forward returns them alone or as 'logits'"
    )


def _named_parts(output: Any) -> dict[str, Any]:
    if isinstance(output, Mapping):
        return {str(name): part for name, part in output.items()}
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return dict(zip(output._fields, output, strict=True))
    if isinstance(output, tuple | list):
        return {str(place): part for place, part in enumerate(output)}
    if is_dataclass(output):
        return {field.name: getattr(output, field.name) for field in fields(output)}
    return {"logits": output.logits} if hasattr(output, "logits") else {}


def _may_be_logits(part: Any) -> bool:
    return isinstance(part, Tensor) and part.ndim >= 2 and part.is_floating_point()


def as_rows(logits: Tensor) -> Tensor:
    """Logits ``[B, C]``, also from a map of one pixel, ``[B, C, 1, 1]``.

    Raises:
        ModelError: there is more than one prediction per example, or no class dimension.
    """
    rows = logits.flatten(1) if logits.ndim > 2 and logits[0, 0].numel() == 1 else logits
    if rows.ndim != 2 or not rows.is_floating_point():
        raise ModelError(
            f"expected floating-point logits [B, C] from the model, got {list(logits.shape)} of "
            f"{logits.dtype}; wrap the model so that it returns one row of logits per example"
        )
    return rows
