"""The launchers of examples/cluster: what can be checked without their clusters."""

from __future__ import annotations

import os
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


# what a launcher that is not here was called with, a line for each word and an empty one after
_NOTED = """#!/bin/sh
printf '%s\\n' "$(basename "$0")" "$@" '' >> "$NOTED"
"""
# a pause that lasts until as many launchers have been called as there were pauses: those of the
# background would else be called after the script has ended, or never
_PAUSES = """#!/bin/sh
echo >> "$NOTED.pauses"
until test "$(grep -c '^srun$' "$NOTED" 2>/dev/null || true)" -ge "$(wc -l < "$NOTED.pauses")"
do command -p sleep 0.05
done 2>/dev/null
"""
_RUNS = {
    "ray-job": (
        ["/shared/photos", "/shared/run"],
        [["ray", "job", "submit", "hardsight", "score", "/shared/photos", "/shared/run"]],
    ),
    "slurm": (
        ["/shared/photos", "s3://bucket/run"],
        [
            ["srun", "--nodelist=node-1", "ray", "start", "--head", "--port=6379", "--num-cpus=4"],
            ["srun", "--ntasks=2", "--exclude=node-1", "ray", "start", "--address=node-1:6379"],
            ["srun", "--ntasks=1", "hardsight", "score", "s3://bucket/run", "node-1:6379"],
        ],
    ),
    "torchrun": (
        ["recipe.toml", "2"],
        [["torchrun", "--nproc-per-node", "2", "hardsight", "train", "recipe.toml", "--out"]],
    ),
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_dry_run_of_a_script_calls_its_launcher_as_meant(script, tmp_path):
    for name in ("ray", "srun", "torchrun", "sleep"):
        (tmp_path / name).write_text(_PAUSES if name == "sleep" else _NOTED)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'node-1\\nnode-2\\nnode-3\\n'\n")
    (tmp_path / "scontrol").chmod(0o755)
    given, expected = _RUNS[script.stem]
    allocation = {"SLURM_JOB_NODELIST": "node-[1-3]", "SLURM_NNODES": "3",
                  "SLURM_CPUS_PER_TASK": "4"}  # fmt: skip
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **allocation, "PATH": path, "NOTED": str(tmp_path / "noted")}
    subprocess.run(["bash", script, *given], check=True, env=env, timeout=150)
    calls = [call.splitlines() for call in (tmp_path / "noted").read_text().split("\n\n")]
    calls = [call for call in calls if call]
    assert len(calls) == len(expected)
    for words in expected:  # two of them run side by side, in any order
        assert any(_are_in_order(words, call) for call in calls), (words, calls)


def _are_in_order(words: list[str], call: list[str]) -> bool:
    left = iter(call)
    return all(word in left for word in words)


def test_the_launcher_of_ranks_trains():
    words = shlex.split((FOLDER / "torchrun.sh").read_text().splitlines()[-1])
    words = words[words.index("hardsight") + 1 :]
    command = main.get_command(None, words[0])
    flags = {flag for option in command.params for flag in option.opts}
    assert {word for word in words if word.startswith("--")} <= flags


def test_the_manifest_has_what_kuberay_requires_of_a_job():
    # of its schema (ray.io/v1, RayJob): what the operator refuses a manifest without
    manifest = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    assert set(manifest["metadata"]["name"]) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    cluster = manifest["spec"]["rayClusterSpec"]
    assert "rayStartParams" in cluster["headGroupSpec"]
    for group in cluster["workerGroupSpecs"]:
        assert {"groupName", "rayStartParams"} <= group.keys()
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        # Ray asks for more replicas only if there is somebody to ask
        assert group["replicas"] == group["maxReplicas"] or cluster["enableInTreeAutoscaling"]
    # a key that the schema does not have is dropped by the API server without a word
    assert manifest["spec"].keys() <= {
        "entrypoint", "shutdownAfterJobFinishes", "backoffLimit", "rayClusterSpec",
        "entrypointNumCpus", "entrypointNumGpus", "ttlSecondsAfterFinished", "runtimeEnvYAML",
    }  # fmt: skip
    assert cluster.keys() <= {
        "headGroupSpec", "workerGroupSpecs", "rayVersion", "enableInTreeAutoscaling",
    }  # fmt: skip
    assert cluster["headGroupSpec"].keys() <= {"rayStartParams", "template", "serviceType"}
    for group in cluster["workerGroupSpecs"]:
        assert group.keys() <= {
            "groupName", "rayStartParams", "template", "replicas", "minReplicas", "maxReplicas",
        }  # fmt: skip
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        for container in group["template"]["spec"]["containers"]:
            assert {"name", "image"} <= container.keys()
