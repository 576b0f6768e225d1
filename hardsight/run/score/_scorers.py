"""From batches of examples, or chunks of stored embeddings, to pieces of the table."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from queue import Queue
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from hardsight.data import Batch, EmbeddingSource, ExampleSource, batches
from hardsight.errors import HeadError, LabelError, ModelError
from hardsight.geometry import widen
from hardsight.heads import Head, capture, decided_by_bias, logits_of
from hardsight.preprocessing import Preprocessing
from hardsight.registry import SCORES, ScoreSpec
from hardsight.run.loop import ClassOrder, forward_context, moved, verified_head
from hardsight.scores import Summaries, TiledHead, logit_summaries

_ANGULAR = ("norms", "angles")
_Forward = Callable[[Any], tuple[Tensor | None, Tensor]]


@dataclass(frozen=True)
class Piece:
    """The rows of some consecutive source positions; tensors may still be on the device.

    Attributes:
        positions: how many source positions it covers, unreadable ones included.
        index: their numbers in the data as the user named it, ``[n]``.
        ids: their names.
        labels: class indices, ``[n]``.
        prediction: class indices; -1 where the logits are not finite.
        finite: whether embedding and logits are finite.
        scores: one ``[n]`` per score that does not need the whole dataset.
        bent: rows whose prediction the head's bias decides; ``None`` where nothing was counted.
        errors: ``(index, id, reason)`` of unreadable examples.
    """

    positions: int
    index: Tensor
    ids: pa.Array
    labels: Tensor
    prediction: Tensor
    finite: Tensor
    scores: dict[str, Tensor]
    bent: Tensor | None = None
    errors: list[tuple[int, str, str]] = field(default_factory=list)


class Scorer(Protocol):
    """What the scoring loop needs of a kind of data."""

    batch_size: int
    num_classes: int

    def pieces(self, start: int) -> Iterator[Piece]:
        """Pieces from source position ``start`` on, ``batch_size`` positions each."""
        ...

    def number_as(self, order: ClassOrder) -> None:
        """Give the labels of the data the model's numbers."""
        ...


class ScorePlan:
    """Which scores to compute, and what has to be summarised for them.

    Args:
        names: score, or scores, asked for; ``None`` for every column there is.
        has_head: whether embeddings and class weights are at hand.
    """

    def __init__(self, names: str | Sequence[str] | None, *, has_head: bool = True) -> None:
        columns = [spec for spec in SCORES.values() if not spec.per_class]
        columns.sort(key=lambda spec: spec.name != "avh")  # the first thing to look at
        if names is None:
            self.specs = [spec for spec in columns if has_head or not needs_head(spec)]
        else:
            one_or_more = [names] if isinstance(names, str) else names
            self.specs = [_column_spec(name) for name in dict.fromkeys(one_or_more)]
        self.row_specs = [spec for spec in self.specs if not spec.over_dataset]
        self.dataset_specs = [spec for spec in self.specs if spec.over_dataset]

    @property
    def parts(self) -> tuple[str, ...]:
        """Fields of ``Summaries`` to fill; predictions are always wanted."""
        read = {spec.reads for spec in self.specs} | {"predictions"}
        return tuple(sorted(read))

    @property
    def needs_head(self) -> bool:
        """Whether embeddings are needed at all."""
        return any(needs_head(spec) for spec in self.specs)

    def scores(self, summaries: Summaries) -> dict[str, Tensor]:
        """Every row score, and the norms where a dataset score builds on them."""
        scores = {
            spec.name: spec.formula(getattr(summaries, spec.reads)) for spec in self.row_specs
        }
        for spec in self.dataset_specs:
            scores.setdefault("feature_norm", getattr(summaries, spec.reads))
        return scores


def needs_head(spec: ScoreSpec) -> bool:
    """Whether a score reads embeddings."""
    return "embeddings" in spec.inputs


def _column_spec(name: str) -> ScoreSpec:
    spec = SCORES[name]
    if spec.per_class:
        raise ModelError(
            f"{name!r} gives one value per class, not a column; call "
            f"hardsight.scores.{spec.function.__name__} on your tensors"
        )
    return spec


