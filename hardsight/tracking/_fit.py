"""Whether the embeddings, logits and class weights of a training step belong together."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hardsight.errors import HeadMismatchError
from hardsight.heads._verify import LinearForm, differing_rows, linear_form
from hardsight.tracking._measures import Step

_ROWS, _CLASSES = 64, 64  # of the first step; of every step all rows and these many classes
_NOT_ITS_HEAD = (
    "embeddings times class weights, plus a bias, are not the logits, so that angles would be "
    "measured against the wrong weights; pass what enters the head, what leaves it, and its "
    "weights as they are in this step: head=model.fc to the tracker rather than a copy of them"
)


class HeadFit:
    r"""Holds every step to :math:`x W^\top + b = z`, without waiting for the device.

    Which form the equation has (plain, cosine, scaled) is read off the first step. The bias need
    not be known: angles do not depend on it, and what is the same for all rows stands for it.
    """

    def __init__(self) -> None:
        self._form: LinearForm | None = None
        self._computed_in: torch.dtype | None = None
        self._turn = 0

    def begin(self, step: Step, bias: Tensor | None) -> None:
        """Look at a step, if none was looked at yet; waits for the device this once.

        Raises:
            HeadMismatchError: its tensors do not belong together.
        """
        if self._form is not None:
            return
        embeddings, logits = step.embeddings[:_ROWS], step.logits[:_ROWS]
        is_one = len(logits) == 1 and bias is not None
        least = 1 if is_one else 2
        finite = embeddings.isfinite().all(dim=1) & logits.isfinite().all(dim=1)
        if len(logits) < least or int(finite.sum()) < least:
            return  # nothing to learn from; rows without numbers are found when the epoch ends
        self._computed_in = _precision_of(logits)
        form = linear_form(
            embeddings[finite], logits[finite], step.class_weights, bias if is_one else None,
            self._computed_in, any_bias=not is_one,
        )  # fmt: skip
        if form is None:
            raise HeadMismatchError(_NOT_ITS_HEAD)
        self._form = form

    def differing(self, steps: Step) -> Tensor:
        """Which rows of steps side by side break the equation, ``[steps, B]``."""
        embeddings, logits, weights = steps.embeddings, steps.logits, steps.class_weights
        if self._form is None:
            return torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
        self._turn += 1
        return torch.vmap(self._rows)(embeddings, logits, weights)

    def differs_alone(self, step: Step, bias: Tensor) -> Tensor:
        """The same for a step of one row, which tells nothing without its bias, ``[1]``."""
        if self._form is None:
            return torch.zeros(1, dtype=torch.bool, device=step.logits.device)
        used = bias if self._form.use_bias else torch.zeros_like(bias)
        return self._rows(step.embeddings, step.logits, step.class_weights, used)

    def _rows(
        self, embeddings: Tensor, logits: Tensor, weights: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        form = self._form
        assert form is not None
        return differing_rows(
            normalize(embeddings.float()) if form.unit_features else embeddings,
            logits,
            normalize(weights.float()) if form.unit_weights else weights,
            bias,
            computed_in=self._computed_in,
            turn=self._turn,
            most_classes=_CLASSES,
            any_bias=bias is None,
            any_scale=form.scale != 1.0,
        )

    @staticmethod
    def refused(index: Tensor, rows: int) -> HeadMismatchError:
        """The error for rows that break the equation.

        Args:
            index: of the examples in these rows.
            rows: recorded altogether.
        """
        names = ", ".join(str(int(i)) for i in index[:5]) + (", ..." if len(index) > 5 else "")
        return HeadMismatchError(
            f"for {len(index)} of {rows} rows (examples {names}) {_NOT_ITS_HEAD}"
        )


def _precision_of(logits: Tensor) -> torch.dtype:
    """The precision logits were computed in: float32 ones may come from half-precision layers."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(logits.to(dtype).to(logits.dtype), logits):
            return dtype
    return logits.dtype
