"""Build the losses, the optimizer, the schedule and the adversary of a recipe."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from hardsight.config import fitted
from hardsight.errors import ConfigError, HardsightError, HeadError, OptionError
from hardsight.evaluate import Normalisation, fgsm, pgd
from hardsight.heads import logits_of
from hardsight.losses import GaussianRampLR, hardest  # the import also fills the registry
from hardsight.ranks import gather_rows
from hardsight.registry import LOSSES, unknown_name
from hardsight.run.train._config import (
    AdversarialConfig,
    LossConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from hardsight.run.train._images import Decoded, TrainBatch
from hardsight.run.train._ranks import Share

_CROSS_ENTROPY = "cross_entropy"
_ROW_INPUTS, _CLASS_INPUTS = ("logits", "labels", "embeddings"), ("class_weights", "bias")
_GONE = 1e-9  # share of its initial value below which a decayed option counts as 0
_LR = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}
_WEIGHT_DECAY = {"sgd": 5e-4, "adam": 0.0, "adamw": 1e-2}


class Term:
    """One loss of a recipe.

    Args:
        config: name, weight, ramp and options of the loss.
        class_counts: number of training examples of each class, for ``class_balance``.

    Attributes:
        inputs: names of the tensors that the loss reads.
        joins_rows: whether it is more than a mean over independent rows, so that processes must
            gather their rows for it: it pairs rows, chooses among them, or divides by the weights
            of their classes.

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
        pairs = "gather" in inspect.signature(self._function).parameters
        self.joins_rows = (
            config.hardest is not None
            or "weight" in self._options
            or (pairs and "gather" not in self._options)  # an option in the recipe decides
        )
        self._is_gathered = self.joins_rows or bool(self._options.get("gather"))

    def decayed_at(self, step: int) -> dict[str, float]:
        """Return the decaying options as they are at ``step``, counted from 0."""
        left = {key: factor**step for key, factor in self.config.decays.items()}
        return {
            key: self.config.options[key] * share if share > _GONE else 0.0
            for key, share in left.items()
        }

    def __call__(self, tensors: Mapping[str, Tensor | None], step: int) -> Tensor:
        inputs = [tensors[name] for name in self.inputs]
        options = {
            key: value.to(inputs[0].device) if isinstance(value, Tensor) and inputs[0] is not None
            else value
            for key, value in self._options.items()
        }  # fmt: skip
        options |= self.decayed_at(step)
        try:
            if self.config.hardest is not None:
                values = self._function(*inputs, reduction="none", **options)
                return self._mean_of_hardest(values, tensors["labels"], options.get("weight"))
            value: Tensor = self._function(*inputs, **options)
        except OptionError as err:
            raise ConfigError(f"loss {self.config.name}: {err}") from err
        return value

    def over_ranks(self, tensors: Mapping[str, Tensor | None], step: int, share: Share) -> Tensor:
        """Return this process's part of the loss; its mean over processes is the whole loss.

        ``DistributedDataParallel`` averages gradients, which are then those of a single process
        with the whole batch.
        """
        own = {name: rows if rows is None or name in _CLASS_INPUTS else rows[: share.own]
               for name, rows in tensors.items()}  # fmt: skip
        if self.joins_rows:
            for name in _ROW_INPUTS:  # the same order everywhere, because processes wait for others
                rows = own[name] if name in (*self.inputs, "labels") else None
                own[name] = None if rows is None else gather_rows(rows)
        if self._is_gathered:
            return self(own, step)
        return self(own, step) * share.weight if share.own else _nothing(tensors)

    def _mean_of_hardest(
        self, values: Tensor, labels: Tensor | None, class_factors: Tensor | None
    ) -> Tensor:
        """Return the mean over the hardest examples, chosen by the loss without class weights."""
        assert self.config.hardest is not None
        assert labels is not None
        if values.shape != labels.shape:
            raise ConfigError(
                f"loss {self.config.name}: hardest needs one value per example, got "
                f"{list(values.shape)} for {len(labels)} examples; pairs are mined by "
                'options = {pairs = "hard"}'
            )
        if class_factors is None:
            return hardest(values, keep=self.config.hardest)
        factors = class_factors[labels].to(values.dtype)
        unweighted = torch.where(factors > 0, values / factors, 0.0)
        return hardest(unweighted, keep=self.config.hardest, weight=factors)


