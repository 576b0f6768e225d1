"""The interpreter does not know Gluon; that the Hopper kernels compile shows without a GPU."""

import pytest
import torch

from hardsight.kernels import angular_loss, head_statistics, linear_loss

KERNELS = [  # rows resident and streamed, a tile whole and in quarters
    ("over_classes", "angles", 512),
    ("over_classes", "angles+class", 512),
    ("over_classes", "head+class", 1024),
    ("slopes", "angular", 512),
    ("slopes", "linear", 1024),
]


@pytest.mark.parametrize(("kind", "mode", "width"), KERNELS)
def test_hopper_kernels_compile_within_the_shared_memory_of_the_chip(forks, kind, mode, width):
    code = f"from tests.kernels.compile_hopper import main; main({kind!r}, {mode!r}, {width})"
    done = forks.run(code, loads="hardsight.kernels._hopper_launch")
    assert f"compiled {kind}" in done.stdout, done.stderr[-2000:]


# (examples, tiles): fewer pieces than multiprocessors, one wave, several waves, a single tile
SPLITS = [(1, 5), (4_096, 48), (4_096, 7_813), (65_536, 4), (300, 1)]


@pytest.mark.parametrize("alternate", [True, False])
@pytest.mark.parametrize(("examples", "tiles"), SPLITS)
def test_a_plan_covers_every_tile_of_every_block_of_rows_once(
    launching, examples, tiles, alternate
):
    ring = launching.hopper.Ring(128, 4, alternate, 4)
    plan = launching.hopper._plan(examples, tiles, ring, 132)
    assert plan.blocks == -(-examples // 128)
    assert (plan.shares - 1) * plan.per_share < tiles <= plan.shares * plan.per_share
    pieces = plan.blocks * plan.shares
    assert plan.grid == (pieces if alternate else min(pieces, 132),)


@pytest.mark.parametrize("classes", [700, 768])
def test_flags_mark_the_tiles_of_labels_and_one_that_runs_over_the_last_class(
    launching, classes, monkeypatch
):
    portable = launching.portable
    monkeypatch.setattr(portable, "_hopper_module", lambda device: portable)  # marks, as there
    labels = torch.tensor([0, 5, 130, -1, classes, *[300] * 123, 699])  # 129 rows, two blocks
    x, w = torch.randn(129, 8), torch.randn(classes, 8)
    found = portable.prepare(x, labels, w, None, mode="angular").flags
    expected = torch.zeros(2, 6, dtype=torch.uint8)
    expected[0, [0, 1, 2]] = 1
    expected[1, 5] = 1
    if classes % 128:
        expected[:, 5] = 1
    assert torch.equal(found, expected)


def test_rows_that_share_memory_are_left_to_the_portable_kernels(launching):
    fits = launching.hopper.fits
    rows = torch.zeros(40, 512, dtype=torch.bfloat16)
    assert fits(rows)
    assert fits(rows[:, :64])
    assert not fits(rows[:1].expand(40, 512))
    assert not fits(rows.view(-1).as_strided((40, 64), (8, 1)))
    assert not fits(rows[:, 1:65])  # not aligned


def test_a_descriptor_of_a_matrix_like_another_is_a_copy_with_its_own_memory(launching):
    _described, _seen = launching.hopper._described, launching.hopper._seen
    _seen.clear()
    first, second = (torch.zeros(256, 64, dtype=torch.bfloat16) for _ in range(2))
    made, copied = _described(first, (128, 64)), _described(second, (128, 64))
    assert copied.base is second
    assert type(copied) is type(made)
    assert vars(copied) == {**vars(made), "base": second}
    assert [fields["base"] for fields in _seen.values()] == [None]
    assert _described(first[:, :32], (128, 64)).shape == [256, 32]


@pytest.mark.parametrize("width", [512, 1_024])
def test_every_launch_of_a_loss_on_a_hopper_gpu_gives_its_kernel_what_it_asks_for(
    launching, make_head, monkeypatch, width
):
    launched = []

    def launch(kernel, grid, tensors, numbers, descriptors=(), /, **constants):
        given = len(descriptors) + len(tensors) + len(numbers)
        names = [name for name in constants if name not in ("num_warps", "num_stages")]
        assert sorted(kernel.arg_names[given:]) == sorted(names), kernel.__name__
        assert all(name.islower() for name in kernel.arg_names[:given])
        assert all(name.isupper() for name in names)
        assert all(isinstance(number, int | float) for number in numbers)
        assert all(isinstance(tensor, torch.Tensor | None) for tensor in tensors)
        assert all(isinstance(size, int) and size > 0 for size in grid)
        launched.append(kernel.__name__)

    for module in (launching.portable, launching.hopper):
        monkeypatch.setattr(module, "run", launch)
        monkeypatch.setattr(module, "processors", lambda device: 132, raising=False)
    monkeypatch.setattr(launching.portable, "_hopper_module", lambda device: launching.hopper)
    head = make_head(300, width, 700, torch.bfloat16)
    x, w = head.embeddings.requires_grad_(), head.class_weights.requires_grad_()
    head_statistics(x, head.labels, w, head.bias, nearest_class=True)
    for loss in (
        angular_loss(x, head.labels, w, scale=8.0),
        linear_loss(x, head.labels, w, head.bias, log_end=0.75),
    ):
        loss.backward()
    assert launched == [
        "prepare", "over_classes", "merge_head",
        "prepare", "over_classes", "merge_log_odds", "reduce_curve",
        "prepare", "over_classes", "merge_log_odds", "reduce_curve",
        "curve_slopes", "slopes", "finish", "add_targets",
        "curve_slopes", "slopes",
    ]  # fmt: skip
