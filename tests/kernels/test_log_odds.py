import math

import pytest
import torch

from hardsight.kernels import _log_odds, angular_log_odds, linear_log_odds

# Slopes are rounded to the dtype of the inputs before they are multiplied and summed.
GRADIENT = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def reference(logits, own):
    others = logits.masked_fill(own, -math.inf).logsumexp(dim=1)
    return logits[own] - others


def relative_error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


def angular_gradients(head, angles64, scale):
    x = head.embeddings.double().requires_grad_()
    w = head.class_weights.double().requires_grad_()
    log_odds = reference(-scale * angles64(x, w), head.own)
    (log_odds * head.weights).sum().backward()
    return log_odds.detach(), x.grad, w.grad


def test_angular_log_odds_match_float64(make_head, angles64, rows, width, classes, dtype):
    check_angular(make_head(rows, width, classes, dtype), angles64, scale=4.0)


def test_a_large_scale_needs_a_running_maximum(make_head, angles64):
    check_angular(make_head(33, 17, 65, torch.float32), angles64, scale=60.0)
    check_angular(make_head(33, 17, 65, torch.bfloat16), angles64, scale=60.0)


def check_angular(head, angles64, *, scale):
    dtype = head.embeddings.dtype
    expected, x_grad, w_grad = angular_gradients(head, angles64, scale)
    x = head.embeddings.clone().requires_grad_()
    w = head.class_weights.clone().requires_grad_()
    found = angular_log_odds(x, head.labels, w, scale=scale)
    # an angle is right to 3e-7, and the scale multiplies it
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6 * scale)
    (found * head.weights).sum().backward()
    assert x.grad.dtype == w.grad.dtype == dtype
    assert relative_error(x.grad, x_grad) < GRADIENT[dtype]
    assert relative_error(w.grad, w_grad) < GRADIENT[dtype]


def test_linear_log_odds_match_float64(make_head, rows, width, classes, dtype):
    head = make_head(rows, width, classes, dtype)
    inputs = [head.embeddings, head.class_weights, head.bias]
    x64, w64, b64 = (tensor.double().requires_grad_() for tensor in inputs)
    expected = reference(x64 @ w64.T + b64, head.own)
    (expected * head.weights).sum().backward()
    x, w, b = (tensor.clone().requires_grad_() for tensor in inputs)
    found = linear_log_odds(x, head.labels, w, b)
    torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-5, atol=2e-5)
    (found * head.weights).sum().backward()
    for got, want in ((x, x64), (w, w64), (b, b64)):
        assert relative_error(got.grad, want.grad) < GRADIENT[dtype]


@pytest.mark.parametrize("needed", range(3))
def test_one_input_alone_can_require_its_gradient(make_head, needed):
    head = make_head(9, 12, 20, torch.float32)
    inputs = [head.embeddings, head.class_weights, head.bias]
    every = [tensor.clone().requires_grad_() for tensor in inputs]
    linear_log_odds(every[0], head.labels, *every[1:]).sum().backward()
    single = [tensor.clone().requires_grad_(place == needed) for place, tensor in enumerate(inputs)]
    linear_log_odds(single[0], head.labels, *single[1:]).sum().backward()
    assert [tensor.grad is not None for tensor in single] == [place == needed for place in range(3)]
    assert torch.equal(single[needed].grad, every[needed].grad)


@pytest.mark.parametrize("needed", range(2))
def test_one_input_of_angular_log_odds_alone_can_require_its_gradient(make_head, needed):
    head = make_head(9, 12, 20, torch.float32)
    inputs = [head.embeddings, head.class_weights]
    every = [tensor.clone().requires_grad_() for tensor in inputs]
    angular_log_odds(every[0], head.labels, every[1], scale=4).sum().backward()
    single = [tensor.clone().requires_grad_(place == needed) for place, tensor in enumerate(inputs)]
    angular_log_odds(single[0], head.labels, single[1], scale=4).sum().backward()
    assert single[1 - needed].grad is None
    assert torch.equal(single[needed].grad, every[needed].grad)


