"""Export a run as the table of label issues that cleanlab's Datalab returns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hardsight.patch import KEEP, RELABEL, defused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardsight.exchange.tools._rows import RunRows


def write_cleanlab(run: RunRows, rows: NDArray[np.int64], target: Path) -> list[str]:
    """Write ``is_label_issue``, ``label_score``, ``given_label`` and ``predicted_label``.

    The rows are those of ``Datalab.get_issues("label")``: in the order of the data, with names of
    classes and a score in [0, 1], where low is bad. The score is the place in our order of
    suspects, as a share. Decisions count: a label that was kept is not an issue, and one that was
    changed is.
    """
    is_issue = run.suspects.is_suspect[rows].copy()
    for at, row in enumerate(rows.tolist()):
        # a decision of a person replaces the estimate
        if run.verdict[row] in (KEEP, RELABEL):
            is_issue[at] = run.verdict[row] == RELABEL
    frame = pd.DataFrame({
        "is_label_issue": is_issue,
        "label_score": run.quality[rows],
        "given_label": [run.name_of(int(label)) for label in run.label[rows]],
        "predicted_label": [run.name_of(int(label)) for label in run.prediction[rows]],
    })  # fmt: skip
    if target.suffix.lower() == ".parquet":
        # an open file: pyarrow takes names as UTF-8 in every locale
        with target.open("wb") as sink:
            frame.to_parquet(sink, index=False)
        return []
    for name in ("given_label", "predicted_label"):
        # names may begin like a formula; parquet is not opened by spreadsheets
        frame[name] = [defused(text) for text in frame[name]]
    frame.to_csv(target, index=False)
    return []
