"""The fused kernels at sizes the interpreter cannot reach, against float64, on a GPU."""

import math

import pytest
import torch

# (rows, width, classes): alternating groups, streamed rows, several blocks of rows for every
# program, odd sizes, pointer loads
SIZES = [
    (1_000, 512, 3_000),
    (300, 1_024, 2_000),
    (20_000, 576, 700),
    (129, 72, 257),
    (77, 33, 50),
]
GRADIENT = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 1e-3}
dtypes = pytest.mark.parametrize("dtype", list(GRADIENT), ids=str)
sizes = pytest.mark.parametrize(("rows", "width", "classes"), SIZES)


def head(rows, width, classes, dtype):
    generator = torch.Generator("cuda").manual_seed(rows)
    x = torch.randn(rows, width, device="cuda", generator=generator)
    w = torch.randn(classes, width, device="cuda", generator=generator)
    labels = torch.randint(classes, (rows,), device="cuda", generator=generator)
    x[: rows // 2] += w[labels[: rows // 2]]  # half of them near their class
    own = torch.nn.functional.one_hot(labels, classes).bool()
    return x.to(dtype), labels, w.to(dtype), own


def angles64(x, w):
    u = x / x.norm(dim=1, keepdim=True)
    v = w / w.norm(dim=1, keepdim=True)
    return torch.acos((u @ v.T).clamp(-1, 1))


def relative_error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@dtypes
@sizes
def test_statistics_match_float64(rows, width, classes, dtype):
    from hardsight.kernels import head_statistics

    x, labels, w, own = head(rows, width, classes, dtype)
    angles = angles64(x.double(), w.double())
    bias = torch.randn(classes, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    logits = x.double() @ w.double().T + bias
    for found in (
        head_statistics(x, labels, w, logits=False),
        head_statistics(x, labels, w, logits=False, nearest_class=True),
        head_statistics(x, labels, w, bias, nearest_class=True),
    ):
        total = angles.masked_fill(own, 0).sum(dim=1)
        torch.testing.assert_close(found.other_angle_total, total.float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(found.target_angle, angles[own].float(), rtol=0, atol=2e-6)
        nearest = angles.masked_fill(own, math.inf).amin(dim=1)
        torch.testing.assert_close(found.nearest_other, nearest.float(), rtol=0, atol=2e-6)
        if found.nearest_other_class is not None:
            picked = angles.gather(1, found.nearest_other_class[:, None]).squeeze(1)
            assert not bool((found.nearest_other_class == labels).any())
            torch.testing.assert_close(picked, nearest, rtol=0, atol=2e-6)
    probs = logits.softmax(dim=1)
    others = probs.masked_fill(own, 0)
    expected = {
        "logsumexp": logits.logsumexp(dim=1),
        "target_logit": logits[own],
        "largest_logit": logits.amax(dim=1),
        "largest_other_logit": logits.masked_fill(own, -math.inf).amax(dim=1),
        "expected_logit": (probs * logits).sum(dim=1),
        "entropy": torch.special.entr(probs).sum(dim=1),
        "other_probability": others.sum(dim=1),
        "other_probability_squares": others.square().sum(dim=1),
    }
    for name, value in expected.items():  # logits reach some hundreds: 1e-4 is their rounding
        torch.testing.assert_close(
            getattr(found, name), value.float(), rtol=1e-5, atol=3e-4, msg=lambda m, n=name: n + m
        )
    picked = logits.gather(1, found.prediction[:, None]).squeeze(1)
    torch.testing.assert_close(picked, logits.amax(dim=1), rtol=0, atol=3e-4)


def test_of_equal_classes_the_first_is_predicted_and_the_nearest():
    from hardsight.kernels import head_statistics

    x, labels, w, _ = head(300, 512, 1_000, torch.bfloat16)
    w = w.repeat(3, 1)  # every class three times, in tiles of either group
    found = head_statistics(x, labels + 2_000, w, nearest_class=True)
    others = found.prediction % 1_000 != labels  # the own class's is summed in another order
    assert int(others.sum()) > 100
    assert int(found.prediction[others].max()) < 1_000
    assert int(found.nearest_other_class.max()) < 1_000


def test_the_nearest_class_is_the_one_of_the_whole_matrix_of_angles():
    from hardsight.kernels import head_statistics

    for width in (512, 1_024):  # rows resident and streamed
        x, labels, w, own = head(2_000, width, 5_000, torch.bfloat16)
        expected = angles64(x.double(), w.double()).masked_fill(own, math.inf).argmin(dim=1)
        for logits in (False, True):
            found = head_statistics(x, labels, w, logits=logits, nearest_class=True)
            # two classes can lie closer together than a float32 tells
            assert int((found.nearest_other_class != expected).sum()) <= 2


@pytest.mark.parametrize("width", [512, 1_024])
def test_a_single_class_has_no_other(width):
    from hardsight.kernels import head_statistics

    x, labels, w, _ = head(5, width, 1, torch.bfloat16)
    found = head_statistics(x, labels, w, nearest_class=True)
    assert torch.equal(found.nearest_other_class, torch.full((5,), -1, device="cuda"))
    assert torch.equal(found.other_probability, torch.zeros(5, device="cuda"))
    assert torch.equal(found.largest_other_logit, torch.full((5,), -math.inf, device="cuda"))
    torch.testing.assert_close(found.logsumexp, found.target_logit)
    assert torch.equal(found.prediction, labels)


@dtypes
@sizes
def test_linear_log_odds_and_gradients_match_float64(rows, width, classes, dtype):
    from hardsight.kernels import linear_log_odds

    x, labels, w, own = head(rows, width, classes, dtype)
    w = w * width**-0.5
    generator = torch.Generator("cuda").manual_seed(1)
    weights = torch.randn(rows, device="cuda", generator=generator)
    bias = torch.randn(classes, device="cuda", generator=generator)
    inputs = [x, w, bias]
    wide = [tensor.double().requires_grad_() for tensor in inputs]
    logits = wide[0] @ wide[1].T + wide[2]
    expected = logits[own] - logits.masked_fill(own, -math.inf).logsumexp(dim=1)
    expected_grads = torch.autograd.grad((expected * weights).sum(), wide)
    narrow = [tensor.detach().requires_grad_() for tensor in inputs]
    found = linear_log_odds(narrow[0], labels, *narrow[1:])
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-4)
    grads = torch.autograd.grad((found * weights).sum(), narrow)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert relative_error(grad, expected_grad) < GRADIENT[dtype]


@dtypes
@sizes
def test_angular_log_odds_and_gradients_match_float64(rows, width, classes, dtype):
    from hardsight.kernels import angular_log_odds

    x, labels, w, own = head(rows, width, classes, dtype)
    weights = torch.randn(rows, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    x64, w64 = x.double().requires_grad_(), w.double().requires_grad_()
    terms = -16 * angles64(x64, w64)
    expected = terms[own] - terms.masked_fill(own, -math.inf).logsumexp(dim=1)
    x64_grad, w64_grad = torch.autograd.grad((expected * weights).sum(), (x64, w64))
    x.requires_grad_()
    w.requires_grad_()
    found = angular_log_odds(x, labels, w, scale=16)
    torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=2e-5)
    x_grad, w_grad = torch.autograd.grad((found * weights).sum(), (x, w))
    assert relative_error(x_grad, x64_grad) < GRADIENT[dtype]
    assert relative_error(w_grad, w64_grad) < GRADIENT[dtype]


@dtypes
@pytest.mark.parametrize(("rows", "width", "classes"), [SIZES[0], SIZES[3], (9_000, 64, 10)])
def test_losses_fused_to_the_last_sum_match_float64(rows, width, classes, dtype):
    from hardsight.kernels import angular_loss, linear_loss
    from hardsight.losses import encouraging_loss, linear_avh_loss

    x, labels, w, _ = head(rows, width, classes, dtype)
    labels[::7] = -100
    w *= width**-0.5
    x64, w64 = (tensor.double().requires_grad_() for tensor in (x, w))
    x.requires_grad_()
    w.requires_grad_()
    logits = x64 @ w64.T
    options = {"scale": 8.0, "margin_rad": 0.1}
    for found, expected in (  # sums: the gradients of a mean are below what float16 can hold
        (
            angular_loss(x, labels, w, **options, mean=False),
            linear_avh_loss(x64, labels, w64, **options, reduction="sum", impl="torch"),
        ),
        (
            linear_loss(x, labels, w, log_end=0.75, mean=False),
            encouraging_loss(logits, labels, log_end=0.75, reduction="sum"),
        ),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
        grads = torch.autograd.grad(found, (x, w))
        for one, other in zip(grads, torch.autograd.grad(expected, (x64, w64)), strict=True):
            assert relative_error(one, other) < GRADIENT[dtype]
        assert not grads[0][::7].any()


def test_an_unseen_label_that_is_no_class_gives_nan_and_reads_nothing():
    from hardsight.kernels import angular_loss, linear_loss

    x, labels, w, _ = head(*SIZES[0], torch.bfloat16)
    labels[5] = SIZES[0][2]
    x.requires_grad_()
    for loss in (angular_loss(x, labels, w, scale=8.0), linear_loss(x, labels, w, log_end=0.75)):
        assert loss.isnan()
        (d_x,) = torch.autograd.grad(loss, x)
        assert torch.equal(d_x.isnan().any(dim=1).nonzero()[:, 0], torch.tensor([5], device="cuda"))


def test_repeated_passes_are_equal_bit_for_bit():
    from hardsight.kernels import angular_log_odds

    x, labels, w, _ = head(4_096, 512, 20_000, torch.bfloat16)
    x.requires_grad_()
    w.requires_grad_()

    def gradients():
        return torch.autograd.grad(angular_log_odds(x, labels, w, scale=16).sum(), (x, w))

    for first, second in zip(gradients(), gradients(), strict=True):
        assert torch.equal(first, second)


def test_memory_does_not_grow_with_the_number_of_classes():
    from hardsight.losses import linear_avh_loss

    x, labels, w, _ = head(512, 512, 20_000, torch.bfloat16)
    w = w.repeat(10, 1)
    x.requires_grad_()
    w.requires_grad_()
    torch.autograd.grad(linear_avh_loss(x, labels, w, scale=16, reduction="sum"), (x, w))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    grads = torch.autograd.grad(linear_avh_loss(x, labels, w, scale=16, reduction="sum"), (x, w))
    kept = sum(grad.numel() * grad.element_size() for grad in grads)
    extra = torch.cuda.max_memory_allocated() - before - kept
    assert extra < 64 << 20  # the matrix alone is 195 MiB
