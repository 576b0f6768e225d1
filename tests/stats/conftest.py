import numpy as np
import pytest


@pytest.fixture
def noisy_pair():
    """200 pairs that correlate, heavily tied in y, as human selection frequencies are."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=200)
    return x, np.round(np.clip(0.8 + 0.2 * x + 0.2 * generator.normal(size=200), 0, 1), 1)
