"""Data in object stores and elsewhere by URL: copied once to this machine, then read like any."""

from __future__ import annotations

import atexit
import glob
import hashlib
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from hardsight._checks import path_of_file_url, reason_of, warn
from hardsight.data.source._source import braced
from hardsight.errors import DataError, HardsightError, MissingDataError, MissingExtraError
from hardsight.run_folder import cache_folder, replacing

_TOLD_BYTES = 100 * 1000**2  # of a copy that takes long enough to be told of


def local_copy(url: str) -> str:
    """What to open on this machine for a URL: a file, a folder, or a pattern of files.

    Files are copied to the user's cache, or for the length of the process if it is turned off, and
    are kept under the sizes and times that the store gives them: after a change they are copied
    again.

    Raises:
        MissingDataError: nothing is there.
        MissingExtraError: the package that reads this kind of URL is not installed.
        DataError: it cannot be read.
    """
    scheme, rest = re.split(":/+", url, maxsplit=1)  # a path has one slash of two
    url, on_disk = f"{scheme}://{rest}", path_of_file_url(url)
    if on_disk is not None:
        return on_disk
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
        path = str(path).rstrip("/")
        return _copied(system, path, url)
    except HardsightError:
        raise
    except ImportError as err:
        raise MissingExtraError(f"{url} cannot be read: {err}") from err
    except Exception as err:  # every store has errors of its own
        raise DataError(
            f"cannot read {url}: {reason_of(err)}; check its name and your access"
        ) from err


def _copied(system: Any, path: str, url: str) -> str:
    facts = _listed(system, path)
    if not facts:
        raise MissingDataError(f"nothing is stored at {url}; check its name and your access")
    is_single = list(facts) == [path]
    root = path.rpartition("/")[0] if is_single else _folder_of(path)
    places = {name: _inside(name, root, url) for name in facts}
    mark = hashlib.sha256(url.encode())
    for name, fact in sorted(facts.items()):
        mark.update(f"{name}\0{sorted((key, str(value)) for key, value in fact.items())}".encode())
    here = _copies() / mark.hexdigest()[:32]
    wanted = [name for name, place in places.items() if not _is_there(here / place, facts[name])]
    size = sum(facts[name].get("size") or 0 for name in wanted)
    if size > _TOLD_BYTES:
        warn(f"{len(wanted):,} files of {url} are copied to {here} first, {size / 1e9:.1f} GB")
    for name in wanted:
        (here / places[name]).parent.mkdir(parents=True, exist_ok=True)
        with replacing(here / places[name]) as part:
            system.get_file(name, str(part))
    rest = path.removeprefix(root).lstrip("/")
    return str(here / rest) if rest else str(here)


def _listed(system: Any, path: str) -> dict[str, Any]:
    """What the store says of each file that a path, a folder or a pattern stands for."""
    names = braced(path)
    if len(names) > 1:
        return {name: system.info(name) for name in names}
    found: dict[str, Any]
    if glob.has_magic(path) and not system.exists(path):
        found = system.glob(path, detail=True)
    elif system.isdir(path):
        found = system.find(path, detail=True)
    else:
        found = {path: system.info(path)} if system.exists(path) else {}
    return {name: fact for name, fact in found.items() if fact.get("type") != "directory"}


def _folder_of(path: str) -> str:
    """The part of a path before the first wildcard or brace; all of it if there is none."""
    plain = re.split(r"[*?\[{]", path, maxsplit=1)[0]
    return path if plain == path else plain.rpartition("/")[0]


def _inside(name: str, root: str, url: str) -> str:
    place = name.removeprefix(root).lstrip("/")
    if ".." in PurePosixPath(place).parts:
        raise DataError(f"{name} of {url} would be copied outside of its folder; rename it")
    return place


def _is_there(file: Path, fact: Any) -> bool:
    return file.exists() and fact.get("size") in (None, file.stat().st_size)


def _copies() -> Path:
    folder = cache_folder()
    return _for_this_process() if folder is None else folder / "copies"


@cache
def _for_this_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hardsight-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
