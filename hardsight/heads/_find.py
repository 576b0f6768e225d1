"""Find the classifier head of a model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hardsight.errors import (
    AmbiguousHeadError,
    HeadError,
    HeadMismatchError,
    HeadNotFoundError,
    ModelError,
    NonFiniteError,
)
from hardsight.heads._explain import explanation, not_its_head
from hardsight.heads._forward import (
    Call,
    Recorded,
    call_model,
    choose_output,
    listed_outputs,
    recorded_features,
    recorded_inputs,
    which_output,
)
from hardsight.heads._head import (
    Head,
    LinearForm,
    Reading,
    Which,
    at_position,
    linear_form,
    own_positions,
)
from hardsight.heads._layers import (
    candidates,
    check_initialised,
    choose,
    class_weights,
    evaluating,
    inner_name,
    is_layer_name,
    layer_named,
    name_from_structure,
    parameter_named,
    parameter_weights,
    stated_classes,
    unwrapped,
    weight_and_bias,
)


def find_head(
    model: nn.Module,
    inputs: Any = None,
    *,
    name: str | None = None,
    output: Which | None = None,
    num_classes: int | None = None,
) -> Head:
    r"""Find the linear layer that makes a model's logits, and verify it on a batch.

    .. math:: \mathrm{features} \cdot W^\top + b = \mathrm{logits}

    One forward pass records what enters every linear layer and 1x1 convolution. The head is the
    layer for which the equation holds. The pass runs in eval mode, without gradient and without
    compiled code; training flags, batch-norm statistics and random states are restored afterwards.

    These heads are found as well:

    - A head on a map or on tokens, followed by the mean, or by taking one token of each example
      (the first, the last, or the last that is not padding): the same mean or token of its input
      is the embedding.
    - A head followed by a positive constant (a temperature), which is folded into the weight.
    - Cosine heads :math:`s\,\hat x \hat W^\top`, as an ``nn.Linear`` subclass or any module with a
      matrix ``weight``: embeddings are the unit vectors :math:`\hat x`, the weight is
      :math:`s \hat W`. Angles are those of the raw vectors, the equation holds, and the feature
      norm is 1, since such a head ignores it.

    Args:
        model: any classifier, also inside ``DataParallel`` or ``torch.compile``.
        inputs: a batch as the model takes it: a tensor, a tuple or list of arguments, or a mapping
            of keywords. Two examples are enough. Without it the head is guessed from the structure
            alone, and :func:`capture` verifies it on its first batch.
        name: the layer to use, if the search should be skipped or finds more than one. Also the
            name of a bare parameter ``[C, D]`` or ``[D, C]`` that the model multiplies without a
            layer, as with ``einsum``; the embeddings are then searched for among the inputs and
            outputs of the model's modules.
        output: the part of the model's output that holds the logits, by key, attribute or
            position, if the model returns several candidates.
        num_classes: of the data; of several outputs, the one with as many columns is taken, unless
            it is the input of a head that makes another output.

    Returns:
        the head, with its effective weight.

    Raises:
        AmbiguousHeadError: more than one layer fits.
        HeadNotFoundError: no layer fits, ``name`` is not a linear layer, or the model is
            TorchScript.
        HeadMismatchError: layers have the right shape, but do not give the logits.
        ModelError: the forward pass fails, or returns no logits ``[B, C]``, or several outputs that
            could be the logits.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> find_head(net, torch.rand(2, 4))
        Head('2', 3 classes, width 8, bias)
    """
    inner = unwrapped(model)
    search = _search(inner, name)
    with evaluating(inner):
        if inputs is not None:
            return search.verified(inputs, output, num_classes)
        return search.unverified()


def find_output(
    model: nn.Module, inputs: Any, *, num_classes: int | None = None, output: Which | None = None
) -> Which | None:
    """The part of a model's output that holds the logits; ``None`` if it returns a bare tensor.

    Args:
        model: as :func:`find_head` takes it.
        inputs: a batch as the model takes it.
        num_classes: how many columns the logits should have.
        output: the part to use, if it is known.

    Raises:
        ModelError: the forward pass fails, there is no such part, or several parts could be the
            logits.

    Example:
        >>> class Pair(nn.Linear):
        ...     def forward(self, x):
        ...         return x, super().forward(x)
        >>> find_output(Pair(4, 3), torch.rand(2, 4))
        1
    """
    inner = unwrapped(model)
    try:
        search = _search(inner, None)
    except HeadNotFoundError:  # TorchScript has no layers to hook, only outputs
        search = None
    with evaluating(inner):
        returned = call_model(inner, inputs)
        if output is not None or isinstance(returned, Tensor) or search is None:
            return which_output(returned, num_classes=num_classes, which=output)
        return search.output(inputs, num_classes)


def verify_head(
    model: nn.Module,
    head: Head,
    inputs: Any,
    *,
    output: Which | None = None,
    num_classes: int | None = None,
) -> Head:
    """Verify a Head made by the user: its weight must give the model's logits for a batch.

    Args:
        model: as :func:`find_head` takes it.
        head: with the name of a layer or parameter of ``model``. Without a bias it takes the
            layer's own.
        inputs: a batch as the model takes it.
        output: as :func:`find_head` takes it.
        num_classes: as :func:`find_head` takes it.

    Returns:
        the head, with its effective weight and with how its embeddings are read.

    Raises:
        HeadNotFoundError: ``model`` has no such layer.
        HeadMismatchError: the head's weight does not turn the features into the logits.
        ModelError: the forward pass fails, or returns no logits ``[B, C]``.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> verify_head(net, Head(name="2", weight=net[2].weight.detach()), torch.rand(2, 4))
        Head('2', 3 classes, width 8, bias)
    """
    inner = unwrapped(model)
    search = _search(inner, head.name, head)
    with evaluating(inner):
        return search.verified(inputs, output, num_classes)


def _search(model: nn.Module, name: str | None, given: Head | None = None) -> "_Search":
    """The search for a head: in all layers, in the named one, or around a bare parameter."""
    if isinstance(model, torch.jit.ScriptModule):
        raise HeadNotFoundError(
            "the layers of a TorchScript module cannot be watched; pass the nn.Module it was made "
            "from, or score stored embeddings and class weights"
        )
    check_initialised(model)
    if name is None:
        return _Layers(model, given, candidates(model))
    name = inner_name(name)
    # a layer takes precedence over a parameter of the same name
    if is_layer_name(model, name) or parameter_named(model, name) is None:
        return _Layers(model, given, {name: layer_named(model, name)})
    return _Parameter(model, given, name)


@dataclass(frozen=True)
class _Fit:
    """A head that gives a part of the output, and the features that it uses, ``[B, D]``."""

    form: LinearForm
    head: Head
    features: Tensor


def _same(part: Tensor, features: Tensor) -> bool:
    """Whether a part of the output is what enters a head."""
    # exact equality, since features that are merely close are different features
    return part.shape == features.shape and torch.equal(part.to(features.dtype), features)


@dataclass(frozen=True)
class _Search(ABC):
    """The search for the weights and the features that make a model's logits.

    Attributes:
        model: unwrapped.
        given: a Head made by the user, whose weight is tried instead of the model's own.
    """

    model: nn.Module
    given: Head | None

    @abstractmethod
    def recorded(self, inputs: Any, output: Which | None) -> Recorded:
        """Run the model once, recording all features that may enter the head."""

    @abstractmethod
    def own_weights(self, name: str, num_classes: int) -> list[tuple[Tensor, Tensor | None]]:
        """The model's own weight and bias, in each orientation with ``num_classes`` outputs."""

    @abstractmethod
    def head_name(self, call: Call) -> str:
        """The name of a head that is read at a call."""

    @abstractmethod
    def explained(self, seen: Recorded, logits: Tensor) -> HeadError:
        """The error that says why nothing gives the logits."""

    @abstractmethod
    def unverified(self) -> Head:
        """The head by structure alone, without a batch."""

    def verified(self, inputs: Any, output: Which | None, num_classes: int | None) -> Head:
        """The only head that gives the logits in a forward pass."""
        seen = self.recorded(inputs, output)
        parts = seen.outputs
        # a head cannot be checked against NaN, but first we must know which part is the logits
        finite = {key for key, part in parts.items() if bool(torch.isfinite(part).all())}
        # a part that is not finite may still be the logits, so it remains a candidate
        fits = {
            key: self._best_fits(inputs, seen, key, part) if key in finite else []
            for key, part in parts.items()
        }
        key = self._chosen(parts, fits, num_classes) if finite else None
        if key not in finite:
            raise NonFiniteError(
                f"the logits of {type(self.model).__name__} for these inputs are not all finite, "
                "so its head cannot be verified; pass another batch, or check the weights"
            )
        heads = [fit.head for fit in fits[key]]
        if not heads:
            raise self.explained(seen, parts[key])
        # one layer may be read in several ways; only different layers are ambiguous
        names = list(dict.fromkeys(head.name for head in heads))
        if len(names) > 1:
            raise AmbiguousHeadError(
                f"{len(names)} linear layers have {heads[0].num_classes} outputs "
                f"({', '.join(names)}) in {type(self.model).__name__}, and each gives the logits; "
                f"{choose(names[0])}"
            )
        return heads[0]

    def output(self, inputs: Any, num_classes: int | None) -> Which | None:
        """The part of the model's output that holds the logits, with a head or without."""
        seen = self.recorded(inputs, None)
        fits = {key: self._best_fits(inputs, seen, key, z) for key, z in seen.outputs.items()}
        return self._chosen(seen.outputs, fits, num_classes)

    def _chosen(
        self,
        parts: Mapping[Which | None, Tensor],
        fits: Mapping[Which | None, list[_Fit]],
        num_classes: int | None,
    ) -> Which | None:
        """Which part of the output holds the logits.

        The features that enter a head are not the logits. Of the other parts, it is the one with
        as many columns as there are classes, unless only another part has a head. If several parts
        have that size, it is the first of a tuple, but a mapping has no first. If no part has that
        size, the first may be the features of a linear layer, so nothing is chosen.
        """
        # many models return their features beside the logits; a head's input is such a part
        entering = [fit.features for some in fits.values() for fit in some]
        left = [key for key, part in parts.items() if not any(_same(part, x) for x in entering)]
        left = left or list(parts)
        wanted = num_classes or stated_classes(self.model)
        # if no part has this width, keep all: the data may have fewer classes than the model
        fitting = [key for key in left if parts[key].shape[1] == wanted] or left
        with_head = [key for key in left if fits[key]]
        if len(left) == 1 or (len(fitting) == 1 and (fits[fitting[0]] or not with_head)):
            return fitting[0]
        # in a tuple, logits usually come first; names have no order
        first = fitting[0]
        is_wide = wanted in (None, parts[first].shape[1])
        if isinstance(first, int) and is_wide and [key for key in fitting if fits[key]] == [first]:
            return first
        some = {key: parts[key] for key in left}
        raise ModelError(
            f"{type(self.model).__name__} returns several tensors that could be its logits: "
            f"{listed_outputs(some)}; {choose_output(some)}"
        )

    def _best_fits(
        self, inputs: Any, seen: Recorded, key: Which | None, logits: Tensor
    ) -> list[_Fit]:
        """Every head that gives a part of the output; only plain heads, if there are any."""
        fits = [fit for call in seen.calls for fit in self._fits(call, key, logits)]
        if not fits:
            fits = self._own_token_fits(inputs, key, logits)
        # without a scale to fit, a plain form is the better evidence
        return [fit for fit in fits if fit.form.plain] or fits

    def _own_token_fits(self, inputs: Any, key: Which | None, logits: Tensor) -> list[_Fit]:
        """Heads on tokens if each example takes another token."""
        return []

    def _fits(self, call: Call, key: Which | None, logits: Tensor) -> list[_Fit]:
        """The head, and its form, if the features of a call give the logits."""
        name = self.head_name(call)
        for weight, bias in self._weights(call, logits.shape[1]):
            for position, features in call.features.items():
                if features.shape != (len(logits), weight.shape[1]):
                    continue
                form = linear_form(features, logits, weight, bias, call.computed_in)
                if form is not None:
                    reading = Reading(call.name, call.side, call.number, position, form, key)
                    head = Head(name, *form.effective(weight, bias), reading)
                    # the first that fits is enough: with one token, mean, first and last are equal
                    return [_Fit(form, head, features)]
        return []

    def _fits_by_itself(self, seen: Recorded, logits: Tensor) -> bool:
        """Whether the model's own weights give the logits, unlike those of the user's head."""
        itself = replace(self, given=None)
        return any(itself._fits(call, None, logits) for call in seen.calls)

    def _weights(self, call: Call, num_classes: int) -> list[tuple[Tensor, Tensor | None]]:
        own = self.own_weights(call.name, num_classes)
        if self.given is None:
            return own
        if self.given.num_classes != num_classes:
            return []
        # the head may have been made on another device
        weight = self.given.weight.to(next(iter(call.features.values())).device)
        # a user's head without a bias may belong to a layer that has one
        biases = [bias for _, bias in own] if self.given.bias is None else [self.given.bias]
        return [(weight, None if bias is None else bias.to(weight.device)) for bias in biases]


