"""The stated bound of the fused kernels' errors, on small sizes; full ones need a GPU."""

import pytest

from benchmarks.kernel_errors import FACTORS, errors


@pytest.mark.parametrize("work", ["scores", "AVH loss", "EL"])
def test_errors_against_float64_stay_near_those_of_the_plain_version(work, dtype):
    found = errors(work, (140, 33, 150), dtype, device="cpu")
    assert len(found) >= 3
    for value, fused, plain in found:
        assert 0 < plain < 1e-2, value
        assert fused <= FACTORS[dtype] * plain, value
