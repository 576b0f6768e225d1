"""Print the oldest versions that pyproject.toml allows, as requirements for pip.

python .ci/bounds.py          of the core
python .ci/bounds.py train    of the core and of an extra
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
# name[extras]>=version; marker. Constraints of pip may not name extras
BOUND = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?>=(?P<version>[\w.]+)(?P<marker>\s*;.*)?")
OWN = re.compile(r"hardsight\[(?P<extras>[\w,-]+)\]")


def bounds(project: dict, *extras: str) -> Iterator[re.Match[str]]:
    """Name, version and marker of every requirement of the core and the extras."""
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    for requirement in wanted:
        if own := OWN.fullmatch(requirement):
            yield from bounds({**project, "dependencies": []}, *own["extras"].split(","))
        elif bound := BOUND.fullmatch(requirement):
            yield bound
        else:
            raise SystemExit(f"expected name>=version in {PROJECT.name}, got {requirement!r}")


def oldest(project: dict, *extras: str) -> list[str]:
    """A line ``name==version`` for every requirement; an extra may raise the core's bound."""
    highest: dict[str, re.Match[str]] = {}
    for bound in bounds(project, *extras):
        before = highest.get(bound["name"])
        if before is None or release(bound) > release(before):
            highest[bound["name"]] = bound
    return [f"{one['name']}=={one['version']}{one['marker'] or ''}" for one in highest.values()]


def release(bound: re.Match[str]) -> tuple[int, ...]:
    """A version in numbers."""
    return tuple(int(part) for part in bound["version"].split("."))


if __name__ == "__main__":
    print(*oldest(tomllib.loads(PROJECT.read_text())["project"], *sys.argv[1:]), sep="\n")
