"""Registries: what exists, under which name, with which range and direction."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from hardsight.errors import UnknownNameError

Function = TypeVar("Function", bound=Callable[..., Any])
Module = TypeVar("Module", bound=type[Any])


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str:
        """The word it is found by."""
        ...


Spec = TypeVar("Spec", bound=Named)


@dataclass(frozen=True)
class ScoreSpec:
    """What the toolkit knows about one score.

    Attributes:
        name: the column of the table and the word on the command line.
        function: from tensors to ``[N]`` (``[N, C]`` where ``per_class``).
        inputs: names of the function's tensors, in order.
        low: smallest possible value.
        high: largest possible value; ``inf`` where there is none.
        higher_is_harder: the direction, so that ranking code never guesses.
        version: raised whenever the same input would give another number.
        meaning: two sentences for a reader of the report.
        reads: the summary the formula works on, a field of ``scores.Summaries``.
        formula: the same score from that summary; the scoring run computes each summary once
            and gives it to every formula that reads it.
        per_class: the function returns one value per class; such a score is no table column.
        over_dataset: where the value of a row depends on the other rows: makes an object that is
            given the summary and labels of all rows, block by block, by its method ``add``, and
            then gives the values of a block by its method ``values``.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    low: float
    high: float
    higher_is_harder: bool
    version: int
    meaning: str
    reads: str
    formula: Callable[..., Any]
    per_class: bool = False
    over_dataset: Callable[[], Any] | None = None


@dataclass(frozen=True)
class LossSpec:
    """What the toolkit knows about one loss.

    Attributes:
        name: the word in a recipe.
        function: from tensors to the reduced loss.
        module: the ``nn.Module`` twin with the same options.
        inputs: names of the function's tensors, in order.
        version: raised whenever the same input would give another number.
    """

    name: str
    function: Callable[..., Any]
    module: type[Any]
    inputs: tuple[str, ...]
    version: int


@dataclass(frozen=True)
class SummarySpec:
    """What the toolkit knows about one summary of training dynamics.

    Attributes:
        name: the column of the table.
        function: from histories ``[E, N]``, NaN where an example was not seen, to ``[N]``.
        inputs: names of the recorded measures it reads, in order.
        low: smallest possible value.
        high: largest possible value; ``inf`` where there is none.
        higher_is_harder: the direction, so that ranking code never guesses.
        version: raised whenever the same input would give another number.
        meaning: two sentences for a reader of the report.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    low: float
    high: float
    higher_is_harder: bool
    version: int
    meaning: str


class Registry(Mapping[str, Spec], Generic[Spec]):
    """A read-mostly mapping from name to spec whose look-up errors help."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._specs: dict[str, Spec] = {}

    def add(self, spec: Spec) -> None:
        """Register ``spec`` under its name; a name is given once."""
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


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """The known name that looks most like ``name``, or else begins with it, if one does."""
    longer = [other for other in known if len(name) > 2 and other.startswith(name)]
    return next(iter(difflib.get_close_matches(name, known, n=1) or longer), None)


def unknown_name(kind: str, name: str, known: Mapping[str, Any] | list[str]) -> str:
    """Message for a name that does not exist, with the nearest one that does.

    Example:
        >>> unknown_name("score", "avhh", ["avh", "entropy"])
        "unknown score 'avhh'. Did you mean 'avh'? Known: avh, entropy"
    """
    nearest = nearest_name(name, list(known))
    hint = f" Did you mean {nearest!r}?" if nearest else ""
    return f"unknown {kind} {name!r}.{hint} Known: {', '.join(sorted(known))}"


def score(
    name: str,
    *,
    inputs: tuple[str, ...],
    range: tuple[float, float],
    higher_is_harder: bool,
    meaning: str,
    reads: str,
    formula: Callable[..., Any],
    version: int = 1,
    per_class: bool = False,
    over_dataset: Callable[[], Any] | None = None,
) -> Callable[[Function], Function]:
    """Register the decorated function as a score; see :class:`ScoreSpec` for the options."""

    def register(function: Function) -> Function:
        SCORES.add(
            ScoreSpec(
                name=name,
                function=function,
                inputs=inputs,
                low=range[0],
                high=range[1],
                higher_is_harder=higher_is_harder,
                version=version,
                meaning=meaning,
                reads=reads,
                formula=formula,
                per_class=per_class,
                over_dataset=over_dataset,
            )
        )
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


def summary(
    name: str,
    *,
    inputs: tuple[str, ...],
    range: tuple[float, float],
    higher_is_harder: bool,
    meaning: str,
    version: int = 1,
) -> Callable[[Function], Function]:
    """Register the decorated function as a summary of dynamics; see :class:`SummarySpec`."""

    def register(function: Function) -> Function:
        low, high = range
        SUMMARIES.add(
            SummarySpec(name, function, inputs, low, high, higher_is_harder, version, meaning)
        )
        return function

    return register
