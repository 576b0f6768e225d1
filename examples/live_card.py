"""Train three losses on Fashion-MNIST and put them on one evaluation card.

    python examples/live_card.py --data-root data                     # a GPU, about a minute
    python examples/live_card.py --data-root data --model small_cnn --limit 10000 --epochs 3 --quick

``data`` holds ``fashion-mnist/`` and ``mnist/`` with their four idx files each; MNIST plays the
foreign data. The networks differ in their loss alone: cross-entropy (CE), encouraging loss (EL)
and cross-entropy with AMC-Loss (AMC).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import hardsight as hs
from hardsight.experiments import Lab


def losses(epochs: int) -> dict[str, list[Any]]:
    amc = {"name": "amc", "weight": 10.0, "ramp": "gaussian", "ramp_epochs": epochs * 80 / 300}
    return {
        "CE": ["cross_entropy"],
        "EL": [{"name": "encouraging", "options": {"log_end": 0.75}}],
        "AMC": ["cross_entropy", amc],
    }


# a few minutes on one core; intervals are wide
QUICK = {
    "attack_examples": 64, "attack_steps": 3, "explain_examples": 16, "feature_examples": 1000,
    "map_examples": 200, "workers": 0,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", help="folder above fashion-mnist/ and mnist/")
    parser.add_argument("--model", default="amc13")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, help="examples to train on; all by default")
    parser.add_argument("--quick", action="store_true", help="evaluate on few examples, on a CPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/live-card"))
    parser.add_argument("--out", type=Path, default=Path("docs/assets/live-card"))
    args = parser.parse_args()
    lab = Lab(
        scale="paper", out=args.out, runs=args.runs, data_root=args.data_root, device=args.device
    )
    train = lab.source("fashion-mnist", "train", limit=args.limit)
    for name, loss in losses(args.epochs).items():
        done = hs.train(
            {"name": args.model, "options": {"width": 0.5} if args.model == "amc13" else {}},
            train,
            out=args.runs / name,
            epochs=args.epochs,
            loss=loss,
            optimizer={"name": "adam", "lr": 0.002},
            device=args.device,
            resume=True,
        )
        print(f"{name}: validation accuracy {max(r['val_accuracy'] for r in done.history):.2%}")
    card = hs.evaluation_card(
        [(name, str(args.runs / name), None) for name in losses(args.epochs)],
        lab.source("fashion-mnist", "test", limit=1000 if args.quick else None),
        train=train,
        ood=[lab.source("mnist", "test", limit=500 if args.quick else None)],
        device=args.device,
        out=args.runs,
        overwrite=True,
        **(QUICK if args.quick else {}),
    )
    args.out.mkdir(parents=True, exist_ok=True)
    title = f"Three losses on Fashion-MNIST ({args.model}, {args.epochs} epochs)"
    print(hs.write_card(card, out=args.out / "card.html", title=title, overwrite=True))


if __name__ == "__main__":
    main()
