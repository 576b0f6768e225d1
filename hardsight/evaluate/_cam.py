"""Grad-CAM: the places in an image where the evidence for a class is.

captum's LayerGradCam averages gradients over all but the first two dimensions, which is right for
maps ``[N, K, H, W]`` but wrong for tokens ``[N, T, K]``. The function here handles both; tests show
that it equals captum's on maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from hardsight._checks import check_rows
from hardsight.errors import ModelError, ShapeError
from hardsight.heads import logits_of

_MOST_PREFIX = 8  # class, distillation and register tokens that may precede the grid


@dataclass(frozen=True)
class CamLayer:
    """A layer whose output is laid out like the image.

    Attributes:
        name: path of the layer in the model.
        grid: height and width of its output.
        tokens: whether the output is tokens ``[N, T, K]`` instead of maps ``[N, K, H, W]``.
    """

    name: str
    grid: tuple[int, int]
    tokens: bool

    def maps(self, output: Tensor) -> Tensor:
        """Return the layer's output, or its gradient, as maps ``[N, K, H, W]``."""
        if not self.tokens:
            return output
        height, width = self.grid
        # tokens that are not patches come first, so the patches are counted from the end
        patches = output[:, output.shape[1] - height * width :]
        return patches.transpose(1, 2).reshape(len(output), -1, height, width)


def find_cam_layer(model: nn.Module, inputs: Tensor, *, name: str | None = None) -> CamLayer:
    """Return the last layer whose output is laid out like the image and decides the prediction.

    In a convolutional model, this is the last layer with the output size of the last convolution,
    which includes the activation or sum after that convolution. In a transformer on patches, it is
    the last normalisation layer over the tokens whose patches still reach the logits; after it,
    often only the class token does. If patches are merged on the way, two by two, the last grid
    counts.

    Args:
        model: any classifier of images, in eval mode.
        inputs: a few examples as the model takes them, ``[N, C, H, W]``.
        name: the layer to use, instead of searching for one.

    Raises:
        ModelError: no layer is laid out like the image, or there is no layer of that name.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        ...                     nn.Flatten(), nn.Linear(2, 3))
        >>> find_cam_layer(net, torch.rand(2, 1, 8, 8))
        CamLayer(name='1', grid=(6, 6), tokens=False)
    """
    outputs = _outputs(model, inputs)
    if name is not None:
        if name not in outputs:
            usable = [key for key, output in outputs.items() if _is_map(output)]
            raise ModelError(
                f"no layer {name!r} of {type(model).__name__} gives one tensor in a forward pass; "
                f"Grad-CAM can use: {', '.join(usable[-5:]) or 'none'}"
            )
        return _described(name, outputs[name])
    convolutions = [key for key in outputs if isinstance(model.get_submodule(key), nn.Conv2d)]
    spread = [key for key in convolutions if _is_map(outputs[key])]
    if not spread:
        raise ModelError(
            f"Grad-CAM needs a layer whose output is laid out like the image; "
            f"{type(model).__name__} has no 2-d convolution with an output of more than one pixel. "
            "Pass the name of a layer of patch tokens, or leave Grad-CAM out"
        )
    grid = (outputs[spread[-1]].shape[2], outputs[spread[-1]].shape[3])
    later = list(outputs)[list(outputs).index(spread[-1]) :]
    tokens = [key for key in later if _is_tokens(outputs[key], grid)]
    if tokens:
        grid, merged = _last_grid(outputs, tokens, grid)
        return _token_layer(model, inputs, merged, grid)
    same = [key for key in later if _is_map(outputs[key]) and outputs[key].shape[2:] == grid]
    return CamLayer(same[-1], grid, tokens=False)


