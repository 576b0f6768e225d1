"""Angles and norms against 60-digit arithmetic, at the edges and in their gradients."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hardsight import geometry
from hardsight.errors import LabelError, ShapeError
from hardsight.geometry import (
    angle_between,
    pairwise_angles,
    row_norms,
    target_angles,
    unit_pairwise_angles,
    unit_vectors,
    units_and_norms,
    widen,
    widen_together,
)

PI = float(np.float32(np.pi))  # the largest angle a float32 result may have
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def exact_angle(first, second):
    """The angle between two rows in 60 digits; pi/2 where one is zero."""
    with mpmath.workdps(60):
        u, v = ([mpmath.mpf(entry) for entry in row.double().tolist()] for row in (first, second))
        scale = mpmath.sqrt(mpmath.fdot(u, u) * mpmath.fdot(v, v))
        return float(mpmath.acos(mpmath.fdot(u, v) / scale)) if scale else math.pi / 2


def exact_angles(rows, columns):
    return torch.tensor([[exact_angle(u, v) for v in columns] for u in rows], dtype=torch.float64)


def exact_norms(rows):
    with mpmath.workdps(60):
        return torch.tensor(
            [float(mpmath.norm([mpmath.mpf(e) for e in row.tolist()])) for row in rows.double()],
            dtype=torch.float64,
        )


def edge_rows():
    """Aligned, opposite, duplicate, orthogonal, zero, tiny, huge and ordinary rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 8, generator=generator)
    turned = x[0].roll(1) * torch.tensor([1.0, -1.0] * 4)
    return torch.stack(
        [x[0], x[0], 3 * x[0], -x[0], -7 * x[0], turned, torch.zeros(8), x[1] * 1e-30, x[1] * 1e30,
         -x[1] * 1e30, x[1], x[2], x[0] + 1e-5 * x[1], x[0] + 0.05 * x[2], -x[0] + 1e-5 * x[2]]
    )  # fmt: skip


# ---------------------------------------------------------------------------------- values


def test_pairwise_angles_match_60_digits_on_every_kind_of_edge():
    rows = edge_rows()
    got = pairwise_angles(rows, rows)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact_angles(rows, rows), rtol=0, atol=1e-6)


def test_angle_between_matches_60_digits_on_every_kind_of_edge():
    rows = edge_rows()
    got = angle_between(rows[:, None], rows[None])
    torch.testing.assert_close(got.double(), exact_angles(rows, rows), rtol=0, atol=5e-7)


def test_float64_input_is_worked_in_float64():
    rows = edge_rows().double()
    expected = exact_angles(rows, rows)
    torch.testing.assert_close(pairwise_angles(rows, rows), expected, rtol=0, atol=2e-15)
    torch.testing.assert_close(angle_between(rows[:, None], rows), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_angles_of_narrow_input_are_exact_for_the_values_it_holds(dtype):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(6, 16, generator=generator).to(dtype)
    rows = torch.cat([rows, 2 * rows[:2], -rows[:2], torch.zeros(1, 16, dtype=dtype)])
    got = pairwise_angles(rows, rows)
    assert got.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(got.double(), exact_angles(rows, rows), rtol=0, atol=1e-6)


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", DTYPES)
def test_embeddings_and_class_weights_may_differ_in_dtype(first, second):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4, 5, generator=generator).to(first)
    w = torch.cat([torch.randn(3, 5, generator=generator), x[:1].float()]).to(second)
    expected = exact_angles(x, w)
    for got in (pairwise_angles(x, w), angle_between(x[:, None], w)):
        assert got.dtype == torch.promote_types(torch.promote_types(first, second), torch.float32)
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("angle", [1e-7, 1e-6, 1e-5, 1e-4, 2e-4])
def test_angles_too_small_for_a_float32_cosine_are_resolved(angle):
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, angle], [-1.0, angle]])
    assert torch.acos(torch.ones(()) * math.cos(angle)) != pytest.approx(angle, rel=1e-3)
    got = pairwise_angles(first, second).double().squeeze(0)
    assert got[0].item() == pytest.approx(angle, rel=1e-6)
    assert math.pi - got[1].item() == pytest.approx(angle, abs=3e-7)  # the rounding of pi itself
    torch.testing.assert_close(
        angle_between(first, second).double(), got, rtol=1e-6, atol=0
    )  # one row at a time


