"""Checks of tensor arguments, shared by every score and loss.

Written against shapes and dtypes only, so that importing this file loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardsight.errors import LabelError, ShapeError, TensorError

if TYPE_CHECKING:
    from torch import Tensor


def check_tensors(**values: object) -> None:
    """Raise unless every value is a tensor.

    Raises:
        TensorError: one is not, such as a numpy array.
    """
    import torch

    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            raise TensorError(
                f"expected {name} to be a torch.Tensor, got {type(value).__name__}; "
                f"pass torch.as_tensor({name})"
            )


def check_rows(**tensors: Tensor) -> None:
    """Raise unless every tensor has one row per example.

    Raises:
        ShapeError: the tensors differ in length, or one has no rows at all to count.
        TensorError: one is no tensor.
    """
    check_tensors(**tensors)
    if any(tensor.ndim == 0 for tensor in tensors.values()) or (
        len({tensor.shape[0] for tensor in tensors.values()}) > 1
    ):
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise ShapeError(f"expected one row per example in every tensor, got {shapes}")


def check_matrix(**tensors: Tensor) -> None:
    """Raise unless every tensor is a floating-point matrix of at least one column."""
    check_tensors(**tensors)
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            raise ShapeError(f"expected {name} to have 2 dimensions, got {list(tensor.shape)}")
        if tensor.shape[1] == 0:
            raise ShapeError(
                f"expected {name} to have at least one column, got a shape of {list(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            raise ShapeError(f"expected {name} to be floating point, got {tensor.dtype}")


def check_width(embeddings: Tensor, class_weights: Tensor) -> None:
    """Raise unless embeddings ``[N, D]`` and class weights ``[C, D]`` share their width."""
    check_matrix(embeddings=embeddings, class_weights=class_weights)
    if embeddings.shape[1] != class_weights.shape[1]:
        raise ShapeError(
            "expected embeddings [N, D] and class_weights [C, D] of the same width D, got "
            f"embeddings {list(embeddings.shape)}, class_weights {list(class_weights.shape)}"
        )


def check_indices(labels: Tensor) -> None:
    """Raise unless labels are a vector of integers, of whatever value."""
    check_tensors(labels=labels)
    if labels.ndim != 1:
        raise ShapeError(f"expected labels to have 1 dimension, got {list(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex():
        raise LabelError(f"expected labels to be integers, got {labels.dtype}")


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Raise unless labels are integers in ``[0, num_classes)``.

    The range is looked at on the CPU only: on an accelerator that would stop the queue. There a
    label that is no class raises when it is used, or gives NaN.
    """
    check_indices(labels)
    if labels.device.type == "cpu" and labels.numel() and not is_traced(labels):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            raise LabelError(
                f"expected labels in [0, {num_classes}), got values from {low} to {high}"
            )


def is_traced(tensor: Tensor) -> bool:
    """Whether values cannot be read: under ``torch.compile`` or a ``torch.func`` transform."""
    import torch

    return torch.compiler.is_compiling() or is_transformed(tensor)


def is_transformed(tensor: Tensor) -> bool:
    """Whether a ``torch.func`` transform, such as ``vmap``, is at work on ``tensor``."""
    import torch

    if torch.compiler.is_compiling():  # the question itself cannot be traced
        return False
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)
