"""Adapt a model to an unlabelled domain: predict, select and retrain, round by round."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hardsight._checks import refuse_ranks, require, versions, warn, warns_of
from hardsight.config import config_from, defaults_of
from hardsight.errors import ModelError, RunMismatchError
from hardsight.models import LoadedModel, StoredModel, description_of, load_weights
from hardsight.notebook import shown
from hardsight.preprocessing import Preprocessing
from hardsight.run.adapt._config import (
    BN_ONLY,
    AdaptConfig,
    say_what_plays_no_part,
)
from hardsight.run.adapt._data import Pool, Target, only_pictures, opened_target
from hardsight.run.adapt._rounds import RuleRun, SharedByRules, rule_notes, run_rule
from hardsight.run.loop import (
    chosen_device,
    chosen_layout,
    chosen_precision,
    chosen_workers,
    returning,
)
from hardsight.run.train import (
    MAY_CHANGE,
    Sources,
    check_parts,
    first_outputs,
    loaded_for,
    normalised_for,
    numbered_for,
    opened_sources,
    output_of,
    run_recipe,
    typed_model,
)
from hardsight.run_folder import (
    ADAPT,
    AGAIN,
    FirstOutputs,
    RunFolder,
    replacing,
    state_digest,
    write_json,
    writing,
)

RESULT, _START = "result.json", "start.safetensors"
_WEIGHTS = "weights to start from"
_SOURCE = "source"


@dataclass(frozen=True)
class AdaptResult:
    """The result of an adaptation.

    Attributes:
        folder: holds ``result.json``, the source model in ``source/`` if it was trained here,
            and a folder per rule with its rounds and its last model.
        model: the last model of the first rule, in eval mode, on the CPU.
        runs: the rounds of each rule, by its name.
        classes: names, position = label.
        next_step: the command that scores the model.
    """

    folder: Path
    model: nn.Module
    runs: dict[str, RuleRun]
    classes: tuple[str, ...]
    next_step: str

    def accuracy(self, rule: str | None = None) -> list[float | None]:
        """Accuracy on the target after each round, the source model's first.

        Args:
            rule: the first by default.
        """
        run = self.runs[rule if rule is not None else next(iter(self.runs))]
        evaluations = [record["evaluation"] for record in run.rounds]
        return [None if record is None else record["accuracy"] for record in evaluations]

    def _repr_html_(self) -> str:
        """HTML for a notebook: accuracy on the target by rule and round."""
        rounds = max((len(run.rounds) for run in self.runs.values()), default=0)
        columns = ("rule", *("source" if at == 0 else f"round {at}" for at in range(rounds)))
        rows = [
            [
                rule,
                *("unknown" if share is None else f"{share:.1%}" for share in self.accuracy(rule)),
            ]
            for rule in self.runs
        ]
        facts = {"run": str(self.folder), "classes": f"{len(self.classes)}"}
        return shown("AdaptResult", facts, columns=columns, rows=rows, note=self.next_step)


def run_adapt(config: AdaptConfig, *, show_progress: bool | None = None) -> AdaptResult:
    """Call :func:`adapt` with settings, as the command line does."""
    return _run(config, config.model.name, config.source.name, config.target.name, show_progress)


def adapt(
    model: str | os.PathLike[str] | nn.Module,
    source: Any,
    target: Any,
    *,
    out: str | os.PathLike[str],
    rule: str | tuple[str, ...] | list[str] = "cbst",
    show_progress: bool | None = None,
    **settings: Any,
) -> AdaptResult:
    """Adapt a classifier to a domain without labels, by class-balanced self-training.

    The model is trained on the source first, unless it has been trained before. Then, in every
    round, it predicts the target, a rule selects the predictions to trust, and the model is trained
    on the source and the selected target examples. Labels of the target, if there are any, are only
    used to evaluate the rounds.

    Args:
        model: a name (see :func:`hardsight.models.load_model`), the folder of a trained model, or
            a module, whose weights are trained in place. With ``resume=True`` the weights that
            the run began with are first loaded into the module.
        source: labelled data: a name (see :func:`hardsight.data.open_source`), a dataset, or the
            table ``{"name": "pacs", "split": "photo"}``.
        target: data in the same forms; ``{"name": "street/", "unlabelled": True}`` takes any folder
            of images.
        out: folder of the run.
        rule: ``"cbst"``, ``"cbst+avh"``, ``"avc"``, ``"crst-mrkld"``, ``"crst-lrent"``, ``"crst"``,
            or a baseline: ``"source-only"``, ``"bn-only"``, ``"entropy"``, ``"threshold"``. Several
            start from the same source model.
        show_progress: force progress bars on or off; by default they are shown on a terminal.
        settings: any other key of :class:`AdaptConfig`, such as ``rounds=4`` or
            ``retrain={"epochs": 1, "optimizer": {"lr": 0.005}}``.

    Returns:
        the models and, per round, the selection and its quality.

    Raises:
        HardsightError: a subclass that says what to do.

    Example:
        >>> import hardsight as hs, tempfile
        >>> digits = hs.data.open_source("builtin:digits", split="test")
        >>> dim = hs.data.DegradedSource(digits, contrast=0.3)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     done = hs.adapt(
        ...         "small_cnn", "builtin:digits", dim, out=f"{out}/run", rounds=1, pretrain=1,
        ...         retrain=1, device="cpu",
        ...     )
        >>> [record["round"] for record in done.runs["cbst"].rounds]
        [0, 1]

    Reference:
        Zou et al., ECCV 2018 and ICCV 2019; Chen et al., Angular Visual Hardness, ICML 2020,
        section 5.1.
    """
    tables, data = [], []
    for domain in (source, target):
        table = dict(domain) if isinstance(domain, dict) and "name" in domain else {"name": domain}
        what = table["name"]
        data.append(what)
        table["name"] = (
            os.fspath(what) if isinstance(what, str | os.PathLike) else type(what).__name__
        )
        tables.append(table)
    if isinstance(model, os.PathLike):  # such as the folder of a trained model
        model = os.fspath(model)
    values = {
        "model": model if isinstance(model, str) else type(model).__name__,
        "source": tables[0],
        "target": tables[1],
        "out": os.fspath(out),
        "rule": rule,
        **settings,
    }
    config = config_from(AdaptConfig, values, where="the settings of adapt")
    return _run(config, model, data[0], data[1], show_progress)


def adaptation_notes(result: AdaptResult) -> list[str]:
    """Caveats about the result of every rule."""
    named = len(result.runs) > 1
    return [
        f"{rule}, {note}" if named else note
        for rule, run in result.runs.items()
        for note in rule_notes(run)
    ]


@warns_of(adaptation_notes)
def _run(
    config: AdaptConfig, model: str | nn.Module, source: Any, target: Any, show: bool | None
) -> AdaptResult:
    pl = require("lightning.pytorch", extra="train", feature="adapting")
    refuse_ranks("adapting")
    claim = RunFolder(config.out).claimed(
        ADAPT, reads=(source, target), resume=config.resume, overwrite=config.overwrite
    )
    with claim as run:
        return _run_in(pl, run, config, model, source, target, show)


def _run_in(
    pl: Any,
    run: RunFolder,
    config: AdaptConfig,
    model: str | nn.Module,
    source: Any,
    target: Any,
    show: bool | None,
) -> AdaptResult:
    from hardsight.run.train.engine import plain_state

    device = chosen_device(config.device)
    stated, config = config, _as_trained(config, model)
    is_trained = (
        config.model.weights is not None or (Path(config.model.name) / "model.json").is_file()
    )
    epochs = config.source_epochs(is_trained=is_trained)
    sources, aim = _domains(stated, config, source, target)
    say_what_plays_no_part(config, is_trained=not epochs)
    is_stated = None not in (config.source.mean, config.source.std)
    loaded = loaded_for(
        config.model, model, sources, seed=config.seed, device=device, is_stated=is_stated
    )
    sources = normalised_for(loaded, sources, config.source)
    sources = numbered_for(loaded, sources, config.model, teaches=epochs > 0)
    if sources.order is not None:
        aim = aim.numbered_as(sources.order)
    recipe = _recipe(config, sources, aim, loaded)
    workers = chosen_workers(config.workers, length=len(sources.train) + len(aim))
    pool = Pool(sources, aim, config, device=device, workers=workers, show=show)
    module = loaded.model if isinstance(model, nn.Module) else None
    precision = chosen_precision(config.precision, device)
    recipe = _prepare(
        run, recipe, config, module=module, precision=precision,
        first=lambda: first_outputs(loaded.model, sources),
    )  # fmt: skip
    if epochs:
        loaded = _trained_on_source(config, model, source, sources, loaded, epochs, show)
    shared = SharedByRules(
        config=config,
        pool=pool,
        target=aim,
        classes=sources.classes,
        model=loaded.model,
        start=_on_device(loaded.model, config, device),
        device=device,
        pl=pl,
        show=show,
    )
    _say_if_nothing_adapts(config, loaded.model)
    with returning(loaded.model, output_of(loaded, sources, config.output)):
        runs = _rounds_of_rules(shared, run.folder)
    if not run.is_done:
        stored = StoredModel(
            loaded.built_as, dict(loaded.options), sources.train.how, sources.classes
        )
        with writing(run.folder, step=AGAIN):
            for of_rule in runs.values():
                of_rule.folder.mkdir(parents=True, exist_ok=True)
                stored.write(of_rule.folder, plain_state(of_rule.state))
            _write_result(run.folder, recipe, sources, aim, runs)
        run.finish()
    first = runs[config.rules[0]]
    shared.model.load_state_dict(first.state)
    step = _next_step(first.folder, config, loaded)
    return AdaptResult(run.folder, shared.model.cpu().eval(), runs, sources.classes, step)


def _domains(
    stated: AdaptConfig, config: AdaptConfig, source: Any, target: Any
) -> tuple[Sources, Target]:
    """Open source and target; warns of settings without effect, and of equal domains."""
    sources = opened_sources(config.source, source, seed=config.seed, read=only_pictures)
    # check the user's own settings, without those added from the trained model
    round_recipe = stated.recipe(stated.retrain, out=config.out, epochs=config.retrain.epochs or 1)
    check_parts(round_recipe, sources.train)
    aim = opened_target(config.target, target, sources.classes)
    if aim.fingerprint == sources.fingerprint:
        warn(
            f"the target {aim.source.spec} is the source itself, so there is nothing to adapt to: "
            "the model has its labels already; name other data as the target"
        )
    return sources, aim


def _rounds_of_rules(shared: SharedByRules, folder: Path) -> dict[str, RuleRun]:
    """Self-train by every rule, each from the same model and its predictions on the target."""
    seen = shared.predicted("source model: predicting the target")
    if seen.probs.shape[1] != len(shared.classes):
        raise ModelError(
            f"expected a model of {len(shared.classes)} classes, those of the source, got "
            f"{seen.probs.shape[1]} outputs; train it on this source, or pass classes it knows"
        )
    return {rule: run_rule(shared, rule, folder / rule, seen) for rule in shared.config.rules}


def _as_trained(config: AdaptConfig, model: str | nn.Module) -> AdaptConfig:
    """Add the preprocessing that a trained model was trained with to the settings."""
    stored = description_of(model, config.model.weights)
    if stored is None:
        return config
    known, plain = stored.preprocessing, Preprocessing()
    others = [
        key for key in ("crop", "squash", "white") if getattr(known, key) != getattr(plain, key)
    ]
    stated = {
        key: getattr(known, key)
        for key in ("size", "channels", "mean", "std", *others)
        if getattr(config.source, key) is None
    }
    return dataclasses.replace(config, source=dataclasses.replace(config.source, **stated))


def _say_if_nothing_adapts(config: AdaptConfig, model: nn.Module) -> None:
    moved = (getattr(module, "running_mean", None) for module in model.modules())
    if BN_ONLY in config.rules and all(mean is None for mean in moved):
        warn(
            f"the model has no batch normalisation with running statistics, so {BN_ONLY!r} is only "
            "more training on the source"
        )


def _recipe(
    config: AdaptConfig, sources: Sources, target: Target, loaded: LoadedModel
) -> dict[str, Any]:
    """Everything that decides the result."""
    return {
        "config": dataclasses.asdict(config),
        "fingerprints": {"source": sources.fingerprint, "target": target.fingerprint},
        "chosen_rows": sources.chosen,
        "weights_digest": state_digest(loaded.model),
        "preprocessing": dataclasses.asdict(sources.train.how),
        "versions": versions("lightning"),
    }


def _trained_on_source(
    config: AdaptConfig,
    model: str | nn.Module,
    data: Any,
    sources: Sources,
    loaded: LoadedModel,
    epochs: int,
    show: bool | None,
) -> LoadedModel:
    """Train the model that every rule starts from, unless it was trained before."""
    how, table = sources.train.how, config.source
    if sources.train.are_ours:  # measured already
        table = dataclasses.replace(table, mean=how.mean, std=how.std)
    recipe = config.recipe(
        config.pretrain, out=str(Path(config.out) / _SOURCE), epochs=epochs, data=table,
        select="accuracy" if sources.validation is not None else "last",
    )  # fmt: skip
    trained = run_recipe(recipe, model, data, show)
    return dataclasses.replace(loaded, model=trained.model)


def _on_device(model: nn.Module, config: AdaptConfig, device: torch.device) -> dict[str, Tensor]:
    """Move the model to the device; returns its weights, which every rule starts from."""
    if chosen_layout(config.channels_last, device):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    # copies, since every rule trains this module in place
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def _write_result(
    folder: Path,
    recipe: dict[str, Any],
    sources: Sources,
    target: Target,
    runs: dict[str, RuleRun],
) -> None:
    content = {
        "format": 1,
        "classes": list(sources.classes),
        "class_order": None if sources.order is None else sources.order.facts(),
        "source": {"spec": sources.train.source.spec, "examples": len(sources.train)},
        "target": {
            "spec": target.source.spec,
            "examples": len(target),
            "labelled": target.labels is not None,
        },
        "runs": {
            rule: {"rounds": run.rounds, "stopped": run.stopped} for rule, run in runs.items()
        },
        **recipe,
    }
    write_json(folder / RESULT, content)


def _next_step(folder: Path, config: AdaptConfig, loaded: LoadedModel) -> str:
    """The command that scores the adapted model; on the source if the target has no labels."""
    data = config.source if config.target.unlabelled else config.target
    words = ["--data", data.name]
    words += ["--split", data.split] if data.split else []
    words += ["--data-root", data.root] if data.root else []
    words += ["--out", f"{folder}-scores"]
    words += ["--trust-remote-code"] if config.model.trust_remote_code else []
    return f"hardsight score --model {typed_model(folder, loaded)} {shlex.join(words)}"


def _prepare(
    run: RunFolder, recipe: dict[str, Any], config: AdaptConfig, *, module: nn.Module | None,
    precision: str, first: Callable[[], FirstOutputs | None],
) -> dict[str, Any]:  # fmt: skip
    """Begin the run, or check that the run in the folder has the same settings.

    Args:
        run: claimed.
        recipe: everything that decides the result.
        config: of the run. A resumed run may change the same settings as in training.
        module: a user's own, which the run trains in place. Its first weights are kept when a run
            begins, and loaded into it again when the run is continued.
        precision: the actual one, since ``auto`` depends on the device.
        first: computes the model's outputs for the first examples, with its current weights.

    Returns:
        the recipe, with the digest of the weights that the run began with.

    Raises:
        RunMismatchError: the run has other settings, data, weights or code; the module is then
            left as it was.
    """
    old = run.manifest() if config.resume else None
    is_restored = module is not None and old is not None and (run.folder / _START).exists()
    if is_restored:
        assert old is not None
        recipe = {**recipe, "weights_digest": old.fingerprints.get(_WEIGHTS)}
    marks = {f"{domain} data": mark for domain, mark in recipe["fingerprints"].items()}
    marks["chosen rows"] = recipe["chosen_rows"]
    run.describe(
        {**recipe["config"], "precision": precision},
        fingerprints={**marks, _WEIGHTS: recipe["weights_digest"]},
        versions=recipe["versions"],
        may_change=MAY_CHANGE,
        defaults=defaults_of(AdaptConfig),
        files=config.rules,
    )
    if is_restored and module is not None:
        held = {name: value.clone() for name, value in module.state_dict().items()}
        _restore_start(run.folder, module)
        try:
            run.check_outputs(first())
        except RunMismatchError:
            module.load_state_dict(held)
            raise
    else:
        run.check_outputs(first())
    if not run.is_done:
        run.begin()
        if module is not None:
            _keep_start(run.folder, module)
    return recipe


def _keep_start(folder: Path, module: nn.Module) -> None:
    from hardsight.run.train.engine import plain_state  # needs Lightning

    file = folder / _START
    if not file.exists():  # nothing has been trained yet
        with writing(file, step=AGAIN), replacing(file) as partial:
            save_file(plain_state(module.state_dict()), partial)


def _restore_start(folder: Path, module: nn.Module) -> None:
    try:
        load_weights(module, folder / _START)
    except ModelError as err:
        raise RunMismatchError(
            f"the adaptation in {folder} cannot be continued with this module: {err}; pass a "
            "module of the same layers, or choose another --out"
        ) from err