@dataclass(frozen=True)
class _Layers(_Search):
    layers: dict[str, nn.Module]

    def recorded(self, inputs: Any, output: Which | None) -> Recorded:
        return recorded_inputs(self.model, inputs, self.layers, output=output)

    def own_weights(self, name: str, num_classes: int) -> list[tuple[Tensor, Tensor | None]]:
        return class_weights(self.layers[name], num_classes)

    def head_name(self, call: Call) -> str:
        return call.name

    def explained(self, seen: Recorded, logits: Tensor) -> HeadError:
        if self.given is not None and self._fits_by_itself(seen, logits):
            return not_its_head(self.model, self.given, logits)
        return explanation(self.model, self.layers, seen.calls, logits)

    def unverified(self) -> Head:
        names = list(self.layers)
        name = names[0] if len(names) == 1 else name_from_structure(self.model, self.layers)
        return Head(name, *weight_and_bias(self.layers[name]))

    def _own_token_fits(self, inputs: Any, key: Which | None, logits: Tensor) -> list[_Fit]:
        # a second pass, only over the few layers of the right width, since all tokens of all layers
        # of a language model would fill the memory
        fitting = {
            name: layer
            for name, layer in self.layers.items()
            if self.own_weights(name, logits.shape[1])
            # by the number of outputs, as in the search itself
        }
        again = recorded_inputs(self.model, inputs, fitting, output=key, whole=True)
        fits = []
        for call in again.calls:
            if call.tokens is not None and call.tokens[0].shape[1] > 1:
                tokens, made = call.tokens
                # each example takes its own token, such as the last before the padding
                own = own_positions(made, logits, otherwise="own")
                if own is not None:
                    features = at_position(tokens, own)
                    fits += self._fits(replace(call, features={"own": features}), key, logits)
        return fits


