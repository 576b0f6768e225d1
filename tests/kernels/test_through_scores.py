"""Summaries and scores with ``impl="triton"`` are those of the plain version."""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hardsight.errors import OptionError
from hardsight.scores import _fused, angular_margin, angular_visual_hardness, head_summaries


def flat(summaries):
    """Every tensor of a summary, by name."""
    found = {}
    for part in dataclasses.fields(summaries):
        value = getattr(summaries, part.name)
        if isinstance(value, torch.Tensor):
            found[part.name] = value
        elif value is not None:
            names = [field.name for field in dataclasses.fields(value)]
            found |= {f"{part.name}.{name}": getattr(value, name) for name in names}
    return found


def test_every_summary_of_a_head_equals_the_plain_one(make_head, rows, width, classes):
    head = make_head(rows, width, classes, torch.float32)
    inputs = (head.embeddings, head.labels, head.class_weights, head.bias)
    plain = flat(head_summaries(*inputs, impl="torch"))
    fused = flat(head_summaries(*inputs, impl="triton"))
    assert plain.keys() == fused.keys()
    for name, value in plain.items():
        if name.endswith("num_classes"):
            assert fused[name] == value
        else:
            torch.testing.assert_close(
                fused[name], value, rtol=2e-5, atol=2e-5, msg=lambda text, name=name: name + text
            )


def test_confident_examples_keep_small_numbers():
    weights = torch.tensor([[40.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    inputs = (torch.tensor([[1.0, 0.0]]), torch.tensor([0]), weights)
    plain, fused = (head_summaries(*inputs, impl=impl) for impl in ("torch", "triton"))
    for part, name in (("logits", "entropy"), ("targets", "log_prob"), ("targets", "others_prob")):
        expected = getattr(getattr(plain, part), name)
        assert 0 < expected.abs() < 1e-14
        torch.testing.assert_close(
            getattr(getattr(fused, part), name), expected, rtol=1e-4, atol=0.0
        )


def test_scores_by_the_kernels_equal_the_plain_ones(make_head):
    head = make_head(20, 9, 11, torch.bfloat16)
    inputs = (head.embeddings, head.labels, head.class_weights)
    for score in (angular_visual_hardness, angular_margin):
        torch.testing.assert_close(
            score(*inputs, impl="triton"), score(*inputs, impl="torch"), rtol=1e-5, atol=1e-5
        )


def test_an_unknown_impl_is_refused(make_head):
    head = make_head(2, 3, 4, torch.float32)
    with pytest.raises(OptionError, match="expected impl to be one of auto, torch, triton, got 'c"):
        angular_visual_hardness(head.embeddings, head.labels, head.class_weights, impl="cuda")


class NoOperators(TorchDispatchMode):
    """Fails at the first operator on a tensor under it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not any(isinstance(one, torch.Tensor) for one in args), func.name()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (torch.bfloat16, torch.float32, True),
        (torch.float32, torch.float16, True),
        (torch.bfloat16, torch.float16, True),
        (torch.float64, torch.float32, False),
        (torch.float64, torch.float64, False),
    ],
)
def test_asking_whether_dtypes_can_be_fused_copies_nothing(make_head, first, second, expected):
    # a float32 copy of a million classes for every batch would be 2 GiB, only to ask
    head = make_head(9, 8, 20, torch.float32)
    x, w = head.embeddings.to(first), head.class_weights.to(second)
    with NoOperators():
        assert _fused.can_fuse(x, w, None) == expected
