import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hardsight import geometry
from hardsight.scores import _summary, angular_visual_hardness
from hardsight.tracking import _measures
from hardsight.tracking._measures import MEASURES, Stash, Step, joined, measured


def step(seed=0, rows=4, width=6, classes=3, dtype=torch.float32):
    make = torch.Generator().manual_seed(seed)
    return Step(
        index=torch.arange(rows),
        embeddings=torch.randn(rows, width, generator=make).to(dtype),
        logits=torch.randn(rows, classes, generator=make).to(dtype),
        labels=torch.randint(classes, (rows,), generator=make),
        class_weights=torch.randn(classes, width, generator=make).to(dtype),
    )


def side_by_side(*steps):
    return Step(*map(torch.stack, zip(*(one.parts for one in steps), strict=True)))


def stashed(*steps):
    """A stash that has taken steps as a tracker gives them."""
    stash = Stash()
    for one in steps:
        if not stash.fits(one):
            stash.make_room(one)
        stash.add(one)
    return stash


def by_hand(step):
    """Every measure in float64 numpy, from its equation."""
    x, z, w = (part.double().numpy() for part in (step.embeddings, step.logits, step.class_weights))
    y, rows = step.labels.numpy(), np.arange(len(step.labels))
    norms = np.linalg.norm(x, axis=1)
    angles = np.arccos(x @ w.T / norms[:, None] / np.linalg.norm(w, axis=1))
    probs = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    others = z.copy()
    others[rows, y] = -np.inf
    own = angles[rows, y]
    return {
        "target_angle": own,
        "avh": own / angles.sum(axis=1),
        "avc": (math.pi - own) / (math.pi - angles).sum(axis=1),
        "confidence": probs[rows, y],
        "norm": norms,
        "logit_margin": z[rows, y] - others.max(axis=1),
        "loss": -np.log(probs[rows, y]),
        "el2n": np.linalg.norm(probs - np.eye(z.shape[1])[y], axis=1),
    }


def assert_measured(rows, expected):
    for place, name in enumerate(MEASURES):
        np.testing.assert_allclose(
            rows.values[:, place], expected[name], rtol=2e-5, atol=2e-6, err_msg=name
        )


def test_every_measure_follows_its_equation():
    one = step(rows=50)
    rows = measured(side_by_side(one))
    assert_measured(rows, by_hand(one))
    torch.testing.assert_close(rows.prediction, one.logits.argmax(dim=1))


def test_each_of_many_steps_is_measured_by_its_own_class_weights():
    steps = [step(seed) for seed in range(5)]
    rows = measured(side_by_side(*steps))
    for place, one in enumerate(steps):
        part = slice(4 * place, 4 * place + 4)
        np.testing.assert_allclose(
            rows.values[part, MEASURES.index("avh")], by_hand(one)["avh"], rtol=2e-5
        )


def test_a_large_step_is_measured_at_once_in_blocks_with_the_same_result(monkeypatch):
    one = step(rows=30, classes=7)
    monkeypatch.setattr(_measures, "_BYTES_AT_ONCE", 100)
    stash = stashed(one)
    assert len(stash.rows) > 1
    rows = joined(stash.rows)
    torch.testing.assert_close(rows.index, one.index)
    assert_measured(rows, by_hand(one))


def test_steps_wait_until_they_fill_the_memory_given_to_them(monkeypatch):
    monkeypatch.setattr(_measures, "_BYTES_AT_ONCE", 3 * step().nbytes)
    measured_after = [len(stashed(*map(step, range(steps))).rows) for steps in range(1, 5)]
    assert measured_after == [0, 0, 0, 1]


def test_steps_that_wait_are_bounded_in_number_however_small(monkeypatch):
    monkeypatch.setattr(_measures, "_STEPS_AT_ONCE", 3)
    measured_after = [len(stashed(*map(step, range(steps))).rows) for steps in range(1, 8)]
    assert measured_after == [0, 0, 1, 1, 1, 2, 2]


def test_rows_stay_as_they_were_measured_when_their_room_is_used_again(monkeypatch):
    monkeypatch.setattr(_measures, "_STEPS_AT_ONCE", 2)
    steps = [replace(step(seed), index=torch.arange(4) + 4 * seed) for seed in range(6)]
    rows = joined(stashed(*steps).rows)
    torch.testing.assert_close(rows.index, torch.arange(24))
    torch.testing.assert_close(rows.labels, torch.cat([one.labels for one in steps]))
    expected = np.concatenate([by_hand(one)["avh"] for one in steps])
    np.testing.assert_allclose(rows.values[:, MEASURES.index("avh")], expected, rtol=2e-5)


