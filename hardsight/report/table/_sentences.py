"""The hardest sentences of a table of tokens, with hard words marked, and the hardest words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardsight.report.page import number
from hardsight.report.table._view import View

_COLUMNS = ("sentence", "position", "token", "given")
_MOST_ROWS = 2_000_000  # tokens in which words are counted
_SENTENCES, _WORDS = 24, 60  # that are shown
_LONG = 3  # tokens; a shorter sentence is not ranked
_OFTEN = 3  # times that a word must occur
_SHARES = (0.25, 0.10, 0.05, 0.01)  # of the hardest tokens, each with a darker mark


@dataclass(frozen=True)
class Piece:
    """A token in its sentence.

    Attributes:
        space: the space before it.
        text: its text.
        level: 0 for no mark, up to 4 for the hardest.
        about: its numbers, for a tooltip.
    """

    space: str
    text: str
    level: int
    about: str


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence with its hard tokens marked.

    Attributes:
        number: its number in the data.
        value: mean score of its tokens.
        begins: its first words, if they were given to the model.
        read: the sentence that the model read first, such as the one to translate.
        pieces: its tokens.
    """

    number: int
    value: str
    begins: str
    read: str
    pieces: list[Piece]


@dataclass(frozen=True)
class Word:
    """A word, summed up over all its occurrences.

    Attributes:
        text: the word.
        count: number of occurrences.
        mean: mean hardness; an occurrence is as hard as its hardest token.
        right: share of its tokens that were predicted.
        sentence: the sentence in which it is hardest.
    """

    text: str
    count: int
    mean: float
    right: float
    sentence: int


@dataclass(frozen=True)
class Sentences:
    """What the page shows of a table of tokens."""

    by: str
    count: int
    hardest: list[MarkedSentence]
    words: list[Word]
    least: int
    looked_at: int


def sentences_of(view: View) -> Sentences | None:
    """Sentences and words of a table of tokens; ``None`` for any other table."""
    if view.gallery.by is None or not set(_COLUMNS) <= set(view.table.columns):
        return None
    numbers = view.table.column("sentence").astype(np.int64)
    sign = 1.0 if view.table.higher_is_harder(view.gallery.by) else -1.0
    hardness = sign * view.values(view.gallery.by)
    starts = np.flatnonzero(np.r_[True, np.diff(numbers) != 0])
    ends = np.r_[starts[1:], len(numbers)]
    some = min(len(numbers), _MOST_ROWS)
    words, least = _words(view, numbers[:some], hardness[:some], sign)
    return Sentences(
        by=view.title_of(view.gallery.by),
        count=len(starts),
        hardest=list(_marked(view, numbers, hardness, starts, ends, sign)),
        words=words,
        least=least,
        looked_at=some,
    )


