"""Which kind of case a number stands for."""

from __future__ import annotations

from tests.fuzz.cases import Maker
from tests.fuzz.draw import Draw
from tests.fuzz.graphs import score_graphs
from tests.fuzz.scoring import score_examples, score_stored
from tests.fuzz.texts import score_texts
from tests.fuzz.training import train_by_recipe
from tests.fuzz.verbs import (
    adapt,
    any_flags,
    evaluate,
    named_model,
    report,
    study_degradation,
    study_human,
)

# kind -> how many of 1,000 cases; by what they cost and by what they can find
_SHARES: dict[Maker, int] = {
    score_examples: 440,
    score_texts: 35,
    score_graphs: 15,
    score_stored: 250,
    train_by_recipe: 150,
    any_flags: 60,
    report: 12,
    study_human: 10,
    evaluate: 10,
    adapt: 10,
    study_degradation: 4,
    named_model: 4,
}


def maker_of(draw: Draw) -> Maker:
    """What makes the case of a draw; its kind is not a choice that shrinking may take back."""
    at = draw.whole("kind of case", 0, sum(_SHARES.values()) - 1)
    for maker, share in _SHARES.items():
        if at < share:
            return maker
        at -= share
    raise AssertionError(at)
