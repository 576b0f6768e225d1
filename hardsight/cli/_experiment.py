from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hardsight.cli._command import Group, json_option, tell
from hardsight.cli._tables import print_table

_EPILOG = """\b
Examples:
  hardsight experiment list
  hardsight experiment run amc-table1
  hardsight experiment run amc-table1 --scale short --data-root data
  hardsight experiment run el-table5 --scale paper --runs runs --jobs 6
  hardsight experiment run amc-table1 --set epochs=5 --set 'seeds=[0, 1]'
"""


_LIST_EPILOG = """\b
Examples:
  hardsight experiment list
  hardsight experiment list --long
  hardsight experiment list --json
"""


@click.group(cls=Group, epilog=_EPILOG)
def experiment() -> None:
    """Reproduce the papers' tables and figures, by name."""


@experiment.command("list", epilog=_LIST_EPILOG)
@json_option
@click.option("--long", is_flag=True, help="Also show what each experiment does, and its settings.")
def list_(long: bool) -> None:
    """List every experiment and the table or figure it reproduces."""
    from hardsight.experiments import EXPERIMENTS, SHORT_NAMES

    short = {name: word for word, name in SHORT_NAMES.items()}
    facts = [
        {
            "name": name,
            "short_name": short.get(name),
            "title": spec.title,
            "reproduces": spec.reproduces,
            "scales": {scale: vars(setting) for scale, setting in spec.scales.items()},
        }
        for name, spec in sorted(EXPERIMENTS.items())
    ]
    tell(facts, lambda: _print_list(EXPERIMENTS, short, long=long))


def _print_list(experiments: Mapping[str, Any], short: Mapping[str, str], *, long: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    grid = Table("name", "reproduces", "what it shows", box=None, pad_edge=False)
    for name, spec in sorted(experiments.items()):
        full = spec.scales[spec.fullest]
        settings = ", ".join(f"{key}={value!r}" for key, value in vars(full).items())
        about = (
            f"{spec.title}\n[dim]{escape(spec.about(full))}\nscales: {', '.join(spec.scales)}; "
            f"settings at {spec.fullest}: {escape(settings)}[/]\n"
        )
        also = f"\n[dim]or {short[name]}[/]" if name in short else ""
        grid.add_row(f"[bold]{name}[/]{also}", spec.reproduces, about if long else spec.title)
    console.print(grid)
    console.print("\nnext: hardsight experiment run NAME", markup=False)


@experiment.command(epilog=_EPILOG)
@click.argument("name")
@click.option(
    "--scale",
    default="smoke",
    show_default=True,
    metavar="[smoke|short|paper]",
    help="smoke: built-in data, seconds on a CPU. short: real data with fewer epochs and smaller "
    "networks than the paper's, minutes on a GPU. paper: the paper's own settings, as far as it "
    "states them.",
)
@click.option("--out", help="Folder of the result; by default results/NAME or "
              "results/NAME-paper.")  # fmt: skip
@click.option("--runs", help="Folder of trained models, which other experiments can reuse.")
@click.option("--data-root", help="Folder above those of named datasets, such as cifar10/.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps.")
@click.option("--jobs", default=1, show_default=True, metavar="N",
              help="Processes that train the models side by side, sharing the device.")  # fmt: skip
@click.option("--how", multiple=True, metavar="KEY=VALUE",
              help="Change how models are trained, but not what is trained, such as "
              "compile=true.")  # fmt: skip
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Override one setting of the experiment, in TOML syntax.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the result in --out.")
@json_option
def run(name: str, out: str | None, **options: Any) -> None:
    """Run the experiment NAME, and write its numbers, figures and page."""
    from hardsight.experiments import run_experiment, usual_folder  # torch loads only now

    folder = Path(out) if out is not None else usual_folder(name, options["scale"])
    result = run_experiment(name, out=folder, **options)
    claims = [dataclasses.asdict(claim) for claim in result.claims]
    facts = {"name": name, "out": folder, "page": folder / "README.md", "claims": claims}
    tell(facts, lambda: _print_result(result, folder))


def _print_result(result: Any, folder: Path) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for table in result.tables:
        _print_table(console, table)
    for claim in result.claims:
        word = {"yes": "[green]holds[/]", "no": "[red]does not hold[/]"}
        said = escape(f"{claim.says} ({claim.seen})")
        console.print(f"{word.get(claim.verdict, claim.verdict)}: {said}", soft_wrap=True)
    console.print(f"result -> {folder / 'README.md'}", soft_wrap=True, markup=False)


def _print_table(console: Any, table: Any) -> None:
    from hardsight.experiments import said

    rows = ([said(cell) for cell in row] for row in table.rows)
    print_table(console, table.title, table.columns, rows)
    if table.note:
        console.print(table.note, style="dim", markup=False)
    console.print()
