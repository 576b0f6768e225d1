"""The loss of a round, worked by hand, and the rows it is given."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from hardsight.run.adapt import (
    AdaptBatches,
    AdaptConfig,
    Pool,
    RoundLabels,
    adaptation_loss,
    opened_target,
)
from hardsight.run.train import DataConfig, opened_sources

# two classes at odds 3 : 1, so p = (.75, .25)
LOGITS = torch.tensor([[math.log(3.0), 0.0]] * 3, dtype=torch.float64)
IS_TARGET = torch.tensor([False, True, True])


def test_without_regularisers_it_is_the_mean_cross_entropy_of_rows_with_a_label():
    found = adaptation_loss(LOGITS, torch.tensor([0, 1, -1]), IS_TARGET)
    assert float(found) == pytest.approx((-math.log(0.75) - math.log(0.25) + 0) / 3)


def test_soft_labels_replace_those_of_target_rows_only():
    soft = torch.tensor([[0.0, 0.0], [0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    found = adaptation_loss(LOGITS, torch.tensor([0, 1, 0]), IS_TARGET, soft)
    half = -(math.log(0.75) + math.log(0.25)) / 2
    assert float(found) == pytest.approx((-math.log(0.75) + half - math.log(0.75)) / 3)


def test_the_model_regulariser_is_for_target_rows_only():
    labels = torch.tensor([0, 0, 0])
    plain = adaptation_loss(LOGITS, labels, IS_TARGET)
    found = adaptation_loss(LOGITS, labels, IS_TARGET, mrkld_weight=0.3)
    divergence = -math.log(2) - (math.log(0.75) + math.log(0.25)) / 2
    assert float(found - plain) == pytest.approx(0.3 * 2 * divergence / 3)
    alone = adaptation_loss(LOGITS, labels, torch.zeros(3, dtype=torch.bool), mrkld_weight=0.3)
    assert float(alone) == pytest.approx(float(plain))


def test_entropy_is_of_target_rows_and_needs_no_label():
    labels = torch.tensor([0, -1, -1])
    found = adaptation_loss(LOGITS, labels, IS_TARGET, entropy_weight=2.0)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert float(found) == pytest.approx((-math.log(0.75) + 2 * 2 * entropy) / 3)


def test_an_unselected_example_has_no_gradient():
    logits = LOGITS.clone().requires_grad_()
    adaptation_loss(logits, torch.tensor([0, 1, -1]), IS_TARGET).backward()
    assert float(logits.grad[2].abs().sum()) == 0
    assert float(logits.grad[1].abs().sum()) > 0


@pytest.mark.parametrize(("use_all", "expected"), [(False, [1, 3]), (True, [0, 1, 2, 3])])
def test_rows_that_take_part_are_those_with_a_label_or_all(use_all, expected):
    labels = RoundLabels(torch.tensor([-1, 0, -1, 2]), use_all=use_all)
    assert labels.rows.tolist() == expected


def _epochs(batches, count):
    for epoch in range(count):
        batches.set_epoch(epoch)
        found = list(batches)
        assert len(found) == len(batches) == 13
        assert len({int(index) for batch in found for index in batch.index}) == 91
        yield found


def test_a_batch_carries_the_rounds_labels_and_soft_labels(source, target):
    config = AdaptConfig.load(None, (), model="m", source="s", target="t", out="o", batch_size=7)
    sources = opened_sources(DataConfig("s", validation=0.0), source, seed=0)
    aim = opened_target(config.target, target, sources.classes)
    device = torch.device("cpu")
    pool = Pool(sources, aim, config, device=device, workers=0, show=False)
    pseudo = torch.full((90,), -1)
    pseudo[[4, 50]] = torch.tensor([2, 1])
    soft = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.6, 0.1]])
    batches = AdaptBatches(pool, RoundLabels(pseudo, soft), seed=3)
    seen = {}
    every = itertools.chain.from_iterable(_epochs(batches, 8))
    for batch in every:
        assert len(batch.index) == 7  # of 92 examples one is left out in every epoch
        assert batch.is_target.tolist() == (batch.index >= 90).tolist()
        for at, index in enumerate(batch.index.tolist()):
            seen[index] = (int(batch.labels[at]), batch.soft[at].tolist())
    assert sorted(seen) == [*range(90), 94, 140]
    assert [seen[i][0] for i in range(90)] == source.labels.tolist()
    np.testing.assert_allclose(seen[94][1], soft[0])
    np.testing.assert_allclose(seen[140][1], soft[1])
    assert seen[94][0] == 2
    assert seen[0][1] == [0, 0, 0]
    batches.set_epoch(1)
    again = [batch.index.tolist() for batch in batches]
    batches.set_epoch(0)
    assert [batch.index.tolist() for batch in batches] != again
