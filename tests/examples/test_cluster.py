"""The launchers of examples/cluster: what can be checked without their clusters."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from hardsight.cli import main

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
SCRIPTS = sorted(FOLDER.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_are_bash(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manifest_shares_one_volume_between_all_pods():
    spec = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())["spec"]
    groups = [spec["rayClusterSpec"]["headGroupSpec"], *spec["rayClusterSpec"]["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        assert [volume["name"] for volume in pod["volumes"]] == ["shared"]
        assert all(part["volumeMounts"][0]["name"] == "shared" for part in pod["containers"])


def commands() -> dict[str, list[str]]:
    """The words after ``hardsight`` in every launcher."""
    texts = {script.name: script.read_text().replace("\\\n", " ") for script in SCRIPTS}
    texts["kuberay.yaml"] = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())["spec"][
        "entrypoint"
    ]
    lines = {name: text.splitlines() for name, text in texts.items()}
    return {
        name: shlex.split(next(line for line in lines[name] if "hardsight score" in line))
        for name in lines
        if any("hardsight score" in line for line in lines[name])
    }


@pytest.mark.parametrize("name", ["kuberay.yaml", "ray-job.sh", "slurm.sh"])
def test_every_flag_of_a_launcher_is_one_of_the_command(name):
    words = commands()[name]
    words = words[words.index("hardsight") + 2 :]
    command = main.get_command(None, "score")
    flags = {flag for option in command.params for flag in option.opts}
    assert {word for word in words if word.startswith("--")} <= flags
    assert {"--engine", "--ray-address", "--resume"} <= set(words)
