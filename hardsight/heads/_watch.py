"""The head of a model in training: its weights as they are now, and everything that passes it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.hooks import RemovableHandle

from hardsight.errors import HeadMismatchError
from hardsight.heads._find import find_head
from hardsight.heads._layers import is_candidate, layer_named, positions_of, tensor_input, unwrapped

See = Callable[[Tensor, Tensor, Tensor], None]


def head_layer(model: nn.Module, name: str | None = None) -> nn.Module:
    """The layer that makes the logits, by its name or from the model's structure alone.

    Args:
        model: any classifier, wrapped or not, or the layer itself.
        name: of the layer, where the structure leaves more than one possibility.

    Raises:
        AmbiguousHeadError: more than one layer could be the head.
        HeadNotFoundError: none could, or there is no layer of that name.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> head_layer(net) is net[2]
        True
    """
    inner = unwrapped(model)
    if name is None and is_candidate(inner):
        return inner
    return layer_named(inner, name or find_head(inner).name)


def live_weight(layer: nn.Module) -> Tensor:
    """Weight of a layer as it is now, as a matrix and detached; looking changes nothing.

    Example:
        >>> live_weight(nn.Conv2d(8, 3, kernel_size=1)).shape
        torch.Size([3, 8])
    """
    inside: list[nn.Module] = []
    if is_parametrized(layer):
        inside = list(layer.get_submodule("parametrizations").modules())
    flags = [(module, module.training) for module in inside]
    try:
        for module, _ in flags:  # a spectral norm in training takes a step when it is read
            module.training = False
        weight: Any = layer.weight
    finally:
        for module, flag in flags:
            module.training = flag
    matrix: Tensor = weight.detach().flatten(1)
    return matrix


def live_class_weights(layer: nn.Module, classes: int) -> Tensor:
    """:func:`live_weight` with a row per class, also of a layer that keeps it as ``[D, C]``."""
    weight = live_weight(layer)
    return weight.T if len(weight) != classes == weight.shape[1] else weight


def watch(layer: nn.Module, see: See) -> RemovableHandle:
    """Call ``see(embeddings, logits, class_weights)`` at every forward pass of a head.

    The tensors are detached, ``[B, D]``, ``[B, C]`` and ``[C, D]``, and share the memory of the
    originals. What a 1x1 convolution makes of a map is averaged over the map.

    Args:
        layer: from :func:`head_layer`.
        see: called with gradients off.

    Returns:
        the hook; call its ``remove()``.

    Raises:
        HeadMismatchError: in the forward pass, if the layer gives more than one prediction per
            example.

    Example:
        >>> layer = nn.Linear(8, 3)
        >>> hook = watch(layer, lambda embeddings, logits, weights: print(embeddings.shape))
        >>> _ = layer(torch.rand(5, 8))
        torch.Size([5, 8])
        >>> hook.remove()
    """

    @torch.no_grad()
    def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs = tensor_input(args, kwargs)
        positions = None if inputs is None else positions_of(layer, inputs.detach())
        if positions is None or not isinstance(output, Tensor):
            return
        if positions.shape[1] > 1 and isinstance(layer, nn.Linear):
            raise HeadMismatchError(
                f"the head takes {positions.shape[1]} tokens per example, and cannot tell which "
                "one decides; pass the embeddings and logits of each example by hand"
            )
        outputs = positions_of(layer, output.detach())
        if outputs is None:
            return
        embeddings, logits = (_mean_position(part) for part in (positions, outputs))
        see(embeddings, logits, live_class_weights(layer, logits.shape[1]))

    # compiled code calls the hook between two graphs
    uncompiled: Any = torch.compiler.disable(hook)
    return layer.register_forward_hook(uncompiled, with_kwargs=True)


def _mean_position(positions: Tensor) -> Tensor:
    """Features ``[B, D]`` of ``[B, P, D]``."""
    return positions[:, 0] if positions.shape[1] == 1 else positions.mean(dim=1)
