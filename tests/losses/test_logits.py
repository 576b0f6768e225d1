"""Every option of a loss of logits follows torch.nn.functional.cross_entropy."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from hardsight.errors import LabelError, NonFiniteError, OptionError, ShapeError
from hardsight.losses import EncouragingLoss, encouraging_loss, focal_loss

# focal loss with gamma 0 is cross-entropy through the same code as every other loss of logits
SHAPES = [((6, 4), (6,)), ((3, 4, 2, 5), (3, 2, 5)), ((4,), ())]
EVERY_OPTION = pytest.mark.parametrize(
    ("label_smoothing", "weighted", "reduction", "shapes"),
    [*itertools.product((0.0, 0.2), (False, True), ("mean", "sum", "none"), SHAPES)],
)


def batch(logits_shape, labels_shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(logits_shape, generator=generator, dtype=torch.float64) * 3
    return logits, torch.randint(0, 4, labels_shape, generator=generator)


def assert_focal_without_gamma_is_cross_entropy(logits, targets, options):
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    assert_same_value_and_gradient(
        focal_loss(ours, targets, gamma=0.0, **options),
        F.cross_entropy(theirs, targets, **options),
        ours,
        theirs,
    )


def assert_same_value_and_gradient(got, expected, logits, inputs_expected):
    torch.testing.assert_close(got, expected, equal_nan=True)
    got_grad = torch.autograd.grad(got.sum(), logits)[0]
    torch.testing.assert_close(got_grad, torch.autograd.grad(expected.sum(), inputs_expected)[0])


@EVERY_OPTION
def test_hard_labels_follow_cross_entropy(shapes, reduction, weighted, label_smoothing):
    logits, labels = batch(*shapes)
    if labels.ndim:
        labels.view(-1)[1] = -7
    weight = torch.tensor([0.5, 2.0, 1.0, 0.1], dtype=torch.float64) if weighted else None
    options = {
        "weight": weight,
        "reduction": reduction,
        "label_smoothing": label_smoothing,
        "ignore_index": -7,
    }
    assert_focal_without_gamma_is_cross_entropy(logits, labels, options)


@EVERY_OPTION
def test_soft_labels_follow_cross_entropy(shapes, reduction, weighted, label_smoothing):
    logits, _ = batch(*shapes)
    probs = torch.rand(shapes[0], generator=torch.Generator().manual_seed(1)).double()
    probs = probs / probs.sum(dim=min(1, probs.ndim - 1), keepdim=True)
    weight = torch.tensor([0.5, 2.0, 1.0, 0.1], dtype=torch.float64) if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": label_smoothing}
    assert_focal_without_gamma_is_cross_entropy(logits, probs, options)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_empty_and_all_ignored_batches_follow_cross_entropy(label_smoothing):
    empty = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    ignored = (torch.zeros(2, 3), torch.full((2,), -100))
    for (logits, labels), reduction in itertools.product((empty, ignored), ("mean", "sum", "none")):
        options = {"reduction": reduction, "label_smoothing": label_smoothing}
        got = encouraging_loss(logits, labels, **options)
        torch.testing.assert_close(got, F.cross_entropy(logits, labels, **options), equal_nan=True)


def test_an_ignored_example_changes_neither_the_mean_nor_a_gradient():
    logits, labels = batch((4, 4), (4,))
    logits.requires_grad_()
    with_ignored = torch.cat([labels[:3], torch.tensor([-100])])
    loss = encouraging_loss(logits, with_ignored)
    torch.testing.assert_close(loss, encouraging_loss(logits[:3], labels[:3]))
    (grad,) = torch.autograd.grad(loss, logits)
    assert grad[3].abs().max() == 0
    assert grad[:3].abs().min() > 0


def test_one_hot_probabilities_equal_class_indices():
    logits, labels = batch((6, 4), (6,))
    soft = F.one_hot(labels, 4).double()
    for log_end in (0.0, 0.5, 0.75, 1.0):
        torch.testing.assert_close(
            encouraging_loss(logits, soft, log_end=log_end),
            encouraging_loss(logits, labels, log_end=log_end),
        )


def test_masked_classes_with_minus_infinite_logits_count_as_absent():
    logits, labels = batch((5, 4), (5,))
    labels = labels.clamp(max=2)
    masked = logits.clone()
    masked[:, 3] = float("-inf")
    masked.requires_grad_()
    loss = encouraging_loss(masked, labels)
    torch.testing.assert_close(loss, encouraging_loss(logits[:, :3], labels))
    assert torch.isfinite(torch.autograd.grad(loss, masked)[0]).all()


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(3).long(), ShapeError, r"labels \[2\].*got \[3\]"),
        (torch.zeros(2, 3), torch.zeros(2, 1).long(), ShapeError, r"got \[2, 1\]"),
        (torch.zeros(2, 3, 4), torch.zeros(2).long(), ShapeError, r"labels \[2, 4\]"),
        (torch.zeros(2, 1), torch.zeros(2).long(), ShapeError, "at least 2 classes"),
        (torch.zeros(()), torch.zeros(()).long(), ShapeError, "at least 2 classes"),
        (torch.zeros(2, 3).long(), torch.zeros(2).long(), ShapeError, "floating point, got"),
        (torch.zeros(2, 3), torch.zeros(2), LabelError, "integers, got torch.float32"),
        (torch.zeros(2, 3), torch.zeros(2, 3).long(), LabelError, "probabilities, got"),
        (
            torch.zeros(2, 3),
            torch.tensor([0, 3]),
            LabelError,
            r"in \[0, 3\), got values from 0 to 3",
        ),
        (torch.zeros(2, 3), torch.tensor([0, -1]), LabelError, r"values from -1 to 0"),
    ],
)
def test_bad_tensors_raise_what_was_expected(logits, labels, error, message):
    with pytest.raises(error, match=message):
        encouraging_loss(logits, labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.5}, r"label_smoothing in \[0, 1\], got 1.5"),
        ({"reduction": "average"}, "reduction to be one of 'mean', 'sum', 'none', got 'average'"),
        ({"log_end": 1.5}, r"log_end in \[0, 1\], got 1.5"),
        ({"bonus_start": 1.0}, r"bonus_start in \[0, 1\) or None, got 1.0"),
        ({"clamp": 1.0}, r"clamp in \[0, 1\), got 1.0"),
        ({"bonus": "exp"}, "bonus to be one of 'log', 'power', 'cosine', got 'exp'"),
        ({"bonus": "power", "power": 0.5}, "power of at least 1"),
    ],
)
def test_bad_options_raise_their_range(options, message):
    with pytest.raises(OptionError, match=message):
        encouraging_loss(torch.zeros(2, 3), torch.zeros(2).long(), **options)


def test_class_weight_of_the_wrong_length_raises():
    with pytest.raises(ShapeError, match=r"one weight per class, \[3\], got \[2\]"):
        encouraging_loss(torch.zeros(2, 3), torch.zeros(2).long(), weight=torch.ones(2))


def test_ignore_index_with_soft_labels_raises():
    with pytest.raises(OptionError, match="no ignore_index with soft labels, got 0"):
        encouraging_loss(torch.zeros(2, 3), torch.ones(2, 3) / 3, ignore_index=0)


def test_check_finite_names_the_examples():
    logits = torch.zeros(12, 3)
    logits[4, 0] = float("nan")
    logits[9, 1] = float("inf")
    labels = torch.zeros(12).long()
    with pytest.raises(NonFiniteError, match=r"2 of 12 .* at positions 4, 9;"):
        encouraging_loss(logits, labels, check_finite=True)
    with pytest.raises(NonFiniteError, match=r"at positions 4, 9;"):
        EncouragingLoss(check_finite=True, reduction="none")(logits, labels)
    assert torch.isnan(encouraging_loss(logits, labels))  # unasked, torch's convention


def test_check_finite_names_pixels_of_an_image():
    logits = torch.zeros(2, 3, 2, 2)
    logits[1, 0, 0, 1] = float("nan")
    with pytest.raises(NonFiniteError, match=r"at positions \(1, 0, 1\);"):
        encouraging_loss(logits, torch.zeros(2, 2, 2).long(), check_finite=True)


def test_check_finite_explains_the_mean_of_no_example():
    with pytest.raises(NonFiniteError, match="no example takes part"):
        encouraging_loss(torch.zeros(2, 3), torch.full((2,), -100), check_finite=True)


def test_check_finite_is_refused_where_values_cannot_be_read():
    def loss(logits):
        return encouraging_loss(logits, torch.zeros(2).long(), check_finite=True)

    with pytest.raises(OptionError, match=r"torch.compile and torch.func"):
        torch.func.grad(loss)(torch.zeros(2, 3))


def test_labels_of_smaller_integer_types_are_accepted():
    logits, labels = batch((6, 4), (6,))
    expected = encouraging_loss(logits, labels)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        torch.testing.assert_close(encouraging_loss(logits, labels.to(dtype)), expected)
