"""Adversarial training: images changed by an attack on the model of the moment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hardsight.errors import ConfigError
from hardsight.evaluate import Normalisation, fgsm, pgd
from hardsight.heads import logits_of
from hardsight.run.train._config import AdversarialConfig
from hardsight.run.train._images import Decoded, TrainBatch


@dataclass(frozen=True)
class Adversary:
    """Changes a share of every training batch so that it misleads the model.

    The model attacked is the one of inference: batch norm with its running statistics, no
    dropout. Its statistics do not see the images on the way.

    Attributes:
        config: which attack, and how far.
        normalisation: how inputs come from pixels.
    """

    config: AdversarialConfig
    normalisation: Normalisation

    def changed(self, model: nn.Module, batch: TrainBatch) -> TrainBatch:
        """The batch with its first ``share`` of images changed; the order is random anyway."""
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

        if config.attack == "fgsm":
            return fgsm(
                forward, inputs, labels, epsilon=config.epsilon, normalisation=self.normalisation
            )
        return pgd(
            forward,
            inputs,
            labels,
            epsilon=config.epsilon,
            normalisation=self.normalisation,
            norm=config.norm,
            steps=config.steps,
            step_size=config.step_size,
        )


def adversary_of(config: AdversarialConfig | None, train: Decoded) -> Adversary | None:
    """Who changes the training images, if the recipe wants it.

    Raises:
        ConfigError: pixels are not known, so that no change of them can be measured.
    """
    if config is None:
        return None
    if not train.are_ours or train.row(0)[1].ndim != 3:
        raise ConfigError(
            "adversarial training needs images whose pixels are known, got tensors or vectors from "
            f"{train.source.spec}; pass images, and leave their normalisation to the recipe"
        )
    return Adversary(config, Normalisation(train.how.mean, train.how.std))
