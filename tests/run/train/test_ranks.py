"""Processes that train together: the run of one process with the same batches."""

import csv
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hardsight as hs
from hardsight.errors import ConfigError, DataError
from tests.run.train import two_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs a torch with gloo",
)
# without batch norm and dropout, of which every process has its own
NET = """
from torch import nn


def make(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, num_classes))
"""
# 97 of 121 are trained on: six batches of 16, and one example that one process alone can take
RECIPE = """
model = "NET:make"
epochs = 4
batch_size = 16
device = "cpu"
workers = 0
track = true
thumbnails = 0
loss = ["cross_entropy", {name = "amc", weight = 0.1}]
optimizer = {lr = 0.02}
data = {name = "IMAGES", validation = 0.2}
"""


@pytest.fixture
def recipe(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (121, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, labels=np.arange(121) % 3)
    (tmp_path / "net.py").write_text(NET)
    text = RECIPE.replace("NET", str(tmp_path / "net.py"))
    (tmp_path / "recipe.toml").write_text(text.replace("IMAGES", str(tmp_path / "images.npz")))
    return tmp_path / "recipe.toml"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def on_two_ranks(forks, call, *words, until=None):
    """Start both; the first one is killed when ``until`` appears."""
    port = free_port()
    return [
        forks.start(
            f"from tests.run.train.two_ranks import *; {call}".format(rank=rank, port=port),
            loads="tests.run.train.two_ranks",
            words=words,
            until=until if rank == 0 else None,
        )
        for rank in range(2)
    ]


def trained_on_two(forks, launcher, *words):
    ranks = on_two_ranks(forks, f"train({{rank}}, {launcher!r}, {{port}})", "train", *words)
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]
    return ranks


def trained_alone(forks, *words, until=None):
    alone = forks.run(
        "from hardsight.cli import main; main()", words=("train", *words), until=until,
        loads="tests.run.train.two_ranks",
    )  # fmt: skip
    assert alone.status == (0 if until is None else -9), alone.stderr


@pytest.fixture
def alone(recipe, tmp_path, forks):
    """A run of one process."""
    trained_alone(forks, str(recipe), "--out", str(tmp_path / "alone"))
    return tmp_path / "alone"


def assert_the_same_run(found, expected):
    """Metrics by epoch, selected weights and dynamics are those of another run."""
    for one, other in zip(metrics(found), metrics(expected), strict=True):
        del one["seconds"], other["seconds"]
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    weights = [load_file(run / "model.safetensors") for run in (found, expected)]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=1e-3, atol=1e-5)
    tables = [hs.read_table(run / "dynamics.parquet") for run in (found, expected)]
    for column in ("index", "label", "held_out", "epochs_seen"):
        np.testing.assert_array_equal(*(table.column(column) for table in tables))
    assert set(tables[0].column("epochs_seen")) == {4}
    for column in ("mean_avh", "aum", "early_el2n", "map_confidence"):
        both = [table.column(column) for table in tables]
        np.testing.assert_allclose(*both, rtol=1e-3, atol=1e-4, err_msg=column)


def metrics(run):
    with (run / "metrics.csv").open() as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def test_two_processes_of_torchrun_train_as_one_and_record_every_example_once(
    recipe, tmp_path, forks, alone
):
    ranks = trained_on_two(forks, "torchrun", str(recipe), "--out", str(tmp_path / "two"))
    assert_the_same_run(tmp_path / "two", alone)
    assert "selected:" in ranks[0].stdout
    assert ranks[1].stdout == ranks[1].stderr == ""


def test_a_checkpoint_of_two_processes_is_resumed_by_one(recipe, tmp_path, forks, alone):
    words = (str(recipe), "--out", str(tmp_path / "two"))
    first, second = on_two_ranks(
        forks, "train({rank}, 'torchrun', {port})", "train", *words,
        until=tmp_path / "two" / "checkpoints" / "last.ckpt",
    )  # fmt: skip
    assert first.wait() == -9
    assert second.wait() != 0  # it cannot go on alone
    trained_alone(forks, *words, "--resume")
    assert_the_same_run(tmp_path / "two", alone)


