"""Compile portable kernels without a GPU and print their names; runs in a process of its own."""

import torch

from tests.kernels.gpu_target import compile_for


def compile_scores(launch, dtype):
    x, w, labels, rows, bias = inputs(dtype)
    for mode in ("angles", "head"):
        ready = launch.prepare(x, labels, w, bias if mode == "head" else None, mode=mode)
        for nearest in (False, True):
            partial, index = launch.over_classes(
                x, labels, w, None, ready, mode=mode, scale=50.0, nearest=nearest
            )
            if mode == "angles":
                launch.merge_angles(partial, index, 20, nearest=nearest)
            else:
                launch.merge_head(partial, index, rows, labels, 20, nearest=nearest)


def compile_losses(launch, dtype):
    x, w, labels, rows, bias = inputs(dtype)
    for mode in ("angular", "linear"):
        ready = launch.prepare(x, labels, w, bias if mode == "linear" else None, mode=mode)
        partial, _ = launch.over_classes(
            x, labels, w, None, ready, mode=mode, scale=50.0, nearest=False
        )
        launch.merge_log_odds(partial, rows, angular_scale=50.0)
    for scale in (None, 16.0):
        fill = launch.slopes(
            x, labels, w, bias if scale is None else None, ready.flags, factors=rows,
            reference=rows, scale=scale, x_inverse=rows, w_inverse=ready.w_inverse,
        )  # fmt: skip
        fill(torch.zeros(200, 256, dtype=dtype), 0, 20)
    gathered, wide = torch.zeros(200, 40), torch.zeros(100, 40, dtype=dtype)
    rest = dict.fromkeys(("x_inverse", "w_inverse", "sines", "factors"), rows)
    launch.finish(torch.zeros_like(w), gathered, x, labels, w, **rest, scale=16.0)  # many a class
    launch.finish(torch.zeros_like(wide), None, x, labels, wide, **rest, scale=16.0)
    launch.finish(None, gathered, x, labels, w, **rest, scale=16.0)
    launch.make_tangent(torch.zeros(20, 40), w, rows)
    for end in (-1.0, 0.75):
        launch.reduce_curve(rows, labels, -100, 0.0, end, mean=end > 0)
        launch.curve_slopes(rows[0], rows, labels, rows[0], -100, 0.0, end)


def inputs(dtype):
    """Embeddings, class weights, labels, a value per row and a bias."""
    x, w = (torch.zeros(count, 40, dtype=dtype) for count in (200, 20))
    return x, w, torch.zeros(200, dtype=torch.int64), torch.zeros(200), torch.zeros(20)


def main(kind, part):
    compile_for(80, shared_memory=101_376)

    from hardsight.kernels import _launch

    seen = set()

    def compiled(kernel, grid, tensors, numbers, **constants):
        kernel.warmup(*tensors, *numbers, grid=grid, **constants)
        seen.add(kernel.__name__)

    _launch.run = compiled
    {"scores": compile_scores, "losses": compile_losses}[part](_launch, getattr(torch, kind))
    print(*sorted(seen))
