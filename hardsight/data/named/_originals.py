"""CIFAR and SVHN in the files their authors published, read without running code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIXELS = 3 * 32 * 32


def cifar_arrays(files: Sequence[Path]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images ``[N, 3, 32, 32]`` and labels of CIFAR's binary version.

    A record is one label byte (CIFAR-100: the super-class, then the class) and 3,072 pixels.

    Raises:
        DataError: a file's size is not a multiple of a record.
    """
    images, labels = [], []
    for file in files:
        content = np.fromfile(file, dtype=np.uint8)
        is_hundred = "data_batch" not in file.name and "test_batch" not in file.name
        head = 2 if is_hundred else 1
        if not len(content) or len(content) % (head + _PIXELS):
            raise DataError(
                f"{file} is not a CIFAR batch: expected records of {head + _PIXELS:,} bytes, got "
                f"{len(content):,} bytes; unpack the archive again"
            )
        records = content.reshape(-1, head + _PIXELS)
        images.append(records[:, head:].reshape(-1, 3, 32, 32))
        labels.append(records[:, head - 1].astype(np.int64))
    return np.concatenate(images), np.concatenate(labels)


def svhn_arrays(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images ``[N, 32, 32, 3]`` and labels of SVHN's cropped digits; the stored 10 is digit 0.

    Raises:
        DataError: the file is damaged or holds something else.
    """
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(file)
        images, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
    except Exception as err:  # a damaged file can raise almost anything
        raise DataError(
            f"{file} is not a readable SVHN file (X and y of the cropped digits): "
            f"{type(err).__name__}: {err}"
        ) from err
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels % 10
