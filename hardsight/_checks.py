"""Check arguments, import optional packages, and warn at the line of the user's code.

torch is not imported here, so that tables and the command line can use this module.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import importlib
import inspect
import numbers
import os
import platform
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import hardsight
from hardsight.errors import (
    ConfigError,
    HardsightWarning,
    LabelError,
    MissingExtraError,
    OptionError,
    ShapeError,
    TensorError,
)

if TYPE_CHECKING:
    from torch import Tensor

Options = ParamSpec("Options")
Result = TypeVar("Result")
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_UNIONS = (typing.Union, types.UnionType)
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LISTED = (list, tuple, collections.abc.Sequence)
NO_BARS = "HARDSIGHT_PROGRESS"  # an environment variable; "off" turns progress bars off
BY_HAND = ("bash", "interactive")  # Slurm's names of interactive jobs, which Lightning ignores too
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "True or False",
    type(None): "None",
    os.PathLike: "a path",
}
_LISTS: dict[Any, tuple[str, str]] = {
    int: ("whole numbers", " such as (224, 224)"),
    float: ("numbers", " such as (0.5, 0.5, 0.5)"),
    str: ("names", ""),
}


def bars_wanted(asked: bool | None, *, is_terminal: bool) -> bool:
    """Whether to show progress: as asked for, or else on a terminal unless it is turned off."""
    if asked is not None:
        return asked
    return is_terminal and os.environ.get(NO_BARS, "").lower() not in ("off", "0", "no", "false")


def launched() -> tuple[str, int] | None:
    """The launcher that started this process as one of several, and their number, if any.

    Example:
        >>> launched() is None
        True
    """
    given = os.environ
    for by, applies, counted in (
        ("torchrun", "TORCHELASTIC_RUN_ID" in given, "WORLD_SIZE"),
        (
            "srun",
            given.get("SLURM_JOB_NAME") not in BY_HAND,
            "SLURM_STEP_NUM_TASKS",
        ),  # which nothing else sets
        # an unknown launcher; WORLD_SIZE alone may be set by other programs
        ("a launcher", "RANK" in given, "WORLD_SIZE"),
    ):
        count = given.get(counted, "") if applies else ""
        if count.isdecimal() and int(count) > 1:
            return by, int(count)
    return None


def refuse_ranks(what: str, *, instead: str = "") -> None:
    """Raise if a launcher has started several processes for work that is done by one.

    Otherwise each process would do all of the work, or all but one would find the folder of the run
    locked.

    Args:
        what: the work, such as "adapting".
        instead: another way to spread the work, if there is one.

    Raises:
        ConfigError: there are several processes; the message says how to start one.
    """
    by, count = launched() or ("", 1)
    if count > 1:
        how = f"without {by}" if by != "a launcher" else "alone, with RANK and WORLD_SIZE unset"
        raise ConfigError(
            f"{by} started {count} processes, and {what} is done by one process; start it {how}"
            f"{instead and f', or {instead}'}"
        )


class _UnfitError(Exception):
    """A value does not fit a type."""


def checked_options(function: Callable[Options, Result]) -> Callable[Options, Result]:
    """Check the arguments of a function against their annotations before it runs.

    Whole numbers are converted to floats, lists to tuples, and numbers of numpy to those of Python.
    Arguments annotated with ``Any`` or with a class of tensors are not checked.

    Example:
        >>> @checked_options
        ... def scored(*, batch_size: int | None = None, mean: tuple[float, ...] = ()) -> object:
        ...     return mean
        >>> scored(mean=[0, 1])
        (0.0, 1.0)
        >>> scored(batch_size="8")
        Traceback (most recent call last):
        hardsight.errors.OptionError: expected batch_size to be a whole number or None, got '8'
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Options.args, **options: Options.kwargs) -> Result:
        bound = signature.bind(*args, **options)
        hints = _hints(function)
        for name, value in bound.arguments.items():
            if name in hints and signature.parameters[name].kind not in _COLLECTING:
                bound.arguments[name] = _checked(name, value, hints[name])
        return function(*bound.args, **bound.kwargs)

    return checked


