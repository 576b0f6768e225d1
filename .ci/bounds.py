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
# name[extras]>=version; marker
BOUND = re.compile(r"(?P<name>[\w.-]+(\[[\w,-]+\])?)>=(?P<version>[\w.]+)(?P<marker>\s*;.*)?")
OWN = re.compile(r"hardsight\[(?P<extras>[\w,-]+)\]")


def oldest(project: dict, *extras: str) -> Iterator[str]:
    """A line ``name==version`` for every requirement of the core and the extras."""
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    for requirement in wanted:
        if own := OWN.fullmatch(requirement):
            yield from oldest({**project, "dependencies": []}, *own["extras"].split(","))
        elif bound := BOUND.fullmatch(requirement):
            yield f"{bound['name']}=={bound['version']}{bound['marker'] or ''}"
        else:
            raise SystemExit(f"expected name>=version in {PROJECT.name}, got {requirement!r}")


if __name__ == "__main__":
    print(*oldest(tomllib.loads(PROJECT.read_text())["project"], *sys.argv[1:]), sep="\n")
