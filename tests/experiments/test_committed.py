"""What is committed under ``results/`` says what was run, and can be made again as it says."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

from hardsight.errors import ConfigError
from hardsight.experiments import EXPERIMENTS
from hardsight.experiments.lab._result import plain
from hardsight.experiments.lab._run import _setting

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = sorted(file.parent for file in RESULTS.glob("*/result.json"))


def setting_made_by(command):
    """The setting that a printed command gives today."""
    words = shlex.split(command)
    assert words[:3] == ["hardsight", "experiment", "run"]
    assert words[4] == "--scale"
    overrides = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    return dataclasses.asdict(_setting(EXPERIMENTS[words[3]], words[5], overrides))


def test_a_command_without_its_changes_gives_another_setting():
    shorter = "hardsight experiment run avh-geometry --scale short"
    changed = setting_made_by(f"{shorter} --set train_limit=5000 --set 'seeds=[4]'")
    assert (changed["train_limit"], changed["seeds"]) == (5000, (4,))
    assert plain(setting_made_by(shorter)) != plain(changed)
    with pytest.raises(ConfigError, match="unknown key"):
        setting_made_by(shorter + " --set 'epoch=1'")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_printed_command_gives_the_setting_of_the_result(folder):
    # it does not after a change of the defaults: docs/_build_tools/pages.py renews the commands
    content = json.loads((folder / "result.json").read_text())
    assert plain(setting_made_by(content["command"])) == plain(content["setting"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_page_and_its_result_say_the_same(folder):
    content = json.loads((folder / "result.json").read_text())
    page = (folder / "README.md").read_text()
    assert content["about"] in page
    assert f"$ {content['command']}\n" in page
    for claim in content["claims"]:
        assert claim["seen"].replace("|", "\\|") in page
    for figure in content["figures"]:
        assert f"![{figure['alt']}]({figure['file']})" in page
        assert (folder / figure["file"]).exists()
    assert all(alt.strip() for alt in re.findall(r"!\[(.*?)\]", page))