def called_as(*ways: str) -> Callable[[Callable[Options, Result]], Callable[Options, Result]]:
    """Make a function say how it is called if an argument is missing.

    Args:
        ways: calls, such as ``score(model, data, ...)``.
    """

    def around(function: Callable[Options, Result]) -> Callable[Options, Result]:
        signature = inspect.signature(function)
        needed = [
            name
            for name, it in signature.parameters.items()
            if it.default is it.empty and it.kind not in _COLLECTING
        ]

        @functools.wraps(function)
        def checked(*args: Options.args, **options: Options.kwargs) -> Result:
            given = signature.bind_partial(*args, **options).arguments
            missing = [repr(name) for name in needed if name not in given]
            if missing:
                raise OptionError(
                    f"{function.__name__}() is missing {' and '.join(missing)}; write "
                    f"{', or '.join(ways)}"
                )
            return function(*args, **options)

        return checked

    return around


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of the parameters; a type that is only imported for type checkers becomes ``Any``."""
    inner = inspect.unwrap(function)
    hints = {}
    for name, annotation in inner.__annotations__.items():
        try:
            is_text = isinstance(annotation, str)
            hints[name] = eval(annotation, inner.__globals__) if is_text else annotation
        except NameError:
            hints[name] = Any
    return hints


def _checked(name: str, value: Any, hint: Any) -> Any:
    try:
        return _fitted(value, hint)
    except _UnfitError:
        raise OptionError(f"expected {name} to be {_said(hint)}, got {value!r}") from None


def _fitted(value: Any, hint: Any) -> Any:
    """Convert ``value`` to a type, or raise :class:`_UnfitError`."""
    origin = typing.get_origin(hint) or hint
    if origin in _UNIONS:
        return _fitted_to_any(value, typing.get_args(hint))
    if origin is Any or isinstance(origin, TypeVar):
        return value
    if origin is bool or origin is type(None):
        return _required(value, isinstance(value, origin))
    if origin is int:
        return int(_required(value, _is(value, numbers.Integral)))
    if origin is float:
        return float(_required(value, _is(value, numbers.Real)))
    if origin in _LISTED:
        return _fitted_list(value, hint, origin)
    return _required(value, not isinstance(origin, type) or isinstance(value, origin))


def _fitted_to_any(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return _fitted(value, hint)
        except _UnfitError:
            continue
    raise _UnfitError


def _fitted_list(value: Any, hint: Any, origin: Any) -> Any:
    if hasattr(value, "tolist"):  # an array or a tensor
        value = value.tolist()
    is_listed = isinstance(value, collections.abc.Sequence)
    _required(value, is_listed and not isinstance(value, str | bytes))
    kinds = typing.get_args(hint)
    if origin is not tuple or (len(kinds) == 2 and kinds[1] is Ellipsis):
        items = [_fitted(item, kinds[0] if kinds else Any) for item in value]
    else:
        _required(value, len(value) == len(kinds))
        items = [_fitted(item, kind) for item, kind in zip(value, kinds, strict=True)]
    return tuple(items) if origin is tuple else items


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _required(value: Any, fits: bool) -> Any:
    if not fits:
        raise _UnfitError
    return value


def _said(hint: Any) -> str:
    """Describe a type in words."""
    origin = typing.get_origin(hint) or hint
    if origin in _UNIONS:
        return " or ".join(dict.fromkeys(_said(part) for part in typing.get_args(hint)))
    if origin not in _LISTED:
        return _WORDS.get(origin) or f"a {getattr(origin, '__name__', origin)}"
    kinds = typing.get_args(hint)
    is_fixed = origin is tuple and Ellipsis not in kinds
    items, example = _LISTS.get(kinds[0] if kinds else Any, ("values", ""))
    return f"a list of {f'{len(kinds)} ' if is_fixed else ''}{items}{example}"


def check_tensors(**values: object) -> None:
    """Raise unless every value is a tensor.

    Raises:
        TensorError: a value is not a tensor, such as a numpy array.
    """
    import torch

    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            raise TensorError(
                f"expected {name} to be a torch.Tensor, got {type(value).__name__}; "
                f"pass torch.as_tensor({name})"
            )


def check_rows(**tensors: Tensor) -> None:
    """Raise unless every tensor has one row per example.

    Raises:
        ShapeError: the tensors differ in length, or a tensor has no dimensions.
        TensorError: a value is not a tensor.
    """
    check_tensors(**tensors)
    if any(tensor.ndim == 0 for tensor in tensors.values()) or (
        len({tensor.shape[0] for tensor in tensors.values()}) > 1
    ):
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise ShapeError(f"expected one row per example in every tensor, got {shapes}")


def check_matrix(**tensors: Tensor) -> None:
    """Raise unless every tensor is a floating-point matrix of at least one column."""
    check_tensors(**tensors)
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            raise ShapeError(f"expected {name} to have 2 dimensions, got {list(tensor.shape)}")
        if tensor.shape[1] == 0:
            raise ShapeError(
                f"expected {name} to have at least one column, got a shape of {list(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            raise ShapeError(f"expected {name} to be floating point, got {tensor.dtype}")


def check_width(embeddings: Tensor, class_weights: Tensor) -> None:
    """Raise unless embeddings ``[N, D]`` and class weights ``[C, D]`` share their width."""
    check_matrix(embeddings=embeddings, class_weights=class_weights)
    if embeddings.shape[1] != class_weights.shape[1]:
        raise ShapeError(
            "expected embeddings [N, D] and class_weights [C, D] of the same width D, got "
            f"embeddings {list(embeddings.shape)}, class_weights {list(class_weights.shape)}"
        )


def check_indices(labels: Tensor) -> None:
    """Raise unless labels are a vector of integers, of any value."""
    check_tensors(labels=labels)
    if labels.ndim != 1:
        raise ShapeError(f"expected labels to have 1 dimension, got {list(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex():
        raise LabelError(f"expected labels to be integers, got {labels.dtype}")


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Raise unless labels are integers in ``[0, num_classes)``.

    The range is only checked on the CPU: on an accelerator, reading the values would wait for all
    queued work. There a label that is not a class raises when it is used, or gives NaN.
    """
    check_indices(labels)
    if labels.device.type == "cpu" and labels.numel() and not is_traced(labels):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            raise LabelError(
                f"expected labels in [0, {num_classes}), got values from {low} to {high}"
            )


