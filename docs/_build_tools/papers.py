"""Write the verdicts into the pages of the papers: the number of claims per outcome, by page.

``PYTHONPATH=. python docs/_build_tools/papers.py``. The table is between two comments in
``docs/papers/*.md``, after a text that people wrote. It is computed from the results, so it cannot
contradict them. ``results/papers.toml`` says which page belongs to which paper.
"""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path

from hardsight.experiments.lab import TOO_FEW, TOO_WEAK, read_result

ROOT = Path(__file__).parents[2]
RESULTS, PAPERS = ROOT / "results", ROOT / "docs" / "papers"
FILES = {"avh": "avh.md", "amc": "amc.md", "el": "encouraging-loss.md"}
BEGIN, END = "<!-- verdicts, by docs/_build_tools/papers.py -->", "<!-- end of verdicts -->"
KINDS = {
    "yes": "holds",
    "no": "does not",
    "undecided": "undecided",
    TOO_FEW: "too few seeds",
    TOO_WEAK: "network too weak",
}


def pages_of(paper: str) -> list[str]:
    """Results that stand for a table or figure of a paper, in the order of their names."""
    stated = tomllib.loads((RESULTS / "papers.toml").read_text(encoding="utf-8"))
    return sorted({name for entry in stated[paper] for name in entry.get("pages", ())})


def verdicts(paper: str) -> str:
    """A row per page, and their sum."""
    rows, total = [], Counter[str]()
    for name in pages_of(paper):
        counts = Counter(claim.kind for claim in read_result(RESULTS / name)[0].claims)
        facts = json.loads((RESULTS / name / "result.json").read_text(encoding="utf-8"))
        total += counts
        about = f"[{name}](../results/{name}.md), {facts['scale']}, n = {len(facts['seeds'])}"
        rows.append(_row(about, counts))
    head = ["claims of the page", *KINDS.values()]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *rows, _row("**all**", total)])


def _row(about: str, counts: Counter[str]) -> str:
    cells = [about, *(str(counts[kind] or "") for kind in KINDS)]
    return "| " + " | ".join(cells) + " |"


def renewed(paper: str) -> str:
    """The page of a paper with the verdicts of today."""
    text = (PAPERS / FILES[paper]).read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n{verdicts(paper)}\n{END}", text)


if __name__ == "__main__":
    for each, file in FILES.items():
        (PAPERS / file).write_text(renewed(each), encoding="utf-8")
