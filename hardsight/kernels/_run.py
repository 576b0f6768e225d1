"""Launching a kernel a second time without asking Triton which one it is.

Triton's own look-up costs tens of microseconds, more than a small launch takes. What a compiled
kernel depends on is little: the types of its arguments, whether sizes are 1 or multiples of 16,
whether pointers are aligned to 16 bytes, and its constants.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

_OPTIONS = ("num_warps", "num_stages")
_compiled: dict[Hashable, Any] = {}


def run(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Launch ``kernel`` on the current stream; constants and compiler options by name."""
    if not args_on_gpu(args):  # the interpreter
        kernel[grid](*args, **constants)
        return
    key = (kernel, torch.cuda.current_device(), *constants.values(), *map(_trait, args))
    compiled = _compiled.get(key)
    if compiled is None:
        _compiled[key] = kernel[grid](*args, **constants)
        return
    values = [constants[name] for name in kernel.arg_names[len(args) :]]
    compiled[(*grid, 1, 1)[:3]](*args, *values)


def args_on_gpu(args: tuple[Any, ...]) -> bool:
    """Whether this is a launch on a device; told by the first argument."""
    first = args[0]
    return bool(first.is_cuda if isinstance(first, Tensor) else first.base.is_cuda)


def _trait(value: Any) -> Hashable:
    if type(value) is int:
        return value == 1, value % 16 == 0, value >= 2**31
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if value is None or type(value) is float:
        return type(value)
    return tuple(value.block_shape), value.base.dtype  # a tensor descriptor
