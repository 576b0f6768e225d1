"""Studies on a user's own data: scores against people, against degradation, along training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hardsight.data import human_frequency
from hardsight.errors import TableError
from hardsight.registry import unknown_name
from hardsight.run._study_human import HumanStudy as HumanStudy
from hardsight.run._study_human import Hypothesis as Hypothesis
from hardsight.run._study_human import ScoreAgainstPeople as ScoreAgainstPeople
from hardsight.run._study_human import human_study as human_study
from hardsight.run._study_tables import StudyTable as StudyTable
from hardsight.run._study_tables import write_study
from hardsight.stats import HUMAN_BINS
from hardsight.table import ScoreTable, read_table


def study_human(
    table: str | os.PathLike[str] | ScoreTable,
    human: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    scores: Sequence[str] | None = None,
    test: str = "steiger",
    bins: Sequence[float] = HUMAN_BINS,
    quantiles: int = 5,
    alpha: float = 0.05,
) -> HumanStudy:
    """Each score of a table against the share of people who chose the label.

    Args:
        table: a score table, its file, or the folder of its run.
        human: a CSV with a column ``id`` or ``index`` and one ``frequency``; or counts ``[N, C]``
            in the order of the data, as ``.npy`` or as the column ``human_counts`` of a
            ``.parquet``.
        out: folder for ``study.json``; :func:`hardsight.report.write_study` then adds the page and
            the figures.
        scores: columns to study; every score of the table by default.
        test: between the correlations of AVH and of model confidence; see :func:`human_study`.
        bins: edges of the bins of human frequency.
        quantiles: how many quantile bins.
        alpha: level of every decision.

    Returns:
        coefficients with intervals, bins, the comparison, and H1 to H4 in words.

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
    found = table if isinstance(table, ScoreTable) else read_table(table)
    names = _chosen(found, scores)
    frequency = human_frequency(found, file=human)
    study = human_study(
        {name: found.column(name) for name in names},
        frequency,
        labels=found.column("label"),
        higher_is_harder={name: found.higher_is_harder(name) for name in names},
        test=test,
        bins=bins,
        quantiles=quantiles,
        alpha=alpha,
    )
    if out is not None:
        settings = {
            "table": str(found.path),
            "human": os.fspath(human),
            "test": test,
            "bins": list(bins),
            "quantiles": quantiles,
            "alpha": alpha,
            "sample": found.metadata.get("sample", "unknown"),
            "data": found.metadata.get("data"),
            "model": found.metadata.get("model"),
        }
        figures = {"histograms": study.histograms}
        write_study(out, "human", study, study.tables(), settings=settings, figures=figures)
    return study


def _chosen(table: ScoreTable, scores: Sequence[str] | None) -> list[str]:
    if not table.scores:
        raise TableError(
            f"{table.path or 'the table'} has no score columns; write one with `hardsight score`"
        )
    for name in scores or ():
        if name not in table.scores:
            raise TableError(unknown_name("score", name, table.scores))
    return list(scores or table.scores)


def study_folder(table: str | os.PathLike[str], kind: str) -> Path:
    """Where a study of a table is written when no folder is named: beside it."""
    path = Path(table)
    return (path if path.is_dir() else path.parent) / f"study-{kind}"
