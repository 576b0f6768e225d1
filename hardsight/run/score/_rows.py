"""Turn batches of examples, or chunks of stored embeddings, into the rows of a table.

A scorer makes a piece of rows from every batch. The run writes several pieces as a shard, so a
killed run continues after its last shard. What needs all rows is computed at the end.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight._checks import warn
from hardsight.data import Batch, EmbeddingSource, ExampleSource
from hardsight.data.pixels import decisive
from hardsight.errors import DataError, HeadError, ModelError, OptionError
from hardsight.heads import Head, decided_by_bias
from hardsight.registry import SCORES, ScoreSpec
from hardsight.run.loop import (
    FOLD,
    BatchOutputs,
    ClassOrder,
    ModelAtWork,
    ModelPass,
    ModelTraits,
    Need,
    check_labels,
    length_of,
    pictures,
    progress,
)
from hardsight.run.score._neighbours import StoredVectors, keep_neighbours
from hardsight.run_folder import (
    NEAREST,
    NEAREST_CLASSES,
    NEAREST_COUNT,
    SCORE,
    Manifest,
    row_groups,
    values_digest,
)
from hardsight.scores import Summaries, TiledHead, logit_summaries
from hardsight.table import (
    KEY_COLUMNS,
    THUMBNAILS,
    RunFolder,
    ScoreTable,
    error_rows,
    read_table,
    with_metadata,
)

if TYPE_CHECKING:
    from hardsight.run.score._groups import Groups
    from hardsight.run.score._refit import Refit

_ANGULAR = ("norms", "angles")
_NORM = "feature_norm"
_MOST_HALF = float(np.finfo(np.float16).max)
_NOTICED = "noticed "  # prefix of shard columns that the table reports as counts
_BY_BIAS = "decided_by_bias"  # a shard column that the table reports as a share
# shard columns that become a file beside the table, for whoever decides about a label
_CLASSES, _ANGLES = "nearest classes", "nearest angles"
_SURE = 0.9  # a label with at least this probability is not in doubt: no nearest classes are kept
_READ_AT_ONCE = 1 << 14  # rows of a group; to look at one example, a whole group is read
# options that say how a table of examples is read
COLUMNS = ("text_column", "label_column", "image_column", "max_tokens", "tokens", "target")
# settings that do not change the result, so a resumed run may change them; weights are compared by
# their content, so the file that holds them may have another name
MAY_CHANGE = ("workers", "weights", "data_root")
Shards = Callable[[], Iterator[pa.Table]]
Elsewhere = Callable[[Sequence[int]], Iterator[tuple[int, pa.Table, pa.Table]]]
Source = ExampleSource | EmbeddingSource


@dataclass(frozen=True)
class Piece:
    """The rows of some consecutive source positions.

    Attributes:
        positions: how many source positions it covers, unreadable ones included.
        ids: names of the examples that have a row.
        columns: all other columns by name, ``[n]`` each; they may still be on the device.
        errors: ``(index, id, reason)`` of unreadable examples.
        embeddings: of the rows, ``[n, D]``, if they are to be kept; on the CPU, to be stored.
    """

    positions: int
    ids: pa.Array
    columns: dict[str, Tensor]
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    embeddings: NDArray[np.floating] | None = None


class Scorer(ABC):
    """A kind of data as the scoring loop needs it."""

    source: Source
    batch_size: int
    num_classes: int

    @abstractmethod
    def pieces(self, start: int, stop: int | None = None) -> Generator[Piece, None, None]:
        """Pieces of source positions from ``start`` to ``stop``, ``batch_size`` each."""

    def check(self) -> None:  # noqa: B027 (a default)
        """Raise unless all pieces so far are right; called before they are kept.

        By default nothing is checked: scores of stored numbers cannot disagree with a model.
        """

    def number_as(self, order: ClassOrder) -> None:
        """Renumber the labels of the data to the model's outputs."""
        self.source = order.of(self.source)


