"""Epochs of CIFAR-10's size on a GPU: hardsight train beside a hand-written loop.

The loop is what an expert would write: it keeps its images on the device, crops and mirrors them
there, computes in bfloat16 with channels last, and replays its whole step as a CUDA graph, with and
without ``torch.compile``. Both use full batches of the same size. On a CPU, for
:mod:`benchmarks.networks`, the loop takes its steps one by one in float32.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import hardsight as hs
from benchmarks._measure import arguments, publish, row
from hardsight.models import load_model

_SIDE, _PADDING, _CLASSES = 32, 4, 10
_WARM_UPS = 4
_GREY_ALREADY = ("mnist_cnn", "small_cnn", "el_mnist", "el_attack")  # one channel by default
# what of hardsight train is timed: its default, tracked and compiled, and without recorded steps
_OURS: dict[str, dict[str, Any]] = {
    "hardsight train": {},
    "hardsight train, tracked": {"track": True},
    "hardsight train, compiled": {"compile": True},
    "hardsight train, compiled, tracked": {"compile": True, "track": True},
    "hardsight train, step by step": {"capture": False},
}


class Loop:
    """The hand-written loop.

    Args:
        name: of the network.
        images: ``[N, C, H, H]``, bytes.
        labels: ``[N]``.
        batch_size: of every step.
        is_compiled: run the network through ``torch.compile``.
        device: ``cuda`` or ``cpu``.
    """

    def __init__(
        self,
        name: str,
        images: Tensor,
        labels: Tensor,
        *,
        batch_size: int,
        is_compiled: bool = False,
        device: str = "cuda",
    ) -> None:
        self._device, self._side = device, images.shape[-1]
        factory = {"num_classes": _CLASSES}
        if images.shape[1] == 1 and name not in _GREY_ALREADY:
            factory["channels"] = 1
        model = load_model(name, **factory).model.to(device).train()
        layout = torch.channels_last if device == "cuda" else torch.contiguous_format
        self._model = model.to(memory_format=layout)  # type: ignore[call-overload]
        self._run = torch.compile(self._model) if is_compiled else self._model
        padded = torch.nn.functional.pad(images.to(device), (_PADDING,) * 4)
        self._frames = padded.permute(0, 2, 3, 1).contiguous()
        self._labels, self._size = labels.to(device), batch_size
        self._rows = torch.zeros(batch_size, dtype=torch.long, device=device)
        self._offsets = torch.zeros(batch_size, 2, dtype=torch.long, device=device)
        self._flips = torch.zeros(batch_size, dtype=torch.bool, device=device)
        rate = torch.tensor(0.1, device=device) if device == "cuda" else 0.1
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, fused=True
        )
        self._replay = self._recorded().replay if device == "cuda" else self._step

    def epoch(self) -> None:
        """One pass over all full batches, in a random order."""
        count = len(self._labels)
        order = torch.randperm(count, device=self._device)
        offsets = torch.randint(2 * _PADDING + 1, (count, 2), device=self._device)
        flips = torch.rand(count, device=self._device) < 0.5
        for start in range(0, count - self._size + 1, self._size):
            part = slice(start, start + self._size)
            self._rows.copy_(order[part])
            self._offsets.copy_(offsets[part])
            self._flips.copy_(flips[part])
            self._replay()
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _recorded(self) -> Any:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                self._step()
        torch.cuda.current_stream().wait_stream(aside)
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph

    def _step(self) -> None:
        side, at = self._side, torch.arange(self._side, device=self._device)
        down = at + self._offsets[:, :1]
        right = at.expand(self._size, -1)
        right = torch.where(self._flips[:, None], side - 1 - right, right) + self._offsets[:, 1:]
        windows = self._frames[self._rows[:, None, None], down[:, :, None], right[:, None, :]]
        inputs = windows.permute(0, 3, 1, 2).float() / 255
        is_fast = self._device == "cuda"
        with torch.autocast(self._device, torch.bfloat16, is_fast, cache_enabled=False):
            logits = self._run(inputs)
        self._optimizer.zero_grad(set_to_none=True)
        cross_entropy(logits.float(), self._labels[self._rows]).backward()
        self._optimizer.step()


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", nargs="+", default=["resnet18"])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=8, help="the first one is left out")
    options = parser.parse_args(args)
    if not torch.cuda.is_available():
        parser.error("steps are recorded on a CUDA device, and there is none")
    draw = torch.Generator().manual_seed(0)
    shape = (options.images // options.batch_size * options.batch_size, 3, _SIDE, _SIDE)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=draw)
    labels = torch.arange(len(images)) % _CLASSES
    rows = []
    for model in options.model:
        found = _by_hand(model, images, labels, options) | _by_us(model, images, labels, options)
        for name in found:
            print(f"{model}: {name}: first epoch {found[name][0]:.1f} s", flush=True)
        found = {name: seconds[1:] for name, seconds in found.items()}
        base = row("", found["by hand, recorded"])["median_s"]
        for name, seconds in found.items():
            entry = row(f"{model}: {name}", seconds)
            rate = len(images) / entry["median_s"]
            rows.append(
                {
                    **entry,
                    "images_per_s": round(rate),
                    "of_loop": round(entry["median_s"] / base, 2),
                }
            )
    title = (
        f"An epoch of {len(images):,} {_SIDE}x{_SIDE} images, batch {options.batch_size} (wanted: "
        "1.1 times the loop by hand at most, and 0.02 more if tracked)"
    )
    publish(title, rows, file=options.out)


def _by_hand(model: str, images: Tensor, labels: Tensor, options: Any) -> dict[str, list[float]]:
    found = {}
    for name, is_compiled in (("by hand, recorded", False), ("by hand, compiled", True)):
        loop = Loop(model, images, labels, batch_size=options.batch_size, is_compiled=is_compiled)
        found[name] = _timed(loop.epoch, options.epochs)
    return found


def _timed(epoch: Callable[[], None], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        epoch()
        seconds.append(time.perf_counter() - start)
    return seconds


def _by_us(model: str, images: Tensor, labels: Tensor, options: Any) -> dict[str, list[float]]:
    data = hs.data.MemorySource(
        np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy()), labels.numpy()
    )
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, how in _OURS.items():
            done = hs.train(
                model, data, out=Path(folder, name), epochs=options.epochs, validation=0.0,
                batch_size=options.batch_size, select="last", device="cuda", show_progress=False,
                augment={"crop_padding": _PADDING, "flip": True}, thumbnails=0, **how,
            )  # fmt: skip
            found[name] = [entry["seconds"] for entry in done.history]
    return found


if __name__ == "__main__":
    main()