def is_traced(tensor: Tensor) -> bool:
    """Whether values cannot be read, under ``torch.compile`` or a ``torch.func`` transform."""
    import torch

    return torch.compiler.is_compiling() or is_transformed(tensor)


def is_transformed(tensor: Tensor) -> bool:
    """Whether ``tensor`` is inside a ``torch.func`` transform such as ``vmap``."""
    import torch

    if torch.compiler.is_compiling():  # the call below cannot be traced
        return False
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def require(module: str, *, extra: str, feature: str) -> ModuleType:
    """Import ``module``, or raise an error that says which extra installs it.

    Args:
        module: dotted name to import.
        extra: the extra of hardsight that installs it, or a plain package name.
        feature: what the user asked for, as the message should name it.

    Raises:
        MissingExtraError: the import failed; its error is kept as the cause.
    """
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise MissingExtraError(
            f"{feature} needs {module!r}: pip install 'hardsight[{extra}]' (import said: {err})"
        ) from err


def versions_of(*packages: str) -> dict[str, str]:
    """Return the versions of hardsight, Python and the installed ones of ``packages``.

    Nothing is imported.

    Args:
        packages: names as pip knows them.
    """
    installed = {name: _installed(name) for name in packages}
    own = {"hardsight": hardsight.__version__, "python": platform.python_version()}
    return own | {name: text for name, text in installed.items() if text is not None}


def versions(*more: str) -> dict[str, str]:
    """Return the versions of everything that can change a score, and of ``more`` packages."""
    return versions_of("torch", "numpy", "pyarrow", "pillow", *more)


@functools.cache  # metadata of packages is parsed as an email, which takes milliseconds
def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # such as a vendored build without metadata
        return None


def warns_of(
    notes: Callable[[Any], Iterable[str]],
) -> Callable[[Callable[Options, Result]], Callable[Options, Result]]:
    """Make a function warn about its result.

    Args:
        notes: returns the warnings for a result; each is a headline, a colon and the rest.
    """

    def around(function: Callable[Options, Result]) -> Callable[Options, Result]:
        @functools.wraps(function)
        def warning(*args: Options.args, **options: Options.kwargs) -> Result:
            result = function(*args, **options)
            for note in notes(result):
                warn(note)
            return result

        return warning

    return around


def warn(text: str) -> None:
    """Warn at the line of the user's own code, since Python shows a warning once per line."""
    warnings.warn(text, HardsightWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """The number of frames from here up to the user's own code."""
    level, frame = 1, sys._getframe(1)
    # frames of contextlib are skipped as well: our functions may be called through them
    ours = (_PACKAGE, contextlib.__file__)
    while frame is not None and frame.f_code.co_filename.startswith(ours):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level


def first_line(err: BaseException) -> str:
    """The first line of the message of an exception, or its type if it has no message."""
    return (str(err).strip().splitlines() or [type(err).__name__])[0]


def is_url(text: str) -> bool:
    """Whether a name is a URL, such as ``s3://bucket/photos``, or with ``s3:/``, as in a path.

    Example:
        >>> is_url("s3://bucket/photos"), is_url("hub:owner/name"), is_url("C:/photos")
        (True, False, False)
    """
    return re.match(r"[a-z][a-z0-9+.-]+:/", text, re.IGNORECASE) is not None


def reason_of(err: Exception) -> str:
    """An error of somebody else's code, on one line."""
    said = " ".join(str(err).split()) or "no reason given"
    return f"{type(err).__name__}: {said}"


def path_of_file_url(text: str) -> str | None:
    """Return the path of a ``file:`` URL; ``None`` for other URLs.

    Example:
        >>> path_of_file_url("file:///photos/cat%20.png"), path_of_file_url("s3://bucket/photos")
        ('/photos/cat .png', None)
    """
    scheme, rest = re.split(":/+", text, maxsplit=1)  # a path keeps only one of the two slashes
    if scheme.lower() != "file":
        return None
    from urllib.request import url2pathname  # not at the top: it imports many network modules

    return url2pathname(f"/{rest}".removeprefix("/localhost"))
