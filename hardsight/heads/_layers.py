"""List the layers of a model that could be its head, and read their weights."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from hardsight.errors import AmbiguousHeadError, HeadNotFoundError, ModelError, UnknownLayerError
from hardsight.registry import unknown_name

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile``.

    Example:
        >>> net = nn.Linear(2, 3)
        >>> unwrapped(nn.DataParallel(net)) is net
        True
    """
    # in a loop, since wrappers may be nested in any order
    while True:
        if "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


def is_linear(layer: nn.Module) -> bool:
    """Whether the layer is linear by type: ``nn.Linear`` or a plain 1x1 convolution."""
    return isinstance(layer, nn.Linear) or is_pointwise(layer)


def is_pointwise(layer: nn.Module) -> bool:
    """Whether the layer is a 1x1 convolution that maps every pixel by the same matrix."""
    if not isinstance(layer, _CONVOLUTIONS) or layer.groups != 1:
        return False
    steps = {*layer.kernel_size, *layer.stride}
    # padding of a 1x1 kernel would add pixels without features
    return steps == {1} and (layer.padding in ("same", "valid") or not any(layer.padding))


def is_candidate(layer: nn.Module) -> bool:
    """Whether the layer may be a head: linear by type, or a user's own with a matrix ``weight``.

    The latter includes cosine heads; the verification finds out how they use their weight.
    """
    if is_linear(layer):
        return True
    # _parameters instead of getattr: a property may run code, and a buffer is not trained
    weight = layer._parameters.get("weight")
    return weight is not None and not is_lazy(weight) and weight.ndim == 2


def candidates(model: nn.Module) -> dict[str, nn.Module]:
    """Layers that may be the head, by name; the first name if a layer is registered twice."""
    return {name: layer for name, layer in model.named_modules() if is_candidate(layer)}


def is_layer_name(model: nn.Module, name: str) -> bool:
    """Whether a module of an unwrapped model is called ``name``."""
    try:
        module_named(model, name)
    except AttributeError:
        return False
    return True


def module_named(model: nn.Module, name: str) -> nn.Module:
    """The module of an unwrapped model called ``name``, also as a wrapper shows its name."""
    return model.get_submodule(inner_name(name))


def inner_name(name: str) -> str:
    """A name as a wrapper of the model shows it, without the wrapper."""
    for prefix in ("module.", "_orig_mod."):
        name = name.removeprefix(prefix)
    return name


def layer_named(model: nn.Module, name: str) -> nn.Module:
    """The layer of an unwrapped model called ``name``.

    Raises:
        HeadNotFoundError: there is no such layer, or it holds no matrix of class weights.
    """
    try:
        layer = module_named(model, name)
    except AttributeError:
        known = [*candidates(model), *bare_parameters(model)]
        message = unknown_name(f"layer of {type(model).__name__}", name, known)
        raise UnknownLayerError(message) from None
    if not is_candidate(layer):
        raise HeadNotFoundError(
            f"layer {name!r} of {type(model).__name__} is {type(layer).__name__}, not a linear "
            f"layer or 1x1 convolution; linear layers: {', '.join(candidates(model)) or 'none'}"
        )
    return layer


def bare_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Matrices outside of layers, such as that of an ``einsum`` head, by name."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if not is_lazy(parameter)
        and parameter.ndim == 2
        # the weight of a layer is found by its layer
        and not is_candidate(model.get_submodule(name.rpartition(".")[0]))
    }


def parameter_named(model: nn.Module, name: str) -> Tensor | None:
    """The matrix of an unwrapped model called ``name``, if it is a parameter or buffer of it."""
    above, _, last = inner_name(name).rpartition(".")
    try:
        value = getattr(model.get_submodule(above), last, None)
    except AttributeError:
        return None
    is_matrix = isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()
    return value.detach() if is_matrix and isinstance(value, Tensor) else None


def parameter_weights(
    model: nn.Module, name: str, num_classes: int
) -> list[tuple[Tensor, Tensor | None]]:
    """The matrix called ``name`` as ``[C, D]``, once without a bias and once with each candidate.

    A candidate is any vector of the right length in the module that owns the matrix.
    """
    matrix = parameter_named(model, name)
    assert matrix is not None
    owner = model.get_submodule(inner_name(name).rpartition(".")[0])
    vectors = [*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False)]
    # any vector of the right length, since nothing else tells which one is the bias
    biases = [value.detach() for _, value in vectors if value.shape == (num_classes,)]
    ways = [way for way in (matrix, matrix.T) if len(way) == num_classes]
    return [(way, bias) for way in ways for bias in (None, *biases)]