class TotalLoss:
    """The sum of a recipe's losses.

    Args:
        configs: one configuration per loss.
        class_counts: number of training examples of each class, if a loss balances classes.
    """

    def __init__(self, configs: Sequence[LossConfig], class_counts: Sequence[int] = ()) -> None:
        self.terms = [Term(config, class_counts) for config in configs]

    @property
    def needs_embeddings(self) -> bool:
        """Whether the classifier head has to be known."""
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
        """Raise if a loss cannot be computed, by trying each on a few rows before files exist.

        Args:
            num_classes: number of classes of the model.
            width: width of the embeddings.

        Raises:
            ConfigError: names the loss and its options.
        """
        tensors = _drawn(num_classes, width)
        for term in self.terms:
            try:
                term(tensors, step=0)
            except ConfigError:
                raise
            # our own errors, and those that torch raises for options it cannot use
            except (HardsightError, RuntimeError, OverflowError, ValueError) as err:
                raise ConfigError(
                    f"loss {term.config.name} cannot be computed for {num_classes} classes: {err}; "
                    f"change its options {term.config.options}"
                ) from err

    def epochs_without_head(self, *, epochs: int, num_classes: int) -> list[int]:
        """Return the epochs in which no active loss depends on the head's weights.

        The gradients of a few rows show this. The names of inputs do not: contrastive losses take
        the logits but only compare predictions.

        Args:
            epochs: number of epochs of the run.
            num_classes: number of classes of the model.
        """
        tensors = _drawn(num_classes, width=8)
        for name in ("logits", *_CLASS_INPUTS):
            tensors[name].requires_grad_()
        reaching = [term for term in self.terms if term(tensors, step=0).requires_grad]
        return [
            epoch
            for epoch in range(epochs)
            if not any(term.config.weight_at(epoch) for term in reaching)
        ]

    @property
    def _names(self) -> set[str]:
        return {name for term in self.terms for name in term.inputs}

    def weights_at(self, epoch: float) -> list[float]:
        """Return the weight of each loss in an epoch; a loss with weight 0 is not computed."""
        return [term.config.weight_at(epoch) for term in self.terms]

    def shape_at(self, epoch: float, step: int) -> tuple[Any, ...]:
        """Return what else changes over time: which losses are computed, and decaying options.

        A recorded step contains these as constants.
        """
        return tuple(
            (bool(weight), *term.decayed_at(step).values())
            for term, weight in zip(self.terms, self.weights_at(epoch), strict=True)
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
        weights: Tensor | None = None,
        share: Share | None = None,
    ) -> Tensor:
        """Return the loss of a batch, in float32 even under mixed precision.

        ``weights`` are the loss weights of the epoch on the device, for a recorded step. ``share``
        is this process's part of the step if several train together; the mean over processes is
        then the loss of the whole batch.
        """
        tensors: dict[str, Tensor | None] = {
            "logits": logits.float(),
            "labels": labels,
            "embeddings": None if embeddings is None else embeddings.float(),
            "class_weights": None if layer is None else layer.weight,
            "bias": None if layer is None else layer.bias,
        }
        with torch.autocast(logits.device.type, enabled=False):
            weighted = [
                (weight if weights is None else weights[place])
                * (term(tensors, step) if share is None else term.over_ranks(tensors, step, share))
                for place, (term, weight) in enumerate(
                    zip(self.terms, self.weights_at(epoch), strict=True)
                )
                if weight
            ]
            loss = torch.stack(weighted).sum()  # never empty: recipes without a loss are refused
            # DDP waits for a gradient of every weight, even on a process without rows of its own
            return loss if share is None or share.own else loss + _nothing(tensors)


def _nothing(tensors: Mapping[str, Tensor | None]) -> Tensor:
    """Return a zero that depends on all outputs of the model, so that it has gradients."""
    parts = [tensors[name] for name in ("logits", "embeddings")]
    return torch.stack([part.sum() * 0.0 for part in parts if part is not None]).sum()


