"""The interpreter runs what a compiler refuses; that the portable kernels compile shows here."""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_portable.py")
SCORES = ["merge_angles", "merge_head", "over_classes", "prepare"]
LOSSES = [
    "add_targets", "curve_slopes", "finish", "join_runs", "make_tangent", "merge_log_odds",
    "over_classes", "prepare", "reduce_curve", "slopes",
]  # fmt: skip


@pytest.fixture(scope="module")
def compiler(compiling):
    with compiling(SCRIPT) as script:
        yield script


@pytest.mark.parametrize(("part", "kernels"), [("scores", SCORES), ("losses", LOSSES)])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_the_portable_kernels_compile_for_a_gpu(compiler, kind, part, kernels):
    compiler.tell(kind, part)
    assert compiler.heard().split() == kernels, compiler.errors[-2000:]
