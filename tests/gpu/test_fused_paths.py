"""Who calls the fused kernels: scoring by itself, and a compiled model with a fused loss."""

import numpy as np
import pytest
import torch
from torch import nn

import hardsight as hs
from hardsight.losses import LinearAVHLoss, LinearEncouragingLoss
from hardsight.scores import _summary
from tests._nets import WithLoss


@pytest.fixture
def fused_calls(monkeypatch):
    """Rows of every call of the fused summaries."""
    rows, original = [], _summary.fused_summaries

    def counted(embeddings, *args, **options):
        rows.append(len(embeddings))
        return original(embeddings, *args, **options)

    monkeypatch.setattr(_summary, "fused_summaries", counted)
    return rows


def test_scoring_stored_embeddings_on_a_gpu_is_fused_and_equal_to_the_plain_scores(fused_calls):
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(700, 96)).astype(np.float32)
    labels = draw.integers(700, size=3_000)
    embeddings = (draw.normal(size=(3_000, 96)) + weights[labels]).astype(np.float32)
    head = torch.from_numpy(weights)
    on_gpu, on_cpu = (
        hs.score(head, torch.from_numpy(embeddings), labels=labels, device=device)
        for device in ("cuda", "cpu")
    )
    assert sum(fused_calls) == 3_000
    assert on_gpu.columns == on_cpu.columns
    for name in ("avh", "target_angle", "feature_norm"):
        np.testing.assert_allclose(on_gpu.column(name), on_cpu.column(name), rtol=2e-5)
    for name in ("model_confidence", "logit_margin", "free_energy", "entropy", "el2n"):
        np.testing.assert_allclose(
            on_gpu.column(name), on_cpu.column(name), rtol=1e-3, atol=1e-3, err_msg=name
        )
    np.testing.assert_array_equal(on_gpu.column("prediction"), on_cpu.column("prediction"))


def test_scoring_a_model_on_a_gpu_is_fused(fused_calls):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    options = {"split": "test", "precision": "float32", "mean": (0.0,), "std": (1.0,)}
    on_gpu, on_cpu = (
        hs.score(model, "builtin:digits", device=device, **options) for device in ("cuda", "cpu")
    )
    assert sum(fused_calls) == len(on_gpu)
    np.testing.assert_allclose(on_gpu.column("avh"), on_cpu.column("avh"), rtol=1e-4)


LOSSES = {
    "avh": lambda impl: LinearAVHLoss(5_000, 64, scale=8.0, impl=impl),
    "encouraging": lambda impl: LinearEncouragingLoss(5_000, 64, impl=impl),
}


@pytest.mark.filterwarnings("ignore")  # torch about itself, when it compiles
@pytest.mark.parametrize("name", LOSSES)
def test_a_compiled_model_with_a_fused_loss_has_the_plain_loss_and_gradients(name):
    torch.manual_seed(0)
    inputs, labels = torch.randn(300, 48, device="cuda"), torch.randint(5_000, (300,)).cuda()
    found = {}
    for impl in ("torch", "triton"):
        torch.manual_seed(1)
        model = WithLoss(LOSSES[name](impl), 48, 64).cuda()
        runner = torch.compile(model, fullgraph=True) if impl == "triton" else model
        value = runner(inputs, labels)
        value.backward()
        found[impl] = [value.detach(), *(one.grad for one in model.parameters())]
    for ours, plain in zip(found["triton"], found["torch"], strict=True):
        assert float((ours - plain).norm() / plain.norm()) < 1e-4
