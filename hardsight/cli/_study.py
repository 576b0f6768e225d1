from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardsight.cli._score import _names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardsight.run.study import StudyTable

_HUMAN_EPILOG = """\b
FILE is one of
  people.csv        columns id,frequency   (id as in the table, or the file name)
                    or index,frequency     (position in the data, from 0)
  counts.npy        [N, C]: how many people chose each class, in the order of the data
  data.parquet      with a column human_counts, such as cifar10/cifar10-test.parquet

\b
Examples:
  hardsight score --model run/ --data cifar10 --split test --data-root data --out scores
  hardsight study human scores --human data/cifar10/cifar10-test.parquet
  hardsight study human scores --human people.csv --scores avh,model_confidence --test meng

A hardness should fall where more people chose the label, so its coefficient is negative. AVH and
confidence share the human column: the default test allows for it, the paper's does not.
"""


_HELP = """Statistics on your own data: scores against people, degradations, training.

\b
hardsight study human TABLE --human FILE         scores against human selection frequency
hardsight study degradation --model M --data D   scores against noise and contrast
hardsight study dynamics RUN [RUN ...]           norm, AVH and accuracy along training
"""


@click.group(help=_HELP)
def study() -> None:
    """See ``_HELP``."""


@study.command(epilog=_HUMAN_EPILOG)
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--human", required=True, metavar="FILE", type=click.Path(path_type=Path),
              help="What people chose: a CSV of frequencies, or counts (.npy, "
              ".parquet).")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path),
              help="Folder for study.json, study.md and figures; by default study-human beside "
              "the table.")  # fmt: skip
@click.option("--scores", multiple=True, callback=_names, metavar="NAME[,NAME]",
              help="Columns to study; all scores by default.")  # fmt: skip
@click.option("--test", type=click.Choice(["steiger", "meng", "bootstrap"]), default="steiger",
              show_default=True,
              help="Between the correlations of AVH and confidence.")  # fmt: skip
@click.option("--quantiles", type=click.IntRange(min=1), default=5, show_default=True,
              help="Quantile bins of human frequency, beside the paper's five.")  # fmt: skip
@click.option("--alpha", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.05,
              show_default=True, help="Level of the decisions.")  # fmt: skip
def human(table: Path, human: Path, out: Path | None, **options: Any) -> None:
    """Hold every score of TABLE against how often people chose the label.

    TABLE is a folder that `hardsight score` wrote, or its table.parquet. Printed and written: the
    correlations with intervals, total, per bin of human frequency and within classes; AVH against
    model confidence by a dependent test; and the AVH paper's four hypotheses, in words.
    """
    from hardsight.run.study import study_folder, study_human

    folder = out or study_folder(table, "human")
    found = study_human(table, human, out=folder, **options)
    _print(found.tables(), folder)


def _print(tables: Sequence[StudyTable], folder: Path) -> None:
    """The tables on the terminal, and where everything lies."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from hardsight.report import write_study

    console = Console(highlight=False)
    for one in tables:
        shown = Table(title=escape(one.title), title_justify="left", title_style="bold")
        for column in one.columns:
            shown.add_column(escape(column), overflow="fold")
        for row in one.rows:
            shown.add_row(*(escape(cell) for cell in row))
        console.print(shown)
        if one.note:
            console.print(escape(one.note), style="dim", soft_wrap=True)
        console.print()
    page = write_study(folder)
    console.print(
        f"{escape(str(page))}\n{escape(str(page.with_name('study.json')))}", soft_wrap=True
    )
