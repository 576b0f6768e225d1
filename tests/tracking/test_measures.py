"""What a tracker measures of a step: each equation, and when it is computed."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hardsight import geometry
from hardsight.scores import angular_visual_hardness
from hardsight.tracking import HardnessTracker

MEASURES = ("target_angle", "avh", "avc", "confidence", "norm", "logit_margin", "loss", "el2n")
LIMITS = "hardsight.tracking._steps"  # of the steps that wait to be measured


def step(seed=0, rows=4, width=6, classes=3, dtype=torch.float32, first=0):
    """What :meth:`HardnessTracker.update` takes; the last is the class weights."""
    make = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(rows, width, generator=make).to(dtype)
    weights = torch.randn(classes, width, generator=make).to(dtype)
    labels = torch.randint(classes, (rows,), generator=make)
    return torch.arange(first, first + rows), embeddings, embeddings @ weights.T, labels, weights


def record(tracker, *steps):
    for *tensors, weights in steps:
        tracker.update(*tensors, class_weights=weights)


def measured(*steps):
    """Measures of all examples of steps, one after the other, by name."""
    tracker = HardnessTracker(1 + max(int(one[0].max()) for one in steps))
    record(tracker, *steps)
    tracker.end_epoch()
    return {name: tracker.history(name)[0] for name in (*MEASURES, "prediction", "label")}


def by_hand(one):
    """Every measure in float64 numpy, from its equation."""
    _, x, z, labels, w = one
    x, z, w = (part.double().numpy() for part in (x, z, w))
    y, rows = labels.numpy(), np.arange(len(labels))
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


def assert_measured(found, *steps):
    wanted = [by_hand(one) for one in steps]
    for name in MEASURES:
        expected = np.concatenate([part[name] for part in wanted])
        np.testing.assert_allclose(found[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)


def test_every_measure_follows_its_equation():
    one = step(rows=50)
    found = measured(one)
    assert_measured(found, one)
    np.testing.assert_array_equal(found["prediction"], one[2].argmax(dim=1))
    np.testing.assert_array_equal(found["label"], one[3])


def test_each_of_many_steps_is_measured_by_its_own_class_weights():
    steps = [step(seed, first=4 * seed) for seed in range(5)]
    assert_measured(measured(*steps), *steps)


class Operations(TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Launches(list):
    """How many steps were measured at once, each time.

    Attributes:
        operations: that measured them.
    """

    def __init__(self):
        super().__init__()
        self.operations = Operations()


@pytest.fixture
def launches(monkeypatch):
    found, vmap = Launches(), torch.vmap

    def counted(function, *args, **options):
        run = vmap(function, *args, **options)

        def launched(*tensors):
            if function.__name__ != "_step_measures":  # but one that checks the head
                return run(*tensors)
            found.append(len(tensors[0]))
            with found.operations:
                return run(*tensors)

        return launched

    monkeypatch.setattr(torch, "vmap", counted)
    return found


def test_a_large_step_is_measured_at_once_in_blocks_with_the_same_result(monkeypatch, launches):
    monkeypatch.setattr(f"{LIMITS}._BYTES_AT_ONCE", 100)
    one = step(rows=30, classes=7)
    tracker = HardnessTracker(30)
    record(tracker, one)
    assert len(launches) == 10  # 3 rows of 7 logits in 100 bytes
    tracker.end_epoch()
    assert_measured({name: tracker.history(name)[0] for name in MEASURES}, one)


def test_steps_wait_until_they_fill_the_memory_given_to_them(monkeypatch, launches):
    one = step()
    monkeypatch.setattr(f"{LIMITS}._BYTES_AT_ONCE", 3 * sum(one[at].nbytes for at in (1, 2, 4)))
    tracker = HardnessTracker(100)
    for number in range(4):
        assert launches == []
        record(tracker, step(number, first=4 * number))
    assert launches == [4]


def test_steps_that_wait_are_bounded_in_number_however_small(monkeypatch, launches):
    monkeypatch.setattr(f"{LIMITS}._STEPS_AT_ONCE", 3)
    tracker, after = HardnessTracker(100), []
    for number in range(7):
        record(tracker, step(number, first=4 * number))
        after.append(len(launches))
    assert after == [0, 0, 1, 1, 1, 2, 2]
    assert set(launches) == {3}


def test_rows_stay_as_they_were_measured_when_their_room_is_used_again(monkeypatch):
    monkeypatch.setattr(f"{LIMITS}._STEPS_AT_ONCE", 2)
    steps = [step(seed, first=4 * seed) for seed in range(6)]
    found = measured(*steps)
    assert_measured(found, *steps)
    np.testing.assert_array_equal(found["label"], torch.cat([one[3] for one in steps]))


def test_a_smaller_last_batch_does_not_disturb_those_before_it():
    steps = [step(0), step(1, first=4), step(2, rows=3, first=8)]
    assert_measured(measured(*steps), *steps)


def test_a_step_is_measured_as_it_was_though_its_tensors_change_afterwards():
    one = step()
    kept = tuple(part.clone() for part in one)
    tracker = HardnessTracker(4)
    record(tracker, one)
    for part in one[1:]:
        part.zero_()
    tracker.end_epoch()
    assert_measured({name: tracker.history(name)[0] for name in MEASURES}, kept)


def test_half_precision_is_measured_in_full():
    one = step(dtype=torch.bfloat16)
    found = measured(one)
    assert found["avh"].dtype == np.float32
    assert_measured(found, one)


def test_autocast_does_not_reach_the_measures():
    one = step(rows=20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = measured(one)
    assert_measured(found, one)


def single(embedding, weights):
    embeddings, weights = torch.tensor([embedding]), torch.tensor(weights)
    return torch.tensor([0]), embeddings, embeddings @ weights.T, torch.tensor([0]), weights


@pytest.mark.parametrize(("own", "expected"), [(1e-6, 1e-6), (math.pi, math.pi)])
def test_the_own_angle_is_exact_also_near_zero_and_pi(own, expected):
    found = measured(single([math.cos(own), math.sin(own)], [[1.0, 0.0], [0.0, 1.0]]))
    assert found["target_angle"][0] == pytest.approx(expected, rel=1e-5)


def test_a_zero_embedding_is_at_a_right_angle_to_every_class():
    found = measured(single([0.0, 0.0], [[1.0, 0.5], [0.2, 1.0], [-1.0, 0.1]]))
    assert found["target_angle"][0] == pytest.approx(math.pi / 2)
    assert found["avh"][0] == pytest.approx(1 / 3)
    assert found["avc"][0] == pytest.approx(1 / 3)
    assert found["norm"][0] == 0


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_an_example_along_or_against_every_class_gives_each_the_same_share(direction):
    found = measured(single([direction, 0.0], [[1.0, 0.0], [2.0, 0.0]]))
    assert (found["avh"][0], found["avc"][0]) == (0.5, 0.5)


class NothingReadBack(TorchDispatchMode):
    """Fails on every operation that makes the host wait for a value on the device."""

    WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique", "masked_select")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not name.startswith(self.WAITING), f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kept", [1, 1 << 10, 1 << 30], ids=["large", "often", "at the end"])
def test_no_step_but_the_first_reads_a_value_back_from_its_device(monkeypatch, launches, kept):
    monkeypatch.setattr(f"{LIMITS}._BYTES_AT_ONCE", kept)
    tracker = HardnessTracker(100)
    record(tracker, step(0))  # tells whether its tensors belong together, and waits for that
    with NothingReadBack():
        record(tracker, *(step(number, first=4 * number) for number in range(1, 7)))
    assert (sum(launches) > 0) == (kept < 1 << 30)


def test_a_value_that_is_read_back_would_be_noticed():
    _, embeddings, _, labels, weights = step()
    with pytest.raises(AssertionError, match="waits for the device"), NothingReadBack():
        angular_visual_hardness(embeddings, labels, weights)


def test_measuring_makes_no_tensor_of_a_number_which_a_gpu_would_have_to_fill(launches):
    measured(step(0), step(1, first=4))
    assert launches == [2]
    assert "aten.scalar_tensor.default" not in launches.operations.names
    assert len(launches.operations.names) > 50  # the mode has seen them


def test_measuring_normalises_embeddings_and_class_weights_once_each(monkeypatch):
    shapes, original = [], geometry.units_and_norms

    def counted(vectors):
        shapes.append(list(vectors.shape))
        return original(vectors)

    for module in ("hardsight.geometry", "hardsight.scores._summary"):
        monkeypatch.setattr(f"{module}.units_and_norms", counted)
    measured(step(rows=4, width=6, classes=3))
    assert sorted(shapes) == [[3, 6], [4, 6]]
