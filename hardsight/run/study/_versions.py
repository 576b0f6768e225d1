"""Versions for a study that needs no torch."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import hardsight


def light_versions() -> dict[str, str]:
    """Versions of what can change a statistic, without importing any of it."""
    found = {"hardsight": hardsight.__version__, "python": platform.python_version()}
    for package in ("numpy", "scipy", "pyarrow", "torch"):
        with suppress(PackageNotFoundError):  # such as a vendored build without metadata
            found[package] = version(package)
    return found
