import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from hardsight.errors import OptionError
from hardsight.losses import LinearEncouragingLoss, avh_loss
from hardsight.scores import angular_visual_hardness
from tests.losses import sharded_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="needs torch with gloo"
)


@pytest.fixture(scope="module", params=sharded_ranks.WORLDS)
def world(request, tmp_path_factory, forks):
    folder = tmp_path_factory.mktemp("shards")
    sizes, _ = sharded_ranks.WORLDS[request.param]
    meet = str(folder / "rendezvous")
    outs = [str(folder / f"rank{rank}.pt") for rank in range(len(sizes))]
    started = [
        forks.start(
            f"from tests.losses.sharded_ranks import main; "
            f"main({request.param!r}, {rank}, {meet!r}, {out!r})",
            loads="tests.losses.sharded_ranks",
        )
        for rank, out in enumerate(outs)
    ]
    assert [rank.wait() for rank in started] == [0] * len(sizes), [r.stderr for r in started]
    return request.param, folder, [torch.load(out) for out in outs]


@pytest.mark.parametrize("name", sharded_ranks.CASES)
def test_classes_over_ranks_give_the_loss_and_gradients_of_one_process(world, name):
    which, _, ranks = world
    sizes, _ = sharded_ranks.WORLDS[which]
    embeddings, labels, weights, bias = sharded_ranks.batch()
    value, wanted = expected(name, sizes, embeddings, labels, weights, bias)
    found = [rank[name] for rank in ranks]
    if value.ndim:
        torch.testing.assert_close(torch.cat([each[0] for each in found]), value)
    else:
        for each in found:
            torch.testing.assert_close(each[0], value)
    # of embeddings before averaging over ranks: world_size times the gradient
    rows = torch.cat([each[1][0] for each in found])
    torch.testing.assert_close(rows, len(sizes) * wanted[0])
    # of class weights and bias, which no other rank has, the gradient itself
    for place in (1, 2):
        if wanted[place] is not None:
            parts = torch.cat([each[1][place] for each in found if each[1][place] is not None])
            torch.testing.assert_close(parts, wanted[place])


def expected(name, sizes, *tensors):
    """By one process, with the factors that each rank gives its own rows."""
    value, gradients = sharded_ranks.case(name, *tensors)
    if value.ndim == 0:
        return value, gradients
    loss, has_bias, own = sharded_ranks.CASES[name]
    embeddings, labels, weights, _ = tensors
    assert not has_bias
    leaves = [tensor.clone().requires_grad_() for tensor in (embeddings, weights)]
    factors = torch.cat([torch.arange(1.0, 1 + size, dtype=torch.float64) for size in sizes])
    (loss(leaves[0], labels, leaves[1], **own) * factors).sum().backward()
    return value, [leaves[0].grad, leaves[1].grad, None]


def test_a_pass_exchanges_embeddings_once_and_two_numbers_per_row_and_rank(world):
    which, _, ranks = world
    sizes, _ = sharded_ranks.WORLDS[which]
    rows, width = sum(sizes), sharded_ranks.WIDTH
    for rank in ranks:
        assert rank["exchanges"] == [
            ("gather", torch.int64, 5),  # who has how much
            ("gather", torch.float64, max(sizes) * width),
            ("gather", torch.int64, max(sizes)),
            ("gather", torch.float64, 2 * rows),
            ("reduce", torch.float64, rows * width),
        ]


def test_hardness_over_ranks_is_that_of_one_process(world):
    embeddings, labels, weights, _ = sharded_ranks.batch()
    wanted = angular_visual_hardness(embeddings, labels.clamp(min=0), weights)
    torch.testing.assert_close(torch.cat([rank["hardness"] for rank in world[2]]), wanted)


def test_what_cannot_be_is_refused_on_every_rank_so_that_none_waits(world):
    for rank in world[2]:
        said = rank["refused"]
        assert said["label"].startswith("LabelError")
        assert "one width and dtype on all ranks" in said["width"]
        assert "no label_smoothing with process_group" in said["smoothing"]
        assert "one weight per class of all ranks, [7]" in said["weight"]
        assert "expected process_group to be a torch.distributed process group" in said["group"]


def test_weights_are_drawn_and_stored_as_if_they_were_not_split(world):
    _, folder, ranks = world
    torch.manual_seed(3)
    alone = LinearEncouragingLoss(sharded_ranks.CLASSES, sharded_ranks.WIDTH)
    drawn = torch.cat([rank["stored"]["drawn"] for rank in ranks])
    torch.testing.assert_close(drawn, alone.class_weights.detach(), rtol=0, atol=0)
    for place, wanted in enumerate([drawn, torch.arange(7.0)]):
        again = torch.cat([rank["stored"]["again"][place] for rank in ranks])
        torch.testing.assert_close(again, wanted, rtol=0, atol=0)
    for rank in ranks:
        torch.testing.assert_close(rank["stored"]["taken"], rank["stored"]["whole"])
    # one process reads what two or three have stored
    state = LinearEncouragingLoss(sharded_ranks.CLASSES, sharded_ranks.WIDTH).state_dict()
    with pytest.warns(UserWarning, match="to load in a single process"):  # torch's own
        dcp.load(state, checkpoint_id=str(folder / "checkpoint"))
    torch.testing.assert_close(state["class_weights"], drawn, rtol=0, atol=0)
    torch.testing.assert_close(state["bias"], torch.arange(7.0), rtol=0, atol=0)


def test_a_process_that_is_alone_is_told_how_ranks_are_started():
    x = torch.randn(2, 3)
    with pytest.raises(OptionError, match=r"torchrun and call torch.distributed.init_process_grou"):
        avh_loss(x, torch.tensor([0, 1]), x, scale=1.0, process_group="all")