@pytest.mark.parametrize("function", ["angular", "linear"])
def test_gradients_in_chunks_equal_gradients_at_once(make_head, monkeypatch, function):
    head = make_head(10, 16, 300, torch.float32)

    def gradients():
        x = head.embeddings.clone().requires_grad_()
        w = head.class_weights.clone().requires_grad_()
        if function == "angular":
            angular_log_odds(x, head.labels, w, scale=8).sum().backward()
        else:
            linear_log_odds(x, head.labels, w).sum().backward()
        return x.grad, w.grad

    at_once = gradients()
    monkeypatch.setattr(_log_odds, "CHUNK_BYTES", 1)  # one tile of classes at a time
    for chunked, whole in zip(gradients(), at_once, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)


def test_repeated_gradients_are_equal_bit_for_bit(make_head):
    head = make_head(40, 16, 90, torch.bfloat16)
    labels = head.labels % 7  # many examples of one class

    def gradients():
        x = head.embeddings.clone().requires_grad_()
        w = head.class_weights.clone().requires_grad_()
        return torch.autograd.grad(angular_log_odds(x, labels, w, scale=8).sum(), (x, w))

    for first, second in zip(gradients(), gradients(), strict=True):
        assert torch.equal(first, second)


def test_many_examples_of_one_class_all_reach_its_gradient(make_head, angles64):
    head = make_head(40, 16, 50, torch.float32)
    head.labels = head.labels % 3
    head.own = torch.nn.functional.one_hot(head.labels, 50).bool()
    _, _, expected = angular_gradients(head, angles64, 4.0)
    w = head.class_weights.clone().requires_grad_()
    log_odds = angular_log_odds(head.embeddings, head.labels, w, scale=4.0)
    (log_odds * head.weights).sum().backward()
    assert relative_error(w.grad, expected) < 1e-5


# labels of 300 examples: one class; shares that end inside runs of 64 and at their ends; one that
# is no class before the others and after them
SHARES = [[300], [64, 64, 172], [1, 127, 128, 44], [63, 2, 190, 45], [10] * 29 + [10]]


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("first", [-1, 0], ids=["some-ignored", "all-classes"])
def test_classes_with_many_examples_are_summed_in_runs(launching, angles64, shares, first):
    generator = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(first, first + len(shares)), torch.tensor(shares))
    labels = labels[torch.randperm(300, generator=generator)]
    x = torch.randn(300, 5, generator=generator)
    w = torch.randn(30, 5, generator=generator)
    pull = torch.randn(300, generator=generator)
    gathered = torch.randn(30, 5, generator=generator)
    w64 = w.double().requires_grad_()
    known = labels >= 0
    angles = angles64(x.double(), w64)[torch.arange(300), labels]
    (own,) = torch.autograd.grad((-angles * pull * known).sum(), w64)
    w_inverse = 1 / w.norm(dim=1)
    tangent = gathered - (gathered * w).sum(dim=1, keepdim=True) * w * w_inverse[:, None] ** 2
    launching.portable.finish(
        gathered, None, x, labels, w, x_inverse=1 / x.norm(dim=1), w_inverse=w_inverse,
        sines=angles.detach().sin().float(), factors=pull / 4, scale=4.0,
    )  # fmt: skip
    torch.testing.assert_close(gathered, tangent + own.float(), rtol=1e-5, atol=2e-5)


def test_an_aligned_example_has_a_finite_gradient_and_none_from_its_own_class():
    w = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], requires_grad=True)
    x = torch.tensor([[2.0, 0.0, 0.0]], requires_grad=True)
    angular_log_odds(x, torch.tensor([0]), w, scale=4).sum().backward()
    # the other class pushes away at 4 per radian, at distance 2; its own class is at its best
    torch.testing.assert_close(x.grad, torch.tensor([[0.0, -2.0, 0.0]]))
    torch.testing.assert_close(w.grad[0], torch.zeros(3))


def test_a_nearly_aligned_example_is_pulled_at_full_strength():
    w = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    x = torch.tensor([[1.0, 1e-5, 0.0]], requires_grad=True)
    angular_log_odds(x, torch.tensor([0]), w, scale=4).sum().backward()
    torch.testing.assert_close(x.grad[0, 1].item(), -4.0, rtol=1e-4, atol=0)


