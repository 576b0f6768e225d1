"""A run as the frame of label issues that cleanlab's Datalab gives."""

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
    """``is_label_issue``, ``label_score``, ``given_label`` and ``predicted_label`` of every row.

    As in ``Datalab.get_issues("label")``: in the order of the data, names of classes, and a score
    in [0, 1] of which low is bad. It is the place in our order of suspects, as a share. What
    somebody decided counts: a label that was kept is not an issue, one that was changed is.
    """
    is_issue = run.suspects.is_suspect[rows].copy()
    for at, row in enumerate(rows.tolist()):
        # what a person decided is no longer an estimate
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