def test_a_zero_vector_is_at_a_right_angle_to_everything_also_to_another_zero():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    expected = torch.tensor([[math.pi / 2, math.pi / 2], [math.pi / 2, 0.0]])
    torch.testing.assert_close(pairwise_angles(rows, rows), expected)
    torch.testing.assert_close(angle_between(rows[:, None], rows), expected)


def test_norms_match_60_digits_from_the_smallest_to_the_largest_float32():
    base = torch.tensor([1.0, -2.0, 2.0, 0.5])
    rows = torch.stack([base * 10.0**power for power in range(-37, 38)])
    torch.testing.assert_close(row_norms(rows).double(), exact_norms(rows), rtol=3e-7, atol=0)
    unit, norms = units_and_norms(rows)
    assert torch.equal(norms, row_norms(rows))
    torch.testing.assert_close(
        exact_norms(unit), torch.ones(len(rows), dtype=torch.float64), rtol=3e-7, atol=0
    )


def test_norms_of_float16_do_not_overflow_at_65504():
    rows = torch.full((1, 100), 60000.0, dtype=torch.float16)
    assert row_norms(rows).item() == pytest.approx(599_900, rel=1e-3)


def test_unit_vectors_keep_their_direction_and_zero_stays_zero():
    rows = torch.tensor([[3e-30, 4e-30], [3e30, 4e30], [0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]])
    torch.testing.assert_close(unit_vectors(rows), expected)


def test_one_extreme_row_does_not_change_the_others_beyond_rounding():
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
    for extreme in (0.0, 1e-30, 1e30, math.nan, math.inf):
        unit, norms = units_and_norms(torch.cat([rows, torch.full((1, 8), extreme)]))
        torch.testing.assert_close(unit[:5], unit_vectors(rows), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(norms[:5], row_norms(rows), rtol=1e-6, atol=0)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_row_that_is_not_finite_leaves_near_aligned_rows_resolved(poison):
    rows = torch.tensor([[1.0, 1e-5], [poison, 1.0], [0.0, 1.0], [-1.0, 1e-5]])
    got = pairwise_angles(rows, torch.tensor([[1.0, 0.0]])).squeeze(1)
    assert got[1].isnan()
    expected = torch.tensor([1e-5, math.pi / 2, math.pi - 1e-5])
    torch.testing.assert_close(got[[0, 2, 3]], expected, rtol=1e-6, atol=1e-8)


def test_target_angles_pick_the_own_class_by_labels_of_any_integer_type():
    axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    expected = torch.tensor([0.0, math.pi / 2, math.pi])
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64):
        labels = torch.tensor([0, 1, 2], dtype=dtype)
        torch.testing.assert_close(target_angles(axes[:1].expand(3, 2), labels, axes), expected)


def test_many_recomputed_pairs_are_worked_in_parts():
    # 300 x 300 nearly equal rows: more pairs near 0 than are recomputed at once
    generator = torch.Generator().manual_seed(4)
    rows = torch.tensor([1.0, 0.0, 0.0]) + 1e-4 * torch.randn(300, 3, generator=generator)
    offset = (rows / rows[:, :1])[:, 1:].double()  # small angles: distances in the tangent plane
    torch.testing.assert_close(
        pairwise_angles(rows, rows).double(), torch.cdist(offset, offset), rtol=0, atol=3e-7
    )


