"""Grad-CAM maps of any example, made on request by a process of its own, and kept in the run.

The app itself loads no model. The process starts with the first request, so that nobody pays for
what nobody looks at, and a key press never waits for it: a map that is not there yet is pending.
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

_MOST_BYTES = 64 * 2**20  # of maps that are kept, some thousands
_MOST_WAITING = 64  # requests; the oldest is forgotten, since its example is long gone
_CALL = "from hardsight.run.evaluate import serve_maps; serve_maps()"
_LONGEST_PROBLEM = 600


@dataclass(frozen=True)
class Wanted:
    """An example whose map is asked for.

    Attributes:
        index: of the example in its data.
        id: of the example.
        fold: that it is in; 0 if the run has none.
    """

    index: int
    id: str
    fold: int


@dataclass(frozen=True)
class Explained:
    """A map, or why there is none.

    Attributes:
        picture: encoded by another process, so not yet believed; empty if there is none.
        prediction: the class that it explains, -1 if there is none.
        problem: why there is none; empty if it is being made.
    """

    picture: bytes = b""
    prediction: int = -1
    problem: str = ""


class Explainer:
    """Maps by the model of a run, one after the other.

    Args:
        table: of the run.
        data: the data as ``open_source`` takes it; empty if it is not known.
        model: in place of the one that the run names. Its code is run, which that of a run never
            is: a run may come from anybody.
        weights: of ``model``.
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
        self._waiting: dict[int, Wanted] = {}  # the next one last
        self._change = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._kept: KeptBytes | None = None
        self._last: dict[int, Explained] = {}  # also if the folder of the run cannot be written

    def of(self, wanted: Wanted, ahead: Sequence[Wanted] = ()) -> Explained:
        """The map of an example as it stands now; asks for it, and for what comes ahead of it.

        Never waits: a map that is still to be made is neither there nor a problem.
        """
        known = self._known(wanted)
        missing = [one for one in ahead if self._known(one) is None]
        if known is None:
            missing = [wanted, *missing]
        if missing and not self._problem:
            self._want(missing)
        return known or Explained(problem=self._problem)

    def picture(self, index: int) -> bytes:
        """A map that was made; empty if there is none."""
        found = self._read(index)
        return b"" if found is None else found.picture

    def close(self) -> None:
        """End the process, and let go of the file."""
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

    def _known(self, wanted: Wanted) -> Explained | None:
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
        """What changes if maps are of another model, or of other data."""
        assert self._table.path is not None
        described = self._table.path.absolute().parent / "model.json"
        text = described.read_text("utf-8", "replace") if described.is_file() else ""
        asked = {key: value for key, value in self._asked.items() if key != "table"}
        return values_digest([dict(self._table.metadata), text, asked])

    # ------------------------------------------------------------------------------ the process

    def _want(self, missing: Sequence[Wanted]) -> None:
        with self._change:
            if self._is_closed:
                return
            for one in reversed(missing):  # the first of them comes next
                self._waiting.pop(one.index, None)
                self._waiting[one.index] = one
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
                # -P: nothing that lies in the working folder takes the place of a package
                [sys.executable, "-P", "-c", _CALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env=_environment(),
            )  # fmt: skip
        self._problem = str(self._answer(self._asked).get("problem") or "")[:_LONGEST_PROBLEM]

    def _make(self, wanted: Wanted) -> None:
        answer = self._answer(vars(wanted))
        try:
            picture = base64.b64decode(answer["map"], validate=True)
            prediction = int(answer["prediction"])
        except (KeyError, TypeError, ValueError, binascii.Error):
            problem = str(answer.get("problem") or "no map came of it")
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
    """That of this process, in which this very package is found."""
    own = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([own, known] if known else [own])}
