"""Reduction of one value per example to a loss, shared by all losses."""

import torch
from torch import Tensor

from hardsight._checks import is_traced
from hardsight.errors import NonFiniteError, OptionError

REDUCTIONS = ("mean", "sum", "none")


def reduce_loss(
    values: Tensor,
    reduction: str,
    *,
    divisor: Tensor | None = None,
    check_finite: bool = False,
    positions: Tensor | None = None,
) -> Tensor:
    """Return values per example as they are, summed or averaged.

    Args:
        values: one loss per example, any shape; 0 for an ignored example.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        divisor: divides the sum for ``"mean"``; by default the number of values. If it is 0 the
            mean is NaN, as in ``torch.nn.functional.cross_entropy``.
        check_finite: raise if a value, or the mean, is NaN or infinite.
        positions: the example (or row of examples) behind every value, for the error message; by
            default the index of the value.

    Returns:
        A scalar, or ``values`` for ``"none"``.

    Raises:
        OptionError: ``reduction`` is not one of the three.
        NonFiniteError: ``check_finite`` found a NaN or an infinity; the message names the examples.

    Example:
        >>> reduce_loss(torch.tensor([1.0, 3.0]), "mean")
        tensor(2.)
        >>> reduce_loss(torch.tensor([1.0, 3.0]), "mean", divisor=torch.tensor(8.0))
        tensor(0.5000)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    if check_finite:
        _check_values(values, positions)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    # with class weights or ignored rows the divisor differs from the number of values
    mean = values.mean() if divisor is None else values.sum() / divisor
    if check_finite and not torch.isfinite(mean):
        raise NonFiniteError(
            f"expected a finite mean, got {mean.item()} from {values.numel()} values: no example "
            "takes part (an empty batch, or every label ignored); skip such a batch"
        )
    return mean


def check_choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``.

    Raises:
        OptionError: it is not.
    """
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise OptionError(f"expected {option} to be one of {listed}, got {value!r}")


def _check_values(values: Tensor, positions: Tensor | None) -> None:
    if is_traced(values):
        raise OptionError(
            "check_finite=True reads values, which torch.compile and torch.func do not have; "
            "leave it out there"
        )
    bad = ~torch.isfinite(values.detach())
    if not bad.any():
        return
    # a pair is named by both of its rows
    named = bad.nonzero() if positions is None else positions[bad]
    first = named.reshape(len(named), -1)[:8].tolist()
    shown = ", ".join(str(row[0] if len(row) == 1 else tuple(row)) for row in first)
    more = ", ..." if len(named) > 8 else ""
    raise NonFiniteError(
        f"expected a finite loss for every example, got {len(named)} of {values.numel()} that are "
        f"NaN or infinite, at positions {shown}{more}; look at the inputs of these examples"
    )
