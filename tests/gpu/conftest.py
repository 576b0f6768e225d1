"""Everything here needs a CUDA device: left out by default, and skipped, with why, without one."""

from pathlib import Path

import pytest
import torch


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at markers
def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    missing = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(missing)
