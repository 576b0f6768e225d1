"""Hugging Face datasets: objects, and names on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hardsight._checks import first_line
from hardsight.data.formats._parquet import LABEL_COLUMNS
from hardsight.data.formats._tables import IMAGE_COLUMNS, named_column
from hardsight.data.pixels import decode, decode_file
from hardsight.data.source import Example, ExampleSource, Fingerprint, class_indices, evenly_spaced
from hardsight.errors import BadExampleError, DataError, MissingDataError


class HuggingFaceSource(ExampleSource):
    """A ``datasets.Dataset`` with one image column and one label column.

    Images are decoded here rather than by ``datasets``, so that rotation, 16-bit values and
    damaged files are treated as everywhere else. Ids are positions: paths in such datasets are
    often equal or gone.

    Args:
        dataset: any map-style ``datasets.Dataset`` without a format of its own.
        spec: as the user named it.
        classes: names, position = label; those of the label column if not given.
        label: name of the label column; ``None`` finds it by the usual names.

    Raises:
        DataError: no column, or more than one, can be the image or the label.
        UnknownPartError: the column that is named is not there.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        spec: str = "Dataset",
        classes: Sequence[str] | None = None,
        label: str | None = None,
    ) -> None:
        import datasets

        self.spec = spec
        if not len(dataset):
            raise DataError(f"no examples in {spec}: the dataset has no rows")
        kinds = dataset.features
        self._column = _chosen(kinds, datasets.Image, IMAGE_COLUMNS, "image", spec)
        if label is None:
            label = _chosen(kinds, datasets.ClassLabel, LABEL_COLUMNS, "label", spec)
        named_column(list(kinds), label, "label", spec)
        self._images = dataset.select_columns([self._column]).cast_column(
            self._column, datasets.Image(decode=False)
        )
        self._others = dataset.remove_columns([self._column])
        names = kinds[label].names if isinstance(kinds[label], datasets.ClassLabel) else None
        column: pa.ChunkedArray = dataset.select_columns([label]).with_format("arrow")[:][label]
        self.labels, self.classes = class_indices(
            column.to_numpy(), classes=classes or names, where=f"column {label!r} of {spec}"
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        value = self._images[index][self._column]
        if value is None or (value["bytes"] is None and not value["path"]):
            raise BadExampleError("no image is stored for it")
        content = value["bytes"]
        image = decode_file(value["path"]) if content is None else decode(content)
        return Example(self.id_of(index), self.label_of(index), image)

    def column(self, name: str) -> NDArray[Any] | None:
        """Another column of the dataset; classes by their names."""
        if name not in self._others.column_names:
            return None
        kind, values = self._others.features[name], self._others[name][:]
        if hasattr(kind, "int2str"):
            values = [None if value is None else kind.int2str(value) for value in values]
        return np.array(values, dtype=object)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Those of the dataset but for its images."""
        return tuple(self._others.column_names)

    def fingerprint(self) -> str:
        """SHA-256 over labels, classes and evenly spaced images."""
        mark = Fingerprint("huggingface").add_array(self.labels).add_names(self.classes)
        for index in evenly_spaced(len(self), 16):
            value = self._images[index][self._column] or {}
            mark.add(value.get("path"), value.get("bytes"))
        return mark.hexdigest()


def has_images(dataset: Any) -> bool:
    """Whether a ``datasets.Dataset`` yields stored images, unformatted and untransformed."""
    import datasets

    plain = dataset.format["type"] is None
    return plain and any(isinstance(kind, datasets.Image) for kind in dataset.features.values())


def load_from_hub(name: str, split: str | None) -> Any:
    """The dataset ``OWNER/NAME[:CONFIG]`` of the hub, or a local folder in its layout.

    Raises:
        MissingDataError: there is no such dataset.
        DataError: a config or split must be chosen, or it cannot be loaded.
    """
    import datasets

    path, _, config = name.partition(":")
    if not path:
        raise DataError(f"expected hub:OWNER/NAME or hub:OWNER/NAME:CONFIG, got 'hub:{name}'")
    try:
        if split is None:
            split = _only_split(datasets.get_dataset_split_names(path, config or None), name)
        return datasets.load_dataset(path, config or None, split=split)
    except DataError:
        raise
    except datasets.exceptions.DatasetNotFoundError as err:
        raise MissingDataError(f"no dataset hub:{name}: {first_line(err)}") from err
    except Exception as err:  # the hub, its cache and its builders raise almost anything
        raise DataError(
            f"cannot load hub:{name} with split={split!r}: {type(err).__name__}: "
            f"{first_line(err)}; check the name, the split and the network"
        ) from err


def _only_split(splits: list[str], name: str) -> str:
    if len(splits) == 1:
        return splits[0]
    raise DataError(f"hub:{name} has the splits {', '.join(splits)}; pass split={splits[0]!r}")


def _chosen(kinds: Any, kind: type, preferred: Sequence[str], role: str, spec: str) -> str:
    of_kind = [name for name, feature in kinds.items() if isinstance(feature, kind)]
    named = [name for name in preferred if name in kinds]
    fitting = [name for name in named if name in of_kind] or named or of_kind
    if len(fitting) == 1 or (fitting and fitting[0] in named):
        return fitting[0]
    said = f"{len(fitting)} columns could be ({', '.join(fitting)})" if fitting else "none is"
    option = "name it by label_column= (--label-column), or " if role == "label" else ""
    raise DataError(
        f"expected one {role} column in {spec}, but {said}, among {', '.join(kinds)}; {option}"
        f"rename it to {role!r} with dataset.rename_column"
    )
