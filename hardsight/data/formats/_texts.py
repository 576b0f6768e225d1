"""Labelled texts: CSV, JSONL and parquet files, data frames, and Hugging Face datasets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight._checks import warn
from hardsight.data.formats._parquet import column_values, common_schema, stored_class_names
from hardsight.data.formats._tables import (
    LABELS,
    PATHS,
    check_cells,
    chosen_column,
    classes_of_all,
    csv_cells,
    named_column,
    plain_name,
    rows_of_split,
)
from hardsight.data.source import (
    Example,
    ExampleSource,
    Fingerprint,
    LabelPlace,
    class_indices,
    existing,
    id_at,
)
from hardsight.data.texts import Texts
from hardsight.errors import BadExampleError, DataError, LabelError

# The first name is the documented one and wins over the others.
TEXTS = ("text", "sentence", "review", "question", "comment", "content", "document", "body")
JSON_SUFFIXES = (".jsonl", ".ndjson")
_NUMBER = re.compile(r"\s*-?[0-9]+([.,][0-9]+)?\s*")
_COUNTED = re.compile(r"[1-9][0-9]*")
_LOOKED_AT = 200  # texts that are checked to see whether the column holds text at all
_MANY = 50  # distinct labels that are always accepted as classes


class TextSource(ExampleSource):
    """Labelled texts in memory.

    Args:
        texts: one text per example, or ``None`` for a missing one.
        labels: one label per text, in any form that :func:`class_indices` takes. If ``None``,
            labels play no part, and each one is -1.
        spec: how the user named the data.
        classes: class names; the position of a name is its label.
        ids: one id per text; ``None`` uses positions.
        columns: the other columns, by name.
        max_tokens: the largest number of tokens of a text that a model sees.

    Raises:
        DataError: there are no texts, or the column does not hold texts.
        LabelError: a label is missing or not a class, or nearly every text has its own label.
    """

    def __init__(
        self,
        texts: Sequence[Any],
        labels: Any,
        *,
        spec: str,
        classes: Sequence[str] | None = None,
        ids: Any = None,
        columns: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.spec, self._texts, self._ids = spec, list(texts), ids
        self._columns = dict(columns or {})
        if not self._texts:
            raise DataError(f"no examples in {spec}: there are no texts")
        check_are_texts(self._texts, spec)
        self.labels, self.classes = np.full(len(self._texts), -1), tuple(classes or ())
        if labels is not None:
            where = f"the labels of {spec}"
            values, names = _counted_from_1(labels, classes, where)
            _check_are_classes(values, names, where)
            self.labels, self.classes = class_indices(values, classes=names, where=where)
        if len(self.labels) != len(self._texts):
            raise DataError(
                f"expected one label per text, got {len(self._texts):,} texts and "
                f"{len(self.labels):,} labels in {spec}"
            )
        self.kind = Texts(max_tokens)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Example:
        return Example(self.id_of(index), self.label_of(index), self.text_of(index))

    @property
    def texts(self) -> list[str]:
        """All texts, with an empty string for each missing one."""
        return [text if isinstance(text, str) else "" for text in self._texts]

    def text_of(self, index: int) -> str:
        """Return the text of an example.

        Raises:
            BadExampleError: the text is missing or empty.
        """
        text = self._texts[index]
        # pandas marks a missing text with NaN
        if text is None or (isinstance(text, float) and np.isnan(text)):
            raise BadExampleError("no text is stored for it")
        if not isinstance(text, str):
            raise BadExampleError(f"expected a text, got {type(text).__name__}")
        if not text.strip():
            raise BadExampleError("the text is empty")
        return text

    def id_of(self, index: int) -> str:
        """Return the stored id, or the position if there are no ids."""
        return id_at(self._ids, index)

    def column(self, name: str) -> NDArray[Any] | None:
        """Return another column of the file, or ``None`` if there is no such column."""
        found = self._columns.get(name)
        return None if found is None else np.asarray(found)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the file's columns."""
        return tuple(map(str, self._columns))

    def fingerprint(self) -> str:
        """Return the SHA-256 of labels, classes and all texts."""
        mark = Fingerprint("texts").add_array(self.labels).add_names(self.classes)
        return mark.add_names([repr(text) for text in self._texts]).hexdigest()


