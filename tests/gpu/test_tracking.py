import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hardsight.tracking import HardnessTracker, _steps

N, BATCH = 400, 32


def run(tracker, device, *, epochs=2, index_device="cpu"):
    torch.manual_seed(0)
    inputs = torch.randn(N, 16)
    labels = torch.randint(5, (N,))
    body, head = nn.Linear(16, 24), nn.Linear(24, 5)
    body, head, inputs, labels = (part.to(device) for part in (body, head, inputs, labels))
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    tracker._head = head
    for _ in range(epochs):
        for index in torch.arange(N).split(BATCH):
            rows = index.to(device)
            embeddings = torch.tanh(body(inputs[rows]))
            logits = head(embeddings)
            tracker.update(index.to(index_device), embeddings, logits, labels[rows])
            optimizer.zero_grad()
            cross_entropy(logits, labels[rows]).backward()
            optimizer.step()
        yield
        tracker.end_epoch()


@pytest.mark.parametrize("index_device", ["cpu", "cuda"])
def test_a_gpu_records_what_a_cpu_records(index_device):
    first, second = HardnessTracker(N), HardnessTracker(N)
    for _ in run(first, "cpu"):
        pass
    for _ in run(second, "cuda", index_device=index_device):
        pass
    for name in _steps.MEASURES:
        np.testing.assert_allclose(
            second.history(name), first.history(name), rtol=2e-3, atol=2e-4, err_msg=name
        )


@contextmanager
def waiting_is_an_error():
    """Let every operation that waits for the device raise."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kept", [1, 20_000, 1 << 30], ids=["large", "often", "never"])
def test_no_step_waits_for_the_device(monkeypatch, kept):
    # whether a step is measured at once, with a few others, or at the end of the epoch
    monkeypatch.setattr(_steps, "_BYTES_AT_ONCE", kept)
    head = nn.Linear(24, 5).cuda()
    tracker = HardnessTracker(N, head=head)
    embeddings = torch.randn(N, 24, device="cuda")
    labels = torch.randint(5, (N,), device="cuda")
    logits = head(embeddings)
    steps = [(i, embeddings[i], logits[i], labels[i]) for i in torch.arange(N).split(BATCH)]
    tracker.update(*steps[0])  # the form of the head is read off the first step, which waits
    torch.cuda.synchronize()
    with waiting_is_an_error():
        for step in steps[1:]:
            tracker.update(*step)
    tracker.end_epoch()
    assert np.isfinite(tracker.history("avh")).all()


def test_the_probe_for_waiting_can_fail():
    with waiting_is_an_error(), pytest.raises(RuntimeError, match="synchronizing"):
        torch.ones(1, device="cuda").item()
