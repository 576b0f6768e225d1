import re

import pytest
import torch
from torch.utils.data import DistributedSampler

from hardsight.tracking import HardnessTracker

N = 11


@pytest.fixture
def two_ranks(forks, tmp_path):
    """Runs a case on two ranks."""

    def run(case):
        start = "from pathlib import Path; from tests.tracking.two_ranks import main; main"
        ranks = [
            forks.start(
                f"{start}({rank}, Path({str(tmp_path)!r}), {case!r})",
                loads="tests.tracking.two_ranks",
            )
            for rank in range(2)
        ]
        assert [rank.wait() for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]

    return run


def expected_norms():
    """Norm of each example in each epoch, of the first time it was seen on any rank."""
    make = torch.Generator().manual_seed(0)
    lengths = torch.randn(N, 4, generator=make).norm(dim=1)
    norms = torch.full((2, N), torch.nan)
    for epoch in range(2):
        found = {}
        for rank in (1, 0):  # rank 0 last: it wins where both come at the same turn
            sampler = DistributedSampler(range(N), num_replicas=2, rank=rank, shuffle=True, seed=3)
            sampler.set_epoch(epoch)
            for turn, example in enumerate(sampler):
                if example not in found or turn <= found[example][0]:
                    found[example] = (turn, 1 + epoch + 0.1 * (turn // 2) + 0.01 * rank)
        for example, (_, scale) in found.items():
            norms[epoch, example] = lengths[example] * scale
    return norms


def test_two_ranks_lose_no_row_and_double_none_also_over_a_resume(two_ranks, tmp_path):
    two_ranks("resumed")
    result = torch.load(tmp_path / "result", weights_only=True)
    assert result["seen"].tolist() == [2] * N
    torch.testing.assert_close(result["norm"], expected_norms())


def test_an_error_on_one_rank_is_raised_on_both(two_ranks, tmp_path):
    two_ranks("unwritable")
    for rank in range(2):
        said = (tmp_path / f"error-{rank}").read_text()
        assert said.startswith("OutputError: cannot write an epoch to")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("epochs missing", "RunMismatchError: the state has 3 epochs, but"),
        (
            "another run on rank 1",
            "RunMismatchError: the state is of a tracker with num_examples=12",
        ),
    ],
)
def test_a_state_that_one_rank_cannot_load_is_refused_on_both(two_ranks, tmp_path, case, expected):
    two_ranks(case)
    for rank in range(2):
        assert (tmp_path / f"error-{rank}").read_text().startswith(expected)


def record_an_epoch(folder):
    earlier = HardnessTracker(N, folder=folder)
    earlier.update([0], torch.ones(1, 4), torch.ones(1, 3), [0], class_weights=torch.ones(3, 4))
    earlier.end_epoch()


def test_ranks_that_do_not_share_the_folder_go_on_after_the_epochs_of_the_first(
    two_ranks, tmp_path
):
    record_an_epoch(tmp_path / "dynamics-0")
    two_ranks("own folders")
    assert not list(tmp_path.glob("error-*"))
    assert [(tmp_path / f"epochs-{rank}").read_text() for rank in range(2)] == ["3", "3"]
    assert not (tmp_path / "dynamics-1").exists()


@pytest.mark.parametrize("case", ["both record", "rank 1 idle"])
def test_epochs_of_another_run_in_the_folder_are_refused_on_both_ranks(two_ranks, tmp_path, case):
    record_an_epoch(tmp_path / "dynamics")
    two_ranks(case)
    said = [(tmp_path / f"error-{rank}").read_text() for rank in range(2)]
    assert said[0] == said[1]
    assert said[0].startswith(f"RunExistsError: {tmp_path / 'dynamics'} holds 1 epochs already")


def test_a_rank_without_rows_does_not_keep_the_other_waiting(two_ranks, tmp_path):
    two_ranks("rank 1 idle")
    seen = torch.load(tmp_path / "result", weights_only=True)["seen"]
    assert not list(tmp_path.glob("error-*"))
    assert 0 < int(seen.sum()) < 2 * N  # what rank 1 would have seen is missing


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("one rank repeats", "DataError: examples 1 came more than once in epoch 1"),
        (
            "the same on both",
            "DataError: 6 examples of epoch 1 came on more than one rank.*DistributedSampler",
        ),
    ],
)
def test_an_example_that_comes_twice_is_an_error_on_both_ranks(two_ranks, tmp_path, case, said):
    # unlike those with which a sampler fills its last round
    two_ranks(case)
    for rank in range(2):
        assert re.match(said, (tmp_path / f"error-{rank}").read_text())
