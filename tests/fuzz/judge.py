"""Whether the program's answer is right: it agrees with the oracle, or it refuses in words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import hardsight.scores  # noqa: F401  # fills the registry
from hardsight.registry import SCORES
from tests.fuzz.draw import Array
from tests.fuzz.oracle import Expected, decided, expected_scores, finite_rows


@dataclass(frozen=True)
class Answer:
    """What came back from one command.

    Attributes:
        exit_code: of the program.
        output: what it printed, errors included.
        traceback: of an exception that nobody turned into words; empty if there was none.
        hung: it did not end in time.
    """

    exit_code: int
    output: str
    traceback: str = ""
    hung: bool = False


def complaint_about(answer: Answer) -> str:
    """What no answer may be; empty if this one is well-formed."""
    if answer.hung:
        return f"hang: no answer in time\n{answer.traceback}"
    if answer.traceback or "Traceback (most recent call last)" in answer.output:
        return f"traceback: {answer.traceback or answer.output}"
    if answer.exit_code not in (0, 1, 2):
        return f"exit code {answer.exit_code}"
    if answer.exit_code:
        said = re.search(r"Error: (.+)", answer.output, re.DOTALL)
        if said is None or len(said[1].split()) < 3:
            return f"refusal without a reason: {answer.output!r}"
    warned = re.search(r"^.*\b(?:Runtime|Deprecation|Future|User)Warning: .*$", answer.output, re.M)
    if warned is not None and "this is a toy" not in warned[0]:
        return f"warning of a library: {warned[0]}"
    return ""


def complaint_about_table(
    file: Path, expected: Expected, asked: list[str] | None, *, may_lack: bool = False
) -> str:
    """Where a table differs from what it must hold; empty if it does not.

    Args:
        file: the table.
        expected: its rows.
        asked: scores that were asked for; ``None`` for all.
        may_lack: scores that need a head may be missing, if the table says so.
    """
    table = pq.ParquetFile(file).read(use_threads=False)
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    about = json.loads(table.schema.metadata[b"hardsight"])
    keys = {"index": expected.index, "id": expected.ids, "label": expected.labels.tolist()}
    for name, values in keys.items():
        if columns[name].tolist() != values:
            return f"{name}: expected {values}, got {columns[name].tolist()}"
    if about["classes"][: len(expected.classes)] != expected.classes:
        return f"classes: expected {expected.classes}, got {about['classes']}"
    if about["counts"]["errors"] != len(expected.errors):
        return f"errors: expected {expected.errors}, got {about['counts']['errors']}"
    names = [name for name, spec in SCORES.items() if not spec.per_class]
    lacking = [name for name in asked or names if name not in columns]
    told = about.get("missing", {"scores": []})["scores"]
    if lacking and (asked or not may_lack or sorted(lacking) != sorted(told)):
        return f"missing: there are no columns {lacking}, and the table tells of {told}"
    return _complaint_about_scores(columns, expected, asked)


def _complaint_about_scores(
    columns: dict[str, Array], expected: Expected, asked: list[str] | None
) -> str:
    outputs = expected.outputs
    finite = finite_rows(outputs.logits)
    if columns["finite"].tolist() != finite.tolist():
        return f"finite: expected {finite.tolist()}, got {columns['finite'].tolist()}"
    sure = finite & decided(np.where(finite[:, None], outputs.logits, 0), outputs.tolerance)
    wanted = np.where(finite, np.where(finite[:, None], outputs.logits, 0).argmax(axis=1), -1)
    compared = sure | ~finite
    if (columns["prediction"] != wanted)[compared].any():
        return f"prediction: expected {wanted.tolist()}, got {columns['prediction'].tolist()}"
    known = expected_scores(outputs, expected.labels)
    names = [name for name, spec in SCORES.items() if not spec.per_class]
    for name in names if asked is None else asked:
        needs_head = "embeddings" in SCORES[name].inputs
        if name not in columns:
            continue
        if needs_head and outputs.features is None:
            return f"{name}: there is a column, but no layer makes the logits from any features"
        fault = _complaint_about_score(name, columns[name], known.get(name), finite)
        if fault:
            return fault
    return ""


def _complaint_about_score(
    name: str, values: Array, known: tuple[Array, Array | float] | None, finite: Array
) -> str:
    low, high = SCORES[name].low, SCORES[name].high
    seen = values[finite & ~np.isnan(values)]
    if (seen < low - 1e-3).any() or (seen > high + 1e-3).any():
        return f"{name}: outside [{low}, {high}]: {seen.tolist()}"
    if known is None:  # a score this oracle has not heard of: its range is all there is to check
        return ""
    wanted, allowed = known
    compared = finite & ~np.isnan(wanted)  # a zero vector has no direction
    with np.errstate(invalid="ignore"):
        apart = np.abs(values - wanted)
    wrong = compared & (values != wanted) & ~(apart <= allowed)
    if not wrong.any():
        return ""
    row = int(np.flatnonzero(wrong)[0])
    return (
        f"{name}: row {row}: expected {wanted[row]:.6g} within "
        f"{np.broadcast_to(allowed, wanted.shape)[row]:.2g}, got {values[row]:.6g}; "
        f"{int(wrong.sum())} of {len(wanted)} rows differ"
    )
