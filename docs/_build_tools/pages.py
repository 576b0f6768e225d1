"""Bring the pages in ``results/`` up to date with the wording of today: after a change of it.

``PYTHONPATH=. python docs/_build_tools/pages.py [NAME ...]``. Title and first paragraph come from
the experiment with the settings of the run, the command states every setting that is no default of
today, and the figures stand before the tables. Numbers stay as they are, and so does a remark that
was added by hand (lines that begin with ``>``).
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from hardsight.config import config_from
from hardsight.experiments import EXPERIMENTS
from hardsight.experiments.lab._result import PAGE, RESULT, plain
from hardsight.experiments.lab._run import command_of

RESULTS = Path(__file__).parents[2] / "results"


def renewed(content: dict[str, Any], text: str) -> tuple[dict[str, Any], str]:
    """The content of ``result.json`` and the page, with the wording of today."""
    spec = EXPERIMENTS[content["name"]]
    setting = _setting(spec.scales[content["scale"]], content["setting"])
    command = command_of(spec, content["scale"], setting)
    about = spec.about(setting)
    facts: dict[str, Any] = {
        "title": spec.title,
        "reproduces": spec.reproduces,
        "about": about,
        "command": command,
        "setting": dataclasses.asdict(setting),
    }
    parts = text.removesuffix("\n").split("\n\n")
    parts[:3] = [f"# {spec.title}", f"*{spec.reproduces}*", about]
    commands = [at for at, part in enumerate(parts) if part.startswith("```console\n$ hardsight")]
    parts[commands[-1]] = f"```console\n$ {command}\n```"
    return {**content, **facts}, "\n\n".join(_figures_first(parts)) + "\n"


def _setting(usual: Any, stored: dict[str, Any]) -> Any:
    """The setting of a run; a number that was stored rounded is the usual one."""
    exact = dataclasses.asdict(usual)
    values = {
        key: exact[key] if plain(exact[key]) == plain(value) else value
        for key, value in stored.items()
    }
    return config_from(type(usual), values, where="the stored setting")


def _figures_first(parts: list[str]) -> list[str]:
    """Figures, each with its caption, right after the claims: before the first table."""
    places = [at for at, part in enumerate(parts) if part.startswith("![")]
    moved = [part for at in places for part in parts[at : at + 2]]
    kept = [part for at, part in enumerate(parts) if at not in places and at - 1 not in places]
    headings = [at for at, part in enumerate(kept) if part.startswith("## ")]
    tables = [at for at in headings if kept[at] != "## What holds"]
    return [*kept[: tables[0]], *moved, *kept[tables[0] :]]


def main(names: list[str]) -> None:
    """Renew the named results, or all."""
    for folder in sorted(RESULTS.iterdir()):
        if (folder / RESULT).exists() and (not names or folder.name in names):
            content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
            old = (folder / PAGE).read_text(encoding="utf-8")
            content, text = renewed(content, old)
            written = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            (folder / RESULT).write_text(written, encoding="utf-8")
            (folder / PAGE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
