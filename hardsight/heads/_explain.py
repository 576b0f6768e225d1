"""Explain in error messages why no layer gives the logits, and what to do."""

from torch import Tensor, nn

from hardsight.errors import HeadError, HeadMismatchError, HeadNotFoundError, NotLogitsError
from hardsight.heads._forward import Call
from hardsight.heads._head import FEWEST_FOR_A_FACTOR, Head, activation_between, agree
from hardsight.heads._layers import bare_parameters, class_weights, num_outputs

_STORED = "score stored embeddings and class weights instead"


def explanation(
    model: nn.Module, layers: dict[str, nn.Module], calls: list[Call], logits: Tensor
) -> HeadError:
    """The error for a forward pass in which none of ``layers`` gave the logits."""
    kind, num_classes = type(model).__name__, logits.shape[1]
    fitting = [name for name, layer in layers.items() if class_weights(layer, num_classes)]
    if not fitting:
        return _no_such_width(model, layers, num_classes)
    layer = "layer" if len(fitting) == 1 else "layers"
    what = f"{layer} {', '.join(fitting)} of {kind} with {num_classes} outputs"
    called = [call for call in calls if call.name in fitting]
    if not called:
        return HeadNotFoundError(
            f"{what} was not called in the forward pass; let the model call the layer rather than "
            f"use its weight, or {_STORED}"
        )
    # a reason that can be named first, such as an activation or a ReLU, before a mere difference
    for call in called:
        reason = _reason(call, layers[call.name], logits, kind)
        if reason is not None:
            return reason
    few = (
        f"pass more examples at once ({logits.numel()} logits are too few to tell a constant "
        "factor from anything else; batch_size=4, --batch-size 4), "
        if logits.numel() < FEWEST_FOR_A_FACTOR
        else ""
    )
    return HeadMismatchError(
        f"{what}: features @ weight.T + bias differs from the model's logits, so something comes "
        f"between the layer and the output; {few}let the model return the layer's output, or "
        f"{_STORED}"
    )


def _no_such_width(model: nn.Module, layers: dict[str, nn.Module], num_classes: int) -> HeadError:
    bare = [name for name, value in bare_parameters(model).items() if num_classes in value.shape]
    named = f'; a bare parameter may be named: head="{bare[0]}"' if bare else ""
    widths = [f"{name} ({num_outputs(layer)})" for name, layer in layers.items()]
    # shortened, since a transformer has hundreds of layers
    shown = widths if len(widths) <= 6 else [*widths[:2], "...", widths[-1]]
    return HeadNotFoundError(
        f"no linear layer of {type(model).__name__} has {num_classes} outputs, as the logits have; "
        f"linear layers and their outputs: {', '.join(shown) or 'none'}{named}; {_STORED}"
    )


def _reason(call: Call, layer: nn.Module, logits: Tensor, kind: str) -> HeadError | None:
    """Why a layer that was called does not give the logits, if the reason is known."""
    if call.rectified is not None and agree(call.rectified, logits):
        return HeadMismatchError(
            f"a ReLU between the 1x1 convolution {call.name!r} and the average pool keeps the "
            "logits from being linear in the features; replace that ReLU by nn.Identity() and "
            f"check the accuracy, or {_STORED} (in {kind})"
        )
    for weight, bias in class_weights(layer, logits.shape[1]):
        for features in call.features.values():
            if features.shape != (len(logits), weight.shape[1]):
                continue
            name = activation_between(features, logits, weight, bias)
            if name is not None:
                error = NotLogitsError(
                    f"the model returns the {name} of layer {call.name!r}, not logits; remove the "
                    f"{name} from its forward pass (in {kind})"
                )
                error.function = name
                return error
    return None


def not_its_head(model: nn.Module, head: Head, logits: Tensor) -> HeadMismatchError:
    """The error for a Head made by the user, if the model's own weights give the logits."""
    kind = type(model).__name__
    if head.num_classes != logits.shape[1]:
        return HeadMismatchError(
            f"the head given for {kind} has {head.num_classes} classes, its logits have "
            f"{logits.shape[1]} columns; pass the head of this model, or leave head out"
        )
    return HeadMismatchError(
        f"the head given for {kind} does not give its logits: what enters {head.name!r}, times the "
        "head's weight, plus its bias, differs from what the model returns; pass "
        f"head={head.name!r}, so that the weights are read from the model, or leave head out"
    )