@pytest.mark.parametrize("angle", [1e-8, 1e-7, 1e-6, 1e-4, 1e-2, 1.0, 3.1, 3.14159])
def test_a_class_weight_is_pulled_towards_its_example_at_full_strength_and_never_more(angle):
    generator = torch.Generator().manual_seed(0)
    along, aside = torch.linalg.qr(torch.randn(64, 2, generator=generator).double())[0].T
    x = (3 * (math.cos(angle) * along + math.sin(angle) * aside)).float()[None]
    w = torch.stack([2 * along, torch.zeros(64)]).float().requires_grad_()
    angular_log_odds(x, torch.tensor([0]), w, scale=4).sum().backward()
    # 4 per radian at distance 2; below, x and its class weight differ by their rounding alone
    strength = w.grad[0].norm().item() / 2
    assert strength < 1.5
    if angle >= 1e-4:
        assert strength == pytest.approx(1, abs=1e-6 / math.sin(angle) + 1e-6)
        assert w.grad[0].double() @ aside == pytest.approx(2 * strength, rel=1e-2)


def test_zero_vectors_receive_no_gradient():
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    w = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]], requires_grad=True)
    found = angular_log_odds(x, torch.tensor([1, 0]), w, scale=4)
    found.sum().backward()
    torch.testing.assert_close(found[0].item(), -math.log(2))
    assert torch.equal(x.grad[0], torch.zeros(2))
    assert torch.equal(w.grad[0], torch.zeros(2))
    assert x.grad.isfinite().all()
    assert w.grad.isfinite().all()


def test_duplicate_classes_aligned_with_an_example_have_bounded_gradients():
    w = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    x = torch.tensor([[3.0, 0.0]], requires_grad=True)
    found = angular_log_odds(x, torch.tensor([0]), w, scale=30)
    found.sum().backward()
    torch.testing.assert_close(found.item(), 0.0, rtol=0, atol=2e-2)  # 30 * 3e-4 rad
    assert x.grad.isfinite().all()
    assert w.grad.isfinite().all()


def test_ignored_examples_take_no_part(make_head):
    head = make_head(12, 8, 30, torch.float32)
    labels = head.labels.clone()
    labels[::3] = -100
    x = head.embeddings.clone().requires_grad_()
    w = head.class_weights.clone().requires_grad_()
    found = linear_log_odds(x, labels, w)
    found.sum().backward()
    kept = labels >= 0
    w_alone = head.class_weights.clone().requires_grad_()
    alone = linear_log_odds(head.embeddings[kept], labels[kept], w_alone)
    alone.sum().backward()
    torch.testing.assert_close(found[kept], alone)
    assert torch.equal(found[~kept], torch.zeros(4))
    assert torch.equal(x.grad[~kept], torch.zeros(4, 8))
    torch.testing.assert_close(w.grad, w_alone.grad)