@dataclass(frozen=True)
class _Parameter(_Search):
    name: str

    def recorded(self, inputs: Any, output: Which | None) -> Recorded:
        matrix = parameter_named(self.model, self.name)
        assert matrix is not None
        seen = [
            # either side of the matrix may be the width
            recorded_features(self.model, inputs, width, output=output)
            for width in dict.fromkeys(matrix.shape)
        ]
        # try the module that owns the parameter first, then the latest calls
        owner = self.name.rpartition(".")[0]
        calls = [call for part in seen for call in reversed(part.calls)]
        calls.sort(key=lambda call: (call.name, call.side) != (owner, "input"))
        return Recorded(seen[0].outputs, calls)

    def own_weights(self, name: str, num_classes: int) -> list[tuple[Tensor, Tensor | None]]:
        return parameter_weights(self.model, self.name, num_classes)

    def head_name(self, call: Call) -> str:
        return self.name

    def explained(self, seen: Recorded, logits: Tensor) -> HeadError:
        if self.given is not None and self._fits_by_itself(seen, logits):
            return not_its_head(self.model, self.given, logits)
        matrix = parameter_named(self.model, self.name)
        assert matrix is not None
        kind = type(self.model).__name__
        if logits.shape[1] not in matrix.shape:
            return HeadNotFoundError(
                f"the parameter {self.name!r} of {kind} is {list(matrix.shape)}, but the logits "
                f"have {logits.shape[1]} columns, so it cannot make them"
            )
        return HeadMismatchError(
            f"nothing that enters or leaves a module of {kind} gives the logits when multiplied by "
            f"the parameter {self.name!r}; let the embeddings pass a module on their way, such as "
            "self.embeddings = nn.Identity() called on them, or score stored embeddings and class "
            "weights instead"
        )

    def unverified(self) -> Head:
        matrix = parameter_named(self.model, self.name)
        assert matrix is not None
        # without a batch, only the model's stated number of classes tells [C, D] from [D, C]
        turned = stated_classes(self.model) == matrix.shape[1] != matrix.shape[0]
        return Head(self.name, matrix.T if turned else matrix)
