"""Texts to train on: made into tokens once, by the tokenizer of the model that is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hardsight._checks import warn
from hardsight.data import ExampleSource
from hardsight.data.source import SourceView
from hardsight.data.texts import Texts, Tokens, packed_rows, unpacking, warn_of_other_words
from hardsight.errors import BadExampleError, ConfigError, DataError, ModelError
from hardsight.models import LoadedModel, stored_tokenizer
from hardsight.run.loop import loaded_model, seed_of
from hardsight.run.train._config import TrainConfig

_NOTHING = "."  # stands where a text cannot be read, and is never shown: reading it raises


class PackedTexts(SourceView):
    """Texts as tensors ``[K, L]`` of tokens, one shape for all of a source.

    Args:
        source: the texts.
        tokens: how they are read.
    """

    def __init__(self, source: ExampleSource, tokens: Tokens) -> None:
        super().__init__([source])
        self._limit = tokens.limit
        self._packed, cut = packed_rows(tokens, [_text(source, at) for at in range(len(source))])
        self.kind, self.shown, self.is_model_ready = None, source, True
        if cut:
            warn(
                f"{cut:,} of {len(source):,} texts of {source.spec} are longer than the model "
                f"takes, and are cut: {tokens.origin}"
            )

    def content(self, content: Any, index: int) -> torch.Tensor:
        """The tokens of a text."""
        return self._packed[index]

    def _facts(self) -> tuple[object, ...]:
        return ("tokens", self._limit, tuple(self._packed.shape[1:]))


def _text(source: ExampleSource, at: int) -> str:
    try:
        return str(source[at].content)
    except BadExampleError:
        return _NOTHING


class TextReader:
    """Makes tokens of a recipe's texts; loads its model at the first, whose tokenizer it needs.

    Args:
        config: the recipe.
        model: its name, or a user's module.
        device: where it will be.

    Attributes:
        loaded: the model; ``None`` as long as no texts were read.
    """

    def __init__(self, config: TrainConfig, model: str | nn.Module, device: torch.device) -> None:
        self._config, self._model, self._device = config, model, device
        self.loaded: LoadedModel | None = None
        self._tokens: Tokens | None = None

    def read(self, source: ExampleSource) -> ExampleSource:
        """Texts as tokens; other examples as they are.

        Raises:
            DataError: examples of another kind, which cannot be trained on.
        """
        if source.kind is None and self._config.data.tokenizer is not None:
            raise ConfigError(
                f"data.tokenizer plays no part: {source.spec} holds no texts; leave it out"
            )
        if source.kind is None:
            return source
        if not isinstance(source.kind, Texts):
            raise DataError(
                f"cannot train on {source.spec}: recipes train on pictures, arrays and texts, not "
                f"on the kind {source.kind.name!r}"
            )
        return PackedTexts(source, self._tokens or self._fitted(source))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The model takes packed texts meanwhile, if there are any."""
        if self.loaded is None or self._tokens is None:
            yield
            return
        with unpacking(self.loaded.model, self._tokens):
            yield

    def _fitted(self, source: ExampleSource) -> Tokens:
        config = self._config
        drawn = seed_of(config.seed, "weights") % 2**31
        self.loaded = loaded_model(
            self._model, config.model.weights, len(source.named_classes), seed=drawn,
            device=self._device, trust_remote_code=config.model.trust_remote_code,
            options=config.model.options, if_taken={"seed": drawn},
        )  # fmt: skip
        tokenizer = self.loaded.tokenizer
        if config.data.tokenizer is not None:
            tokenizer = stored_tokenizer(
                config.data.tokenizer, trust_remote_code=config.model.trust_remote_code
            )
            if tokenizer is None:
                raise ModelError(f"no tokenizer in {config.data.tokenizer}")
            warn_of_other_words(tokenizer, self.loaded.tokenizer)
        assert source.kind is not None
        kind = source.kind.read_for(self.loaded.model, tokenizer, batch_size=config.batch_size)
        assert isinstance(kind, Tokens)
        self._tokens = kind
        return kind
