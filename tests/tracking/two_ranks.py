"""One rank of a distributed run; started twice by test_ranks.py."""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hardsight.errors import HardsightError
from hardsight.tracking import HardnessTracker, with_index

N, CLASSES, WIDTH = 11, 3, 4  # odd, so that the sampler repeats one example


def values() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, WIDTH, generator=make)
    return inputs, torch.arange(N) % CLASSES, torch.randn(CLASSES, WIDTH, generator=make)


def record(tracker, loader, weights, epoch, start=0) -> None:
    for step, (index, inputs, labels) in enumerate(loader, start):
        # the scale tells epoch, step and rank apart, so that "the first" can be checked
        scaled = inputs * (1 + epoch + 0.1 * step + 0.01 * dist.get_rank())
        tracker.update(index, scaled, scaled @ weights.T, labels)


def never(*_: object) -> None:
    raise AssertionError("a step waits for other ranks, which agreed when they loaded the state")


# batches by rank: an example that one rank sees twice, and ranks that all see the same examples
SEEN = {
    "one rank repeats": [[[0, 1], [1, 3]], [[2, 4], [5, 6]]],
    "the same on both": [[[0, 1], [2, 3], [4, 5]], [[5, 4], [3, 2], [1, 0]]],
}


# states that cannot be loaded: rank 0 misses the epochs of one, and one is of another run on rank 1
STATES = ("epochs missing", "another run on rank 1")


def state_of(case: str, rank: int) -> dict:
    if case == "epochs missing":
        return {**HardnessTracker(N).state_dict(), "epochs": 3}
    return HardnessTracker(N + rank).state_dict()


def main(rank: int, folder: Path, case: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    inputs, labels, weights = values()
    data = with_index(TensorDataset(inputs, labels))
    sampler = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    tracker = HardnessTracker(N, head=weights, folder=folder / "dynamics")
    if case == "own folders":  # of which only rank 0's has an epoch
        own = folder / f"dynamics-{rank}"
        tracker = HardnessTracker(N, head=weights, folder=own, resume=True)
    if case == "unwritable":
        (folder / "dynamics").write_text("a file where the folder should be")
    try:
        if case in STATES:
            tracker.load_state_dict(state_of(case, rank))
        for epoch in range(2):
            sampler.set_epoch(epoch)
            if case == "resumed" and epoch == 1:
                half = [batch for place, batch in enumerate(loader) if place < 1]
                record(tracker, half, weights, epoch)
                state = tracker.state_dict(gather=True)
                shared = [state]
                dist.broadcast_object_list(shared, src=0)  # only rank 0 saves a checkpoint
                tracker = HardnessTracker(N, head=weights, folder=folder / "dynamics")
                tracker.load_state_dict(shared[0])
                rest = [batch for place, batch in enumerate(loader) if place >= 1]
                gathers = {
                    name: getattr(dist, name) for name in ("all_gather", "all_gather_object")
                }
                for name in gathers:
                    setattr(dist, name, never)
                record(tracker, rest, weights, epoch, start=1)
                for name, gather in gathers.items():
                    setattr(dist, name, gather)
            elif case in SEEN:
                batches = [torch.tensor(batch) for batch in SEEN[case][rank]]
                seen = [(index, inputs[index], labels[index]) for index in batches]
                record(tracker, seen, weights, epoch)
            elif case != "rank 1 idle" or rank == 0:
                record(tracker, loader, weights, epoch)
            tracker.end_epoch()
        (folder / f"epochs-{rank}").write_text(str(tracker.epochs))
        if rank == 0:
            table = tracker.summaries()
            torch.save(
                {
                    "norm": torch.tensor(tracker.history("norm")),
                    "seen": torch.tensor(table.column("epochs_seen")),
                },
                folder / "result",
            )
    except HardsightError as err:
        (folder / f"error-{rank}").write_text(f"{type(err).__name__}: {err}")
    dist.barrier()  # and no destroy_process_group, which hangs now and then in torch 2.6
