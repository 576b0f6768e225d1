"""What the module twins share: keeping options, and owning class weights."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from hardsight.errors import HeadError
from hardsight.ranks import as_distributed, classes_of, own_part, shard_of

_ROWS_AT_ONCE = 65_536  # of class weights that are drawn together


class LossModule(nn.Module):
    """A loss that keeps its options; ``forward`` is a single call of its function."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        # the names alone: values live as attributes, so that a schedule may change them between
        # steps
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
        class_weights: the parameter, ``[C, D]``, in the dtype it was created in or moved to; of the
            rank's own classes if they are split over ranks.
        own_classes: which of all classes these are.
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
        # with a group, this rank's classes only: a slice that all ranks agree on
        self.own_classes = slice(0, num_classes) if group is None else shard_of(num_classes, group)
        self._num_classes = num_classes
        own = self.own_classes.stop - self.own_classes.start
        weights = torch.empty(own, embedding_dim, device=device, dtype=dtype)
        self.class_weights = nn.Parameter(weights)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the class weights as ``torch.nn.Linear`` draws its own.

        Ranks that share the classes draw the rows of all of them, block by block, and keep their
        own: with one seed on all ranks, weights do not depend on the number of ranks.
        """
        # the same distribution as torch.nn.Linear, whose gain for a = sqrt(5) is 1 / sqrt(fan_in)
        if self.process_group is None:
            nn.init.kaiming_uniform_(self.class_weights, a=math.sqrt(5))
            return
        bound = 1 / math.sqrt(self.class_weights.shape[1])
        # every rank draws all classes in blocks and keeps its own, so that the weights do not
        # depend on the number of ranks
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
                # saved as one distributed tensor: any number of ranks can load it
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
        """The same loss over the weights of ``head``, shared with it, not copied.

        Args:
            head: a linear layer with ``weight [C, D]``.
            options: the loss's options.

        Raises:
            HeadError: ``head`` has no weight matrix.
        """
        weight = getattr(head, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            raise HeadError(
                "expected a layer with a weight matrix [C, D], got "
                f"{type(head).__name__}; pass the model's last linear layer"
            )
        # "meta" draws and allocates nothing: the weights come from the layer
        module = cls(weight.shape[0], weight.shape[1], device="meta", **options)
        module.class_weights = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        if module.process_group is not None:
            # the layer of a rank holds its own classes, so the whole is the sum over ranks
            module.own_classes, module._num_classes = classes_of(len(weight), module.process_group)
        return module
