"""The recipe of a training run, as frozen dataclasses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hardsight.config import FromFile, check_settings, setting
from hardsight.errors import ConfigError

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "step", "cosine", "one_cycle", "gaussian_ramps")
RAMPS = ("none", "gaussian", "linear")
SELECTIONS = ("accuracy", "loss", "last")
STRATEGIES = ("auto", "ddp")
SAMPLINGS = ("shuffled", "class_balanced")
SAMPLING_ORDERS = ("none", "easy_first", "hard_first", "self_paced", "weighted")
_SHARES = ("easy_first", "hard_first", "self_paced")
ATTACKS = ("pgd", "fgsm")
NORMS = ("linf", "l2")


@dataclass(frozen=True)
class ModelConfig:
    """Table ``[model]``; a plain string is its name.

    Attributes:
        name: as ``hardsight.models.load_model`` takes it: ``resnet18``, ``net.py:make``, ...
        weights: file to start from.
        options: keywords for the model's factory.
        classes: names of the model's outputs, in their order, or a text file with one name per
            line; by default what the model itself says.
        class_order: how classes of data and model are matched: ``auto`` numbers the data's as the
            model does if it knows all of them by name, and otherwise teaches it the data's;
            ``name`` refuses to teach, ``position`` does not look at names.
        trust_remote_code: run Python files that an ``hf:`` model brings; they can do anything that
            you can do. Without it such a model is refused.
    """

    SHORTHAND: ClassVar[str] = "name"
    name: str
    weights: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    class_order: str = "auto"
    trust_remote_code: bool = False


@dataclass(frozen=True)
class DataConfig:
    """Table ``[data]``; a plain string is its name.

    Attributes:
        name: as ``hardsight.data.open_source`` takes it: ``cifar10``, ``photos/``, ...
        split: to train on.
        root: folder above those of named datasets, such as cifar10/.
        rows: file of ``hardsight select`` with the examples of the training split to use, for
            training and for the held-out share; also a .parquet or .csv file with a column
            ``index``, or an .npy file.
        validation: share of the training split that is held out to select the model; 0 for none.
        validation_split: another split to select the model on, instead of a share.
        test_split: split to evaluate the selected model on, once.
        text_column: column that holds the texts of a file, if it is not called text.
        label_column: column that holds the labels, if it is not called label.
        image_column: column that holds pictures or their paths, if it is not called path, or if
            there is a column of texts as well.
        tokenizer: folder of the tokenizer, if the model brings none.
        max_tokens: most tokens per text that the model sees; by default as many as it takes.
        classes: names of the classes, position = label.
        patch: decisions about the labels of the training split, from ``hardsight patch export``:
            the model learns the labels they decide on. Several patches are applied in the order
            they are listed.
        size: height and width that pictures are resized to, or one number for both; needed if
            their sizes differ. They are resized by their shorter side and cropped in the centre,
            unless ``squash``.
        channels: make all pictures grey (1) or RGB (3); by default they stay as they are, however
            many values ``mean`` has.
        mean: mean to subtract, one value or one per channel, on the pixel scale 0..1; by
            default as a trained model states it, or else measured on the training pictures.
        std: deviation to divide by, one value or one per channel; by default as for ``mean``.
        crop: share of the resized picture that the centre crop keeps, in (0, 1]; 1 by default.
        squash: resize to ``size`` without keeping the aspect ratio, so that nothing is cut off.
        white: value of white, if it is not 255 in 8-bit and 65535 in 16-bit pictures and 1 in
            floats.
        imbalance: how many times as many examples of the first class as of the last class to
            train on, falling exponentially in between; 1 leaves the data as it is. The validation
            share is held out before, with the class shares of the data.
    """

    SHORTHAND: ClassVar[str] = "name"
    name: str
    split: str | None = None
    root: str | None = None
    rows: str | None = None
    validation: float = setting(0.1, only_with={"validation_split": (None,)}, off=0)
    validation_split: str | None = None
    test_split: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    image_column: str | None = None
    tokenizer: str | None = None
    max_tokens: int | None = None
    classes: tuple[str, ...] | None = None
    patch: str | tuple[str, ...] | None = None
    size: tuple[int, int] | None = setting(None, one_for_all=True)
    channels: int | None = None
    mean: tuple[float, ...] | None = setting(None, one_for_all=True)
    std: tuple[float, ...] | None = setting(None, one_for_all=True)
    crop: float | None = None
    squash: bool | None = None
    white: float | None = None
    imbalance: float = 1.0


@dataclass(frozen=True)
class LossConfig:
    """Table ``[[loss]]``; a plain string is its name. The losses of a recipe are added up.

    Attributes:
        name: ``cross_entropy`` or a name of ``hardsight.registry.LOSSES``.
        weight: factor of the loss; with a ramp, its largest value.
        ramp: ``none``, ``gaussian`` (exp(-5 (1 - t / T)^2), AMC-Loss) or ``linear``.
        ramp_epochs: T, epochs until the weight is reached.
        start_epoch: first epoch, counted from 0, in which the loss counts; its ramp starts there.
        end_epoch: epoch from which on the loss no longer counts; ``None`` for never.
        class_balance: beta in [0, 1]: weighs classes by the inverse of their effective number of
            training examples, (1 - beta) / (1 - beta^n), scaled to a mean of 1 over classes. 1 is
            the inverse of n. With ``start_epoch`` it is deferred re-weighting.
        hardest: share in (0, 1] of each batch's examples that count: those with the largest loss;
            ``None`` for all. For losses with one value per example.
        options: keywords of the loss, such as ``margin_rad``.
        decays: factors in (0, 1) by which options shrink with every step, such as
            ``{blend = 0.99}``; below a billionth of its start an option counts as 0.
    """

    SHORTHAND: ClassVar[str] = "name"
    name: str
    weight: float = 1.0
    ramp: str = setting("none", choices=RAMPS)
    ramp_epochs: float = 0.0
    start_epoch: int = 0
    end_epoch: int | None = None
    class_balance: float | None = None
    hardest: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    decays: dict[str, float] = field(default_factory=dict)

    def weight_at(self, epoch: float) -> float:
        """Weight at ``epoch``, counted from 0; fractions are fine."""
        if epoch < self.start_epoch:
            return 0.0
        if self.end_epoch is not None and epoch >= self.end_epoch:
            return 0.0
        since = epoch - self.start_epoch
        if self.ramp == "gaussian":
            from hardsight.losses import gaussian_ramp_up  # loads torch, which a recipe does not

            return self.weight * gaussian_ramp_up(since, ramp_epochs=self.ramp_epochs)
        is_rising = self.ramp == "linear" and since < self.ramp_epochs
        return self.weight * (since / self.ramp_epochs if is_rising else 1.0)


@dataclass(frozen=True)
class SamplingConfig:
    """Table ``[sampling]``; a plain string is its name.

    Attributes:
        name: ``shuffled``: every example once per epoch; ``class_balanced``: as many draws, each of
            a random class first and then of one of its examples, with replacement.
        order: draw as many examples by hardness: ``easy_first`` (a curriculum), ``hard_first``,
            ``self_paced`` (easy first, by the tracker's values of the last epoch) or ``weighted``;
            see :class:`hardsight.tracking.HardnessSampler`.
        by: score or summary of ``table``; for ``self_paced`` a measure of the tracker, such as
            ``avh``, ``loss`` or ``el2n``.
        table: run or table with the hardness of the training examples.
        start: share of the examples in the first epoch, in (0, 1].
        full_epoch: epoch, counted from 0, from which on all examples are drawn.
        power: for ``weighted``: chances are rank to this power; below 0, easy examples are drawn
            more often.
    """

    SHORTHAND: ClassVar[str] = "name"
    name: str = setting("shuffled", choices=SAMPLINGS, called="sampling")
    order: str = setting("none", choices=SAMPLING_ORDERS, called="order of sampling")
    by: str = setting("avh", only_with={"order": (*_SHARES, "weighted")})
    table: str | None = None
    start: float = setting(0.3, only_with={"order": _SHARES})
    full_epoch: int = setting(10, only_with={"order": _SHARES})
    power: float = setting(1.0, only_with={"order": ("weighted",)})

    @property
    def draws_each_once(self) -> bool:
        """Whether an epoch draws every example once."""
        return self.name == "shuffled" and self.order == "none"


@dataclass(frozen=True)
class OptimizerConfig:
    """Table ``[optimizer]``; a plain string is its name.

    Attributes:
        name: ``sgd``, ``adam`` or ``adamw``.
        lr: largest learning rate; 0.1 for sgd, 0.001 for the others by default.
        weight_decay: 5e-4 for sgd, 0 for adam, 0.01 for adamw by default.
        momentum: of sgd.
        nesterov: of sgd.
        betas: of adam and adamw.
    """

    SHORTHAND: ClassVar[str] = "name"
    name: str = setting("sgd", choices=OPTIMIZERS, called="optimizer")
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float = setting(0.9, only_with={"name": ("sgd",)})
    nesterov: bool = setting(False, only_with={"name": ("sgd",)})
    betas: tuple[float, float] = setting((0.9, 0.999), only_with={"name": ("adam", "adamw")})


@dataclass(frozen=True)
class ScheduleConfig:
    """Table ``[schedule]``; a plain string is its name.

    Attributes:
        name: ``constant``, ``step``, ``cosine``, ``one_cycle`` or ``gaussian_ramps`` (AMC-Loss).
        step_epochs: of ``step``: epochs between drops; the AVH paper's 30.
        drop_epochs: of ``step``, instead of ``step_epochs``: the epochs, counted from 1, at whose
            start the rate drops; 51 and 65 of 100 in Encouraging Loss on MNIST.
        gamma: of ``step``: factor of a drop.
        warmup_epochs: of ``constant``, ``step`` and ``cosine``: linear rise at the start; of
            ``one_cycle``: the rise, 0.3 of all epochs by default; of ``gaussian_ramps``: the
            ramp-up, 80 of 300 in the paper.
        final: of ``cosine``: share of the learning rate that is left at the end.
        ramp_down_epochs: of ``gaussian_ramps``; 50 of 300 in the paper.
        final_beta1: of ``gaussian_ramps`` with adam: where beta1 falls to, 0.5 in the paper.
    """

    SHORTHAND: ClassVar[str] = "name"
    name: str = setting("cosine", choices=SCHEDULES, called="schedule")
    step_epochs: int = setting(30, only_with={"name": ("step",), "drop_epochs": (None,)})
    drop_epochs: tuple[int, ...] | None = setting(None, only_with={"name": ("step",)})
    gamma: float = setting(0.1, only_with={"name": ("step",)})
    warmup_epochs: float | None = None
    final: float = setting(0.0, only_with={"name": ("cosine",)})
    ramp_down_epochs: float = setting(50, only_with={"name": ("gaussian_ramps",)})
    final_beta1: float | None = setting(None, only_with={"name": ("gaussian_ramps",)})


@dataclass(frozen=True)
class AugmentConfig:
    """Table ``[augment]``: random changes of training images, never of validation images.

    Attributes:
        crop_padding: pixels of black added on each side before a random crop; 4 for CIFAR.
        flip: mirror half of the images.
    """

    crop_padding: int = 0
    flip: bool = False


@dataclass(frozen=True)
class AdversarialConfig:
    """Table ``[adversarial]``: an attack that changes training images to mislead the model.

    Attributes:
        epsilon: largest change, in pixels on the scale [0, 1].
        attack: ``pgd``, or ``fgsm`` for one step.
        norm: of ``pgd``: ``linf`` or ``l2``.
        steps: of ``pgd``.
        step_size: of ``pgd``; 2.5 epsilon / steps by default.
        share: share of every batch that is changed; 1 for all, 0.5 for half of it.
    """

    SHORTHAND: ClassVar[str] = "epsilon"
    epsilon: float
    attack: str = setting("pgd", choices=ATTACKS)
    norm: str = setting("linf", choices=NORMS, only_with={"attack": ("pgd",)})
    steps: int = setting(7, only_with={"attack": ("pgd",)})
    step_size: float | None = setting(None, only_with={"attack": ("pgd",)})
    share: float = 1.0


@dataclass(frozen=True)
class TrainConfig(FromFile):
    """A recipe: the keys of its TOML file, and the keywords of :func:`hardsight.train`.

    Attributes:
        model: what to train.
        data: what to train on.
        out: folder of the run.
        epochs: passes over the training split.
        batch_size: examples per step, over all devices; a multiple of their number.
        seed: seed of weights, split, order, augmentation and dropout.
        loss: one or several, added up.
        optimizer: see :class:`OptimizerConfig`.
        schedule: of the learning rate.
        augment: of training images.
        sampling: which examples an epoch draws; see :class:`SamplingConfig`.
        adversarial: train on images that are changed by an attack on the current model.
        freeze_body: train only the classifier head; all else stays as it is, including batch norm.
        reset_head: give the head new random weights first, if ``model.weights`` brought some.
        select: which epoch's weights to keep: those with the best validation ``accuracy`` or
            ``loss``, or the ``last``. The test split never decides.
        gradient_clip: largest norm of the gradient.
        head: name of the classifier layer, if a loss needs it and it is not found automatically.
        output: the model's output that holds the logits, by key, attribute or position, if it
            cannot be told by the number of classes.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        devices: number of devices per machine; under torchrun and srun as many as they start.
        num_nodes: number of machines; under torchrun and srun as many as they use.
        strategy: ``auto`` or ``ddp``, run by Lightning; with several devices ``auto`` is ``ddp``.
        precision: ``auto`` (bfloat16 on a GPU that has it), ``float32``, ``bfloat16``,
            ``float16``; the last two are mixed precision.
        channels_last: memory layout of images; on a GPU by default.
        compile: run the model through ``torch.compile``.
        capture: record the step of a full batch once as a CUDA graph, from the crop to the
            optimizer, and replay it; by default on a single CUDA device. A model that cannot be
            recorded is trained step by step, and a warning says why.
        deterministic: use only algorithms that give the same result each time, also on a GPU.
        autotune: let cuDNN try its algorithms on every new batch shape. That takes time at the
            start and for every new shape, so it is for long runs.
        resident: keep the decoded training images on the device; by default if they fit.
        workers: loader processes, if the images are not resident.
        folds: train this many models, each on all but one part of the training split, and write
            one table in which every example is scored by the model that did not see it.
        track: record every training example's hardness in every epoch, for held-out examples in
            the validation passes; see :class:`hardsight.tracking.HardnessTracker`.
        thumbnails: largest number of pictures to keep for the report of a tracked run; 0 for none.
        track_test: record the same for the test split, by a pass over it after every epoch; for
            `hardsight study dynamics`. It does not influence training.
        resume: continue the unfinished run in ``out``, with the same settings.
        overwrite: replace the training run in ``out``, finished or not; other files there stay.
    """

    model: ModelConfig
    data: DataConfig
    out: str
    epochs: int = 30
    batch_size: int = 128
    seed: int = 0
    loss: tuple[LossConfig, ...] = (LossConfig("cross_entropy"),)
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    augment: AugmentConfig = AugmentConfig()
    sampling: SamplingConfig = SamplingConfig()
    adversarial: AdversarialConfig | None = None
    freeze_body: bool = False
    reset_head: bool = False
    select: str = setting("accuracy", choices=SELECTIONS, called="selection (select)")
    gradient_clip: float | None = None
    head: str | None = None
    output: int | str | None = None
    device: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = setting("auto", choices=STRATEGIES)
    precision: str = "auto"
    channels_last: bool | None = None
    compile: bool = False
    capture: bool | None = None
    deterministic: bool = False
    autotune: bool = False
    resident: bool | None = None
    workers: int | None = None
    folds: int | None = None
    track: bool = False
    thumbnails: int = 600
    track_test: bool = False
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        _check_tables(self)
        _check_at_least(
            ("epochs", self.epochs, 1),
            ("batch_size", self.batch_size, 1),
            ("devices", self.devices, 1),
            ("num_nodes", self.num_nodes, 1),
            ("augment.crop_padding", self.augment.crop_padding, 0),
            ("thumbnails", self.thumbnails, 0),
            ("schedule.step_epochs", self.schedule.step_epochs, 1),
            *(("schedule.drop_epochs", epoch, 1) for epoch in self.schedule.drop_epochs or ()),
            ("schedule.warmup_epochs", self.schedule.warmup_epochs, 0),
            ("optimizer.lr", self.optimizer.lr, 0),
            ("optimizer.weight_decay", self.optimizer.weight_decay, 0),
            ("workers", self.workers, 0),
            ("folds", self.folds, 2),
        )
        _check_folds(self)
        _check_shares(self.batch_size, self.devices * self.num_nodes)
        if ":" in self.device and self.devices > 1:
            raise ConfigError(
                f"device = {self.device!r} is one device, got devices = {self.devices}; use device "
                f"= {self.device.partition(':')[0]!r} for several"
            )
        _check_optimizer(self.optimizer)
        _check_images(self.data)
        _check_splits(self.data)
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ConfigError(
                f"expected gradient_clip to be above 0, got {self.gradient_clip}; leave it out for "
                "no clipping"
            )
        if not self.loss:
            raise ConfigError("expected at least one loss, got none, e.g. loss = 'cross_entropy'")
        if self.track_test and self.data.test_split is None:
            raise ConfigError("track_test needs data.test_split, the split that is to be watched")
        if not 0 <= self.data.validation < 1:
            raise ConfigError(
                f"expected data.validation in [0, 1), a share of the training split, got "
                f"{self.data.validation}"
            )
        if not self.data.imbalance >= 1:
            raise ConfigError(
                f"expected data.imbalance of at least 1, the first class's count over the last "
                f"one's, got {self.data.imbalance}"
            )
        for loss in self.loss:
            _check_span(loss)
        _check_active(self.loss, self.epochs)


def _check_tables(config: TrainConfig) -> None:
    """Check each table, also those that were not read from a file but made in Python."""
    tables = {"optimizer": config.optimizer, "schedule": config.schedule, "data": config.data}
    for name, table in tables.items():
        check_settings(table, where=f"the table {name}")
    for loss in config.loss:
        check_settings(loss, where=f"the loss {loss.name}")
    if config.adversarial is not None:
        check_settings(config.adversarial, where="the table adversarial")
        _check_attack(config.adversarial)


def _check_folds(config: TrainConfig) -> None:
    """Raise if the recipe asks for something that several models do not have."""
    if config.folds is None:
        return
    for key in ("track", "track_test"):
        if getattr(config, key):
            raise ConfigError(
                f"{key} records one model over its epochs, and folds = {config.folds} trains "
                f"{config.folds} of them, of which each example would have as many histories; "
                f"leave one of the two out"
            )
    if config.devices * config.num_nodes > 1:
        raise ConfigError(
            f"folds trains its models one after the other on one device, got devices = "
            f"{config.devices}, num_nodes = {config.num_nodes}; leave them out"
        )


def _check_attack(adversarial: AdversarialConfig) -> None:
    if not adversarial.epsilon >= 0 or not 0 < adversarial.share <= 1 or adversarial.steps < 1:
        raise ConfigError(
            "expected adversarial.epsilon >= 0, share in (0, 1] and steps >= 1, got "
            f"{adversarial.epsilon}, {adversarial.share} and {adversarial.steps}"
        )


def _check_shares(batch_size: int, devices: int) -> None:
    """Raise if every batch would leave examples over: devices take equally many each."""
    rest = batch_size % devices
    if rest:
        less = [batch_size - rest] if batch_size > devices else []
        fitting = " or ".join(str(size) for size in [*less, batch_size - rest + devices])
        raise ConfigError(
            f"batch_size = {batch_size} cannot be shared out evenly over {devices} devices; use "
            f"{fitting}"
        )


def _check_optimizer(optimizer: OptimizerConfig) -> None:
    if optimizer.lr is not None and not math.isfinite(optimizer.lr):
        raise ConfigError(f"expected optimizer.lr to be finite, got {optimizer.lr}")
    if not 0 <= optimizer.momentum < 1:
        raise ConfigError(f"expected optimizer.momentum in [0, 1), got {optimizer.momentum}")
    if not all(0 <= beta < 1 for beta in optimizer.betas):
        raise ConfigError(f"expected optimizer.betas in [0, 1), got {optimizer.betas}")
    if optimizer.nesterov and not optimizer.momentum:
        raise ConfigError("optimizer.nesterov needs a momentum above 0, got 0")


def _check_images(data: DataConfig) -> None:
    if data.size is not None and min(data.size) < 1:
        raise ConfigError(f"expected data.size of at least 1 pixel, got {data.size}")
    if data.mean is not None and not all(map(math.isfinite, data.mean)):
        raise ConfigError(f"expected every data.mean to be finite, got {data.mean}")
    if data.std is not None and not all(0 < value < math.inf for value in data.std):
        raise ConfigError(f"expected every data.std to be above 0 and finite, got {data.std}")


def _check_splits(data: DataConfig) -> None:
    """Raise if an example would be in two of the splits that must stay apart."""
    held_out = "leave {} out to hold out a share of the training split (validation = 0.1)"
    for first, second, because, step in (
        (
            "split",
            "test_split",
            "the model would be tested on examples it was trained on",
            "name another test_split, or leave it out",
        ),
        (
            "split",
            "validation_split",
            "the model would be selected by examples it was trained on",
            held_out.format("validation_split"),
        ),
        (
            "validation_split",
            "test_split",
            "a model is selected never by the test split",
            held_out.format("validation_split"),
        ),
    ):
        # several splits can be joined
        ours, theirs = ((getattr(data, key) or "").split("+") for key in (first, second))
        shared = [split for split in ours if split and split in theirs]
        if shared:
            raise ConfigError(
                f"data.{first} and data.{second} share {', '.join(map(repr, shared))}, but "
                f"{because}; {step}"
            )


def _check_active(losses: Sequence[LossConfig], epochs: int) -> None:
    """Raise if the model would learn nothing in some epoch."""
    silent = [epoch for epoch in range(epochs) if not any(loss.weight_at(epoch) for loss in losses)]
    if silent:
        spans = ", ".join(span_in_words(loss) for loss in losses)
        raise ConfigError(
            f"every loss is off in {epochs_in_words(silent)} (counted from 0) of {epochs}, so "
            f"nothing would be learned there: {spans}; let one of them play a part in every epoch"
        )


def span_in_words(loss: LossConfig) -> str:
    """When a loss plays a part, in words."""
    if not loss.weight:
        return f"{loss.name} has a weight of 0"
    since = f" from epoch {loss.start_epoch} on" if loss.start_epoch else ""
    until = f" before epoch {loss.end_epoch}" if loss.end_epoch is not None else ""
    ramp = " (a linear ramp begins with a weight of 0)" if loss.ramp == "linear" else ""
    return f"{loss.name}{since}{until}{ramp}"


def epochs_in_words(epochs: Sequence[int]) -> str:
    """Epochs in words, runs of them as their ends."""
    runs: list[list[int]] = []
    for epoch in epochs:
        if runs and epoch == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], epoch]
        else:
            runs.append([epoch])
    said = [
        f"{run[0]} and {run[1]}" if run[-1] - run[0] == 1 else " to ".join(map(str, run))
        for run in runs
    ]
    more = f" and {len(said) - 5} more spans" if len(said) > 5 else ""
    return f"epoch{'s' if len(epochs) > 1 else ''} {', '.join(said[:5])}{more}"


def _check_span(loss: LossConfig) -> None:
    if not math.isfinite(loss.weight):
        raise ConfigError(f"loss {loss.name}: expected a finite weight, got {loss.weight}")
    if loss.weight < 0:
        raise ConfigError(
            f"loss {loss.name}: expected a weight of at least 0, got {loss.weight}; a negative one "
            "would make the loss grow without end"
        )
    if loss.start_epoch < 0:
        raise ConfigError(
            f"loss {loss.name}: expected start_epoch to be at least 0, got {loss.start_epoch}"
        )
    if loss.ramp != "none" and not loss.ramp_epochs > 0:
        raise ConfigError(
            f"loss {loss.name}: the ramp {loss.ramp!r} needs ramp_epochs above 0, got "
            f"{loss.ramp_epochs}"
        )
    if loss.ramp == "none" and loss.ramp_epochs:
        raise ConfigError(
            f"loss {loss.name}: ramp_epochs = {loss.ramp_epochs} needs a ramp, such as "
            "ramp = 'gaussian'"
        )
    if loss.end_epoch is not None and loss.end_epoch <= loss.start_epoch:
        raise ConfigError(
            f"loss {loss.name}: expected end_epoch after start_epoch = {loss.start_epoch}, got "
            f"{loss.end_epoch}"
        )
    if loss.class_balance is not None and not 0 <= loss.class_balance <= 1:
        raise ConfigError(
            f"loss {loss.name}: expected class_balance in [0, 1], got {loss.class_balance}"
        )
    if loss.hardest is not None and not 0 < loss.hardest <= 1:
        raise ConfigError(
            f"loss {loss.name}: expected hardest to be a share in (0, 1], got {loss.hardest}"
        )


def _check_at_least(*numbers: tuple[str, float | None, int]) -> None:
    for key, value, least in numbers:
        if value is not None and not value >= least:
            raise ConfigError(f"expected {key} to be at least {least}, got {value}")
