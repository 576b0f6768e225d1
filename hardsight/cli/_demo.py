from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hardsight.cli._command import Command

if TYPE_CHECKING:
    from hardsight.run.demo import DemoResult


_JUDGES = {
    "suspicion": "suspicion, the doubt averaged over training",
    "aum": "AUM, the margin averaged over training",
    "mean_avh": "AVH averaged over training",
    "avh": "AVH after training",
}


_EPILOG = """\b
Example:
  hardsight demo --out demo
"""


@click.command(cls=Command, epilog=_EPILOG)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="demo",
    show_default=True,
    help="Folder to write. An earlier demo in it is replaced.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
def demo(out: Path, seed: int) -> None:
    """See it all on built-in data, offline, in about a minute.

    The demo plants a few label errors in scikit-learn's digits, trains a small CNN while tracking
    every example, scores the training and the held-out part, writes a report on each, and says how
    many of the planted errors it found.
    """
    from hardsight.report import write_report
    from hardsight.run.demo import run_demo

    result = run_demo(out, seed=seed)
    pages = [
        write_report(result.folder / "train", title="Digits with planted label errors"),
        write_report(result.folder / "heldout", title="Held-out digits"),
    ]
    _print_result(result, pages)


def _print_result(result: DemoResult, pages: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title="The ten labels most likely to be wrong", title_justify="left")
    for column in ("example", "label", "prediction", "suspicion", "AVH", "planted error"):
        table.add_column(column)
    for row in result.train.suspects(10).itertuples():
        planted = "yes" if row.index in result.planted else ""
        table.add_row(
            str(row.id), str(row.label), str(row.prediction), f"{row.suspicion:.3f}",
            f"{row.avh:.3f}", planted,
        )  # fmt: skip
    console.print(table)
    right = (result.heldout.column("label") == result.heldout.column("prediction")).mean()
    console.print(f"\nheld-out accuracy: {right:.1%} of {len(result.heldout)} digits")
    count = len(result.planted)
    console.print(f"planted label errors: {count}; of these, among the {count} most suspect")
    for score, title in _JUDGES.items():
        console.print(f"  by {title}: [bold]{result.found(score)}[/]")
    console.print("\nopen in a browser:")
    for page in pages:
        console.print(f"  {page}", soft_wrap=True, markup=False)
    folder = result.folder
    train, model, data = (
        shlex.quote(str(folder / name)) for name in ("train", "model.safetensors", "train.npz")
    )
    console.print("\nnext, do the same by hand, with your own model and data in place of these:")
    console.print(
        f"  hardsight score --model hardsight.models:SmallCNN "
        f"--weights {model} --data {data} --mean 0 --std 1 "
        "--out my-run\n"
        "  hardsight report my-run",
        soft_wrap=True,
        markup=False,
    )
    console.print("\nor go through the suspects one by one and fix their labels:")
    console.print(
        f"  hardsight review {train}",
        soft_wrap=True,
        markup=False,
    )