def grad_cam(
    model: nn.Module, inputs: Tensor, classes: Tensor, *, layer: CamLayer | None = None
) -> Tensor:
    r"""Return where the evidence for a class is, per example.

    .. math:: \mathrm{ReLU}\Big(\sum_k \alpha_k A^k\Big), \qquad
        \alpha_k = \frac{1}{HW} \sum_{ij} \frac{\partial z_c}{\partial A^k_{ij}}

    Args:
        model: any classifier of images, in eval mode; the gradients of its parameters stay as is.
        inputs: inputs as the model takes them, ``[N, C, H, W]``.
        classes: the class to explain for each example, ``[N]``.
        layer: a layer from :func:`find_cam_layer`; ``None`` searches for it.

    Returns:
        ``[N, H, W]`` in the size of the inputs, by bilinear interpolation, each scaled to a maximum
        of 1; all 0 if there is no evidence for the class.

    Raises:
        ModelError: no layer is laid out like the image.
        ShapeError: the inputs are not images, or the tensors differ in length.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        ...                     nn.Flatten(), nn.Linear(2, 3))
        >>> grad_cam(net, torch.rand(2, 1, 8, 8), torch.tensor([0, 1])).shape
        torch.Size([2, 8, 8])

    Reference:
        Selvaraju et al., Grad-CAM, ICCV 2017, Eqs. (1) and (2); as in AMC-Loss, Figs. 2 and 6.
    """
    if inputs.ndim != 4:
        raise ShapeError(f"expected images [N, C, H, W], got {list(inputs.shape)}")
    check_rows(inputs=inputs, classes=classes)
    chosen = find_cam_layer(model, inputs[:2]) if layer is None else layer
    output, gradient = _output_and_gradient(model, inputs, classes, [chosen.name])[chosen.name]
    weights = chosen.maps(gradient).mean(dim=(2, 3), keepdim=True)
    maps = (weights * chosen.maps(output)).sum(dim=1, keepdim=True).relu()
    spread = interpolate(maps.float(), size=inputs.shape[2:], mode="bilinear").squeeze(1)
    largest = spread.amax(dim=(1, 2), keepdim=True)
    return spread / torch.where(largest == 0, 1, largest)


