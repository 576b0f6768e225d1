"""One of two processes that train together; started twice by test_ranks.py."""

import os

import torch
import torch._dynamo  # or each of two forks loads it, for DistributedDataParallel
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hardsight.cli import main as command
from hardsight.registry import LOSSES
from hardsight.run.train import LossConfig, Shard, TotalLoss

# what each launcher tells its processes, and nothing else does
VARIABLES = {
    "torchrun": {
        "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "{rank}",
        "LOCAL_RANK": "{rank}", "GROUP_RANK": "0",
    },
    "srun": {
        "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_NNODES": "1",
        "SLURM_NTASKS_PER_NODE": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "{rank}",
        "SLURM_LOCALID": "{rank}", "SLURM_NODEID": "0",
    },
}  # fmt: skip


def train(rank: int, launcher: str, port: int) -> None:
    """`hardsight train`, with the words of this process."""
    for name, value in VARIABLES[launcher].items():
        os.environ[name] = value.format(rank=rank)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rank_zero_only.rank = rank  # which Lightning reads when it is imported, here before the fork
    command()


ROWS = (6, 5, 1)  # of a step: shared out evenly, not evenly, and with nothing left for rank 1
_NEEDED = {"avh": {"scale": 4.0}, "linear_avh": {"scale": 4.0}}
_WEIGHTS = {"options": {"weight": [0.2, 1.0, 3.0]}}
TERMS = {
    "cross_entropy": LossConfig("cross_entropy"),
    "smoothed": LossConfig("cross_entropy", options={"label_smoothing": 0.2}),
    "weighted": LossConfig("cross_entropy", **_WEIGHTS),
    "weighted focal": LossConfig("focal", **_WEIGHTS),
    "balanced": LossConfig("cross_entropy", class_balance=0.9),
    "hardest": LossConfig("cross_entropy", hardest=0.5),
    "hardest balanced": LossConfig("cross_entropy", hardest=0.5, class_balance=0.9),
    "all pairs": LossConfig("amc", options={"pairs": "all", "margin_rad": 2.0}),
    **{name: LossConfig(name, options=_NEEDED.get(name, {})) for name in LOSSES},
}


class Net(nn.Module):
    """Embeddings and logits of a few rows."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(4, 5), nn.Linear(5, 3)
        draw = torch.Generator().manual_seed(0)
        for weight in self.parameters():
            nn.init.normal_(weight, generator=draw)
        self.double()

    def forward(self, inputs):
        embeddings = self.body(inputs)
        return embeddings, self.fc(embeddings)


def losses_and_gradients(net, layer, shard=None):
    """Of every term and number of rows: the loss of this process, and gradients after backward."""
    found = {}
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(max(ROWS), 4, generator=draw, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 2, 0, 1])
    for name, config in TERMS.items():
        loss = TotalLoss([config], class_counts=[30, 20, 10])
        for rows in ROWS:
            own = torch.arange(rows) if shard is None else shard.of(torch.arange(rows))
            share = None if shard is None else shard.share_of(rows)
            net.zero_grad()
            embeddings, logits = net(inputs[own])
            value = loss(
                logits, labels[own], embeddings=embeddings, layer=layer, epoch=0, share=share
            )
            value.backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone()
                         for p in layer_and_body(net)]  # fmt: skip
            found[name, rows] = (float(value.detach()), gradients)
    return found


def layer_and_body(net):
    return list(getattr(net, "module", net).parameters())


def compare(rank: int, port: int, out: str) -> None:
    """The losses of two ranks, as a file."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net = Net()
    wrapped = DistributedDataParallel(net, find_unused_parameters=True)
    torch.save(losses_and_gradients(wrapped, net.fc, Shard(rank, 2)), out)
    dist.barrier()
