"""Functions of tensors as torch operators, called directly if nothing traces the operators.

``torch.compile``, and everything else that traces operators, needs an operator with a fake and an
autograd implementation. Calling the operator costs more than a kernel launch, so an untraced call
on plain tensors runs the function itself under its own autograd node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, List, get_args, get_origin, get_type_hints  # noqa: UP035

import torch
from torch import Tensor, nn

from hardsight.errors import GradientError

Context = Any  # of an autograd node


class Operator:
    """A callable for ``function`` that also registers it as ``torch.ops.hardsight.<name>``.

    Args:
        name: of the operator.
        function: of tensors and plain values, with type hints, since torch reads its signature.
            Only the first output has a gradient.
        fake: the shapes of its outputs.
        setup: ``(context, inputs, outputs)``, keeps what ``gradients`` needs.
        gradients: ``(context, grad of the first output, *unused)`` to one gradient per input.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        fake: Callable[..., Any],
        setup: Callable[[Context, tuple[Any, ...], Any], None] | None = None,
        gradients: Callable[..., Any] | None = None,
    ) -> None:
        registered = torch.library.custom_op(
            f"hardsight::{name}", _typed(function), mutates_args=()
        )
        registered.register_fake(fake)
        self.function = function
        self._node: Any = None
        if setup is not None and gradients is not None:
            registered.register_autograd(gradients, setup_context=setup)
            self._node = _node(name, function, setup, gradients)
        # calling the overload itself skips torch's choice between overloads
        self._operator = getattr(torch.ops.hardsight, name).default

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
            return self._operator(*args)
        needs_gradient = False
        for value in args:
            kind = type(value)
            if kind is Tensor or kind is nn.Parameter:
                if torch._C._functorch.is_functorch_wrapped_tensor(value):
                    return self._operator(*args)
                needs_gradient = needs_gradient or value.requires_grad
            elif isinstance(value, Tensor):  # a subclass, which may trace operators
                return self._operator(*args)
        if needs_gradient and self._node is not None and torch.is_grad_enabled():
            return self._node.apply(*args)
        return self.function(*args)


def _typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the function a signature for torch 2.6, which does not know ``list[...]``."""
    older: Any = List  # noqa: UP006
    function.__annotations__ = {
        name: older[get_args(hint)] if get_origin(hint) is list else hint
        for name, hint in get_type_hints(function).items()
    }
    return function


def _node(
    name: str,
    function: Callable[..., Any],
    setup: Callable[[Context, tuple[Any, ...], Any], None],
    gradients: Callable[..., Any],
) -> Any:
    def forward(ctx: Context, *args: Any) -> Any:
        outputs = function(*args)
        setup(ctx, args, outputs)
        ctx.set_materialize_grads(False)  # no zeros for outputs that have no gradient
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    def backward(ctx: Context, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise GradientError(
                "the fused kernels are differentiable once, got create_graph=True; "
                "pass impl='torch', or use the loss of logits"
            )
        return gradients(ctx, *grads)

    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), parts)
