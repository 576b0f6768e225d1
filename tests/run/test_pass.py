"""Which examples the errors of a pass name, also if a batch goes through the model in parts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hardsight.data.source import Parts
from hardsight.errors import HeadMismatchError
from hardsight.heads import find_head, rows_at_places
from hardsight.preprocessing import PLACES
from hardsight.run.loop import ModelPass

CPU = torch.device("cpu")
ODD = 9.0


class Net(nn.Module):
    """Takes another way for what is as large as ODD."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, inputs):
        return self.fc(inputs) + (inputs[:, :1] >= ODD)


def test_examples_of_a_batch_in_parts_are_named_as_they_are():
    net, rows = Net(), torch.rand(6, 3)
    rows[4] = ODD
    order = [1, 0, 5, 2, 4, 3]  # where each row is among the parts
    lies = sorted(range(6), key=lambda row: order[row])
    parts = Parts([rows[lies[:2]], rows[lies[2:]]], order, [2, 4])
    says = r"1 of 4 rows of a part of batch 2 \(examples e4\)"
    running = ModelPass(net, find_head(net), device=CPU)
    with running:
        running.outputs(Parts([torch.rand(1, 3), torch.rand(1, 3)], [0, 1], [1, 1]), ["a", "b"])
        with pytest.raises(HeadMismatchError, match=says):
            running.outputs(parts, [f"e{row}" for row in range(6)])


def test_rows_without_names_are_numbered_within_the_batch_not_within_a_part():
    net, rows = Net(), torch.rand(3, 3)
    rows[1] = ODD
    parts = Parts([rows[:1], rows[1:]], [0, 1, 2], [1, 2])
    running = ModelPass(net, find_head(net), device=CPU)
    says = r"1 of 2 rows of a part of batch 1 \(examples 1\)"
    with pytest.raises(HeadMismatchError, match=says), running:
        running.outputs(parts)


class Tokens(nn.Module):
    """A language model that adds something for one token behind its last layer."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave, self.odd = nn.Embedding(9, 3), nn.Linear(3, 9), -1

    def forward(self, input_ids):
        made = self.leave(self.enter(input_ids))
        return made + (torch.arange(len(made)) == self.odd)[:, None]


def test_a_token_is_named_as_it_is_if_few_of_a_batch_are_held_to_the_head():
    torch.manual_seed(0)
    net = Tokens()
    given = {"input_ids": torch.randint(9, (4, 50)), PLACES: torch.arange(200)}
    names = [f"{at // 50}:{at % 50}" for at in range(200)]
    with rows_at_places(net, "leave") as placed:
        running = ModelPass(net, find_head(net, given), device=CPU, placed=placed)
        net.odd = 1  # 50 of the 200 are looked at; the second of them is the fifth of all
        with pytest.raises(HeadMismatchError, match=r"\(examples 0:4\)"), running:
            running.outputs(given, names)
