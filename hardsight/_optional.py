"""Optional dependencies: imported where they are used, missed with a next step."""

import importlib
from types import ModuleType

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
