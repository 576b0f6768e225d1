"""What a command left as JSON for a page to be made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardsight.errors import DataError, MissingDataError


@dataclass(frozen=True)
class Record:
    """One kind of record.

    Attributes:
        what: it is, in words.
        command: that makes one.
        needed: keys that tell it from other files.
        format: that this version reads.
    """

    what: str
    command: str
    needed: tuple[str, ...]
    format: int = 1

    def read(self, file: Path) -> dict[str, Any]:
        """The values in a file.

        Raises:
            MissingDataError: there is no such file.
            DataError: the file is no such record, or of another format.
        """
        if not file.is_file():
            raise MissingDataError(f"no {self.what} at {file}; make one with {self.command}")
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as err:
            raise DataError(f"{file} is no {self.what}: {err}") from err
        return self.checked(values, str(file))

    def checked(self, values: Any, where: str) -> dict[str, Any]:
        """The values, if they are such a record.

        Raises:
            DataError: they are none, or of another format.
        """
        if not isinstance(values, Mapping) or not all(key in values for key in self.needed):
            raise DataError(f"{where} is no {self.what}; make one with {self.command}")
        if values.get("format") != self.format:
            raise DataError(
                f"{where} has format {values.get('format')!r}, this version reads {self.format}; "
                f"make the {self.what} anew with {self.command}"
            )
        return dict(values)