def test_strided_inputs_have_the_gradients_of_contiguous_ones(make_head):
    head = make_head(10, 16, 40, torch.float32)

    def gradients(x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad(angular_log_odds(x, head.labels, w, scale=4).sum(), (x, w))

    expected = gradients(head.embeddings, head.class_weights)
    found = gradients(head.embeddings.T.contiguous().T, head.class_weights.T.contiguous().T)
    for first, second in zip(found, expected, strict=True):
        torch.testing.assert_close(first, second)


def test_a_compiled_model_with_the_fused_loss_trains_as_an_eager_one(make_head):
    head = make_head(6, 10, 20, torch.float32)

    def loss(x, w):
        return torch.nn.functional.softplus(
            -angular_log_odds(x, head.labels, w, scale=4) + linear_log_odds(x, head.labels, w)
        ).mean()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    grads = []
    for function in (loss, compiled):
        x = head.embeddings.clone().requires_grad_()
        w = head.class_weights.clone().requires_grad_()
        grads.append(torch.autograd.grad(function(x, w), (x, w)))
    for eager, traced in zip(*grads, strict=True):
        torch.testing.assert_close(traced, eager)


def test_the_operators_pass_the_checks_of_torch(make_head):
    head = make_head(4, 8, 12, torch.float32)
    x = head.embeddings.requires_grad_()
    w = head.class_weights.requires_grad_()
    ops = torch.ops.hardsight
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for reduction in ([], [-100.0, 0.5, 0.75, 1.0]):
        given = (x, head.labels, w)
        torch.library.opcheck(
            ops.angular_log_odds.default, (*given, 4.0, reduction), test_utils=checks
        )
        torch.library.opcheck(
            ops.linear_log_odds.default, (*given, head.bias, reduction), test_utils=checks
        )
    torch.library.opcheck(
        ops.head_statistics.default,
        (x.detach(), head.labels, w.detach(), head.bias, True, True),
        test_utils=checks,
    )


def test_strided_labels_of_any_integer_type_and_a_strided_bias_are_read_right(make_head):
    head = make_head(10, 8, 20, torch.float32)
    expected = linear_log_odds(head.embeddings, head.labels, head.class_weights, head.bias)
    labels = torch.stack([head.labels, head.labels + 1], dim=1).to(torch.uint8)[:, 0]
    bias = torch.stack([head.bias, head.bias + 1], dim=1)[:, 0]
    found = linear_log_odds(head.embeddings, labels, head.class_weights, bias)
    assert torch.equal(found, expected)
    angular = [
        angular_log_odds(head.embeddings, which, head.class_weights, scale=4)
        for which in (labels, head.labels)
    ]
    assert torch.equal(*angular)


@pytest.mark.parametrize("wrong", [20, -2])
def test_a_label_that_is_no_class_gives_nan_where_nothing_checks_it(make_head, wrong):
    # on a device the labels are not looked at before the kernels run
    head = make_head(10, 8, 20, torch.float32)
    labels = head.labels.clone()
    labels[3] = wrong
    x = head.embeddings.clone().requires_grad_()
    w = head.class_weights.clone().requires_grad_()
    found = torch.ops.hardsight.angular_log_odds(x, labels, w, 4.0, [])[0]
    assert torch.equal(found.isnan(), torch.arange(10) == 3)
    found.sum().backward()
    assert x.grad[:3].isfinite().all()
    statistics = torch.ops.hardsight.head_statistics(
        head.embeddings, labels, head.class_weights, None, True, False
    )
    for place in (0, 4, 5):  # target angle, log-sum-exp, target logit
        assert torch.equal(statistics[place].isnan(), torch.arange(10) == 3)


def test_ignored_labels_of_8_bits_are_told_from_classes():
    # as uint8, -100 is 156
    embeddings, class_weights = torch.eye(2, 160), torch.eye(160)
    labels = torch.tensor([156, 1])
    expected = linear_log_odds(embeddings, labels, class_weights)
    found = linear_log_odds(embeddings, labels.to(torch.uint8), class_weights)
    torch.testing.assert_close(found, expected)
    assert expected[0] != 0


def test_the_mean_over_many_half_precision_rows_does_not_overflow_the_weight_gradient():
    # every row pulls on both classes by 200: their sum is beyond float16, their mean is not
    rows = 512
    embeddings = torch.full((rows, 2), 200.0, dtype=torch.float16)
    class_weights = torch.zeros(2, 2, dtype=torch.float16, requires_grad=True)
    labels = torch.zeros(rows, dtype=torch.int64)
    linear_log_odds(embeddings, labels, class_weights).mean().backward()
    expected = torch.tensor([[200.0, 200.0], [-200.0, -200.0]], dtype=torch.float16)
    torch.testing.assert_close(class_weights.grad, expected)


@pytest.mark.parametrize("wrong", [20, -1])
def test_a_label_that_is_neither_a_class_nor_ignored_gives_nan(make_head, monkeypatch, wrong):
    # on a device the labels are not looked at; -1 often marks an example without a label
    monkeypatch.setattr(_log_odds, "check_labels", lambda labels, classes: None)
    head = make_head(10, 8, 20, torch.float32)
    labels = head.labels.clone()
    labels[3], labels[4] = wrong, -100
    found = linear_log_odds(head.embeddings, labels, head.class_weights, head.bias)
    assert torch.equal(found.isnan(), torch.arange(10) == 3)
    assert found[4] == 0
