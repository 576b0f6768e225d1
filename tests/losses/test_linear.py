import itertools

import pytest
import torch

from hardsight.errors import (
    GradientError,
    HardsightWarning,
    LabelError,
    NonFiniteError,
    OptionError,
    ShapeError,
)
from hardsight.kernels import tell_of_mixed_dtypes
from hardsight.losses import (
    LinearEncouragingLoss,
    _linear_encouraging,
    avh_loss,
    encouraging_loss,
    linear_avh_loss,
    linear_encouraging_loss,
)
from tests._tensors import LargestTensor


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks that divide neither 23 rows nor 11 classes."""
    monkeypatch.setattr("hardsight.losses._linear.ROWS_AT_ONCE", 5)
    monkeypatch.setattr("hardsight.losses._linear.CLASSES_AT_ONCE", 4)


def head(dtype=torch.float64, rows=23, classes=11):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    w = torch.randn(classes, 6, generator=generator, dtype=torch.float64)
    b = torch.randn(classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[4] = -100
    return x.to(dtype), labels, w.to(dtype), b.to(dtype)


def value_and_grads(loss, *leaves):
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    value = loss(*leaves)
    # a different factor per example, so that a mixed-up row shows
    factors = torch.arange(1.0, 1.0 + value.numel(), dtype=value.dtype).reshape(value.shape)
    return value, torch.autograd.grad((value * factors).sum(), leaves)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_linear_avh_loss_and_its_gradients_equal_the_plain_ones(reduction, weighted):
    x, labels, w, _ = head()
    w[2] = x[0]  # an aligned pair
    labels[0], labels[1] = 2, 2
    options = {
        "scale": 5.0,
        "reduction": reduction,
        "weight": torch.linspace(0.1, 2, 11).double() if weighted else None,
    }
    got = value_and_grads(lambda x, w: linear_avh_loss(x, labels, w, **options), x, w)
    expected = value_and_grads(lambda x, w: avh_loss(x, labels, w, **options), x, w)
    torch.testing.assert_close(got, expected)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"log_end": 1.0},
        {},
        {"bonus_start": 0.5},
        {"bonus": "power"},
        {"log_end": 1.0, "clamp": 0.1},
    ],
)
def test_linear_encouraging_loss_and_its_gradients_equal_the_plain_ones(
    reduction, with_bias, options
):
    x, labels, w, b = head()
    weight = torch.linspace(0.1, 2, 11).double()
    options = options | {"reduction": reduction, "weight": weight}

    def plain(x, w, b=None):
        logits = x @ w.T if b is None else x @ w.T + b
        return encouraging_loss(logits, labels, **options)

    def linear(x, w, b=None):
        return linear_encouraging_loss(x, labels, w, b, **options)

    leaves = (x, w, b) if with_bias else (x, w)
    torch.testing.assert_close(value_and_grads(linear, *leaves), value_and_grads(plain, *leaves))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("wanted", ["embeddings", "class_weights", "bias"])
def test_only_the_gradients_asked_for_are_computed(wanted):
    x, labels, w, b = head()
    leaves = {"embeddings": x, "class_weights": w, "bias": b}
    leaves[wanted].requires_grad_()
    linear_encouraging_loss(x, labels, w, b).backward()
    for name, leaf in leaves.items():
        assert (leaf.grad is not None) == (name == wanted)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_inputs_lose_no_more_than_their_own_rounding(dtype):
    x, labels, w, b = head(dtype)
    exact = [tensor.double() for tensor in (x, w, b)]
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}

    def check(loss, *leaves):
        value, grads = value_and_grads(loss, *leaves)
        assert value.dtype == torch.float32
        assert all(grad.dtype == dtype for grad in grads)
        wide_value, wide_grads = value_and_grads(loss, *exact[: len(leaves)])
        torch.testing.assert_close(value.double(), wide_value, rtol=1e-5, atol=1e-5)
        for grad, wide in zip(grads, wide_grads, strict=True):
            torch.testing.assert_close(grad.double(), wide, **tolerance)

    check(lambda x, w, b: linear_encouraging_loss(x, labels, w, b), x, w, b)
    check(lambda x, w: linear_avh_loss(x, labels, w, scale=4.0), x, w)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("loss", [linear_avh_loss, avh_loss])
def test_embeddings_and_weights_may_differ_in_dtype(loss):
    x, labels, w, _ = head()
    for narrow in (torch.bfloat16, torch.float32):
        value, (x_grad, w_grad) = value_and_grads(
            lambda x, w: loss(x, labels, w, scale=3.0), x.to(narrow), w
        )
        torch.testing.assert_close(value, loss(x.to(narrow).double(), labels, w, scale=3.0))
        assert (x_grad.dtype, w_grad.dtype) == (narrow, torch.float64)


@pytest.mark.usefixtures("small_chunks")
def test_inputs_that_are_not_contiguous_give_the_same():
    x, labels, w, b = head()
    strided = [torch.stack([t, t], dim=-1)[..., 0] for t in (x, w, b)]
    torch.testing.assert_close(
        value_and_grads(lambda x, w, b: linear_encouraging_loss(x, labels, w, b), *strided),
        value_and_grads(lambda x, w, b: linear_encouraging_loss(x, labels, w, b), x, w, b),
    )


def runs():
    x, labels, w, b = head(torch.float32, rows=64, classes=300)
    return {
        "linear avh": lambda: linear_avh_loss(x, labels, w, scale=4.0),
        "linear encouraging": lambda: linear_encouraging_loss(x, labels, w, b),
        "plain avh": lambda: avh_loss(x, labels, w, scale=4.0),
    }, [tensor.requires_grad_() for tensor in (x, w, b)]


@pytest.mark.parametrize("name", ["linear avh", "linear encouraging"])
def test_no_operation_ever_makes_a_tensor_larger_than_a_chunk_or_an_input(name, monkeypatch):
    monkeypatch.setattr("hardsight.losses._linear.ROWS_AT_ONCE", 16)
    monkeypatch.setattr("hardsight.losses._linear.CLASSES_AT_ONCE", 32)
    losses, _ = runs()
    with LargestTensor() as largest:
        losses[name]().backward()
    assert largest.entries <= 300 * 6  # the class weights; N x C would be 19,200
    with LargestTensor() as largest:
        losses["plain avh"]().backward()
    assert largest.entries >= 64 * 300  # the probe can fail


@pytest.mark.parametrize("name", ["linear avh", "linear encouraging"])
def test_saved_for_backward_grows_with_rows_and_classes_but_not_their_product(name):
    def saved(loss):
        sizes = {}

        def pack(tensor):
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            kept_alive = loss()
        return sum(sizes.values()), kept_alive

    losses, _ = runs()
    assert saved(losses[name])[0] < 64 * 300 // 2
    assert saved(losses["plain avh"])[0] >= 64 * 300


def peak_bytes(run):
    """Most bytes allocated at any moment of ``run``, beyond those held before it."""
    # without acc_events some releases of torch warn that they forget the events of earlier cycles
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate(change for _, change in changes))


def test_peak_memory_of_forward_and_backward_stays_far_below_one_matrix(monkeypatch):
    monkeypatch.setattr("hardsight.losses._linear.ROWS_AT_ONCE", 64)
    monkeypatch.setattr("hardsight.losses._linear.CLASSES_AT_ONCE", 64)
    x, labels, w, b = head(torch.float32, rows=256, classes=1024)
    leaves = [tensor.requires_grad_() for tensor in (x, w, b)]
    matrix = 256 * 1024 * 4
    for loss in (
        lambda: linear_avh_loss(x, labels, w, scale=4.0),
        lambda: linear_encouraging_loss(x, labels, w, b),
    ):
        assert peak_bytes(lambda loss=loss: loss().backward()) < matrix / 2
    assert peak_bytes(lambda: avh_loss(x, labels, w, scale=4.0).backward()) > 2 * matrix
    assert all(torch.isfinite(leaf.grad).all() for leaf in leaves)


def test_differentiating_twice_raises_instead_of_a_wrong_number():
    x, labels, w, _ = head()
    x.requires_grad_()
    for loss in (
        linear_avh_loss(x, labels, w, scale=2.0),
        linear_encouraging_loss(x, labels, w, log_end=1.0),
    ):
        with pytest.raises(GradientError, match="differentiable once, got create_graph=True"):
            torch.autograd.grad(loss, x, create_graph=True)


def test_an_empty_batch_follows_cross_entropy():
    x, labels, w, b = head()
    for loss in (
        lambda **o: linear_avh_loss(x[:0], labels[:0], w, scale=1.0, **o),
        lambda **o: linear_encouraging_loss(x[:0], labels[:0], w, b, **o),
    ):
        assert torch.isnan(loss())
        assert loss(reduction="sum") == 0
        assert loss(reduction="none").shape == (0,)


def test_two_classes_and_one_row_work():
    x, _, w, b = head()
    torch.testing.assert_close(
        linear_encouraging_loss(x[:1], torch.tensor([1]), w[:2], b[:2], log_end=1.0),
        ((x[0] @ (w[0] - w[1])) + b[0] - b[1]),
    )


def test_module_shares_weight_and_bias_of_a_given_head():
    layer = torch.nn.Linear(6, 11)
    criterion = LinearEncouragingLoss.from_head(layer, log_end=1.0)
    x, labels, _, _ = head(torch.float32)
    torch.testing.assert_close(
        criterion(x, labels), encouraging_loss(layer(x), labels, log_end=1.0)
    )
    criterion(x, labels).backward()
    assert layer.bias.grad.abs().sum() > 0
    without = LinearEncouragingLoss.from_head(torch.nn.Linear(6, 11, bias=False))
    assert [name for name, _ in without.named_parameters()] == ["class_weights"]


def test_bad_input_raises_what_was_expected():
    x, labels, w, b = head()
    with pytest.raises(OptionError, match="one of 'auto', 'torch', 'triton', got 'cuda'"):
        linear_avh_loss(x, labels, w, scale=1.0, impl="cuda")
    with pytest.raises(OptionError, match="scale to be positive, got 0"):
        linear_avh_loss(x, labels, w, scale=0)
    with pytest.raises(ShapeError, match=r"one bias per class, \[11\], got \[3\]"):
        linear_encouraging_loss(x, labels, w, b[:3])
    with pytest.raises(ShapeError, match=r"one weight per class, \[11\], got \[3\]"):
        linear_encouraging_loss(x, labels, w, weight=b[:3])
    with pytest.raises(ShapeError, match="at least 2 classes"):
        linear_avh_loss(x, torch.zeros(23).long(), w[:1], scale=1.0)
    with pytest.raises(ShapeError, match=r"labels \[4\]"):
        linear_avh_loss(x, labels[:4], w, scale=1.0)
    with pytest.raises(LabelError, match=r"in \[0, 11\), got values from"):
        linear_avh_loss(x, labels + 5, w, scale=1.0, ignore_index=-95)
    with pytest.raises(LabelError, match="soft labels need the loss of logits"):
        linear_encouraging_loss(x, torch.ones(23, 11) / 11, w)
    x[3, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"1 of 23 .* at positions 3;"):
        linear_avh_loss(x, labels, w, scale=1.0, check_finite=True)


def test_module_takes_a_bias_that_is_no_parameter():
    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.eye(3))
            self.register_buffer("bias", torch.tensor([5.0, 0.0, 0.0]))

    head, labels = Frozen(), torch.tensor([0, 1, 2])
    module = LinearEncouragingLoss.from_head(head)
    assert not module.bias.requires_grad
    found = module(torch.eye(3), labels)
    torch.testing.assert_close(found, encouraging_loss(torch.eye(3) + head.bias, labels))


def test_a_negative_label_that_nobody_looks_at_is_not_read_as_the_last_class():
    # on a GPU labels are not looked at
    x, labels, w, _ = head()
    labels = labels.clamp_min(0).index_fill(0, torch.tensor([3]), -1)
    found = _linear_encouraging._log_odds_torch(x, labels, w, None)
    assert torch.equal(found.isnan(), torch.arange(len(x)) == 3)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("log_end", [0.5, 1.0])
def test_smoothed_labels_give_what_the_losses_of_logits_give(reduction, weighted, log_end):
    x, labels, w, b = head()
    options = {
        "label_smoothing": 0.1,
        "reduction": reduction,
        "weight": torch.linspace(0.1, 2, 11).double() if weighted else None,
    }
    got = value_and_grads(
        lambda x, w, b: linear_encouraging_loss(x, labels, w, b, log_end=log_end, **options),
        x, w, b,
    )  # fmt: skip
    expected = value_and_grads(
        lambda x, w, b: encouraging_loss(x @ w.T + b, labels, log_end=log_end, **options), x, w, b
    )
    torch.testing.assert_close(got, expected)
    got = value_and_grads(lambda x, w: linear_avh_loss(x, labels, w, scale=5.0, **options), x, w)
    expected = value_and_grads(lambda x, w: avh_loss(x, labels, w, scale=5.0, **options), x, w)
    torch.testing.assert_close(got, expected)


def test_smoothing_is_cross_entropy_s_beside_a_margin():
    x, labels, w, _ = head()
    kept = labels != -100
    x, labels = x[kept], labels[kept]
    angles = torch.nn.functional.cosine_similarity(x[:, None], w[None], dim=2).arccos()
    logits = -4.0 * (angles + 0.2 * torch.nn.functional.one_hot(labels, 11))
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.3)
    got = linear_avh_loss(x, labels, w, scale=4.0, margin_rad=0.2, label_smoothing=0.3)
    torch.testing.assert_close(got, expected)


@pytest.mark.usefixtures("small_chunks")
def test_smoothing_holds_no_more_than_a_chunk_at_a_time():
    x, labels, w, b = head(rows=400, classes=16)
    leaves = [leaf.requires_grad_() for leaf in (x, w, b)]
    with LargestTensor() as largest:
        value = linear_encouraging_loss(leaves[0], labels, *leaves[1:], label_smoothing=0.1)
        value.backward()
    assert largest.entries == x.numel() < 400 * 16


def test_smoothing_out_of_range_or_over_ranks_is_refused():
    x, labels, w, b = head()
    with pytest.raises(OptionError, match=r"label_smoothing in \[0, 1\], got 1.5"):
        linear_encouraging_loss(x, labels, w, b, label_smoothing=1.5)
    with pytest.raises(OptionError, match="no label_smoothing with process_group"):
        linear_avh_loss(x, labels, w, scale=1.0, label_smoothing=0.1, process_group=object())
    empty = linear_encouraging_loss(x[:0], labels[:0], w, b, label_smoothing=0.1, reduction="sum")
    assert float(empty) == 0


def test_what_mixed_dtypes_cost_is_said_once():
    said = r"embeddings in torch\.float16 and class_weights in torch\.float32.*inside torch\.autoc"
    with pytest.warns(HardsightWarning, match=said):
        tell_of_mixed_dtypes(torch.float16, torch.float32)
    tell_of_mixed_dtypes(torch.float16, torch.float32)  # a second warning would be an error
