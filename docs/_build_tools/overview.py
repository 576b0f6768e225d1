"""Write ``results/README.md``: every table and figure of the papers, and our page for it.

``PYTHONPATH=. python docs/_build_tools/overview.py``. ``results/papers.toml`` says what a table or
figure shows and which page covers it. Scale, accuracies and verdicts are read from the results, so
the page cannot contradict them.
"""

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hardsight.experiments.lab import TOO_FEW, TOO_WEAK, read_result

RESULTS = Path(__file__).parents[2] / "results"
PAPERS = {
    "avh": "Angular Visual Hardness",
    "amc": "AMC-Loss",
    "el": "Encouraging Loss",
}
_ORDER = ("yes", "no", "undecided", TOO_FEW, TOO_WEAK)


def overview(results: Path = RESULTS) -> str:
    """The whole page."""
    stated = tomllib.loads((results / "papers.toml").read_text(encoding="utf-8"))
    parts = [_head(results)]
    for key, title in PAPERS.items():
        rows = "\n".join(_row(entry, results, stated["networks"]) for entry in stated[key])
        parts.append(
            f"## {title}\n\n| item | shows | page and scale | accuracy of the plain network "
            f"| claims of the page |\n| --- | --- | --- | --- | --- |\n{rows}\n"
        )
    return "\n".join(parts)


def _head(results: Path) -> str:
    counts: Counter[str] = Counter()
    for file in sorted(results.glob("*/result.json")):
        counts += _verdicts(file.parent)
    total = sum(counts.values())
    return (
        "# The papers, item by item\n\nThis page lists every table and figure of the three papers, "
        "and the page that covers it here. A page judges its claims as a whole, so figures that "
        "share a page share its verdicts.\n\n"
        "- *short*: fewer epochs and smaller networks than in the paper.\n"
        "- *paper*: the paper's own setting; the page lists what differs.\n"
        "- *network too weak to judge*: the plain network is more than two points below what it "
        "reaches with a good recipe.\n"
        "- *cannot be decided here*: there are too few seeds to see an effect as large as the "
        "paper's; the page says how many it takes.\n\n"
        f"The {total} claims on all pages came out as follows: {_told(counts)} "
        "([how a claim is judged](https://hardsight.readthedocs.io/papers/claims/)).\n"
    )


def _row(entry: dict[str, Any], results: Path, networks: dict[str, Any]) -> str:
    cells = [entry["item"], entry["shows"]]
    if "why" in entry:
        return f"| {' | '.join(cells)} | none: {entry['why']} | | |"
    pages, accuracies, verdicts = [], [], []
    for name in entry["pages"]:
        folder = results / name
        content = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        pages.append(f"[{name}]({name}/README.md), {content['scale']}, n = {len(content['seeds'])}")
        accuracies += [
            f"{network} {_accuracy(content['data'], path)}"
            for network, path in networks.get(name, {}).items()
        ]
        verdicts.append(_told(_verdicts(folder)))
    if "differs" in entry:
        pages.append(f"here: {entry['differs']}")
    cells += ["<br>".join(pages), "<br>".join(accuracies) or "not stored", "<br>".join(verdicts)]
    return f"| {' | '.join(cells)} |"


def _verdicts(folder: Path) -> Counter[str]:
    result, _ = read_result(folder)
    return Counter(claim.kind for claim in result.claims)


def _told(counts: Counter[str]) -> str:
    known = [name for name in _ORDER if counts[name]]
    known += sorted(set(counts) - set(_ORDER))
    return ", ".join(f"{counts[name]} {name}" for name in known) or "none"


def _accuracy(data: Any, path: list[str | int]) -> str:
    """Mean of what lies at a path, in per cent; stored accuracies are shares or per cent."""
    mean = float(np.mean(_at(data, path)))
    return f"{100 * mean if mean <= 1 else mean:.1f} %"


def _at(data: Any, path: list[str | int]) -> Any:
    if not path:
        return data
    first, *rest = path
    if first == "*":
        held = data.values() if isinstance(data, dict) else data
        return [_at(value, rest) for value in held]
    return _at(data[first], rest)


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(overview(), encoding="utf-8")
