"""Class weights and bias in a file that may hold a whole network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardsight.data.formats._stored import ARRAY_SUFFIXES, split_member, stored_arrays
from hardsight.data.source import existing, in_memory
from hardsight.errors import AmbiguousHeadError, DataError, OptionError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.data.formats._mapped import FileArray


def plain_array(value: Any, *, names: tuple[str, ...], option: str) -> NDArray[Any] | None:
    """An array given as such, as a tensor, or as a file that holds it.

    Args:
        value: array, tensor, sequence, path, ``FILE:NAME``, or ``None``.
        names: under which the array may be stored; the only array of a file needs no name.
        option: what it is called, for messages.
    """
    if value is None:
        return None
    if not _is_path(value):
        return in_memory(value)
    arrays, name = _opened(value, option)
    found = [name] if name is not None else [key for key in names if key in arrays]
    if not found and len(arrays) == 1:
        found = list(arrays)
    if not found:
        raise DataError(
            f'no {option} in {value}: it holds {_listed(arrays)}; pass {option}="{value}:NAME"'
        )
    return arrays[found[0]].whole()


def head_arrays(
    value: Any, *, width: int, least_classes: int, classes: int | None
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Class weights ``[C, D]`` and bias ``[C]`` of the head in a file or array.

    A state dict is searched for the one matrix of width ``D`` with enough rows; a bias of the
    same layer comes along.

    Args:
        value: array, tensor, path, ``FILE:NAME``, or ``None``.
        width: D.
        least_classes: highest label plus one.
        classes: C if it is known.

    Raises:
        ShapeError: no array has that width.
        AmbiguousHeadError: several have; the message names them.
    """
    if value is None:
        return None, None
    if not _is_path(value):
        return in_memory(value), None
    arrays, name = _opened(value, "class_weights")
    if name is None:
        name = _only_head(arrays, str(value), width, least_classes, classes)
    bias = arrays.get(_bias_name(name))
    weights = _matrix(arrays[name])
    if bias is None or bias.shape != weights.shape[:1]:
        return weights, None
    return weights, bias.whole()


def _is_path(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "__fspath__")


def _opened(value: Any, option: str) -> tuple[dict[str, FileArray], str | None]:
    text, name = split_member(str(value))
    file = existing(text)
    if file.suffix.lower() not in ARRAY_SUFFIXES:
        raise OptionError(f"expected {option} in one of {', '.join(ARRAY_SUFFIXES)}, got {value}")
    arrays = stored_arrays(file)
    if name is not None and name not in arrays:
        raise DataError(f"no array {name!r} in {text}: it holds {_listed(arrays)}")
    return arrays, name


def _only_head(
    arrays: dict[str, FileArray], file: str, width: int, least_classes: int, classes: int | None
) -> str:
    if "class_weights" in arrays:
        return "class_weights"
    wide = [name for name, array in arrays.items() if _could_be_head(array, width)]
    fitting = [
        name
        for name in wide
        if arrays[name].shape[0] >= least_classes and classes in (None, arrays[name].shape[0])
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise ShapeError(
            f"expected class_weights [C, {width}] with C >= {least_classes} in {file}, as wide as "
            f"the embeddings and with a row for every label, got {_listed(arrays)}"
        )
    raise AmbiguousHeadError(
        f"{len(fitting)} arrays in {file} could be the head ({', '.join(fitting)}); pass "
        f'class_weights="{file}:{fitting[-1]}"'
    )


def _could_be_head(array: FileArray, width: int) -> bool:
    shape = array.shape
    return (
        array.dtype.kind == "f"
        and len(shape) >= 2
        and shape[1] == width
        and all(length == 1 for length in shape[2:])  # a 1x1 convolution
    )


def _matrix(array: FileArray) -> NDArray[Any]:
    values = array.whole()
    if values.ndim > 2 and all(length == 1 for length in values.shape[2:]):
        return values.reshape(values.shape[:2])
    return values


def _bias_name(name: str) -> str:
    return name.removesuffix("weight") + "bias" if name.endswith("weight") else "bias"


def _listed(arrays: dict[str, FileArray], limit: int = 8) -> str:
    shown = [f"{name or 'one array'} {list(array.shape)}" for name, array in arrays.items()]
    return ", ".join(shown[:limit]) + (", ..." if len(shown) > limit else "") or "no arrays"