def is_text_list(header: Sequence[str]) -> bool:
    """Return whether the column names alone say that a list holds texts.

    Raises:
        DataError: the names fit texts and pictures.
    """
    plain = [plain_name(name) for name in header]
    texts = [name for name, short in zip(header, plain, strict=True) if short in TEXTS]
    paths = [name for name, short in zip(header, plain, strict=True) if short in PATHS]
    if texts and paths:
        raise DataError(
            f"the columns {', '.join(texts)} and {', '.join(paths)} could both be the examples: "
            f"pass text_column={texts[0]!r} (--text-column {texts[0]}) for texts, or "
            f"image_column={paths[0]!r} (--image-column {paths[0]}) for pictures"
        )
    return bool(texts)


def text_file(file: Path, *, spec: str, **options: Any) -> TextSource:
    """Return the texts of a CSV, TSV or JSONL file; see :func:`text_columns`."""
    columns = table_columns(file, spec)
    source = text_columns(columns, spec=spec, **options)
    if not options.get("labelled", True):
        return source
    form = "lines" if file.suffix.lower() in JSON_SUFFIXES else "list"
    source.label_place = _place(form, (file,), file, columns, spec, **options)
    return source


def table_columns(file: Path, spec: str) -> Mapping[str, list[Any]]:
    """Return all columns of a CSV, TSV or JSONL file; missing cells are ``None``."""
    is_json = file.suffix.lower() in JSON_SUFFIXES
    return _json_columns(file, spec) if is_json else _csv_columns(file, spec)


def text_parquet(files: Sequence[Path], *, spec: str, **options: Any) -> TextSource:
    """Return the texts of parquet files; see :func:`text_columns`."""
    schema = common_schema(files)
    columns = {name: column_values(files, name) for name in schema.names}
    label = options.get("label") or next((n for n in schema.names if plain_name(n) in LABELS), None)
    names = None if label is None else stored_class_names(schema, label)
    options["classes"] = options.get("classes") or names
    source = text_columns(columns, spec=spec, **options)
    if not options.get("labelled", True):
        return source
    # a glob pattern is not a folder, so the folder of the first match stands in for it
    root = existing(spec) if os.path.exists(spec) else files[0].parent
    source.label_place = _place("parquet", tuple(files), root, columns, spec, **options)
    return source


def _place(
    form: str, files: tuple[Path, ...], root: Path, columns: Mapping[str, Any], spec: str,
    *, label: str | None, split: str | None, **_: Any,
) -> LabelPlace:  # fmt: skip
    """Return where the labels of texts are stored."""
    name = table_column(list(columns), label, LABELS, "label", spec)
    return LabelPlace(form, files, root, name=name, rows=rows_of_split(columns, split, spec))


def text_columns(
    columns: Mapping[str, Any],
    *,
    spec: str,
    text: str | None,
    label: str | None,
    classes: Sequence[str] | None,
    split: str | None,
    max_tokens: int | None,
    labelled: bool = True,
) -> TextSource:
    """Return the texts and labels in columns of equal length.

    Args:
        columns: the columns, by name.
        spec: how the user named the data.
        text: name of the column of texts; ``None`` finds it by the usual names.
        label: name of the column of labels; ``None`` finds it by the usual names.
        classes: class names; the position of a name is its label.
        split: the split to keep, according to a column ``split``.
        max_tokens: the largest number of tokens of a text that a model sees.
        labelled: whether labels play a part; if not, every label is -1.

    Raises:
        DataError: there is no such column.
    """
    header = list(columns)
    texts = columns[table_column(header, text, TEXTS, "text", spec)]
    kept = rows_of_split(columns, split, spec)
    values = np.empty(len(texts), dtype=object)
    if labelled:
        label_name = table_column(header, label, LABELS, "label", spec)
        values[:] = [_plain(value) for value in columns[label_name]]
        classes = classes_of_all(values, kept, classes, spec)
    rows = range(len(texts)) if kept is None else kept.tolist()
    ids = columns.get("id")
    return TextSource(
        [texts[row] for row in rows],
        [values[row] for row in rows] if labelled else None,
        spec=spec,
        classes=classes,
        ids=None if ids is None else [_id(ids[row], row) for row in rows],
        columns={name: [cells[row] for row in rows] for name, cells in columns.items()},
        max_tokens=max_tokens,
    )


