"""A round's prediction pass over the target: against bare inference over the same images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from benchmarks._measure import arguments, interleaved, publish, row
from hardsight.data import MemorySource
from hardsight.models import SmallCNN
from hardsight.preprocessing import Preprocessing
from hardsight.run.adapt import AdaptConfig
from hardsight.run.adapt._data import Pool, opened_target
from hardsight.run.adapt._select import seen_by
from hardsight.run.loop import chosen_precision, forward_context
from hardsight.run.train import DataConfig, Pixels, opened_sources

_BATCH = 256


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--size", type=int, default=28)
    options = parser.parse_args(args)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = chosen_precision("auto", device)
    target = _pictures(options.images, options.size)
    pool = _pool(target, device)
    model = SmallCNN(channels=3).to(device).eval()
    images = torch.from_numpy(target.images).permute(0, 3, 1, 2).contiguous().to(device)
    pixels = Pixels(
        Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3), channels_last=False, device=device
    )

    def bare() -> None:
        with torch.no_grad(), forward_context(device, precision):
            found = [model(pixels.normalised(part)).argmax(1) for part in images.split(_BATCH)]
        torch.cat(found).cpu()

    def predicted() -> None:
        seen_by(
            model, pool.targets(_BATCH), sample=next(pool.targets(2)), device=device,
            precision=precision,
        )  # fmt: skip

    seconds = interleaved({"bare": bare, "predict": predicted}, repeats=options.repeats)
    base = row("", seconds["bare"])["median_s"]
    rows = [row(name, values) for name, values in seconds.items()]
    rows = [{**entry, "speed_of_bare": round(base / entry["median_s"], 3)} for entry in rows]
    title = (
        f"Predicting {options.images:,} resident images of {options.size} px, embeddings and "
        "probabilities kept (target: 0.95 of bare)"
    )
    publish(title, rows, file=options.out)


def _pictures(count: int, size: int) -> MemorySource:
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return MemorySource(pixels, np.arange(count) % 10, classes=tuple("0123456789"))


def _pool(target: MemorySource, device: torch.device) -> Pool:
    config = AdaptConfig.load(None, (), model="small_cnn", source="s", target="t", out="o")
    table = DataConfig("s", validation=0.0, mean=(0.5,) * 3, std=(0.5,) * 3)
    sources = opened_sources(table, target.subset(range(256)), seed=0)
    aim = opened_target(config.target, target, sources.classes)
    return Pool(sources, aim, config, device=device, workers=0, show=False)


if __name__ == "__main__":
    main()