class ScorePlan:
    """Which scores to compute, and which summaries they need.

    Args:
        names: one or several scores; ``None`` for every score that gives a column.
        has_head: whether embeddings and class weights are available.
        has_offset: whether logits are known exactly; otherwise an unknown constant may have been
            added to all logits of a row.

    Attributes:
        missing: scores that are left out because they need a head, or exact logits.
    """

    def __init__(
        self,
        names: str | Sequence[str] | None,
        *,
        has_head: bool = True,
        has_offset: bool = True,
    ) -> None:
        columns = [spec for spec in SCORES.values() if not spec.per_class]
        columns.sort(key=lambda spec: spec.name != "avh")  # AVH first, the rest in their order
        self.is_open = names is None
        if names is None:
            self.specs = [
                spec
                for spec in columns
                if (has_head or not needs_head(spec)) and (has_offset or not spec.needs_offset)
            ]
            self.missing = [spec.name for spec in columns if spec not in self.specs]
        else:
            self.missing = []
            one_or_more = [names] if isinstance(names, str) else names
            # dict.fromkeys: a name that is given twice has one column
            self.specs = [_column_spec(name) for name in dict.fromkeys(one_or_more)]
        self.dataset_specs = [spec for spec in self.specs if spec.over_dataset]
        self.row_specs = [spec for spec in self.specs if not spec.over_dataset]
        if self.dataset_specs and SCORES[_NORM] not in self.row_specs:
            # scores over the whole dataset are computed from it; Totals.finished drops it again
            self.row_specs.append(SCORES[_NORM])

    @property
    def parts(self) -> tuple[str, ...]:
        """Fields of ``Summaries`` to fill; predictions are always among them."""
        read = {spec.reads for spec in self.specs} | {"predictions"}
        return tuple(sorted(read))

    @property
    def needs_head(self) -> bool:
        """Whether embeddings are needed at all."""
        return any(needs_head(spec) for spec in self.specs)

    @property
    def need(self) -> Need:
        """Whether the model must have a head: only if a score was asked for that needs one."""
        if self.is_open:
            return "may"
        return "must" if self.needs_head else "none"

    def fitted_to(self, traits: ModelTraits) -> ScorePlan:
        """The plan without the scores that need a head, if the model has none."""
        return (
            self
            if traits.head is not None or not self.needs_head
            else ScorePlan(None, has_head=False)
        )

    def scores(self, summaries: Summaries) -> dict[str, Tensor]:
        """Every score that needs nothing but its own row."""
        return {spec.name: spec.formula(getattr(summaries, spec.reads)) for spec in self.row_specs}


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