def test_a_smaller_last_batch_does_not_disturb_those_before_it():
    steps = [step(0), step(1), step(2, rows=3)]
    stash = stashed(*steps)
    stash.measure()
    expected = np.concatenate([by_hand(one)["avh"] for one in steps])
    avh = joined(stash.rows).values[:, MEASURES.index("avh")]
    np.testing.assert_allclose(avh, expected, rtol=2e-5)


def test_a_step_is_measured_as_it_was_though_its_tensors_change_afterwards():
    one = step()
    expected = by_hand(one)
    stash = stashed(one)
    for part in (one.embeddings, one.logits, one.class_weights):
        part.zero_()
    stash.measure()
    assert_measured(joined(stash.rows), expected)


def test_half_precision_is_measured_in_full():
    one = step(dtype=torch.bfloat16)
    rows = measured(side_by_side(one))
    assert rows.values.dtype == torch.float32
    assert_measured(rows, by_hand(one))


def test_autocast_does_not_reach_the_measures():
    one = step(rows=20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = measured(side_by_side(one))
    assert_measured(rows, by_hand(one))


@pytest.mark.parametrize(("own", "expected"), [(1e-6, 1e-6), (math.pi, math.pi)])
def test_the_own_angle_is_exact_also_near_zero_and_pi(own, expected):
    one = Step(
        index=torch.tensor([0]),
        embeddings=torch.tensor([[math.cos(own), math.sin(own)]]),
        logits=torch.zeros(1, 2),
        labels=torch.tensor([0]),
        class_weights=torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
    )
    angle = measured(side_by_side(one)).values[0, MEASURES.index("target_angle")]
    assert angle.item() == pytest.approx(expected, rel=1e-5)


def test_a_zero_embedding_is_at_a_right_angle_to_every_class():
    one = step(rows=1)
    one.embeddings.zero_()
    found = dict(zip(MEASURES, measured(side_by_side(one)).values[0].tolist(), strict=True))
    assert found["target_angle"] == pytest.approx(math.pi / 2)
    assert found["avh"] == pytest.approx(1 / 3)
    assert found["avc"] == pytest.approx(1 / 3)
    assert found["norm"] == 0


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_an_example_along_or_against_every_class_gives_each_the_same_share(direction):
    one = Step(
        index=torch.tensor([0]),
        embeddings=torch.tensor([[direction, 0.0]]),
        logits=torch.zeros(1, 2),
        labels=torch.tensor([0]),
        class_weights=torch.tensor([[1.0, 0.0], [2.0, 0.0]]),
    )
    found = dict(zip(MEASURES, measured(side_by_side(one)).values[0].tolist(), strict=True))
    assert (found["avh"], found["avc"]) == (0.5, 0.5)


class NothingReadBack(TorchDispatchMode):
    """Fails on every operation that makes the host wait for a value on the device."""

    WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique", "masked_select")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not name.startswith(self.WAITING), f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kept", [1, 1 << 10, 1 << 30], ids=["large", "often", "at the end"])
def test_no_step_reads_a_value_back_from_its_device(monkeypatch, kept):
    monkeypatch.setattr(_measures, "_BYTES_AT_ONCE", kept)
    with NothingReadBack():
        stash = stashed(*map(step, range(6)))
        stash.measure()
    assert sum(len(rows) for rows in stash.rows) == 6 * 4


def test_a_value_that_is_read_back_would_be_noticed():
    one = step()
    with pytest.raises(AssertionError, match="waits for the device"), NothingReadBack():
        angular_visual_hardness(one.embeddings, one.labels, one.class_weights)


class Operations(TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_measuring_makes_no_tensor_of_a_number_which_a_gpu_would_have_to_fill():
    with Operations() as operations:
        measured(side_by_side(step(seed=0), step(seed=1)))
    assert "aten.scalar_tensor.default" not in operations.names
    assert len(operations.names) > 50  # the mode has seen them


def test_measuring_normalises_embeddings_and_class_weights_once_each(monkeypatch):
    shapes = []
    original = geometry.units_and_norms

    def counted(vectors):
        shapes.append(list(vectors.shape))
        return original(vectors)

    for module in (geometry, _summary):
        monkeypatch.setattr(module, "units_and_norms", counted)
    measured(side_by_side(step(rows=4, width=6, classes=3)))
    assert sorted(shapes) == [[3, 6], [4, 6]]