def check_initialised(model: nn.Module) -> None:
    """Raise unless every parameter has values.

    Raises:
        ModelError: a lazy layer was never run, or parameters are on the meta device.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"{name} of {type(model).__name__} is not initialised; run one batch through the "
                "model first, so that its lazy layers get their shapes"
            )
        if parameter.is_meta:
            raise ModelError(
                f"{name} of {type(model).__name__} is on the meta device and has no values; load "
                "weights first: model.to_empty(device=...), then model.load_state_dict(...)"
            )


def weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """The effective weight as stored (a convolution's as a matrix) and the bias, both detached.

    Call it with the layer in eval mode, since reading a spectral norm in train mode updates it.
    """
    # first, since legacy norms compute the weight in a hook
    for hook in layer._forward_pre_hooks.values():
        _refresh(layer, hook)
    weight: Any = layer.weight
    bias: Any = getattr(layer, "bias", None)
    matrix: Tensor = weight.detach().flatten(1)
    return matrix, bias.detach() if isinstance(bias, Tensor) else None


def class_weights(layer: nn.Module, num_classes: int) -> list[tuple[Tensor, Tensor | None]]:
    """Weight ``[C, D]`` and bias of a layer, in each orientation with ``num_classes`` outputs.

    A user's own module may keep its weight as ``[D, C]``.
    """
    weight, bias = weight_and_bias(layer)
    # linear layers of torch are [C, D] by definition
    ways = (weight,) if is_linear(layer) else (weight, weight.T)
    fitting_bias = bias if bias is not None and bias.shape == (num_classes,) else None
    return [(way, fitting_bias) for way in ways if len(way) == num_classes]


def num_outputs(layer: nn.Module) -> int:
    """Number of outputs of a linear layer."""
    return len(weight_and_bias(layer)[0])


def _refresh(layer: nn.Module, hook: Any) -> None:
    """Recompute the weight of a legacy weight or spectral norm, as a forward pass would."""
    if isinstance(hook, WeightNorm):
        layer.weight = hook.compute_weight(layer)
    elif isinstance(hook, SpectralNorm):
        # without a power iteration, since reading must not change the training state
        layer.weight = hook.compute_weight(layer, do_power_iteration=False)


def positions_of(layer: nn.Module, inputs: Tensor) -> Tensor | None:
    """The input of a layer as ``[B, P, D]``, channels last; ``None`` if it has no batch."""
    if isinstance(layer, _CONVOLUTIONS):
        # convolutions have channels first
        return inputs.flatten(2).transpose(1, 2) if inputs.ndim == layer.weight.ndim else None
    if inputs.ndim < 2:
        return None
    return inputs[:, None] if inputs.ndim == 2 else inputs.flatten(1, -2)


def tokens_of_width(value: Any, width: int) -> Tensor | None:
    """A tensor with ``width`` channels, last or first behind the batch, as ``[B, P, width]``."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim < 2:
        return None
    # check the last dimension first: tokens [B, P, D] are more common than maps of this width
    if value.shape[-1] == width:
        return value[:, None] if value.ndim == 2 else value.flatten(1, -2)
    if value.ndim > 2 and value.shape[1] == width:
        return value.flatten(2).transpose(1, 2)
    return None


def tensor_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first floating-point tensor among the arguments of a layer."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    return None


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Use eval mode without gradient in the block, and restore all flags and random states after.

    Flags are restored one by one, since some models override ``train()``, and a layer that the
    user has frozen in eval mode must stay in it.
    """
    flags = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
            for module, _ in flags:
                module.training = False
            yield
    finally:
        for module, flag in flags:
            module.training = flag


def name_from_structure(model: nn.Module, layers: dict[str, nn.Module]) -> str:
    """The head's name, if the structure leaves only one possibility.

    A linear layer that is followed by another one in an ``nn.Sequential`` is not the head. The rest
    is narrowed down while something is left: to layers with the number of outputs that the model
    states, to layers whose outputs no other layer could take, to dense layers.

    Raises:
        AmbiguousHeadError: more than one layer is left.
        HeadNotFoundError: there is no linear layer.
    """
    # only by type, since without a batch a user's matrix could be anything
    linear = {name: layer for name, layer in layers.items() if is_linear(layer)}
    left = [name for name in linear if not _feeds_another(model, name, linear)]
    stated = stated_classes(model)
    # apply each rule in turn, unless it would leave no layer
    for wanted in (
        lambda name: num_outputs(linear[name]) == stated,
        lambda name: not _could_feed_another(name, linear),
        lambda name: not is_pointwise(linear[name]),
    ):
        left = list(filter(wanted, left)) or left
    if len(left) == 1:
        return left[0]
    kind = type(model).__name__
    if not left:
        raise HeadNotFoundError(
            f"{kind} has no linear layer or 1x1 convolution; pass inputs=..., a batch, to look for "
            "a head of another type, or score stored embeddings and class weights"
        )
    widths = {num_outputs(linear[name]) for name in left}
    what = f"have {widths.pop()} outputs" if len(widths) == 1 else "could be the head"
    shown = ", ".join(left) if len(left) <= 6 else f"{', '.join(left[:2])}, ..., {left[-1]}"
    raise AmbiguousHeadError(
        f"{len(left)} linear layers {what} ({shown}) in {kind}; {choose(left[-1])}, or pass "
        "inputs=..., a batch that tells which one makes the logits"
    )


def choose(name: str) -> str:
    """The advice for a user who has to name a layer."""
    return f'pass head="{name}" (to find_head: name="{name}")'


def _feeds_another(model: nn.Module, name: str, linear: Iterable[str]) -> bool:
    """Whether a later part of an enclosing ``nn.Sequential`` holds another linear layer."""
    parts = name.split(".")
    for depth, part in enumerate(parts if name else []):
        above = ".".join(parts[:depth])
        container = model.get_submodule(above)
        if isinstance(container, nn.Sequential):
            order = list(container._modules)
            later = order[order.index(part) + 1 :]
            inside = tuple(f"{above}.{step}.".lstrip(".") for step in later)
            if any(f"{other}.".startswith(inside) for other in linear):
                return True
    return False


def _could_feed_another(name: str, linear: Mapping[str, nn.Module]) -> bool:
    """Whether another linear layer takes as many inputs as this one has outputs.

    The first of two layers of a projection is such a layer.
    """
    outputs = num_outputs(linear[name])
    return any(
        weight_and_bias(layer)[0].shape[1] == outputs
        for other, layer in linear.items()
        if other != name
    )


def stated_classes(model: nn.Module) -> int | None:
    """The number of classes a model states: Hugging Face ``num_labels``, timm ``num_classes``."""
    config = getattr(model, "config", None)
    stated = getattr(config, "num_labels", getattr(model, "num_classes", None))
    return stated if isinstance(stated, int) else None
