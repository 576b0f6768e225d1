"""The documentation names every public function, and every page is in the navigation."""

from __future__ import annotations

import importlib
import json
import posixpath
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "scores",
    "losses",
    "stats",
    "selftrain",
    "tracking",
    "evaluate",
    "heads",
    "kernels",
    "models",
    "data",
    "report",
    "review",
    "patch",
    "exchange",
    "selection",
)
UNDOCUMENTED = {
    "hardsight.scores.SCORES",
    "hardsight.tracking.SUMMARIES",
}  # registries, shown by their entries


def documented() -> set[str]:
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    return set(re.findall(r"^::: (\S+)", text, re.M))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_place_in_the_reference(package):
    module = importlib.import_module(f"hardsight.{package}")
    lines = Path(module.__file__).read_text()
    names = {f"hardsight.{package}.{name}" for name in re.findall(r"import \w+ as (\w+)", lines)}
    assert names
    assert names - documented() - UNDOCUMENTED == set()


def test_every_documented_name_exists():
    for name in documented():
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if page not in navigation} == set()


def linked_pages(name: str, text: str) -> set[str]:
    """Pages of the documentation that a page links to."""
    links = re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", text)
    return {posixpath.normpath(posixpath.join(posixpath.dirname(name), link)) for link in links}


def pages_within(clicks: int, pages: dict[str, str]) -> set[str]:
    reached = {"index.md"}
    for _ in range(clicks):
        reached |= {link for name in reached for link in linked_pages(name, pages.get(name, ""))}
    return reached


def test_every_page_is_within_two_clicks_of_the_start_page():
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix(): page.read_text() for page in docs.rglob("*.md")}
    notebooks = (ROOT / "examples" / "notebooks").glob("*.ipynb")
    made = {f"notebooks/{notebook.stem}.md" for notebook in notebooks}
    # a page made at build time, which links to the page of every result
    made.add("results/index.md")
    assert (pages.keys() | made) - pages_within(2, pages) == set()
    assert "results/index.md" in pages_within(1, pages)


def test_a_page_that_takes_three_clicks_is_found():
    pages = {"index.md": "[a](a/b.md)", "a/b.md": "[c](../c.md#part)", "c.md": "[d](d.md)"}
    assert pages_within(2, pages) == {"index.md", "a/b.md", "c.md"}


POSIX = re.compile(
    r"\bos\.(fork|mkfifo|geteuid)\b|\bforks\b|\bSIG(KILL|ALRM|PROF)\b|\bAF_UNIX\b"
    r"|^ *import resource\b",
    re.M,
)


def needs_posix() -> set[str]:
    files = {file.relative_to(ROOT).as_posix(): file for file in (ROOT / "tests").rglob("*.py")}
    shared = {"tests/_forks.py", "tests/conftest.py", "tests/guards/test_docs.py"}
    return {
        name
        for name, file in files.items()
        if name not in shared and POSIX.search(file.read_text(encoding="utf-8"))
    }


def test_contributing_names_the_tests_that_need_posix():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## What needs POSIX")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(tests/[\w/]+\.py)`", section)) == needs_posix()


def test_committed_results_name_no_folder_of_the_machine_that_made_them():
    folder = re.compile(r"/(home|Users|root|dev/shm|mnt|scratch|tmp|work)/\w")
    texts = [".csv", ".html", ".json", ".md", ".svg"]
    made = [
        file
        for place in ("results", "benchmarks/results", "docs/assets")
        for file in sorted((ROOT / place).rglob("*"))
        if file.suffix in texts
    ]
    assert len(made) > 40
    found = [str(file) for file in made if folder.search(file.read_text(encoding="utf-8"))]
    assert found == []


def stored_results() -> dict[str, list[tuple[str, bool]]]:
    """Scale, and whether it was a GPU, of every committed result, by experiment."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for file in sorted((ROOT / "results").glob("*/result.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        on_gpu = result["hardware"]["gpu"] is not None
        found.setdefault(result["name"], []).append((result["scale"], on_gpu))
    return found


def test_the_page_of_limits_names_the_experiments_without_results():
    from hardsight.experiments import EXPERIMENTS

    stored = stored_results()
    page = (ROOT / "docs" / "guides" / "limits.md").read_text(encoding="utf-8")
    said = {
        kind: re.findall(r"`([\w-]+)`", names)
        for kind, names in re.findall(r"^\| (no stored|a result|a scale)[^|]*\|(.*)\|$", page, re.M)
    }
    on_gpu = {name for name, runs in stored.items() if any(gpu for _, gpu in runs)}
    at_paper = {name for name, runs in stored.items() if "paper" in dict(runs)}
    has_paper = {name for name, spec in EXPERIMENTS.items() if "paper" in spec.scales}
    assert said["no stored"] == sorted(EXPERIMENTS.keys() - stored.keys())
    assert said["a result"] == sorted(stored.keys() - on_gpu)
    assert said["a scale"] == sorted(has_paper - at_paper)
