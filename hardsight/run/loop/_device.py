"""Where to compute, and in which precision."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from hardsight.errors import OptionError

PRECISIONS = ("auto", "float32", "bfloat16", "float16")


def chosen_device(name: str) -> torch.device:
    """The device ``name`` stands for; ``auto`` is cuda, else mps, else cpu.

    Raises:
        OptionError: the device does not exist here, or holds no values.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # which meta, of shapes without values, does not have
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as err:
        reason = (str(err) or type(err).__name__).splitlines()[0]
        raise OptionError(
            f"device {name!r} cannot be used here ({reason}); pass device='auto' or 'cpu'"
        ) from err
    return device


def chosen_precision(name: str, device: torch.device) -> str:
    """The precision of the forward pass; ``auto`` is bfloat16 on a GPU that has it.

    Raises:
        OptionError: there is no such precision.
    """
    if name not in PRECISIONS:
        raise OptionError(f"expected precision to be one of {', '.join(PRECISIONS)}, got {name!r}")
    if name != "auto":
        return name
    is_fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if is_fast else "float32"


def chosen_layout(channels_last: bool | None, device: torch.device) -> bool:
    """Whether images lie with channels last: as asked, or on a GPU, where it is faster."""
    return device.type == "cuda" if channels_last is None else channels_last


def forward_context(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Autocast at ``precision``; nothing for float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def chosen_workers(workers: int | None, *, length: int | None) -> int:
    """Loader processes: as asked, or none for small data and half the cores, at most 8, else."""
    if workers is not None:
        return workers
    if length is not None and length < 2048:
        return 0
    return max(1, min(8, (os.cpu_count() or 1) // 2))


def moved(inputs: Any, device: torch.device) -> Any:
    """``inputs`` of any nesting with its tensors on ``device``."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(device, non_blocking=True)
    if isinstance(inputs, dict):
        return {key: moved(value, device) for key, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        parts = [moved(value, device) for value in inputs]
        return type(inputs)(*parts) if hasattr(inputs, "_fields") else type(inputs)(parts)
    if hasattr(inputs, "to"):  # such as a BatchEncoding
        return inputs.to(device)
    return inputs


@contextmanager
def fed_in_its_dtype(model: nn.Module) -> Iterator[None]:
    """A model in half or double precision takes float32 inputs, such as pictures, meanwhile.

    Inputs in another dtype are the user's own choice and stay as they are, and so do those of a
    model whose parameters differ in dtype.
    """
    dtypes = {tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()}
    if len(dtypes) != 1 or dtypes == {torch.float32}:
        yield
        return
    (dtype,) = dtypes

    def cast(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map_only(Tensor, recast, (args, kwargs))

    def recast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor

    handle = model.register_forward_pre_hook(cast, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def borrowed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """A user's model in eval mode on ``device``; given back as it was.

    A model spread over several devices stays where it is.
    """
    modes = [(module, module.training) for module in model.modules()]
    homes = {tensor.device for tensor in chain(model.parameters(), model.buffers())}
    moves = len(homes) == 1 and homes != {device}
    model.eval()
    if moves:
        model.to(device)
    try:
        yield
    finally:
        if moves:
            model.to(homes.pop())
        for module, mode in modes:
            module.training = mode
