"""Studies on a user's own data: agreement with people, degradation, training dynamics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hardsight._checks import checked_options
from hardsight.data import CONTRAST_LEVELS, NOISE_LEVELS, human_frequency, open_source
from hardsight.errors import OptionError, TableError, UnknownColumnError
from hardsight.registry import unknown_name
from hardsight.run.loop import decoded_once
from hardsight.run.study._degradation import DegradationStudy, degradation_study
from hardsight.run.study._dynamics import (
    MEASURES,
    DynamicsStudy,
    Histories,
    observations,
    read_histories,
    run_dynamics,
)
from hardsight.run.study._folder import (
    arrays_digest,
    claimed_study,
    describe_study,
    read_study,
    write_study,
)
from hardsight.run.study._galleries import named, picture_source, pictures_of
from hardsight.run.study._human import HumanStudy, human_study
from hardsight.stats import HUMAN_BINS
from hardsight.table import ScoreTable, read_table


@checked_options
def study_human(
    table: str | os.PathLike[str] | ScoreTable,
    human: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    scores: Sequence[str] | None = None,
    test: str = "steiger",
    bins: Sequence[float] = HUMAN_BINS,
    quantiles: int = 5,
    alpha: float = 0.05,
    gallery: int = 12,
    pictures: Any = None,
) -> HumanStudy:
    """Correlate each score of a table with the share of people who chose the label.

    Args:
        table: a score table, its file, or the folder of its run.
        human: file of people's choices: a CSV with a column ``id`` or ``index`` and a column
            ``frequency``, or counts ``[N, C]`` in the order of the data, as ``.npy`` or as the
            column ``human_counts`` of a ``.parquet``.
        out: folder for study.json; :func:`hardsight.report.write_study` then adds the page and
            the figures.
        resume: take the finished study in ``out`` as it is, if it is of the same things.
        overwrite: replace the study in ``out``; other files there stay.
        scores: columns to study; every score of the table by default.
        test: between the correlations of AVH and of model confidence: ``steiger``, ``meng`` or
            ``bootstrap``. In Python see :func:`human_study`.
        bins: edges of the bins of human frequency.
        quantiles: number of quantile bins of human frequency, besides the paper's five bins.
        alpha: level of every decision.
        gallery: number of examples that are hard for people and easy for the network by AVH, and
            of the reverse; 0 for none.
        pictures: the data that was scored, to show these examples: a folder, ``.parquet`` or idx
            file, or a name. A ``.parquet`` file passed as ``human`` is used if it has pictures.

    Returns:
        coefficients with intervals, bins, the comparison, H1 to H4 in words, and galleries.

    Raises:
        TableError: the table has no such score.
        DataError: the file does not fit the table.
        HardsightError: another subclass that says what to do.

    Example:
        >>> import tempfile, numpy as np, hardsight as hs
        >>> from hardsight.models import SmallCNN
        >>> table = hs.score(SmallCNN(num_classes=10), "builtin:digits", split="test")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     counts = np.random.default_rng(0).integers(1, 9, size=(449, 10))
        ...     np.save(f"{folder}/counts.npy", counts)
        ...     study = study_human(table, f"{folder}/counts.npy")
        >>> [one.name for one in study.hypotheses], study.n
        (['H1', 'H2', 'H3', 'H4'], 449)
    """
    opened = table if isinstance(table, ScoreTable) else read_table(table)
    names = _chosen(opened, scores)
    frequency = human_frequency(opened, file=human)
    columns, labels = {name: opened.column(name) for name in names}, opened.column("label")
    how: dict[str, Any] = {
        "test": test, "bins": list(bins), "quantiles": quantiles, "alpha": alpha,
        "gallery": gallery,
    }  # fmt: skip
    source = None if out is None else picture_source(pictures, human, opened)
    with claimed_study(out, resume=resume, overwrite=overwrite) as run:
        if run is not None:
            made_of = {"table": opened.path, "human": human, "scores": names, **how}
            made_of["pictures"] = None if source is None else source.spec
            marks = {
                "table": arrays_digest([labels, *columns.values()]),
                "answers of people": arrays_digest([frequency]),
            }
            if source is not None:
                marks["pictures"] = source.fingerprint()
            describe_study(run, "human", made_of, marks)
            if run.is_done:
                return cast(HumanStudy, read_study(run, HumanStudy))
        harder = {name: opened.higher_is_harder(name) for name in names}
        study = human_study(columns, frequency, labels=labels, higher_is_harder=harder, **how)
        study = replace(study, galleries=named(study.galleries, opened))
        if run is None:
            return study
        settings = {
            "table": str(opened.path),
            "human": os.fspath(human),
            **how,
            "sample": opened.metadata.get("sample", "unknown"),
            "data": opened.metadata.get("data"),
            "model": opened.metadata.get("model"),
        }
        shown = pictures_of(study.galleries, opened, source)
        figures = {"histograms": study.histograms, "galleries": shown}
        names = [score.name for score in study.scores]
        write_study(
            run, "human", study, study.tables(), names=names, settings=settings, figures=figures
        )
        return study


@checked_options
def study_degradation(
    model: Any,
    data: Any,
    *,
    noise: Sequence[float] = NOISE_LEVELS,
    contrast: Sequence[float] = CONTRAST_LEVELS,
    scores: Sequence[str] = ("avh", "model_confidence", "feature_norm"),
    limit: int | None = None,
    seed: int = 0,
    split: str | None = None,
    data_root: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> list[DegradationStudy]:
    """Scores of the same pictures at every level of noise and of contrast.

    Args:
        model: folder of a trained model, or any model as in ``hardsight score``.
        data: labelled pictures: folder, ``.csv``, ``.parquet``, a name. In Python see
            :func:`hardsight.data.open_source`.
        noise: widths of uniform noise, in pixels 0..1: 0, 0.1, 0.2, 0.3 and 0.4 by default. In
            Python empty for none.
        contrast: levels of contrast: 1, 0.6, 0.3, 0.2 and 0.1 by default. In Python empty for
            none.
        scores: names of the scores to study: avh, model_confidence and feature_norm by default.
        limit: number of pictures to take, evenly spaced over the data.
        seed: of the noise; each picture has the same draw at every level.
        split: split of data that has several, such as test.
        data_root: folder above those of named datasets, such as cifar10/.
        out: folder for study.json, study.md and figures. In Python see :func:`study_human`.
        resume: take the finished study in ``out`` as it is, if it is of the same things.
        overwrite: replace the study in ``out``; other files there stay.
        options: further keywords of :func:`hardsight.score`, such as ``device``.

    Returns:
        one study for noise and one for contrast.

    Raises:
        OptionError: no levels, or a level outside ``[0, 1]``.
        DataError: the data holds no pictures.

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Definition 4, Figs. 17 and 18.
    """
    from hardsight.run.study._levels import facts_of, level_scores

    kinds = {kind: tuple(levels) for kind, levels in (("noise", noise), ("contrast", contrast))}
    with claimed_study(out, resume=resume, overwrite=overwrite, reads=(data,)) as run:
        source = decoded_once(open_source(data, split=split, data_root=data_root))
        if run is not None:
            resolved, marks = facts_of(model, source, seed=seed, **options)
            made_of = {**resolved, **kinds, "scores": scores, "limit": limit, "seed": seed}
            describe_study(run, "degradation", made_of, marks)
            if run.is_done:
                return cast(list[DegradationStudy], read_study(run, list[DegradationStudy]))
        levels = list(
            level_scores(model, source, kinds, scores=scores, limit=limit, seed=seed, **options)
        )
        studies = [
            degradation_study(kinds[kind], values, correct, kind=kind, higher_is_harder=harder)
            for kind, values, correct, harder, _ in levels
        ]
        if run is not None:
            settings = {
                "model": str(model), "data": str(data), "split": split, "limit": limit,
                "seed": seed, "class_order": levels[0][-1],
            }  # fmt: skip
            tables = [table for study in studies for table in study.tables()]
            names = [score.name for study in studies for score in study.scores]
            write_study(run, "degradation", studies, tables, names=names, settings=settings)
    return studies


@checked_options
def study_dynamics(
    runs: Sequence[str | os.PathLike[str]],
    *,
    examples: str = "test",
    human: str | os.PathLike[str] | None = None,
    bins: Sequence[float] = HUMAN_BINS,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> DynamicsStudy:
    """Follow norm, AVH, confidence and accuracy along training; test the AVH paper's observations.

    Args:
        runs: folders of ``hardsight train``, of different models to compare them.
        examples: which recorded examples: ``test`` of a recipe with ``track_test = true``,
            ``train`` or ``held-out`` of one with ``track = true``, or a name given to
            ``track_on``.
        human: file of people's choices, as in study human; the curves are then split by it.
        bins: edges of the bins of human frequency.
        out: folder for study.json. In Python see :func:`study_human`.
        resume: take the finished study in ``out`` as it is, if it is of the same things.
        overwrite: replace the study in ``out``; other files there stay.

    Raises:
        MissingDataError: a run has nothing recorded.
        OptionError: no run was passed, or a run was passed twice.
        HardsightError: another subclass that says what to do.

    Reference:
        Chen et al., Angular Visual Hardness, ICML 2020, Section 3.2, Figs. 4, 9 and 10.
    """
    folders = [Path(run) for run in runs]
    for at, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:at]]:
            raise OptionError(f"expected different runs, got {folder} twice; name each once")
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    settings = {
        "runs": [str(folder) for folder in folders], "examples": examples,
        "human": None if human is None else os.fspath(human), "bins": list(bins),
    }  # fmt: skip
    with claimed_study(out, resume=resume, overwrite=overwrite) as run:
        of_runs, marks = [], dict[str, str | None]()
        for folder, name in zip(folders, names, strict=True):
            histories = read_histories(folder, examples=examples, name=name)
            frequency = None if human is None else _tracked_frequency(histories, human)
            of_runs.append(run_dynamics(histories, frequency=frequency, bins=bins))
            read = [histories.rows, *histories.measures.values()]
            marks[f"epochs of {name}"] = arrays_digest(read)
            marks[f"answers of people to {name}"] = (
                None if frequency is None else arrays_digest([frequency])
            )
        study = DynamicsStudy(tuple(of_runs), observations(of_runs))
        if run is not None:
            describe_study(run, "dynamics", {**settings, "names": names}, marks)
            if not run.is_done:
                tables = study.tables()
                write_study(run, "dynamics", study, tables, names=MEASURES, settings=settings)
    return study


def _tracked_frequency(histories: Histories, human: str | os.PathLike[str]) -> NDArray[np.float64]:
    if histories.examples is None:
        raise TableError(
            f"the run {histories.name} has no ids of its examples, so people's choices cannot be "
            "joined; study the examples of track_test or track_on"
        )
    rows = np.searchsorted(histories.examples.column("index"), histories.rows)
    return human_frequency(histories.examples, file=human)[rows]


def _chosen(table: ScoreTable, scores: Sequence[str] | None) -> list[str]:
    if not table.scores:
        raise TableError(
            f"{table.path or 'the table'} has no score columns; write one with `hardsight score`"
        )
    for name in scores or ():
        if name not in table.scores:
            raise UnknownColumnError(unknown_name("score", name, table.scores))
    return list(scores or table.scores)


def study_folder(table: str | os.PathLike[str], kind: str) -> Path:
    """The default folder of a study of a table, beside the table."""
    path = Path(table)
    return (path if path.is_dir() else path.parent) / f"study-{kind}"
