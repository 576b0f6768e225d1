"""Settings of an adaptation that play no part in it: said at the start."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from hardsight.errors import HardsightWarning
from hardsight.run.adapt._config import ENTROPY, THRESHOLD, AdaptConfig

# of one rule alone; the baselines run with the settings of the rules they are compared with
_OF_RULES = {
    "alpha": "crst-lrent",
    "mrkld_weight": "crst-mrkld",
    "entropy_weight": ENTROPY,
    "threshold": THRESHOLD,
}


def say_what_plays_no_part(config: AdaptConfig, *, is_trained: bool) -> None:
    """Warn of every setting that was changed and changes nothing.

    Args:
        config: the settings.
        is_trained: whether the model is not trained on the source any more.
    """
    for text in _without_effect(config, is_trained=is_trained):
        warnings.warn(text, HardsightWarning, stacklevel=4)


def _without_effect(config: AdaptConfig, *, is_trained: bool) -> Iterator[str]:
    rules = " and ".join(map(repr, config.rules))
    asked = {*config.rules, config.compare}
    for key, rule in _OF_RULES.items():
        if rule not in asked and getattr(config, key) != getattr(AdaptConfig, key):
            yield f"{key} plays no part with rule = {rules}, only with {rule!r}"
    if config.rules == (config.compare,):
        rule = config.rules[0]
        yield (
            f"compare = {rule!r} is the rule itself; it is compared with "
            f"{config.compared_with(rule)!r} instead"
        )
    stage = AdaptConfig.pretrain
    changed = (config.pretrain.optimizer, config.pretrain.schedule)
    if is_trained and changed != (stage.optimizer, stage.schedule):
        yield "pretrain plays no part: the model is a trained one, or its epochs are 0"
    if is_trained and config.source.test_split is not None:
        yield "source.test_split plays no part: nothing is trained on the source alone"
