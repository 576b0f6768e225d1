"""The outputs and the classifier head of a model, seen on the data it is to work on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hardsight.data import ExampleSource, batches
from hardsight.errors import (
    AmbiguousHeadError,
    HardsightError,
    HeadError,
    ModelError,
    NonFiniteError,
    NotLogitsError,
    ShapeError,
)
from hardsight.heads import (
    Head,
    call_model,
    find_head,
    logit_rows,
    logits_of,
    unwrapped,
    verify_head,
    which_output,
)
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop._device import moved

Need = Literal["must", "may", "none"]
_MOST_LOOKED_AT = 256  # examples, in search of one with finite outputs


@dataclass(frozen=True)
class FirstLook:
    """What the first examples tell of a model.

    Attributes:
        head: its classifier layer, verified; ``None`` if it has none.
        num_classes: columns of its logits.
        shape: of one input, ``[C, H, W]`` for images; ``None`` if inputs are not one tensor.
        output: the part of its output that holds the logits; ``None`` for a bare tensor.
        no_head: why there is no head.
    """

    head: Head | None
    num_classes: int
    shape: tuple[int, ...] | None
    output: int | str | None = None
    no_head: str | None = None


def first_look(
    model: nn.Module,
    source: ExampleSource,
    preprocessing: Preprocessing,
    *,
    device: torch.device,
    head: str | Head | None,
    output: int | str | None = None,
    num_classes: int | None = None,
    need: Need = "must",
    at_once: int = 8,
) -> FirstLook:
    """A look at the first examples that show which output and which layer make the logits.

    Examples that cannot be read or have no finite output say nothing of the head; the next do.

    Args:
        model: to look into, on ``device``.
        source: of its examples.
        preprocessing: of images.
        device: where the model is.
        head: its name, or a head made by hand, which is held to the model; ``None`` to find it.
        output: the part of the model's output that holds the logits; ``None`` to choose it by the
            number of classes.
        num_classes: of the model, if it has names for them, else of the data.
        need: whether there must be a head, there may be one, or none is needed. Either way a model
            that returns probabilities is refused.
        at_once: how many examples to try it on.

    Raises:
        HeadError: there is no head, or more than one.
        ModelError: none of the examples could be read, or several outputs could be the logits.
        NonFiniteError: none of the first few hundred examples has a finite output.
    """
    looker = _Looker(model, head, output, num_classes or len(source.classes) or None, need)
    seen, headless = 0, None
    with closing(batches(source, preprocessing, batch_size=at_once)) as few:
        for batch in few:
            if not len(batch.index):
                continue
            seen += len(batch.index)
            inputs = moved(batch.inputs, device)
            look = looker.look(inputs) or looker.look(looker.finite_rows(inputs))
            if look is not None:
                return look
            headless = headless or looker.look_at_logits(inputs)
            if seen >= _MOST_LOOKED_AT:
                break
    if not seen:
        raise ModelError(f"none of the examples of {source.spec} could be read")
    if headless is not None:
        return headless
    raise NonFiniteError(
        f"{type(model).__name__} has no finite output for any of the first {seen:,} examples of "
        f"{source.spec}, so its head cannot be verified; check its weights, and mean and std of "
        "its inputs"
    )


@dataclass(frozen=True)
class _Looker:
    model: nn.Module
    head: str | Head | None
    output: int | str | None
    num_classes: int | None
    need: Need

    def look(self, inputs: Any) -> FirstLook | None:
        """What a batch tells; ``None`` if it has no finite outputs to tell it by."""
        if inputs is None:
            return None
        try:
            head = self._head(inputs)
        except NonFiniteError as err:
            return self._without_head(inputs, err) if self.need == "none" else None
        except HeadError as err:
            if not self._may_go_without(err):
                raise
            return self._without_head(inputs, err)
        assert head.reading is not None
        plain = dataclasses.replace(head.reading, output=None)  # chosen for all; see returning
        found = dataclasses.replace(head, reading=plain)
        return FirstLook(found, head.num_classes, _shape(inputs), head.reading.output)

    @torch.inference_mode()
    def look_at_logits(self, inputs: Any) -> FirstLook | None:
        """What a batch tells whose logits rule a class out by minus infinity, without a head."""
        if self.need != "may" or self.head is not None:
            return None
        if not bool(torch.isfinite(self._logits(inputs)[1].amax(dim=1)).any()):
            return None
        name = type(self.model).__name__
        why = f"the logits of {name} are not all finite for any example, so its head is not known"
        return self._without_head(inputs, NonFiniteError(why))

    @torch.inference_mode()
    def finite_rows(self, inputs: Any) -> Tensor | None:
        """The inputs whose logits are finite; ``None`` if there are none, or not one tensor."""
        if not isinstance(inputs, Tensor):
            return None
        rows = inputs[torch.isfinite(self._logits(inputs)[1]).all(dim=1)]
        return rows if len(rows) else None

    def _head(self, inputs: Any) -> Head:
        options: dict[str, Any] = {"output": self.output, "num_classes": self.num_classes}
        if isinstance(self.head, Head):
            return verify_head(self.model, self.head, inputs, **options)
        return find_head(self.model, inputs, name=self.head, **options)

    def _may_go_without(self, err: HeadError) -> bool:
        if isinstance(err, NotLogitsError):  # softmax gives the same probabilities of log_softmax
            return self.need == "none" and err.function == "log_softmax"
        if self.need == "may":  # of several heads one can be named, and one that is named is meant
            return self.head is None and not isinstance(err, AmbiguousHeadError)
        return self.need == "none"

    @torch.inference_mode()
    def _without_head(self, inputs: Any, why: HardsightError) -> FirstLook:
        output, logits = self._logits(inputs)
        if isinstance(inputs, Tensor) and len(logits) == logits.shape[1] > 1:
            # as many examples as classes: one example less tells rows from columns
            self._logits(inputs[1:])
        _check_logits(logits, type(self.model).__name__)
        return FirstLook(None, logits.shape[1], _shape(inputs), output, str(why))

    def _logits(self, inputs: Any) -> tuple[int | str | None, Tensor]:
        returned = call_model(self.model, inputs)
        output = which_output(returned, num_classes=self.num_classes, which=self.output)
        logits = logit_rows(returned, output)
        if isinstance(inputs, Tensor) and len(logits) != len(inputs):
            raise ShapeError(
                f"expected one row of logits per example, got {list(logits.shape)} for "
                f"{len(inputs)} examples of {type(self.model).__name__}"
            )
        return output, logits


def _shape(inputs: Any) -> tuple[int, ...] | None:
    """Of one input; ``None`` if inputs are not one tensor."""
    return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else None


@contextmanager
def returning(model: nn.Module, output: int | str | None) -> Iterator[None]:
    """A model of several outputs returns the one that holds the logits, and nothing else.

    Args:
        model: to change meanwhile.
        output: as :class:`FirstLook` has it; ``None`` leaves the model as it is.
    """
    if output is None:
        yield
        return

    def chosen(_module: nn.Module, _args: Any, returned: Any) -> Tensor:
        # the model inside a wrapper has chosen already
        return returned if isinstance(returned, Tensor) else logits_of(returned, output)

    # on both: code compiled before calls the hook of a wrapper alone, capture that of the inside
    parts = {id(part): part for part in (model, unwrapped(model))}
    handles = [part.register_forward_hook(chosen) for part in parts.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_logits(outputs: Tensor, model: str) -> None:
    """Raise if outputs are probabilities: with a head at hand, looking for it would tell."""
    sums = outputs.float().sum(dim=1)
    if bool((outputs >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all()):
        raise ModelError(
            f"{model} returns probabilities: no output is negative, and they sum to 1 for every "
            "example; remove the softmax from its forward pass"
        )
