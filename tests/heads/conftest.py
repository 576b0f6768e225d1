from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hardsight.heads import Head, capture, find_head


def _head_that_explains_the_logits(model: nn.Module, inputs: Any, name: str | None = None) -> Head:
    """The head found in the model, after checking the equation on what `capture` returns."""
    head = find_head(model, inputs, name=name)
    with torch.no_grad(), capture(model, head) as forward:
        embeddings, logits = forward(inputs)
    product = embeddings.double() @ head.weight.double().T
    if head.bias is not None:
        product = product + head.bias.double()
    torch.testing.assert_close(product, logits.double(), rtol=1e-4, atol=1e-4)
    return head


@pytest.fixture
def explained_head():
    return _head_that_explains_the_logits


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class TwoLayers(nn.Module):
    """A body and a head, returned as `wrap` says."""

    def __init__(self, wrap=lambda logits: logits) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.fc = nn.Linear(8, 3)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.fc(self.body(x).relu()))


@pytest.fixture
def two_layers():
    return TwoLayers
