"""The interpreter runs what a compiler refuses; that the portable kernels compile shows here."""

import subprocess
import sys

import pytest

COMPILE = """
import sys
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Device:
    class utils:
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 101376})

    def get_current_target(self):
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0


driver.set_active(Device())
from hardsight.kernels import _launch

seen = []


def compiled(kernel, grid, *args, **constants):
    kernel.warmup(*args, grid=grid, **constants)
    seen.append(kernel.__name__)


_launch.run = compiled
dtype = getattr(torch, sys.argv[1])
x, w = (torch.zeros(count, 40, dtype=dtype) for count in (200, 20))
labels, rows, bias = torch.zeros(200, dtype=torch.int64), torch.zeros(200), torch.zeros(20)
for mode in ("angles", "head", "angular", "linear"):
    ready = _launch.prepare(x, labels, w, bias if mode in ("head", "linear") else None, mode=mode)
    for nearest in (False, True) if mode in ("angles", "head") else (False,):
        partial, index = _launch.over_classes(
            x, labels, w, None, ready, mode=mode, scale=50.0, nearest=nearest
        )
        if mode == "angles":
            _launch.merge_angles(partial, index, 20, nearest=nearest)
        elif mode == "head":
            _launch.merge_head(partial, index, rows, labels, 20, nearest=nearest)
        else:
            _launch.merge_log_odds(partial, rows, angular_scale=50.0)
for scale in (None, 16.0):
    fill = _launch.slopes(
        x, labels, w, bias if scale is None else None, factors=rows, reference=rows, scale=scale,
        x_inverse=rows, w_inverse=ready.w_inverse,
    )
    fill(torch.zeros(200, 256, dtype=dtype), 0, 20)
_launch.finish_embeddings(torch.zeros(200, 40), x, labels, w, rows)
_launch.finish_weights(torch.zeros_like(w), x, labels, w, rows, rows)
_launch.finish_weights(torch.zeros(100, 40), x, labels, torch.zeros(100, 40), rows, rows)
print(*sorted(set(seen)))
"""


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_the_portable_kernels_compile_for_a_gpu(kind, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    command = [sys.executable, "-c", COMPILE, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [
        "add_targets", "finish_embeddings", "finish_weights", "join_runs", "merge_angles",
        "merge_head", "merge_log_odds", "over_classes", "prepare", "slopes",
    ], done.stderr[-2000:]  # fmt: skip