class ModelScorer(Scorer):
    """Scores examples with a model, capturing its embeddings on the way."""

    source: ExampleSource

    def __init__(
        self,
        source: ExampleSource,
        model: ModelAtWork,
        plan: ScorePlan,
        *,
        device: torch.device,
        precision: str,
        batch_size: int,
        workers: int,
        strict: bool,
        goes_on: str = "",
        keep_embeddings: bool = False,
        names_nearest: bool = False,
    ) -> None:
        self.source, self.plan, self.device, self.precision = source, plan, device, precision
        self.batch_size, self.workers, self.strict = batch_size, workers, strict
        is_needed = plan.needs_head or model.placed is not None
        self.head = model.traits.head if is_needed else None
        self._keeps = keep_embeddings
        if keep_embeddings and self.head is None:
            raise OptionError(
                "keep_embeddings keeps what enters the model's head, and "
                f"{model.traits.no_head or 'no score was asked for that needs one'}; leave it out"
                f"{'' if model.traits.no_head else ', or ask for a score such as avh'}"
            )
        self.num_classes = model.traits.num_classes
        self._preprocessing = model.preprocessing
        self._running = ModelPass(
            model.network, self.head, device=device, precision=precision, goes_on=goes_on,
            placed=model.placed,
        )  # fmt: skip
        self.tiled = self._unbiased = None
        # a language model's logits, tokens times vocabulary, would not fit into memory: its head
        # makes them tile by tile
        self._by_head = model.placed is not None and self.head is not None
        if self.head is not None and self._by_head:
            self.tiled, self._unbiased = self._whole_heads(self.head)
        elif self.head is not None:
            # logits come from the model itself; the tiles add what only embeddings tell
            parts = tuple(part for part in plan.parts if part in _ANGULAR)
            self.tiled = TiledHead(self.head.weight.to(device), parts=parts)
        self._names_nearest = (
            names_nearest and self.head is not None and not self._by_head
            and self.num_classes <= NEAREST_CLASSES
        )  # fmt: skip

    def _whole_heads(self, head: Head) -> tuple[TiledHead, TiledHead | None]:
        """A head that makes all summaries as the model's layer would, and one without its bias."""
        # the layer itself runs under autocast, which rounds its weights to this dtype
        dtype = head.weight.dtype if self.precision == "float32" else getattr(torch, self.precision)
        weight = head.weight.to(self.device, dtype)
        bias = None if head.bias is None else head.bias.to(self.device)
        # "logits" in any case: they give the prediction, and whether it is finite
        parts = tuple(sorted({*self.plan.parts, "logits"}))
        plain = None
        if bias is not None and bool(bias.any()):
            plain = TiledHead(weight, parts=("predictions",))
        return TiledHead(weight, bias, parts=parts), plain

    def pieces(self, start: int, stop: int | None = None) -> Generator[Piece, None, None]:
        """Pieces from position ``start`` to ``stop``."""
        with naming_other_scores(), self._running as running:
            for passed in running.over(
                self.source,
                self._preprocessing,
                num_classes=self.num_classes,
                start=start,
                stop=stop,
                batch_size=self.batch_size,
                workers=self.workers,
                strict=self.strict,
                check=partial(
                    check_labels, num_classes=self.num_classes, whose="the model", verb="score"
                ),
            ):
                # the summaries need memory as well, and their error should name the batch too
                with running.memory_errors(passed.batch.ids):
                    columns = self._columns(passed)
                yield Piece(
                    passed.positions,
                    pa.array(passed.batch.ids, pa.string()),
                    columns,
                    self._errors(passed.batch),
                    self._kept(passed),
                )

    def check(self) -> None:
        """Raise unless every batch so far fits the head; waits for the device."""
        with naming_other_scores():
            self._running.check()

    @torch.inference_mode()
    def _columns(self, passed: BatchOutputs) -> dict[str, Tensor]:
        batch = passed.batch
        labels = batch.labels.to(self.device, non_blocking=True)
        summaries, decided = (self._by_tiles if self._by_head else self._by_logits)(passed, labels)
        logit_part = summaries.logits
        assert logit_part is not None
        finite = torch.isfinite(logit_part.logsumexp)
        return {
            "index": torch.from_numpy(self.source.numbered(batch.index)),
            "label": batch.labels,
            # argmax over logits with a NaN is not a prediction
            "prediction": torch.where(finite, logit_part.prediction, -1),
            "finite": finite,
            **decided,
            **{f"{_NOTICED}{name}": values for name, values in batch.noticed.items()},
            **self.plan.scores(summaries),
            **self._nearest(passed, summaries),
        }

    def _nearest(self, passed: BatchOutputs, summaries: Summaries) -> dict[str, Tensor]:
        """The nearest classes of each example of a batch; -1 if its label is not in doubt."""
        if not self._names_nearest or passed.embeddings is None or summaries.targets is None:
            return {}
        assert self.tiled is not None
        classes, angles = self.tiled.nearest(passed.embeddings.to(self.device), NEAREST_COUNT)
        in_doubt = summaries.targets.log_prob < math.log(_SURE)
        return {
            _CLASSES: torch.where(in_doubt[:, None], classes, -1).int(),
            _ANGLES: angles.float(),
        }

    def _by_logits(
        self, passed: BatchOutputs, labels: Tensor
    ) -> tuple[Summaries, dict[str, Tensor]]:
        """Summaries of a batch, and which predictions the bias decided, from the model's logits."""
        logits = passed.logits.to(self.device)
        logit_part, target_part = logit_summaries(logits, labels)
        angular = Summaries()
        if self.tiled is not None and passed.embeddings is not None:
            angular = self.tiled.summaries(passed.embeddings.to(self.device), labels)
        summaries = dataclasses.replace(angular, logits=logit_part, targets=target_part)
        decided = {} if self.head is None else {_BY_BIAS: decided_by_bias(logits, self.head)}
        return summaries, decided

    def _by_tiles(
        self, passed: BatchOutputs, labels: Tensor
    ) -> tuple[Summaries, dict[str, Tensor]]:
        """Like :meth:`_by_logits`, but from embeddings and head alone."""
        assert self.tiled is not None
        assert passed.embeddings is not None
        embeddings = passed.embeddings.to(self.device, self.tiled.class_weights.dtype)
        summaries = self.tiled.summaries(embeddings, labels)
        assert summaries.logits is not None
        decided = torch.zeros_like(labels, dtype=torch.bool)
        if self._unbiased is not None:
            without = self._unbiased.summaries(embeddings, labels).predictions
            assert without is not None
            decided = without.prediction != summaries.logits.prediction
        return summaries, {_BY_BIAS: decided}

    def _kept(self, passed: BatchOutputs) -> NDArray[np.floating] | None:
        if not self._keeps or passed.embeddings is None:
            return None
        return passed.embeddings.float().cpu().numpy()

    def _errors(self, batch: Batch) -> list[tuple[int, str, str]]:
        """Unreadable examples, with their index in the data as the user named it."""
        return [(int(self.source.numbered(at)), name, why) for at, name, why in batch.errors]


