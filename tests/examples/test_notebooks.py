"""The notebooks of examples/notebooks: their stored outputs, their pages, and that they run.

Running them takes most of a minute, so that it has a marker: ``make test-notebooks``.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location(
    "notebooks", ROOT / "docs" / "_build_tools" / "notebooks.py"
)
notebooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(notebooks)

NAMES = list(notebooks.PAGES)
MACHINE = re.compile(r"/(home|Users|root|dev/shm|mnt|scratch|tmp|work)/\w|127\.0\.0\.1|#token=")


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def faults(notebook) -> list[str]:
    """What is wrong with the outputs that are stored in a notebook."""
    found = []
    cells = code_cells(notebook)
    if [cell["execution_count"] for cell in cells] != list(range(1, len(cells) + 1)):
        found.append("cells were not run in their order")
    outputs = [output for cell in cells for output in cell["outputs"]]
    if any(output["output_type"] == "error" for output in outputs):
        found.append("a cell ended with an error")
    if any(output.get("name") == "stderr" for output in outputs):
        found.append("a cell warned")
    if MACHINE.search(json.dumps(notebook["cells"])):
        found.append("it names the machine that ran it")
    if notebook["metadata"]["hardsight"]["outputs_of"] != notebooks.code_of(notebook):
        found.append("its code was changed and not run again")
    return found


def test_every_notebook_has_a_page():
    assert {file.stem for file in notebooks.NOTEBOOKS.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_those_of_the_code_beside_them(name):
    assert faults(notebooks.read(name)) == []
    assert (notebooks.NOTEBOOKS / f"{name}.ipynb").stat().st_size <= 300 * 1024
    for cell in code_cells(notebooks.read(name)):
        ast.parse("".join(cell["source"]))


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda n: n["cells"].reverse(), "not run in their order"),
        (lambda n: code_cells(n)[0]["source"].append("\nx = 1"), "changed and not run"),
        (lambda n: code_cells(n)[0]["outputs"].append({"output_type": "error"}), "an error"),
        (lambda n: code_cells(n)[0]["outputs"].append(
            {"output_type": "stream", "name": "stderr", "text": ["/home/anna/x.py:1: W"]}
        ), "names the machine"),
    ],
)  # fmt: skip
def test_outputs_that_are_not_of_the_code_are_found(spoil, fault):
    notebook = copy.deepcopy(notebooks.read("a-million-classes"))
    spoil(notebook)
    assert any(fault in found for found in faults(notebook))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_text_code_and_outputs(name):
    page, notebook = notebooks.page(name), notebooks.read(name)
    assert page.startswith("# ")
    assert page.count("````python") == len(code_cells(notebook))
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                assert "".join(output["text"]).strip() in page
            elif "image/png" in output["data"]:
                assert "data:image/png;base64," in page
    linked = re.findall(r"\]\(\.\./([\w/-]+\.md)", page)
    assert all((ROOT / "docs" / target).is_file() for target in linked)
    assert "](https://hardsight.readthedocs.io" not in page


def kinds(notebook):
    """What each cell shows: text, a figure, HTML; not its numbers, which are the processor's."""
    return [
        sorted({output["output_type"], *output.get("data", ())} for output in cell["outputs"])
        for cell in code_cells(notebook)
    ]


@pytest.mark.notebooks
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_it_showed_before(name):
    made = notebooks.executed(name)
    assert not [o for cell in code_cells(made) for o in cell["outputs"] if "error" in o.values()]
    assert kinds(made) == kinds(notebooks.read(name))
