"""The settings of an adaptation, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hardsight._checks import warn
from hardsight.config import FromFile
from hardsight.errors import ConfigError, OptionError, UnknownNameError
from hardsight.registry import unknown_name
from hardsight.run.train import (
    AugmentConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from hardsight.selftrain import COMPARISONS, EMPTIES, MRKLD_RULES, RULES, SOFT_RULES

SOURCE_ONLY, ENTROPY, THRESHOLD = "source-only", "entropy", "threshold"
BN_ONLY = "bn-only"
BASELINES = (SOURCE_ONLY, BN_ONLY, ENTROPY, THRESHOLD)
UNSELECTIVE = (BN_ONLY, ENTROPY)  # they run all target images through the network, without labels
ADAPT_RULES = (*RULES, *BASELINES)
_SOURCE_EPOCHS = 10
# settings that only some rules use; baselines run with those of the rules they are compared with
_OF_RULES = {
    "alpha": SOFT_RULES,
    "mrkld_weight": MRKLD_RULES,
    "entropy_weight": (ENTROPY,),
    "threshold": (THRESHOLD,),
}


@dataclass(frozen=True)
class TargetConfig:
    """Table ``[target]``; a plain string is its name.

    Attributes:
        name: as ``hardsight.data.open_source`` takes it; with ``unlabelled`` also a folder of
            images without class folders.
        split: to adapt to.
        root: folder above those of named datasets.
        classes: names of the classes, position = label; those of the source by default.
        unlabelled: never read a label, not even to evaluate; then any folder of images works.
    """

    SHORTHAND: ClassVar[str] = "name"
    name: str
    split: str | None = None
    root: str | None = None
    classes: tuple[str, ...] | None = None
    unlabelled: bool = False


@dataclass(frozen=True)
class StageConfig:
    """Tables ``[pretrain]`` and ``[retrain]``; a plain number is their epochs.

    Attributes:
        epochs: passes over the source, or over source and selected target in every round. For
            ``pretrain`` the default is 0 if the model has been trained (it is the folder of a run,
            or has weights), else 10.
        optimizer: the optimizer, with a fresh state in every round.
        schedule: of the learning rate; starts again in every round.
    """

    SHORTHAND: ClassVar[str] = "epochs"
    epochs: int | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)


_RETRAIN = StageConfig(epochs=2, optimizer=OptimizerConfig(lr=0.01))


@dataclass(frozen=True)
class AdaptConfig(FromFile):
    """The keys of an adaptation's TOML file, and the keywords of :func:`hardsight.adapt`.

    Attributes:
        model: what to adapt: a network by name or ``file.py:factory``, which is trained on the
            source first, or the folder of a trained model.
        source: labelled data: folder of class folders, ``.csv`` of path,label, ``.parquet``, idx,
            or a name such as ``pacs``.
        target: the domain to adapt to: data as for ``source``. Its labels, if it has any, are
            only used to evaluate.
        out: folder of the run.
        rule: which target examples to trust: ``cbst``, ``cbst+avh``, ``avc``, ``crst-mrkld``,
            ``crst-lrent``, ``crst`` (the last two together), or a baseline: ``source-only`` (no
            round at all), ``entropy`` (minimise the entropy of all target examples), ``bn-only``
            (the same steps without the entropy: the target only affects the statistics of batch
            normalisation), ``threshold`` (one fixed threshold for all classes). Several rules may
            be named; all start from the same source model.
        rounds: of predicting, selecting and retraining; 7 reach the largest portion.
        portion: share of each class that is selected in the first round, in (0, 1].
        portion_step: added in each later round.
        portion_max: largest portion, in (0, 1].
        empty: see :func:`hardsight.selftrain.select`.
        comparison: see :func:`hardsight.selftrain.select`.
        alpha: temperature of the soft labels of ``crst-lrent`` and ``crst``.
        mrkld_weight: of the regulariser of ``crst-mrkld`` and ``crst``; .1 in the paper.
        entropy_weight: of the entropy in ``entropy``.
        threshold: of ``threshold``, in (0, 1].
        compare: a second rule that is applied to the same predictions in every round; examples
            that only one of the two selects are kept with thumbnails. By default ``cbst+avh`` for
            ``cbst`` and ``cbst`` for all others.
        examples: thumbnails per side of that comparison.
        keep_models: keep the weights of every round, not only of the last.
        pretrain: the training on the source.
        retrain: the training of every round.
        batch_size: examples per step.
        seed: seed of weights, order and augmentation.
        augment: of training images.
        head: name of the classifier layer, if it is not found automatically.
        output: the model's output that holds the logits, by key, attribute or position, if it
            cannot be told by the number of classes.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``; one device.
        precision: as in :class:`hardsight.run.train.TrainConfig`.
        channels_last: as there.
        deterministic: as there.
        resident: as there; images of both domains are decoded once for all rounds and rules.
        workers: as there.
        resume: continue the unfinished run in ``out``, with the same settings.
        overwrite: replace the adaptation in ``out``, finished or not; other files there stay.
    """

    model: ModelConfig
    source: DataConfig
    target: TargetConfig
    out: str
    rule: str | tuple[str, ...] = "cbst"
    rounds: int = 7
    portion: float = 0.2
    portion_step: float = 0.05
    portion_max: float = 0.5
    empty: str = "never"
    comparison: str = ">="
    alpha: float = 0.25
    mrkld_weight: float = 0.1
    entropy_weight: float = 0.1
    threshold: float = 0.9
    compare: str | None = None
    examples: int = 12
    keep_models: bool = True
    pretrain: StageConfig = StageConfig()
    retrain: StageConfig = _RETRAIN
    batch_size: int = 128
    seed: int = 0
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    head: str | None = None
    output: int | str | None = None
    device: str = "auto"
    precision: str = "auto"
    channels_last: bool | None = None
    deterministic: bool = False
    resident: bool | None = None
    workers: int | None = None
    resume: bool = False
    overwrite: bool = False

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules to run."""
        return (self.rule,) if isinstance(self.rule, str) else self.rule

    def __post_init__(self) -> None:
        _check_rules(self.rules, self.compare)
        for key in ("portion", "portion_max", "threshold"):
            value = getattr(self, key)
            if not 0 < value <= 1:
                raise OptionError(f"expected {key} in (0, 1], got {value}")
        if not 0 <= self.portion_step < 1:
            raise OptionError(f"expected portion_step in [0, 1), got {self.portion_step}")
        _check_rule_options(self)
        if self.portion > self.portion_max:
            raise OptionError(
                f"expected portion to be at most portion_max, got {self.portion} and "
                f"{self.portion_max}"
            )
        for key, least in (("rounds", 1), ("examples", 0)):
            if getattr(self, key) < least:
                raise ConfigError(
                    f"expected {key} to be at least {least}, got {getattr(self, key)}"
                )
        if (self.retrain.epochs or 0) < 1:
            raise ConfigError(
                f"expected retrain.epochs to be at least 1, got {self.retrain.epochs}"
            )
        for stage in (self.pretrain, self.retrain):
            # building the recipe checks all other settings
            self.recipe(stage, out=self.out, epochs=max(1, stage.epochs or 1))

    def portion_of(self, round_number: int) -> float:
        """Share of each class in a round, counted from 1.

        Example:
            >>> config = AdaptConfig(ModelConfig("m"), DataConfig("s"), TargetConfig("t"), "o")
            >>> [config.portion_of(r) for r in (1, 2, 7, 9)]
            [0.2, 0.25, 0.5, 0.5]
        """
        grown = self.portion + (round_number - 1) * self.portion_step
        return min(self.portion_max, round(grown, 10))  # without rounding errors of 0.2 + 0.05 ...

    def compared_with(self, rule: str) -> str:
        """The rule whose selection is compared with that of ``rule``."""
        if self.compare is not None and self.compare != rule:
            return self.compare
        return "cbst+avh" if rule == "cbst" else "cbst"

    def recipe(self, stage: StageConfig, *, out: str, epochs: int, **more: Any) -> TrainConfig:
        """A stage as a training recipe."""
        return TrainConfig(
            **{
                "model": self.model,
                "data": self.source,
                "out": out,
                "epochs": epochs,
                "optimizer": stage.optimizer,
                "schedule": stage.schedule,
                "batch_size": self.batch_size,
                "seed": self.seed,
                "augment": self.augment,
                "head": self.head,
                "output": self.output,
                "device": self.device,
                "precision": self.precision,
                "channels_last": self.channels_last,
                "deterministic": self.deterministic,
                "resident": self.resident,
                "workers": self.workers,
                "resume": True,
                **more,
            }
        )

    def source_epochs(self, *, is_trained: bool) -> int:
        """Epochs on the source; none by default if the model has been trained."""
        if self.pretrain.epochs is not None:
            return self.pretrain.epochs
        return 0 if is_trained else _SOURCE_EPOCHS


