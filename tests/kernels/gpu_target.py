"""A GPU that is not there: all that Triton asks of one to compile for it."""

from __future__ import annotations

import warnings
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

    # of Triton 3.9, about what its next version does by default
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION is unset")
    driver.set_active(_Absent(GPUTarget("cuda", capability, 32), shared_memory))