def test_widening_and_alike_never_narrow():
    assert widen(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    assert widen(torch.ones(1, dtype=torch.float16)).dtype == torch.float32
    pair = widen_together(torch.ones(1, dtype=torch.float64), torch.ones(1))
    assert [tensor.dtype for tensor in pair] == [torch.float64, torch.float64]


def test_a_user_tensor_is_never_written_to():
    rows = edge_rows()
    before = rows.clone()
    for function in (pairwise_angles, angle_between):
        function(rows, rows)
    unit_vectors(rows), row_norms(rows)
    assert torch.equal(rows, before)


def test_widths_that_differ_are_named():
    with pytest.raises(ShapeError, match=r"same width D, got embeddings \[2, 3\], class_weights"):
        pairwise_angles(torch.ones(2, 3), torch.ones(2, 4))


def test_matrices_without_columns_are_refused():
    with pytest.raises(ShapeError, match=r"embeddings to have at least one column, got .*\[2, 0\]"):
        pairwise_angles(torch.ones(2, 0), torch.ones(2, 0))


def test_target_angles_ask_for_one_label_per_row():
    with pytest.raises(ShapeError, match=r"one row per example.*embeddings \[2, 3\], labels \[1\]"):
        target_angles(torch.ones(2, 3), torch.tensor([0]), torch.ones(2, 3))


# ------------------------------------------------------------------------------ properties

directions = st.lists(st.integers(-1000, 1000), min_size=4, max_size=4)
powers = st.integers(-30, 30)


def vector(direction, power=0):
    return torch.tensor([direction], dtype=torch.float64).mul(10.0**power).float()


@given(directions, directions, powers, powers)
def test_angles_do_not_depend_on_lengths(first, second, power, other_power):
    plain = angle_between(vector(first), vector(second))
    u, v = vector(first, power), vector(second, other_power)
    torch.testing.assert_close(angle_between(u, v), plain, rtol=0, atol=1e-6)
    torch.testing.assert_close(pairwise_angles(u, v)[0], plain, rtol=0, atol=2e-6)


@given(directions, directions, powers)
def test_angles_are_symmetric_and_in_range(first, second, power):
    u, v = vector(first, power), vector(second)
    angle = angle_between(u, v)
    assert torch.equal(angle, angle_between(v, u))
    assert 0 <= angle.item() <= PI
    pair = pairwise_angles(u, v)
    torch.testing.assert_close(pair, pairwise_angles(v, u).T, rtol=0, atol=1e-6)
    assert 0 <= pair.item() <= PI


@given(directions, directions)
def test_an_angle_and_that_to_the_opposite_vector_make_a_half_turn(first, second):
    u, v = vector(first), vector(second)
    total = angle_between(u, v) + angle_between(u, -v)
    torch.testing.assert_close(total, torch.tensor([math.pi]), rtol=0, atol=1e-6)


@given(directions, directions, directions)
def test_angles_obey_the_triangle_inequality(first, second, third):
    if not (any(first) and any(second) and any(third)):
        return  # a zero vector has a right angle by convention
    u, v, w = vector(first), vector(second), vector(third)
    assert angle_between(u, w) <= angle_between(u, v) + angle_between(v, w) + 1e-6


@given(directions, powers)
def test_a_vector_is_aligned_with_itself_and_opposite_to_its_negative(direction, power):
    u = vector(direction, power)
    expected = [0.0, math.pi] if any(direction) else [math.pi / 2, math.pi / 2]
    got = pairwise_angles(u, torch.cat([u, -u]))
    torch.testing.assert_close(got, torch.tensor([expected]), rtol=0, atol=2e-7)


# ------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1.0, 2.0], [1.0, 2.0]),
        ([1.0, 2.0], [3.0, 6.0]),
        ([1.0, 2.0], [-1.0, -2.0]),
        ([0.0, 0.0], [1.0, 2.0]),
        ([1.0, 2.0], [0.0, 0.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e-30, 2e-30], [1.0, 2.0]),
        ([1e30, 2e30], [1.0, 2.0]),
        ([1e30, -2e30], [1e-30, 2e-30]),
    ],
    ids=["equal", "aligned", "opposite", "zero-any", "any-zero", "zeros", "tiny", "huge", "both"],
)
@pytest.mark.parametrize("function", [angle_between, pairwise_angles])
def test_angle_gradients_are_finite(function, first, second):
    u, v = torch.tensor([first], requires_grad=True), torch.tensor([second], requires_grad=True)
    function(u, v).sum().backward()
    assert u.grad.isfinite().all()
    assert v.grad.isfinite().all()
    for row in (u, v):
        if not row.any():
            assert not row.grad.any()  # a zero vector receives no gradient


