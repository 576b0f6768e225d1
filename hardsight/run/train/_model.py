"""The model of a recipe: loaded, matched to the data, and its head found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hardsight.errors import HeadError, HeadNotFoundError, ModelError
from hardsight.heads import Head, find_head, find_output, logits_of
from hardsight.models import LoadedModel
from hardsight.run.loop import (
    borrowed,
    loaded_model,
    matched_classes,
    random_states_kept,
    seed_of,
    seeded,
    stated_classes,
)
from hardsight.run.train._batches import Pixels
from hardsight.run.train._config import ModelConfig
from hardsight.run.train._data import Sources


def loaded_for(
    config: ModelConfig,
    model: str | nn.Module,
    sources: Sources,
    *,
    seed: int,
    device: torch.device,
    is_stated: bool,
) -> LoadedModel:
    """The model with random weights of a seed, unless it brings its own, fitting the data.

    Args:
        config: the recipe's table.
        model: its name, or a user's module.
        sources: the data.
        seed: of its weights.
        device: where it will be.
        is_stated: the recipe states mean and std, so that the model's own are not needed.
    """
    _, image, _ = sources.train.row(0)
    shape = {"channels": image.shape[0], "image_size": image.shape[-1]} if image.ndim == 3 else {}
    drawn = seed_of(seed, "weights") % 2**31
    return loaded_model(
        model,
        config.weights,
        len(sources.classes),
        seed=drawn,
        device=device,
        is_stated=is_stated,
        trust_remote_code=config.trust_remote_code,
        options=config.options,
        if_taken={**shape, "seed": drawn},
    )


def numbered_for(
    loaded: LoadedModel, sources: Sources, config: ModelConfig, *, teaches: bool
) -> Sources:
    """The data with the labels that the model has for its classes, if it knows them by name.

    Args:
        loaded: the model.
        sources: the data.
        config: the recipe's table of the model.
        teaches: the model is trained on these classes, so that it need not know them.

    Raises:
        ModelError: a class has no output, or the model cannot take the images.
        LabelError: names that do not match.
    """
    outputs = _outputs(loaded.model, sources)
    known = stated_classes(config.classes) or loaded.class_names
    if not teaches and not known.names and outputs != len(sources.classes):
        raise ModelError(
            f"expected a model of {len(sources.classes)} classes, those of the source, got "
            f"{outputs} outputs; train it on this source, or pass classes it knows"
        )
    order = matched_classes(
        sources.train.source, outputs, known, how=config.class_order, teaches=teaches
    )
    return sources.numbered_as(order)


def _two_inputs(model: nn.Module, sources: Sources) -> Tensor:
    """Two training examples as the model takes them, where it is."""
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    pixels = Pixels(sources.train.how, channels_last=False, device=place)
    rows = [sources.train.row(at)[1] for at in range(min(2, len(sources.train)))]
    return pixels.normalised(torch.stack(rows))


def check_parameters(model: nn.Module) -> None:
    """Raise unless the model has weights to learn, in float32.

    Raises:
        ModelError: it has not.
    """
    weights = [one for one in model.parameters() if one.is_floating_point()]
    if not any(one.requires_grad for one in weights):
        raise ModelError(
            f"no parameter of {type(model).__name__} requires a gradient, so nothing can learn; "
            "call model.requires_grad_()"
        )
    dtypes = {one.dtype for one in weights}
    if len(dtypes) == 1 and dtypes != {torch.float32}:
        raise ModelError(
            f"expected weights in float32, got {dtypes.pop()}; pass model.float(), and choose the "
            "precision of the forward pass by precision="
        )


def _output(model: nn.Module, inputs: Tensor) -> Any:
    try:
        return model(inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as err:  # what layers raise for inputs of another shape
        raise ModelError(
            f"{type(model).__name__} cannot take images {list(inputs.shape[1:])} (channels, "
            f"height, width): {err}; set channels or size in the table of the data, or build the "
            "model for them"
        ) from err


def output_of(loaded: LoadedModel, sources: Sources, which: int | str | None) -> int | str | None:
    """Which of the model's outputs holds the logits; ``None`` if it returns them alone.

    Raises:
        ModelError: several outputs could be the logits, or the model cannot take the images.
    """
    count = len(loaded.class_names.names) or len(sources.classes)
    with random_states_kept(), torch.no_grad():
        inputs = _two_inputs(loaded.model, sources)
        with borrowed(loaded.model, inputs.device):
            _output(loaded.model, inputs)  # says in its own words what images it cannot take
        return find_output(loaded.model, inputs, num_classes=count, output=which)


def _outputs(model: nn.Module, sources: Sources) -> int:
    """How many; found before the first step, in which a GPU would end in an assertion of its own.

    Raises:
        ModelError: a class has no output, or the model cannot take the images.
    """
    with random_states_kept(), torch.no_grad():
        inputs = _two_inputs(model, sources)
        with borrowed(model, inputs.device):
            outputs = logits_of(_output(model, inputs)).shape[1]
    if outputs < len(sources.classes):
        raise ModelError(
            f"expected a model of {len(sources.classes)} outputs, one per class of "
            f"{sources.train.source.spec}, got {outputs}; build it with num_classes = "
            f"{len(sources.classes)}, or train on fewer classes"
        )
    return outputs


def head_of(model: nn.Module, sources: Sources, name: str | None = None) -> Head:
    """The classifier head, verified on two training images.

    Raises:
        HeadNotFoundError: the head is a bare parameter, which no layer holds.
    """
    head = find_head(model, _two_inputs(model, sources), name=name)
    assert head.reading is not None
    if head.reading.module != head.name:
        raise HeadNotFoundError(
            f"training reads the head of a layer, and {head.name!r} is a bare parameter; hold it "
            "in an nn.Linear, or a module of your own with a parameter named weight"
        )
    return head


def reset_head(model: nn.Module, head: Head, *, seed: int) -> None:
    """Give the head new random weights, decided by the seed alone.

    Raises:
        HeadError: the layer does not know how to draw its weights.
    """
    layer = model.get_submodule(head.name)
    draw = getattr(layer, "reset_parameters", None)
    if draw is None:
        raise HeadError(
            f"reset_head needs a head with reset_parameters(), got {type(layer).__name__} at "
            f"{head.name!r}; leave reset_head out, or use an nn.Linear head"
        )
    with seeded(seed_of(seed, "head") % 2**31):
        draw()


@contextmanager
def frozen_body(model: nn.Module, head: Head) -> Iterator[None]:
    """Let the head alone learn; what could learn before can again afterwards."""
    own = {id(parameter) for parameter in model.get_submodule(head.name).parameters()}
    stopped = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    for parameter in stopped:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in stopped:
            parameter.requires_grad_(True)
