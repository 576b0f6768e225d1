"""The fused kernels at sizes the interpreter cannot reach, against float64, on a GPU."""

import math

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# (rows, width, classes): alternating groups, streamed rows, odd sizes, pointer loads
SIZES = [(1_000, 512, 3_000), (300, 1_024, 2_000), (129, 72, 257), (77, 33, 50)]
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
    logits = x.double() @ w.double().T
    for found in (
        head_statistics(x, labels, w, logits=False),
        head_statistics(x, labels, w),
    ):
        total = angles.masked_fill(own, 0).sum(dim=1)
        torch.testing.assert_close(found.other_angle_total, total.float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(found.target_angle, angles[own].float(), rtol=0, atol=2e-6)
        nearest = angles.masked_fill(own, math.inf).amin(dim=1)
        torch.testing.assert_close(found.nearest_other, nearest.float(), rtol=0, atol=2e-6)
    torch.testing.assert_close(
        found.logsumexp, logits.logsumexp(dim=1).float(), rtol=2e-6, atol=1e-4
    )


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
    from hardsight.kernels import avh_loss

    x, labels, w, _ = head(512, 512, 20_000, torch.bfloat16)
    w = w.repeat(10, 1)
    x.requires_grad_()
    w.requires_grad_()
    torch.autograd.grad(avh_loss(x, labels, w, scale=16).sum(), (x, w))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    grads = torch.autograd.grad(avh_loss(x, labels, w, scale=16).sum(), (x, w))
    kept = sum(grad.numel() * grad.element_size() for grad in grads)
    extra = torch.cuda.max_memory_allocated() - before - kept
    assert extra < 64 << 20  # the matrix alone is 195 MiB
