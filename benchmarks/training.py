"""One epoch of training end to end: against the same step on synthetic tensors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hardsight as hs
from benchmarks._measure import arguments, publish, row
from hardsight.run.train import Draws, TrainBatch
from hardsight.run.train import TrainBatches as Batches


class _Synthetic(Batches):
    """One batch that is there already, shown again and again: no input pipeline at all."""

    def __init__(self, real: Batches) -> None:
        super().__init__(
            real.pixels, real.augment, length=real.length, batch_size=real.batch_size,
            seed=real.seed, shard=real.shard,
        )  # fmt: skip
        self._batch = next(iter(real))

    def drawn(self, draws: Draws) -> Iterator[TrainBatch]:
        """As many batches as an epoch has; nothing that was drawn plays a part."""
        rest = self.length % self.batch_size
        for step in range(len(self)):
            is_short = rest and step == len(self) - 1
            yield TrainBatch(*(part[:rest] for part in self._batch)) if is_short else self._batch


@contextmanager
def _synthetic_batches() -> Iterator[None]:
    """Let training see synthetic batches; everything else stays as it is."""
    from hardsight.run import train as module

    original = module.batches_of

    def synthetic(*args: Any, **options: Any) -> Any:
        batches, validation, pixels = original(*args, **options)
        return _Synthetic(batches), validation, pixels

    module.batches_of = synthetic
    try:
        yield
    finally:
        module.batches_of = original


# the same step on a batch that is there already, images kept on the device, images from workers
_VARIANTS: dict[str, tuple[Any, bool]] = {
    "synthetic": (_synthetic_batches, True),
    "resident": (nullcontext, True),
    "streamed": (nullcontext, False),
}


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--images", type=int, default=50_000 if on_gpu else 512)
    parser.add_argument("--batch-size", type=int, default=128 if on_gpu else 32)
    parser.add_argument("--model", default="resnet18" if on_gpu else "small_cnn")
    parser.add_argument("--data-root", help="of CIFAR-10; random pictures of its size otherwise")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument(
        "--variants", nargs="+", choices=list(_VARIANTS), default=list(_VARIANTS),
        help="synthetic comes first: the others are compared with it",
    )  # fmt: skip
    parser.add_argument(
        "--networks", nargs="*", metavar="NAME",
        help="instead: each of these beside a loop by hand (all of them without names), and a grid",
    )  # fmt: skip
    parser.add_argument("--device", help="with --networks; cuda if there is one")
    options = parser.parse_args(args)
    if options.networks is not None:
        from benchmarks import networks

        networks.compare(
            options.networks, device=options.device, repeats=options.repeats, file=options.out
        )
        return
    settings = {
        "epochs": 2,  # the first one warms up and is left out
        "batch_size": options.batch_size,
        "augment": {"crop_padding": 4, "flip": True},
        "compile": options.compile,
        "validation": 0.0,
        "show_progress": False,
    }
    seconds: dict[str, list[float]] = {name: [] for name in options.variants}
    with tempfile.TemporaryDirectory() as name:
        data = _data(Path(name), options.images, options.data_root)
        for turn in range(options.repeats):  # in turns, so that drift hits all alike
            for variant in options.variants:
                context, resident = _VARIANTS[variant]
                out = Path(name, f"{resident}-{context.__name__}-{turn}")
                with context():
                    done = hs.train(options.model, data, out=out, resident=resident, **settings)
                seconds[variant].append(done.history[1]["seconds"])
    rows = [row(name, values) for name, values in seconds.items()]
    base = rows[0]["median_s"]
    rows = [{**entry, "speed_of_synthetic": round(base / entry["median_s"], 3)} for entry in rows]
    title = (
        f"One epoch of {options.images:,} 32x32 images, {options.model}, batch "
        f"{options.batch_size}{', compiled' if options.compile else ''} (target: 0.85)"
    )
    publish(title, rows, file=options.out)


def _data(folder: Path, count: int, root: str | None) -> Any:
    if root is not None:
        return {"name": "cifar10", "split": "train", "root": root}
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, size=(count, 32, 32, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", images=images, labels=np.arange(count) % 10)
    return folder / "images.npz"


if __name__ == "__main__":
    main()
