"""Lightning's trainer as a recipe asks for it, and as quiet as we want it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hardsight.errors import OptionError
from hardsight.run.loop import chosen_precision
from hardsight.run.train._capture import check_capture
from hardsight.run.train._config import TrainConfig
from hardsight.run.train._losses import TotalLoss

_PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed", "float16": "16-mixed"}


def trainer_of(pl: Any, config: TrainConfig, device: torch.device, loss: TotalLoss) -> Any:
    """Lightning's trainer, with its own files, bars and summaries off: we write ours."""
    precision = chosen_precision(config.precision, device)
    if precision == "float16" and device.type == "cpu":
        raise OptionError("training in float16 needs a GPU; use precision = 'bfloat16'")
    check_capture(config, device, precision)
    if config.autotune and config.deterministic:
        raise OptionError(
            "autotune chooses algorithms by their time, deterministic by their result; leave one "
            "out"
        )
    chosen = config.devices if device.index is None else [device.index]
    return pl.Trainer(
        accelerator="gpu" if device.type == "cuda" else device.type,
        devices=chosen,
        num_nodes=config.num_nodes,
        strategy=_strategy(config, loss),
        precision=_PRECISIONS[precision],
        max_epochs=config.epochs,
        gradient_clip_val=config.gradient_clip,
        deterministic=config.deterministic,
        benchmark=config.autotune,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _strategy(config: TrainConfig, loss: TotalLoss) -> str:
    is_many = config.devices * config.num_nodes > 1
    if config.strategy == "fsdp" or not is_many:
        return config.strategy
    # a loss that reads no logits leaves the head's bias without a gradient
    return "ddp" if loss.uses_logits else "ddp_find_unused_parameters_true"


def own_device(trainer: Any, device: torch.device) -> torch.device:
    found: torch.device = trainer.strategy.root_device
    return found if device.type == "cuda" else device


@contextmanager
def quiet(pl: Any) -> Iterator[None]:
    """Keep Lightning's hints about itself away; warnings about the user's work pass."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=pl.utilities.warnings.PossibleUserWarning)
            warnings.filterwarnings("ignore", module=r"lightning\..*", category=FutureWarning)
            # torch about itself, when it compiles
            warnings.filterwarnings("ignore", module=r"torch\..*", category=DeprecationWarning)
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not")
            # torch, about the layout of a convolution of one channel under DDP
            warnings.filterwarnings("ignore", message="Grad strides do not match bucket view")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
