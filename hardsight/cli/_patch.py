from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardsight.cli._command import Group, json_option, old_option, tell
from hardsight.cli._options import names

if TYPE_CHECKING:
    from hardsight.patch import Conflict, Patch

_EPILOG = """\b
Examples:
  hardsight patch export run --out fixes.csv
  hardsight patch merge anna.csv ben.csv --resolve majority --out fixes.csv
  hardsight patch apply fixes.csv --data photos/ --out photos-fixed/
  hardsight score --data photos/ --patch fixes.csv --model runs/a --out again
"""
_SHOWN = 10  # conflicts that are printed; the others are counted


@click.group(cls=Group, epilog=_EPILOG)
def patch() -> None:
    """Turn decisions into a patch of the labels, and a patch into a corrected copy of the data."""


@patch.command(epilog=_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path),
              help="A .csv, .jsonl or .parquet file; by default RUN/patch.csv.")  # fmt: skip
@click.option("--resolve", default="drop", show_default=True, is_eager=True,
              type=click.Choice(["drop", "majority", "newest", "keep"]),
              help="If reviewers disagree about an example: leave it out (drop), take the majority "
              "or the newest decision, or keep all decisions to merge them later.")  # fmt: skip
@old_option("--conflicts", "--resolve", values={"leave-out": "drop"},
            type=click.Choice(["leave-out", "majority", "newest", "keep"]))  # fmt: skip
@click.option("--reviewer", "reviewers", multiple=True, metavar="NAME",
              help="Only the decisions of this reviewer; may be repeated.")  # fmt: skip
@click.option("--cannot-tell", type=click.Choice(["keep", "drop"]), default="keep",
              show_default=True,
              help="What the patch says about examples that were marked cannot tell: keep them "
              "with their old label, or drop them from the data.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the file at --out.")
@json_option
def export(
    run: Path,
    out: Path | None,
    resolve: str,
    reviewers: tuple[str, ...],
    cannot_tell: str,
    overwrite: bool,
) -> None:
    """Write the decisions about RUN as a patch with one row per decision.

    Its columns are index, id, old and new class by number and name, verdict, reviewer, time,
    reason, evidence, and the fingerprint of the data.
    """
    from hardsight.exchange import patch_of
    from hardsight.patch import conflicts_of, resolved, write_patch

    made = patch_of(run, reviewers=reviewers or None, cannot_tell=cannot_tell)
    disputed = conflicts_of(made)
    if resolve != "keep":
        made = resolved(made, resolve)
    folder = run if run.is_dir() else run.parent
    file = write_patch(made, out or folder / "patch.csv", overwrite=overwrite)
    step = ["hardsight", "patch", "apply", str(file), *_data_and_copy(run)]

    def in_words() -> None:
        _say_conflicts(disputed, made, kept=resolve == "keep")
        _say_patch(made, file)
        click.echo(f"next: {shlex.join(step)}")

    tell(_facts(made, disputed, file), in_words)


def _data_and_copy(run: Path) -> list[str]:
    """Flags that name the data of a run and a copy of it with the same file extension."""
    from hardsight.table import read_table

    metadata = read_table(run).metadata
    about = metadata.get("data") or {}
    data = str(about.get("spec") or "DATA")
    keys = ("split", "text_column", "label_column", "image_column")
    named = [word for key in keys if about.get(key)
             for word in (f"--{key.replace('_', '-')}", str(about[key]))]  # fmt: skip
    suffix = Path(data).suffix if Path(data).is_file() else ""
    # an .npy file holds only embeddings, and the table does not record where the labels were
    others = ["--labels", "LABELS.npy"] if suffix == ".npy" else []
    if others and metadata["model"]["spec"] == "stored head":
        others += ["--class-weights", "WEIGHTS"]
    return ["--data", data, *others, *named, "--out", f"FIXED{suffix}"]


