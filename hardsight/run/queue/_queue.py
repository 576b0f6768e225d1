"""Run a model over a pool, and choose the examples to label next."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hardsight._checks import checked_options, versions, warn
from hardsight.data import EmbeddingSource, ExampleSource, open_source, unlabelled_source
from hardsight.data.pixels import PixelOptions
from hardsight.data.texts import TRUNCATED
from hardsight.errors import DataError, HardsightError, OptionError, RunExistsError
from hardsight.geometry import pairwise_angles
from hardsight.heads import Head
from hardsight.registry import ColumnSpec, described
from hardsight.run.loop import (
    ModelAtWork,
    ModelPass,
    batches_at_once,
    chosen_device,
    loader_processes,
    model_at_work,
    progress,
    read_tokenizer,
    stated_classes,
)
from hardsight.run.queue._rank import RULES, ranked
from hardsight.run_folder import write_parquet
from hardsight.table import ScoreTable, read_table, with_metadata


@checked_options
def queue(
    model: str | os.PathLike[str] | nn.Module,
    data: Any,
    *,
    budget: int,
    by: str = "margin",
    balanced: bool = False,
    unlabelled: bool = False,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    weights: str | os.PathLike[str] | None = None,
    head: str | None = None,
    output: int | str | None = None,
    split: str | None = None,
    data_root: str | os.PathLike[str] | None = None,
    text_column: str | None = None,
    tokenizer: Any = None,
    max_tokens: int | None = None,
    num_classes: int | None = None,
    size: int | tuple[int, int] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    channels: int | None = None,
    crop: float | None = None,
    squash: bool | None = None,
    white: float | None = None,
    model_classes: Sequence[str] | str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    show_progress: bool | None = None,
) -> ScoreTable:
    """Choose the examples of a pool to label next, the most urgent first.

    ==================  ==========================================================================
    ``margin``          the smallest gap between the two largest probabilities
    ``entropy``         the largest entropy of the probabilities
    ``angular_margin``  the smallest gap between the angles to the two nearest classes
    ``avc``             the smallest angular visual confidence
    ``coverage``        greedy k-centres of the embeddings: each next example is the farthest, by
                        angle, from all taken so far; uncertainty does not matter
    ``random``          random examples, which every rule should be compared with
    ==================  ==========================================================================

    Args:
        model: folder of a trained model, a name such as ``resnet18``, ``file.py:factory``,
            ``timm:NAME`` or the like. In Python also any ``nn.Module``.
        data: the pool: a folder of images, a file of texts, or any data that score takes; its
            labels are not used.
        budget: how many examples to label.
        by: the rule: ``margin``, ``entropy``, ``angular_margin``, ``avc``, ``coverage`` or
            ``random``.
        balanced: mix classes: take the same number of every predicted class while there are any.
        unlabelled: take all images below the folder, in class folders or not, or the texts of a
            file without labels. In Python also a list of texts.
        out: file to write, .parquet. In Python ``None`` keeps the table in memory.
        overwrite: replace the file at ``out``.
        weights: the model's weights: safetensors, or a torch file of tensors, loaded without
            running code.
        head: name of the classifier layer or bare parameter, if it is not found automatically.
        output: the model's output that holds the logits, by key, attribute or position.
        split: split of data that has several, such as train.
        data_root: folder above those of named datasets, such as cifar10/.
        text_column: column of a ``.csv``, ``.jsonl`` or ``.parquet`` file that holds the texts, if
            it is not called text.
        tokenizer: folder of a text model's tokenizer; by default the one beside the
            model. In Python also the tokenizer itself.
        max_tokens: most tokens per text that the model sees; by default as many as it takes.
            Longer texts are cut, and a warning says how many.
        num_classes: number of classes, for a model factory that takes it.
        size: input size of the model, height and width or one number for both.
        mean: mean to subtract, per channel on the pixel scale 0..1, instead of the model's own.
        std: deviation to divide by, per channel, instead of the model's own.
        channels: make all pictures grey (1) or RGB (3), also if the model says otherwise.
        crop: share of the resized picture that the centre crop keeps, in (0, 1].
        squash: resize to ``size`` without keeping the aspect ratio.
        white: value of white, if it is not 255 in 8-bit and 65535 in 16-bit pictures.
        model_classes: names of the model's outputs, in their order, or a text file with one name
            per line; by default what the model itself says.
        trust_remote_code: run Python files that an ``hf:`` model brings; they can do anything that
            you can do.
        batch_size: examples per batch; by default chosen for the device.
        workers: loader processes; by default chosen for the data and the cores.
        device: ``auto`` is cuda, else mps, else cpu; or ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        seed: seed of ``random``, and of a model whose weights are drawn at random.
        show_progress: force the progress bar on or off; by default it is shown on a terminal.

    Returns:
        a table of ``budget`` rows with ``index`` and ``id`` in the pool, ``prediction``, the
        measures of the rules, and ``urgency``; ``label`` is -1. ``hardsight review`` opens its
        file.

    Raises:
        OptionError: the budget is larger than the pool, or another option is out of its range.
        HardsightError: a subclass that says what to do.

    Example:
        >>> from hardsight.models import SmallCNN
        >>> table = queue(SmallCNN(), "builtin:digits", split="test", budget=5, mean=(0.0,),
        ...               std=(1.0,))
        >>> len(table), set(table.column("label").tolist())
        (5, {-1})
    """
    if by not in RULES:
        raise OptionError(f"expected by to be one of {', '.join(RULES)}, got {by!r}")
    if budget < 1:
        raise OptionError(f"expected a budget of at least 1, got {budget}")
    file = None if out is None else _free_file(Path(out), overwrite)
    asked = {"split": split, "text_column": text_column, "max_tokens": max_tokens}
    source = _pool(data, unlabelled, data_root=data_root, **asked)
    if budget > len(source):
        raise OptionError(
            f"expected a budget of at most the {len(source):,} examples of {source.spec}, got "
            f"{budget:,}"
        )
    place = chosen_device(str(device))
    batch_size = batch_size or (256 if place.type == "cuda" else 64)
    with ExitStack() as stack:
        work = model_at_work(
            os.fspath(model) if isinstance(model, os.PathLike) else model,
            source,
            PixelOptions(size, mean, std, channels, crop, squash, white),
            device=place, weights=weights, preprocessing=None,
            class_names=stated_classes(model_classes), head=head, output=output,
            num_classes=num_classes, seed=seed, trust_remote_code=trust_remote_code,
            batch_size=batch_size, reader=read_tokenizer(tokenizer, trust_remote_code),
        )  # fmt: skip
        ready = stack.enter_context(work)
        # only coverage needs all embeddings, which may be larger than memory: keep them in a file
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hardsight-"))
        pool = _MeasuredPool(
            ready, Path(folder) / "embeddings" if by == "coverage" else None, device=place,
            batch_size=batch_size, workers=workers, show=show_progress,
        )  # fmt: skip
        pool.warn_of_left_out()
        chosen = ranked(
            pool.columns, pool.predictions, budget=budget, by=by, balanced=balanced,
            embeddings=pool.embeddings(), seed=seed,
        )  # fmt: skip
        named = [] if ready.class_names is None else list(ready.class_names.names)
        about = {
            "data": {"spec": source.spec, "fingerprint": source.fingerprint(),
                     "unlabelled": unlabelled, "split": split,
                     **{name: value for name, value in asked.items() if value is not None}},
            "queue": {"by": by, "budget": budget, "balanced": balanced, "seed": seed,
                      "pool": len(source), "unreadable": pool.errors},
            "model": ready.facts(),
            # all classes of the model, so that any can be chosen in review
            "classes": named or [str(label) for label in range(ready.traits.num_classes)],
            "versions": versions(),
        }  # fmt: skip
        table = _table(pool, chosen, source, about)
    if file is None:
        return ScoreTable(table)
    write_parquet(file, [table], table.schema, compression="zstd")
    return read_table(file)


def _free_file(file: Path, overwrite: bool) -> Path:
    if file.suffix.lower() != ".parquet":
        raise OptionError(f"expected a name that ends in .parquet for a queue, got {file}")
    if file.exists() and not overwrite:
        raise RunExistsError(f"{file} exists; name another file, or replace it with --overwrite")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _pool(data: Any, unlabelled: bool, **options: Any) -> ExampleSource:
    try:
        opened = (unlabelled_source if unlabelled else open_source)(data, **options)
    except DataError as err:
        if unlabelled or not _opens_unlabelled(data, **options):
            raise
        raise DataError(
            f"{err}; or pass unlabelled=True (--unlabelled), since a pool needs no labels"
        ) from err
    if isinstance(opened, EmbeddingSource) or opened.is_stream:
        kind = "embeddings" if isinstance(opened, EmbeddingSource) else "a stream"
        raise DataError(f"{opened.spec} holds {kind}; a pool needs examples by position")
    if opened.kind is not None and opened.kind.task != "classify":
        raise DataError(
            f"{opened.spec} holds sentences whose tokens a language model predicts; a queue needs "
            "examples with one label each"
        )
    if not len(opened):
        raise DataError(f"the pool {opened.spec} has no examples")
    return opened


def _opens_unlabelled(data: Any, **options: Any) -> bool:
    """Whether the data can be opened without its labels."""
    try:
        unlabelled_source(data, **options)
    except HardsightError:
        return False
    return True


class _MeasuredPool:
    """The model's measures of every example of a pool that could be read."""

    def __init__(
        self,
        ready: ModelAtWork,
        file: Path | None,
        *,
        device: torch.device,
        batch_size: int,
        workers: int | None,
        show: bool | None,
    ) -> None:
        head = ready.traits.head
        assert head is not None
        source = ready.source
        self._head, self._file, self._source, self.errors, self._cut = head, file, source, 0, 0
        kept: dict[str, NDArray[Any]] = {}
        count = 0
        with (
            nullcontext() if file is None else file.open("wb") as sink,
            ModelPass(ready.network, head, device=device) as running,
            progress(f"reading {source.spec}", total=len(source), show=show) as advance,
        ):
            for passed in running.over(
                source.without_labels(), ready.preprocessing, num_classes=head.num_classes,
                batch_size=batch_size * batches_at_once(source),
                workers=loader_processes(workers, source),
            ):  # fmt: skip
                advance(passed.positions)
                self.errors += len(passed.batch.errors)
                self._cut += int(passed.batch.noticed.get(TRUNCATED, torch.zeros(1)).sum())
                if len(passed.batch.index):
                    assert passed.embeddings is not None
                    measured = {
                        "position": passed.batch.index,
                        **_measured(passed.logits.float(), passed.embeddings.float(), head),
                    }
                    # one array for the whole pool, since concatenating parts would double memory
                    kept = kept or {
                        name: _space(len(source), part) for name, part in measured.items()
                    }
                    for name, part in measured.items():
                        kept[name][count : count + len(part)] = part.numpy()
                    count += len(passed.batch.index)
                    if sink is not None:
                        sink.write(passed.embeddings.float().cpu().numpy().tobytes())
        if not count:
            raise DataError(f"none of the examples of {source.spec} could be read")
        whole = {name: values[:count] for name, values in kept.items()}
        self.positions: NDArray[np.int64] = whole.pop("position")
        self.predictions: NDArray[np.int64] = whole.pop("prediction")
        self.columns = whole

    def embeddings(self) -> NDArray[np.float32] | None:
        """All embeddings, mapped from a file, if they were kept."""
        if self._file is None:
            return None
        shape = (len(self.positions), self._head.width)
        return np.memmap(self._file, dtype=np.float32, mode="r", shape=shape)

    def warn_of_left_out(self) -> None:
        """Warn of examples that can never be in the queue, and of texts that were cut."""
        blank = int((self.predictions < 0).sum())
        whole = f"of the {len(self._source):,} examples of {self._source.spec}"
        if self.errors or blank:
            warn(
                f"{self.errors + blank:,} {whole} cannot be queued: {self.errors:,} could not be "
                f"read, and {blank:,} have no finite output"
            )
        if self._cut:
            warn(f"{self._cut:,} {whole} are longer than the model takes, and were cut")


