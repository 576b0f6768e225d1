import pytest
import torch
from torch import nn

from hardsight.errors import AmbiguousHeadError, HeadMismatchError, HeadNotFoundError
from hardsight.heads import head_layer, live_weight, watch


class Watched:
    """What a hook saw, call by call."""

    def __init__(self, layer):
        self.calls = []
        self.hook = watch(layer, lambda *seen: self.calls.append([part.clone() for part in seen]))


def test_every_pass_through_a_linear_head_is_seen_with_its_weights():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    watched = Watched(net[2])
    inputs = torch.rand(5, 4)
    logits = net(inputs)
    ((embeddings, seen, weights),) = watched.calls
    torch.testing.assert_close(embeddings, net[:2](inputs))
    torch.testing.assert_close(seen, logits)
    torch.testing.assert_close(weights, net[2].weight)
    assert not any(part.requires_grad for part in (embeddings, seen, weights))


def test_nothing_is_seen_after_the_hook_was_removed():
    layer = nn.Linear(4, 3)
    watched = Watched(layer)
    watched.hook.remove()
    layer(torch.rand(2, 4))
    assert watched.calls == []


def test_a_convolution_on_a_map_is_read_as_its_mean():
    layer = nn.Conv2d(4, 3, kernel_size=1)
    watched = Watched(layer)
    maps = torch.rand(2, 4, 5, 5)
    logits = layer(maps).mean(dim=(2, 3))
    ((embeddings, seen, weights),) = watched.calls
    torch.testing.assert_close(embeddings, maps.mean(dim=(2, 3)))
    torch.testing.assert_close(seen, logits)
    torch.testing.assert_close(embeddings @ weights.T + layer.bias, seen)


def test_a_weight_kept_as_columns_is_turned():
    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 3))

        def forward(self, inputs):
            return inputs @ self.weight

    layer = Columns()
    watched = Watched(layer)
    layer(torch.rand(2, 4))
    torch.testing.assert_close(watched.calls[0][2], layer.weight.T)


def test_a_head_on_tokens_cannot_tell_which_one_decides():
    layer = nn.Linear(4, 3)
    Watched(layer)
    with pytest.raises(HeadMismatchError, match="takes 7 tokens per example"):
        layer(torch.rand(2, 7, 4))


def test_a_single_token_is_an_example():
    layer = nn.Linear(4, 3)
    watched = Watched(layer)
    layer(torch.rand(2, 1, 4))
    assert [list(part.shape) for part in watched.calls[0]] == [[2, 4], [2, 3], [3, 4]]


def test_the_head_of_a_compiled_model_is_seen():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    watched = Watched(head_layer(torch.compile(net, backend="eager")))
    torch.compile(net, backend="eager")(torch.rand(5, 4))
    assert len(watched.calls) == 1


def test_the_layer_itself_is_its_own_head():
    layer = nn.Linear(4, 3)
    assert head_layer(layer) is layer


def test_a_head_is_found_by_name_also_inside_a_wrapper():
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
    assert head_layer(nn.DataParallel(net), "0") is net[0]
    with pytest.raises(HeadNotFoundError, match="unknown layer of Sequential '7'"):
        head_layer(net, "7")


def test_a_model_that_leaves_a_doubt_asks_for_a_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    with pytest.raises(AmbiguousHeadError, match='pass head="b"'):
        head_layer(Two())


def test_looking_at_a_spectral_norm_takes_no_step_of_it():
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).train()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    first, second = live_weight(layer), live_weight(layer)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    for name, value in layer.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert layer.parametrizations.weight[0].training
