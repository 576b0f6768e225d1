"""Load the models of a card, and number their classes in the same way."""

from __future__ import annotations

import dataclasses
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardsight.data import ExampleSource
from hardsight.data.pixels import PixelOptions
from hardsight.data.source import InputKind
from hardsight.errors import DataError, OptionError
from hardsight.heads import Head, logit_rows
from hardsight.models import ClassNames
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop import ClassOrder, check_labels_agree, matched_classes, model_at_work


def named_model(text: str) -> tuple[str | None, str, str | None]:
    """Name, spec and weights in ``[NAME=]SPEC[@WEIGHTS]``.

    Example:
        >>> named_model("EL=net.py:make@el.safetensors")
        ('EL', 'net.py:make', 'el.safetensors')
        >>> named_model("timm:resnet18")
        (None, 'timm:resnet18', None)
    """
    whole, _, weights = text.partition("@")
    name, equals, spec = whole.partition("=")
    # the options of a model or the path of a folder may also contain an equals sign
    if not equals or ":" in name or Path(whole).exists():
        name, spec = "", whole
    return name.strip() or None, spec, weights or None


@dataclass(frozen=True, eq=False)
class Subject:
    """A model under evaluation.

    Attributes:
        name: its name on the card.
        model: in eval mode, on ``device``.
        head: its classifier layer, verified.
        preprocessing: how it wants images prepared.
        states_normalisation: whether mean and std are known, rather than defaults.
        shape: of one input, ``[C, H, W]`` for images; ``None`` if inputs are not one tensor.
        device: where it runs.
        facts: spec, weights and digests for the card.
        class_names: of its outputs, if it states them.
        kind: how it reads examples that are not pictures, for example with its tokenizer.
    """

    name: str
    model: nn.Module
    head: Head
    preprocessing: Preprocessing
    states_normalisation: bool
    shape: tuple[int, ...] | None
    device: torch.device
    facts: dict[str, Any]
    class_names: ClassNames = field(default_factory=ClassNames)
    kind: InputKind | None = None

    def reading(self, source: ExampleSource) -> ExampleSource:
        """Prepare data for this model.

        Raises:
            DataError: examples of another kind than those that are evaluated.
        """
        own, other = (_named(kind) for kind in (self.kind, source.kind))
        if own != other:
            raise DataError(
                f"{source.spec} holds {other}, but the evaluated data and {self.name} are for "
                f"{own}; name data of the same kind"
            )
        return source if self.kind is None else source.of_kind(self.kind)

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits ``[N, C]`` of inputs ``[N, ...]``."""
        return logit_rows(self.model(inputs))


def _named(kind: InputKind | None) -> str:
    return "pictures or arrays" if kind is None else f"examples of the kind {kind.name!r}"


def listed_models(models: Any) -> list[tuple[str | None, Any, Any]]:
    """Name, model and weights of every model to evaluate."""
    if isinstance(models, str | os.PathLike | nn.Module):
        models = [models]
    if isinstance(models, dict):
        models = [(str(name), model, None) for name, model in models.items()]
    if not isinstance(models, list | tuple):
        raise OptionError(
            "expected a module or its name, a mapping from names to modules, or a list, got "
            f"{type(models).__name__}"
        )
    listed = [model if isinstance(model, tuple) else (None, model, None) for model in models]
    if not listed:
        raise OptionError("expected at least one model, got none")
    return [
        (name, os.fspath(model) if isinstance(model, os.PathLike) else model, weights)
        for name, model, weights in listed
    ]


def subject_of(
    stack: ExitStack,
    spec: tuple[str | None, Any, Any],
    source: ExampleSource,
    pixels: PixelOptions,
    **options: Any,
) -> Subject:
    """Prepare a model to be run, for as long as ``stack`` is open.

    Args:
        stack: restores the model when it is closed.
        spec: name, model and weights, from :func:`listed_models`.
        source: the evaluated data.
        pixels: what the user states about pictures.
        options: of :func:`hardsight.run.loop.model_at_work`.
    """
    name, model, weights = spec
    work = model_at_work(model, source, pixels, weights=weights, **options)
    ready = stack.enter_context(work)
    head, loaded = ready.traits.head, ready.loaded
    assert head is not None
    done = ready.applied_to(ready.source)
    return Subject(
        name=name or (loaded.spec if weights is None else f"{loaded.spec} {Path(weights).name}"),
        model=ready.network,
        head=head,
        preprocessing=ready.preprocessing,
        states_normalisation=loaded.preprocessing is not None
        or None not in (pixels.mean, pixels.std),
        shape=ready.traits.shape,
        device=options["device"],
        facts={**ready.facts(), "preprocessing": dataclasses.asdict(done)},
        class_names=ready.class_names,
        kind=ready.source.kind,
    )


def class_order_of(subjects: list[Subject], source: ExampleSource, how: str) -> ClassOrder:
    """Which label is which output; it must be the same for all models.

    Raises:
        OptionError: models with different numbers or orders of classes, or with the same name.
        LabelError: the classes of the data are not those of the models.
    """
    numbers = {subject.head.num_classes for subject in subjects}
    if len(numbers) > 1:
        counts = ", ".join(f"{subject.name} {subject.head.num_classes}" for subject in subjects)
        raise OptionError(f"expected models with the same classes, got {counts} classes")
    names = [subject.name for subject in subjects]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(
            f"two models are called {twice!r}; name them, as in "
            "first=net.py:make@a.safetensors second=net.py:make@b.safetensors"
        )
    count = numbers.pop()
    orders = [matched_classes(source, count, subject.class_names, how=how) for subject in subjects]
    for subject, order in zip(subjects, orders, strict=True):
        if order.labels != orders[0].labels:
            raise OptionError(
                f"expected models that number their classes in the same way, but "
                f"{subjects[0].name} and "
                f"{subject.name} do not: {orders[0].note}; {order.note}. Evaluate each on its own"
            )
    return orders[0]


def numbered_alike(
    training: ExampleSource, source: ExampleSource, order: ClassOrder, subject: Subject, how: str
) -> ExampleSource:
    """The training data with labels numbered like those of the evaluated data.

    Raises:
        LabelError: its classes are not those of the model, or have other labels.
    """
    if order.taken == "position":
        check_labels_agree(
            source.classes, training.classes, whose=f"the evaluated {source.spec}",
            where=f"the training data {training.spec}", step="classes= (--classes)",
        )  # fmt: skip
    own = matched_classes(training, len(order.names), subject.class_names, how=how)
    return own.of(training)
