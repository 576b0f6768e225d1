"""Models from a factory in a package or in a file of the user's."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from hardsight.errors import HardsightError, MissingDataError, ModelError
from hardsight.models._registry import check_options
from hardsight.registry import unknown_name

# a model file may end in sys.exit(): let through, it would end the command, with success at 0
_FAILURES = (Exception, SystemExit)


def model_from_factory(
    place: str, name: str, *, options: Mapping[str, Any], if_taken: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """What the factory ``name`` in a module or ``.py`` file returns, and what it was given.

    The file's folder (for a module: the working directory) can be imported from while the file is
    imported and the factory runs, and not afterwards.

    Raises:
        MissingDataError: there is no such file.
        ModelError: the import fails, there is no such factory, or it does not make a model.
    """
    file = Path(place) if place.endswith(".py") else None
    folder = file.resolve().parent if file else Path.cwd()
    with _importable(folder, forget=file is not None):
        module = _imported_file(file) if file else _imported_module(place)
        factory = _factory(module, name, place)
        spec = f"{place}:{name}"
        check_options(factory, options, spec)
        also = {key: value for key, value in if_taken.items() if _takes(factory, key)}
        keywords = {**also, **options}
        try:
            model = factory(**keywords)
        except HardsightError:
            raise
        except _FAILURES as err:
            raise ModelError(f"{spec} failed with {_reason(err)}") from err
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected {spec} to return an nn.Module, got {type(model).__name__}")
    return model, keywords


def _imported_module(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except _FAILURES as err:
        raise ModelError(
            f"cannot import {place}: {_reason(err)}; install its package, run "
            "where it can be imported, or name the file: path/to/file.py:factory"
        ) from err


def _imported_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise MissingDataError(f"no Python file at {file}; expected path/to/file.py:factory")
    # a name of its own per path, so that two files called model.py do not meet
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    name = f"hardsight_user_{digest}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except _FAILURES as err:
        del sys.modules[name]
        raise ModelError(f"cannot import {file}: {_reason(err)}") from err
    return module


def _reason(err: BaseException) -> str:
    return f"{type(err).__name__}: {err}" if str(err) else type(err).__name__


def _factory(module: ModuleType, name: str, place: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(found).items() if _is_factory(key, value)]
            raise ModelError(unknown_name(f"factory in {place}", name, known))
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        model = found
        return lambda: model
    if not callable(found):
        raise ModelError(
            f"expected {place}:{name} to be a function or class that makes a model, "
            f"got {type(found).__name__}"
        )
    factory: Callable[..., Any] = found
    return factory


def _is_factory(name: str, value: Any) -> bool:
    return callable(value) and not name.startswith("_")


def _takes(factory: Callable[..., Any], keyword: str) -> bool:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    any_keyword = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return keyword in parameters or any_keyword


@contextmanager
def _importable(folder: Path, *, forget: bool) -> Iterator[None]:
    """Let modules of ``folder`` be imported for a while.

    Args:
        folder: on the path inside the block only, unless it was there before.
        forget: drop modules that came from ``folder`` afterwards. They stay alive through whoever
            imported them, but another folder's ``utils`` will not be mistaken for this one's.
    """
    if str(folder) in sys.path:
        yield
        return
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before if forget else ():
            top = name.partition(".")[0]
            if top not in before and ((folder / top).is_dir() or (folder / f"{top}.py").is_file()):
                del sys.modules[name]
