"""Grad-CAM maps of a few examples, from an evaluation card of the same data."""

from __future__ import annotations

import base64
import binascii
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.errors import MissingDataError, TableError

if TYPE_CHECKING:
    from hardsight.table import ScoreTable

_CARD = "card.json"


class Maps:
    """Encoded maps by the id of their example.

    The card may come from anybody, so its pictures are decoded and encoded again before they are
    shown.

    Args:
        table: the table of the run.
        card: folder of ``hardsight evaluate``, or its ``card.json``; ``None`` for no maps.

    Raises:
        MissingDataError: there is no card.
        TableError: the card cannot be read, or is about other data than the table.
    """

    def __init__(self, table: ScoreTable, card: str | os.PathLike[str] | None = None) -> None:
        self._found: dict[str, tuple[bytes, int]] = {}
        if card is None:
            return
        file = Path(card) / _CARD if Path(card).is_dir() else Path(card)
        content = _content(file)
        own, other = (table.metadata.get("data") or {}), (content.get("data") or {})
        if own.get("fingerprint") != other.get("fingerprint"):
            raise TableError(
                f"{file} is about {other.get('spec')} and the table is about {own.get('spec')}, or "
                "the data has changed in between; evaluate the same data to see its maps"
            )
        for example in content.get("explanations") or []:
            shown = next((model for model in example.get("models") or [] if model), None)
            if shown is not None:
                self._found[str(example["id"])] = _map_of(shown, file)

    def __contains__(self, id: str) -> bool:
        return id in self._found

    def of(self, id: str) -> bytes:
        """The map of an example, as encoded in the card; empty if there is none."""
        return self._found.get(id, (b"", -1))[0]

    def prediction(self, id: str) -> int:
        """The class that the map explains; -1 if there is no map."""
        return self._found.get(id, (b"", -1))[1]


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise MissingDataError(
            f"no evaluation card at {file}; write one with `hardsight evaluate`"
        ) from None
    except (OSError, ValueError) as err:
        raise TableError(f"{file} is not an evaluation card that can be read: {err}") from err
    if not isinstance(content, dict) or "models" not in content:
        raise TableError(f"{file} is not an evaluation card; name a folder of `hardsight evaluate`")
    return content


def _map_of(shown: dict[str, Any], file: Path) -> tuple[bytes, int]:
    try:
        text = str(shown["map"]).rpartition(",")[2]  # base64, with or without "data:image/png,"
        return base64.b64decode(text, validate=True), int(shown["prediction"])
    except (KeyError, ValueError, binascii.Error) as err:
        raise TableError(f"{file} is damaged: a map cannot be read ({err})") from err
