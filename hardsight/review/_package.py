"""Make the package ``hardsight.review`` callable, because it is also a verb."""

from __future__ import annotations

import inspect
import os
import sys
from types import ModuleType
from typing import Any

from hardsight.review._serve import Review, review


class CallablePackage(ModuleType):
    """The package itself, which opens the app when it is called.

    A function ``review`` at the root would not last: importing ``hardsight.review`` replaces it by
    the package of the same name.
    """

    def __call__(self, run: str | os.PathLike[str], **options: Any) -> Review:
        """Open the app; see :func:`hardsight.review.review`."""
        return review(run, **options)


_package = sys.modules["hardsight.review"]
_package.__class__ = CallablePackage
# editors and a notebook's `?` show this signature; they would only see `**options` otherwise
_package.__signature__ = inspect.signature(review)  # type: ignore[attr-defined]
