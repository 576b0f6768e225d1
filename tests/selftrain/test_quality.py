import numpy as np
import pytest
import torch

from hardsight.errors import LabelError, ShapeError
from hardsight.selftrain import selection_quality

AXES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])


def test_quality_worked_by_hand():
    # selected: rows 0 (label 0) and 2 (label 1); embeddings along class 0 and class 1
    labels = torch.tensor([0, -1, 1])
    embeddings = torch.tensor([[3.0, 0.0], [9.0, 9.0], [0.0, 5.0]])
    probs = torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.3, 0.4], [0.2, 0.6, 0.2]])
    got = selection_quality(
        labels, num_classes=3, true_labels=torch.tensor([0, 0, 2]), probs=probs,
        embeddings=embeddings, class_weights=AXES,
    )  # fmt: skip
    assert (got.examples, got.selected, got.true_positive_rate.value) == (3, 2, 0.5)
    assert got.mean_confidence == pytest.approx(0.7)
    assert got.mean_norm == pytest.approx(4.0)
    assert got.mean_avh == pytest.approx(0.0, abs=1e-6)  # both lie on their class
    # angles (0, 90, 180) and (90, 0, 90): closeness 180 of 270, and 180 of 360
    assert got.mean_avc == pytest.approx((180 / 270 + 180 / 360) / 2)
    assert got.counts.tolist() == [1, 1, 0]
    assert got.right.tolist() == [1, 0, 0]


def test_mapped_arrays_and_small_parts_give_the_same_numbers(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 3, (60,), generator=generator)
    embeddings = torch.randn(60, 2, generator=generator)
    probs = torch.softmax(embeddings @ AXES.T, 1)
    options = {"num_classes": 3, "class_weights": AXES}
    wanted = selection_quality(labels, probs=probs, embeddings=embeddings, **options)
    np.save(tmp_path / "p.npy", probs.numpy())
    np.save(tmp_path / "x.npy", embeddings.numpy())
    monkeypatch.setattr("hardsight.selftrain._quality._ENTRIES_AT_ONCE", 10)
    got = selection_quality(
        labels, probs=np.load(tmp_path / "p.npy", mmap_mode="r"),
        embeddings=np.load(tmp_path / "x.npy", mmap_mode="r"), **options,
    )  # fmt: skip
    for name in ("mean_confidence", "mean_avh", "mean_avc", "mean_norm"):
        assert getattr(got, name) == pytest.approx(getattr(wanted, name), rel=1e-6)


def test_what_is_not_given_is_none():
    got = selection_quality(torch.tensor([0, 1]), num_classes=2)
    assert got.true_positive_rate is None
    assert (got.mean_confidence, got.mean_avh, got.mean_norm, got.right) == (None,) * 4
    got = selection_quality(torch.tensor([0]), num_classes=2, embeddings=torch.tensor([[3.0, 4.0]]))
    assert (got.mean_norm, got.mean_avh, got.mean_avc) == (5.0, None, None)


def test_nothing_selected_has_no_quality():
    got = selection_quality(
        torch.tensor([-1, -1]), num_classes=3, true_labels=torch.tensor([0, 1]),
        probs=torch.full((2, 3), 1 / 3), embeddings=torch.ones(2, 2), class_weights=AXES,
    )  # fmt: skip
    assert (got.selected, got.true_positive_rate, got.mean_confidence) == (0, None, None)
    assert (got.mean_avh, got.mean_norm) == (None, None)
    assert got.counts.tolist() == [0, 0, 0]


def test_a_mean_of_zero_is_not_taken_for_a_missing_one():
    got = selection_quality(
        torch.tensor([0]), num_classes=3, embeddings=torch.zeros(1, 2), class_weights=AXES
    )
    assert got.mean_norm == 0.0
    assert got.mean_avh == pytest.approx(1 / 3)


def test_quality_refuses_what_does_not_fit():
    labels = torch.tensor([0, 1])
    with pytest.raises(ShapeError, match=r"labels \[2\], true_labels \[3\]"):
        selection_quality(labels, num_classes=2, true_labels=torch.tensor([0, 1, 1]))
    with pytest.raises(LabelError, match=r"in \[-1, 1\), got values from 0 to 1"):
        selection_quality(labels, num_classes=1)


KINDS = {
    "list": lambda tensor: tensor.tolist(),
    "array": lambda tensor: tensor.numpy(),
    "read-only": lambda tensor: np.frombuffer(
        tensor.numpy().tobytes(), tensor.numpy().dtype
    ).reshape(tensor.shape),
    "other byte order": lambda tensor: tensor.numpy().astype(tensor.numpy().dtype.newbyteorder()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_quality_of_arrays_and_lists_is_that_of_tensors(kind):
    make, cast = torch.Generator().manual_seed(0), KINDS[kind]
    labels, truth = torch.randint(-1, 3, (9,), generator=make), torch.arange(9) % 3
    embeddings = torch.randn(9, 2, generator=make, dtype=torch.float64)
    given = {
        "true_labels": truth,
        "probs": torch.softmax(embeddings @ AXES.double().T, 1),
        "embeddings": embeddings,
        "class_weights": AXES.double(),
    }
    wanted = selection_quality(labels, num_classes=3, **given)
    got = selection_quality(
        cast(labels), num_classes=3, **{name: cast(value) for name, value in given.items()}
    )
    assert got.mean_avh == pytest.approx(wanted.mean_avh)
    assert got.mean_confidence == pytest.approx(wanted.mean_confidence)
    assert got.true_positive_rate == wanted.true_positive_rate
    assert got.right.tolist() == wanted.right.tolist()


def test_quality_says_what_labels_and_matrices_must_be():
    with pytest.raises(LabelError, match=r"expected labels to be integers, got torch.float64"):
        selection_quality([0.5, 1.0], num_classes=2)
    with pytest.raises(LabelError, match="expected true_labels to be integers"):
        selection_quality([0, 1], num_classes=2, true_labels=torch.tensor([0.0, 1.0]))
    with pytest.raises(ShapeError, match=r"expected probs to be a matrix, got \[2\]"):
        selection_quality([0, 1], num_classes=2, probs=np.ones(2))
    with pytest.raises(ShapeError, match=r"expected labels \[N\], got \[1, 2\]"):
        selection_quality([[0, 1]], num_classes=2)
    with pytest.raises(ShapeError, match=r"probs to be numbers of at most 64 bits, got .*astype"):
        selection_quality([0, 1], num_classes=2, probs=np.array([["a"], ["b"]]))
