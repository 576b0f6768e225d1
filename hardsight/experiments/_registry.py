"""Every table and figure that can be made again, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from hardsight.registry import Registry

if TYPE_CHECKING:
    from hardsight.experiments._lab import Lab
    from hardsight.experiments._result import Result

SCALES = ("smoke", "paper")


@dataclass(frozen=True)
class Experiment:
    """What is known about one experiment.

    Attributes:
        name: the word on the command line, and the folder of its results.
        title: one line.
        reproduces: the paper with the number of its table or figure.
        scales: settings by scale: ``smoke`` on a CPU in seconds, ``paper`` on a GPU. A setting is
            a frozen dataclass; its fields are the keys that can be overridden.
        function: from a lab and a setting to a result; its docstring says what is done.
    """

    name: str
    title: str
    reproduces: str
    scales: Mapping[str, Any]
    function: Callable[[Lab, Any], Result]

    @property
    def about(self) -> str:
        """The docstring of its function, as one text."""
        return " ".join((self.function.__doc__ or "").split())


EXPERIMENTS: Registry[Experiment] = Registry("experiment")

# the studies of the AVH paper go by their plain names, too
SHORT_NAMES = {
    "human": "avh-human",
    "dynamics": "avh-dynamics",
    "geometry": "avh-geometry",
    "degradation": "avh-degradation",
}


def experiment(
    name: str, *, title: str, reproduces: str, scales: Mapping[str, Any]
) -> Callable[[Callable[[Lab, Any], Result]], Callable[[Lab, Any], Result]]:
    """Register the decorated function as an experiment; see :class:`Experiment`."""
    assert set(scales) == set(SCALES), f"{name}: expected settings for {SCALES}"
    assert all(is_dataclass(setting) and hasattr(setting, "seeds") for setting in scales.values())

    def register(function: Callable[[Lab, Any], Result]) -> Callable[[Lab, Any], Result]:
        EXPERIMENTS.add(Experiment(name, title, reproduces, scales, function))
        return function

    return register
