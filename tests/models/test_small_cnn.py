import pytest
import torch

from hardsight.heads import find_head
from hardsight.models import SmallCNN, _classifier


def test_it_has_about_fifty_thousand_parameters():
    assert 45_000 < sum(p.numel() for p in SmallCNN().parameters()) < 55_000


@pytest.mark.parametrize("side", [8, 28])
def test_logits_are_the_head_of_the_features(side):
    model, images = SmallCNN(embedding_width=32).eval(), torch.rand(2, 1, side, side)
    assert model.features(images).shape == (2, 32)
    torch.testing.assert_close(model(images), model.head(model.features(images)))
    assert find_head(model, images).name == "head"
    assert find_head(model).name == "head"


def test_the_seed_alone_decides_the_initial_weights_and_no_global_state_is_used():
    before = torch.get_rng_state()
    first = SmallCNN(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    again, other = SmallCNN(seed=3), SmallCNN(seed=4)
    torch.testing.assert_close(dict(first.state_dict()), dict(again.state_dict()))
    assert not torch.equal(first.head.weight, other.head.weight)


def test_it_learns_the_digits_within_seconds():
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    model = SmallCNN().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for batch in torch.randperm(1400, generator=generator).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        predictions = model.eval()(images[1400:]).argmax(dim=1)
    assert float((predictions == labels[1400:]).float().mean()) > 0.93


@pytest.mark.parametrize("size", [(4, 4), (14, 14), (5, 7), (3, 8), (1, 1)])
def test_quadrant_means_are_those_of_the_adaptive_pooling(size):
    maps = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.adaptive_avg_pool2d(maps, 2)
    torch.testing.assert_close(_classifier._QuadrantMeans()(maps), expected)
