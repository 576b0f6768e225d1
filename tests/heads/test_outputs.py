from types import SimpleNamespace

import pytest
import torch
from transformers.modeling_outputs import ImageClassifierOutput

from hardsight.errors import ModelError
from hardsight.heads import logits_of

LOGITS = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS, LOGITS + 1),
        [LOGITS],
        (torch.tensor(0.5), LOGITS),
        (torch.zeros(2, 3, dtype=torch.long), LOGITS),
        {"logits": LOGITS, "features": torch.ones(2, 8)},
        {"loss": torch.tensor(0.5), "out": LOGITS},
        ImageClassifierOutput(loss=torch.tensor(0.5), logits=LOGITS),
        SimpleNamespace(logits=LOGITS, features=torch.ones(2, 8)),
    ],
    ids=lambda output: type(output).__name__,
)
def test_logits_are_taken_out_of_every_usual_output(output):
    assert logits_of(output) is LOGITS


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"a": LOGITS, "b": LOGITS}, "got dict with a, b: several tensors"),
        ({}, r"got dict: no tensor"),
        ((torch.tensor(0.5),), "got tuple with 0: no tensor"),
        ("text", "got str: no tensor"),
        (None, "got NoneType: no tensor"),
    ],
)
def test_an_output_without_clear_logits_says_what_it_holds(output, message):
    with pytest.raises(ModelError, match=f"{message}.*wrap the model"):
        logits_of(output)