def test_exactly_aligned_and_opposite_pairs_receive_the_gradient_zero():
    for sign in (1.0, -1.0):
        u = torch.tensor([[0.6, 0.8]], requires_grad=True)
        pairwise_angles(u, sign * u.detach()).sum().backward()
        assert torch.equal(u.grad, torch.zeros(1, 2))


def test_gradients_match_finite_differences_away_from_the_kinks():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    near = x[:1] + 0.05 * torch.randn(1, 4, dtype=torch.float64, generator=generator)
    w = torch.cat([torch.randn(2, 4, dtype=torch.float64, generator=generator), near, -near])
    x.requires_grad_(), w.requires_grad_()
    assert (pairwise_angles(x, w) < 0.1).any()  # one pair is recomputed from its chord
    assert torch.autograd.gradcheck(pairwise_angles, (x, w))
    assert torch.autograd.gradcheck(angle_between, (x, w[:3]))
    assert torch.autograd.gradcheck(units_and_norms, (x,))
    assert torch.autograd.gradcheck(lambda e: target_angles(e, torch.tensor([2, 0, 1]), w), (x,))


@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-6, 1e-8])
def test_the_gradient_of_a_squared_angle_tends_to_minus_two_by_the_cosine(angle):
    turn = torch.tensor(angle, dtype=torch.float64, requires_grad=True)
    moving = torch.stack([turn.cos(), turn.sin()])[None]
    fixed = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for function in (angle_between, pairwise_angles):
        (slope,) = torch.autograd.grad(function(fixed, moving).square().sum(), turn)
        assert slope.item() / -math.sin(angle) == pytest.approx(-2, rel=1e-4)
        turn.grad = None
        moving = torch.stack([turn.cos(), turn.sin()])[None]


def test_the_gradient_of_a_squared_angle_at_zero_is_zero():
    u = torch.tensor([[3.0, 4.0]], requires_grad=True)
    for function in (angle_between, pairwise_angles):
        (slope,) = torch.autograd.grad(function(u, u.detach()).square().sum(), u)
        assert torch.equal(slope, torch.zeros(1, 2))


def test_norm_gradients_are_the_unit_vectors_at_every_scale():
    rows = torch.tensor([[3.0, 4.0], [3e-30, 4e-30], [3e30, 4e30], [0.0, 0.0]], requires_grad=True)
    row_norms(rows).sum().backward()
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [0.0, 0.0]])
    torch.testing.assert_close(rows.grad, expected)


# -------------------------------------------------------------- autocast, compile, torch.func


def test_autocast_does_not_change_an_angle():
    generator = torch.Generator().manual_seed(6)
    x, w = torch.randn(4, 32, generator=generator), torch.randn(3, 32, generator=generator)
    w = torch.cat([w, x[:1] + 1e-4])
    plain = pairwise_angles(x, w), angle_between(x, w), row_norms(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ w.T).dtype == torch.bfloat16  # autocast is at work
        inside = pairwise_angles(x, w), angle_between(x, w), row_norms(x)
    for got, expected in zip(inside, plain, strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)


@pytest.mark.parametrize("function", [angle_between, pairwise_angles])
def test_angles_compile_to_one_graph(function):
    rows = edge_rows().requires_grad_()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    got = compiled(rows, rows.detach())
    atol = 1e-6 if function is angle_between else 6e-4  # near 0 and pi: that of a cosine
    torch.testing.assert_close(got, function(rows, rows.detach()), rtol=0, atol=atol)
    got.sum().backward()
    assert rows.grad.isfinite().all()


