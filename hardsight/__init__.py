"""Which examples your classifier finds hard, why, and how to train on that knowledge.

Importing this package is cheap: subpackages and the verbs below load when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hardsight import data as data
    from hardsight import errors as errors
    from hardsight import evaluate as evaluate
    from hardsight import exchange as exchange
    from hardsight import experiments as experiments
    from hardsight import geometry as geometry
    from hardsight import heads as heads
    from hardsight import kernels as kernels
    from hardsight import losses as losses
    from hardsight import models as models
    from hardsight import patch as patch
    from hardsight import ranks as ranks
    from hardsight import scores as scores
    from hardsight import selection as selection
    from hardsight import selftrain as selftrain
    from hardsight import stats as stats
    from hardsight import tracking as tracking
    from hardsight.exchange import apply_patch as apply_patch
    from hardsight.heads import find_head as find_head
    from hardsight.patch import read_patch as read_patch
    from hardsight.report import write_card as write_card
    from hardsight.report import write_report as write_report
    from hardsight.review import review as review
    from hardsight.run.adapt import adapt as adapt
    from hardsight.run.evaluate import evaluation_card as evaluation_card
    from hardsight.run.queue import queue as queue
    from hardsight.run.score import score as score
    from hardsight.run.study import study_degradation as study_degradation
    from hardsight.run.study import study_dynamics as study_dynamics
    from hardsight.run.study import study_human as study_human
    from hardsight.run.train import train as train
    from hardsight.selection import select as select
    from hardsight.table import read_table as read_table

_SUBPACKAGES = (
    "data",
    "errors",
    "evaluate",
    "exchange",
    "experiments",
    "geometry",
    "heads",
    "kernels",
    "losses",
    "models",
    "patch",
    "ranks",
    "report",
    "review",
    "scores",
    "selection",
    "selftrain",
    "stats",
    "table",
    "tracking",
)
_VERBS = {
    "adapt": "hardsight.run.adapt",
    "apply_patch": "hardsight.exchange",
    "evaluation_card": "hardsight.run.evaluate",
    "find_head": "hardsight.heads",
    "read_patch": "hardsight.patch",
    "queue": "hardsight.run.queue",
    "read_table": "hardsight.table",
    "score": "hardsight.run.score",
    "select": "hardsight.selection",
    "study_degradation": "hardsight.run.study",
    "study_dynamics": "hardsight.run.study",
    "study_human": "hardsight.run.study",
    "train": "hardsight.run.train",
    "write_card": "hardsight.report",
    "write_report": "hardsight.report",
}

__all__ = ["__version__", *_SUBPACKAGES, *_VERBS]


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        # kept, so that Python asks here once for each name
        globals()[name] = getattr(importlib.import_module(_VERBS[name]), name)
        return globals()[name]
    if name in _SUBPACKAGES:
        return importlib.import_module(f"hardsight.{name}")
    raise AttributeError(f"module 'hardsight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
