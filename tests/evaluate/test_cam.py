"""Grad-CAM against captum and by hand; the layer found in every kind of model."""

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from torch import nn
from torch.nn.functional import interpolate

from hardsight.errors import ModelError, ShapeError
from hardsight.evaluate import (
    CamLayer,
    deletion_insertion,
    find_cam_layer,
    grad_cam,
    map_entropy,
    top_area_share,
)
from hardsight.models import SmallCNN
from tests._nets import tiny_swin, tiny_vit

IMAGES = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Residual(nn.Module):
    """A last block with a sum behind its last convolution, and activations in place."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.block = Block()
        self.fc = nn.Linear(6, 3)

    def forward(self, images):
        return self.fc(self.block(self.stem(images)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, maps):
        return self.act(self.conv(maps) + maps)


@pytest.mark.parametrize(("net", "name", "grid"), [
    (SmallCNN(), "body.9", (4, 4)),  # the activation behind the last convolution, not the pooling
    (Residual(), "block", (8, 8)),  # the sum, not the branch
])  # fmt: skip
def test_the_layer_behind_the_last_convolution_is_found(net, name, grid):
    assert find_cam_layer(net.eval(), IMAGES) == CamLayer(name, grid, tokens=False)


def test_in_a_vision_transformer_the_last_norm_whose_patches_matter_is_found():
    net = tiny_vit(3)
    found = find_cam_layer(net, IMAGES)
    assert found.tokens
    assert found.grid == (4, 4)
    # the norms behind it are read at the class token only
    norms = [name for name, part in net.named_modules() if isinstance(part, nn.LayerNorm)]
    assert norms.index(found.name) == 2  # of two per block and one at the end


def test_where_patches_are_merged_the_last_grid_is_found_and_not_the_first():
    net, images = tiny_swin(3), torch.rand(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    found = find_cam_layer(net, images)
    assert found == CamLayer("swin.layernorm", (4, 4), tokens=True)  # 8 by 8 patches, merged once
    maps = grad_cam(net, images, torch.tensor([0, 1, 2, 0]), layer=found)
    assert maps.shape == (4, 16, 16)
    assert bool(maps.isfinite().all())


class ConvolutionAtTheEnd(nn.Module):
    """A head that is a convolution; logits come as ``[N, C, 1, 1]``."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 1)

    def forward(self, images):
        return self.head(self.body(images).mean((2, 3), keepdim=True))


def test_logits_with_a_height_and_a_width_of_1_are_explained_like_flat_ones():
    torch.manual_seed(0)
    net, classes = ConvolutionAtTheEnd().eval(), torch.tensor([0, 1, 2, 0])
    flat = nn.Sequential(net, nn.Flatten())
    layer = find_cam_layer(net, IMAGES)
    expected = grad_cam(flat, IMAGES, classes, layer=CamLayer("0.body", layer.grid, tokens=False))
    assert layer.name == "body"
    torch.testing.assert_close(grad_cam(net, IMAGES, classes, layer=layer), expected)


def test_maps_equal_those_of_captum():
    from captum.attr import LayerGradCam

    net, classes = SmallCNN(seed=3).eval(), torch.tensor([0, 3, 5, 9])
    attribution = LayerGradCam(net, net.body[9]).attribute(IMAGES, classes, relu_attributions=True)
    expected = interpolate(attribution, size=(8, 8), mode="bilinear").squeeze(1).detach()
    expected = expected / expected.amax((1, 2), keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(grad_cam(net, IMAGES, classes), expected)


def test_a_map_points_at_the_part_that_decides():
    net = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(2, 2, bias=False))  # fmt: skip
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
        net[3].weight.copy_(torch.eye(2))
    image = torch.full((1, 1, 6, 6), -1.0)
    image[0, 0, 4, 1] = 2.0
    found = grad_cam(net, image, torch.tensor([0]))[0]
    assert found.argmax() == 4 * 6 + 1
    assert found.sum() == 1  # bright pixels speak for class 0, all others against it