def _space(length: int, part: Tensor) -> NDArray[Any]:
    """An empty array for a value of every example of a pool; scores in single precision."""
    return np.empty(length, np.float32 if part.is_floating_point() else np.int64)


@torch.inference_mode()
def _measured(logits: Tensor, embeddings: Tensor, head: Head) -> dict[str, Tensor]:
    """The measures of the rules for one batch, on the CPU."""
    probs = logits.double().softmax(dim=1)
    count = min(2, probs.shape[1])
    top = probs.topk(count, dim=1)
    angles = pairwise_angles(embeddings, head.weight.float().to(embeddings.device))
    near = angles.topk(count, dim=1, largest=False).values
    usable = logits.isfinite().all(dim=1) & embeddings.isfinite().all(dim=1)
    given = {"probs": probs, "top": top.values, "angles": angles, "near": near}
    measured = {
        "prediction": torch.where(usable, top.indices[:, 0], -1),
        **{spec.name: spec.function(*(given[name] for name in spec.inputs)) for spec in _MEASURES},
    }
    return {name: values.cpu() for name, values in measured.items()}


def _entropy(probs: Tensor) -> Tensor:
    terms: Tensor = torch.special.xlogy(probs, probs)
    return -terms.sum(dim=1)


def _gap(two: Tensor) -> Tensor:
    """The difference of the first two; 0 if there is only one class."""
    return (two[:, 0] - two[:, -1]).abs()


