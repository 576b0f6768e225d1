"""The interpreter runs what a compiler refuses; that the portable kernels compile shows here."""

import pytest

SCORES = ["merge_angles", "merge_head", "over_classes", "prepare"]
LOSSES = [
    "add_targets", "curve_slopes", "finish", "join_runs", "make_tangent", "merge_log_odds",
    "over_classes", "prepare", "reduce_curve", "slopes",
]  # fmt: skip


@pytest.mark.parametrize(("part", "kernels"), [("scores", SCORES), ("losses", LOSSES)])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_the_portable_kernels_compile_for_a_gpu(forks, kind, part, kernels):
    code = f"from tests.kernels.compile_portable import main; main({kind!r}, {part!r})"
    done = forks.run(code, loads="hardsight.kernels._launch")
    assert done.stdout.split() == kernels, done.stderr[-2000:]
