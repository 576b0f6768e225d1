"""Repeated launches of a compiled kernel without Triton's look-up.

Triton's look-up takes tens of microseconds, more than a small launch. A compiled kernel depends
only on the types of its arguments, its sizes, whether pointers are aligned to 16 bytes, and its
constants. This, and the way to call a compiled kernel, is only known for the releases we tried;
with any other, every launch goes through Triton.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from hardsight.kernels._support import is_interpreted


def is_native() -> bool:
    """Whether Triton's internals are known: a release that we tried, on an NVIDIA GPU."""
    release = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return (3, 6) <= release <= (3, 9) and torch.version.hip is None and not is_interpreted()


NATIVE = is_native()
_MOST = 4096  # number of remembered launches, one for each shape
_compiled: dict[Hashable, tuple[Any, list[Any]]] = {}


def run(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: Sequence[Tensor | None],
    numbers: tuple[float, ...],
    descriptors: tuple[Any, ...] = (),
    /,
    **constants: Any,
) -> None:
    """Launch ``kernel`` on the current stream of the device of the first of ``tensors``.

    Its arguments are descriptors of matrices, then tensors, then numbers; constants and compiler
    options are passed by name.
    """
    first = tensors[0]
    assert first is not None
    device = first.device
    if device.type != "cuda":  # the interpreter
        kernel[grid](*tensors, *numbers, **constants)
        return
    current = torch.cuda.current_device()
    if device.index != current:
        with torch.cuda.device(device):
            run(kernel, grid, tensors, numbers, descriptors, **constants)
        return
    if not NATIVE or _is_watched():
        kernel[grid](*descriptors, *tensors, *numbers, **constants)
        return
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    unaligned = functools.reduce(operator.or_, pointers) % 16 and [p % 16 for p in pointers]
    # Triton specialises on integers that are 1 or divisible by 16, but not on values of floats
    sizes = [number for number in numbers if type(number) is int]
    types = [None if tensor is None else tensor.dtype for tensor in tensors]
    blocks = [(matrix.base.dtype, *matrix.block_shape) for matrix in descriptors]
    key = (
        id(kernel), current, tuple(sizes), tuple(types), tuple(blocks), str(unaligned),
        *constants.values(),
    )  # fmt: skip
    remembered = _compiled.get(key)
    if remembered is None:
        compiled = kernel[grid](*descriptors, *tensors, *numbers, **constants)
        names = kernel.arg_names[len(descriptors) + len(tensors) + len(numbers) :]
        if len(_compiled) >= _MOST:
            _compiled.clear()
        _compiled[key] = compiled, [constants[name] for name in names]
        return
    compiled, rest = remembered
    compiled.run(  # the three None stand for launch metadata and hooks, which only profilers need
        *grid, *(1, 1)[len(grid) - 1 :], torch._C._cuda_getCurrentRawStream(current),
        compiled.function, compiled.packed_metadata, None, None, None,
        *descriptors, *pointers, *numbers, *rest,
    )  # fmt: skip


def _is_watched() -> bool:
    """Whether a Triton profiler watches launches."""
    hooks = triton.knobs.runtime
    return bool(hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls)
