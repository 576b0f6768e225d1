"""Compile every portable kernel without a GPU, and print their names: ``... DTYPE``."""

import sys

import torch


def main():
    from gpu_target import compile_for

    compile_for(80, shared_memory=101_376)

    from hardsight.kernels import _launch

    seen = set()

    def compiled(kernel, grid, tensors, numbers, **constants):
        kernel.warmup(*tensors, *numbers, grid=grid, **constants)
        seen.add(kernel.__name__)

    _launch.run = compiled
    dtype = getattr(torch, sys.argv[1])
    x, w = (torch.zeros(count, 40, dtype=dtype) for count in (200, 20))
    labels, rows, bias = torch.zeros(200, dtype=torch.int64), torch.zeros(200), torch.zeros(20)
    for mode in ("angles", "head", "angular", "linear"):
        ready = _launch.prepare(
            x, labels, w, bias if mode in ("head", "linear") else None, mode=mode
        )
        for nearest in (False, True) if mode in ("angles", "head") else (False,):
            partial, index = _launch.over_classes(
                x, labels, w, None, ready, mode=mode, scale=50.0, nearest=nearest
            )
            if mode == "angles":
                _launch.merge_angles(partial, index, 20, nearest=nearest)
            elif mode == "head":
                _launch.merge_head(partial, index, rows, labels, 20, nearest=nearest)
            else:
                _launch.merge_log_odds(partial, rows, angular_scale=50.0)
    for scale in (None, 16.0):
        fill = _launch.slopes(
            x, labels, w, bias if scale is None else None, ready.flags, factors=rows,
            reference=rows, scale=scale, x_inverse=rows, w_inverse=ready.w_inverse,
        )  # fmt: skip
        fill(torch.zeros(200, 256, dtype=dtype), 0, 20)
    gathered, wide = torch.zeros(200, 40), torch.zeros(100, 40, dtype=dtype)
    rest = dict.fromkeys(("x_inverse", "w_inverse", "sines", "factors"), rows)
    _launch.finish(torch.zeros_like(w), gathered, x, labels, w, **rest, scale=16.0)  # many a class
    _launch.finish(torch.zeros_like(wide), None, x, labels, wide, **rest, scale=16.0)
    _launch.finish(None, gathered, x, labels, w, **rest, scale=16.0)
    _launch.make_tangent(torch.zeros(20, 40), w, rows)
    for end in (-1.0, 0.75):
        _launch.reduce_curve(rows, labels, -100, 0.0, end, mean=end > 0)
        _launch.curve_slopes(rows[0], rows, labels, rows[0], -100, 0.0, end)
    print(*sorted(seen))


if __name__ == "__main__":
    main()