def test_token_maps_match_the_equation_written_out():
    net, classes = tiny_vit(3), torch.tensor([0, 1, 2, 0])
    layer = find_cam_layer(net, IMAGES)
    kept = {}
    handle = net.get_submodule(layer.name).register_forward_hook(
        lambda m, i, output: kept.update(out=output)
    )
    logits = net(IMAGES).logits
    handle.remove()
    (grad,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), kept["out"])
    activations, gradients = kept["out"].detach().numpy()[:, 1:], grad.numpy()[:, 1:]
    alpha = gradients.mean(1, keepdims=True)  # over the patches
    expected = np.maximum(0, (alpha * activations).sum(2)).reshape(4, 1, 4, 4)
    expected = interpolate(torch.tensor(expected), size=(8, 8), mode="bilinear").squeeze(1)
    expected = expected / expected.amax((1, 2), keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(grad_cam(net, IMAGES, classes, layer=layer), expected)


def test_frozen_parameters_and_existing_gradients_are_no_obstacle():
    net, classes = SmallCNN(seed=3).eval(), torch.zeros(4, dtype=torch.int64)
    expected = grad_cam(net, IMAGES, classes)
    assert all(parameter.grad is None for parameter in net.parameters())
    net.requires_grad_(False)
    torch.testing.assert_close(grad_cam(net, IMAGES, classes), expected)


def test_hooks_are_gone_afterwards_also_after_an_error():
    net = SmallCNN().eval()
    grad_cam(net, IMAGES, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(RuntimeError):
        grad_cam(net, torch.rand(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64))
    assert not any(module._forward_hooks for module in net.modules())


def test_compactness_of_one_pixel_and_of_a_flat_map():
    maps = torch.zeros(3, 5, 5)
    maps[0, 2, 2], maps[1] = 1, 1
    torch.testing.assert_close(top_area_share(maps, area=0.2), torch.tensor([1, 0.2, torch.nan]),
                               equal_nan=True)  # fmt: skip
    torch.testing.assert_close(map_entropy(maps), torch.tensor([0, 1, torch.nan]), equal_nan=True)


def test_deletion_and_insertion_match_curves_worked_by_hand():
    def forward(images):  # class 0 has probability 1/2 + half the share of kept evidence
        p = 0.5 + images.sum((1, 2, 3)) / 4
        return torch.stack([p.log(), (1 - p + 1e-9).log()], 1)

    image = torch.zeros(1, 1, 2, 2)
    image[0, 0, 1] = torch.tensor([0.5, 1.0])
    black = torch.zeros(1, 1, 1, 1)
    deletion, insertion = deletion_insertion(forward, image, image[:, 0], torch.tensor([0]),
                                             steps=4, background=black)  # fmt: skip
    out, into = [0.875, 0.625, 0.5, 0.5, 0.5], [0.5, 0.75, 0.875, 0.875, 0.875]
    torch.testing.assert_close(deletion, torch.tensor([trapezoid(out) / 4]).float())
    torch.testing.assert_close(insertion, torch.tensor([trapezoid(into) / 4]).float())


def test_bad_input_says_what_was_expected():
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    classes = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ModelError, match="Sequential has no 2-d convolution with an output of"):
        grad_cam(mlp, IMAGES, classes)
    with pytest.raises(ModelError, match=r"no layer 'body.99' .* can use: .*body.9"):
        find_cam_layer(SmallCNN(), IMAGES, name="body.99")
    with pytest.raises(ModelError, match=r"the output \[4, 10\] of layer 'head' is not laid out"):
        find_cam_layer(SmallCNN(), IMAGES, name="head")
    with pytest.raises(ShapeError, match=r"images \[N, C, H, W\], got \[4, 64\]"):
        grad_cam(mlp, IMAGES.flatten(1), classes)
    assert find_cam_layer(SmallCNN(), IMAGES, name="body.0").grid == (8, 8)
    assert find_cam_layer(tiny_vit(3), IMAGES, name="vit.layernorm").grid == (4, 4)
