"""Other packages: optional ones are missed with a next step, and a result names their versions."""

import importlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import hardsight
from hardsight.errors import MissingExtraError


def require(module: str, *, extra: str, feature: str) -> ModuleType:
    """Import ``module``, or say which extra brings it.

    Args:
        module: dotted name to import.
        extra: the extra of hardsight that installs it, or a plain package name.
        feature: what the user asked for, as it should stand in the message.

    Raises:
        MissingExtraError: the import failed; the cause is kept.
    """
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise MissingExtraError(
            f"{feature} needs {module!r}: pip install 'hardsight[{extra}]' (import said: {err})"
        ) from err


def versions_of(*packages: str) -> dict[str, str]:
    """Versions of hardsight, Python and those of ``packages`` that are installed.

    Nothing is imported.

    Args:
        packages: names as pip knows them.
    """
    found = {name: _version(name) for name in packages}
    own = {"hardsight": hardsight.__version__, "python": platform.python_version()}
    return own | {name: text for name, text in found.items() if text is not None}


@cache  # pip's records are parsed as mails, which takes milliseconds each
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # such as a vendored build without metadata
        return None