def test_a_checkpoint_of_one_process_is_resumed_by_two_tasks_of_slurm(
    recipe, tmp_path, forks, alone
):
    words = (str(recipe), "--out", str(tmp_path / "one"))
    trained_alone(forks, *words, until=tmp_path / "one" / "checkpoints" / "last.ckpt")
    trained_on_two(forks, "srun", *words, "--resume")
    assert_the_same_run(tmp_path / "one", alone)


@pytest.fixture(scope="module")
def both_ranks(forks, tmp_path_factory):
    outs = tmp_path_factory.mktemp("losses")
    call = f"compare({{rank}}, {{port}}, '{outs}/{{rank}}.pt')"
    ranks = on_two_ranks(forks, call)
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]
    return [torch.load(outs / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def one_process():
    net = two_ranks.Net()
    return two_ranks.losses_and_gradients(net, net.fc)


@pytest.mark.parametrize("rows", two_ranks.ROWS)
@pytest.mark.parametrize("name", two_ranks.TERMS)
def test_every_loss_of_a_batch_that_is_shared_out_is_that_of_the_batch(
    both_ranks, one_process, name, rows
):
    value, gradients = one_process[name, rows]
    found = [rank[name, rows] for rank in both_ranks]
    assert np.mean([mean for mean, _ in found]) == pytest.approx(value, rel=1e-5, abs=1e-7)
    for _, own in found:  # after DistributedDataParallel has averaged them
        torch.testing.assert_close(own, gradients, rtol=1e-4, atol=1e-6)


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
SLURM = {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "train", "SLURM_NNODES": "2"}
TASKS = SLURM | {"SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("variables", "settings", "said"),
    [
        (TORCHRUN, {"devices": 4}, r"torchrun started 2 processes on each of 2 machines, but the "
                                   r"recipe says devices = 4, num_nodes = 1; leave both out"),
        (TORCHRUN | {"WORLD_SIZE": "3"}, {}, r"torchrun started 3 processes, 2 of them on this "
                                             r"machine; .* the same --nproc-per-node"),
        (TORCHRUN, {"batch_size": 6}, "cannot be shared out evenly over 4 devices; use 4 or 8"),
        (TORCHRUN, {"folds": 2}, "folds trains its models one after the other on one device"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, "2 processes were started, but not by torchrun"),
        (SLURM, {"devices": 2}, r"4 tasks, but .* without srun, .* run: srun hardsight train"),
        (TASKS, {}, r"srun started 4 tasks on 2 machines; .* with --ntasks-per-node"),
        (TASKS | {"SLURM_NTASKS_PER_NODE": "2"}, {"devices": 4}, "^srun started 2 processes on ea"),
    ],
)  # fmt: skip
def test_processes_that_do_not_fit_the_recipe_are_refused(
    vectors, linear, tmp_path, monkeypatch, variables, settings, said
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        hs.train(linear, vectors, out=tmp_path / "run", device="cpu", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("variables", [SLURM, TASKS | {"SLURM_JOB_NAME": "bash"}])
def test_a_process_that_slurm_did_not_start_as_one_of_several_trains_alone(
    vectors, linear, tmp_path, monkeypatch, variables
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = hs.train(linear, vectors, out=tmp_path / "run", device="cpu", epochs=1)
    assert len(done.history) == 1


def test_fewer_validation_examples_than_processes_are_refused(
    vectors, linear, tmp_path, monkeypatch
):
    monkeypatch.setattr("lightning.pytorch.Trainer.world_size", 8)
    with pytest.raises(DataError, match="6 examples to validate on are too few for 8 devices"):
        hs.train(linear, vectors, out=tmp_path / "run", device="cpu", epochs=1)


# processes of their own that load everything: ten seconds and more
def run_command(*words):
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("selected:") == 1


@pytest.mark.slow
def test_torchrun_itself(recipe, tmp_path, alone):
    run_command(
        "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "hardsight", "train", str(recipe), "--out", str(tmp_path / "two"),
    )  # fmt: skip
    assert_the_same_run(tmp_path / "two", alone)


@pytest.mark.slow
def test_lightning_starts_the_processes_that_the_recipe_asks_for(recipe, tmp_path, alone):
    out = str(tmp_path / "two")
    run_command("hardsight", "train", str(recipe), "--out", out, "--set", "devices=2")
    assert_the_same_run(tmp_path / "two", alone)