def _id(stored: Any, row: int) -> str:
    """Return a stored id; missing ids get a unique replacement, so that they stay distinct."""
    return f"row {row}" if stored is None else str(stored)


def table_column(
    header: Sequence[str], stated: str | None, names: Sequence[str], role: str, spec: str
) -> str:
    """Return the column that the user names, or else the one that has one of ``names``.

    Raises:
        DataError: there is no such column, or there are several.
    """
    if stated is None:
        return chosen_column(header, names, f"{role}s", f"the columns of {spec}")
    return named_column(header, stated, role, spec)


def _csv_columns(file: Path, spec: str) -> dict[str, list[str | None]]:
    header, rows = csv_cells(file, spec)
    check_cells(header, rows, spec, quoted="good, not great")
    return {name: [row[at] or None for _, row in rows] for at, name in enumerate(header)}


def _json_columns(file: Path, spec: str) -> dict[str, list[Any]]:
    rows: list[Mapping[str, Any]] = []
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    row = json.loads(line, object_pairs_hook=_each_once)
                    if not isinstance(row, Mapping):
                        raise DataError(
                            f"expected an object in line {number} of {spec}, got "
                            f"{type(row).__name__}; write a line such as "
                            '{"text": "...", "label": "..."}'
                        )
                    rows.append(row)
    except (OSError, UnicodeDecodeError, ValueError) as err:
        raise DataError(f"cannot read {spec}: {err}; expected one JSON object per line") from err
    if not rows:
        raise DataError(f"no examples in {spec}: it has no lines")
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json silently keeps the last of two equal keys
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {twice!r} twice, and either could be meant")
    return found


def _plain(value: Any) -> Any:
    """Return a label without surrounding spaces; an empty one becomes ``None``."""
    if isinstance(value, str):
        return value.strip() or None
    return value.item() if isinstance(value, np.generic) else value


def check_are_texts(texts: Sequence[Any], spec: str) -> None:
    """Raise ``DataError`` if the first texts are all numbers or lists."""
    some = [text for text in texts[:_LOOKED_AT] if text is not None]
    if some and all(not isinstance(text, str) or _NUMBER.fullmatch(text) for text in some):
        first = some[0]
        is_list = isinstance(first, list | tuple | np.ndarray)
        held = "lists" if is_list else "numbers"
        raise DataError(
            f"expected texts in {spec}, got {first!r}: the column holds {held}, not text; "
            f"{'join the words of each, or name' if is_list else 'name'} "
            "another one by text_column= (--text-column)"
        )


def _counted_from_1(
    labels: Any, classes: Sequence[str] | None, where: str
) -> tuple[Any, Sequence[str] | None]:
    """Turn labels that count from 1, such as stars, into class names.

    As class indices they would be shifted: the label 1 would mean the second class.
    """
    if classes is not None:
        return labels, classes
    values = list(labels)
    numbers = [_whole_number(value) for value in values]
    distinct = set(numbers) - {None}
    top = max((number for number in numbers if number is not None), default=0)
    if None in numbers or len(distinct) < 2 or distinct != set(range(1, top + 1)):
        return labels, None
    warn(
        f"{where} are 1 to {top}: they are {top} classes of these names, the first is 1; pass "
        "classes=[...] (--classes) to name them otherwise"
    )
    return [str(number) for number in numbers], tuple(str(n) for n in range(1, top + 1))


def _whole_number(value: Any) -> int | None:
    """Return a label as a whole number, or ``None`` if it is not one.

    "01" does not count as 1, because both may be classes of their own.
    """
    if isinstance(value, str):
        return int(value) if _COUNTED.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return int(value) if value == int(value) else None


def _check_are_classes(labels: Any, classes: Sequence[str] | None, where: str) -> None:
    distinct = {str(value) for value in labels if value is not None}
    # above this, the column is more likely to hold ids or free text than classes
    if classes is None and len(distinct) > max(_MANY, len(labels) // 2):
        shown = ", ".join(sorted(distinct)[:3])
        raise LabelError(
            f"{where} have {len(distinct):,} different values in {len(labels):,} rows, such as "
            f"{shown[:80]}: they are not classes; name another column by label_column= "
            "(--label-column)"
        )
