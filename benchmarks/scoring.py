"""Scoring images end to end: against bare inference over the same loader."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import hardsight as hs
from benchmarks._measure import arguments, interleaved, publish, row
from hardsight.data import EmbeddingSource, batches, open_source
from hardsight.preprocessing import Preprocessing

_INPUT = Preprocessing(size=(96, 96), channels=3)


class _Net(nn.Module):
    """A small residual network: enough work per image to be a fair peer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 5, stride=2, padding=2)
        self.blocks = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(4))
        self.head = nn.Linear(32, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = torch.relu(self.stem(images))
        for block in self.blocks:
            maps = maps + torch.relu(block(maps))
        logits: torch.Tensor = self.head(maps.mean(dim=(2, 3)))
        return logits


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(args)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = _Net(10).eval().to(device)
    with tempfile.TemporaryDirectory() as name:
        folder = _photos(Path(name), options.images)
        loading = {"batch_size": 64, "workers": options.workers}

        def bare() -> None:
            source = open_source(folder)
            assert not isinstance(source, EmbeddingSource)
            with torch.inference_mode():
                for batch in batches(source, _INPUT, **loading):
                    model(batch.inputs.to(device, non_blocking=True)).argmax(1).cpu()

        def scored() -> None:
            hs.score(model, folder, preprocessing=_INPUT, precision="float32", **loading)

        seconds = interleaved({"bare": bare, "score": scored}, repeats=options.repeats)
    base = row("", seconds["bare"])["median_s"]
    rows = [row(name, values) for name, values in seconds.items()]
    rows = [{**entry, "speed_of_bare": round(base / entry["median_s"], 3)} for entry in rows]
    title = f"Scoring {options.images:,} JPEGs at 96 px, all scores (target: 0.95 of bare)"
    publish(title, rows, file=options.out)


def _photos(folder: Path, count: int) -> Path:
    draw = np.random.default_rng(0)
    for label in range(10):
        (folder / f"class-{label}").mkdir()
    for number in range(count):
        coarse = draw.integers(0, 255, size=(12, 12, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((160, 120), Image.Resampling.BICUBIC)
        picture.save(folder / f"class-{number % 10}" / f"{number:06d}.jpg", quality=85)
    return folder


if __name__ == "__main__":
    main()
