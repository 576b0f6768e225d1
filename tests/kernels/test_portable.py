"""The interpreter runs what a compiler refuses; that the portable kernels compile shows here."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_portable.py")


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_the_portable_kernels_compile_for_a_gpu(kind, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[2]))
    command = [sys.executable, str(SCRIPT), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [
        "add_targets", "curve_slopes", "finish", "join_runs", "make_tangent", "merge_angles",
        "merge_head", "merge_log_odds", "over_classes", "prepare", "reduce_curve", "slopes",
    ], done.stderr[-2000:]  # fmt: skip
