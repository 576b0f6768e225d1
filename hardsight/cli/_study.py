from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardsight.cli._command import Group, json_option, tell
from hardsight.cli._flags import flags_of
from hardsight.cli._tables import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardsight.run.study import StudyTable

_SCORE = "run/score/_score.py:score"
_HUMAN = "run/study/_study.py:study_human"
_DEGRADATION = "run/study/_study.py:study_degradation"
_FILE = {"type": click.Path(path_type=Path)}
_OUT = "Folder to write study.json, study.md and figures into; by default {}."
_HUMAN_EPILOG = """\b
FILE is one of
  people.csv     columns id,frequency  (id as in the table, or the file name)
                 or index,frequency    (position in the data, from 0)
  counts.npy     [N, C]: people who chose each class, in the order of the data
  data.parquet   with a column human_counts, such as cifar10-test.parquet

The more people chose the label, the lower a hardness score should be, so its coefficient should be
negative. AVH and confidence are both correlated with the same human column; the default test takes
that into account, the paper's does not.

\b
Examples:
  hardsight score --model run/ --data cifar10 --split test --out scores
  hardsight study human scores --human data/cifar10/cifar10-test.parquet
  hardsight study human scores --human people.csv --scores avh --test meng
"""


_HELP = """Compare scores on your own data with people, degradations and training.

\b
hardsight study human TABLE --human FILE         scores against people
hardsight study degradation --model M --data D   against noise and contrast
hardsight study dynamics RUN [RUN ...]           AVH and more along training
"""
_EPILOG = """\b
Example:
  hardsight study human scores --human people.csv
"""


@click.group(cls=Group, help=_HELP, epilog=_EPILOG)
def study() -> None:
    """See ``_HELP``."""


@study.command(epilog=_HUMAN_EPILOG)
@click.argument("table", type=click.Path(path_type=Path))
@flags_of(
    _HUMAN, "human", "out", "scores", "test", "quantiles", "alpha", "gallery", "pictures", "resume",
    "overwrite",
    human={**_FILE, "required": True, "metavar": "FILE"},
    out={**_FILE, "help": _OUT.format("study-human beside the table")},
    test={"type": click.Choice(["steiger", "meng", "bootstrap"])}, pictures={"metavar": "DATA"},
)  # fmt: skip
@json_option
def human(table: Path, human: Path, out: Path | None, **options: Any) -> None:
    """Compare every score of TABLE with how often people chose the label.

    TABLE is a folder that `hardsight score` wrote, or its table.parquet. The command prints and
    writes the correlations with intervals (overall, per bin of human frequency and within classes),
    a test of AVH against model confidence, and the AVH paper's four hypotheses in words.
    """
    from hardsight.run.study import study_folder, study_human

    folder = out or study_folder(table, "human")
    set_flags = {name: value for name, value in options.items() if value is not None}
    result = study_human(table, human, out=folder, **set_flags)
    _tell(result.tables(), folder)


_DEGRADATION_EPILOG = """\
Every picture is scored at every level, with the same random noise scaled by the level. A good
hardness score rises as pictures get harder to see.

\b
Examples:
  hardsight study degradation --model run/ --data cifar10 --split test
  hardsight study degradation --model runs/a --data photos/ --limit 2000 \\
                              --noise 0,0.2,0.4 --contrast 1,0.3 --out study
"""


@study.command(epilog=_DEGRADATION_EPILOG)
@flags_of(_DEGRADATION, "model", "data", model={"required": True}, data={"required": True})
@flags_of(_SCORE, "weights")
@flags_of(_DEGRADATION, "split", "data_root", "noise", "contrast", "scores", "limit")
@flags_of(
    _SCORE, "head", "output", "num_classes", "model_classes", "class_order", "trust_remote_code",
    "size", "crop", "squash", "channels", "mean", "std", "white", "batch_size", "workers", "device",
)  # fmt: skip
@flags_of(
    _DEGRADATION, "seed", "out", "resume", "overwrite",
    out={**_FILE, "default": Path("study-degradation"), "show_default": True},
)  # fmt: skip
@json_option
def degradation(out: Path, **options: Any) -> None:
    """Score the same pictures at several levels of noise and contrast.

    The command prints and writes the accuracy and the mean of each score at each level, and how
    closely the score follows the level, over all pictures and within each picture.
    """
    from hardsight.run.study import study_degradation

    set_flags = {name: value for name, value in options.items() if value is not None}
    studies = study_degradation(set_flags.pop("model"), set_flags.pop("data"), out=out, **set_flags)
    _tell([table for study in studies for table in study.tables()], out)


_DYNAMICS_EPILOG = """\b
This reads what training recorded, if the recipe has one of
  track_test = true    the test split after every epoch (never trained on)
  track = true         every training example (--examples train)

\b
Examples:
  hardsight study dynamics runs/resnet18
  hardsight study dynamics runs/a runs/b --human people.csv --out both
"""


@study.command(epilog=_DYNAMICS_EPILOG)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags_of(
    "run/study/_study.py:study_dynamics", "examples", "human", "out", "resume", "overwrite",
    human={**_FILE, "metavar": "FILE"},
    out={**_FILE, "help": _OUT.format("study-dynamics in the first run")},
)  # fmt: skip
@json_option
def dynamics(runs: tuple[Path, ...], out: Path | None, **options: Any) -> None:
    """Show how norm, AVH, confidence and accuracy change during the training of RUNS.

    RUNS are folders that `hardsight train` wrote. The command prints and writes the curves over
    epochs (counted from 1), overall and by human frequency, and whether the AVH paper's four
    observations hold, with numbers.
    """
    from hardsight.run.study import study_dynamics, study_folder

    folder = out or study_folder(runs[0], "dynamics")
    set_flags = {name: value for name, value in options.items() if value is not None}
    result = study_dynamics(runs, out=folder, **set_flags)
    _tell(result.tables(), folder)


def _tell(tables: Sequence[StudyTable], folder: Path) -> None:
    """Write the page of a study, and print its tables and the paths of its files."""
    from hardsight.report import write_study

    page = write_study(folder)
    facts = {
        "page": page,
        "study": page.with_name("study.json"),
        "tables": [
            {"title": table.title, "columns": list(table.columns),
             "rows": [list(row) for row in table.rows], "note": table.note}
            for table in tables
        ],
    }  # fmt: skip
    tell(facts, lambda: _print(tables, page))


def _print(tables: Sequence[StudyTable], page: Path) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for shown in tables:
        print_table(console, shown.title, shown.columns, shown.rows)
        if shown.note:
            console.print(escape(shown.note), style="dim", soft_wrap=True)
        console.print()
    console.print(
        f"{escape(str(page))}\n{escape(str(page.with_name('study.json')))}", soft_wrap=True
    )