def _marked(
    view: View,
    numbers: NDArray[np.int64],
    hardness: NDArray[np.float64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    sign: float,
) -> Iterator[MarkedSentence]:
    """The hardest sentences, by the mean of their tokens."""
    known = np.nan_to_num(hardness)
    counts = np.add.reduceat((~np.isnan(hardness)).astype(np.int64), starts)
    means = np.add.reduceat(known, starts) / np.maximum(1, counts)
    long = counts >= min(_LONG, int(counts.max(initial=0)))
    order = np.argsort(-np.where(long, means, -np.inf), kind="stable")
    finite = hardness[~np.isnan(hardness)]
    bounds = list[float]()
    if len(finite):
        bounds = np.quantile(finite, [1 - share for share in _SHARES]).tolist()
    position = view.table.column("position")
    for at in order[:_SENTENCES].tolist():
        rows = np.arange(starts[at], ends[at])
        texts, given = _texts(view, "token", rows), _texts(view, "given", rows[:1])[0]
        is_later = int(position[rows[0]]) > 0
        yield MarkedSentence(
            number=int(numbers[rows[0]]),
            value=number(float(sign * means[at])),
            begins=given if is_later else "",
            read="" if is_later else given,
            pieces=[
                _piece(view, row, text, hardness[row], bounds, sign)
                for row, text in zip(rows.tolist(), texts, strict=True)
            ],
        )


def _piece(
    view: View, row: int, text: str, hardness: float, bounds: Sequence[float], sign: float
) -> Piece:
    level = 0 if np.isnan(hardness) else int(sum(hardness >= bound for bound in bounds))
    own = text.lstrip()
    predicted = view.class_name(int(view.predictions[row]))
    said = "predicted" if view.right[row] else f"predicted instead: {predicted}"
    about = f"{view.title_of(view.gallery.by or '')} {number(float(sign * hardness))}, {said}"
    return Piece(text[: len(text) - len(own)], own or text, level, about)


def _texts(view: View, column: str, rows: NDArray[np.int64]) -> list[str]:
    texts = view.table.to_arrow().column(column).take(rows).to_pylist()
    return [text or "" for text in texts]


def _words(
    view: View, numbers: NDArray[np.int64], hardness: NDArray[np.float64], sign: float
) -> tuple[list[Word], int]:
    """The hardest words, and the least number of times that each of them occurs."""
    tokens = [text or "" for text in view.table.to_arrow().column("token").to_pylist()]
    begins = _begun_words(view, tokens, len(numbers))
    starts = np.array(list(_word_starts(tokens[: len(numbers)], numbers)), dtype=np.int64)
    ends = np.r_[starts[1:], len(numbers)]
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
    names = [f"{begins.get(a, '')}{''.join(tokens[a:b])}".strip() for a, b in spans]
    hardest = np.maximum.reduceat(np.nan_to_num(hardness, nan=-np.inf), starts)
    right = np.add.reduceat(view.right[: len(numbers)].astype(np.int64), starts)
    kinds, place = np.unique(np.array(names, dtype=object).astype(str), return_inverse=True)
    counts = np.bincount(place)
    usable = np.isfinite(hardest)
    sums = np.bincount(place[usable], hardest[usable], minlength=len(kinds))
    seen = np.bincount(place[usable], minlength=len(kinds))
    means = np.where(seen > 0, sums / np.maximum(1, seen), -np.inf)
    shares = np.bincount(place, right, minlength=len(kinds)) / np.bincount(place, ends - starts)
    least = _OFTEN if int((counts >= _OFTEN).sum()) >= 10 else 1
    order = np.argsort(-np.where((counts >= least) & (kinds != ""), means, -np.inf), kind="stable")
    order = order[np.isfinite(means[order]) & (counts[order] >= least)][:_WORDS]
    words = []
    for kind in order.tolist():
        own = np.flatnonzero(place == kind)
        worst = starts[own[int(np.argmax(hardest[own]))]]
        words.append(
            Word(
                str(kinds[kind]),
                int(counts[kind]),
                float(sign * means[kind]),
                float(shares[kind]),
                int(numbers[worst]),
            )
        )
    return words, least


def _begun_words(view: View, tokens: Sequence[str], count: int) -> dict[int, str]:
    """By row, the beginning of its word that was given to the model."""
    given = view.table.to_arrow().column("given").to_pylist()[:count]
    later = view.table.column("position")[:count] > 0
    return {
        row: text.split()[-1]
        for row, text in enumerate(given)
        if text and later[row] and text[-1].isalnum() and tokens[row][:1].isalnum()
    }


def _word_starts(tokens: Sequence[str], numbers: NDArray[np.int64]) -> Iterator[int]:
    """Rows at which a word begins: after a space, at the start of a sentence, and at signs."""
    before, last = "", -1
    for row, (text, number_) in enumerate(zip(tokens, numbers.tolist(), strict=True)):
        goes_on = number_ == last and text[:1].isalnum() and before[-1:].isalnum()
        if not goes_on:
            yield row
        before, last = text, number_
