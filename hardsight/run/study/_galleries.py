"""Find examples that are hard for people and easy for the network, or the reverse."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data import EmbeddingSource, ExampleSource, open_source, thumbnail
from hardsight.errors import BadExampleError, DataError, MissingDataError
from hardsight.run.study._tables import StudyTable
from hardsight.table import ScoreTable

Floats = NDArray[np.float64]
HARD_FOR_PEOPLE = "hard for people, easy for the network"
HARD_FOR_NETWORK = "easy for people, hard for the network"


@dataclass(frozen=True)
class Disagreement:
    """An example on which people and the network disagree.

    Attributes:
        row: of the table, from 0.
        frequency: share of people who chose the label.
        score: of the network.
        people: share of the examples that are easier for people, in [0, 1].
        network: share of the examples that are easier for the network, in [0, 1].
        label: of the data.
        prediction: of the network; empty if it is not known.
        id: of the example; empty if it is not known.
    """

    row: int
    frequency: float
    score: float
    people: float
    network: float
    label: str
    prediction: str = ""
    id: str = ""


@dataclass(frozen=True)
class Gallery:
    """The examples of a kind of disagreement, the largest first.

    Attributes:
        title: which kind.
        by: the score that says what is hard for the network.
        examples: those that differ most in their ranks.
    """

    title: str
    by: str
    examples: tuple[Disagreement, ...]


def galleries_of(
    values: Floats, frequency: Floats, labels: NDArray[Any], *, by: str, harder: bool, most: int
) -> tuple[Gallery, ...]:
    """Find both kinds of disagreement, by the distance between two ranks.

    Examples are ranked twice, by the share of people who did not choose the label and by a score;
    ties share their mean rank. An example that is hard for people and easy for the network has a
    high first and a low second rank.

    Args:
        values: a score, ``[N]``.
        frequency: human selection frequency, NaN if unknown, ``[N]``.
        labels: ``[N]``.
        by: name of the score.
        harder: whether a larger score is harder.
        most: examples per gallery.
    """
    known = np.flatnonzero(np.isfinite(values) & np.isfinite(frequency))
    people = _shares(-frequency[known])
    network = _shares(values[known] if harder else -values[known])
    found = []
    for title, gap in ((HARD_FOR_PEOPLE, people - network), (HARD_FOR_NETWORK, network - people)):
        # stable, so that ties give the same gallery on every machine
        order = np.argsort(-gap, kind="stable")[:most]
        examples = tuple(
            Disagreement(
                int(known[at]), float(frequency[known[at]]), float(values[known[at]]),
                float(people[at]), float(network[at]), str(labels[known[at]]),
            )
            for at in order if gap[at] > 0
        )  # fmt: skip
        found.append(Gallery(title, by, examples))
    return tuple(found)


def _shares(hardness: Floats) -> Floats:
    """Share of the other examples that are easier; ties count half."""
    from scipy.stats import rankdata

    shares: Floats = (rankdata(hardness) - 1) / max(len(hardness) - 1, 1)
    return shares


def named(galleries: Sequence[Gallery], table: ScoreTable) -> tuple[Gallery, ...]:
    """The same galleries with ids and class names from a table."""
    ids, predictions = table.column("id"), table.column("prediction")
    labels, classes = table.column("label"), table.classes

    def name(number: Any) -> str:
        return classes[int(number)] if classes else str(number)

    def known(example: Disagreement) -> Disagreement:
        row = example.row
        return dataclasses.replace(
            example, id=str(ids[row]), label=name(labels[row]), prediction=name(predictions[row])
        )

    return tuple(
        dataclasses.replace(gallery, examples=tuple(map(known, gallery.examples)))
        for gallery in galleries
    )


def gallery_tables(galleries: Sequence[Gallery]) -> list[StudyTable]:
    """A table for each gallery that has examples."""
    return [
        StudyTable(
            gallery.title[0].upper() + gallery.title[1:],
            ("example", "label", "prediction", "chosen by people", gallery.by,
             "harder for people than", "harder for the network than"),
            tuple(
                (one.id or str(one.row), one.label, one.prediction, f"{one.frequency:.0%}",
                 f"{one.score:.4g}", f"{one.people:.0%}", f"{one.network:.0%}")
                for one in gallery.examples
            ),
            "The last two columns are shares of all examples; ties count half. The largest "
            "distance between them comes first.",
        )
        for gallery in galleries
        if gallery.examples
    ]  # fmt: skip


def pictures_of(
    galleries: Sequence[Gallery], table: ScoreTable, source: ExampleSource | None
) -> Mapping[str, list[str | None]]:
    """Thumbnails of the examples by gallery, as base64; ``None`` for an example without one."""
    if source is None:
        return {}
    index = table.column("index")
    return {
        gallery.title: [_thumbnail(source, int(index[one.row])) for one in gallery.examples]
        for gallery in galleries
    }


def _thumbnail(source: ExampleSource, position: int) -> str | None:
    try:
        picture = thumbnail(source[position].content)
    except BadExampleError:
        return None
    return None if picture is None else base64.b64encode(picture).decode("ascii")


def picture_source(
    pictures: Any, human: str | os.PathLike[str], table: ScoreTable
) -> ExampleSource | None:
    """The source of a table's pictures: as the user named it, or the file of people's answers.

    Raises:
        DataError: the named data is not that of the table.
    """
    if pictures is not None:
        source = open_source(pictures)
        if isinstance(source, EmbeddingSource) or not _reaches(source, table):
            raise DataError(
                f"expected the pictures of the {len(table):,} examples of the table, got "
                f"{len(source):,} examples from {source.spec}; name the data that was scored"
            )
        return source
    if Path(human).suffix.lower() != ".parquet":
        return None
    try:
        source = open_source(human)
    except (DataError, MissingDataError):  # the file has counts but no pictures
        return None
    if isinstance(source, EmbeddingSource) or not _reaches(source, table):
        return None
    return source


def _reaches(source: ExampleSource, table: ScoreTable) -> bool:
    """Whether a source has an example for every row of a table."""
    index = table.column("index")
    return bool(len(index)) and int(np.max(index)) < len(source)
