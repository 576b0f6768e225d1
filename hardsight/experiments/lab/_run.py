"""Run one experiment: settings, facts, files."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hardsight.config import config_from, toml_value
from hardsight.errors import ConfigError, OptionError, OutputError
from hardsight.experiments.lab._lab import Lab
from hardsight.experiments.lab._registry import EXPERIMENTS, SCALES, SHORT_NAMES, Experiment
from hardsight.experiments.lab._result import Result, write_result
from hardsight.registry import unknown_name
from hardsight.run.loop import versions


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
) -> Result:
    """Run an experiment and write its result, figures and page.

    Args:
        name: of :data:`EXPERIMENTS`; ``human`` stands for ``avh-human``, and so on.
        scale: ``smoke`` (embedded data, a CPU, seconds) or ``paper`` (real data, a GPU, minutes).
        out: folder of the result; ``results/NAME`` by default.
        runs: folder of trained models, which later runs find again; a temporary one by default.
        data_root: folder above those of named datasets.
        device: ``auto``, ``cpu``, ``cuda``, ``mps``.
        overrides: ``KEY=VALUE`` for the keys of the experiment's setting.
        show_progress: force progress on or off; by default it is shown on a terminal.
        keep_outputs: write embeddings and logits beside the trained models, which later runs find
            again; tens of megabytes a model.

    Raises:
        UnknownNameError: there is no such experiment.
        ConfigError: a key of the setting is unknown, or its value has the wrong type.
        MissingDataError: a dataset is not there.
    """
    spec = EXPERIMENTS[SHORT_NAMES.get(name, name)]
    if scale not in SCALES:
        raise OptionError(unknown_name("scale", scale, list(SCALES)))
    setting = _setting(spec, scale, overrides)
    folder = Path(out) if out is not None else Path("results") / spec.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise OutputError(
            f"cannot write to {folder}: {err.strerror}; choose another --out"
        ) from err
    with tempfile.TemporaryDirectory(prefix="hardsight-runs-") as temporary:
        lab = Lab(
            scale=scale,
            out=folder,
            runs=Path(runs) if runs is not None else Path(temporary),
            data_root=data_root,
            device=device,
            show_progress=show_progress,
            keep_outputs=keep_outputs,
        )
        start = time.perf_counter()
        result = spec.function(lab, setting)
    seconds = time.perf_counter() - start
    write_result(result, _facts(spec, setting, lab, seconds), folder)
    return result


def _setting(spec: Experiment, scale: str, overrides: Sequence[str]) -> Any:
    """The setting of a scale with ``KEY=VALUE`` laid over it."""
    setting = spec.scales[scale]
    values = {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"expected KEY=VALUE, got {override!r}")
        values[key.strip()] = toml_value(text.strip())
    found = config_from(type(setting), values, where=f"the settings of {spec.name}")
    _check_lists(spec, found)
    return found


def _check_lists(spec: Experiment, setting: Any) -> None:
    """Refuse an empty list where no scale has one, and a seed that comes twice."""
    for field in dataclasses.fields(setting):
        usual = [getattr(one, field.name) for one in spec.scales.values()]
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
