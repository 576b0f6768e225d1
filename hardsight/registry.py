"""Registries of scores, losses and summaries, with their names, ranges and directions."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NotRequired, Protocol, TypedDict, TypeVar, Unpack

from hardsight.errors import UnknownNameError

Function = TypeVar("Function", bound=Callable[..., Any])
Module = TypeVar("Module", bound=type[Any])

# indicators of foreign examples, which hardsight.evaluate computes and the card shows
INDICATORS = ("min_energy", "free_energy", "max_probability", "avc")


class Named(Protocol):
    """An entry of a registry."""

    @property
    def name(self) -> str:
        """The name by which it is looked up."""
        ...


Spec = TypeVar("Spec", bound=Named)


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    """Everything about one column of a table, written down once, beside its function.

    Tables, pages, studies and the reference all read it from here, or from the metadata of a table,
    which contains :meth:`facts` and :meth:`shown`.

    Attributes:
        name: the column of the table and the word on the command line.
        function: computes it from tensors or histories, ``[N]``.
        inputs: names of the arguments of the function, in order.
        low: smallest possible value.
        high: largest possible value; ``inf`` if there is none.
        higher_is_harder: the direction, so that ranking code never guesses.
        version: increased whenever the same input would give a different number.
        meaning: two sentences for a reader of the report.
        title: heading of the column; by default the name in words.
        short_title: heading for a narrow place; by default the title.
        unit: its unit, such as ``rad``; empty if there is none.
        judge: rank among the columns that find wrong labels, 1 first; ``None`` for a column that
            cannot. Rank 0 judges a label over all of training, not by the last prediction.
        on_card: rank among the values below a picture in the report; ``None`` if it is not shown.
        needs_label: whether the value depends on the label. If it does not, the wrong predictions
            that look *easiest* are the most confident ones.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    low: float
    high: float
    higher_is_harder: bool
    meaning: str
    version: int = 1
    title: str = ""
    short_title: str = ""
    unit: str = ""
    judge: int | None = None
    on_card: int | None = None
    needs_label: bool = True

    def facts(self) -> dict[str, Any]:
        """The meaning of the column, for the metadata of a table; JSON has no infinity."""
        return {
            "version": self.version,
            "low": self.low if math.isfinite(self.low) else None,
            "high": self.high if math.isfinite(self.high) else None,
            "higher_is_harder": self.higher_is_harder,
            "meaning": self.meaning,
        }

    def shown(self) -> dict[str, Any]:
        """How pages show the column, for the metadata of a table."""
        title = self.title or words_of(self.name)
        return {
            "title": title,
            "short_title": self.short_title or title,
            "unit": self.unit,
            "judge": self.judge,
            "on_card": self.on_card,
            "needs_label": self.needs_label,
        }


@dataclass(frozen=True, kw_only=True)
class ScoreSpec(ColumnSpec):
    """Everything about one score; see :class:`ColumnSpec` for the other attributes.

    Attributes:
        reads: the summary that the formula reads, a field of ``scores.Summaries``.
        formula: computes the same score from that summary. The scoring run computes each summary
            once and passes it to every formula that reads it.
        per_class: whether the function returns one value per class, ``[N, C]``; such a score is
            not a column of the table.
        over_dataset: for a score whose values depend on the other rows: makes an object whose
            method ``add`` gets the summary and the labels of all rows, block by block, and whose
            method ``values`` then returns the values of a block.
        needs_offset: whether the value changes if a number is added to all logits of an example,
            so that it cannot be computed from probabilities.
    """

    reads: str
    formula: Callable[..., Any]
    per_class: bool = False
    over_dataset: Callable[[], Any] | None = None
    needs_offset: bool = False


@dataclass(frozen=True, kw_only=True)
class SummarySpec(ColumnSpec):
    """Everything about one summary of training dynamics; see :class:`ColumnSpec`.

    Its function gets histories ``[E, N]``, with NaN for an epoch in which an example was not seen,
    and returns ``[N]``.
    """


@dataclass(frozen=True)
class LossSpec:
    """Everything about one loss.

    Attributes:
        name: its name in a recipe.
        function: computes the reduced loss from tensors.
        module: the ``nn.Module`` with the same options.
        inputs: names of the function's tensors, in order.
        version: increased whenever the same input would give a different number.
    """

    name: str
    function: Callable[..., Any]
    module: type[Any]
    inputs: tuple[str, ...]
    version: int


def described(specs: Iterable[ColumnSpec]) -> dict[str, dict[str, Any]]:
    """Return the part of a table's metadata that describes its columns."""
    columns = list(specs)
    return {
        "scores": {spec.name: spec.facts() for spec in columns},
        "columns": {spec.name: spec.shown() for spec in columns},
    }


