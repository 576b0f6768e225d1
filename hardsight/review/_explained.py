"""Grad-CAM maps of any example, made on request by a separate process and kept in the run.

The app itself never loads a model or torch. The process starts with the first request for a map, so
a review without maps costs nothing, and a key press never waits for it: a map that is not finished
is reported as pending.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.run_folder import MAPS, KeptBytes, values_digest

if TYPE_CHECKING:
    from hardsight.table import ScoreTable

_MOST_BYTES = 64 * 2**20  # of stored maps, a few thousand
_MOST_WAITING = 64  # requests; older ones are dropped, because the reviewer has moved on
_CALL = "from hardsight.run.evaluate import serve_maps; serve_maps()"
_LONGEST_PROBLEM = 600


@dataclass(frozen=True)
class MapRequest:
    """An example whose map is requested.

    Attributes:
        index: position of the example in its data.
        id: its id.
        fold: its fold; 0 if the run has no folds.
    """

    index: int
    id: str
    fold: int


@dataclass(frozen=True)
class Explained:
    """A map, or the reason why there is none.

    Attributes:
        picture: the map as an encoded picture, empty if there is none. It comes from another
            process, so it is decoded and encoded again before it is shown.
        prediction: the class that the map explains; -1 if there is no map.
        problem: why there is no map; empty if it is still being made.
    """

    picture: bytes = b""
    prediction: int = -1
    problem: str = ""


class Explainer:
    """Makes maps with the model of a run, one after the other.

    Args:
        table: the table of the run.
        data: the data as ``open_source`` takes it; empty if it is not known.
        model: a model to use in place of the one that the run names. Its code is run. The code of
            a model that only the run names is never run, because a run may come from anybody.
        weights: the weights of ``model``.
    """

    def __init__(
        self,
        table: ScoreTable,
        data: Mapping[str, Any],
        *,
        model: str | None = None,
        weights: str | None = None,
    ) -> None:
        self._table = table
        self._asked = {
            "table": os.fspath(table.path) if table.path is not None else "",
            "data": dict(data),
            "model": model,
            "weights": weights,
        }
        self._problem = "" if data else "the data of the run is not known; name it with --data"
        self._problems: dict[int, str] = {}
        self._waiting: dict[int, MapRequest] = {}  # the next one last
        self._change = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._kept: KeptBytes | None = None
        self._last: dict[int, Explained] = {}  # also if the folder of the run cannot be written

    def of(self, wanted: MapRequest, ahead: Sequence[MapRequest] = ()) -> Explained:
        """The map of an example if it is there; requests it and the maps of the next examples.

        This never waits: for a map that is not finished, both picture and problem are empty.
        """
        known = self._known(wanted)
        missing = [example for example in ahead if self._known(example) is None]
        if known is None:
            missing = [wanted, *missing]
        if missing and not self._problem:
            self._want(missing)
        return known or Explained(problem=self._problem)

    def picture(self, index: int) -> bytes:
        """The finished map of an example; empty if there is none."""
        explained = self._read(index)
        return b"" if explained is None else explained.picture

    def close(self) -> None:
        """End the process and close the file."""
        with self._change:
            self._is_closed = True
            self._waiting.clear()
            self._change.notify_all()
        if self._process is not None:
            self._process.kill()
        if self._thread is not None:
            self._thread.join(timeout=10)
        if self._kept is not None:
            self._kept.close()

    # ------------------------------------------------------------------------------ what is kept

    def _known(self, wanted: MapRequest) -> Explained | None:
        problem = self._problems.get(wanted.index)
        return Explained(problem=problem) if problem else self._read(wanted.index)

    def _read(self, index: int) -> Explained | None:
        stored = self._on_disk().get(str(index))
        if stored is None:
            return self._last.get(index)
        prediction, _, picture = stored.partition(b"\n")
        return Explained(picture, int(prediction))

    def _on_disk(self) -> KeptBytes:
        with self._change:
            if self._kept is None:
                assert self._table.path is not None
                run = self._table.path.absolute().parent
                self._kept = KeptBytes(run / MAPS, about=self._identity(), most_bytes=_MOST_BYTES)
            return self._kept

    def _identity(self) -> str:
        """A digest of the model and the data; with another digest, stored maps are not used."""
        assert self._table.path is not None
        described = self._table.path.absolute().parent / "model.json"
        text = described.read_text("utf-8", "replace") if described.is_file() else ""
        asked = {key: value for key, value in self._asked.items() if key != "table"}
        return values_digest([dict(self._table.metadata), text, asked])

    # ------------------------------------------------------------------------------ the process

    def _want(self, missing: Sequence[MapRequest]) -> None:
        with self._change:
            if self._is_closed:
                return
            for example in reversed(missing):  # the last in the dictionary is made next
                self._waiting.pop(example.index, None)
                self._waiting[example.index] = example
            for index in list(self._waiting)[:-_MOST_WAITING]:
                del self._waiting[index]
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="hardsight-maps", daemon=True
                )
                self._thread.start()
            self._change.notify_all()

    def _work(self) -> None:
        try:
            self._begin()
            while not self._problem:
                with self._change:
                    self._change.wait_for(lambda: self._waiting or self._is_closed)
                    if self._is_closed:
                        return
                    wanted = self._waiting[next(reversed(self._waiting))]
                self._make(wanted)
                with self._change:
                    self._waiting.pop(wanted.index, None)
        except (OSError, ValueError, EOFError) as err:
            if not self._is_closed:
                self._problem = f"the process that makes maps ended: {err}"
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()

    def _begin(self) -> None:
        with self._change:
            if self._is_closed:
                raise EOFError
            self._process = subprocess.Popen(
                # -P: a file in the working folder must not be imported in place of a package
                [sys.executable, "-P", "-c", _CALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env=_environment(),
            )  # fmt: skip
        self._problem = str(self._answer(self._asked).get("problem") or "")[:_LONGEST_PROBLEM]

    def _make(self, wanted: MapRequest) -> None:
        answer = self._answer(vars(wanted))
        try:
            picture = base64.b64decode(answer["map"], validate=True)
            prediction = int(answer["prediction"])
        except (KeyError, TypeError, ValueError, binascii.Error):
            problem = str(answer.get("problem") or "the model gave no map")
            self._problems[wanted.index] = problem[:_LONGEST_PROBLEM]
            return
        self._on_disk().put(str(wanted.index), b"%d\n" % prediction + picture)
        self._last[wanted.index] = Explained(picture, prediction)
        for index in list(self._last)[:-_MOST_WAITING]:
            del self._last[index]

    def _answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise EOFError("it gave no answer")
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else {}


def _environment() -> dict[str, str]:
    """The environment of this process, with this copy of the package first on the path."""
    own = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([own, known] if known else [own])}