@patch.command(epilog=_EPILOG)
@click.argument("patches", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--data", required=True, help="The data that was scored and reviewed.")
@click.option("--out", required=True, type=click.Path(path_type=Path),
              help="The copy to write: a folder if the data is a folder or idx files, otherwise a "
              "file with the same extension.")  # fmt: skip
@click.option("--split", help="The same as for `hardsight score`.")
@click.option("--labels", help="The same as for `hardsight score`; the copy then holds only the "
              "labels.")  # fmt: skip
@click.option("--class-weights", help="The same as for `hardsight score`.")
@click.option("--bias", help="The same as for `hardsight score`.")
@click.option("--classes", multiple=True, callback=names, metavar="NAME[,NAME]",
              help="The same as for `hardsight score`.")  # fmt: skip
@click.option("--text-column", help="The same as for `hardsight score`.")
@click.option("--label-column", help="The same as for `hardsight score`.")
@click.option("--image-column", help="The same as for `hardsight score`.")
@click.option("--cannot-tell", type=click.Choice(["keep", "drop"]), default="keep",
              show_default=True,
              help="Keep examples that were marked cannot tell with their old label, or leave "
              "them out.")  # fmt: skip
@click.option("--copy", is_flag=True, help="Copy pictures instead of hard-linking them.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier copy at --out.")
@json_option
def apply(
    patches: tuple[Path, ...],
    data: str,
    out: Path,
    split: str | None,
    labels: str | None,
    class_weights: str | None,
    bias: str | None,
    classes: tuple[str, ...] | None,
    text_column: str | None,
    label_column: str | None,
    image_column: str | None,
    cannot_tell: str,
    copy: bool,
    overwrite: bool,
) -> None:
    """Write a corrected copy of the data; the data itself is never touched.

    The copy has the form of the data: a folder of class folders, a CSV list, a JSONL or parquet
    file, idx files, or .npz, .npy or .safetensors arrays. Several PATCHES are applied one after the
    other. A patch is refused if it belongs to other data, or if the data has changed since it was
    scored.
    """
    from hardsight.exchange import apply_patch

    done = apply_patch(
        list(patches), data, out=out, split=split, labels=labels, class_weights=class_weights,
        bias=bias, classes=classes,
        text_column=text_column, label_column=label_column, image_column=image_column,
        cannot_tell=cannot_tell, copy=copy, overwrite=overwrite,
    )  # fmt: skip
    words = "".join(f"\n  {note}" for note in done.notes)
    tell(dataclasses.asdict(done), lambda: click.echo(f"{done.out}: {done}{words}"))


@patch.command(epilog=_EPILOG)
@click.argument("patches", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path),
              help="File to write, .csv, .jsonl or .parquet; without it, conflicts are only "
              "listed.")  # fmt: skip
@click.option("--resolve", type=click.Choice(["majority", "newest", "drop", "keep"]),
              help="If people disagree about an example: take the majority (ties are left out) or "
              "the newest decision, leave it out (drop), or keep all decisions.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the file at --out.")
@json_option
def merge(
    patches: tuple[Path, ...], out: Path | None, resolve: str | None, overwrite: bool
) -> None:
    """Join the patches of several people into one, and list where they disagree.

    If they disagree and --resolve does not say what to do, nothing is written and the exit code is
    1. If a person decided twice about an example, the later decision counts.
    """
    from hardsight.patch import conflicts_of, merged, read_patch, resolved, write_patch

    parts = [read_patch(file) for file in patches]
    whole = merged(parts)
    disputed = conflicts_of(whole)
    if disputed and resolve is None:
        tell(_facts(whole, disputed, None), lambda: _say_conflicts(disputed, whole, kept=True))
        raise click.ClickException(
            f"people disagree about {len(disputed):,} examples, so nothing was written; say what "
            "to do with --resolve majority, newest, drop or keep"
        )
    made = whole if resolve in (None, "keep") else resolved(whole, str(resolve))
    file = None if out is None else write_patch(made, out, overwrite=overwrite)

    def in_words() -> None:
        _say_conflicts(disputed, made, kept=resolve == "keep")
        replaced = sum(map(len, parts)) - len(whole)
        if replaced:
            click.echo(f"{replaced:,} decisions were duplicates, or replaced by later ones")
        if file is None:
            click.echo(f"{len(made):,} decisions; write them to a file with --out merged.csv")
        else:
            _say_patch(made, file)

    tell(_facts(made, disputed, file), in_words)


def _facts(made: Patch, disputed: Sequence[Conflict], file: Path | None) -> dict[str, Any]:
    return {
        "out": file,
        "decisions": len(made),
        "verdicts": _counts(made),
        "reviewers": made.reviewers,
        "conflicts": [{"index": int(entry.index), "says": str(entry)} for entry in disputed],
    }


def _counts(made: Patch) -> dict[str, int]:
    """Number of decisions per verdict; two people who decide about one example count twice."""
    counts = made.to_pandas()["verdict"].value_counts()
    return {str(verdict): int(count) for verdict, count in counts.items()}


def _say_conflicts(disputed: Sequence[Conflict], made: Patch, *, kept: bool) -> None:
    if not disputed:
        return
    there = set(made.to_pandas()["index"])
    click.echo(f"reviewers disagree about {len(disputed):,} examples:")
    for conflict in disputed[:_SHOWN]:
        done = "" if kept else " -> settled" if conflict.index in there else " -> left out"
        click.echo(f"  {conflict}{done}")
    if len(disputed) > _SHOWN:
        click.echo(f"  ... and {len(disputed) - _SHOWN:,} more")


def _say_patch(made: Patch, file: Path) -> None:
    said = ", ".join(f"{count:,} {verdict}" for verdict, count in _counts(made).items())
    who = ", ".join(made.reviewers)
    click.echo(f"{len(made):,} decisions ({said or 'none'}) by {who or 'nobody'} -> {file}")
