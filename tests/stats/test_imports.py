import subprocess
import sys

import pytest

PROBE = "import sys, {module}; print([m for m in ('torch', 'scipy.stats') if m in sys.modules])"


@pytest.mark.parametrize(
    ("module", "loaded"),
    [("hardsight.stats", "[]"), ("torch, scipy.stats", "['torch', 'scipy.stats']")],
)
def test_statistics_load_neither_torch_nor_scipy_until_used(module, loaded):
    command = [sys.executable, "-c", PROBE.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == loaded