@contextmanager
def naming_other_scores() -> Iterator[None]:
    """Add the scores that need no head to an error about the head."""
    try:
        yield
    except HeadError as err:
        others = ", ".join(name for name, spec in SCORES.items() if not needs_head(spec))
        raise type(err)(f"{err}. Scores that need no head: {others}") from err


def piece_rows(pieces: list[Piece]) -> pa.Table:
    """Rows of consecutive pieces; each column is copied from the device once for all pieces."""
    columns: dict[str, Any] = {
        name: _arrow_of(torch.cat([piece.columns[name] for piece in pieces]).cpu().numpy())
        for name in pieces[0].columns
    }
    ids = pa.chunked_array([piece.ids for piece in pieces], pa.string()).combine_chunks()
    return pa.table({**columns, "id": ids})


def _arrow_of(values: NDArray[Any]) -> pa.Array:
    """An Arrow column, of fixed-size lists if every row has several values."""
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _without_nearest(shard: pa.Table) -> pa.Table:
    return shard.drop_columns([n for n in (_CLASSES, _ANGLES) if n in shard.column_names])


def _nearest_of(shard: pa.Table) -> pa.Table:
    """Index, nearest classes and angles of the rows of a shard whose label is in doubt."""
    rows = pa.table({"index": shard["index"], "classes": shard[_CLASSES], "angles": shard[_ANGLES]})
    return rows.filter(pc.greater_equal(pc.list_element(rows["classes"], 0), 0))


class Totals:
    """Totals over all rows, gathered shard by shard.

    Args:
        plan: which scores.
        groups: attributes of the examples, if there are any.

    Attributes:
        rows: how many.
        finite: how many of them are finite.
        decided_by_bias: how many predictions would change if the head had no bias.
        noticed: number of examples with something worth a note, by its name, such as texts that
            were cut.
    """

    def __init__(self, plan: ScorePlan, groups: Groups | None = None) -> None:
        self.noticed: dict[str, int] = {}
        self._plan, self._groups = plan, groups
        self._passes = {
            spec.name: spec.over_dataset() for spec in plan.dataset_specs if spec.over_dataset
        }
        self.rows = self.finite = self.decided_by_bias = 0

    def add(self, shard: pa.Table) -> None:
        """Add one shard to the totals."""
        self.rows += shard.num_rows
        self.finite += _count(shard["finite"])
        if _BY_BIAS in shard.column_names:
            self.decided_by_bias += _count(shard[_BY_BIAS])
        for column in shard.column_names:
            if column.startswith(_NOTICED):
                name = column.removeprefix(_NOTICED)
                self.noticed[name] = self.noticed.get(name, 0) + _count(shard[column])
        for over_dataset in self._passes.values():
            over_dataset.add(*_norms_and_labels(shard))

    def finished(self, rows: pa.Table) -> pa.Table:
        """Rows in table order, with the scores that depend on the whole dataset."""
        for name, over_dataset in self._passes.items():
            values = over_dataset.values(*_norms_and_labels(rows))
            rows = rows.append_column(name, pa.array(values.numpy()))
        keys = [*KEY_COLUMNS, *(name for name in (FOLD,) if name in rows.column_names)]
        rows = rows.select([*keys, *(spec.name for spec in self._plan.specs)])
        return rows if self._groups is None else self._groups.beside(rows)


