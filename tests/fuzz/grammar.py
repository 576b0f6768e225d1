"""Which kind of case a number stands for."""

from __future__ import annotations

from tests.fuzz.cases import Maker
from tests.fuzz.draw import Draw
from tests.fuzz.scoring import score_examples, score_stored
from tests.fuzz.training import train_by_recipe

# kind -> how many of 100 cases
_SHARES: dict[Maker, int] = {score_examples: 50, score_stored: 30, train_by_recipe: 20}


def maker_of(draw: Draw) -> Maker:
    """What makes the case of a draw; its kind is no choice that shrinking may take back."""
    kinds = [maker for maker, share in _SHARES.items() for _ in range(share)]
    return kinds[draw.whole("kind of case", 0, len(kinds) - 1)]