def top_area_share(maps: Tensor, *, area: float = 0.2) -> Tensor:
    """Return the share of a map's total in its strongest pixels: 1 is compact, ``area`` is flat.

    Args:
        maps: values of at least 0, ``[N, H, W]``.
        area: share of the pixels that count as strongest, rounded up to whole pixels.

    Returns:
        ``[N]`` in [area, 1]; NaN for a map that is 0 everywhere.

    Example:
        >>> maps = torch.zeros(1, 2, 5)
        >>> maps[0, 0, :2] = 1
        >>> top_area_share(maps, area=0.2)
        tensor([1.])
    """
    rows = maps.flatten(1)
    k = max(1, -int(-area * rows.shape[1] // 1))  # floor of the negative rounds up
    share: Tensor = rows.topk(k, dim=1).values.sum(dim=1) / rows.sum(dim=1)
    return share


def map_entropy(maps: Tensor) -> Tensor:
    r"""Return the entropy of a map read as a distribution over pixels, relative to the largest.

    .. math:: -\frac{1}{\log HW} \sum_{ij} m_{ij} \log m_{ij}, \qquad \sum_{ij} m_{ij} = 1

    Args:
        maps: values of at least 0, ``[N, H, W]``.

    Returns:
        ``[N]`` in [0, 1]: 0 is one pixel, 1 is flat; NaN for a map that is 0 everywhere.

    Example:
        >>> map_entropy(torch.ones(1, 4, 4))
        tensor([1.])
    """
    rows = maps.flatten(1)
    share = rows / rows.sum(dim=1, keepdim=True)
    entropy: Tensor = torch.special.entr(share).sum(dim=1) / math.log(rows.shape[1])
    return entropy


@torch.no_grad()
def deletion_insertion(
    forward: Callable[[Tensor], Tensor],
    inputs: Tensor,
    maps: Tensor,
    classes: Tensor,
    *,
    steps: int = 16,
    background: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return how a class's probability changes as its strongest pixels are removed, or come in.

    Args:
        forward: maps inputs ``[N, C, H, W]`` to logits, in eval mode.
        inputs: inputs as the model takes them.
        maps: importance of each pixel, ``[N, H, W]``.
        classes: the class in question, ``[N]``.
        steps: number of equal shares of the pixels that are moved, one after the other.
        background: replacement for a missing pixel; by default the mean of each image.

    Returns:
        Areas under the two curves, ``[N]`` each in [0, 1]. A map that points at the evidence has
        a small deletion area and a large insertion area.

    Example:
        >>> net = lambda images: torch.stack([images.sum((1, 2, 3)), torch.zeros(len(images))], 1)
        >>> image = torch.zeros(1, 1, 4, 4)
        >>> image[0, 0, 0, 0] = 20
        >>> out, into = deletion_insertion(net, image, image[:, 0], torch.tensor([0]),
        ...                                background=torch.zeros(1, 1, 1, 1))
        >>> bool(out < into)
        True

    Reference:
        Petsiuk et al., RISE, BMVC 2018.
    """
    check_rows(inputs=inputs, maps=maps, classes=classes)
    base = inputs.mean(dim=(2, 3), keepdim=True) if background is None else background
    base = base.expand_as(inputs)
    # a stable sort, so that equal values have the same order in every run
    order = maps.flatten(1).sort(dim=1, descending=True, stable=True).indices
    ranks = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    ranks = ranks.view(maps.shape)[:, None]
    curves = []
    for step in range(steps + 1):
        strong = ranks < order.shape[1] * step // steps
        for changed in (torch.where(strong, base, inputs), torch.where(strong, inputs, base)):
            probs = forward(changed).softmax(dim=1)
            curves.append(probs.gather(1, classes[:, None]).squeeze(1))
    deletion, insertion = torch.stack(curves[::2]), torch.stack(curves[1::2])
    return torch.trapezoid(deletion, dim=0) / steps, torch.trapezoid(insertion, dim=0) / steps


def _is_map(output: Tensor) -> bool:
    return output.ndim == 4 and output.shape[2] * output.shape[3] > 1


def _is_tokens(output: Tensor, grid: tuple[int, int]) -> bool:
    return output.ndim == 3 and 0 <= output.shape[1] - grid[0] * grid[1] <= _MOST_PREFIX


def _last_grid(
    outputs: dict[str, Tensor], tokens: list[str], grid: tuple[int, int]
) -> tuple[tuple[int, int], list[str]]:
    """Return the grid after all two-by-two merging of patches, and the layers of tokens on it."""
    while min(grid) > 2:
        half = ((grid[0] + 1) // 2, (grid[1] + 1) // 2)
        later = list(outputs)[list(outputs).index(tokens[-1]) :]
        # models that merge patches have no class token, so the number of tokens must be exact
        merged = [key for key in later if outputs[key].ndim == 3
                  and outputs[key].shape[1] == half[0] * half[1]]  # fmt: skip
        if not merged:
            break
        grid, tokens = half, merged
    return grid, tokens


def _described(name: str, output: Tensor) -> CamLayer:
    """Return the layer that the user named; its tokens are assumed to form a square grid."""
    if _is_map(output):
        return CamLayer(name, (output.shape[2], output.shape[3]), tokens=False)
    side = int(output.shape[1] ** 0.5) if output.ndim == 3 else 0
    if side > 1 and output.shape[1] - side * side <= _MOST_PREFIX:
        return CamLayer(name, (side, side), tokens=True)
    raise ModelError(
        f"the output {list(output.shape)} of layer {name!r} is not laid out like an image; "
        "Grad-CAM needs maps [N, K, H, W] or tokens [N, T, K] of a square grid"
    )


def _token_layer(
    model: nn.Module, inputs: Tensor, names: list[str], grid: tuple[int, int]
) -> CamLayer:
    norms = [key for key in names if "norm" in type(model.get_submodule(key)).__name__.lower()]
    candidates = [CamLayer(key, grid, tokens=True) for key in norms or names]
    classes = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
    outputs = _output_and_gradient(model, inputs, classes, norms or names)
    reaching = [layer for layer in candidates if bool(layer.maps(outputs[layer.name][1]).any())]
    if not reaching:
        raise ModelError(
            f"the patch tokens of {type(model).__name__} do not reach its logits, so Grad-CAM "
            "cannot say which of them matter"
        )
    return reaching[-1]


@contextmanager
def _hooked(model: nn.Module, keep: Callable[[str, Any], Tensor | None]) -> Iterator[None]:
    handles = [
        module.register_forward_hook(lambda _m, _i, output, name=name: keep(name, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _outputs(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Return the last output of every layer that returns a tensor, in the order of the calls."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs.pop(name, None)  # a layer that is used twice is listed at its last use
            outputs[name] = output

    with torch.no_grad(), _hooked(model, keep):
        model(inputs)
    return outputs


def _output_and_gradient(
    model: nn.Module, inputs: Tensor, classes: Tensor, names: list[str]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return outputs of layers, and the gradients of each example's logit with respect to them."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, output: Any) -> Tensor | None:
        if name not in names:
            return None
        if not output.requires_grad:  # if all parameters are frozen, the graph starts here
            output.requires_grad_()
        outputs[name] = output
        copy: Tensor = output.clone()  # the next layer may change its input in place
        return copy

    with torch.enable_grad(), _hooked(model, keep):
        logits = logits_of(model(inputs)).flatten(1)  # a final convolution gives [N, C, 1, 1]
        own = logits.gather(1, classes[:, None]).sum()
        gradients = torch.autograd.grad(own, [outputs[name] for name in names], allow_unused=True)
    return {
        name: (outputs[name].detach(), torch.zeros_like(outputs[name]) if grad is None else grad)
        for name, grad in zip(names, gradients, strict=True)
    }
