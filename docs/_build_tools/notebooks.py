"""The notebooks of ``examples/notebooks``: a page each, and the command that runs them again.

    python docs/_build_tools/notebooks.py [NAME ...]

runs notebooks from their first cell to the last, each in its own folder, and stores their outputs.
A stored notebook records which code its outputs belong to, so a test can tell when a cell was
changed but not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "examples" / "notebooks"
PAGES = {  # in the order of the navigation
    "find-and-fix-label-errors": "Find and fix label errors",
    "score-your-own-model": "Score your own model",
    "swap-a-loss": "Swap a loss",
    "training-dynamics": "Training dynamics in a plain loop",
    "adapt-to-a-new-domain": "Adapt to a new domain",
    "hard-tokens": "Hard tokens of a translator",
    "a-million-classes": "A million classes",
}
_ADDRESS = "https://hardsight.readthedocs.io/"
_LONGEST_LINE = 400  # of what a cell prints
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def read(name: str) -> dict[str, Any]:
    """A notebook as it is stored."""
    found: dict[str, Any] = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    return found


def code_of(notebook: dict[str, Any]) -> str:
    """A digest of all code cells, which the outputs belong to."""
    cells = [_text(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\0".join(cells).encode("utf-8")).hexdigest()


def executed(name: str) -> dict[str, Any]:
    """The notebook, run from start to end in an empty folder; nothing is stored."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.reads(json.dumps(read(name)), as_version=4)
    # subprocesses of a kernel must find this checkout, and a reader's cache is none of our business
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    settings = {
        "PYTHONPATH": path, "HARDSIGHT_CACHE": "off", "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore:IProgress not found",  # of tqdm, where no widgets are installed
    }  # fmt: skip
    before = {key: os.environ.get(key) for key in settings}
    os.environ.update(settings)
    try:
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(
                notebook, timeout=600, kernel_name="python3", record_timing=False,
                resources={"metadata": {"path": folder}},
            )  # fmt: skip
            client.execute()
    finally:
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
    found: dict[str, Any] = json.loads(nbformat.writes(notebook))
    return found


def store(name: str) -> None:
    """Run a notebook and keep its outputs."""
    notebook = executed(name)
    for cell in notebook["cells"]:
        cell["metadata"] = {}
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "hardsight": {"outputs_of": code_of(notebook)},
    }
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    (NOTEBOOKS / f"{name}.ipynb").write_text(f"{text}\n", encoding="utf-8")


def on_config(config: Any) -> Any:
    """Put the pages into the navigation, after the guides."""
    pages = [{title: f"notebooks/{name}.md"} for name, title in PAGES.items()]
    at = next(i for i, entry in enumerate(config.nav) if "Losses" in entry)
    config.nav.insert(at, {"Notebooks": pages})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Make a page of every notebook."""
    from mkdocs.structure.files import File

    for name in PAGES:
        files.append(File.generated(config, f"notebooks/{name}.md", content=page(name)))
    return files


def page(name: str) -> str:
    """A notebook as Markdown: its text, its code and what the code showed."""
    parts = []
    for cell in read(name)["cells"]:
        text = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_linked(text))
            continue
        parts.append(_fenced(text, "python"))
        parts += [_shown(output) for output in _joined(cell["outputs"])]
    parts.append(
        f"*This page shows the notebook `examples/notebooks/{name}.ipynb` with its stored outputs. "
        "They are from a CPU; on another processor, numbers differ slightly.*"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _linked(text: str) -> str:
    """Addresses of the documentation as links between pages, which the build checks."""
    pattern = re.compile(re.escape(_ADDRESS) + r"([\w/-]+?)/?(#[\w-]+)?\)")
    return pattern.sub(lambda found: f"../{_file_of(found[1])}{found[2] or ''})", text)


def _file_of(address: str) -> str:
    return f"{address}.md" if (ROOT / "docs" / f"{address}.md").exists() else f"{address}/index.md"


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Outputs, of which neighbours on the same stream are one."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        if joined and output.get("name") and joined[-1].get("name") == output["name"]:
            joined[-1] = {**output, "text": _text(joined[-1]["text"]) + _text(output["text"])}
        else:
            joined.append(output)
    return joined


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _fenced(_COLOURS.sub("", _text(output["text"])), "text")
    data = output["data"]
    if "image/png" in data:
        code = "".join(_text(data["image/png"]).split())
        base64.b64decode(code, validate=True)  # goes into the page as it is
        return f'<img class="notebook" alt="figure" src="data:image/png;base64,{code}">'
    if "text/html" in data:
        # a page's HTML must not be read as Markdown, in which an empty line would end it
        lines = (line.strip() for line in _text(data["text/html"]).splitlines())
        return f'<div class="notebook">{"".join(line for line in lines if line)}</div>'
    return _fenced(_text(data["text/plain"]), "text")


def _fenced(text: str, language: str) -> str:
    lines = [line[:_LONGEST_LINE] for line in text.rstrip().splitlines()]
    return "\n".join([f"````{language}", *lines, "````"])


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PAGES:
        store(chosen)
        size = (NOTEBOOKS / f"{chosen}.ipynb").stat().st_size
        print(f"{chosen}: {size / 1024:.0f} KB")
