"""The data of an evaluation card: what is evaluated, what is foreign, and what was trained on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hardsight.data import (
    DATASETS,
    EmbeddingSource,
    ExampleSource,
    open_source,
    unlabelled_source,
)
from hardsight.errors import DataError, HardsightError, OptionError
from hardsight.run.evaluate._subjects import Subject, numbered_alike
from hardsight.run.loop import ClassOrder, decoded_once, length_of


@dataclass(frozen=True)
class Sets:
    """The data of a card: the evaluated data, foreign data, and the training data."""

    data: ExampleSource
    foreign: list[ExampleSource]
    train: ExampleSource | None
    splits: tuple[str | None, str | None, str | None]

    def numbered_as(self, order: ClassOrder, subject: Subject, how: str) -> Sets:
        """The same sets, with the training data numbered like the evaluated data."""
        if self.train is None:
            return self
        return replace(self, train=numbered_alike(self.train, self.data, order, subject, how))

    def fingerprints(self) -> dict[str, str | None]:
        """A fingerprint of each set; ``None`` for a set that was not named."""
        sets = {
            "data": [self.data],
            "foreign data": self.foreign,
            "training data": [] if self.train is None else [self.train],
        }
        return {
            what: " ".join(source.fingerprint() for source in sources) or None
            for what, sources in sets.items()
        }

    def facts(self, order: ClassOrder) -> dict[str, Any]:
        """What the card says about its data."""
        split, ood_split, train_split = self.splits
        names = list(order.names)
        train = self.train
        return {
            "data": {**_data_facts(self.data, split, names), "class_order": order.facts()},
            "ood": [_data_facts(source, ood_split, None) for source in self.foreign],
            "train": None if train is None else _data_facts(train, train_split, None),
        }


def opened_sets(
    data: Any,
    foreign: list[Any],
    train: Any,
    *,
    splits: tuple[str | None, str | None, str | None],
    classes: Sequence[str] | None,
    data_root: str | os.PathLike[str] | None,
    columns: tuple[str | None, str | None],
) -> Sets:
    """Open all sets; ``splits`` are those of the data, the foreign and the training data."""
    split, ood_split, train_split = splits
    roots = _roots(data_root, data, *foreign, train)
    return Sets(
        data=_examples(data, split, classes, roots, columns),
        foreign=[_foreign(data_set, ood_split, roots, columns) for data_set in foreign],
        train=None if train is None else _examples(train, train_split, classes, roots, columns),
        splits=splits,
    )


def _roots(root: str | os.PathLike[str] | None, *data: Any) -> dict[str, Any]:
    """The root of each named dataset among ``data``.

    Raises:
        OptionError: none of them is a named dataset, so a root would have no effect.
    """
    named = [name for name in data if isinstance(name, str) and name in DATASETS]
    if root is not None and not named:
        raise OptionError(f"data_root is for named datasets ({', '.join(DATASETS)}); leave it out")
    return {} if root is None else dict.fromkeys(named, root)


def _examples(
    data: Any,
    split: str | None,
    classes: Sequence[str] | None,
    roots: dict[str, Any],
    columns: tuple[str | None, str | None],
) -> ExampleSource:
    root = roots.get(data) if isinstance(data, str) else None
    opened = open_source(
        data, split=split, classes=classes, data_root=root,
        text_column=columns[0], label_column=columns[1],
    )  # fmt: skip
    source = decoded_once(opened)
    if isinstance(source, EmbeddingSource):
        raise OptionError(
            f"{source.spec} holds embeddings; an evaluation needs examples a model can be run on"
        )
    if source.kind is not None and source.kind.task != "classify":
        raise OptionError(
            f"{source.spec} does not have a label for each example, so there is nothing to "
            "evaluate; `hardsight score` gives each of its tokens a row"
        )
    return source


def _foreign(
    data: Any, split: str | None, roots: dict[str, Any], columns: tuple[str | None, str | None]
) -> ExampleSource:
    """Open foreign data, which may have no labels, since none are used."""
    try:
        return _examples(data, split, None, roots, columns)
    except DataError:
        with suppress(HardsightError):
            source = unlabelled_source(data, split=split, text_column=columns[0])
            if isinstance(source, ExampleSource):
                return decoded_once(source)
        raise


def _data_facts(
    source: ExampleSource, split: str | None, names: list[str] | None
) -> dict[str, Any]:
    facts = {
        "spec": source.spec,
        "split": split,
        "fingerprint": source.fingerprint(),
        "rows": length_of(source),
    }
    return facts if names is None else {**facts, "classes": names, "named": len(source.classes)}
