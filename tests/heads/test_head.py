import pytest
import torch

from hardsight.errors import ShapeError
from hardsight.heads import Head


def test_a_head_from_stored_tensors_knows_its_sizes():
    head = Head(name="stored", weight=torch.ones(3, 2), bias=torch.zeros(3))
    assert (head.num_classes, head.width) == (3, 2)
    assert repr(head) == "Head('stored', 3 classes, width 2, bias)"
    assert repr(Head(name="fc", weight=torch.ones(3, 2))) == (
        "Head('fc', 3 classes, width 2, no bias)"
    )


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.ones(3), None, r"weight to have 2 dimensions, got \[3\]"),
        (torch.ones(3, 2, dtype=torch.long), None, "weight to be floating point"),
        (torch.ones(3, 2), torch.ones(2), r"weight \[3, 2\], bias \[2\]"),
    ],
)
def test_tensors_that_do_not_make_a_head_are_refused(weight, bias, message):
    with pytest.raises(ShapeError, match=message):
        Head(name="stored", weight=weight, bias=bias)


def test_two_heads_can_be_compared_without_looking_at_their_tensors():
    head = Head(name="fc", weight=torch.ones(3, 2))
    assert head == head
    assert head != Head(name="fc", weight=torch.ones(3, 2))
