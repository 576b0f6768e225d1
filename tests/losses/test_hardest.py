import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.errors import NonFiniteError, OptionError, ShapeError, TensorError
from hardsight.losses import Hardest, hardest


def test_mean_of_the_hardest_share_and_a_gradient_to_it_alone():
    losses = torch.tensor([0.1, 3.0, 0.2, 1.0], requires_grad=True)
    value = hardest(losses, keep=0.5)
    torch.testing.assert_close(value, torch.tensor(2.0))
    (grad,) = torch.autograd.grad(value, losses)
    assert grad.tolist() == [0.0, 0.5, 0.0, 0.5]


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40),
    st.integers(1, 100),
)
@settings(max_examples=60, deadline=None)
def test_it_is_the_mean_of_the_sorted_tail(losses, percent):
    count = -(-percent * len(losses) // 100)  # in whole numbers: no rounding to lean on
    expected = np.sort(losses)[::-1][:count].mean()
    got = hardest(torch.tensor(losses, dtype=torch.float64), keep=percent / 100)
    torch.testing.assert_close(got.item(), expected)


def test_of_equal_losses_the_first_are_kept_and_no_more():
    losses = torch.ones(10, requires_grad=True)
    (grad,) = torch.autograd.grad(hardest(losses, keep=0.3, reduction="sum"), losses)
    assert grad.tolist() == [1.0] * 3 + [0.0] * 7


def test_a_share_that_rounds_above_a_whole_number_does_not_add_an_example():
    assert 0.07 * 100 > 7
    assert hardest(torch.ones(100), keep=0.07, reduction="sum") == 7
    assert hardest(torch.ones(3), keep=0.01, reduction="sum") == 1  # at least one


def test_weights_weigh_the_mean_but_do_not_decide_what_is_hard():
    losses, weight = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([1.0, 3.0, 100.0, 1.0])
    got = hardest(losses, keep=0.5, weight=weight)
    torch.testing.assert_close(got, torch.tensor((4 * 1 + 3 * 3) / 4))


def test_an_example_of_weight_0_is_not_counted_even_if_its_loss_is_nan():
    losses = torch.tensor([math.nan, 1.0, 5.0, 2.0, -math.inf], requires_grad=True)
    value = hardest(losses, keep=0.5, weight=torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(value, torch.tensor(3.5))  # 2 of 4
    (grad,) = torch.autograd.grad(value, losses)
    assert grad.tolist() == [0.0, 0.0, 0.5, 0.5, 0.0]


def test_nan_and_infinity_are_the_hardest_and_never_hidden():
    assert torch.isnan(hardest(torch.tensor([9.0, 8.0, math.nan, 7.0]), keep=0.25))
    assert hardest(torch.tensor([9.0, math.inf, 7.0, 8.0]), keep=0.25) == math.inf
    with pytest.raises(NonFiniteError, match="at positions 2;"):
        hardest(torch.tensor([9.0, 8.0, math.nan, 7.0]), keep=0.25, check_finite=True)


def test_an_empty_batch_is_nan_for_the_mean_and_0_for_the_sum():
    assert torch.isnan(hardest(torch.ones(0), keep=0.5))
    assert hardest(torch.ones(0), keep=0.5, reduction="sum") == 0
    assert torch.isnan(hardest(torch.ones(3), keep=0.5, weight=torch.zeros(3)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_averaged_in_float32(dtype):
    losses = torch.full((4096,), 60.0, dtype=dtype, requires_grad=True)  # their sum is above 65504
    value = hardest(losses, keep=0.9)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, torch.tensor(60.0))
    assert torch.autograd.grad(value, losses)[0].dtype == dtype


def test_pixels_are_examples_and_none_keeps_the_shape():
    losses = torch.arange(12.0).reshape(1, 3, 4)
    values = hardest(losses, keep=0.25, reduction="none")
    assert values.shape == losses.shape
    assert values.flatten().tolist() == [0.0] * 9 + [9.0, 10.0, 11.0]


def test_a_share_of_1_is_the_mean_and_its_module_is_its_twin():
    losses = torch.rand(7)
    torch.testing.assert_close(hardest(losses, keep=1.0), losses.mean())
    options = inspect.signature(hardest).parameters
    twin = inspect.signature(Hardest.__init__).parameters
    assert {key: options[key].default for key in list(options)[1:]} == {
        key: twin[key].default for key in list(twin)[1:]
    }
    torch.testing.assert_close(Hardest(keep=0.4)(losses), hardest(losses, keep=0.4))


def test_it_passes_gradcheck_compile_and_vmap():
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    weight = torch.rand(8, generator=generator, dtype=torch.float64)

    def value(losses):
        return hardest(losses, keep=0.6, weight=weight)

    expected = torch.stack([value(batch) for batch in batches])
    torch.testing.assert_close(torch.func.vmap(value)(batches), expected)
    torch.compiler.reset()
    compiled = torch.compile(value, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(batches[0]), expected[0])
    assert torch.autograd.gradcheck(value, (batches[0].clone().requires_grad_(),))


@pytest.mark.parametrize("keep", [0, 0.0, -0.5, 1.5, 32, math.nan, True])
def test_keep_must_be_a_share(keep):
    with pytest.raises(OptionError, match=r"keep to be a share in \(0, 1\], got .*k / N"):
        hardest(torch.ones(4), keep=keep)


def test_what_is_not_one_loss_per_example_is_named():
    with pytest.raises(ShapeError, match=r'a single number; .* reduction="none"'):
        hardest(torch.tensor(1.0), keep=0.5)
    with pytest.raises(ShapeError, match=r"loss_per_example \[4\], weight \[3\]"):
        hardest(torch.ones(4), keep=0.5, weight=torch.ones(3))
    with pytest.raises(ShapeError, match=r"floating point, got torch\.int64"):
        hardest(torch.ones(4).long(), keep=0.5)
    with pytest.raises(TensorError, match=r"to be a torch\.Tensor, got ndarray"):
        hardest(np.ones(4), keep=0.5)
    with pytest.raises(OptionError, match="every weight to be at least 0"):
        hardest(torch.ones(2), keep=0.5, weight=torch.tensor([1.0, -1.0]))
    with pytest.raises(OptionError, match="reduction to be one of"):
        hardest(torch.ones(2), keep=0.5, reduction="avg")
