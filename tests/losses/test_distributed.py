import pytest
import torch
import torch.distributed as dist

from hardsight.losses import amc_loss, gather_rows
from tests.losses import two_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="needs torch with gloo"
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, forks):
    folder = tmp_path_factory.mktemp("ranks")
    meet, outs = str(folder / "rendezvous"), [str(folder / f"rank{rank}.pt") for rank in range(2)]
    started = [
        forks.start(
            f"from tests.losses.two_ranks import main; main({rank}, {meet!r}, {out!r})",
            loads="tests.losses.two_ranks",
        )
        for rank, out in enumerate(outs)
    ]
    assert [rank.wait() for rank in started] == [0, 0], [rank.stderr for rank in started]
    return [torch.load(out) for out in outs]


@pytest.mark.parametrize("case", range(4))
def test_pairs_over_two_ranks_give_the_loss_and_gradients_of_one_process(ranks, case):
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