class EmbeddingScorer:
    """Scores stored embeddings through a stored head."""

    def __init__(
        self,
        source: EmbeddingSource,
        head: Head,
        plan: ScorePlan,
        *,
        device: torch.device,
        batch_size: int | None,
    ) -> None:
        self.source, self.plan, self.device = source, plan, device
        self.batch_size = batch_size or 16384
        self.num_classes = head.num_classes
        self._head = head

    def number_as(self, order: ClassOrder) -> None:
        """Give the labels of the data the model's numbers."""
        self.source = order.of(self.source)

    def pieces(self, start: int) -> Iterator[Piece]:
        """Pieces from position ``start`` on, on a CPU one per core at a time.

        Cores that each work on rows of their own wait for each other once a piece, not once an
        operation, and the numbers do not depend on how many there are.
        """
        firsts = range(start, len(self.source), self.batch_size)
        if self.device.type != "cpu":
            head = self._tiled_head()
            yield from (self._piece(head, first, self._rows(first)) for first in firsts)
            return
        with _one_thread_each() as cores, ThreadPoolExecutor(cores) as pool:
            heads: Queue[TiledHead] = Queue()
            for _ in range(cores):
                heads.put(self._tiled_head())
            waiting: deque[Future[Piece]] = deque()
            for first in firsts:
                # read here, in order: a reader may keep its place in the file
                rows = self._rows(first)
                waiting.append(pool.submit(self._piece_by_any, heads, first, rows))
                if len(waiting) > cores:  # bounds what is held, and keeps the order
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _tiled_head(self) -> TiledHead:
        bias = None if self._head.bias is None else self._head.bias.to(self.device)
        return TiledHead(self._head.weight.to(self.device), bias, parts=self.plan.parts)

    def _piece_by_any(self, heads: Queue[TiledHead], first: int, rows: Tensor) -> Piece:
        head = heads.get()  # its working memory serves one thread at a time
        try:
            return self._piece(head, first, rows)
        finally:
            heads.put(head)

    @torch.inference_mode()
    def bias_facts(self) -> dict[str, Any]:
        """How often the bias decides, on the first examples; a pass of its own would cost more."""
        rows = max(1, min(len(self.source), 4096, (1 << 22) // self.num_classes))
        if self._head.bias is None:
            return {"flip_rate": 0.0, "rows": rows}
        # files may hold them in different precisions
        dtype = widen(self._head.weight).dtype
        embeddings, weight, bias = (
            tensor.to(self.device, dtype)
            for tensor in (self._rows(0, rows), self._head.weight, self._head.bias)
        )
        bent = decided_by_bias(torch.addmm(bias, embeddings, weight.T), self._head)
        return {"flip_rate": float(bent.float().mean()), "rows": rows}

    def _rows(self, first: int, count: int | None = None) -> Tensor:
        last = min(first + (count or self.batch_size), len(self.source))
        return torch.from_numpy(np.array(self.source.chunk(first, last))).to(self.device)

    @torch.inference_mode()
    def _piece(self, head: TiledHead, first: int, rows: Tensor) -> Piece:
        last = first + len(rows)
        labels = torch.from_numpy(self.source.labels[first:last])
        summaries = head.summaries(rows, labels.to(self.device))
        assert summaries.predictions is not None
        finite = torch.isfinite(summaries.predictions.largest)
        return Piece(
            positions=last - first,
            index=torch.arange(first, last),
            ids=self.source.ids(first, last),
            labels=labels,
            prediction=torch.where(finite, summaries.predictions.prediction, -1),
            finite=finite,
            scores=self.plan.scores(summaries),
        )


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """The number of cores, with torch on one thread within each operation meanwhile."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield cores
    finally:
        torch.set_num_threads(cores)


class ModelScorer:
    """Scores examples through a model, capturing its embeddings on the way."""

    def __init__(
        self,
        source: ExampleSource,
        model: nn.Module,
        plan: ScorePlan,
        preprocessing: Preprocessing,
        *,
        head: str | Head | None,
        device: torch.device,
        precision: str,
        batch_size: int | None,
        workers: int,
        strict: bool,
    ) -> None:
        self.source, self.model, self.plan = source, model, plan
        self.preprocessing, self.device, self.precision = preprocessing, device, precision
        self.workers, self.strict = workers, strict
        own = source.loading.batch_size
        self.batch_size = batch_size or own or (256 if device.type == "cuda" else 64)
        self.head, self.num_classes = self._looked_at(head)
        self.tiled = None
        if self.head is not None:
            parts = tuple(part for part in plan.parts if part in _ANGULAR)
            self.tiled = TiledHead(self.head.weight.to(device), parts=parts)

    def number_as(self, order: ClassOrder) -> None:
        """Give the labels of the data the model's numbers."""
        self.source = order.of(self.source)

    def pieces(self, start: int) -> Iterator[Piece]:
        """Pieces from position ``start`` on."""
        loaded = batches(
            self.source,
            self.preprocessing,
            start=start,
            batch_size=self.batch_size,
            workers=self.workers,
            strict=self.strict,
        )
        # closing: workers end with this loop, also when it is left early
        with closing(loaded), self._forward() as forward:
            for batch in loaded:
                yield self._piece(batch, forward)

    def _forward(self) -> AbstractContextManager[_Forward]:
        if self.head is None:
            return nullcontext(self._logits_only)
        return capture(self.model, self.head)

    def _looked_at(self, head: str | Head | None) -> tuple[Head | None, int]:
        """The verified head and the number of classes, from the first examples that show them."""
        if isinstance(head, Head):
            self._first_inputs()
            return head, head.num_classes
        with torch.inference_mode():
            if not self.plan.needs_head:
                logits = logits_of(self._called(self._first_inputs()))
                _check_logits(logits, type(self.model).__name__)
                return None, logits.shape[1]
            try:
                found, _ = verified_head(
                    self.model, self.source, self.preprocessing,
                    device=self.device, name=head, at_once=self._few,
                )  # fmt: skip
            except HeadError as err:
                raise type(err)(
                    f"{err}. Scores that need no head: "
                    f"{', '.join(n for n, s in SCORES.items() if not needs_head(s))}"
                ) from err
        return found, found.num_classes

    @property
    def _few(self) -> int:
        return min(8, self.batch_size)

    def _first_inputs(self) -> Any:
        """A few readable examples, as the model takes them."""
        with closing(batches(self.source, self.preprocessing, batch_size=self._few)) as few:
            for batch in few:
                if len(batch.index):
                    return moved(batch.inputs, self.device)
        raise ModelError(f"none of the examples of {self.source.spec} could be read")

    def _called(self, inputs: Any) -> Any:
        with forward_context(self.device, self.precision):
            return self.model(**inputs) if isinstance(inputs, dict) else self.model(inputs)

    def _logits_only(self, inputs: Any) -> tuple[Tensor | None, Tensor]:
        return None, logits_of(self._called(inputs))

    @torch.inference_mode()
    def _piece(self, batch: Batch, forward: _Forward) -> Piece:
        positions = len(batch.index) + len(batch.errors)
        if len(batch.index) == 0:
            return _no_rows(positions, self.plan, self._errors(batch))
        self._check_labels(batch)
        labels = batch.labels.to(self.device, non_blocking=True)
        with forward_context(self.device, self.precision):
            embeddings, logits = forward(moved(batch.inputs, self.device))
        logits = logits.to(self.device)
        logit_part, target_part = logit_summaries(logits, labels)
        angular = Summaries()
        if self.tiled is not None and embeddings is not None:
            angular = self.tiled.summaries(embeddings.to(self.device), labels)
        summaries = dataclasses.replace(angular, logits=logit_part, targets=target_part)
        finite = torch.isfinite(logit_part.logsumexp)
        return Piece(
            positions=positions,
            index=torch.from_numpy(self.source.numbered(batch.index)),
            ids=pa.array(batch.ids, pa.string()),
            labels=batch.labels,
            prediction=torch.where(finite, logit_part.prediction, -1),
            finite=finite,
            scores=self.plan.scores(summaries),
            bent=None if self.head is None else decided_by_bias(logits, self.head),
            errors=self._errors(batch),
        )

    def _errors(self, batch: Batch) -> list[tuple[int, str, str]]:
        """Unreadable examples by their index in what the user named."""
        return [(int(self.source.numbered(at)), name, why) for at, name, why in batch.errors]

    def _check_labels(self, batch: Batch) -> None:
        outside = (batch.labels < 0) | (batch.labels >= self.num_classes)
        if bool(outside.any()):
            row = int(outside.nonzero()[0, 0])
            raise LabelError(
                f"expected labels in [0, {self.num_classes}), the classes of the model, got "
                f"{int(batch.labels[row])} for {batch.ids[row]}; score data with the model's "
                "classes, or a model with the data's"
            )


def _check_logits(outputs: Tensor, model: str) -> None:
    """Raise where outputs are probabilities: with a head at hand, looking for it would tell."""
    sums = outputs.float().sum(dim=1)
    if bool((outputs >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all()):
        raise ModelError(
            f"{model} returns probabilities: no output is negative, and they sum to 1 for every "
            "example; remove the softmax from its forward pass"
        )


def _no_rows(positions: int, plan: ScorePlan, errors: list[tuple[int, str, str]]) -> Piece:
    none, values = torch.empty(0, dtype=torch.int64), torch.empty(0)
    names = [spec.name for spec in plan.row_specs]
    if plan.dataset_specs:
        names.append("feature_norm")
    return Piece(
        positions=positions,
        index=none,
        ids=pa.array([], pa.string()),
        labels=none,
        prediction=none,
        finite=torch.empty(0, dtype=torch.bool),
        scores=dict.fromkeys(names, values),
        errors=errors,
    )
