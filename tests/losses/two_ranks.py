"""One rank of the distributed test; started twice by test_distributed.py."""

import torch
import torch._dynamo  # or each of two forks loads it, for DistributedDataParallel
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hardsight.losses import amc_loss, euclidean_contrastive_loss

SIZES = (5, 2)  # a ragged last batch
CASES = [
    (amc_loss, {"pairs": "halves", "margin_rad": 3.0}),  # so wide that every pair counts
    (amc_loss, {"pairs": "all", "average": "signs", "margin_rad": 2.0}),
    (amc_loss, {"pairs": "halves", "similarity": "predictions", "margin_rad": 3.0}),
    (euclidean_contrastive_loss, {"pairs": "all", "margin": 3.0}),
]


def model_and_batch():
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(4, 3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(sum(SIZES), 4, generator=generator, dtype=torch.float64)
    return model, x, torch.tensor([0, 1, 1, 0, 1, 0, 1])


def losses_and_gradients(model, x, labels, **options):
    """Per case: the loss, the gradient of the inputs, the gradients of the parameters."""
    rows = []
    for loss, case in CASES:
        model.zero_grad()
        inputs = x.clone().requires_grad_()
        embeddings = model(inputs)
        value = loss(embeddings, labels, embeddings.detach(), **case, **options)
        value.backward()
        rows.append((value.detach(), inputs.grad, [p.grad.clone() for p in model.parameters()]))
    return rows


def main(rank, rendezvous, out):
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=len(SIZES)
    )
    model, x, labels = model_and_batch()
    begin = sum(SIZES[:rank])
    own = slice(begin, begin + SIZES[rank])
    wrapped = DistributedDataParallel(model)
    torch.save(losses_and_gradients(wrapped, x[own], labels[own], gather=True), out)
    dist.barrier()  # and no destroy_process_group, which hangs now and then in torch 2.6
