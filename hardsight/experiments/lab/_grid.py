"""The grid of runs: what was measured of every setting and seed, and what a page makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hardsight.experiments.lab._claims import Compared, Question, compared_in_pairs
from hardsight.experiments.lab._result import Cell, Spread, Table, spread

SEED = "seed"
Where = Mapping[str, Any]  # a setting, by key
# a measure; one at a further setting; or what makes a cell from the runs and the names of a row
Column = str | tuple[str, Where] | Callable[..., Cell]
K = TypeVar("K")


@dataclass(frozen=True, eq=False)
class Grid:
    """Numbers by setting and seed.

    Attributes:
        frame: a row per setting and seed; a column per key, ``seed``, and a column per measure,
            which is NaN if the run was lost or has no such number.
        keys: the columns that name a setting.

    Example:
        >>> rows = [{"loss": "CE", "seed": s, "test": 90.0 + s} for s in (0, 1)]
        >>> rows += [{"loss": "EL", "seed": s, "test": 92.0 + 2 * s} for s in (0, 1)]
        >>> grid = Grid.of(rows, "loss")
        >>> grid.values("test", loss="EL"), str(grid.cell("test", loss="CE"))
        ([92.0, 94.0], '90.50 ± 0.71')
        >>> grid.data()
        {'CE': {'test': [90.0, 91.0]}, 'EL': {'test': [92.0, 94.0]}}
        >>> Grid.read(grid.data(), (0, 1), "loss").best("loss", "test")
        'EL'
    """

    frame: pd.DataFrame
    keys: tuple[str, ...]

    @classmethod
    def of(
        cls, rows: Iterable[Mapping[str, Any]], *keys: str, measures: Sequence[str] = ()
    ) -> Grid:
        """A grid of runs: each has its keys, its seed, and numbers if it was not lost.

        Args:
            rows: of the runs.
            keys: names of the keys.
            measures: names of the numbers, if it may be that every run was lost.
        """
        frame = pd.DataFrame(list(rows))
        missing = [name for name in measures if name not in frame]
        frame = frame.reindex(columns=[*frame.columns, *missing])
        numbers = {name: float for name in frame.columns if name not in (*keys, SEED)}
        return cls(frame.astype(numbers), keys)

    @classmethod
    def read(cls, data: Mapping[str, Any], seeds: Sequence[int], *keys: str) -> Grid:
        """The grid of what :meth:`data` wrote, also after a detour by JSON.

        Args:
            data: mappings, one inside the other, by ``keys``; the innermost have a list over seeds
                for each measure, and may have other entries, which are left out.
            seeds: of the lists.
            keys: names of the levels.
        """
        settings = list(_leaves(data, len(keys)))
        every = [pair for _, leaf in settings for pair in leaf.items()]
        measures = dict.fromkeys(name for name, value in every if _is_per_seed(value, seeds))
        rows = [
            dict(zip(keys, setting, strict=True))
            | {SEED: seed}
            | {name: _number(leaf.get(name), at) for name in measures}
            for setting, leaf in settings
            for at, seed in enumerate(seeds)
        ]
        return cls.of(rows, *keys)

    @property
    def measures(self) -> list[str]:
        """Names of the measures."""
        return [name for name in self.frame.columns if name not in (*self.keys, SEED)]

    def names(self, key: str) -> list[Any]:
        """The settings of one key, in the order of the runs."""
        return list(dict.fromkeys(self.frame[key]))

    def at(self, **where: Any) -> Grid:
        """The part with these settings, without their keys.

        Raises:
            KeyError: there is no such setting.
        """
        rows = self._rows(where)
        columns = [name for name in self.frame.columns if name not in where]
        return Grid(self.frame.loc[rows, columns], tuple(k for k in self.keys if k not in where))

    def _rows(self, where: Where) -> NDArray[np.bool_]:
        """Which rows have these settings.

        Raises:
            KeyError: there is no such setting.
        """
        rows = np.ones(len(self.frame), dtype=bool)
        for key, name in where.items():
            rows &= self.frame[key].to_numpy() == name
        if not rows.any():
            raise KeyError(where)
        return rows

    def only(self, **among: Iterable[Any]) -> Grid:
        """The part whose settings are among these."""
        frame = self.frame
        for key, names in among.items():
            frame = frame[frame[key].isin(list(names))]
        return Grid(frame, self.keys)

    def joined(self, other: Grid) -> Grid:
        """The runs of both; they have the same keys."""
        return Grid(pd.concat([self.frame, other.frame], ignore_index=True), self.keys)

    def mean_over(self, key: str) -> Grid:
        """Each measure averaged over the settings of a key, seed by seed; NaN if one is."""
        keys = tuple(name for name in self.keys if name != key)
        groups = self.frame.drop(columns=key).groupby([*keys, SEED], sort=False, as_index=False)
        return Grid(groups.agg(_whole_mean), keys)

    def values(self, measure: str, **where: Any) -> list[float]:
        """A measure of one setting, one value per seed."""
        left = [key for key in self.keys if key not in where]
        assert not left, f"expected one setting, got several of {', '.join(left)}"
        # pages ask for thousands of values, and a frame of each would take most of their time
        values: list[float] = self.frame[measure].to_numpy()[self._rows(where)].tolist()
        return values

    def cell(self, measure: str, **where: Any) -> Cell:
        """Mean and spread over the seeds of one setting; ``None`` if it is not in the grid."""
        try:
            values = self.values(measure, **where)
        except KeyError:
            return None
        summary = spread(values)
        return summary if summary.n else f"none of {len(values)} ended"

    def best(self, key: str, measure: str, **where: Any) -> Any:
        """The setting of a key with the largest mean, of those that lost the fewest runs.

        One that lost more runs than another is not chosen: the mean of what is left of it says
        nothing of the runs that it loses. Of equal ones it is the first.
        """
        chosen = self.at(**where) if where else self

        def rank(name: Any) -> tuple[int, float]:
            summary = spread(chosen.values(measure, **{key: name}))
            return -summary.lost, summary.mean if summary.n else -math.inf

        return max(chosen.names(key), key=rank)

    def lost(self, measure: str) -> dict[Any, int]:
        """Runs of each setting without a number: by its name, or by all of them together."""
        return {
            setting[0] if len(setting) == 1 else setting: int(runs[measure].isna().sum())
            for setting, runs in self.frame.groupby(list(self.keys), sort=False)
        }

    def series(self, measure: str, along: str) -> dict[Any, Spread]:
        """Mean and spread by the settings of a key; one whose every run was lost is left out."""
        points = {name: spread(self.values(measure, **{along: name})) for name in self.names(along)}
        return {name: point for name, point in points.items() if point.n}

    def compared(self, measure: str, pairs: Mapping[K, tuple[Where, Where]]) -> dict[K, Compared]:
        """Pairs of settings by a measure, paired over seeds, with Holm's correction over them."""
        return compared_in_pairs({
            key: (self.values(measure, **first), self.values(measure, **second))
            for key, (first, second) in pairs.items()
        })  # fmt: skip

    def question(
        self, says: str, paper: str, measure: str, first: Where, second: Where, *,
        names: tuple[str, str] | None = None, told: str = "{}", **more: Any,
    ) -> Question:  # fmt: skip
        """Whether one setting has more of a measure than another.

        Args:
            says: see :class:`Question`.
            paper: see :class:`Question`.
            measure: that is compared.
            first: the setting that the sentence speaks of.
            second: the other one.
            names: of both, if their means are to stand before the comparison.
            told: see :class:`Question`.
            more: of :class:`Question`.
        """
        if names:
            pairs = zip(names, (first, second), strict=True)
            means = ", ".join(f"{name} {self.cell(measure, **where)}" for name, where in pairs)
            told = told.replace("{}", f"{means}; {{}}")
        ours, theirs = self.values(measure, **first), self.values(measure, **second)
        return Question(says, paper, ours, theirs, told=told, **more)

    def across(self, key: str, measure: str, titles: Mapping[Any, str]) -> dict[str, Column]:
        """Columns of a table: a measure at each setting of a key, under its title."""
        return {title: (measure, {key: name}) for name, title in titles.items()}

    def table(
        self,
        title: str,
        rows: Mapping[str, str],
        columns: Mapping[str, Column],
        *,
        note: str = "",
        paper: Sequence[Sequence[Cell]] | None = None,
    ) -> Table:
        """A table with a row per setting.

        Args:
            title: what it shows.
            rows: the keys that name a row, each with its heading.
            columns: by heading.
            note: see :class:`Table`.
            paper: see :class:`Table`.
        """
        settings = list(dict.fromkeys(zip(*(self.frame[key] for key in rows), strict=True)))
        lines = []
        for setting in settings:
            runs = self.at(**dict(zip(rows, setting, strict=True)))
            lines.append([*setting, *(runs._cell(column, setting) for column in columns.values())])
        return Table(title, (*rows.values(), *columns), lines, note, paper or None)

    def _cell(self, column: Column, setting: tuple[Any, ...]) -> Cell:
        if isinstance(column, str):
            return self.cell(column)
        return (
            self.cell(column[0], **column[1])
            if isinstance(column, tuple)
            else column(self, *setting)
        )

    def data(self, *, lost: str = "") -> dict[str, Any]:
        """Mappings, one inside the other, by the keys; innermost a list over seeds per measure.

        Args:
            lost: the measure that a lost run does not have; its number is then given as well.
        """
        if not self.keys:
            values: dict[str, Any] = {name: self.values(name) for name in self.measures}
            return values | ({"lost": int(self.frame[lost].isna().sum())} if lost else {})
        key = self.keys[0]
        return {str(name): self.at(**{key: name}).data(lost=lost) for name in self.names(key)}


def _whole_mean(values: pd.Series[float]) -> float:
    """The mean, if none is missing: the mean of what is left would be that of other settings."""
    return float(values.mean(skipna=False))


def _leaves(data: Mapping[str, Any], depth: int) -> Iterable[tuple[tuple[str, ...], Any]]:
    if depth == 0:
        yield (), data
        return
    for name, part in data.items():
        for setting, leaf in _leaves(part, depth - 1):
            yield (name, *setting), leaf


def _is_per_seed(value: Any, seeds: Sequence[int]) -> bool:
    is_list = isinstance(value, list) and len(value) == len(seeds)
    return is_list and all(entry is None or isinstance(entry, int | float) for entry in value)


def _number(values: Any, at: int) -> float:
    value = None if values is None else values[at]
    return math.nan if value is None else float(value)
