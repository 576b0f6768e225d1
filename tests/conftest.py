"""Settings of every test: the same examples each time, one thread unless told otherwise."""

import os

import torch
from hypothesis import HealthCheck, settings

# No deadline and no check of speed: a busy machine must not turn a test red.
settings.register_profile(
    "hardsight",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hardsight")

# Tensors of tests are tiny: more threads only wait for each other. No test may need one, though.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
