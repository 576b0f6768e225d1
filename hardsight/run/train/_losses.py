"""The losses of a recipe: looked up by name, weighted, ramped, added up."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import hardsight.losses  # noqa: F401  # fills the registry
from hardsight.config import fitted
from hardsight.errors import ConfigError, HardsightError, HeadError, OptionError
from hardsight.registry import LOSSES, unknown_name
from hardsight.run.train._config import LossConfig

_CROSS_ENTROPY = "cross_entropy"
_CLASS_INPUTS = ("class_weights", "bias")
_GONE = 1e-9  # what is left of a decayed option where it counts as 0


class Term:
    """One loss of a recipe.

    Args:
        config: its name, weight, ramp and options.
        class_counts: training examples of each class, for ``class_balance``.

    Attributes:
        inputs: names of the tensors it reads.

    Raises:
        ConfigError: there is no such loss, or an option is unknown or missing.
    """

    def __init__(self, config: LossConfig, class_counts: Sequence[int] = ()) -> None:
        self.config = config
        self._function, self.inputs = _looked_up(config.name)
        _check_options(config, self._function, self.inputs)
        kinds = typing.get_type_hints(self._function)
        self._options = {
            key: _option(config.name, key, value, kinds[key])
            for key, value in config.options.items()
        }
        if config.class_balance is not None:
            self._options["weight"] = balancing_weights(class_counts, config.class_balance)

    def decayed_at(self, step: int) -> dict[str, float]:
        """Options that shrink with the steps, as they are at ``step``, counted from 0."""
        left = {key: factor**step for key, factor in self.config.decays.items()}
        return {
            key: self.config.options[key] * share if share > _GONE else 0.0
            for key, share in left.items()
        }

    def __call__(self, tensors: Mapping[str, Tensor | None], step: int) -> Tensor:
        given = [tensors[name] for name in self.inputs]
        options = {
            key: value.to(given[0].device) if isinstance(value, Tensor) and given[0] is not None
            else value
            for key, value in self._options.items()
        }  # fmt: skip
        options |= self.decayed_at(step)
        try:
            value: Tensor = self._function(*given, **options)
        except OptionError as err:
            raise ConfigError(f"loss {self.config.name}: {err}") from err
        return value


class TotalLoss:
    """The sum of a recipe's losses.

    Args:
        configs: one per loss.
        class_counts: training examples of each class, where a loss balances classes.
    """

    def __init__(self, configs: Sequence[LossConfig], class_counts: Sequence[int] = ()) -> None:
        self.terms = [Term(config, class_counts) for config in configs]

    @property
    def needs_embeddings(self) -> bool:
        """Whether the classifier head must be known."""
        return bool(self._names & {"embeddings", *_CLASS_INPUTS})

    @property
    def needs_class_weights(self) -> bool:
        """Whether a loss reads the head's own parameters."""
        return bool(self._names & set(_CLASS_INPUTS))

    @property
    def uses_logits(self) -> bool:
        """Whether every parameter of the head takes part in the loss."""
        return "logits" in self._names

    def check(self, *, num_classes: int, width: int) -> None:
        """Raise where a loss cannot be computed: tried on a few rows before anything is written.

        Args:
            num_classes: of the model.
            width: of the embeddings.

        Raises:
            ConfigError: names the loss and its options.
        """
        draw = torch.Generator().manual_seed(0)
        tensors: dict[str, Tensor | None] = {
            "logits": torch.randn(4, num_classes, generator=draw),
            "labels": torch.arange(4) % num_classes,
            "embeddings": torch.randn(4, width, generator=draw),
            "class_weights": torch.randn(num_classes, width, generator=draw),
            "bias": torch.randn(num_classes, generator=draw),
        }
        for term in self.terms:
            try:
                term(tensors, step=0)
            except ConfigError:
                raise
            # torch raises the other three
            except (HardsightError, RuntimeError, OverflowError, ValueError) as err:
                raise ConfigError(
                    f"loss {term.config.name} cannot be computed for {num_classes} classes: {err}; "
                    f"change its options {term.config.options}"
                ) from err

    @property
    def _names(self) -> set[str]:
        return {name for term in self.terms for name in term.inputs}

    def numbers_at(self, epoch: float, step: int) -> tuple[Any, ...]:
        """What changes with time in these losses: weights, and options that decay."""
        return tuple(
            (term.config.weight_at(epoch), *term.decayed_at(step).values()) for term in self.terms
        )

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        embeddings: Tensor | None,
        layer: nn.Linear | None,
        epoch: float,
        step: int = 0,
    ) -> Tensor:
        """The loss of a batch, in float32 also under mixed precision."""
        tensors: dict[str, Tensor | None] = {
            "logits": logits.float(),
            "labels": labels,
            "embeddings": None if embeddings is None else embeddings.float(),
            "class_weights": None if layer is None else layer.weight,
            "bias": None if layer is None else layer.bias,
        }
        with torch.autocast(logits.device.type, enabled=False):
            weighted = [
                weight * term(tensors, step)
                for term in self.terms
                if (weight := term.config.weight_at(epoch))
            ]
            return torch.stack(weighted).sum()  # a recipe has a loss in every epoch


