"""The scoring loop: shard by shard, so that a killed run continues where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hardsight.data import EmbeddingSource, ExampleSource
from hardsight.errors import DataError, RunExistsError, RunMismatchError
from hardsight.run.loop import pictures, progress
from hardsight.run.score._rows import bent_count, finished_rows, piece_rows
from hardsight.run.score._scorers import Piece, ScorePlan, Scorer
from hardsight.table import (
    THUMBNAILS,
    RunFolder,
    ScoreTable,
    error_rows,
    with_metadata,
)

Source = ExampleSource | EmbeddingSource


def length_of(source: Source) -> int | None:
    """Number of examples; ``None`` for a stream that does not know."""
    try:
        return len(source)
    except (TypeError, DataError):
        return None


def check_free(folder: RunFolder, *, resume: bool) -> None:
    """Raise rather than overwrite.

    Raises:
        RunExistsError: the folder holds a run, and the user did not ask to continue it.
    """
    if resume:
        return
    if folder.finished:
        raise RunExistsError(
            f"{folder.folder} already holds a finished table; choose another --out"
        )
    if folder.started:
        raise RunExistsError(
            f"{folder.folder} holds an unfinished run ({len(folder.done())} shards); continue it "
            "with --resume (resume=True), or choose another --out"
        )


class ScoreRun:
    """One pass over the data, from the first missing shard to the finished table.

    Args:
        folder: where the shards go; ``None`` keeps them in memory.
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
        # as the file will give it back: tuples become lists
        self.settings = json.loads(json.dumps({**about, "batches_per_shard": batches_per_shard}))

    def table(self, scorer: Scorer, source: Source, *, thumbnails: int) -> ScoreTable:
        """Score what is missing, and finish."""
        if self.folder is not None and self.folder.finished:
            self.folder.clean()
            return self._checked_table(self.folder)
        shards, errors = self._scored(scorer, source)
        if not shards:
            raise DataError(f"there are no examples in {source.spec}")
        rows = finished_rows(pa.concat_tables(shards, promote_options="none"), self.plan)
        self._count(source, rows, errors)
        self.about.setdefault("bias", {"flip_rate": bent_count(shards) / rows.num_rows})
        table = ScoreTable(with_metadata(rows, self.about))
        if self.folder is None:
            return table
        # a stream would have to be read again from its start for every picture
        is_stream = getattr(source, "is_stream", False)
        if thumbnails and not is_stream and not isinstance(source, EmbeddingSource):
            found = pictures(source, table, most=thumbnails, show=self.show)
            self.folder.write_side_file(THUMBNAILS, found)
        return self.folder.finish([table.to_arrow()], table.to_arrow().schema)

    def _scored(self, scorer: Scorer, source: Source) -> tuple[list[pa.Table], int]:
        """All shards, computed or read, and the number of unreadable examples."""
        done = self._shards_done()
        start = done * self.batches_per_shard * scorer.batch_size
        shards: list[pa.Table] = []
        failed = 0
        title = f"scoring {source.spec}"
        with progress(title, total=length_of(source), done=start, show=self.show) as advance:
            for number, pieces in enumerate(self._pieces(scorer, start, advance), start=done):
                rows = piece_rows(pieces)
                errors = error_rows([error for piece in pieces for error in piece.errors])
                if self.folder is None:
                    shards.append(rows)
                    failed += errors.num_rows
                    continue
                if number == 0:  # only now: what fails on the first examples leaves no folder
                    self.folder.start(self.settings)
                self.folder.write_shard(number, rows, errors)
        if self.folder is not None:
            shards = list(self.folder.shards())
            failed = sum(part.num_rows for part in self.folder.shards("errors"))
        return shards, failed

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

    def _shards_done(self) -> int:
        """Complete shards from the start on; everything behind a gap is done again."""
        if self.folder is None or not self.folder.started:
            return 0
        self._check_same(self.folder, self.folder.settings())
        done = self.folder.done()
        return next(number for number in range(len(done) + 1) if number not in done)

    def _check_same(self, folder: RunFolder, stored: dict[str, Any]) -> None:
        keys = [key for key in self.settings if key in stored]
        differing = [key for key in keys if stored[key] != self.settings[key]]
        if differing:
            raise RunMismatchError(
                f"the run in {folder.folder} was made with other {', '.join(differing)}; resume "
                "with the same, or choose another --out"
            )

    def _checked_table(self, folder: RunFolder) -> ScoreTable:
        from hardsight.table import read_table

        table = read_table(folder.folder)
        for key in ("model", "scores"):
            self._check_same(folder, {key: table.metadata.get(key)})
        # the same data may be named by another path
        mark = (table.metadata.get("data") or {}).get("fingerprint")
        self._check_same(folder, {"data": {**self.settings["data"], "fingerprint": mark}})
        return table

    def _count(self, source: Source, rows: pa.Table, errors: int) -> None:
        if rows.num_rows == 0:
            raise DataError(f"none of the {errors} examples of {source.spec} could be read")
        finite = pc.sum(rows["finite"].cast(pa.int64())).as_py()
        self.about["data"] |= {"rows": rows.num_rows + errors, "named": len(source.classes)}
        self.about["counts"] = {"errors": errors, "non_finite": rows.num_rows - finite}
