"""The tiled pass: the same numbers whatever the tiles, and never a matrix of N by C."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hardsight.errors import LabelError, ShapeError
from hardsight.geometry import pairwise_angles
from hardsight.scores import (
    TiledHead,
    _tiles,
    angular_visual_hardness,
    head_summaries,
    logit_summaries,
    model_confidence,
)
from tests._tensors import LargestTensor


def problem(n=12, num_classes=10, dim=6, seed=0, dtype=torch.float32):
    """Embeddings, labels and a head; some rows aligned, opposite, zero, some confident."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(num_classes, dim, generator=generator)
    x = torch.randn(n, dim, generator=generator)
    labels = torch.randint(0, num_classes, (n,), generator=generator)
    bias = torch.randn(num_classes, generator=generator)
    if n >= 5:
        x[0], x[1], x[2] = 2 * w[labels[0]], -w[labels[1]], 0.0
        x[3], x[4] = 20 * w[labels[3]], w[labels[4]] + 1e-5 * x[4]
    return x.to(dtype), labels, w.to(dtype), bias.to(dtype)


def numpy_summaries(x, labels, w, bias):
    """Every field once more, in float64 numpy from the whole matrix."""
    x, labels, w = x.double().numpy(), labels.numpy(), w.double().numpy()
    rows = np.arange(len(x))
    norms, lengths = np.linalg.norm(x, axis=1), np.linalg.norm(w, axis=1)
    with np.errstate(invalid="ignore"):
        unit = np.nan_to_num(x / norms[:, None])
    chord = np.linalg.norm(unit[:, None] - (w / lengths[:, None])[None], axis=2)
    angles = 2 * np.arcsin(np.clip(chord / 2, 0, 1))
    angles[norms == 0] = np.pi / 2
    logits = x @ w.T + (0 if bias is None else bias.double().numpy())
    log_probs = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
    probs = np.exp(log_probs)
    others = np.ones_like(logits, dtype=bool)
    others[rows, labels] = False
    return {
        "norms": norms,
        "angles.target": angles[rows, labels],
        "angles.others": np.where(others, angles, 0).sum(axis=1),
        "angles.nearest_other": np.where(others, angles, np.inf).min(axis=1),
        "predictions.largest": logits.max(axis=1),
        "predictions.prediction": logits.argmax(axis=1),
        "logits.largest": logits.max(axis=1),
        "logits.prediction": logits.argmax(axis=1),
        "logits.logsumexp": np.logaddexp.reduce(logits, axis=1),
        "logits.entropy": -(probs * log_probs).sum(axis=1),
        "targets.logit": logits[rows, labels],
        "targets.log_prob": log_probs[rows, labels],
        "targets.largest_other": np.where(others, logits, -np.inf).max(axis=1),
        "targets.others_prob": np.where(others, probs, 0).sum(axis=1),
        "targets.others_square": (np.where(others, probs, 0) ** 2).sum(axis=1),
    }


FIELDS = list(numpy_summaries(*problem()))


def field(summaries, name):
    for part in name.split("."):
        summaries = getattr(summaries, part)
    return summaries


