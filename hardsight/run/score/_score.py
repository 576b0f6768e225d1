"""Score any model on any labelled data into one table with a row per example."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn

from hardsight._checks import called_as, checked_options, versions, warn, warns_of
from hardsight.config import ScoreKeys, Settings
from hardsight.data import (
    EmbeddingSource,
    ExampleSource,
    data_marks,
    open_source,
)
from hardsight.data.pixels import PixelOptions
from hardsight.errors import OptionError
from hardsight.heads import Head
from hardsight.models import ClassNames, is_as_made, is_estimator
from hardsight.patch import Patch
from hardsight.preprocessing import Preprocessing
from hardsight.registry import described
from hardsight.run.loop import (
    OUT_OF_SAMPLE,
    batches_at_once,
    check_fold_count,
    chosen_device,
    chosen_precision,
    decoded_once,
    loader_processes,
    matched_classes,
    model_at_work,
    read_tokenizer,
    stated_classes,
)
from hardsight.run.score._arguments import Ready, ScoreArguments, refuse_folds
from hardsight.run.score._estimators import by_classifier, fitted_classifier
from hardsight.run.score._groups import groups_of, own_columns
from hardsight.run.score._ray import ray_cluster
from hardsight.run.score._resumed import check_same_outputs
from hardsight.run.score._rows import (
    COLUMNS,
    MAY_CHANGE,
    ModelScorer,
    ScorePlan,
    ScoreRun,
    ScoreWork,
    naming_other_scores,
)
from hardsight.run.score._stored import by_stored_head
from hardsight.run_folder import (
    SCORE,
    RunFolder,
    StorePath,
    place_of,
)
from hardsight.table import ScoreTable, read_table

# what a finished table no longer depends on: its data may have moved, packages may be newer
_MAY_CHANGE_WHEN_FINISHED = ("data", "rows_per_shard", "versions")
ENGINES = ("local", "ray")
SAMPLES = ("unknown", "in-sample", "out-of-sample")
_MODELS = (str, nn.Module, Head, Tensor, type(None))  # anything else must be from scikit-learn
_ONLY_IN_PYTHON = ("preprocessing", "show_progress")
_GOES_ON = (
    "--resume (resume=True) continues after the last finished shard with the batch size that the "
    "run started with; to use another batch size, pass another --out"
)


class ScoreConfig(
    Settings,
    of="run/score/_score.py:score",
    without=_ONLY_IN_PYTHON,
    first=("data", "model", "weights", "head", "output", "scores"),
    last=(
        "batch_size", "workers", "device", "precision", "sample", "out_of_sample", "strict",
        "thumbnails", "keep_embeddings", "shard_rows", "seed", "engine", "ray_address",
        "ray_actors", "ray_cpus", "ray_gpus",
    ),
):  # fmt: skip
    """Settings of a scoring run: the keys of its TOML file and the flags of its command.

    They are those keywords of :func:`score` that a file can hold.
    """

    if TYPE_CHECKING:  # what an editor shows

        def __init__(self, **settings: Unpack[ScoreKeys]) -> None: ...


def run_score(config: ScoreConfig) -> ScoreTable:
    """Call :func:`score` with settings, as the command line does."""
    options = config.keywords()
    return score(options.pop("model"), options.pop("data"), **options)


def score_notes(table: ScoreTable) -> list[str]:
    """Caveats that a reader of the table has to know."""
    about = table.metadata
    notes = []
    origin = about["model"].get("weights") or ""
    if is_as_made(origin):
        notes.append(f"no --weights were given: the model was scored {origin}")
    missing = about.get("missing")
    if missing:
        notes.append(
            f"the model has no head that can be read: {', '.join(missing['scores'])} are missing, "
            f"because {missing['reason']}"
        )
    if "reading" in about["model"]:
        notes.append(about["model"]["reading"])
    counts = about["counts"]
    if counts["errors"]:
        listed = "" if table.path is None else f": {table.path.parent / 'errors.parquet'}"
        notes.append(f"{counts['errors']:,} examples could not be read{listed}")
    if counts.get("truncated"):
        sentences = about["data"].get("sentences")
        rows, what = sentences or len(table), "sentences" if sentences else "texts"
        notes.append(
            f"{counts['truncated']:,} of {rows:,} {what} are longer than the model takes, and were "
            f"cut: {about['preprocessing']['origin']}"
        )
    if counts.get("unknown"):
        notes.append(
            f"{counts['unknown']:,} of {len(table):,} tokens are not in the vocabulary: the "
            "tokenizer gives one token to all unknown words, so its numbers belong to no word"
        )
    if about["data"].get("sentences") and counts.get("passed_over"):
        passed = ", ".join(f"{what} ({n:,})" for what, n in counts["passed_over"].items())
        notes.append(f"passed over: {passed}")
    if counts["non_finite"]:
        notes.append(f"{counts['non_finite']:,} rows are not finite: see the column 'finite'")
    return notes


@called_as(
    "score(model, data, ...)", "score(None, embeddings, ...) for stored embeddings without a model"
)
@checked_options
@warns_of(score_notes)
def score(
    model: str | os.PathLike[str] | nn.Module | Head | Tensor | Any | None,
    data: Any,
    *,
    scores: str | Sequence[str] | None = None,
    head: str | Head | None = None,
    output: int | str | None = None,
    batch_size: int | None = None,
    device: str | torch.device = "auto",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    weights: str | os.PathLike[str] | None = None,
    split: str | None = None,
    data_root: str | os.PathLike[str] | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    image_column: str | None = None,
    tokenizer: Any = None,
    max_tokens: int | None = None,
    tokens: bool = False,
    target: Any = None,
    patch: str
    | os.PathLike[str]
    | Patch
    | Sequence[str]
    | Sequence[os.PathLike[str] | Patch]
    | None = None,
    rows: Any = None,
    group: str | Sequence[str] | Mapping[str, Any] | None = None,
    labels: Any = None,
    class_weights: Any = None,
    bias: Any = None,
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    preprocessing: Preprocessing | None = None,
    size: int | tuple[int, int] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    channels: int | None = None,
    crop: float | None = None,
    squash: bool | None = None,
    white: float | None = None,
    model_classes: Sequence[str] | str | os.PathLike[str] | None = None,
    class_order: str = "auto",
    trust_remote_code: bool = False,
    workers: int | None = None,
    precision: str = "auto",
    sample: str = "unknown",
    out_of_sample: int | None = None,
    strict: bool = False,
    thumbnails: int = 600,
    keep_embeddings: bool = False,
    shard_rows: int | None = None,
    seed: int = 0,
    engine: str = "local",
    ray_address: str | None = None,
    ray_actors: int | tuple[int, int] | None = None,
    ray_cpus: float | None = None,
    ray_gpus: float | None = None,
    show_progress: bool | None = None,
) -> ScoreTable:
    """Score every example of ``data`` with ``model``: one table, a row per example.

    Args:
        model: folder of a trained model, a name such as ``resnet18``,
            ``package.module:factory``, ``file.py:factory``, ``timm:NAME``, ``torchvision:NAME`` or
            ``hf:NAME``; none for stored embeddings. In Python also any ``nn.Module``, see
            :func:`hardsight.models.load_model`; for stored embeddings their head: a
            :class:`Head`, a tensor of class weights ``[C, D]``, or ``None`` if ``class_weights``
            or the file itself has it; or a fitted scikit-learn classifier, alone or at the end of
            a pipeline.
        data: folder of class folders, ``.csv`` of path,label, ``.parquet``, idx,
            ``.npz``/``.npy``/``.safetensors``, ``hub:OWNER/NAME``, ``builtin:digits``, or a name
            such as ``cifar10``. In Python any labelled data, see
            :func:`hardsight.data.open_source`; for a scikit-learn classifier the kind of data it
            was fitted on: an array, a sparse matrix, a list or a data frame.
        scores: names of the scores to compute; all by default. If the model has no head, only the
            scores that need nothing but logits are computed, and the table says which are missing.
            In Python also a single name.
        head: name of the classifier layer or bare parameter, if it is not found automatically. It
            is checked against the logits of every batch. In Python also a :class:`Head`.
        output: the model's output that holds the logits, by key, attribute or position (from 0),
            or by a path of them (heads.logits); by default the one with a column for each class of
            the data.
        batch_size: examples per batch; by default chosen for the device.
        device: ``auto`` is cuda, else mps, else cpu; or ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        out: folder of the run, or the URL of one in an object store (``s3://bucket/run``);
            table.parquet and more appear in it. In Python ``None`` keeps the table in memory.
        resume: continue the unfinished run in ``out`` with the same settings, except those in
            ``MAY_CHANGE``; the table is the same as without a break. In Python the table of a
            finished run is returned as it is.
        overwrite: replace the run in ``out``, finished or not; other files there stay.
        weights: the model's weights: safetensors, or a torch file of tensors, loaded without
            running code.
        split: split of data that has several, such as train or test.
        data_root: folder above those of named datasets, such as cifar10/.
        text_column: column of a ``.csv``, ``.jsonl`` or ``.parquet`` file that holds the texts to
            classify, if it is not called text.
        label_column: column that holds the labels, if it is not called label.
        image_column: column that holds pictures or their paths, if it is not called path, or if
            there is a column of texts as well.
        tokenizer: folder of a text model's tokenizer; by default the one beside the
            model. In Python also the tokenizer itself.
        max_tokens: most tokens per text that the model sees; by default as many as it takes.
            Longer texts are cut, and the summary says how many.
        tokens: score every token of the texts with a language model that predicts it from what
            comes before, instead of every text with a classifier. Files ending in .txt, with a
            sentence per line, are always read this way.
        target: for a sequence-to-sequence model: file with the translations of ``data``, line by
            line, or the column that holds them; each of their tokens has a row. In Python also the
            translations themselves.
        patch: decisions about the labels, from ``hardsight patch export``: the data is scored with
            the labels they decide on. Several patches are applied in the order they are listed.
            In Python also the result of :func:`hardsight.read_patch`.
        rows: file of ``hardsight select`` with the examples to score, which keep their index; also
            a .parquet or .csv file with a column ``index``, or an .npy file. In Python also an
            array of numbers or of booleans.
        group: attributes to compare examples by, kept as columns that report and card show: a
            column stored beside the examples, folder:1 for the first folder of their paths, or
            FILE.csv:COLUMN for a table with a column ``id``, ``path`` or ``index``. In Python also
            arrays by name.
        labels: file with the labels of stored embeddings. In Python also the labels themselves;
            for a scikit-learn classifier, as they were when it was fitted.
        class_weights: file with the weights of the head that stored embeddings feed. In Python also
            the weights themselves.
        bias: file with the bias of that head. In Python also the bias itself.
        classes: class names of the data, position = label.
        num_classes: number of classes, for a model factory that takes it.
        preprocessing: how the model wants images prepared; by default as its own config says.
        size: input size of the model, height and width or one number for both. Pictures are
            resized by their shorter side and cropped in the centre, unless ``squash``.
        mean: mean to subtract, per channel on the pixel scale 0..1, instead of the model's own.
            Three values make grey images RGB, for a model of RGB images.
        std: deviation to divide by, per channel, instead of the model's own.
        channels: make all pictures grey (1) or RGB (3), also if the model says otherwise.
        crop: share of the resized picture that the centre crop keeps, in (0, 1]; 1, or as the
            model says.
        squash: resize to ``size`` without keeping the aspect ratio, so that nothing is cut off.
        white: value of white, if it is not 255 in 8-bit and 65535 in 16-bit pictures and 1 in
            floats. In Python these seven options are also applied to tensors of your own dataset;
            without them such tensors are used as they are, unless they are 8-bit.
        model_classes: names of the model's outputs, in their order, or a text file with one name
            per line; by default what the model itself says.
        class_order: how classes of data and model are matched: ``auto`` by name if both have
            names, else by position; ``name`` never by position, ``position`` always. Labels become
            the model's outputs, and the table's metadata says how they were matched.
        trust_remote_code: run Python files that an ``hf:`` model brings; they can do anything that
            you can do. Without it such a model is refused.
        workers: loader processes; by default chosen for the data and the cores.
        precision: precision of the forward pass; ``auto`` is bfloat16 on a GPU, else float32.
        sample: whether the model was trained on this data; stated in the table.
        out_of_sample: divide stored embeddings into this many folds, and score each
            example with a head that is fitted to the other folds; no ``class_weights`` are needed.
            In Python for images see ``folds`` of :func:`hardsight.train`.
        strict: stop at the first unreadable example instead of listing it.
        thumbnails: largest number of pictures to keep for the report; 0 for none.
        keep_embeddings: keep what enters the model's head in the folder of the run, and look for
            near-duplicates with another label. Takes 2 bytes per number, and time that grows with
            the square of the number of examples; stored embeddings are not copied.
        shard_rows: examples per shard; a run that is killed loses at most one shard.
        seed: seed of the folds, and of a model whose weights are drawn at random.
        engine: where shards are made: ``local`` is this process; ``ray`` spreads them over a Ray
            cluster whose nodes share a disk, and gives the same table.
        ray_address: address of the running cluster, such as ``auto`` or HOST:6379; by default that
            of the variable RAY_ADDRESS; if that is not set, Ray is started on this machine.
        ray_actors: number of processes that hold the model, fewest and most; by default as many as
            the cluster has room for.
        ray_cpus: cores for each of them; 1 by default, with a GPU its share of the cores.
        ray_gpus: GPUs for each of them, such as 0.5 to let two share one; 1 by default if the
            scores are computed on GPUs.
        show_progress: force the progress bar on or off; by default it is shown on a terminal.

    Returns:
        the table; ``table.hardest(10)`` and ``table.to_pandas()`` are good starts.

    Raises:
        HardsightError: a subclass that says what to do.

    Example:
        >>> import hardsight as hs
        >>> from hardsight.models import SmallCNN
        >>> table = hs.score(SmallCNN(num_classes=10), "builtin:digits", split="test")
        >>> len(table), table.scores[:2]
        (449, ['avh', 'target_angle'])
    """
    options = ScoreArguments(
        model=model, data=data, scores=scores, head=head, output=output, batch_size=batch_size,
        device=device, out=out, resume=resume, overwrite=overwrite, weights=weights, split=split,
        data_root=data_root, text_column=text_column, label_column=label_column,
        image_column=image_column, tokenizer=tokenizer, max_tokens=max_tokens, tokens=tokens,
        target=target, patch=patch, rows=rows, group=group, labels=labels,
        class_weights=class_weights, bias=bias, classes=classes, num_classes=num_classes,
        preprocessing=preprocessing, size=size, mean=mean, std=std, channels=channels, crop=crop,
        squash=squash, white=white, model_classes=model_classes, class_order=class_order,
        trust_remote_code=trust_remote_code, workers=workers, precision=precision, sample=sample,
        out_of_sample=out_of_sample, strict=strict, thumbnails=thumbnails,
        keep_embeddings=keep_embeddings, shard_rows=shard_rows, seed=seed, engine=engine,
        ray_address=ray_address, ray_actors=ray_actors, ray_cpus=ray_cpus, ray_gpus=ray_gpus,
        show_progress=show_progress,
    )  # fmt: skip
    _check_engine(options)
    with ExitStack() as stack:
        folder = None
        if out is not None:
            # before anything is loaded, so that an existing or locked run is refused at once
            claim = RunFolder(out).claimed(SCORE, reads=(data,), resume=resume, overwrite=overwrite)
            folder = stack.enter_context(claim)
        cluster = None
        if engine == "ray":
            cluster = stack.enter_context(ray_cluster(options, score_work))
        work = stack.enter_context(score_work(options))
        about, scorer, source = work.about, work.scorer, work.source
        if folder is not None:
            made_of = work.made_of()
            folder.describe(
                made_of.settings,
                fingerprints=made_of.fingerprints,
                versions=made_of.versions,
                may_change=MAY_CHANGE,
                may_change_when_finished=_MAY_CHANGE_WHEN_FINISHED,
                defaults={"keep_embeddings": False},  # of runs by versions that could not keep them
            )
            # a model that draws at random gives other outputs every time, so it cannot be compared
            is_drawn = about["model"].get("rows_depend_on") == "draw"
            if (folder.is_done or folder.goes_on) and not is_drawn:
                check_same_outputs(folder, scorer)
            if folder.is_done:
                if isinstance(source, ExampleSource) and source.is_stream:
                    warn(
                        f"only the first examples of the stream {source.spec} were compared with "
                        f"the finished table in {folder.folder}, which is returned as it is; if "
                        "later examples may have changed, pass --overwrite (overwrite=True)"
                    )
                return read_table(folder.folder)
        # not before the folder is checked: fitted heads are written to it
        if work.refit is not None:
            about |= work.refit.fit(folder, show=show_progress)
        elsewhere = None if cluster is None else cluster.shards_of(work, folder)
        run = ScoreRun(work, folder, show=show_progress, elsewhere=elsewhere)
        return run.table(thumbnails=thumbnails, keep_embeddings=keep_embeddings)


@contextmanager
def score_work(options: ScoreArguments) -> Iterator[ScoreWork]:
    """Prepare the work of a call of :func:`score`, in this process or in a worker of a cluster."""
    options = _checked(options)
    with ExitStack() as stack:
        plan, place = ScorePlan(options.scores), chosen_device(str(options.device))
        source: ExampleSource | EmbeddingSource
        fitted = None
        if not isinstance(options.model, _MODELS) and is_estimator(options.model):
            fitted = fitted_classifier(options, plan, place)
            source = fitted.source
        else:
            source = _opened(options)
        if options.engine == "local":  # with Ray, each node would decode all pictures for itself
            source = decoded_once(source, workers=options.workers, show=options.show_progress)
        marks = data_marks(source)  # before classes are matched, which changes the labels
        if options.tokenizer is not None and (
            isinstance(source, EmbeddingSource) or source.kind is None or not source.kind.has_words
        ):
            raise OptionError(f"tokenizer cannot be used here: {source.spec} holds no texts")
        groups = None
        if options.group is not None:
            groups = groups_of(source, options.group, plan.specs, data=options.data)
        if fitted is not None:
            ready = by_classifier(options, fitted)
        elif isinstance(source, EmbeddingSource):
            ready = by_stored_head(options, source, plan, place)
        else:
            ready = _by_model(options, source, plan, place, stack)
        source, scorer, names = ready.source, ready.scorer, ready.names or ClassNames()
        if isinstance(source, ExampleSource) and source.row_columns:
            groups = own_columns(groups, source)
        order = matched_classes(source, scorer.num_classes, names, how=ready.class_order)
        scorer.number_as(order)
        about = {
            "sample": options.sample,
            "seed": options.seed,
            "versions": versions(),
            "config": _config(options, place),
            **ready.about,
            "data": _data_facts(options, source, marks),
            "classes": list(order.names),
            "class_order": order.facts(),
            **described(ready.plan.specs),
            **({} if options.group is None or groups is None else {"groups": list(groups.columns)}),
            "batch_size": scorer.batch_size,
        }
        per = options.shard_rows or (131072 if isinstance(source, EmbeddingSource) else 4096)
        # whole batches per shard: a resumed run then forms the same batches, which round alike
        per_shard = max(1, round(per / scorer.batch_size))
        yield ScoreWork(
            source, scorer, ready.plan, about, per_shard, options.workers, groups, ready.refit
        )


def _checked(options: ScoreArguments) -> ScoreArguments:
    """Check each option by itself, and return them all in one spelling."""
    if isinstance(options.model, os.PathLike):  # such as the folder of a trained model
        options = dataclasses.replace(options, model=os.fspath(options.model))
    if options.sample not in SAMPLES:
        raise OptionError(
            f"expected sample to be one of {', '.join(SAMPLES)}, got {options.sample!r}"
        )
    _check_counts(batch_size=options.batch_size, shard_rows=options.shard_rows)
    if options.thumbnails < 0:
        raise OptionError(f"expected thumbnails to be 0 or more, got {options.thumbnails}")
    if options.out_of_sample is not None:
        check_fold_count(options.out_of_sample)
        options = dataclasses.replace(options, sample=_sample_of_folds(options.sample))
    if options.keep_embeddings and options.out is None:
        raise OptionError("keep_embeddings needs a folder to keep them in; give out= (--out)")
    on_disk = [name for name in ("keep_embeddings", "out_of_sample") if getattr(options, name)]
    if on_disk and options.out is not None and isinstance(place_of(options.out), StorePath):
        raise OptionError(
            f"{on_disk[0]} keeps arrays that are read in place, so it needs a folder on a disk, "
            f"got {os.fspath(options.out)}; write the run to a disk and copy it"
        )
    return options


def _opened(options: ScoreArguments) -> ExampleSource | EmbeddingSource:
    return open_source(
        options.data,
        split=options.split,
        labels=options.labels,
        bias=options.bias,
        classes=options.classes,
        class_weights=options.class_weights,
        data_root=options.data_root,
        text_column=options.text_column,
        label_column=options.label_column,
        image_column=options.image_column,
        max_tokens=options.max_tokens,
        tokens=options.tokens,
        target=options.target,
        rows=options.rows,
        patch=options.patch,
    )


def _by_model(
    options: ScoreArguments,
    source: ExampleSource,
    plan: ScorePlan,
    place: torch.device,
    stack: ExitStack,
) -> Ready:
    """Prepare examples and a network, which gets its old state back when the stack ends."""
    if options.out_of_sample is not None:
        refuse_folds(options.out_of_sample)
    usual = source.loading.batch_size or (256 if place.type == "cuda" else 64)
    batch_size = options.batch_size or usual
    pixels = PixelOptions(*(getattr(options, name) for name in PixelOptions._fields))
    work = model_at_work(
        options.model, source, pixels, device=place, weights=options.weights,
        preprocessing=options.preprocessing, class_names=stated_classes(options.model_classes),
        head=options.head, output=options.output, need=plan.need,
        # from a single row, a head with a scale cannot be told from other layers
        at_once=min(8, max(2, batch_size)), num_classes=options.num_classes, seed=options.seed,
        trust_remote_code=options.trust_remote_code, batch_size=batch_size,
        reader=read_tokenizer(options.tokenizer, options.trust_remote_code),
    )  # fmt: skip
    with naming_other_scores():
        ready = stack.enter_context(work)
    source, plan = ready.source, plan.fitted_to(ready.traits)
    scorer = ModelScorer(
        source,
        ready,
        plan,
        device=place,
        precision=chosen_precision(options.precision, place),
        # texts: several batches are read at once and grouped by length
        batch_size=batch_size * batches_at_once(source),
        workers=loader_processes(options.workers, source),
        strict=options.strict,
        goes_on="" if options.out is None else _GOES_ON,
        keep_embeddings=options.keep_embeddings,
        names_nearest=options.out is not None,
    )
    head = None if scorer.head is None else scorer.head.name
    about: dict[str, Any] = {"model": {**ready.facts(), "head": head}}
    if plan.missing:
        about["missing"] = {"scores": plan.missing, "reason": ready.traits.no_head}
    about["preprocessing"] = dataclasses.asdict(ready.applied_to(source))
    about["precision"] = scorer.precision
    return Ready(source, scorer, plan, ready.class_names, options.class_order, about)


def _config(options: ScoreArguments, place: torch.device) -> dict[str, Any]:
    """Settings that the metadata of a table states as the user gave them."""
    return {
        "head": options.head if isinstance(options.head, str) else None,
        "output": options.output,
        "weights": None if options.weights is None else str(options.weights),
        "device": str(place),
        "precision": options.precision,
        "strict": options.strict,
        "thumbnails": options.thumbnails,
        "keep_embeddings": options.keep_embeddings,
        "shard_rows": options.shard_rows,
        "out_of_sample": options.out_of_sample,
    }


def _data_facts(
    options: ScoreArguments,
    source: ExampleSource | EmbeddingSource,
    marks: Mapping[str, str | None],
) -> dict[str, Any]:
    """What the metadata says about the data."""
    columns = {name: _plain(getattr(options, name)) for name in COLUMNS}
    facts = {
        "spec": source.spec,
        "split": options.split,
        **{key: value for key, value in columns.items() if value is not None},
        "fingerprint": marks["data"],
        "named": len(source.classes),
        "patches": list(source.patches),
    }
    if source.whole is not None:
        facts["chosen"] = {"of": len(source.whole), "fingerprint": marks["rows"]}
    if isinstance(source, ExampleSource) and source.row_columns:
        facts["sentences"] = len(source)
    return facts


def _plain(value: Any) -> Any:
    """A setting as metadata keep it; ``None`` if it is off, or holds data itself."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if value is not False and isinstance(value, str | int) else None


def _check_engine(options: ScoreArguments) -> None:
    engine = options.engine
    if engine not in ENGINES:
        raise OptionError(f"expected engine to be one of {', '.join(ENGINES)}, got {engine!r}")
    stated = [
        name for name, value in vars(options).items()
        if name.startswith("ray_") and value is not None
    ]  # fmt: skip
    if engine != "ray" and stated:
        raise OptionError(
            f"{', '.join(stated)} cannot be used with engine={engine!r}; add engine='ray' "
            "(--engine ray), or leave them out"
        )
    if engine == "ray" and options.out_of_sample is not None:
        raise OptionError(
            "out_of_sample fits its heads in this process, so it cannot be used with "
            "engine='ray'; leave one of them out"
        )


def _sample_of_folds(sample: str) -> str:
    if sample not in ("unknown", OUT_OF_SAMPLE):
        raise OptionError(
            f"sample = {sample!r} contradicts out_of_sample, whose heads never see the examples "
            "they score; leave one of them out"
        )
    return OUT_OF_SAMPLE


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise OptionError(f"expected {name} to be 1 or more, got {count}")