def test_compiled_pairwise_angles_are_exact_away_from_zero_and_pi():
    generator = torch.Generator().manual_seed(7)
    x, w = torch.randn(5, 16, generator=generator), torch.randn(4, 16, generator=generator)
    compiled = torch.compile(pairwise_angles, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, w), pairwise_angles(x, w), rtol=0, atol=1e-6)


def test_angles_work_under_vmap_and_grad():
    generator = torch.Generator().manual_seed(8)
    x, w = torch.randn(5, 8, generator=generator), torch.randn(5, 8, generator=generator)
    mapped = torch.func.vmap(angle_between)(x, w)
    torch.testing.assert_close(mapped, angle_between(x, w), rtol=0, atol=1e-6)
    mapped = torch.func.vmap(lambda row: pairwise_angles(row[None], w)[0])(x)
    torch.testing.assert_close(mapped, pairwise_angles(x, w), rtol=0, atol=1e-6)
    for function in (angle_between, pairwise_angles):
        slope = torch.func.grad(lambda e, f=function: f(e, w).sum())(x)
        leaf = x.clone().requires_grad_()
        function(leaf, w).sum().backward()
        torch.testing.assert_close(slope, leaf.grad, rtol=1e-4, atol=1e-6)


def test_gradients_by_torch_func_are_finite_at_the_edges():
    rows = edge_rows()
    for function in (angle_between, pairwise_angles):
        assert torch.func.grad(lambda e, f=function: f(e, rows).sum())(rows).isfinite().all()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
def test_forward_mode_agrees_with_reverse_mode():
    generator = torch.Generator().manual_seed(9)
    x, w = torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)
    tangent = torch.randn(3, 4, generator=generator)
    _, forward = torch.func.jvp(lambda e: angle_between(e, w), (x,), (tangent,))
    backward = torch.func.jacrev(lambda e: angle_between(e, w))(x)
    torch.testing.assert_close(forward, (backward * tangent).sum(dim=(1, 2)), rtol=1e-4, atol=1e-6)


def test_unit_pairwise_angles_take_rows_that_are_units_already():
    rows = edge_rows()
    got = unit_pairwise_angles(unit_vectors(rows), unit_vectors(rows).double())
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, exact_angles(rows, rows), rtol=0, atol=5e-7)


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("threads", [1, 8])
def test_the_arc_cosine_in_place_is_exact_by_either_library(monkeypatch, vectorized, threads):
    monkeypatch.setattr(geometry, "_numpy_is_vectorized", lambda: vectorized)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    cosines = torch.linspace(-0.99, 0.99, 200 * 7).view(200, 7).clone()
    cosines[3] = torch.nan  # stays in its row, and warns nobody
    expected = torch.acos(cosines.double())
    found = geometry._acos_(cosines)
    assert found is cosines
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-7, equal_nan=True)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_target_angles_refuse_a_label_that_is_no_class(wrong):
    with pytest.raises(LabelError, match=r"expected labels in \[0, 3\)"):
        target_angles(torch.eye(3), torch.tensor([0, wrong, 1]), torch.eye(3))


def test_a_negative_label_that_nobody_looks_at_is_not_read_as_the_last_class():
    # on a GPU and under vmap labels are not looked at
    labels = torch.tensor([[-1], [1]])
    got = torch.vmap(lambda x, y: target_angles(x, y, torch.eye(3)))(torch.eye(3)[:2, None], labels)
    torch.testing.assert_close(got, torch.tensor([[math.nan], [0.0]]), equal_nan=True)


def test_an_infinite_gradient_stops_at_a_zero_vector():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    row_norms(rows).log().sum().backward()  # the slope of the log at 0 is infinite
    torch.testing.assert_close(rows.grad, torch.tensor([[0.0, 0.0], [0.12, 0.16]]))
