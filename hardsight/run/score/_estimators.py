"""Prepare a scikit-learn classifier: as embeddings with a head, or by its probabilities."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardsight.data import EmbeddingSource, ExampleSource, open_source
from hardsight.data.formats import (
    ComputedRows,
    FeatureRows,
    TextSource,
    feature_rows,
    plain_array,
)
from hardsight.data.source import (
    check_index,
    check_lengths,
    class_indices,
    evenly_spaced,
    in_memory,
    refuse_missing,
)
from hardsight.errors import DataError, HeadError, LabelError, OptionError
from hardsight.heads import Head
from hardsight.models import ClassNames, Estimator, value_name
from hardsight.registry import SCORES
from hardsight.run.loop import stated_classes
from hardsight.run.score._arguments import (
    Ready,
    ScoreArguments,
    refuse,
    refuse_folds,
    refuse_pixel_options,
)
from hardsight.run.score._embeddings import EmbeddingScorer
from hardsight.run.score._rows import Piece, ScorePlan, Scorer
from hardsight.run_folder import tensors_digest, values_digest
from hardsight.scores import Summaries, logit_summaries

_SAMPLED = 64  # rows on which our reading of a classifier is compared with its own output
_READING = (
    "{0} gives decision values, which are read as logits: confidence, EL2N, entropy and energies "
    "are those of their softmax, and {0} itself does not give these probabilities"
)

_ZEROS = (
    "{} gives some classes a probability of exactly 0: logit_margin, the difference of "
    "log-probabilities, is infinite for an example whose label, or every other class, is ruled out"
)


@dataclass(frozen=True)
class EstimatorAtWork:
    """A classifier that is ready for a pass over its rows.

    Attributes:
        source: its features, or its log-probabilities if it has no linear head.
        scorer: of these rows.
        plan: which scores, without those that it cannot give.
        class_names: of its outputs.
        facts: what the metadata says about the model.
        no_head: why some scores are missing; empty if none are.
    """

    source: EmbeddingSource
    scorer: Scorer
    plan: ScorePlan
    class_names: ClassNames
    facts: dict[str, Any]
    no_head: str

    def metadata(self) -> dict[str, Any]:
        """What the table says about the model."""
        about: dict[str, Any] = {"model": self.facts}
        if isinstance(self.scorer, EmbeddingScorer):
            about["bias"] = self.scorer.bias_facts()
        if self.plan.missing:
            about["missing"] = {"scores": self.plan.missing, "reason": self.no_head}
        return about


def fitted_classifier(
    options: ScoreArguments, plan: ScorePlan, place: torch.device
) -> EstimatorAtWork:
    """Prepare a scikit-learn classifier and open its data, which needs the classifier."""
    if options.patch is not None:
        raise OptionError(
            "patch cannot be used with a scikit-learn classifier; pass the fixed labels "
            "themselves: score(model, X, labels=fixed)"
        )
    return _estimator_at_work(
        options.model, options.data, options.labels, plan, chosen=options.rows,
        classes=options.classes, stated=stated_classes(options.model_classes), device=place,
        class_order=options.class_order, batch_size=options.batch_size, split=options.split,
        data_root=options.data_root, text_column=options.text_column,
        label_column=options.label_column, image_column=options.image_column,
    )  # fmt: skip


def by_classifier(options: ScoreArguments, fitted: EstimatorAtWork) -> Ready:
    """The rows of a scikit-learn classifier, ready to be scored."""
    if options.out_of_sample is not None:
        refuse_folds(options.out_of_sample)
    refuse_pixel_options(options)
    refuse(
        "a fitted scikit-learn classifier, which has weights of its own; leave it out",
        head=options.head, output=options.output, weights=options.weights,
        class_weights=options.class_weights, bias=options.bias, num_classes=options.num_classes,
        trust_remote_code=options.trust_remote_code or None,
    )  # fmt: skip
    # it was fitted on the labels themselves, so its classes always have names
    order = "name" if options.class_order == "auto" else options.class_order
    return Ready(
        fitted.source, fitted.scorer, fitted.plan, fitted.class_names, order, fitted.metadata()
    )


def _estimator_at_work(
    model: Any,
    data: Any,
    labels: Any,
    plan: ScorePlan,
    *,
    chosen: Any,
    classes: Sequence[str] | None,
    stated: ClassNames | None,
    class_order: str,
    device: torch.device,
    batch_size: int | None,
    **options: Any,
) -> EstimatorAtWork:
    """Read a fitted classifier and its data.

    Args:
        model: of scikit-learn's kind.
        data: rows as it takes them, or the name of stored embeddings.
        labels: one per row, each a class that it was fitted on.
        plan: which scores the user wants.
        chosen: the rows to score, as :func:`hardsight.data.open_source` takes them; ``None`` for
            all.
        classes: names of the labels, position = label; else labels are matched by their value.
        stated: names of its outputs, in place of its own.
        class_order: ``"position"`` takes labels for positions among its classes.
        device: where scores are computed.
        batch_size: rows at once.
        options: of :func:`hardsight.data.open_source`, for data by name.

    Raises:
        ModelError: it is not a classifier that can be scored.
        DataError: the data cannot be rows of features.
        LabelError: labels are not the classifier's classes.
        HeadError: the user wants a score that it cannot give.
    """
    estimator = Estimator(model)
    opened = _opened(data, labels, estimator, classes=classes, **options)
    rows, values, ids, named, made_of = opened
    # if the data names its classes, labels are positions among the names
    by_value = class_order != "position" and named is None
    known = estimator.class_names if stated is None else stated
    indices, names = _labels(values, estimator, known.names, named, by_value=by_value)
    # our reading of the classifier must give its own outputs, checked on a few rows
    sample = rows.at(evenly_spaced(len(rows), _SAMPLED))
    is_softmax = estimator.hold_to(sample)
    facts: dict[str, Any] = {"spec": estimator.name}
    if not is_softmax:
        facts["reading"] = _READING.format(estimator.name)
    has_head = estimator.weight is not None
    computed = ComputedRows(rows, estimator.features if has_head else estimator.log_probs)
    check_lengths(estimator.name, "features", computed.shape, labels=indices, ids=ids)
    source = EmbeddingSource(_spec(data), computed, indices, classes=names, ids=ids)
    # pipelines take texts: a report shows them instead of their features
    texts = rows.at(slice(0, len(rows)))
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        source.shown = TextSource(texts, indices, spec=source.spec, classes=names, ids=ids)
    # a patch of the run can then be applied to the file, if its classes have the same numbers
    if made_of is not None and made_of.classes == names:
        source.made_of = made_of
    if chosen is not None:
        picked = open_source(source, rows=chosen)
        assert isinstance(picked, EmbeddingSource)
        source = picked
    width = source.width
    at_once = batch_size or max(64, min(16384, (1 << 26) // width))  # at most 512 MiB of float64
    if not has_head:
        plan = _without_head(plan, estimator)
        log_probs = estimator.log_probs(sample)
        facts["digest"] = values_digest([log_probs.tolist()])
        # trees give exact zeros
        if np.isinf(log_probs).any():
            facts["reading"] = _ZEROS.format(estimator.name)
        scorer: Scorer = ProbabilityScorer(source, plan, device=device, batch_size=at_once)
    else:
        assert estimator.bias is not None
        parts = [torch.tensor(estimator.weight), torch.tensor(estimator.bias)]
        head = Head(name=estimator.name, weight=parts[0], bias=parts[1])
        facts |= {"digest": tensors_digest(*parts), "head": "coef_"}
        scorer = EmbeddingScorer(source, [head], plan, device=device, batch_size=at_once)
    return EstimatorAtWork(
        source, scorer, plan, known, facts, "" if has_head else _missing(estimator)
    )


class ProbabilityScorer(Scorer):
    """Scores rows of log-probabilities, which are logits up to a constant per row."""

    source: EmbeddingSource

    def __init__(
        self, source: EmbeddingSource, plan: ScorePlan, *, device: torch.device, batch_size: int
    ) -> None:
        self.source, self.plan, self.device = source, plan, device
        self.batch_size, self.num_classes = batch_size, source.width

    def pieces(self, start: int, stop: int | None = None) -> Generator[Piece, None, None]:
        """Pieces from position ``start`` to ``stop``."""
        end = len(self.source) if stop is None else min(stop, len(self.source))
        for first in range(start, end, self.batch_size):
            yield self._piece(first, min(first + self.batch_size, len(self.source)))

    @torch.inference_mode()
    def _piece(self, first: int, last: int) -> Piece:
        labels = torch.from_numpy(self.source.labels[first:last])
        logits = torch.from_numpy(self.source.chunk(first, last)).to(self.device)
        logit_part, target_part = logit_summaries(logits, labels.to(self.device))
        finite = torch.isfinite(logit_part.logsumexp)
        columns = {
            "index": torch.from_numpy(self.source.numbered(range(first, last))),
            "label": labels,
            "prediction": torch.where(finite, logit_part.prediction, -1),
            "finite": finite,
            **self.plan.scores(Summaries(logits=logit_part, targets=target_part)),
        }
        return Piece(last - first, self.source.ids(first, last), columns)


def _opened(
    data: Any, labels: Any, estimator: Estimator, *, classes: Sequence[str] | None, **options: Any
) -> tuple[FeatureRows, Any, Any, tuple[str, ...] | None, TextSource | None]:
    """Rows, labels, ids, class names if data or user has them, and texts if data names a file."""
    stated = None if classes is None else tuple(str(name) for name in classes)
    if not isinstance(data, str | os.PathLike | ExampleSource | EmbeddingSource):
        stray = [name for name, value in options.items() if value is not None]
        if stray:
            raise OptionError(
                f"{', '.join(stray)} cannot be used here: they are for data given by name, and "
                f"this is a {type(data).__name__}; leave them out"
            )
        check_index(labels, data, option="labels")
        given = plain_array(labels, names=("labels", "label", "y", "targets"), option="labels")
        rows, values, ids = feature_rows(
            data, given, columns=estimator.columns, width=estimator.width
        )
        return rows, values, ids, stated, None
    source = open_source(data, labels=labels, classes=classes, **options)
    if isinstance(source, EmbeddingSource):
        whole = source.chunk(0, len(source))
        ids = source.ids(0, len(source)).to_pylist()
        return FeatureRows(in_memory(whole)), source.labels, ids, source.classes, None
    if not isinstance(source, TextSource):
        raise DataError(
            f"{estimator.name} takes rows of features, and {source.spec} holds pictures; pass "
            "arrays, a data frame or stored embeddings, and labels=y"
        )
    ids = [source.id_of(at) for at in range(len(source))]
    return FeatureRows(source.texts), source.labels, ids, source.classes, source


def _spec(data: Any) -> str:
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    is_source = isinstance(data, ExampleSource | EmbeddingSource)
    return data.spec if is_source else type(data).__name__


def _labels(
    values: Any,
    estimator: Estimator,
    known: tuple[str, ...],
    named: tuple[str, ...] | None,
    *,
    by_value: bool,
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class indices, and the name of each class of the data.

    Labels are the values that the classifier was fitted on, not positions: for a classifier of
    1, 2 and 3, the labels 1 and 2 are its first two classes.
    """
    array = np.asarray(in_memory(values))
    where = "the labels"
    if array.ndim > 1 and array.shape[1] > 1:
        raise LabelError(
            f"expected one label per row, got labels {list(array.shape)}; examples with several "
            f"labels are not scored, and one-hot rows become {estimator.name}'s classes with "
            "model.classes_[y.argmax(axis=1)]"
        )
    if not by_value:
        return class_indices(array, classes=named or known, where=where, least=1)
    array = array.reshape(-1)
    refuse_missing(array.tolist(), where)
    place = {}
    if known == estimator.class_names.names:
        place = {value: at for at, value in enumerate(estimator.values.tolist())}
    names = [
        known[place[value]] if value in place else value_name(value) for value in array.tolist()
    ]
    at = {name: index for index, name in enumerate(known)}
    unknown = sorted(set(names).difference(known))
    if unknown:
        raise LabelError(
            f"labels {', '.join(unknown[:6])} are not among the {len(known)} classes of "
            f"{estimator.name} ({', '.join(known[:6])}); pass labels as it was fitted on them, "
            'their names (classes=[...]), or positions among classes_ (class_order="position")'
        )
    return np.array([at[name] for name in names], dtype=np.int64), known


def _without_head(plan: ScorePlan, estimator: Estimator) -> ScorePlan:
    possible = [name for name, spec in SCORES.items() if _from_probs(name) and not spec.per_class]
    if plan.is_open:
        return ScorePlan(None, has_head=False, has_offset=False)
    refused = [spec.name for spec in plan.specs if not _from_probs(spec.name)]
    if refused:
        raise HeadError(
            f"{', '.join(refused)} cannot be computed: {_missing(estimator)}. Scores that need "
            f"only probabilities: {', '.join(possible)}"
        )
    return plan


def _from_probs(name: str) -> bool:
    spec = SCORES[name]
    return "embeddings" not in spec.inputs and not spec.needs_offset


def _missing(estimator: Estimator) -> str:
    return f"{estimator.no_head}, and probabilities give logits only up to a constant per row"
