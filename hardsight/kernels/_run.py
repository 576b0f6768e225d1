"""Launching a kernel a second time without asking Triton which one it is.

Triton's own look-up costs tens of microseconds, more than a small launch takes. What a compiled
kernel depends on is little: the types of its arguments, whether sizes are 1 or multiples of 16,
whether pointers are aligned to 16 bytes, and its constants. That is so, and a compiled kernel is
called in the same way, in the releases tried; elsewhere every launch goes through Triton.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
import triton
from torch import Tensor

from hardsight.kernels._support import is_interpreted


def is_native() -> bool:
    """Whether internals of Triton can be relied on: releases tried, on a GPU of NVIDIA."""
    release = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return (3, 6) <= release <= (3, 9) and torch.version.hip is None and not is_interpreted()


NATIVE = is_native()
_compiled: dict[Hashable, Any] = {}


def run(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Launch ``kernel`` on the current stream of its first argument's device.

    Constants and compiler options come by name.
    """
    device = (args[0] if isinstance(args[0], Tensor) else args[0].base).device
    if device.type != "cuda":  # the interpreter
        kernel[grid](*args, **constants)
        return
    current = torch.cuda.current_device()
    if device.index != current:
        with torch.cuda.device(device):
            run(kernel, grid, *args, **constants)
        return
    if not NATIVE:
        kernel[grid](*args, **constants)
        return
    key = (kernel, current, *constants.values(), *map(_trait, args))
    found = _compiled.get(key)
    if found is None:
        _compiled[key] = kernel[grid](*args, **constants), kernel.arg_names[len(args) :]
        return
    compiled, names = found
    compiled[(*grid, 1, 1)[:3]](*args, *[constants[name] for name in names])


def _trait(value: Any) -> Hashable:
    if type(value) is int:
        return value == 1, value % 16 == 0, value >= 2**31
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if value is None or type(value) is float:
        return str(type(value))
    return tuple(value.block_shape), value.base.dtype  # a tensor descriptor
