"""From what a user names to sentences whose tokens have rows: lines, columns and lists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data.formats import SentenceSource, sentence_columns, sentence_file, table_columns
from hardsight.errors import OptionError

if TYPE_CHECKING:
    from hardsight.data.opening._open import Options


def sentences_in_file(file: Path, text: str, options: Options, *, is_table: bool) -> SentenceSource:
    """Lines of a text file, or a column of a table."""
    if is_table:
        return sentences_in(table_columns(file, text), text, options)
    options.images_only()
    options.refuse("text_column", "split", because=f"{text} has lines, not columns")
    target = _target_name(options)
    return sentence_file(file, spec=text, target=target, max_tokens=options.max_tokens)


def sentences_in(columns: Mapping[str, Any], text: str, options: Options) -> SentenceSource:
    """Sentences in a column of a table."""
    options.images_only()
    return sentence_columns(
        columns, spec=text, text=options.text_column, target=_target_name(options),
        split=options.split, max_tokens=options.max_tokens,
    )  # fmt: skip


def sentences_of_dataset(data: Any, text: str, options: Options) -> SentenceSource:
    """Sentences in a column of a Hugging Face dataset."""
    columns = {name: data[name] for name in data.column_names}
    return sentences_in(columns, text, replace(options, split=None))


def sentences_of_frame(frame: Any, options: Options) -> SentenceSource:
    """Sentences in a column of a data frame."""
    missing = frame.astype(object).where(frame.notna(), None)
    columns = {str(name): missing.iloc[:, at].to_list() for at, name in enumerate(frame.columns)}
    return sentences_in(columns, type(frame).__name__, options)


def sentences_in_list(data: Any, options: Options) -> SentenceSource:
    """Sentences in memory, maybe with their translations."""
    options.images_only()
    options.refuse("text_column", "split", because="a list of sentences has no columns")
    target, name = options.target, type(data).__name__
    if target is None:
        return SentenceSource(list(data), spec=name, max_tokens=options.max_tokens)
    if not are_texts(target):
        raise OptionError(
            f"expected target to be a list of sentences as data is, got {type(target).__name__}"
        )
    return SentenceSource(list(target), list(data), spec=name, max_tokens=options.max_tokens)


def are_texts(data: Any) -> bool:
    """Whether data are texts in memory."""
    is_list = isinstance(data, list | tuple) and len(data) > 0
    return (is_list and all(isinstance(text, str) for text in data[:64])) or (
        isinstance(data, np.ndarray) and data.ndim == 1 and data.dtype.kind in "U"
    )


def _target_name(options: Options) -> str | None:
    if options.target is None or isinstance(options.target, str | os.PathLike):
        return None if options.target is None else os.fspath(options.target)
    raise OptionError(
        f"expected target to be a file or a column, got {type(options.target).__name__}; pass "
        "both sides as lists: score(model, texts, target=translations)"
    )
