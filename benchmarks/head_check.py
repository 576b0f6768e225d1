"""What it costs to check every batch against its head: the same passes with and without the check.

Inputs are in memory, so only the forward pass and the check are timed; a scoring run adds decoding
and scores to both. On a CPU, process time on one thread counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._measure import arguments, interleaved, publish, row
from hardsight.heads import capture, find_head
from hardsight.heads._capture import Agreement
from hardsight.models import ResNet18, SmallCNN


def _networks(device: torch.device) -> dict[str, tuple[nn.Module, Tensor, int]]:
    """A model, a batch and a number of batches, by name."""
    draw = torch.Generator().manual_seed(0)
    many = 8 if device.type == "cuda" else 1  # more of them, so that a pass is long enough

    def inputs(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(device)

    def wide(classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, classes))

    return {
        "SmallCNN, 8 px, 10 classes": (SmallCNN(), inputs(256, 1, 8, 8), 40 * many),
        "ResNet-18, 32 px, 10 classes": (ResNet18(), inputs(64, 3, 32, 32), 4 * many),
        "two layers, 1,000 classes": (wide(1000), inputs(256, 512), 40 * many),
        "two layers, 100,000 classes": (wide(100_000), inputs(64, 512), 4 * many),
    }


@contextmanager
def _unchecked() -> Iterator[None]:
    held = Agreement.hold

    def nothing(*args: Any, **options: Any) -> None:
        return None

    Agreement.hold = nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        Agreement.hold = held  # type: ignore[method-assign]


def _passes(model: nn.Module, batch: Tensor, count: int, precision: str) -> Callable[[], None]:
    head = find_head(model, batch[:8])
    device = batch.device.type
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32

    @torch.inference_mode()
    def run() -> None:
        cast = torch.autocast(device, dtype=dtype, enabled=dtype == torch.bfloat16)
        with cast, capture(model, head) as forward:
            for _ in range(count):
                _, logits = forward(batch)
            logits.sum().item()  # waits for the device

    return run


def main(args: Sequence[str] | None = None) -> None:
    options = arguments(__doc__).parse_args(args)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    rows = []
    for precision in ("float32", "bfloat16") if device.type == "cuda" else ("float32",):
        for name, (model, batch, count) in _networks(device).items():
            checked = _passes(model.eval().to(device), batch, count, precision)

            def unchecked(run: Callable[[], None] = checked) -> None:
                with _unchecked():
                    run()

            seconds = interleaved(
                {"without": unchecked, "with": checked},
                repeats=options.repeats,
                warmup=2,
                clock=time.perf_counter if device.type == "cuda" else time.process_time,
            )
            ratio = statistics.median(
                one / other for one, other in zip(seconds["with"], seconds["without"], strict=True)
            )
            entry = row(f"{name}, {precision}", [value / count for value in seconds["with"]])
            base = statistics.median(seconds["without"]) / count
            micro = {key: round(1e6 * statistics.median(seconds[key]) / count) for key in seconds}
            rows.append({
                "name": entry["name"], "batch": len(batch), "batches": count, "n": entry["n"],
                "without_us": micro["without"], "with_us": micro["with"],
                "ratio": round(ratio, 3), "more_us": round(1e6 * (ratio - 1) * base),
            })  # fmt: skip
    publish("Forward passes held to their head, per batch", rows, file=options.out)


if __name__ == "__main__":
    main()
