"""The fused kernels at the sizes they are made for: hardly worse than the plain version."""

import pytest

from benchmarks.kernel_errors import FACTORS, cases, errors


@pytest.mark.parametrize(("work", "shape", "dtype"), list(cases()), ids=str)
def test_errors_against_float64_stay_near_those_of_the_plain_version(work, shape, dtype):
    for value, fused, plain in errors(work, shape, dtype):
        assert fused <= FACTORS[dtype] * plain, value
