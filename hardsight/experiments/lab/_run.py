"""Run one experiment: settings, facts, files."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hardsight._checks import versions
from hardsight.config import config_from, toml_value
from hardsight.errors import ConfigError, OptionError
from hardsight.experiments.lab._lab import Lab, Sources
from hardsight.experiments.lab._registry import EXPERIMENTS, SCALES, SHORT_NAMES, Experiment
from hardsight.experiments.lab._result import Result, plain, write_result
from hardsight.registry import unknown_name
from hardsight.run_folder import EXPERIMENT, RunFolder, write_bytes, writing

_HOW = ("capture", "compile", "autotune", "resident", "workers")


def run_experiment(
    name: str,
    *,
    scale: str = "smoke",
    out: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] | None = None,
    data_root: str | None = None,
    device: str = "auto",
    overrides: Sequence[str] = (),
    show_progress: bool | None = None,
    keep_outputs: bool = False,
    jobs: int = 1,
    how: Sequence[str] = (),
    overwrite: bool = False,
    sources: Sources | None = None,
) -> Result:
    """Run an experiment and write its result, figures and page.

    Args:
        name: of :data:`EXPERIMENTS`; ``human`` is short for ``avh-human``, and so on.
        scale: ``smoke`` (embedded data, a CPU, seconds), ``short`` (real data, fewer epochs and
            smaller networks than the paper's, a GPU, minutes) or ``paper`` (the paper's own).
        out: folder of the result; ``results/NAME`` by default, ``results/NAME-paper`` at the
            scale of the paper.
        runs: folder of trained models, which later runs find again; a temporary one by default.
        data_root: folder above those of named datasets.
        device: ``auto``, ``cpu``, ``cuda``, ``mps``.
        overrides: ``KEY=VALUE`` for the keys of the experiment's setting.
        show_progress: force progress on or off; by default it is shown on a terminal.
        keep_outputs: write embeddings and logits beside the trained models, which later runs find
            again; tens of megabytes a model.
        jobs: processes that train its models side by side first, sharing the device.
        how: ``KEY=VALUE`` for how models are trained, not what: ``capture``, ``compile``,
            ``autotune``, ``resident``, ``workers``, as in a recipe.
        overwrite: replace the result in ``out``, once the new one is there.
        sources: decoded data that several calls of one process share; each adds what it reads.

    Raises:
        UnknownNameError: there is no such experiment.
        ConfigError: a key of the setting is unknown, or its value has the wrong type.
        MissingDataError: a dataset is not there.
        RunExistsError: a result is in ``out`` already.
    """
    spec = EXPERIMENTS[SHORT_NAMES.get(name, name)]
    if scale not in SCALES:
        raise OptionError(unknown_name("scale", scale, list(SCALES)))
    if scale not in spec.scales:
        raise OptionError(
            f"{spec.name} has no setting of its own at the scale {scale!r} yet; use --scale "
            f"{spec.fullest}, and --set KEY=VALUE for what is to differ"
        )
    setting = setting_of(spec, scale, overrides)
    folder = Path(out) if out is not None else usual_folder(spec.name, scale)
    if jobs < 1:
        raise OptionError(f"expected --jobs of at least 1, got {jobs}")
    with (
        RunFolder(folder).claimed(EXPERIMENT, overwrite=overwrite) as run,
        tempfile.TemporaryDirectory(prefix="hardsight-runs-") as temporary,
        tempfile.TemporaryDirectory(prefix="hardsight-figures-") as drawn,
    ):
        options: dict[str, Any] = {
            "scale": scale,
            "out": Path(drawn),  # a result that is there stays until the new one is complete
            "runs": Path(runs) if runs is not None else Path(temporary),
            "data_root": data_root,
            "device": device,
            "show_progress": show_progress,
            "keep_outputs": keep_outputs,
            "how": _how(how),
        }
        start = time.perf_counter()
        if jobs > 1:
            # only now: each process imports all of this again
            from hardsight.experiments.lab._jobs import Job, train_side_by_side

            tell = partial(print, file=sys.stderr, flush=True)
            train_side_by_side(
                Job(spec.name, setting, options, jobs),
                (lambda text: None) if show_progress is False else tell,
            )
        lab = Lab(**options, sources=sources)
        result = spec.result(lab, setting)
        seconds = time.perf_counter() - start
        _keep(run, result, _facts(spec, setting, lab, seconds), Path(drawn))
    return result


def _keep(run: RunFolder, result: Result, facts: Mapping[str, Any], drawn: Path) -> None:
    """Write the result and its figures."""
    figures = sorted(file.name for file in drawn.iterdir())
    settings = {key: facts[key] for key in ("name", "scale", "setting")}
    run.describe(settings, fingerprints={}, versions=facts["versions"], files=figures)
    run.begin()
    with writing(run.folder, step="choose another --out"):
        for name in figures:
            write_bytes(run.folder / name, (drawn / name).read_bytes())
        write_result(result, facts, run.folder)
    run.finish()


def usual_folder(name: str, scale: str) -> Path:
    """The folder of a result by default: that of the paper's scale stands beside the shorter one.

    Example:
        >>> usual_folder("human", "short").name, usual_folder("el-table5", "paper").name
        ('avh-human', 'el-table5-paper')
    """
    full = SHORT_NAMES.get(name, name)
    return Path("results") / (f"{full}-paper" if scale == "paper" else full)


def setting_of(spec: Experiment, scale: str, overrides: Sequence[str]) -> Any:
    """The setting of a scale with ``KEY=VALUE`` laid over it."""
    setting = spec.scales[scale]
    values = {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)}
    values |= _pairs(overrides)
    changed = config_from(type(setting), values, where=f"the settings of {spec.name}")
    _check_lists(spec, changed)
    return changed


def stored_setting(spec: Experiment, facts: Mapping[str, Any]) -> Any:
    """The setting that a written result was made with.

    Args:
        spec: of the experiment.
        facts: of :func:`read_result`; a number that was stored rounded is the usual one.
    """
    usual = spec.scales[facts["scale"]]
    exact = dataclasses.asdict(usual)
    values = {
        key: exact[key] if plain(exact[key]) == plain(value) else value
        for key, value in facts["setting"].items()
    }
    return config_from(type(usual), values, where="the stored setting")


def _pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Values by key, from ``KEY=VALUE`` in TOML syntax."""
    values = {}
    for pair in texts:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"expected KEY=VALUE, got {pair!r}")
        values[key.strip()] = toml_value(text.strip())
    return values