def _check_rule_options(config: AdaptConfig) -> None:
    """Raise now rather than in the first round, after the source model has been trained."""
    for key, known in (("empty", EMPTIES), ("comparison", COMPARISONS)):
        value = getattr(config, key)
        if value not in known:
            raise ConfigError(unknown_name(key, value, list(known)))
    if not config.alpha > 0:
        raise OptionError(f"expected alpha above 0, got {config.alpha}")
    for key in ("mrkld_weight", "entropy_weight"):
        value = getattr(config, key)
        if not value >= 0:
            raise OptionError(f"expected {key} of at least 0, got {value}")
    if ENTROPY in config.rules and not config.entropy_weight:
        raise OptionError("the rule 'entropy' needs an entropy_weight above 0, got 0")


def _check_rules(rules: Sequence[str], compare: str | None) -> None:
    if not rules:
        raise ConfigError("expected at least one rule, got none, e.g. rule = 'cbst'")
    for rule in rules:
        if rule not in ADAPT_RULES:
            raise UnknownNameError(unknown_name("rule", rule, list(ADAPT_RULES)))
    if len(set(rules)) < len(rules):
        raise ConfigError(f"expected every rule once, got {', '.join(rules)}")
    if compare is not None and compare not in RULES:
        raise UnknownNameError(unknown_name("rule to compare with", compare, list(RULES)))


def say_what_plays_no_part(config: AdaptConfig, *, is_trained: bool) -> None:
    """Warn of every setting that was changed but has no effect.

    Args:
        config: the settings.
        is_trained: whether the model has been trained, so that there is no training on the source.
    """
    for text in _without_effect(config, is_trained=is_trained):
        warn(text)


def _without_effect(config: AdaptConfig, *, is_trained: bool) -> Iterator[str]:
    rules = " and ".join(map(repr, config.rules))
    asked = {*config.rules, config.compare}
    for key, of_rules in _OF_RULES.items():
        if not asked & set(of_rules) and getattr(config, key) != getattr(AdaptConfig, key):
            named = " and ".join(map(repr, of_rules))
            yield f"{key} plays no part with rule = {rules}, only with {named}"
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