def balancing_weights(class_counts: Sequence[int], beta: float) -> Tensor:
    r"""Return a factor per class that compensates for its number of training examples, ``[C]``.

    .. math:: w_c \propto \frac{1 - \beta}{1 - \beta^{n_c}}, \qquad \frac{1}{C}\sum_c w_c = 1

    A class without examples never enters the loss; it gets the factor of a single example.

    Example:
        >>> balancing_weights([30, 10], 1.0)
        tensor([0.5000, 1.5000])

    Reference:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, Eq. (3);
        deferred to the end of training by Cao et al., NeurIPS 2019.
    """
    counts = torch.tensor(class_counts, dtype=torch.float64).clamp_min(1)
    # (1 - beta^n) / (1 - beta) tends to n for beta -> 1
    effective = counts if beta == 1 else (1 - beta**counts) / (1 - beta)
    weights = 1 / effective
    return (weights / weights.mean()).float()


def linear_layer(model: nn.Module, name: str) -> nn.Linear:
    """Return the head's layer, whose weight a loss reads as ``class_weights``.

    Raises:
        HeadError: it is not a plain linear layer, so its weight is not the effective one.
    """
    layer = model.get_submodule(name)
    if type(layer) is not nn.Linear or nn.utils.parametrize.is_parametrized(layer):
        raise HeadError(
            f"a loss over class weights needs a plain nn.Linear head, got "
            f"{type(layer).__name__} at {name!r}; use a loss of logits or embeddings"
        )
    return layer


def _drawn(num_classes: int, width: int) -> dict[str, Tensor]:
    """Return random values, for four examples, of everything that a loss may read."""
    draw = torch.Generator().manual_seed(0)
    return {
        "logits": torch.randn(4, num_classes, generator=draw),
        "labels": torch.arange(4) % num_classes,
        "embeddings": torch.randn(4, width, generator=draw),
        "class_weights": torch.randn(num_classes, width, generator=draw),
        "bias": torch.randn(num_classes, generator=draw),
    }


def _looked_up(name: str) -> tuple[Callable[..., Tensor], tuple[str, ...]]:
    if name == _CROSS_ENTROPY:
        return functional.cross_entropy, ("logits", "labels")
    if name not in LOSSES:
        raise ConfigError(unknown_name("loss", name, [_CROSS_ENTROPY, *LOSSES]))
    spec = LOSSES[name]
    return spec.function, spec.inputs


def _option(loss: str, key: str, value: Any, kind: Any) -> Any:
    """Return an option in the form its loss takes; class weights in a recipe are a list."""
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
    # set by the training step, or objects that a recipe cannot name
    hidden = {*inputs, "reduction", "reduce", "size_average", "input", "target", "process_group"}
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


