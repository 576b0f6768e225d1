"""Compile every portable kernel without a GPU, and print their names: ``... DTYPE``."""

import sys

import torch


def main():
    from gpu_target import compile_for

    compile_for(80, shared_memory=101_376)

    from hardsight.kernels import _launch

    seen = set()

    def compiled(kernel, grid, *args, **constants):
        kernel.warmup(*args, grid=grid, **constants)
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
            x, labels, w, bias if scale is None else None, factors=rows, reference=rows,
            scale=scale, x_inverse=rows, w_inverse=ready.w_inverse,
        )  # fmt: skip
        fill(torch.zeros(200, 256, dtype=dtype), 0, 20)
    _launch.finish_embeddings(torch.zeros(200, 40), x, labels, w, rows)
    _launch.finish_weights(torch.zeros_like(w), x, labels, w, rows, rows)  # many examples a class
    _launch.finish_weights(torch.zeros(100, 40), x, labels, torch.zeros(100, 40), rows, rows)
    print(*sorted(seen))


if __name__ == "__main__":
    main()
