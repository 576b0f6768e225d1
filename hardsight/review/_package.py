"""``hardsight.review`` is a package and a verb: it can be called."""

from __future__ import annotations

import inspect
import os
import sys
from types import ModuleType
from typing import Any

from hardsight.review._serve import Review, review


class CallablePackage(ModuleType):
    """The package itself, which opens the app when it is called.

    A function of the same name at the root would be replaced by the package as soon as anybody
    imports it.
    """

    def __call__(self, run: str | os.PathLike[str], **options: Any) -> Review:
        """Open the app; see :func:`hardsight.review.review`."""
        return review(run, **options)


_package = sys.modules["hardsight.review"]
_package.__class__ = CallablePackage
# an editor and a notebook's `?` show the options, which `**options` would hide
_package.__signature__ = inspect.signature(review)  # type: ignore[attr-defined]
