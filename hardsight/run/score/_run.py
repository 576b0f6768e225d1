"""The scoring loop: shard by shard, so that a killed run continues where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from hardsight.data import EmbeddingSource, ExampleSource
from hardsight.errors import DataError
from hardsight.run.loop import pictures, progress
from hardsight.run.score._rows import Totals, piece_rows
from hardsight.run.score._scorers import Piece, ScorePlan, Scorer
from hardsight.run_folder import row_groups
from hardsight.table import (
    THUMBNAILS,
    RunFolder,
    ScoreTable,
    error_rows,
    read_table,
    with_metadata,
)

Shards = Callable[[], Iterator[pa.Table]]
Source = ExampleSource | EmbeddingSource


def length_of(source: Source) -> int | None:
    """Number of examples; ``None`` for a stream that does not know."""
    try:
        return len(source)
    except (TypeError, DataError):
        return None


class ScoreRun:
    """One pass over the data, from the first missing shard to the finished table.

    Args:
        folder: where the shards go, described and not finished; ``None`` keeps them in memory.
        plan: which scores.
        about: metadata of the table, completed at the end.
        batches_per_shard: whole batches, so that a resumed run forms the same batches.
        show: force the progress bar on or off.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        plan: ScorePlan,
        about: dict[str, Any],
        *,
        batches_per_shard: int,
        show: bool | None,
    ) -> None:
        self.folder, self.plan, self.about = folder, plan, about
        self.batches_per_shard, self.show = batches_per_shard, show

    def table(self, scorer: Scorer, source: Source, *, thumbnails: int) -> ScoreTable:
        """Score what is missing, and finish.

        The shards are read twice: once for what only all of them can say, once to write them. No
        more than one group of rows is in memory, however many there are.
        """
        shards, errors = self._scored(scorer, source)
        first = next(shards(), None)
        if first is None:
            raise DataError(f"there are no examples in {source.spec}")
        totals = Totals(self.plan)
        for shard in shards():
            totals.add(shard)
        self._count(source, totals, errors)
        parts = (totals.finished(group) for group in row_groups(shards(), first.schema))
        schema = with_metadata(totals.finished(first.slice(0, 0)), self.about).schema
        if self.folder is None:
            return ScoreTable(with_metadata(pa.concat_tables(parts), self.about))
        with self.folder.new_table(parts, schema) as table:
            # a stream would have to be read again from its start for every picture
            if thumbnails and not isinstance(source, EmbeddingSource) and not source.is_stream:
                found = pictures(source, table, most=thumbnails, show=self.show)
                self.folder.write_side_file(THUMBNAILS, found)
        self.folder.finish()
        return read_table(self.folder.folder)

    def _scored(self, scorer: Scorer, source: Source) -> tuple[Shards, int]:
        """All shards, computed or read, and the number of unreadable examples."""
        folder, kept = self.folder, list[pa.Table]()
        done = 0 if folder is None else _complete_from_the_start(folder)
        start = done * self.batches_per_shard * scorer.batch_size
        failed = 0
        title = f"scoring {source.spec}"
        with progress(title, total=length_of(source), done=start, show=self.show) as advance:
            for number, pieces in enumerate(self._pieces(scorer, start, advance), start=done):
                rows = piece_rows(pieces)
                errors = error_rows([error for piece in pieces for error in piece.errors])
                if folder is None:
                    kept.append(rows)
                    failed += errors.num_rows
                    continue
                folder.begin()  # only now: what fails on the first examples leaves no folder
                folder.write_shard(number, rows, errors)
        if folder is None:
            return lambda: iter(kept), failed
        return folder.shards, sum(part.num_rows for part in folder.shards("errors"))

    def _pieces(
        self, scorer: Scorer, start: int, advance: Callable[[int], None]
    ) -> Iterator[list[Piece]]:
        pieces: list[Piece] = []
        for piece in scorer.pieces(start):
            pieces.append(piece)
            advance(piece.positions)
            if len(pieces) == self.batches_per_shard:
                scorer.check()  # what is written once is not looked at again
                yield pieces
                pieces = []
        if pieces:
            scorer.check()
            yield pieces

    def _count(self, source: Source, totals: Totals, errors: int) -> None:
        if totals.rows == 0:
            raise DataError(f"none of the {errors} examples of {source.spec} could be read")
        self.about["data"] |= {"rows": totals.rows + errors}
        self.about["counts"] = {"errors": errors, "non_finite": totals.rows - totals.finite}
        if isinstance(source, ExampleSource) and source.passed_over:
            self.about["counts"]["passed_over"] = dict(source.passed_over)
        self.about.setdefault("bias", {"flip_rate": totals.bent / totals.rows})


def _complete_from_the_start(folder: RunFolder) -> int:
    """Complete shards from the start on; everything behind a gap is done again."""
    done = folder.done() if folder.goes_on else set()
    return next(number for number in range(len(done) + 1) if number not in done)