def _nearest_avc(angles: Tensor) -> Tensor:
    closeness = torch.pi - angles
    return closeness.amax(dim=1) / closeness.sum(dim=1)


def _urgency(count: int) -> NDArray[np.float64]:
    return 1 - np.arange(count) / max(1, count - 1)


def _measure(
    name: str, function: Callable[..., Tensor], given: str, high: float, meaning: str, *,
    higher_is_harder: bool = False,
) -> ColumnSpec:  # fmt: skip
    """The description of a column that a rule uses; none of them needs a label."""
    return ColumnSpec(
        name=name, function=function, inputs=(given,), low=0.0, high=high, meaning=meaning,
        higher_is_harder=higher_is_harder, needs_label=False,
    )  # fmt: skip


_MEASURES = (
    _measure("entropy", _entropy, "probs", math.inf,
             "Entropy of the predicted probabilities, in nats.", higher_is_harder=True),
    _measure("probability_gap", _gap, "top", 1.0, "Largest probability minus the second largest."),
    _measure("angle_gap", _gap, "near", math.pi,
             "Angle to the second nearest class minus the nearest."),
    _measure("avc", _nearest_avc, "angles", 1.0,
             "Angular visual confidence of the nearest class, AVH Eq. (3)."),
)  # fmt: skip
_URGENCY = ColumnSpec(
    name="urgency", function=_urgency, inputs=("place",), low=0.0, high=1.0,
    higher_is_harder=True, judge=0, needs_label=False,
    meaning="Place in the queue: 1 is to be labelled first, 0 last.",
)  # fmt: skip


def _table(
    pool: _MeasuredPool, chosen: NDArray[np.int64], source: ExampleSource, about: dict[str, Any]
) -> pa.Table:
    """The queue as a table, the most urgent first."""
    positions = pool.positions[chosen]
    columns = {
        "index": pa.array(source.numbered(positions)),
        "id": pa.array([source.id_of(at) for at in positions.tolist()], pa.string()),
        "label": pa.array(np.full(len(chosen), -1)),
        "prediction": pa.array(pool.predictions[chosen]),
        "finite": pa.array(np.ones(len(chosen), np.bool_)),
        "urgency": pa.array(_urgency(len(chosen))),
        **{spec.name: pa.array(pool.columns[spec.name][chosen]) for spec in _MEASURES},
    }
    return with_metadata(pa.table(columns), {**about, **described([*_MEASURES, _URGENCY])})
