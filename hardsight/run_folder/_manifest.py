"""What a run is made of, as a file beside its result, and how two runs differ."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardsight.errors import TableError
from hardsight.run_folder._files import write_text

MANIFEST = "run.json"
FORMAT = 1
UNFINISHED, FINISHED = "unfinished", "finished"
DISCARDED = "discarded"  # being removed to make room for another run; nothing here counts
_STATES = (UNFINISHED, FINISHED, DISCARDED)


@dataclass(frozen=True)
class Manifest:
    """The content of ``run.json``.

    Attributes:
        kind: name of the :class:`RunKind`.
        state: ``unfinished``, ``finished``, or ``discarded`` while a run is being removed.
        settings: every setting, resolved, by name; nested tables are allowed.
        fingerprints: of everything that is too large for a setting, such as data or weights, by
            what it is in words.
        versions: of the packages that can change a number.
        files: names of what the run leaves in its folder.
    """

    kind: str
    state: str = UNFINISHED
    settings: Mapping[str, Any] = field(default_factory=dict)
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Put it into the folder, in place of an older one."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        text = json.dumps(content, indent=1, sort_keys=True)
        write_text(folder / MANIFEST, text + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """That of a folder; ``None`` if it has none, or a file of that name that is not ours.

        Raises:
            TableError: it is damaged, or of a later version.
        """
        file = folder / MANIFEST
        if not file.is_file():
            return None
        try:
            content = json.loads(file.read_bytes())
        except ValueError:
            return None
        if not isinstance(content, dict) or not {"kind", "state", "settings"} <= content.keys():
            return None
        if content.pop("format", None) != FORMAT or content["state"] not in _STATES:
            raise TableError(
                f"{file} was written by another version of hardsight; use that version, or choose "
                "another --out"
            )
        known = {one.name for one in dataclasses.fields(cls)}
        values = {key: value for key, value in content.items() if key in known}
        return cls(**{**values, "files": tuple(content.get("files", ()))})


def plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples as lists, keys as text, paths and the like as text."""
    return json.loads(json.dumps(value, default=str))


def differences(
    old: Manifest,
    new: Manifest,
    *,
    may_change: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """In words, what two runs have set differently.

    Args:
        old: the run that is there.
        new: the run that is asked for.
        may_change: names of settings that do not decide the result; ``versions`` stands for those
            of packages.
        defaults: values of settings that an older version did not know, and so did not record.

    Example:
        >>> differences(
        ...     Manifest("score", settings={"mean": [0.5], "workers": 1}),
        ...     Manifest("score", settings={"mean": [0.4], "workers": 2}),
        ...     may_change=("workers",),
        ... )
        ['mean = [0.5] instead of [0.4]']
    """
    before = {**_leaves(plain(defaults or {})), **_leaves(_compared(old, may_change))}
    after = _leaves(_compared(new, may_change))
    before = {name: value for name, value in before.items() if _top(name) not in may_change}
    settings = [
        f"{name} = {before.get(name)!r} instead of {after.get(name)!r}"
        for name in {**after, **before}
        if before.get(name) != after.get(name)
    ]
    marks = [
        f"other {what}"
        for what in {**new.fingerprints, **old.fingerprints}
        if old.fingerprints.get(what) != new.fingerprints.get(what)
    ]
    return settings + marks


def _compared(manifest: Manifest, may_change: Collection[str]) -> dict[str, Any]:
    values = {"versions": manifest.versions, **manifest.settings}
    return dict(plain({name: value for name, value in values.items() if name not in may_change}))


def _top(name: str) -> str:
    return name.split(".")[0]


def _leaves(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested tables as one, with the names that ``--set`` takes: ``optimizer.lr``."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= _leaves(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found
