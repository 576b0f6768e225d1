"""One page per experiment, from the files that running it left in ``results/``."""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
# a page is also read where it is committed, without the other pages of the documentation
_CLAIMS = ("(https://hardsight.readthedocs.io/papers/claims/)", "(../papers/claims.md)")


def _experiments() -> list[Any]:
    from hardsight.experiments import EXPERIMENTS

    return [EXPERIMENTS[name] for name in sorted(EXPERIMENTS)]


def on_config(config: Any) -> Any:
    """Put the pages into the navigation, before the reference."""
    pages = [{"All of them": "results/index.md"}, {"The papers, item by item": "results/papers.md"}]
    pages += [{name: f"results/{name}.md"} for spec in _experiments() for name in _names(spec)]
    at = next(i for i, entry in enumerate(config.nav) if "Performance" in entry)
    config.nav.insert(at, {"Results": pages})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Make the pages and add the figures."""
    every = [(spec, name) for spec in _experiments() for name in _names(spec)]
    for spec, name in every:
        folder = RESULTS / name
        page = folder / "README.md"
        text = page.read_text(encoding="utf-8") if page.exists() else _not_run(spec)
        # figures are in a separate folder beside the pages
        text = re.sub(r"\]\((?P<file>[\w.-]+\.svg)\)", rf"]({name}/\g<file>)", text)
        text = text.replace(*_CLAIMS)
        files.append(File.generated(config, f"results/{name}.md", content=text))
        for figure in sorted(folder.glob("*.svg")):
            where = f"results/{name}/{figure.name}"
            files.append(File.generated(config, where, abs_src_path=str(figure)))
    files.append(File.generated(config, "results/index.md", content=_index()))
    files.append(File.generated(config, "results/papers.md", content=_papers()))
    return files


def _names(spec: Any) -> list[str]:
    """Folders of an experiment: the usual one, and others such as that at the paper's scale."""
    others = [file.parent for file in sorted(RESULTS.glob(f"{spec.name}-*/result.json"))]
    return [spec.name, *(folder.name for folder in others if _name_in(folder) == spec.name)]


def _name_in(folder: Path) -> str:
    return str(json.loads((folder / "result.json").read_text(encoding="utf-8"))["name"])


def _not_run(spec: Any) -> str:
    about = spec.about(spec.scales["short"])
    return (
        f"# {spec.title}\n\n*{spec.reproduces}*\n\n{about}\n\nNot run yet:\n\n"
        f"```console\n$ hardsight experiment run {spec.name} --scale short\n```\n"
    )


def _index() -> str:
    rows = "\n".join(
        f"| [{name}]({name}.md) | {spec.title} | {spec.reproduces} | {_state(name)} |"
        for spec in _experiments()
        for name in _names(spec)
    )
    return (
        "# Results\n\nEvery page below was made by one command, which you find at its end together "
        "with seeds, versions and hardware. It says which claims of the paper hold here and which "
        "do not ([how a claim is judged](../papers/claims.md)). At the scale *short*, there are "
        "fewer epochs and smaller networks than in the papers; at the scale *paper*, both are the "
        "papers' own. All experiments use the real data. [The papers, item by item](papers.md) "
        "goes the other way, from every table and figure to the page that covers it.\n\n"
        "| experiment | what it shows | reproduces | run |\n| --- | --- | --- | --- |\n"
        f"{rows}\n"
    )


def _papers() -> str:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?P<name>[\w-]+)/README\.md\)", r"](\g<name>.md)", text).replace(*_CLAIMS)


def _state(name: str) -> str:
    """Whether, on what and with which changes an experiment was run."""
    file = RESULTS / name / "result.json"
    if not file.exists():
        return "not yet"
    content = json.loads(file.read_text(encoding="utf-8"))
    changed = content["command"].partition(" --set ")[1]
    seeds = len(content["seeds"])
    where = content["hardware"]["gpu"] or "a CPU"
    told = f"{content['scale']}, {seeds} seed{'s' * (seeds > 1)}, {where}"
    return f"{told}{', reduced' if changed else ''}"