def balancing_weights(class_counts: Sequence[int], beta: float) -> Tensor:
    r"""One factor per class that makes up for its number of training examples, ``[C]``.

    .. math:: w_c \propto \frac{1 - \beta}{1 - \beta^{n_c}}, \qquad \frac{1}{C}\sum_c w_c = 1

    A class without examples has no term in the loss; it counts as one of a single example.

    Example:
        >>> balancing_weights([30, 10], 1.0)
        tensor([0.5000, 1.5000])

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, Eq. (3);
        deferred to the end of training by Cao et al., NeurIPS 2019.
    """
    counts = torch.tensor(class_counts, dtype=torch.float64).clamp_min(1)
    # (1 - beta^n) / (1 - beta) tends to n
    effective = counts if beta == 1 else (1 - beta**counts) / (1 - beta)
    weights = 1 / effective
    return (weights / weights.mean()).float()


def linear_layer(model: nn.Module, name: str) -> nn.Linear:
    """The head's layer, whose weight a loss reads as ``class_weights``.

    Raises:
        HeadError: it is no plain linear layer, so its weight is not the effective one.
    """
    layer = model.get_submodule(name)
    if type(layer) is not nn.Linear or nn.utils.parametrize.is_parametrized(layer):
        raise HeadError(
            f"a loss over class weights needs a plain nn.Linear head, got "
            f"{type(layer).__name__} at {name!r}; use a loss of logits or embeddings"
        )
    return layer


def _looked_up(name: str) -> tuple[Callable[..., Tensor], tuple[str, ...]]:
    if name == _CROSS_ENTROPY:
        return functional.cross_entropy, ("logits", "labels")
    if name not in LOSSES:
        raise ConfigError(unknown_name("loss", name, [_CROSS_ENTROPY, *LOSSES]))
    spec = LOSSES[name]
    return spec.function, spec.inputs


def _option(loss: str, key: str, value: Any, kind: Any) -> Any:
    """An option as its loss takes it; class weights in a recipe are a list."""
    where = f"loss {loss}, [options]"
    if Tensor not in typing.get_args(kind):
        return fitted(value, kind, key, where)
    try:
        return torch.tensor(fitted(value, tuple[float, ...], key, where))
    except ConfigError:
        raise ConfigError(
            f"in {where}: expected {key} to be a list of numbers, got {value!r}"
        ) from None


def _check_options(config: LossConfig, function: Any, inputs: Sequence[str]) -> None:
    hidden = {*inputs, "reduction", "reduce", "size_average", "input", "target"}
    known = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in hidden
    }
    for key in config.options:
        if key not in known:
            raise ConfigError(unknown_name(f"option of loss {config.name}", key, list(known)))
    for key, factor in config.decays.items():
        if key not in known:
            raise ConfigError(unknown_name(f"option of loss {config.name}", key, list(known)))
        if not 0 < factor < 1:
            raise ConfigError(
                f"loss {config.name}: expected decays.{key} in (0, 1), got {factor:g}"
            )
        if not isinstance(config.options.get(key), int | float):
            raise ConfigError(
                f"loss {config.name}: decays.{key} needs a number to start from; add options = "
                f"{{{key} = ...}}"
            )
    if config.class_balance is not None and ("weight" not in known or "weight" in config.options):
        raise ConfigError(
            f"loss {config.name}: class_balance sets the option 'weight', which "
            + ("is given as well" if "weight" in known else "this loss does not have")
        )
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in config.options:
            raise ConfigError(
                f"loss {config.name} needs the option {name!r}; add options = {{{name} = ...}}"
            )