def assert_same(got, expected, **tolerance):
    tolerance = {"rtol": 2e-5, "atol": 2e-6, "equal_nan": True} | tolerance
    for name in FIELDS:
        torch.testing.assert_close(
            field(got, name), field(expected, name), **tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_matches_numpy(got, arguments, *, rtol, atol):
    for name, expected in numpy_summaries(*arguments).items():
        np.testing.assert_allclose(
            field(got, name).detach().numpy(), expected, rtol=rtol, atol=atol, err_msg=name
        )


# ------------------------------------------------------------------------- values and tiles


@pytest.mark.parametrize("with_bias", [True, False])
def test_summaries_match_numpy_in_float64(with_bias):
    x, labels, w, bias = problem(n=50, num_classes=20)
    arguments = (x, labels, w, bias if with_bias else None)
    assert_matches_numpy(head_summaries(*arguments), arguments, rtol=2e-5, atol=2e-5)


def test_float64_summaries_match_numpy_to_float64():
    arguments = problem(n=50, num_classes=20, dtype=torch.float64)
    # the arc sine of the reference loses half its digits near pi, on one opposite row
    assert_matches_numpy(head_summaries(*arguments), arguments, rtol=1e-7, atol=1e-7)
    near_pi = numpy_summaries(*arguments)["angles.target"] > 3
    got = head_summaries(*arguments).targets.log_prob.numpy()
    expected = numpy_summaries(*arguments)["targets.log_prob"]
    np.testing.assert_allclose(got[~near_pi], expected[~near_pi], rtol=1e-13, atol=1e-13)


@given(
    n=st.integers(1, 13),
    num_classes=st.integers(2, 17),
    rows_at_once=st.integers(1, 16),
    classes_at_once=st.integers(1, 20),
    seed=st.integers(0, 5),
)
@example(n=12, num_classes=10, rows_at_once=5, classes_at_once=3, seed=0)  # off the tile
@example(n=12, num_classes=10, rows_at_once=12, classes_at_once=1, seed=0)
@example(n=1, num_classes=2, rows_at_once=1, classes_at_once=1, seed=0)
def test_summaries_do_not_depend_on_the_tiles(n, num_classes, rows_at_once, classes_at_once, seed):
    arguments = problem(n=n, num_classes=num_classes, seed=seed)
    whole = head_summaries(*arguments, rows_at_once=n, classes_at_once=num_classes)
    tiled = head_summaries(*arguments, rows_at_once=rows_at_once, classes_at_once=classes_at_once)
    assert_same(tiled, whole)


def test_labels_are_found_in_whichever_tile_they_lie():
    x, _, w, bias = problem(n=10)
    labels = torch.arange(10)
    for classes_at_once in (1, 3, 4, 10, 11):
        got = head_summaries(x, labels, w, bias, classes_at_once=classes_at_once)
        torch.testing.assert_close(
            got.angles.target.double(), pairwise_angles(x, w).double().diagonal()
        )
        torch.testing.assert_close(got.targets.logit, (x @ w.T + bias).diagonal())


def test_small_probabilities_keep_their_digits_through_the_tiles():
    # one logit leads by 30: entropy 31e-13, el2n's parts 1e-13, in float32
    x, w = torch.tensor([[1.0]]), torch.tensor([[0.0], [30.0], [-1.0], [1.0]])
    for labels in (torch.tensor([1]), torch.tensor([0])):
        arguments = (x.double(), labels, w.double(), None)
        expected = head_summaries(*arguments)
        for classes_at_once in (1, 2, 3, 4):
            got = head_summaries(x, labels, w, classes_at_once=classes_at_once)
            for name in ("logits.entropy", "targets.others_prob", "targets.others_square"):
                torch.testing.assert_close(
                    field(got, name).double(), field(expected, name), rtol=1e-5, atol=0
                )


def test_confidences_keep_their_digits_beside_logits_of_ten_thousand():
    x = torch.tensor([[1.0]])
    near, far = torch.tensor([[0.0], [1.0], [-1.0]]), torch.tensor([[1e4], [1e4 + 1], [1e4 - 1]])
    for classes_at_once in (1, 2, 3):
        got, expected = (
            head_summaries(x, torch.tensor([0]), w, classes_at_once=classes_at_once)
            for w in (far, near)
        )
        torch.testing.assert_close(got.targets.log_prob, expected.targets.log_prob)
        torch.testing.assert_close(got.logits.entropy, expected.logits.entropy)


def test_ties_are_predicted_as_the_first_class_whatever_the_label():
    # a prediction that followed the label would call an example without any evidence right
    x, w = torch.zeros(4, 3), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    for classes_at_once in (1, 2, 4):
        got = head_summaries(x, torch.arange(4), w, classes_at_once=classes_at_once)
        assert got.logits.prediction.tolist() == [0, 0, 0, 0]
        alone = head_summaries(
            x, torch.arange(4), w, classes_at_once=classes_at_once, parts=("predictions",)
        )
        assert alone.predictions.prediction.tolist() == [0, 0, 0, 0]
    assert logit_summaries(x[:, :2], torch.tensor([0, 1, 1, 0]))[0].prediction.tolist() == [0] * 4


def test_one_class_alone_has_no_other():
    x, _, w, bias = problem(n=6, num_classes=1)
    got = head_summaries(x, torch.zeros(6, dtype=torch.int64), w, bias)
    assert got.targets.log_prob.tolist() == [0.0] * 6
    assert got.logits.entropy.tolist() == [0.0] * 6
    assert got.targets.largest_other.tolist() == [-math.inf] * 6
    assert got.angles.others.tolist() == [0.0] * 6


@pytest.mark.parametrize("classes_at_once", [1, 2, 3, 10])
@pytest.mark.parametrize("differentiable", [False, True])
def test_classes_masked_by_a_bias_of_minus_infinity_drop_out(classes_at_once, differentiable):
    x, _, w, bias = problem()
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
    masked = torch.tensor([True, True, False, True, False, False, False, False, True, False])
    kept = masked.logical_not().nonzero().squeeze(1)
    x.requires_grad_(differentiable)
    got = head_summaries(
        x, labels, w, bias.masked_fill(masked, -math.inf), classes_at_once=classes_at_once
    )
    own = masked[labels]
    place = (labels[~own][:, None] == kept).nonzero()[:, 1]
    expected = head_summaries(x[~own], place, w[kept], bias[kept])
    for name in ("logits.entropy", "logits.logsumexp", "targets.log_prob", "targets.others_prob",
                 "targets.others_square", "targets.largest_other"):  # fmt: skip
        torch.testing.assert_close(field(got, name)[~own], field(expected, name))
    assert (got.targets.log_prob[own] == -math.inf).all()
    torch.testing.assert_close(got.targets.others_prob[own], torch.ones(int(own.sum())))
    assert got.logits.entropy.isfinite().all()
    assert not masked[got.logits.prediction].any()


def test_no_examples_give_empty_summaries():
    x, labels, w, bias = problem()
    got = head_summaries(x[:0], labels[:0], w, bias, classes_at_once=3)
    assert {name: tuple(field(got, name).shape) for name in FIELDS} == dict.fromkeys(FIELDS, (0,))


def test_only_the_parts_asked_for_are_filled():
    x, labels, w, bias = problem()
    got = head_summaries(x, labels, w, bias, parts=("angles",))
    assert got.angles is not None
    assert (got.norms, got.predictions, got.logits, got.targets) == (None,) * 4
    got = head_summaries(x, labels, w, bias, parts=("predictions",), classes_at_once=3)
    expected = (x @ w.T + bias).max(dim=1)
    assert torch.equal(got.predictions.prediction, expected.indices)
    torch.testing.assert_close(got.predictions.largest, expected.values)
    assert (got.angles, got.logits, got.targets) == (None, None, None)
    got = head_summaries(x, labels, w, bias, parts=("norms",))
    assert got.angles is None
    assert got.norms.shape == (12,)


# ------------------------------------------------------------- in place and differentiable


@pytest.mark.parametrize("classes_at_once", [3, 4, 10, 100])
def test_working_in_place_and_for_autograd_give_the_same(classes_at_once):
    x, labels, w, bias = problem(n=40)
    options = {"classes_at_once": classes_at_once, "rows_at_once": 7}
    plain = head_summaries(x.clone().requires_grad_(), labels, w, bias, **options)
    assert plain.angles.target.requires_grad
    in_place = head_summaries(x, labels, w, bias, **options)
    assert not in_place.angles.target.requires_grad
    assert_same(in_place, plain, rtol=1e-5, atol=1e-6)


def test_logits_and_a_head_give_the_same_summaries():
    x, labels, w, bias = problem(n=40)
    got = head_summaries(x, labels, w, bias)
    logits, targets = logit_summaries(x @ w.T + bias, labels)
    expected = dataclasses.replace(got, logits=logits, targets=targets)
    assert_same(got, expected, rtol=1e-4, atol=1e-5)


def test_a_prepared_head_gives_the_same_on_every_batch():
    x, labels, w, bias = problem(n=40)
    head = TiledHead(w, bias, classes_at_once=4, rows_at_once=16)
    whole = head.summaries(x, labels)
    kept = {name: field(whole, name).clone() for name in FIELDS}
    for rows in (slice(0, 7), slice(7, 31), slice(31, 40)):
        part = head.summaries(x[rows], labels[rows])
        for name in FIELDS:
            torch.testing.assert_close(field(part, name), kept[name][rows], rtol=2e-5, atol=2e-6)
    for name in FIELDS:  # results do not live in the memory that is used again
        assert torch.equal(field(whole, name), kept[name])


def test_a_prepared_head_works_in_and_out_of_inference_mode():
    x, labels, w, bias = problem()
    head = TiledHead(w, bias, classes_at_once=4)
    expected = head.summaries(x, labels)
    with torch.inference_mode():
        assert_same(head.summaries(x, labels), expected)
    assert_same(head.summaries(x, labels), expected)
    fresh = TiledHead(w, bias, classes_at_once=4)
    with torch.inference_mode():
        fresh.summaries(x, labels)
    assert_same(fresh.summaries(x, labels), expected)


@pytest.mark.parametrize("first", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("second", [torch.bfloat16, torch.float32, torch.float64])
def test_embeddings_and_head_may_differ_in_dtype(first, second):
    x, labels, w, bias = problem(n=40)
    x, w, bias = x.to(first), w.to(second), bias.to(second)
    head = TiledHead(w, bias, classes_at_once=4)
    got = head.summaries(x, labels)
    assert got.angles.target.dtype == torch.promote_types(
        torch.promote_types(first, second), torch.float32
    )
    assert_matches_numpy(got, (x, labels, w, bias), rtol=3e-5, atol=3e-5)
    assert_same(head.summaries(x.float(), labels), got, check_dtype=False)


def test_gradients_of_tiles_match_finite_differences():
    x, labels, w, bias = problem(n=4, num_classes=5, dim=3, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (x, w, bias)]
    differentiable = [name for name in FIELDS if not name.endswith(".prediction")]

    def flat(x, w, bias):
        got = head_summaries(x, labels, w, bias, classes_at_once=2, rows_at_once=3)
        return tuple(field(got, name) for name in differentiable)

    assert torch.autograd.gradcheck(flat, leaves)


def test_gradients_do_not_depend_on_the_tiles_and_are_finite():
    slopes = []
    for tiles in ({}, {"classes_at_once": 3, "rows_at_once": 5}):
        x, labels, w, bias = problem()
        leaves = [tensor.requires_grad_() for tensor in (x, w, bias)]
        got = head_summaries(x, labels, w, bias, **tiles)
        fields = [field(got, name) for name in FIELDS if not name.endswith(".prediction")]
        slopes.append(torch.autograd.grad(sum(value.sum() for value in fields), leaves))
    for first, second in zip(*slopes, strict=True):
        assert first.isfinite().all()
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
def test_forward_mode_derivatives_pass_through_the_tiles():
    x, labels, w, _ = problem(n=4, num_classes=5, dtype=torch.float64)
    x = x + 0.1
    tangent = torch.ones_like(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        got = torch.autograd.forward_ad.unpack_dual(angular_visual_hardness(dual, labels, w))
    step = 1e-6
    expected = (
        angular_visual_hardness(x + step, labels, w) - angular_visual_hardness(x - step, labels, w)
    ) / (2 * step)
    torch.testing.assert_close(got.tangent, expected, rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------------------- bad rows


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("differentiable", [False, True])
def test_rows_that_are_not_finite_affect_only_themselves(poison, differentiable):
    x, labels, w, bias = problem(n=12)  # row 4 is nearly aligned, row 1 opposite, row 2 zero
    clean = head_summaries(x, labels, w, bias)
    assert 0 < clean.angles.target[4] < 1e-4
    bad = x.clone()
    bad[5], bad[7, 2] = poison, poison
    good = torch.tensor([row not in (5, 7) for row in range(12)])
    bad.requires_grad_(differentiable)
    for classes_at_once in (3, 10):
        got = head_summaries(bad, labels, w, bias, classes_at_once=classes_at_once)
        for name in FIELDS:
            torch.testing.assert_close(
                field(got, name)[good], field(clean, name)[good], rtol=2e-5, atol=1e-6
            )
        assert not got.logits.logsumexp[~good].isfinite().any()
        assert got.angles.target[~good].isnan().all()


# ------------------------------------------------------------------------- memory and input


def wide_problem(n=300, num_classes=9000, dim=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, dim, generator=generator)
    labels = torch.randint(0, num_classes, (n,), generator=generator)
    return x, labels, torch.randn(num_classes, dim, generator=generator)


def test_no_tensor_is_larger_than_a_tile_or_an_input():
    x, labels, w = wide_problem()
    with LargestTensor() as largest:
        head_summaries(x, labels, w, rows_at_once=64, classes_at_once=512)
    assert largest.entries <= max(64 * 512, w.numel()) < x.shape[0] * w.shape[0] / 50


def test_public_scores_never_hold_all_examples_by_all_classes():
    x, labels, w = wide_problem()
    with LargestTensor() as largest:
        angular_visual_hardness(x, labels, w)
    assert largest.entries <= 1 << 21  # 8 MiB of float32
    with LargestTensor() as whole:  # what the recorder sees of the plain way
        pairwise_angles(x, w)
    assert whole.entries == 300 * 9000


def test_inputs_are_never_written_to():
    arguments = problem()
    before = [tensor.clone() for tensor in arguments]
    for tiles in ({}, {"classes_at_once": 3, "rows_at_once": 5}):
        head_summaries(*arguments, **tiles)
    x, labels, w, bias = arguments
    logits = x @ w.T + bias
    logits_before = logits.clone()
    logit_summaries(logits, labels)
    assert torch.equal(logits, logits_before)
    for tensor, copy in zip(arguments, before, strict=True):
        assert torch.equal(tensor, copy)


def test_summaries_work_under_autocast_as_without():
    arguments = problem()
    expected = head_summaries(*arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = head_summaries(*arguments)
    assert got.angles.target.dtype == torch.float32
    assert_same(got, expected, rtol=0, atol=0)


# --------------------------------------------------------------------------------- errors


def test_a_head_without_classes_is_refused():
    with pytest.raises(ShapeError, match="at least one class, got class_weights with no rows"):
        TiledHead(torch.ones(0, 3))


def test_what_does_not_fit_is_named():
    x, labels, w, _ = problem()
    head = TiledHead(w)
    with pytest.raises(ShapeError, match=r"same width D.*embeddings \[12, 5\]"):
        head.summaries(x[:, :5], labels)
    with pytest.raises(ShapeError, match=r"one row per example.*labels \[3\]"):
        head.summaries(x, labels[:3])
    with pytest.raises(LabelError, match=r"labels in \[0, 10\), got values from 10 to 10"):
        head.summaries(x, torch.full((12,), 10))


@given(st.integers(1, 5), st.integers(1, 200), st.integers(0, 10_000))
def test_the_blockwise_argmax_is_the_first_largest(rows, classes, seed):
    # few values, so that ties within and between blocks are common
    logits = torch.randint(0, 9, (rows, classes), generator=torch.Generator().manual_seed(seed))
    expected = torch.from_numpy(logits.numpy().argmax(axis=1))
    assert torch.equal(_tiles._blockwise_argmax(logits.float()), expected)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_label_that_is_no_class_is_never_taken_for_an_easy_example(wrong):
    # under vmap, as on a GPU, labels are not looked at
    rows, labels = torch.eye(5)[:, None], torch.tensor([[0], [1], [wrong], [3], [4]])
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.vmap(lambda x, y: angular_visual_hardness(x, y, torch.eye(5)))(rows, labels)
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.vmap(model_confidence)(rows, labels)


def test_a_label_in_none_of_several_tiles_has_no_angle():
    # private, because labels are looked at before wherever that is possible
    head = TiledHead(torch.eye(5), parts=("angles",), classes_at_once=2)
    angles = head._rows(torch.eye(5)[:3], torch.tensor([0, -1, 5])).angles
    assert angles.target.isnan().tolist() == [False, True, True]


def test_the_own_angle_is_exact_where_pairs_cannot_be_picked_out():
    weights = torch.eye(4)
    rows = (weights + 1e-5 * weights.roll(1, dims=0))[:, None]
    got = torch.vmap(lambda x, y: angular_visual_hardness(x, y, weights))(
        rows, torch.arange(4)[:, None]
    )
    expected = torch.full((4, 1), 1e-5 / (3 * math.pi / 2))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("count", [3, 20])
def test_the_nearest_classes_are_those_of_the_smallest_angles(count):
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(10, 6, generator=generator)
    x = torch.randn(8, 6, generator=generator)
    x[0] = 3 * w[4] + 1e-4 * torch.eye(6)[0]  # nearer than a cosine in float32 can tell
    x[1], x[2, 0] = 0.0, math.nan
    classes, angles = TiledHead(w).nearest(x, count)
    assert classes.shape == angles.shape == (8, min(count, 10))
    assert (classes[1:3] == -1).all()
    assert angles[1:3].isnan().all()
    known = [0, 3, 4, 5, 6, 7]
    a, b = x[known].double().numpy(), w.double().numpy()
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (a, b))
    apart = np.linalg.norm(a[:, None] - b, axis=2)
    exact = 2 * np.arctan2(apart, np.linalg.norm(a[:, None] + b, axis=2))
    order = np.argsort(exact, axis=1)[:, :count]
    np.testing.assert_array_equal(classes[known], order)
    np.testing.assert_allclose(angles[known], np.take_along_axis(exact, order, 1), atol=1e-6)
