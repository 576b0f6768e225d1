"""What scoring a collection of pictures costs: the rates of one core, and hours, bytes and money.

Each step is timed by itself on one thread, in processor time, which excludes other work on the same
cores. The steps are: read, decode and shrink a picture; run the model; compute all scores of its
row; and write the row to the table. ``benchmarks.cluster --photos`` measures the sum for an actor,
which does all of it at once. The page docs/performance/cost-model.md compares the two.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hardsight as hs
from benchmarks._measure import arguments, publish
from benchmarks.cluster import made_embeddings, made_photos
from hardsight.data import batches, open_source
from hardsight.preprocessing import Preprocessing

_BATCH = 8


def per_row(work: Callable[[], int], repeats: int) -> list[float]:
    """Processor seconds per row of a piece of work, which says how many rows it did."""
    work()
    found = []
    for _ in range(repeats):
        start = time.process_time()
        rows = work()
        found.append((time.process_time() - start) / rows)
    return found


def decoding(folder: Path, size: int) -> Callable[[], int]:
    """Pictures to tensors."""
    source = open_source(folder)
    how = Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3, size=(size, size), channels=3)

    def work() -> int:
        return sum(len(batch.labels) for batch in batches(source, how, batch_size=_BATCH))

    return work


def passing(size: int) -> Callable[[], int]:
    """Tensors through a ResNet-18."""
    model = hs.models.load_model("resnet18", num_classes=10).model.eval()
    inputs = torch.randn(_BATCH, 3, size, size)

    def work() -> int:
        with torch.inference_mode():
            for _ in range(4):
                model(inputs)
        return 4 * _BATCH

    return work


def scoring(folder: Path, rows: int, out: Path | None) -> Callable[[], int]:
    """Stored embeddings to a table, in memory or on disk."""
    names = {name: str(folder / f"{name}.npy") for name in ("labels", "weights")}

    def work() -> int:
        hs.score(
            None, folder / "embeddings.npy", labels=names["labels"], class_weights=names["weights"],
            device="cpu", out=out, overwrite=True, show_progress=False,
        )  # fmt: skip
        return rows

    return work


def measured(place: Path, options: Any) -> tuple[dict[str, list[float]], float, float]:
    """Seconds per row of each step, and bytes of a picture and of a row of the table."""
    photos = made_photos(place / "photos", 64)
    picture_bytes = statistics.mean(file.stat().st_size for file in photos.rglob("*.jpg"))
    rows = 100_000
    wide = made_embeddings(place / "wide", rows // 5, 512, options.classes)
    narrow = made_embeddings(place / "narrow", rows, 2, 2)
    seconds = {
        "read, decode, resize": per_row(decoding(photos, options.size), options.repeats),
        f"ResNet-18 at {options.size} px": per_row(passing(options.size), options.repeats),
        f"scores, 512 x {options.classes:,}": per_row(
            scoring(wide, rows // 5, None), options.repeats
        ),
    }
    kept = per_row(scoring(narrow, rows, None), options.repeats)
    written = per_row(scoring(narrow, rows, place / "run"), options.repeats)
    seconds["write"] = [both - statistics.median(kept) for both in written]
    table = (place / "run" / "table.parquet").stat().st_size / rows
    return seconds, picture_bytes, table


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", type=int, default=64, help="pixels that the model sees")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--cores", type=int, default=64, help="of the cluster, for the predictions")
    parser.add_argument("--price", type=float, default=0.04, help="of a core and hour")
    parser.add_argument("--efficiency", type=float, default=0.9, help="of linear speed-up")
    options = parser.parse_args(args)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        seconds, picture, table = measured(Path(place), options)
    steps = [
        {
            "name": name,
            "median_us": round(1e6 * statistics.median(each), 1),
            "min_us": round(1e6 * min(each), 1),
            "max_us": round(1e6 * max(each), 1),
            "n": len(each),
            "rows_per_s": round(1 / statistics.median(each)),
        }
        for name, each in seconds.items()
    ]
    publish("processor time of a row, one core", steps, file=options.out)
    each = sum(statistics.median(times) for times in seconds.values())
    print(f"together {1000 * each:.2f} ms; a picture {picture:,.0f} bytes, a row {table:.0f} bytes")
    for count in (100_000_000, 1_000_000_000):
        core_hours = count * each / 3600 / options.efficiency
        print(
            f"{count:,} pictures: {core_hours:,.0f} core-hours, {core_hours / options.cores:,.1f} "
            f"hours on {options.cores} cores, {core_hours * options.price:,.0f} at "
            f"{options.price:g} per core and hour; {count * picture / 1e12:,.1f} TB read, "
            f"{count * table / 1e9:,.1f} GB written; {np.ceil(count / 4096):,.0f} shards"
        )


if __name__ == "__main__":
    main()