def _norms_and_labels(rows: pa.Table) -> tuple[Tensor, Tensor]:
    return torch.tensor(rows[_NORM].to_numpy()), torch.tensor(rows["label"].to_numpy())


def _count(column: pa.ChunkedArray) -> int:
    """How many values are true."""
    return pc.sum(column.cast(pa.int64())).as_py() or 0


def _rows_said(source: Source) -> int | None:
    """Number of rows that a source promises; ``None`` for a stream that does not know."""
    length = length_of(source)
    return length if length is None or isinstance(source, EmbeddingSource) else source.num_rows


class ShardMade(NamedTuple):
    """Rows, unreadable examples, and the embeddings of the rows if they are kept."""

    rows: pa.Table
    errors: pa.Table
    embeddings: NDArray[np.floating] | None


def _shard_of(pieces: list[Piece]) -> ShardMade:
    errors = error_rows([error for piece in pieces for error in piece.errors])
    return ShardMade(piece_rows(pieces), errors, _compact(pieces))


@dataclass(frozen=True)
class ScoreWork:
    """Everything that shards are made from.

    Attributes:
        source: the examples, with the model's numbers for their classes.
        scorer: of these examples.
        plan: which scores.
        about: metadata of the table, completed when all shards are there.
        batches_per_shard: a whole number of batches, so that any shard can be made without the
            others, and made again.
        workers: loader processes, as the user set them.
        groups: attributes that the table keeps.
        refit: fits heads to the embeddings before they are scored.
    """

    source: Source
    scorer: Scorer
    plan: ScorePlan
    about: dict[str, Any]
    batches_per_shard: int
    workers: int | None
    groups: Groups | None = None
    refit: Refit | None = None

    @property
    def rows_per_shard(self) -> int:
        """How many source positions a shard covers."""
        return self.batches_per_shard * self.scorer.batch_size

    def shard(self, number: int) -> ShardMade:
        """Make one shard, without those before it."""
        start = number * self.rows_per_shard
        with closing(self.scorer.pieces(start, start + self.rows_per_shard)) as made:
            pieces = list(made)
            self.scorer.check()
        return _shard_of(pieces)

    def made_of(self) -> Manifest:
        """The manifest of the run, from the metadata of its table."""
        about = self.about
        config, model, data = about["config"], about["model"], about["data"]
        settings = {
            "data": data["spec"],
            "split": data["split"],
            "patch": [facts["digest"] for facts in data["patches"]] or None,
            "model": model["spec"],
            "weights": config["weights"],
            "head": model.get("head"),
            "output": model.get("output"),
            "scores": [
                _as_defined(name, facts["version"]) for name, facts in about["scores"].items()
            ],
            "preprocessing": decisive(about.get("preprocessing", {})),
            "columns": [data[key] for key in COLUMNS if key in data],
            "class_order": about["class_order"]["taken"],
            "precision": about.get("precision", config["precision"]),
            "device": config["device"].partition(":")[0],  # a run may continue on another GPU
            "batch_size": about["batch_size"],
            # shards of another size would overlap with those that exist
            "rows_per_shard": self.rows_per_shard,
            "workers": self.workers,
            "sample": about["sample"],
            "out_of_sample": config["out_of_sample"],
            "strict": config["strict"],
            "thumbnails": config["thumbnails"],
            "keep_embeddings": config["keep_embeddings"],
            "seed": about["seed"],
        }
        fingerprints = {
            "data": data["fingerprint"],
            "chosen rows": data.get("chosen", {}).get("fingerprint"),
            "groups": None if self.groups is None else self.groups.digest(),
            "model": model["digest"],
            "classes": values_digest([about["classes"], about["class_order"]["labels"]]),
        }
        return Manifest(
            SCORE.name, settings=settings, fingerprints=fingerprints, versions=about["versions"]
        )


def _as_defined(name: str, version: int) -> str:
    return name if version == 1 else f"{name} (version {version})"


