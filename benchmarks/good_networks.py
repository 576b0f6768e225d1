"""What a network reaches on a dataset with a good recipe: the bar that experiments judge by.

``python -m benchmarks.good_networks --data-root data mnist/small_cnn cifar10/resnet18`` trains each
network with cross-entropy, long enough and with augmentation, on all training images, and
writes its accuracy on the test split after the last epoch. ``hardsight/experiments/lab/_gates.py``
states the numbers, and a test compares both.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path
from typing import Any

import hardsight as hs
from benchmarks._measure import hardware

FILE = Path(__file__).parent / "results" / "good_networks.csv"
SEEDS = (0, 1, 2)
_GREY = {"augment": {"crop_padding": 2}, "optimizer": {"name": "sgd", "lr": 0.1, "nesterov": True}}
_COLOUR = {**_GREY, "augment": {"crop_padding": 4, "flip": True}}
# of the data, beside what the device affords
RECIPES: dict[str, dict[str, Any]] = {
    "mnist": _GREY,
    "fashion-mnist": _GREY,
    "cifar10": _COLOUR,
    "builtin:digits": {**_GREY, "augment": {}},  # to see in seconds that it runs
}
EPOCHS = {"mnist": 20, "fashion-mnist": 20, "cifar10": 40, "builtin:digits": 20}


def accuracies(name: str, *, root: str | None, device: str, seeds: tuple[int, ...]) -> list[float]:
    """Test accuracy of one network per seed, per cent; ``name`` is ``DATASET/NETWORK``."""
    dataset, _, model = name.partition("/")
    test = hs.data.open_source(dataset, split="test", data_root=root)
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as out:
            done = hs.train(
                model, dataset, split="train", root=root, out=f"{out}/run", seed=seed,
                epochs=EPOCHS[dataset], batch_size=128, validation=test, select="last",
                schedule={"name": "cosine", "warmup_epochs": 1.0}, device=device,
                **RECIPES[dataset],
            )  # fmt: skip
        found.append(100 * done.history[-1]["val_accuracy"])
        print(f"{name}, seed {seed}: {found[-1]:.2f} %", flush=True)
    return found


def main() -> None:
    """Measure the named networks and put them into the file, in place of what it has of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", metavar="DATASET/NETWORK")
    parser.add_argument("--data-root")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--out", type=Path, default=FILE, help="the CSV file")
    options = parser.parse_args()
    known = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    rows = list(csv.DictReader(known))
    for name in options.names:
        found = accuracies(
            name, root=options.data_root, device=options.device, seeds=tuple(options.seeds)
        )
        row = {
            "network": name,
            "accuracy": f"{statistics.fmean(found):.2f}",
            "std": f"{statistics.stdev(found):.2f}" if len(found) > 1 else "",
            "n": str(len(found)),
            "seeds": " ".join(map(str, options.seeds)),
            "epochs": str(EPOCHS[name.partition("/")[0]]),
            **hardware(),
        }
        rows = [*(kept for kept in rows if kept["network"] != name), row]
        with options.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(row))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
