"""What has to be said about a table."""

from __future__ import annotations

from hardsight.table import ScoreTable


def score_notes(table: ScoreTable) -> list[str]:
    """Everything the numbers of a table have to be read with."""
    about = table.metadata
    notes = []
    origin = about["model"].get("weights") or ""
    if origin == "random initialisation" or origin.startswith("as made by"):
        notes.append(f"no --weights were given: the model was scored {origin}")
    missing = about.get("missing")
    if missing:
        notes.append(
            f"the model has no head that can be read: {', '.join(missing['scores'])} are missing, "
            f"because {missing['reason']}"
        )
    counts = about["counts"]
    if counts["errors"]:
        listed = "" if table.path is None else f": {table.path.parent / 'errors.parquet'}"
        notes.append(f"{counts['errors']:,} examples could not be read{listed}")
    if counts["non_finite"]:
        notes.append(f"{counts['non_finite']:,} rows are not finite: see the column 'finite'")
    return notes
