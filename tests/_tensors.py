"""What tests ask of all tensors that a call makes, and of those it is given."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hardsight.errors import ShapeError


class LargestTensor(TorchDispatchMode):
    """Remembers the number of entries of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.entries = max([self.entries, *sizes])
        return result


def head_batch(rows, width, classes):
    """Embeddings, labels and class weights in float64, always the same."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    w = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, classes, (rows,), generator=generator), w


def assert_takes_a_matrix_alone(function, name):
    """A score refuses, by name, what is not a matrix of floating point numbers."""
    with pytest.raises(ShapeError, match=rf"{name} to have 2 dimensions, got \[4\]"):
        function(torch.ones(4))
    with pytest.raises(ShapeError, match=rf"{name} to be floating point, got torch\.int64"):
        function(torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(ShapeError, match=rf"{name} to have at least one column, got .*\[2, 0\]"):
        function(torch.ones(2, 0))
