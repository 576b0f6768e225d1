"""Every option, and where it appears: as a flag, a keyword, a key of TOML files, a column.

Read from the commands themselves, the signatures of the functions behind them, the fields of
recipes, and the registries of scores and summaries.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

PAGE = "reference/options.md"
_PLACE = "<!-- options -->"
_SHARED = ("quiet", "verbose", "as_json", "help")  # of the program, not of the work
# command -> (its function in Python, its settings in TOML); None where there is none
PYTHON = {
    "score": "score",
    "train": "train",
    "adapt": "adapt",
    "report": "write_report",
    "review": "review",
    "patch apply": "apply_patch",
    "patch export": "exchange.patch_of",
    "export": "exchange.export_run",
    "queue": "queue",
    "select": "select",
    "evaluate": "evaluation_card",
    "study human": "study_human",
    "study degradation": "study_degradation",
    "study dynamics": "study_dynamics",
    "experiment run": "experiments.run_experiment",
}
TOML = {
    "score": "hardsight.run.score:ScoreConfig",
    "train": "hardsight.run.train:TrainConfig",
    "adapt": "hardsight.run.adapt:AdaptConfig",
}
# the same thing by two names, and why: (command, flag) -> what it is elsewhere
OTHER_NAMES = {
    ("score", "recipe"): "`hs.train(..., folds=)`; Python does not need a recipe file",
    ("train", "data_root"): "key `data.root`",
    ("adapt", "data_root"): "keys `source.root`, `target.root`",
    ("adapt", "source_split"): "key `source.split`",
    ("adapt", "target_split"): "key `target.split`",
    ("adapt", "unlabelled"): "key `target.unlabelled`",
    ("adapt", "weights"): "key `model.weights`",
    ("adapt", "model_classes"): "key `model.classes`",
    ("adapt", "class_order"): "key `model.class_order`",
    ("adapt", "trust_remote_code"): "key `model.trust_remote_code`",
    ("adapt", "source_epochs"): "key `pretrain.epochs`",
    ("adapt", "epochs"): "key `retrain.epochs`",
    **{
        ("adapt", name): f"key `source.{name}`, for both domains"
        for name in ("size", "crop", "squash", "channels", "mean", "std", "white")
    },
    ("review", "no_browser"): "`open_browser=False`",
    ("review", "allow_hosts"): "`allow_hosts`; the flag `--allow-host` is repeated",
    ("patch export", "out"): "`hs.patch.write_patch`",
    ("patch export", "overwrite"): "`hs.patch.write_patch`",
    ("patch export", "resolve"): "`hs.patch.resolved`",
    ("select", "out"): "`hs.selection.write_rows`",
    ("select", "overwrite"): "`hs.selection.write_rows`",
    ("evaluate", "compare"): "`models`, a mapping of several",
    ("evaluate", "weights"): "of `models`",
}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put the tables where the page asks for them."""
    return markdown.replace(_PLACE, tables()) if page.file.src_uri == PAGE else markdown


def commands() -> dict[str, Any]:
    """Every command that does something, by its words."""
    import click

    from hardsight.cli import main

    def leaves(command: Any, words: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(command, click.Group):
            return {" ".join(words): command}
        context = click.Context(command)
        return {
            name: leaf
            for word in command.list_commands(context)
            for name, leaf in leaves(command.get_command(context, word), (*words, word)).items()
        }

    return leaves(main, ())


def options_of(command: Any) -> dict[str, str]:
    """Flags of a command by the name of their setting, without those that all commands share."""
    import click

    return {
        option.name: next((flag for flag in option.opts if flag.startswith("--")), option.opts[0])
        for option in command.params
        if isinstance(option, click.Option)
        and option.name not in _SHARED
        and not option.hidden  # an earlier name
    }


def keywords_of(name: str) -> set[str]:
    """What the function behind a command takes by name."""
    import hardsight

    found: Any = hardsight
    for part in PYTHON[name].split("."):
        found = getattr(found, part)
    if inspect.ismodule(found):  # hs.review is a package that can be called
        found = found.review
    names = {
        parameter.name
        for parameter in inspect.signature(found).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    if name == "study degradation":  # the rest of its keywords goes to hs.score
        return names | keywords_of("score")
    return names | set(keys_of(name)) if name in ("train", "adapt") else names


def keys_of(name: str) -> set[str]:
    """Keys of the TOML file that a command takes; keys of its tables with a dot."""
    if name not in TOML:
        return set()
    import importlib
    import typing

    module, _, attribute = TOML[name].partition(":")
    settings = getattr(importlib.import_module(module), attribute)
    kinds = typing.get_type_hints(settings)
    found = set()
    for field in dataclasses.fields(settings):
        found.add(field.name)
        for kind in (kinds[field.name], *typing.get_args(kinds[field.name])):
            if dataclasses.is_dataclass(kind):
                found |= {f"{field.name}.{inner.name}" for inner in dataclasses.fields(kind)}
    return found


def differences() -> list[str]:
    """Flags that neither Python nor a file knows by the same name, and that are not explained."""
    found = []
    for name, command in commands().items():
        if name not in PYTHON:
            continue
        known = keywords_of(name) | keys_of(name)
        found += [
            f"{name} {flag}"
            for option, flag in options_of(command).items()
            if option not in known and option != "overrides" and (name, option) not in OTHER_NAMES
        ]
    return found


def tables() -> str:
    """All options of all commands, a line each."""
    from hardsight.registry import SUMMARIES
    from hardsight.scores import SCORES

    columns = set(SCORES) | set(SUMMARIES) | {"index", "id", "label", "prediction"}
    places: dict[str, dict[str, list[str]]] = {}
    for name, command in commands().items():
        keywords = keywords_of(name) if name in PYTHON else set()
        keys = keys_of(name)
        flags = options_of(command)
        for option in sorted({*flags, *keywords} - {"overrides"}):
            if "." in option:  # a key of a table, which the reference of its class lists
                continue
            row = places.setdefault(option, {"flag": [], "python": [], "toml": []})
            if option in flags:
                row["flag"].append(name)
            if option in keywords:
                row["python"].append(f"hs.{PYTHON[name]}")
            if option in keys:
                row["toml"].append(name)
    lines = [
        "| option | flag of | keyword of | key of the file of | column |",
        "|---|---|---|---|---|",
    ]
    for option, row in sorted(places.items()):
        flag = _listed(row["flag"], code=False)
        lines.append(
            f"| `{option}` | {flag} | {_listed(row['python'])} | {_listed(row['toml'], code=False)}"
            f" | {'yes' if option in columns else ''} |"
        )
    other = [
        "| command | option | elsewhere |",
        "|---|---|---|",
        *(
            f"| `hardsight {command}` | `{option}` | {said} |"
            for (command, option), said in sorted(OTHER_NAMES.items())
        ),
    ]
    return "\n".join([*lines, "", "## By another name", "", *other])


def _listed(names: list[str], *, code: bool = True) -> str:
    return ", ".join(f"`{name}`" if code else name for name in dict.fromkeys(names))
