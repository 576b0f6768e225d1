"""One rank of the tests of classes that are split over ranks; started by test_sharded.py."""

import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from hardsight.errors import HardsightError
from hardsight.losses import (
    AVHLoss,
    LinearEncouragingLoss,
    avh_loss,
    large_margin_softmax_loss,
    linear_avh_loss,
    linear_encouraging_loss,
)
from hardsight.scores import angular_visual_hardness

CLASSES, WIDTH = 7, 5
# rows and classes of each rank: ragged, one class, no class, no row
WORLDS = {
    "two": ((5, 2), (4, 3)),
    "two, uneven": ((3, 4), (1, 6)),
    "three": ((4, 0, 3), (3, 0, 4)),
}
WEIGHT = torch.linspace(0.5, 2.0, CLASSES, dtype=torch.float64)
CASES = {
    "avh": (avh_loss, False, {"scale": 4.0}),
    "avh, one at a time": (avh_loss, False, {"scale": 4.0, "reduction": "none"}),
    "avh, a weight per class": (avh_loss, False, {"scale": 2.0, "weight": WEIGHT}),
    "linear avh with a margin": (linear_avh_loss, False, {"scale": 3.0, "margin_rad": 0.2}),
    "encouraging": (linear_encouraging_loss, True, {"log_end": 0.5}),
    "encouraging, a sum": (
        linear_encouraging_loss, True, {"log_end": 0.75, "reduction": "sum", "ignore_index": 6}
    ),
    "large margin": (large_margin_softmax_loss, False, {"margin": 3, "log_end": 0.75}),
}  # fmt: skip


def batch():
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(7, WIDTH, generator=generator, dtype=torch.float64)
    weights = torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64)
    bias = torch.randn(CLASSES, generator=generator, dtype=torch.float64)
    embeddings[1] = 2 * weights[3]  # aligned with a class
    return embeddings, torch.tensor([0, 3, 6, 2, -100, 5, 4]), weights, bias


def case(name, embeddings, labels, weights, bias, **options):
    """Value, and the gradients of embeddings, class weights and bias."""
    loss, has_bias, own = CASES[name]
    labels = labels if own.get("ignore_index") is None else labels.clamp(min=0)
    leaves = [tensor.clone().requires_grad_() for tensor in (embeddings, weights, bias)]
    tensors = [leaves[0], labels, *(leaves[1:] if has_bias else leaves[1:2])]
    value = loss(*tensors, **own, **options)
    # rows count differently, or a gradient that comes to the wrong row would not be seen
    factors = torch.arange(1.0, 1 + len(embeddings), dtype=torch.float64)
    (value * factors).sum().backward() if value.ndim else value.backward()
    return value.detach(), [leaf.grad for leaf in leaves]


def parts(sizes, rank):
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def main(world, rank, rendezvous, out):
    sizes, classes = WORLDS[world]
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=len(sizes)
    )
    group = dist.group.WORLD
    embeddings, labels, weights, bias = batch()
    rows, own = parts(sizes, rank), parts(classes, rank)
    mine = embeddings[rows], labels[rows], weights[own], bias[own]
    found = {}
    for name in CASES:
        found[name] = case(name, *mine, process_group=group)
    found["exchanges"] = exchanges(mine, group)
    found["hardness"] = angular_visual_hardness(
        mine[0], mine[1].clamp(min=0), mine[2], process_group=group
    )
    found["refused"] = refusals(mine, group, rank)
    found["stored"] = stored(out, group, rank)
    torch.save(found, out)
    dist.barrier()
    dist.destroy_process_group()


def exchanges(mine, group):
    """Shapes of what a pass exchanges with other ranks, forward and backward."""
    shapes = []
    gather, reduce = dist.all_gather, dist.all_reduce

    def gathering(parts, own, **options):
        shapes.append(("gather", own.dtype, own.numel()))
        gather(parts, own, **options)

    def reducing(own, **options):
        shapes.append(("reduce", own.dtype, own.numel()))
        reduce(own, **options)

    dist.all_gather, dist.all_reduce = gathering, reducing
    try:
        case("avh", *mine, process_group=group)
    finally:
        dist.all_gather, dist.all_reduce = gather, reduce
    return shapes


def refusals(mine, group, rank):
    embeddings, labels, weights, _ = mine
    narrow = embeddings[:, :-1] if rank == 0 else embeddings
    tries = {
        "label": lambda: avh_loss(embeddings, labels + 50, weights, scale=1, process_group=group),
        "width": lambda: avh_loss(narrow, labels, weights, scale=1, process_group=group),
        "smoothing": lambda: avh_loss(
            embeddings, labels, weights, scale=1, label_smoothing=0.1, process_group=group
        ),
        "weight": lambda: avh_loss(
            embeddings, labels, weights, scale=1, weight=WEIGHT[:2], process_group=group
        ),
        "group": lambda: avh_loss(embeddings, labels, weights, scale=1, process_group="all"),
    }
    said = {}
    for name, attempt in tries.items():
        try:
            attempt()
            said[name] = "nothing"
        except HardsightError as err:
            said[name] = f"{type(err).__name__}: {err}"
    return said


def stored(out, group, rank):
    """Weights as drawn, and as they come back from a checkpoint and from an unsharded loss."""
    torch.manual_seed(3)
    made = LinearEncouragingLoss(CLASSES, WIDTH, process_group=group)
    with torch.no_grad():
        made.bias.copy_(torch.arange(float(CLASSES))[made.own_classes])
    folder = f"{out.rsplit('/', 1)[0]}/checkpoint"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # torch 2.6 of itself
        dcp.save(made.state_dict(), checkpoint_id=folder)
    torch.manual_seed(4)
    other = LinearEncouragingLoss(CLASSES, WIDTH, process_group=group)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    whole = AVHLoss(CLASSES, WIDTH, scale=1.0)
    taken = AVHLoss(CLASSES, WIDTH, scale=1.0, process_group=group)
    taken.load_state_dict(whole.state_dict())
    return {
        "drawn": made.class_weights.detach().clone(),
        "again": [other.class_weights.detach(), other.bias.detach()],
        "whole": whole.class_weights.detach()[taken.own_classes],
        "taken": taken.class_weights.detach(),
    }