class Registry(Mapping[str, Spec], Generic[Spec]):
    """A mapping from names to specs, whose error for an unknown name suggests the nearest one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._specs: dict[str, Spec] = {}

    def add(self, spec: Spec) -> None:
        """Register ``spec`` under its name, which must not be registered yet."""
        if spec.name in self._specs:
            raise ValueError(f"{self.kind} {spec.name!r} is registered twice")
        self._specs[spec.name] = spec

    def __getitem__(self, name: str) -> Spec:
        try:
            return self._specs[name]
        except KeyError:
            raise UnknownNameError(unknown_name(self.kind, name, self._specs)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


SCORES: Registry[ScoreSpec] = Registry("score")
LOSSES: Registry[LossSpec] = Registry("loss")
SUMMARIES: Registry[SummarySpec] = Registry("summary")


def words_of(name: str) -> str:
    """The name of a column in words, for a column without a title.

    Example:
        >>> words_of("el2n"), words_of("forgetting_events")
        ('EL2N', 'Forgetting events')
    """
    # a short name of one word, such as avh or el2n
    is_acronym = len(name) <= 4 and "_" not in name
    return name.upper() if is_acronym else name.replace("_", " ").capitalize()


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """The known name most similar to ``name``, or one that begins with it; ``None`` if none."""
    # difflib finds a slip of the finger, but not a name that was cut short
    longer = [other for other in known if len(name) > 2 and other.startswith(name)]
    return next(iter(difflib.get_close_matches(name, known, n=1) or longer), None)


def unknown_name(kind: str, name: str, known: Mapping[str, Any] | list[str]) -> str:
    """The message for an unknown name, with the nearest known one.

    Example:
        >>> unknown_name("score", "avhh", ["avh", "entropy"])
        "unknown score 'avhh'. Did you mean 'avh'? Known: avh, entropy"
    """
    nearest = nearest_name(name, list(known))
    hint = f" Did you mean {nearest!r}?" if nearest else ""
    return f"unknown {kind} {name!r}.{hint} Known: {', '.join(sorted(known))}"


class ColumnFacts(TypedDict):
    """Keywords of the decorators, written out for editors; see :class:`ColumnSpec`."""

    higher_is_harder: bool
    meaning: str
    version: NotRequired[int]
    title: NotRequired[str]
    short_title: NotRequired[str]
    unit: NotRequired[str]
    judge: NotRequired[int | None]
    on_card: NotRequired[int | None]
    needs_label: NotRequired[bool]


class ScoreFacts(ColumnFacts):
    """Keywords of :func:`score`, written out for editors; see :class:`ScoreSpec`."""

    reads: str
    formula: Callable[..., Any]
    per_class: NotRequired[bool]
    over_dataset: NotRequired[Callable[[], Any] | None]
    needs_offset: NotRequired[bool]


def score(
    name: str, *, inputs: tuple[str, ...], range: tuple[float, float], **facts: Unpack[ScoreFacts]
) -> Callable[[Function], Function]:
    """Register the decorated function as a score.

    Args:
        name: name of the column.
        inputs: names of its tensors; a score without ``labels`` does not need the label.
        range: smallest and largest possible value.
        facts: all other attributes of :class:`ScoreSpec`.
    """
    stated = {"needs_label": "labels" in inputs, **facts}
    return _registering(SCORES, ScoreSpec, name, inputs, range, stated)


def summary(
    name: str, *, inputs: tuple[str, ...], range: tuple[float, float], **facts: Unpack[ColumnFacts]
) -> Callable[[Function], Function]:
    """Register the decorated function as a summary of dynamics.

    Args:
        name: name of the column.
        inputs: names of the recorded measures it reads.
        range: smallest and largest possible value.
        facts: all other attributes of :class:`SummarySpec`.
    """
    return _registering(SUMMARIES, SummarySpec, name, inputs, range, facts)


def _registering(
    registry: Registry[Any],
    kind: type[ColumnSpec],
    name: str,
    inputs: tuple[str, ...],
    range: tuple[float, float],
    facts: Mapping[str, Any],
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        low, high = range
        registry.add(kind(name=name, function=function, inputs=inputs, low=low, high=high, **facts))
        return function

    return register


def loss(
    name: str,
    *,
    function: Callable[..., Any],
    inputs: tuple[str, ...],
    version: int = 1,
) -> Callable[[Module], Module]:
    """Register the decorated module and its ``function`` as a loss; see :class:`LossSpec`."""

    def register(module: Module) -> Module:
        LOSSES.add(
            LossSpec(name=name, function=function, module=module, inputs=inputs, version=version)
        )
        return module

    return register