class ScoreRun:
    """One pass over the data, from the first missing shard to the finished table.

    Args:
        work: what the shards are made from.
        folder: where shards go, already described and not finished; ``None`` keeps them in memory.
        show: force the progress bar on or off.
        elsewhere: makes the shards with the given numbers in other processes, in any order, and
            writes them to the folder if there is one; ``None`` if this process makes them.
    """

    def __init__(
        self,
        work: ScoreWork,
        folder: RunFolder | None,
        *,
        show: bool | None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.work, self.folder, self.show, self.elsewhere = work, folder, show, elsewhere

    def table(self, *, thumbnails: int, keep_embeddings: bool) -> ScoreTable:
        """Make the missing shards, and write the table.

        Shards are read twice: once for the totals, once to write the rows. Only one group of rows
        is in memory at a time, however many there are.

        Args:
            thumbnails: largest number of pictures to keep.
            keep_embeddings: look for the nearest neighbours of every example, by the embeddings
                that are kept, or by the data itself if it is embeddings.
        """
        source, scorer, about = self.work.source, self.work.scorer, self.work.about
        all_shards, errors = self._scored()

        def shards() -> Iterator[pa.Table]:
            # without empty shards, whose columns may have another type than those of the others
            return (_without_nearest(shard) for shard in all_shards() if shard.num_rows)

        # if all shards are empty, one of them still has the columns
        first = next(shards(), None) or next(map(_without_nearest, all_shards()), None)
        if first is None:
            raise DataError(f"there are no examples in {source.spec}")
        totals = Totals(self.work.plan, self.work.groups)
        for shard in shards():
            totals.add(shard)
        self._count(totals, errors)
        # a generator: groups of rows are read while the table is written
        parts = (totals.finished(group) for group in row_groups(shards(), first.schema))
        # from zero rows: the schema has to be known before the first group is written
        schema = with_metadata(totals.finished(first.slice(0, 0)), about).schema
        if self.folder is None:
            return ScoreTable(with_metadata(pa.concat_tables(parts), about))
        if keep_embeddings:
            if isinstance(scorer, ModelScorer) and scorer.head is not None:
                self.folder.keep_class_weights(scorer.head.weight.detach().float().cpu().numpy())
            stored = StoredVectors(self.folder.embeddings())
            keep_neighbours(
                self.folder,
                source if isinstance(source, EmbeddingSource) else stored,
                shards,
                device=torch.device(about["config"]["device"]),
                show=self.show,
            )
        self._write_nearest(all_shards)
        with self.folder.new_table(parts, schema) as table:
            # a stream would have to be read again from its start for every picture
            can_show = isinstance(source, ExampleSource) and not source.is_stream
            if thumbnails and (can_show or source.shown is not None):
                small = pictures(source, table, most=thumbnails, show=self.show)
                self.folder.write_side_file(THUMBNAILS, small)
        self.folder.finish()
        return read_table(self.folder.folder)

    def _write_nearest(self, shards: Shards) -> None:
        """Write the file of nearest classes, if shards have them; those of old versions do not."""
        nearest = (_nearest_of(part) for part in shards() if _CLASSES in part.column_names)
        first = next(nearest, None)
        if first is not None and self.folder is not None:
            self.folder.write_side_parts(
                NEAREST, chain([first], nearest), first.schema, rows_at_once=_READ_AT_ONCE
            )

    def _scored(self) -> tuple[Shards, int]:
        """All shards, computed or read, and the number of unreadable examples."""
        if self.elsewhere is not None:
            return self._scored_by(self.elsewhere)
        folder, source, kept = self.folder, self.work.source, list[ShardMade]()
        done = 0 if folder is None else _complete_from_the_start(folder)
        per_shard = self.work.rows_per_shard
        start = done * per_shard
        self._hold_to_what_is_done(done)
        title = f"scoring {source.spec}"
        with progress(title, total=length_of(source), done=start, show=self.show) as advance:
            for number, made in enumerate(self._made(start, advance), start=done):
                if folder is None:
                    kept.append(made)
                    continue
                folder.begin()  # only now: a run that fails on its first examples leaves no folder
                end = (number + 1) * per_shard
                # a stream has no fingerprint; a mark of what was read so far stands in for it
                mark = None if isinstance(source, EmbeddingSource) else source.mark_at(end)
                folder.write_shard(number, *made[:2], mark=mark, embeddings=made.embeddings)
        if folder is None:
            failed = sum(made.errors.num_rows for made in kept)
            return lambda: (made.rows for made in kept), failed
        return folder.shards, sum(part.num_rows for part in folder.shards("errors"))

    def _scored_by(self, elsewhere: Elsewhere) -> tuple[Shards, int]:
        """Like :meth:`_scored`, but other processes make the missing shards, in any order."""
        folder, scorer = self.folder, self.work.scorer
        shards = math.ceil(len(self.work.source) / self.work.rows_per_shard)
        # shards behind a gap count as done too, since each is made without the others
        done = folder.done() if folder is not None and folder.goes_on else set[int]()
        missing = [number for number in range(shards) if number not in done]
        # try one batch here first: a run that fails on it leaves no folder, and replaces no run
        if not done:
            with closing(scorer.pieces(0, scorer.batch_size)) as first:
                next(first, None)
                scorer.check()
        if folder is not None:
            folder.begin()  # writes the manifest, which workers compare with their own
            for _ in elsewhere(missing):
                pass
            return folder.shards, sum(part.num_rows for part in folder.shards("errors"))
        made = {number: (rows, errors) for number, rows, errors in elsewhere(missing)}
        return lambda: (made[number][0] for number in missing), sum(
            errors.num_rows for _, errors in made.values()
        )

    def _hold_to_what_is_done(self, done: int) -> None:
        """Have a stream compared with its marks of the last run while it skips what is done."""
        source, per_shard = self.work.source, self.work.rows_per_shard
        if self.folder is None or isinstance(source, EmbeddingSource):
            return
        mark = self.folder.shard_mark(done - 1) if done else None
        source.hold_to({} if mark is None else {done * per_shard: mark}, every=per_shard)

    def _made(self, start: int, advance: Callable[[int], None]) -> Iterator[ShardMade]:
        """Shard after shard from a position on, in one pass over the data."""
        scorer, pieces = self.work.scorer, list[Piece]()
        for piece in scorer.pieces(start):
            pieces.append(piece)
            advance(piece.positions)
            if len(pieces) == self.work.batches_per_shard:
                scorer.check()  # a resumed run trusts every shard on disk, so check before writing
                yield _shard_of(pieces)
                pieces = []
        if pieces:
            scorer.check()
            yield _shard_of(pieces)

    def _count(self, totals: Totals, errors: int) -> None:
        source, about = self.work.source, self.work.about
        if totals.rows == 0:
            raise DataError(f"none of the {errors} examples of {source.spec} could be read")
        # the length of a stream is known only now
        about["data"] |= {"rows": totals.rows + errors}
        said = _rows_said(source)
        if said is not None and said != totals.rows + errors:  # only a stream can be wrong here
            warn(
                f"{source.spec} says that it has {said:,} examples, but {totals.rows + errors:,} "
                "came: it may have ended too early, or its length may be wrong"
            )
        about["counts"] = {
            "errors": errors, "non_finite": totals.rows - totals.finite, **totals.noticed
        }  # fmt: skip
        if isinstance(source, ExampleSource) and source.passed_over:
            about["counts"]["passed_over"] = dict(source.passed_over)
        if "bias" not in about:  # stored embeddings have it already, from their first examples
            about["bias"] = {"flip_rate": totals.decided_by_bias / totals.rows}


def _compact(pieces: list[Piece]) -> NDArray[np.floating] | None:
    """The embeddings of consecutive pieces, in half precision unless a number is too large."""
    parts = [piece.embeddings for piece in pieces if piece.embeddings is not None]
    if not parts:
        return None
    full = np.concatenate(parts)
    return full if np.abs(full).max(initial=0) > _MOST_HALF else full.astype(np.float16)


def _complete_from_the_start(folder: RunFolder) -> int:
    """Number of complete shards from the start on; everything behind a gap is done again."""
    done = folder.done() if folder.goes_on else set()
    return next(number for number in range(len(done) + 1) if number not in done)
