"""Finding the classifier head of a model."""

from typing import Any

import torch
from torch import Tensor, nn

from hardsight.errors import AmbiguousHeadError, HeadNotFoundError, NonFiniteError
from hardsight.heads._explain import explanation
from hardsight.heads._head import Head, Reading
from hardsight.heads._layers import (
    candidates,
    check_initialised,
    class_weights,
    evaluating,
    layer_named,
    unwrapped,
    weight_and_bias,
)
from hardsight.heads._record import Call, recorded_pass
from hardsight.heads._structure import choose, name_from_structure
from hardsight.heads._verify import LinearForm, linear_form


def find_head(model: nn.Module, inputs: Any = None, *, name: str | None = None) -> Head:
    r"""The linear layer that makes a model's logits, verified on a batch.

    .. math:: \mathrm{features} \cdot W^\top + b = \mathrm{logits}

    One forward pass records what enters every linear layer and 1x1 convolution. The head is the
    layer for which the equation holds. The pass runs in eval mode, without gradient and without
    compiled code; training flags, batch-norm statistics and random states are as before afterwards.

    Also understood:

    - A head on a map or on tokens, followed by the mean, or by taking the first or last token: the
      same mean or token of its input is the embedding.
    - One positive constant after the layer (a temperature): it is folded into the weight.
    - Cosine heads :math:`s\,\hat x \hat W^\top`, as an ``nn.Linear`` subclass or any module with a
      matrix ``weight``: embeddings are the unit vectors :math:`\hat x`, the weight is
      :math:`s \hat W`. Angles are those of the raw vectors, the equation holds, and the feature
      norm is 1, which is all that such a head sees of it.

    Args:
        model: any classifier, also inside ``DataParallel`` or ``torch.compile``.
        inputs: a batch as the model takes it: a tensor, a tuple or list of arguments, or a mapping
            of keywords. Two examples are enough. Without it the head is guessed from the structure
            alone, and :func:`capture` verifies it on its first batch.
        name: the layer to use, where the search is not wanted or not unambiguous.

    Returns:
        the head, with its effective weight.

    Raises:
        AmbiguousHeadError: more than one layer fits.
        HeadNotFoundError: no layer fits, ``name`` is no linear layer, or the model is TorchScript.
        HeadMismatchError: layers have the right shape, but do not give the logits.
        ModelError: the forward pass fails, or returns no logits ``[B, C]``.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> find_head(net, torch.rand(2, 4))
        Head('2', 3 classes, width 8, bias)
    """
    inner = unwrapped(model)
    if isinstance(inner, torch.jit.ScriptModule):
        raise HeadNotFoundError(
            "the layers of a TorchScript module cannot be watched; pass the nn.Module it was made "
            "from, or score stored embeddings and class weights"
        )
    check_initialised(inner)
    layers = candidates(inner) if name is None else {name: layer_named(inner, name)}
    with evaluating(inner):
        if inputs is not None:
            return _verified(inner, inputs, layers)
        found = name_from_structure(inner, layers) if name is None else name
        return Head(found, *weight_and_bias(layers[found]))


def _verified(model: nn.Module, inputs: Any, layers: dict[str, nn.Module]) -> Head:
    """The one layer that gives the logits in a forward pass."""
    logits, calls = recorded_pass(model, inputs, layers)
    if not bool(torch.isfinite(logits).all()):
        raise NonFiniteError(
            f"the logits of {type(model).__name__} for these inputs are not all finite, so its "
            "head cannot be verified; pass another batch, or check the weights"
        )
    fits = [fit for one in calls if (fit := _fit(one, layers[one.name], logits)) is not None]
    heads = [head for form, head in fits if form.plain] or [head for _, head in fits]
    names = list(dict.fromkeys(head.name for head in heads))
    if not names:
        raise explanation(model, layers, calls, logits)
    if len(names) > 1:
        raise AmbiguousHeadError(
            f"{len(names)} linear layers have {logits.shape[1]} outputs ({', '.join(names)}) in "
            f"{type(model).__name__}, and each gives the logits; {choose(names[0])}"
        )
    return heads[0]


def _fit(one: Call, layer: nn.Module, logits: Tensor) -> tuple[LinearForm, Head] | None:
    """The head, and its form, if this call of the layer makes the logits."""
    for weight, bias in class_weights(layer, logits.shape[1]):
        for position, features in one.features.items():
            if features.shape != (len(logits), weight.shape[1]):
                continue
            form = linear_form(features, logits, weight, bias)
            if form is not None:
                reading = Reading(one.number, position, form.unit_features)
                return form, Head(one.name, *form.effective(weight, bias), reading)
    return None
