"""Turn texts and graphs into rows of one shape for training, as their model reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hardsight._checks import warn
from hardsight.data import ExampleSource
from hardsight.data.source import InputKind, SourceView
from hardsight.data.texts import warn_of_other_words
from hardsight.errors import BadExampleError, ConfigError, DataError, ModelError
from hardsight.models import LoadedModel, stored_tokenizer
from hardsight.run.loop import loaded_model, seed_of
from hardsight.run.train._config import TrainConfig


class PackedExamples(SourceView):
    """Examples of a kind as tensors ``[K, L]``, in one shape for all examples of a source.

    Args:
        source: the examples.
        kind: how the model to be trained reads them.
    """

    def __init__(self, source: ExampleSource, kind: InputKind) -> None:
        super().__init__([source])
        self._origin = kind.origin
        self._packed, cut = kind.packed([_content(source, at) for at in range(len(source))])
        self.kind, self.shown, self.is_model_ready = None, source, True
        if cut:
            warn(
                f"{cut:,} of {len(source):,} texts of {source.spec} are longer than the model "
                f"takes and are cut: {kind.origin}"
            )

    def content(self, content: Any, index: int) -> torch.Tensor:
        """Return the row of an example."""
        return self._packed[index]

    def _facts(self) -> tuple[object, ...]:
        return ("packed", self._origin, tuple(self._packed.shape[1:]))


def _content(source: ExampleSource, at: int) -> Any:
    try:
        return source[at].content
    except BadExampleError:
        return None  # packed as an empty example; reading it later raises the error


class KindReader:
    """Packs a recipe's examples; it loads the model first, because its tokenizer reads them.

    Args:
        config: the recipe.
        model: name of the model, or a user's module.
        device: where the model will be.

    Attributes:
        loaded: the model; ``None`` until texts or graphs have been read.
        kind: how the model reads examples; ``None`` until then.
    """

    def __init__(self, config: TrainConfig, model: str | nn.Module, device: torch.device) -> None:
        self._config, self._model, self._device = config, model, device
        self.loaded: LoadedModel | None = None
        self.kind: InputKind | None = None

    def read(self, source: ExampleSource) -> ExampleSource:
        """Return texts and graphs as rows of one shape; pictures and arrays stay as they are.

        Raises:
            DataError: examples are of another kind, on which models cannot be trained.
        """
        has_words = source.kind is not None and source.kind.has_words
        if not has_words and self._config.data.tokenizer is not None:
            raise ConfigError(
                f"data.tokenizer plays no part: {source.spec} holds no texts; leave it out"
            )
        if source.kind is None:
            return source
        if source.kind.task != "classify":
            raise DataError(
                f"cannot train on {source.spec}: recipes train on pictures, arrays, texts and "
                f"graphs that have a label each, not on the kind {source.kind.name!r}; `hardsight "
                "score` reads it"
            )
        if self.kind is None:
            self.kind = self._fitted(source, source.kind)
        return PackedExamples(source, self.kind)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Make the model take packed examples inside the block, if there are any."""
        if self.loaded is None or self.kind is None:
            yield
            return
        kind = self.kind

        def unpacked(_module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            # packed examples are one tensor [B, K, L]; other calls are left alone
            if not args or getattr(args[0], "ndim", 0) != 3:
                return args, kwargs
            return (), {**kind.unpacked(args[0]), **kwargs}

        handle = self.loaded.model.register_forward_pre_hook(unpacked, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _fitted(self, source: ExampleSource, kind: InputKind) -> InputKind:
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
        return kind.read_for(self.loaded.model, tokenizer, batch_size=config.batch_size)
