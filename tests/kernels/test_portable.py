"""The interpreter runs what a compiler refuses; that the portable kernels compile shows here."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_portable.py")


SCORES = ["merge_angles", "merge_head", "over_classes", "prepare"]
LOSSES = [
    "add_targets", "curve_slopes", "finish", "join_runs", "make_tangent", "merge_log_odds",
    "over_classes", "prepare", "reduce_curve", "slopes",
]  # fmt: skip


@pytest.mark.parametrize(("part", "kernels"), [("scores", SCORES), ("losses", LOSSES)])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_the_portable_kernels_compile_for_a_gpu(kind, part, kernels, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[2]))
    command = [sys.executable, str(SCRIPT), kind, part]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == kernels, done.stderr[-2000:]
