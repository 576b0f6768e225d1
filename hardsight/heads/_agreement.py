"""The equation of a head, held to every batch of a pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hardsight.errors import HeadMismatchError
from hardsight.heads._head import Head
from hardsight.heads._verify import differing_outputs, differing_rows

_LOOKED_AT_ONCE = 32  # batches; to look waits for the device


@dataclass(frozen=True)
class _Batch:
    number: int
    differs: Tensor  # [B], on the device
    ids: Sequence[str] | None


def is_there(tensor: Tensor) -> bool:
    """Whether a tensor can be read without waiting for a device."""
    return tensor.device.type == "cpu"


class Agreement:
    r"""Whether :math:`x W^\top + b = z` in every batch of a pass.

    A CPU is looked at after each batch, another device after a few dozen of them and at the end.

    Args:
        model: its name, for the message.
        head: its name.
    """

    def __init__(self, model: str, head: str) -> None:
        self._model, self._head = model, head
        self._count = 0
        self._waiting: list[_Batch] = []
        self._has_replayed: Tensor | None = None  # a flag that a recorded graph raises

    def hold(
        self,
        head: Head,
        embeddings: Tensor,
        logits: Tensor,
        *,
        computed_in: torch.dtype | None,
        ids: Sequence[str] | None,
    ) -> None:
        """Hold a batch to the weights of a head.

        Raises:
            HeadMismatchError: as :meth:`look`.
        """
        if logits.shape[1] != head.num_classes or embeddings.shape != (len(logits), head.width):
            raise HeadMismatchError(
                f"expected {head.num_classes} logits and {head.width} features for each example, "
                f"as when the head {head.name!r} was found, got logits {list(logits.shape)} and "
                f"features {list(embeddings.shape)}"
            )
        turn, weight, bias = self._count, head.weight, head.bias
        self._add(
            differing_rows(embeddings, logits, weight, bias, computed_in=computed_in, turn=turn),
            ids,
        )

    def hold_outputs(
        self, outputs: Tensor, logits: Tensor, *, scaled: bool, ids: Sequence[str] | None
    ) -> None:
        """Hold a batch to what the head's layer made of it, for weights in training.

        Raises:
            HeadMismatchError: as :meth:`look`.
        """
        if outputs.shape != logits.shape:
            raise HeadMismatchError(
                f"expected logits of the same shape as what {self._head!r} of {self._model} "
                f"returns, {list(outputs.shape)}, got {list(logits.shape)}"
            )
        self._add(differing_outputs(outputs, logits, scaled=scaled, turn=self._count), ids)

    def _add(self, differs: Tensor, ids: Sequence[str] | None) -> None:
        self._count += 1
        if differs.is_cuda:
            if self._has_replayed is None:
                self._has_replayed = differs.new_zeros(())
            elif torch.cuda.is_current_stream_capturing():
                self._has_replayed.logical_or_(differs.any())  # again in every replay
                return
        self._waiting.append(_Batch(self._count, differs, ids))
        if is_there(differs) or len(self._waiting) >= _LOOKED_AT_ONCE:
            self.look()

    def look(self) -> None:
        """Raise if a batch since the last look broke the equation.

        Raises:
            HeadMismatchError: names the batch and the rows.
        """
        batches, self._waiting = self._waiting, []
        if batches and bool(torch.cat([batch.differs for batch in batches]).any()):
            broken = next(batch for batch in batches if bool(batch.differs.any()))
            raise HeadMismatchError(self._said(broken))
        if self._has_replayed is not None and bool(self._has_replayed):
            self._has_replayed.zero_()
            raise HeadMismatchError(self._said(None))

    def _said(self, batch: _Batch | None) -> str:
        where = "a batch of a recorded step" if batch is None else self._rows(batch)
        return (
            f"what enters {self._head!r} of {self._model}, times its weight, plus its bias, is not "
            f"what the model returns for {where}, so that their angles would be wrong: the model "
            "takes another way for them (padding, a mask, a branch). Let every row take the same "
            "way, such as by padding on the left, or score stored embeddings and class weights"
        )

    @staticmethod
    def _rows(batch: _Batch) -> str:
        rows = batch.differs.nonzero()[:, 0].tolist()
        names = [str(row) if batch.ids is None else str(batch.ids[row]) for row in rows[:5]]
        more = ", ..." if len(rows) > 5 else ""
        what = "rows" if batch.ids is None else "examples"
        count = f"{len(rows)} of {len(batch.differs)} rows of batch {batch.number}"
        return f"{count} ({what} {', '.join(names)}{more})"
