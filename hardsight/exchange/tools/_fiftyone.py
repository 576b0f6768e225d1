"""Export a run as a ``FiftyOneImageClassificationDataset``, which FiftyOne imports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.errors import DataError
from hardsight.exchange.tools._rows import HERE, plain
from hardsight.run_folder import write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardsight.exchange.tools._rows import Pictures, RunRows


def write_fiftyone(
    run: RunRows, rows: NDArray[np.int64], target: Path, pictures: Pictures
) -> list[str]:
    """Write ``labels.json``, and ``data/`` with the pictures that are not files of their own.

    A picture that is a file is named by its full path and not copied. The label is the one after
    all decisions, as a number. The old label, the suggestion, the reason and the scores are
    attributes.
    """
    if pictures.are_texts:
        raise DataError("FiftyOne shows pictures, and these examples are texts; export them to "
                        "label-studio, argilla or huggingface")  # fmt: skip
    target.mkdir()
    labels: dict[str, Any] = {}
    left_out = 0
    if pictures.have_files:
        keys = ((row, pictures.file_of(row)) for row in rows.tolist())
        named = [(row, None if file is None else str(file)) for row, file in keys]
        (target / "data").mkdir()  # where FiftyOne looks for pictures; it may be empty
    else:
        written = pictures.written(rows, target / "data")
        named = [(row, None if name is None else Path(name).stem) for row, name in written]
    for row, key in named:
        if key is None:
            left_out += 1
            continue
        labels[key] = _label(run, row)
    write_json(target / "labels.json", {"classes": list(run.classes), "labels": labels})
    notes = [
        f'in Python: fiftyone.Dataset.from_dir(dataset_dir="{HERE}", '
        "dataset_type=fiftyone.types.FiftyOneImageClassificationDataset)"
    ]
    return notes + pictures.count_left_out(left_out, len(rows))


def _label(run: RunRows, row: int) -> dict[str, Any]:
    suspects = run.suspects
    attributes = {
        "index": int(run.index[row]),
        "label_before": run.name_of(int(run.label[row])),
        "prediction": run.name_of(int(run.prediction[row])),
        "suggestion": run.name_of(int(suspects.suggestion[row])),
        "group": suspects.groups[int(suspects.group[row])],
        "reason": suspects.reason(row),
        "verdict": run.verdict[row],
        "is_suspect": bool(suspects.is_suspect[row]),
        **{name: plain(run.table.column(name)[row]) for name in run.table.scores},
    }
    label = int(run.fixed[row])
    return {
        "label": label if label >= 0 else None,
        "confidence": float(run.quality[row]),
        # FiftyOne does not accept null as an attribute
        "attributes": {name: value for name, value in attributes.items() if value is not None},
    }
