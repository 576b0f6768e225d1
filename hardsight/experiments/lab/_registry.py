"""Every table and figure that can be made again, by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from string import Formatter
from typing import Any

from hardsight.experiments.lab._claims import Question, judged
from hardsight.experiments.lab._gates import Gate, gated_claims, networks_table
from hardsight.experiments.lab._lab import Lab
from hardsight.experiments.lab._result import Claim, Result, Table, plain
from hardsight.registry import Registry

TablesAndQuestions = tuple[Sequence[Table], Sequence[Question | Claim]]
Asks = Callable[[Any, Mapping[str, Any]], TablesAndQuestions]
Gates = Callable[[Any, Mapping[str, Any]], Sequence[Gate]]

SCALES = ("smoke", "short", "paper")
_NEEDED = ("smoke", "short")


@dataclass(frozen=True)
class Experiment:
    """What is known about one experiment.

    Attributes:
        name: the word on the command line, and the folder of its results.
        title: one line.
        reproduces: the paper with the number of its table or figure.
        scales: settings by scale: ``smoke`` on a CPU in seconds; ``short``, the paper's question
            with fewer epochs and smaller networks, on a GPU in minutes; ``paper``, the paper's own
            networks, epochs and seeds, which an experiment may not have yet. A setting is a frozen
            dataclass; its fields are the keys that can be overridden.
        function: from a lab and a setting to a result; its docstring says what is done. ``{key}``
            in it is replaced by what the setting has under that key, or as a property.
        measures_by_seed: whether measuring its models takes long and can be divided by seed.
        asks: from a setting and the data of a result, as JSON has it, to tables and questions. The
            function then leaves these out, and a stored result can be judged again.
        gates: from the same to the networks of the page, if all its claims rest on all of them and
            none is judged unless these are good enough.
    """

    name: str
    title: str
    reproduces: str
    scales: Mapping[str, Any]
    function: Callable[[Lab, Any], Result]
    measures_by_seed: bool = False
    asks: Asks | None = None
    gates: Gates | None = None

    def result(self, lab: Lab, setting: Any) -> Result:
        """Run it: measure, and judge what is written of that."""
        result = self.function(lab, setting)
        # as it is read back, so that judging the file again gives the same page
        return self.judged(setting, result, plain(result.data))

    def judged(self, setting: Any, result: Result, data: Mapping[str, Any]) -> Result:
        """A result with the rules of today: as far as its data allows that."""
        tables, claims = result.tables, result.claims
        if self.asks is not None:
            tables, claims = self.judge(setting, data)
        if self.gates is not None:
            table = networks_table(gates := self.gates(setting, data))
            tables = [*(one for one in tables if one.title != table.title), table]
            claims = gated_claims(claims, gates)
        return replace(result, tables=tables, claims=claims)

    def judge(
        self, setting: Any, data: Mapping[str, Any]
    ) -> tuple[Sequence[Table], Sequence[Claim]]:
        """Tables and claims of a result's data, by the one rule; needs ``asks``."""
        assert self.asks is not None, f"{self.name} keeps too little to be judged again"
        tables, asked = self.asks(setting, data)
        return tables, judged(asked)

    @property
    def fullest(self) -> str:
        """The scale nearest to the paper that there is."""
        return next(scale for scale in reversed(SCALES) if scale in self.scales)

    def about(self, setting: Any) -> str:
        """The docstring of its function with the numbers of a setting, a line per paragraph.

        Args:
            setting: of one of the scales, or with keys overridden.
        """
        paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(self.function.__doc__ or ""))
        text = "\n\n".join(_joined(paragraph) for paragraph in paragraphs)
        return text.format_map({key: _words(getattr(setting, key)) for key in _keys(text)})


def _joined(paragraph: str) -> str:
    """A paragraph of a docstring without its line breaks, except before the entries of a list."""
    return "\n".join(" ".join(entry.split()) for entry in re.split(r"\n(?=- )", paragraph))


def _keys(text: str) -> list[str]:
    return [key for _, key, _, _ in Formatter().parse(text) if key]


# what a reader calls the data that settings name
DATASETS = {
    "builtin:digits": "the small digits",
    "cifar10": "CIFAR-10",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "pacs": "PACS",
    "svhn": "SVHN",
}


def _words(value: Any) -> str:
    """A value of a setting within a sentence.

    Example:
        >>> _words((0.1, 10.0)), _words(60000), _words(None), _words("mnist"), _words(())
        ('0.1, 10', '60,000', 'all', 'MNIST', 'none')
    """
    if isinstance(value, tuple):
        return ", ".join(_words(entry) for entry in value) or "none"
    if value is None:
        return "all"
    if isinstance(value, str):
        return DATASETS.get(value, value)
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


EXPERIMENTS: Registry[Experiment] = Registry("experiment")

# the studies of the AVH paper go by their plain names, too
SHORT_NAMES = {
    "human": "avh-human",
    "dynamics": "avh-dynamics",
    "geometry": "avh-geometry",
    "degradation": "avh-degradation",
}


def experiment(
    name: str,
    *,
    title: str,
    reproduces: str,
    scales: Mapping[str, Any],
    measures_by_seed: bool = False,
    asks: Asks | None = None,
    gates: Gates | None = None,
) -> Callable[[Callable[[Lab, Any], Result]], Callable[[Lab, Any], Result]]:
    """Register the decorated function as an experiment; see :class:`Experiment`."""
    assert set(_NEEDED) <= set(scales) <= set(SCALES), f"{name}: expected settings for {_NEEDED}"
    assert all(is_dataclass(setting) and hasattr(setting, "seeds") for setting in scales.values())

    def register(function: Callable[[Lab, Any], Result]) -> Callable[[Lab, Any], Result]:
        for key in _keys(function.__doc__ or ""):
            assert hasattr(scales["short"], key), f"{name}: the setting has no {key!r}"
        EXPERIMENTS.add(
            Experiment(name, title, reproduces, scales, function, measures_by_seed, asks, gates)
        )
        return function

    return register
