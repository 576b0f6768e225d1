"""One page per experiment, from the files that running it left in ``results/``."""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def _experiments() -> list[Any]:
    from hardsight.experiments import EXPERIMENTS

    return [EXPERIMENTS[name] for name in sorted(EXPERIMENTS)]


def on_config(config: Any) -> Any:
    """Put the pages into the navigation, before the reference."""
    pages = [{"All of them": "results/index.md"}]
    pages += [{spec.name: f"results/{spec.name}.md"} for spec in _experiments()]
    at = next(i for i, entry in enumerate(config.nav) if "Performance" in entry)
    config.nav.insert(at, {"Results": pages})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Make the pages and take the figures along."""
    for spec in _experiments():
        folder = RESULTS / spec.name
        page = folder / "README.md"
        text = page.read_text(encoding="utf-8") if page.exists() else _not_run(spec)
        # figures lie in a folder of their own beside the pages
        text = re.sub(r"\]\((?P<file>[\w.-]+\.svg)\)", rf"]({spec.name}/\g<file>)", text)
        files.append(File.generated(config, f"results/{spec.name}.md", content=text))
        for figure in sorted(folder.glob("*.svg")):
            where = f"results/{spec.name}/{figure.name}"
            files.append(File.generated(config, where, abs_src_path=str(figure)))
    files.append(File.generated(config, "results/index.md", content=_index()))
    return files


def _not_run(spec: Any) -> str:
    about = spec.about(spec.scales["paper"])
    return (
        f"# {spec.title}\n\n*{spec.reproduces}*\n\n{about}\n\nNot run at paper scale yet:\n\n"
        f"```console\n$ hardsight experiment run {spec.name} --scale paper\n```\n"
    )


def _index() -> str:
    rows = "\n".join(
        f"| [{spec.name}]({spec.name}.md) | {spec.title} | {spec.reproduces} | {_state(spec)} |"
        for spec in _experiments()
    )
    return (
        "# Results\n\nEvery page below is made by one command, which stands at its end with seeds, "
        "versions and hardware, and says which claims of the paper hold here and which do not. "
        "Epochs are fewer than the papers' where the page says so; the data is the real one.\n\n"
        "| experiment | what it shows | makes again | run |\n| --- | --- | --- | --- |\n"
        f"{rows}\n"
    )


def _state(spec: Any) -> str:
    """Whether, on what and with which changes an experiment was run."""
    file = RESULTS / spec.name / "result.json"
    if not file.exists():
        return "not yet"
    content = json.loads(file.read_text(encoding="utf-8"))
    changed = content["command"].partition(" --set ")[1]
    seeds = len(content["seeds"])
    where = content["hardware"]["gpu"] or "a CPU"
    return f"{seeds} seed{'s' * (seeds > 1)}, {where}{', reduced' if changed else ''}"