def _how(texts: Sequence[str]) -> dict[str, Any]:
    """How models are trained, from ``KEY=VALUE``."""
    settings = _pairs(texts)
    for key in settings:
        if key not in _HOW:
            raise OptionError(unknown_name("way of training (--how)", key, list(_HOW)))
    return settings


def _check_lists(spec: Experiment, setting: Any) -> None:
    """Refuse an empty list if no scale has one, and a seed that comes twice."""
    for field in dataclasses.fields(setting):
        usual = [getattr(scale, field.name) for scale in spec.scales.values()]
        if getattr(setting, field.name) == () and () not in usual:
            raise ConfigError(f"{spec.name}: expected at least one of {field.name}, got none")
    if len(set(setting.seeds)) < len(setting.seeds):
        listed = ", ".join(str(seed) for seed in setting.seeds)
        raise ConfigError(f"{spec.name}: expected different seeds, got {listed}")


def command_of(spec: Experiment, scale: str, setting: Any) -> str:
    """The command that makes a result again: every key that is not as the scale has it.

    Args:
        spec: the experiment.
        scale: that the setting was made from.
        setting: with all overrides in it.
    """
    usual = spec.scales[scale]
    changed = {
        field.name: getattr(setting, field.name)
        for field in dataclasses.fields(setting)
        if getattr(setting, field.name) != getattr(usual, field.name)
    }
    more = "".join(f" --set '{key}={json.dumps(value)}'" for key, value in changed.items())
    return f"hardsight experiment run {spec.name} --scale {scale}{more}"


def _facts(spec: Experiment, setting: Any, lab: Lab, seconds: float) -> Mapping[str, Any]:
    """Everything a reader needs to make the result again."""
    return {
        "name": spec.name,
        "title": spec.title,
        "reproduces": spec.reproduces,
        "about": spec.about(setting),
        "scale": lab.scale,
        "command": command_of(spec, lab.scale, setting),
        "setting": dataclasses.asdict(setting),
        "seeds": list(setting.seeds),
        "seconds": seconds,
        "training_seconds": lab.training_seconds,
        "hardware": _hardware(lab.device),
        "versions": versions("lightning", "scikit-learn", "scipy"),
    }


def _hardware(device: torch.device) -> dict[str, str | None]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"gpu": gpu, "cpu": f"{_processor()}, {os.cpu_count()} cores"}


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