def optimizer_of(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter], *, is_recorded: bool = False
) -> torch.optim.Optimizer:
    """Return the optimiser of a recipe.

    Args:
        config: the recipe's table.
        parameters: parameters of the model; those that need no gradient are left out.
        is_recorded: whether its steps become part of a CUDA graph.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    common: dict[str, Any] = {
        **recorded_options(config, is_recorded=is_recorded),
        "lr": _LR[config.name] if config.lr is None else config.lr,
        "weight_decay": (
            _WEIGHT_DECAY[config.name] if config.weight_decay is None else config.weight_decay
        ),
    }
    if config.name == "sgd":
        return torch.optim.SGD(
            trainable, momentum=config.momentum, nesterov=config.nesterov, **common
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(trainable, betas=config.betas, **common)


def recorded_options(config: OptimizerConfig, *, is_recorded: bool) -> dict[str, bool]:
    """Return options for a recorded step: a fused kernel that reads the learning rate on device."""
    if not is_recorded:
        return {}
    return {"fused": True} if config.name == "sgd" else {"fused": True, "capturable": True}


def scheduler_of(
    config: ScheduleConfig, optimizer: torch.optim.Optimizer, *, epochs: int, steps_per_epoch: int
) -> dict[str, Any]:
    """Return the schedule of a recipe, in the form that Lightning takes.

    All schedules are updated per step. Lightning updates a schedule per epoch only after the
    epoch's checkpoint is written, so a resumed run would be one update behind.
    """
    every = 1
    schedule: LRScheduler
    if config.name == "one_cycle":
        warmup = 0.3 * epochs if config.warmup_epochs is None else config.warmup_epochs
        steps = epochs * steps_per_epoch + 1  # Lightning updates once more after the last step
        share = min(1.0, warmup / epochs)
        if abs(share * steps - 1) < 1e-6:  # torch would divide by the length of the rise minus 1
            share = (1 + 1e-6) / steps
        schedule = OneCycleLR(
            optimizer,
            max_lr=[group["lr"] for group in optimizer.param_groups],
            total_steps=steps,
            pct_start=share,
        )
    elif config.name == "gaussian_ramps":
        every = steps_per_epoch
        schedule = GaussianRampLR(
            optimizer,
            total_epochs=epochs,
            ramp_up_epochs=80 if config.warmup_epochs is None else config.warmup_epochs,
            ramp_down_epochs=config.ramp_down_epochs,
            final_beta1=config.final_beta1,
        )
    else:
        schedule = LambdaLR(
            optimizer,
            lambda step: learning_rate_factor(
                config, step, epochs=epochs, steps_per_epoch=steps_per_epoch
            ),
        )
    return {"scheduler": schedule, "interval": "step", "frequency": every}


def learning_rate_factor(
    config: ScheduleConfig, step: int, *, epochs: int, steps_per_epoch: int
) -> float:
    r"""Return the share of the learning rate at ``step``, counted from 0.

    .. math:: \text{cosine:}\; f + (1 - f)\,\tfrac12 (1 + \cos\pi t), \qquad
              \text{step:}\; \gamma^{\lfloor e / E \rfloor}

    Example:
        >>> drops = ScheduleConfig("step", step_epochs=30)
        >>> [learning_rate_factor(drops, s, epochs=90, steps_per_epoch=10) for s in (0, 299, 300)]
        [1.0, 1.0, 0.1]
    """
    epoch, warmup = step / steps_per_epoch, config.warmup_epochs or 0.0
    if epoch < warmup:
        return min(1.0, (step + 1) / (warmup * steps_per_epoch))
    if config.name == "step" and config.drop_epochs is not None:
        # drop_epochs count from 1, as in papers; epoch counts from 0
        return float(config.gamma ** sum(epoch + 1 >= drop for drop in config.drop_epochs))
    if config.name == "step":
        return float(config.gamma ** int(epoch // config.step_epochs))
    if config.name == "cosine":
        done = min(1.0, (epoch - warmup) / max(epochs - warmup, 1e-9))
        return config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * done))
    return 1.0


@dataclass(frozen=True)
class Adversary:
    """Changes a share of every training batch so that it misleads the model.

    The attack is on the model in eval mode: batch norm uses its running statistics, and there is no
    dropout. The images of the attack do not update the statistics.

    Attributes:
        config: the attack, and how far it may go.
        normalisation: how inputs are made from pixels.
    """

    config: AdversarialConfig
    normalisation: Normalisation

    def changed(self, model: nn.Module, batch: TrainBatch) -> TrainBatch:
        """Return the batch with its first ``share`` of images changed; its order is random."""
        count = max(1, round(self.config.share * len(batch.labels)))
        was_training = model.training
        model.eval()
        try:
            moved = self._attacked(model, batch.inputs[:count], batch.labels[:count])
        finally:
            model.train(was_training)
        return batch._replace(inputs=torch.cat([moved, batch.inputs[count:]]))

    def _attacked(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        config = self.config

        def forward(images: Tensor) -> Tensor:
            return logits_of(model(images)).float()

        common: dict[str, Any] = {
            "epsilon": config.epsilon, "normalisation": self.normalisation,
        }  # fmt: skip
        if config.attack == "fgsm":
            return fgsm(forward, inputs, labels, **common)
        return pgd(
            forward, inputs, labels, norm=config.norm, steps=config.steps,
            step_size=config.step_size, **common,
        )  # fmt: skip


def adversary_of(config: AdversarialConfig | None, train: Decoded) -> Adversary | None:
    """Return the adversary of a recipe, or ``None``.

    Raises:
        ConfigError: pixels are not known, so the size of a change cannot be measured.
    """
    if config is None:
        return None
    if not train.are_ours or train.row(0)[1].ndim != 3:
        raise ConfigError(
            "adversarial training needs images whose pixels are known, got tensors or vectors from "
            f"{train.source.spec}; pass images, and leave their normalisation to the recipe"
        )
    return Adversary(config, Normalisation(train.how.mean, train.how.std))
