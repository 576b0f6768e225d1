import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hardsight
from hardsight.losses import amc_loss, gather_rows

SCRIPT = Path(__file__).with_name("two_ranks.py")

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="needs torch with gloo"
)


@pytest.fixture(scope="module")
def two_ranks():
    spec = importlib.util.spec_from_file_location("two_ranks", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    outs = [folder / f"rank{rank}.pt" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(folder / "rendezvous"), str(out)],
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(Path(hardsight.__file__).parents[1])},
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors
    return [torch.load(out) for out in outs]


@pytest.mark.parametrize("case", range(4))
def test_pairs_over_two_ranks_give_the_loss_and_gradients_of_one_process(two_ranks, ranks, case):
    model, x, labels = two_ranks.model_and_batch()
    value, input_grad, parameter_grads = two_ranks.losses_and_gradients(model, x, labels)[case]
    assert value > 0
    for rank in ranks:
        torch.testing.assert_close(rank[case][0], value)
        # what the optimizer sees, after DistributedDataParallel averaged over ranks
        torch.testing.assert_close(rank[case][2], parameter_grads)
    # before averaging: the sum over ranks, world_size times the gradient
    gathered = torch.cat([rank[case][1] for rank in ranks])
    torch.testing.assert_close(gathered, 2 * input_grad)


def test_in_one_process_gathering_changes_nothing():
    x, labels = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    assert gather_rows(x) is x
    torch.testing.assert_close(amc_loss(x, labels, gather=True), amc_loss(x, labels))
