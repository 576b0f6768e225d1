"""A model that ends in a fused loss, through torch's default compiler; kernels interpreted."""

import pytest
import torch

from hardsight.losses import LinearAVHLoss, LinearEncouragingLoss
from tests._nets import WithLoss

LOSSES = {
    "avh": lambda impl: LinearAVHLoss(50, 16, scale=8.0, impl=impl),
    "encouraging": lambda impl: LinearEncouragingLoss(50, 16, impl=impl),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch when it compiles, and of numpy
@pytest.mark.parametrize("name", LOSSES)
def test_a_compiled_model_with_a_fused_loss_has_the_plain_loss_and_gradients(name):
    torch.compiler.reset()
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 12, generator=draw)
    labels = torch.randint(50, (30,), generator=draw)
    found = {}
    for impl in ("torch", "triton"):
        torch.manual_seed(1)
        model = WithLoss(LOSSES[name](impl), 12, 16)
        runner = torch.compile(model, fullgraph=True) if impl == "triton" else model
        # what an earlier version of the operators left in torch's cache would be taken for theirs
        with torch._inductor.config.patch(force_disable_caches=True):
            value = runner(inputs, labels)
            value.backward()
        found[impl] = [value.detach(), *(one.grad for one in model.parameters())]
    for ours, plain in zip(found["triton"], found["torch"], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)
