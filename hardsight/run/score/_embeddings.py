"""Score stored embeddings with a stored head, or with a head per fold."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hardsight.data import EmbeddingSource
from hardsight.geometry import widen
from hardsight.heads import Head, decided_by_bias
from hardsight.run.loop import FOLD, Folds
from hardsight.run.score._rows import Piece, ScorePlan, Scorer
from hardsight.scores import TiledHead


class EmbeddingScorer(Scorer):
    """Scores stored embeddings with a stored head, or the rows of each fold with its own head.

    Args:
        source: the embeddings.
        heads: a single head, or with ``folds`` one per fold; :meth:`use` may set them later.
        plan: which scores.
        device: to compute on.
        batch_size: rows at once.
        num_classes: of the heads; only needed if ``heads`` is empty.
        folds: which head scores which row.
    """

    source: EmbeddingSource

    def __init__(
        self,
        source: EmbeddingSource,
        heads: Sequence[Head],
        plan: ScorePlan,
        *,
        device: torch.device,
        batch_size: int | None,
        num_classes: int | None = None,
        folds: Folds | None = None,
    ) -> None:
        self.source, self.plan, self.device = source, plan, device
        # 16,384 rows of 512 floats are 32 MiB: enough work for a core between two waits
        self.batch_size = batch_size or 16384
        self.num_classes = num_classes or heads[0].num_classes
        self._heads, self._folds = list(heads), folds

    def use(self, heads: Sequence[Head]) -> None:
        """Score with these heads, one per fold, which were fitted after this scorer was made."""
        self._heads = list(heads)

    def pieces(self, start: int, stop: int | None = None) -> Generator[Piece, None, None]:
        """Pieces from ``start`` to ``stop``, on a CPU one per core at a time.

        With a piece per core, cores wait for each other once a piece instead of once an operation,
        and the numbers do not depend on the number of cores.
        """
        end = len(self.source) if stop is None else min(stop, len(self.source))
        firsts = range(start, end, self.batch_size)
        if self.device.type != "cpu":
            tiled = self._tiled_heads()
            yield from (self._piece(tiled, first, self._rows(first)) for first in firsts)
            return
        with _one_thread_each() as cores, ThreadPoolExecutor(cores) as pool:
            heads: Queue[list[TiledHead]] = Queue()
            for _ in range(cores):
                heads.put(self._tiled_heads())
            waiting: deque[Future[Piece]] = deque()
            for first in firsts:
                # read here, in order: a reader may keep its place in the file
                rows = self._rows(first)
                waiting.append(pool.submit(self._piece_by_any, heads, first, rows))
                if len(waiting) > cores:  # bounds memory; the oldest first keeps the order
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _tiled_heads(self) -> list[TiledHead]:
        return [
            TiledHead(
                head.weight.to(self.device),
                None if head.bias is None else head.bias.to(self.device),
                parts=self.plan.parts,
            )
            for head in self._heads
        ]

    def _piece_by_any(self, heads: Queue[list[TiledHead]], first: int, rows: Tensor) -> Piece:
        tiled = heads.get()  # its working memory serves one thread at a time
        try:
            return self._piece(tiled, first, rows)
        finally:
            heads.put(tiled)

    @torch.inference_mode()
    def bias_facts(self) -> dict[str, Any]:
        """How often the bias decides, measured on the first examples only, to save a pass."""
        # at most 4,096 rows, fewer if their logits would not fit 32 MiB
        count = max(1, min(len(self.source), 4096, (1 << 22) // self.num_classes))
        rows, decided = self._rows(0, count), 0.0
        for head, at in self._shares(0, count):
            if head.bias is not None and len(at):
                decided += float(self._decided(head, rows[at]).sum())
        return {"flip_rate": decided / count, "rows": count}

    def _decided(self, head: Head, rows: Tensor) -> Tensor:
        # files may hold embeddings, weights and bias in different precisions
        dtype = widen(head.weight).dtype
        assert head.bias is not None
        embeddings, weight, bias = (
            tensor.to(self.device, dtype) for tensor in (rows, head.weight, head.bias)
        )
        return decided_by_bias(torch.addmm(bias, embeddings, weight.T), head)

    def _shares(self, first: int, last: int) -> Iterator[tuple[Head, Tensor]]:
        """Each head with the rows of a range that it scores, by their place in the range."""
        for at, head in enumerate(self._heads):
            yield head, self._share(at, first, last)

    def _share(self, at: int, first: int, last: int) -> Tensor:
        if self._folds is None:
            return torch.arange(last - first, device=self.device)
        rows = np.flatnonzero(self._folds.number[first:last] == at + 1)
        return torch.from_numpy(rows).to(self.device)

    def _rows(self, first: int, count: int | None = None) -> Tensor:
        last = min(first + (count or self.batch_size), len(self.source))
        return torch.from_numpy(np.array(self.source.chunk(first, last))).to(self.device)

    @torch.inference_mode()
    def _piece(self, heads: list[TiledHead], first: int, rows: Tensor) -> Piece:
        last = first + len(rows)
        every = torch.arange(first, last)
        if self._folds is None:
            columns = self._columns(heads[0], every, rows)
            return Piece(last - first, self.source.ids(first, last), columns)
        shares = [self._share(at, first, last) for at in range(len(heads))]
        parts = [
            {
                **self._columns(head, every[at.cpu()], rows[at]),
                FOLD: torch.full((len(at),), fold),
            }
            for fold, (head, at) in enumerate(zip(heads, shares, strict=True), start=1)
        ]
        # rows come fold by fold; sort them back into their order in the source
        at, order = torch.cat(shares).cpu().sort()
        columns = {
            name: torch.cat([part[name] for part in parts])[order.to(parts[0][name].device)]
            for name in parts[0]
        }
        ids = self.source.ids(first, last).take(pa.array(at.numpy()))
        return Piece(last - first, ids, columns, self._unscored(first, last))

    def _columns(self, head: TiledHead, at: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """The columns of some rows, by their positions in the source."""
        labels = torch.from_numpy(self.source.labels[at.numpy()])
        summaries = head.summaries(rows, labels.to(self.device))
        assert summaries.predictions is not None
        finite = torch.isfinite(summaries.predictions.largest)
        return {
            "index": torch.from_numpy(self.source.numbered(at)),
            "label": labels,
            "prediction": torch.where(finite, summaries.predictions.prediction, -1),
            "finite": finite,
            **self.plan.scores(summaries),
        }

    def _unscored(self, first: int, last: int) -> list[tuple[int, str, str]]:
        assert self._folds is not None
        source = self.source
        return self._folds.unscored(
            source.labels, source.classes,
            lambda at: (int(source.numbered(at)), source.id_of(at)), among=range(first, last),
        )  # fmt: skip


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """Run torch operations on one thread each inside the block; yields the number of cores."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield cores
    finally:
        torch.set_num_threads(cores)
