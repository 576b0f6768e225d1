"""Sentences for language models: lines or pairs of lines in text files, and table columns."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.data.formats._tables import rows_of_split
from hardsight.data.formats._texts import TEXTS, check_are_texts, table_column
from hardsight.data.source import (
    Example,
    ExampleSource,
    Fingerprint,
    InputKind,
    SourceView,
    existing,
)
from hardsight.data.texts import Sentence, Sentences, TargetTokens
from hardsight.errors import DataError, OptionError, UnknownPartError

LINE_SUFFIXES = (".txt",)
SENTENCE, POSITION, TOKEN, GIVEN = "sentence", "position", "token", "given"
_EMPTY, _ONE = "empty sentences", "sentences without a token to predict"
_ENCODED_AT_ONCE = 4096
_LONGEST = 10**6  # characters; a file with a longer line is not taken for lines of sentences


class SentenceSource(ExampleSource):
    """Sentences, or pairs of sentences; tables have one row for each predicted token.

    A pair with an empty side is passed over and counted.

    Args:
        targets: the sentences whose tokens are predicted.
        given: what a model reads before each target, such as the sentence to translate; ``None``
            if the sentences stand by themselves.
        spec: how the user named the data.
        max_tokens: the largest number of tokens of a sentence that a model sees.

    Attributes:
        sentences: the sentences that have rows, as tokens; empty until a model's tokenizer has
            read them.

    Raises:
        DataError: there are no sentences, all are empty, or the two lists differ in length.
    """

    def __init__(
        self,
        targets: Sequence[Any],
        given: Sequence[Any] | None = None,
        *,
        spec: str,
        max_tokens: int | None = None,
    ) -> None:
        self.spec, self.classes = spec, ()
        if given is not None and len(given) != len(targets):
            raise DataError(
                f"expected as many sentences as translations in {spec}, got {len(given):,} and "
                f"{len(targets):,}; line n of one must be the translation of line n of the other"
            )
        self._targets = [_text(text, spec) for text in targets]
        self._given = None if given is None else [_text(text, spec) for text in given]
        sides = [self._targets] if self._given is None else [self._targets, self._given]
        self._kept = [at for at, pair in enumerate(zip(*sides, strict=True)) if all(pair)]
        if not self._kept:
            raise DataError(f"no examples in {spec}: it has no lines with text")
        empty = len(self._targets) - len(self._kept)
        self.passed_over = {_EMPTY: empty} if empty else {}
        self.kind = Sentences(max_tokens)
        self.sentences: list[Sentence] = []

    def __len__(self) -> int:
        return len(self.sentences or self._kept)

    def __getitem__(self, index: int) -> Example:
        if self.sentences:
            return Example(self.id_of(index), 0, self.sentences[index])
        return Example(self.id_of(index), 0, self._targets[self._kept[index]])

    def id_of(self, index: int) -> str:
        """Return the number of the sentence."""
        return str(self.sentences[index].number if self.sentences else self._kept[index])

    @property
    def num_rows(self) -> int:
        """Number of tokens that are predicted."""
        return sum(map(len, self.sentences)) if self.sentences else len(self)

    @property
    def are_pairs(self) -> bool:
        """Whether each sentence is predicted from another one."""
        return self._given is not None

    def of_kind(self, kind: InputKind | None) -> ExampleSource:
        """Return the same sentences, as tokens if ``kind`` has a model's tokenizer.

        Raises:
            DataError: the model reads pairs and these are not pairs, or the other way round.
        """
        other = copy.copy(self)
        other.kind = kind
        other.__dict__.pop("row_columns", None)  # cached for this tokenizer, not for another one
        if isinstance(kind, TargetTokens) and not self.sentences:
            other._read_by(kind)
        return other

    @cached_property
    def row_columns(self) -> dict[str, pa.Array]:
        """Sentence number, position and text of every row, and what the first row follows."""
        if not self.sentences:
            return {}
        counts = [len(one) for one in self.sentences]
        numbers = np.repeat([one.number for one in self.sentences], counts)
        positions = np.concatenate(
            [np.arange(one.first, one.first + len(one)) for one in self.sentences]
        )
        texts = [text for one in self.sentences for text in one.texts]
        given = list[str | None]()
        for one in self.sentences:
            read = one.begins if self._given is None else self._given[one.number]
            # only the first row of a sentence states it
            given += [read or None, *[None] * (len(one) - 1)]
        return {
            SENTENCE: pa.array(numbers, pa.int64()),
            POSITION: pa.array(positions, pa.int64()),
            TOKEN: pa.array(texts, pa.string()),
            GIVEN: pa.array(given, pa.string()),
        }

    def fingerprint(self) -> str:
        """Return the SHA-256 of all sentences."""
        mark = Fingerprint("sentences").add_names(self._targets)
        return mark.add_names(self._given or ()).hexdigest()

    def _read_by(self, kind: TargetTokens) -> None:
        if kind.reads_pairs != self.are_pairs:
            raise DataError(_not_as_read(self.spec, kind.reads_pairs))
        found: list[Sentence] = []
        row, given = 0, self._given
        # in parts, so that a tokenizer gets many sentences in a call but not the whole file
        for start in range(0, len(self._kept), _ENCODED_AT_ONCE):
            part = self._kept[start : start + _ENCODED_AT_ONCE]
            read = None if given is None else [given[at] for at in part]
            for at, one in zip(
                part, kind.encoded([self._targets[at] for at in part], read, 0), strict=True
            ):
                if len(one):
                    found.append(replace(one, number=at, row=row))
                    row += len(one)
        if not found:
            raise DataError(
                f"no sentence of {self.spec} has a token to predict: each is a single token, which "
                "a causal model is given"
            )
        single = len(self._kept) - len(found)
        if single:
            self.passed_over = {**self.passed_over, _ONE: single}
        self.sentences, self.classes = found, kind.classes
        self.shown = TokensInSentences(self)

    @property
    def texts(self) -> tuple[list[str], list[str] | None]:
        """All target sentences, and what is read before them."""
        return self._targets, self._given

    def _view(self, **changes: Any) -> SourceView:
        raise OptionError(
            f"{self.spec} has a row for each token: rows, patches and other labels cannot be used "
            "with it; write the sentences you want to a file of their own"
        )


class TokensInSentences(ExampleSource):
    """The tokens of a source as people see them, each marked in its sentence."""

    def __init__(self, source: SentenceSource) -> None:
        self.spec, self.classes, self.kind = source.spec, source.classes, Sentences()
        self._source = source
        self._starts = np.array([one.row for one in source.sentences], dtype=np.int64)

    def __len__(self) -> int:
        return self._source.num_rows

    def __getitem__(self, index: int) -> Example:
        # the last sentence that starts at or before this row
        at = int(np.searchsorted(self._starts, index, side="right")) - 1
        one = self._source.sentences[at]
        step = index - one.row
        before, own, after = "".join(one.texts[:step]), one.texts[step], one.texts[step + 1 :]
        before = one.begins + before
        # the space in front of a token belongs outside the brackets
        space = own[: len(own) - len(own.lstrip())]
        text = f"{before}{space}[{own.strip() or own}]{''.join(after)}".strip()
        given = self._source.texts[1]
        read = "" if given is None else f"{given[one.number]} → "
        return Example(f"{one.number}:{one.first + step}", one.targets[step], f"{read}{text}")

    def fingerprint(self) -> str:
        """Return the fingerprint of the sentences."""
        return self._source.fingerprint()


def sentence_file(
    file: Path, *, spec: str, target: str | None, max_tokens: int | None
) -> SentenceSource:
    """Return the sentences of a text file, one per line, and their translations in another file.

    Args:
        file: a text file, plain or gzipped.
        spec: how the user named the data.
        target: the file of translations; ``None`` if the sentences stand by themselves.
        max_tokens: the largest number of tokens of a sentence that a model sees.

    Raises:
        DataError: a file is not a text file, or the files differ in their number of lines.
    """
    lines = text_lines(file, spec)
    if target is None:
        return SentenceSource(lines, spec=spec, max_tokens=max_tokens)
    others = text_lines(existing(target), target)
    if len(lines) != len(others):
        raise DataError(
            f"{spec} has {len(lines):,} lines and {target} {len(others):,}: line n of one must be "
            "the translation of line n of the other; look for a line that is missing or was broken "
            "in two"
        )
    return SentenceSource(others, lines, spec=f"{spec} → {target}", max_tokens=max_tokens)


def sentence_columns(
    columns: Mapping[str, Any],
    *,
    spec: str,
    text: str | None,
    target: str | None,
    split: str | None,
    max_tokens: int | None,
) -> SentenceSource:
    """Return the sentences in a column of a table, and their translations in another column.

    Args:
        columns: the columns, by name.
        spec: how the user named the data.
        text: name of the column of sentences; ``None`` finds it by the usual names.
        target: name of the column of translations; ``None`` if the sentences stand by themselves.
        split: the split to keep, according to a column ``split``.
        max_tokens: the largest number of tokens of a sentence that a model sees.

    Raises:
        DataError: there is no such column.
    """
    name = table_column(list(columns), text, TEXTS, "text", spec)
    if target is not None and target not in columns:
        raise UnknownPartError(
            f"no column {target!r} in {spec}: it has {', '.join(columns)}; pass target= (--target) "
            "with the one that holds the translations"
        )
    kept = rows_of_split(columns, split, spec)
    rows = range(len(columns[name])) if kept is None else kept.tolist()
    texts = [columns[name][row] for row in rows]
    check_are_texts(texts, spec)
    if target is None:
        return SentenceSource(texts, spec=spec, max_tokens=max_tokens)
    others = [columns[target][row] for row in rows]
    check_are_texts(others, f"the column {target!r} of {spec}")
    return SentenceSource(others, texts, spec=spec, max_tokens=max_tokens)


def text_lines(file: Path, spec: str) -> list[str]:
    """Return the lines of a text file, plain or gzipped, without their line ends.

    Raises:
        DataError: the file is not a text file.
    """
    try:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as stored:
            content = stored.read().decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as err:
        raise DataError(
            f"cannot read {spec} as lines of text: {err}; expected UTF-8, plain or gzipped"
        ) from err
    # not splitlines(): it also splits at characters such as U+2028, which may be part of a
    # sentence, and would shift all later lines against their translations
    lines = content.replace("\r\n", "\n").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if not lines:
        raise DataError(f"no examples in {spec}: it has no lines")
    if "\0" in content or max(map(len, lines)) > _LONGEST:
        raise DataError(f"{spec} is not a text with a sentence per line")
    return lines


def _text(value: Any, spec: str) -> str:
    """Return a sentence, or an empty string if it is missing."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if not isinstance(value, str):
        raise DataError(
            f"expected sentences in {spec}, got {value!r}; name the column of texts by "
            "text_column= (--text-column)"
        )
    return value.strip()


def _not_as_read(spec: str, reads_pairs: bool) -> str:
    if reads_pairs:
        return (
            f"a sequence-to-sequence model predicts a sentence from another one, and {spec} has "
            "sentences by themselves; pass target= (--target), the file or column of translations"
        )
    return (
        f"a causal model predicts a sentence from its own beginning, and {spec} has pairs; leave "
        "target (--target) out, or name a sequence-to-sequence model"
    )
