"""Norms of the gradient: those of float64, in any loop."""

from __future__ import annotations

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn

from hardsight.errors import OptionError
from hardsight.tracking import GradientNorms

# advice of Lightning's that a tiny run on a CPU does not need
pytestmark = pytest.mark.filterwarnings(
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*LeafSpec.* is deprecated:FutureWarning",  # Lightning against a newer torch
)


def steps(net, count, norms=None):
    """Plain steps of a net, and the norms of their gradients in float64."""
    torch.manual_seed(0)
    optimizer, expected = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(count):
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        grads = [p.grad.double().flatten() for p in net.parameters() if p.grad is not None]
        expected.append(float(torch.cat(grads).norm()))
        if norms is not None:
            norms.record(net)
        optimizer.step()
    return np.array(expected)


def test_norms_are_those_of_the_whole_gradient():
    net, norms = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), GradientNorms()
    expected = steps(net, 5, norms)
    np.testing.assert_allclose(norms.values(), expected, rtol=1e-5)
    some = GradientNorms(every=2)
    np.testing.assert_allclose(some.values(), [])
    assert len(steps(net, 5, some)) == 5
    assert len(some.values()) == 3


def test_half_precision_does_not_overflow_and_frozen_parts_count_nothing():
    weight, frozen = nn.Parameter(torch.ones(4).half()), nn.Parameter(torch.ones(2))
    weight.grad = torch.full((4,), 60000.0).half()  # its squares are beyond half precision
    norms = GradientNorms()
    norms.record([weight, frozen])
    norms.record([frozen])
    np.testing.assert_allclose(norms.values(), [60000 * 2, 0], rtol=1e-3)


def test_lightning_records_before_gradients_are_clipped():
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def training_step(self, batch, _):
            return 100 * self.layer(batch[0]).square().sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    norms = GradientNorms()
    data = torch.utils.data.TensorDataset(torch.ones(6, 4))
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1e-3,
        callbacks=[norms.lightning_callback()],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=3))
    assert len(norms.values()) == 2
    assert norms.values().min() > 1


def test_what_cannot_be_recorded_is_refused():
    with pytest.raises(OptionError, match="expected every to be 1 or more, got 0"):
        GradientNorms(every=0)
