"""Base classes of the loss modules: one keeps the options, one also owns class weights."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from hardsight.errors import HeadError
from hardsight.ranks import as_distributed, classes_of, own_part, shard_of

_ROWS_AT_ONCE = 65_536  # rows of class weights drawn at a time, which bounds the memory


class LossModule(nn.Module):
    """A loss that keeps its options; ``forward`` is a single call of its function."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        # only the names: values live as attributes, where a schedule can change them between steps
        self._names = tuple(options)
        for name, value in options.items():
            if name == "weight":  # a tensor or None, as in torch.nn.CrossEntropyLoss
                # a buffer moves with the module and is saved with it
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    @property
    def options(self) -> dict[str, Any]:
        """The function's keyword arguments."""
        return {name: getattr(self, name) for name in self._names}

    def extra_repr(self) -> str:
        """The options, in the order of the signature."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class HeadLossModule(LossModule):
    """A loss that owns the class weights, or shares those of a layer.

    Attributes:
        class_weights: the parameter, ``[C, D]``, in the dtype it was created in or moved to. If
            classes are split over ranks, it holds only those of this rank.
        own_classes: which of all classes the rows of ``class_weights`` are.
    """

    process_group: Any = None

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        group = options.get("process_group")
        # with a group, only this rank's classes: a slice that every rank computes the same way
        self.own_classes = slice(0, num_classes) if group is None else shard_of(num_classes, group)
        self._num_classes = num_classes
        own = self.own_classes.stop - self.own_classes.start
        weights = torch.empty(own, embedding_dim, device=device, dtype=dtype)
        self.class_weights = nn.Parameter(weights)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the class weights from the same distribution as ``torch.nn.Linear``.

        If the classes are split over ranks, every rank draws all rows, block by block, and keeps
        its own. With the same seed on all ranks, the weights do not depend on the number of ranks.
        """
        # the same distribution as torch.nn.Linear, whose gain for a = sqrt(5) is 1 / sqrt(fan_in)
        if self.process_group is None:
            nn.init.kaiming_uniform_(self.class_weights, a=math.sqrt(5))
            return
        bound = 1 / math.sqrt(self.class_weights.shape[1])
        for begin in range(0, self._num_classes, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, self._num_classes - begin)
            block = self.class_weights.new_empty(count, self.class_weights.shape[1])
            block.uniform_(-bound, bound)
            own = self.own_classes
            first, last = max(begin, own.start), min(begin + count, own.stop)
            if first < last:
                into = slice(first - own.start, last - own.start)
                self.class_weights[into] = block[first - begin : last - begin]

    @property
    def _shared_names(self) -> list[str]:
        """Parameters with a row per class."""
        return [name for name, value in self._parameters.items() if value is not None]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.process_group is not None:
            for name in self._shared_names:
                local = destination[prefix + name]
                # saved as one distributed tensor, which any number of ranks can load
                destination[prefix + name] = as_distributed(
                    local, self._num_classes, self.process_group
                )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if self.process_group is not None:
            stored = [prefix + name for name in self._shared_names if prefix + name in state_dict]
            for key in stored:
                state_dict[key] = own_part(state_dict[key], self.own_classes, self._num_classes)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @classmethod
    def from_head(cls, head: nn.Module, **options: Any) -> Self:
        """Build the loss on the weights of ``head``, which are shared and not copied.

        Args:
            head: a linear layer with ``weight [C, D]``.
            options: options of the loss.

        Raises:
            HeadError: ``head`` has no weight matrix.
        """
        weight = getattr(head, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            raise HeadError(
                "expected a layer with a weight matrix [C, D], got "
                f"{type(head).__name__}; pass the model's last linear layer"
            )
        # "meta" draws and allocates nothing, since the weights come from the layer
        module = cls(weight.shape[0], weight.shape[1], device="meta", **options)
        module.class_weights = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        if module.process_group is not None:
            # each rank's layer holds only its own classes; all classes are the sum over ranks
            module.own_classes, module._num_classes = classes_of(len(weight), module.process_group)
        return module
