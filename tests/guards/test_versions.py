"""What pyproject.toml promises: versions that can be installed and tested, extras that are used."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEVELOPERS = {"docs", "test", "dev"}  # constraints.txt says their versions
EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - DEVELOPERS)


def name_of(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0]


def oldest(*extras: str, project: str | None = None, folder: Path | None = None):
    script = ROOT / ".ci" / "bounds.py"
    if project is not None:  # beside another pyproject.toml
        (folder / ".ci").mkdir()
        (folder / "pyproject.toml").write_text(project)
        (folder / ".ci" / "bounds.py").write_text(script.read_text())
        script = folder / ".ci" / "bounds.py"
    return subprocess.run([sys.executable, str(script), *extras], capture_output=True, text=True)


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_requirement_of_a_user_has_an_oldest_version_to_test(extra):
    done = oldest(extra)
    assert done.returncode == 0, done.stderr
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
    pinned = {line.split("==")[0] for line in done.stdout.split("\n") if line}
    assert {name_of(line) for line in asked} - {"hardsight"} <= pinned


def test_the_oldest_versions_are_those_that_the_project_states(tmp_path):
    project = """
[project]
dependencies = ["torch>=2.6", "numpy>=1.26"]
optional-dependencies = {a = ["x-y>=0.1; python_version > '3'"], b = ["hardsight[a]", "z>=3"]}
"""
    done = oldest("b", project=project, folder=tmp_path)
    lines = ["torch==2.6", "numpy==1.26", "x-y==0.1; python_version > '3'", "z==3"]
    assert done.stdout.splitlines() == lines


def test_a_requirement_without_an_oldest_version_is_refused(tmp_path):
    project = '[project]\ndependencies = ["torch"]\n'
    done = oldest(project=project, folder=tmp_path)
    assert done.returncode == 1
    assert "expected name>=version in pyproject.toml, got 'torch'" in done.stderr


def unused(requirements: list[str]) -> list[str]:
    """Requirements that no module of hardsight mentions."""
    text = "\n".join(file.read_text("utf-8") for file in (ROOT / "hardsight").rglob("*.py"))
    names = [name_of(line) for line in requirements]
    return [name for name in names if not re.search(rf"\b{name.replace('-', '_')}\b", text)]


def test_extras_install_only_what_some_module_uses():
    for extra in EXTRAS:
        wanted = PROJECT["optional-dependencies"][extra]
        assert unused([line for line in wanted if name_of(line) != "hardsight"]) == [], extra
    assert unused(["torch>=2.6", "nicegui>=2.0"]) == ["nicegui"]


def test_the_ends_of_the_versions_are_tested_with_every_extra():
    script = (ROOT / ".ci" / "test-versions").read_text()
    installed = set(re.findall(r"^install (\w+)", script, re.MULTILINE))
    filled = {extra for extra in EXTRAS if PROJECT["optional-dependencies"][extra]}
    assert installed == filled


def test_every_file_that_states_the_version_states_the_same_one():
    import hardsight

    version = PROJECT["version"]
    assert hardsight.__version__ == version
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.M) == [version]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## (?!Unreleased)(\S+)", changes, re.M)[0]
    assert newest == version


def test_the_changelog_keeps_its_order():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed"]
    for section in re.split(r"^## ", changes, flags=re.M)[1:]:
        kinds = re.findall(r"^### (.+)$", section, re.M)
        assert kinds == [kind for kind in order if kind in kinds]
