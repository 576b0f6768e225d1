"""A GPU that is not there: all that Triton asks of one to compile for it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any


class _Absent:
    """Stands in for the driver of a CUDA device."""

    def __init__(self, target: Any, shared_memory: int) -> None:
        self.target, self.shared_memory = target, shared_memory

    @property
    def utils(self) -> _Absent:
        return self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared_memory}

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def compile_for(capability: int, *, shared_memory: int) -> None:
    """Let ``kernel.warmup`` compile for a device of this compute capability, from here on."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    driver.set_active(_Absent(GPUTarget("cuda", capability, 32), shared_memory))


def answer(compiled: Callable[..., str]) -> None:
    """Answer every line of the standard input with what compiling its words gives."""
    for line in sys.stdin:
        try:
            print(compiled(*line.split()), flush=True)
        except Exception:
            traceback.print_exc()
            print("failed", flush=True)
