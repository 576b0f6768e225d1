import subprocess
import sys

import pytest
import torch

from hardsight.errors import LabelError, MissingExtraError, OptionError, ShapeError
from hardsight.kernels import angular_log_odds, head_statistics, is_supported, linear_log_odds

X, W, LABELS = torch.ones(3, 4), torch.ones(5, 4), torch.tensor([0, 1, 4])


def test_importing_the_kernels_loads_no_triton():
    code = "import sys, hardsight.kernels; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cpu_tensors_are_supported_by_the_interpreter_alone(monkeypatch):
    assert is_supported(X, W)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert not is_supported(X, W)
    with pytest.raises(OptionError, match="expected tensors on a CUDA device, got cpu; pass impl"):
        head_statistics(X, LABELS, W)


@pytest.mark.parametrize("other", [torch.float64, torch.int64])
def test_other_dtypes_are_not_supported(other):
    assert not is_supported(X.to(other), W.to(other))


def test_mixed_dtypes_are_refused_with_a_way_out():
    assert not is_supported(X.bfloat16(), W)
    with pytest.raises(OptionError, match=r"got torch\.bfloat16 and torch\.float32; cast them or"):
        head_statistics(X.bfloat16(), LABELS, W)


def test_nothing_to_score_is_refused():
    assert not is_supported(X[:0], W)
    with pytest.raises(ShapeError, match=r"at least one example.*got embeddings \[0, 4\]"):
        head_statistics(X[:0], LABELS[:0], W)


def test_a_bias_of_another_length_is_refused():
    with pytest.raises(ShapeError, match=r"one bias per class, got bias \[4\]"):
        linear_log_odds(X, LABELS, W, torch.ones(4))


def test_labels_of_two_dimensions_are_refused():
    with pytest.raises(ShapeError, match=r"labels to have 1 dimension, got \[3, 1\]"):
        angular_log_odds(X, LABELS[:, None], W, scale=1)


@pytest.mark.parametrize("labels", [[0, 1, 5], [-1, 0, 0]])
def test_labels_out_of_range_are_refused(labels):
    with pytest.raises(LabelError, match=r"expected labels in \[0, 5\)"):
        linear_log_odds(X, torch.tensor(labels), W)


def test_a_missing_triton_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hardsight\[kernels\]'"):
        head_statistics(X, LABELS, W)
