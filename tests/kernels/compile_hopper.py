"""Compile a Hopper kernel without a GPU; runs in a process of its own."""

import torch

from tests.kernels.gpu_target import compile_for

SHARED_MEMORY = 232_448


def main(kind, mode, width):
    compile_for(90, shared_memory=SHARED_MEMORY)

    from hardsight.kernels import _hopper, _hopper_launch

    nearest = mode.endswith("+class")
    mode = mode.removesuffix("+class")
    x, w = (torch.zeros(count, width, dtype=torch.bfloat16) for count in (256, 512))
    values, labels = torch.zeros(512), torch.zeros(256, dtype=torch.int64)
    flags, slopes = torch.zeros(64, dtype=torch.uint8), torch.zeros(256, 512, dtype=torch.bfloat16)
    if kind == "over_classes":
        ring = _hopper_launch.over_classes_ring(mode, width, nearest=nearest)
    else:
        ring = _hopper_launch.slopes_ring(width)
    common = {"STEPS": width // 64, "STAGES": ring.stages, "ALTERNATE": ring.alternate}
    common |= {"MODE": {"angles": 0, "head": 1, "angular": 2, "linear": 3}[mode], "HAS_BIAS": True}
    common |= {"grid": (1,), "num_warps": 4}
    for _ in range(2):  # the second ones are copies of the first, as in all launches but one
        descriptors = (
            _hopper_launch._rows(x, ring),
            _hopper_launch._described(w, (ring.classes, 64)),
        )
    rest = (values, values, values, labels, flags)
    if kind == "over_classes":
        rest += (values, labels.int(), 256, 512, 2, 1, 2, 1.0)
        common |= {"PARTS": ring.parts, "NEAREST": nearest}
    else:
        rest += (values, values, slopes, 512, 256, 512, 2, 3, 4, 0, 4, 1.0)
    kernel = getattr(_hopper, kind).warmup(*descriptors, *rest, **common)
    assert kernel.metadata.shared <= SHARED_MEMORY, kernel.metadata.shared
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    assert "cp.async.bulk.tensor" in kernel.asm["ptx"]
    print("compiled", kind)
