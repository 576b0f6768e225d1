"""A reviewer who knows the truth, and answers in the review app as a browser would."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from hardsight.review import Review

_AT_ONCE = 24  # examples that the app hands out in one answer
_NAME = "truth"


def review_from_truth(run: Path, truth: NDArray[np.int64], most: int) -> int:
    """Decide about the first suspects of a run, each as the truth says, over HTTP.

    Args:
        run: folder of the run; the decisions come to lie in it.
        truth: right class of every example of the data.
        most: how many examples to look at.

    Returns:
        how many were decided; fewer than ``most`` if the run has no more rows.
    """
    app = Review(
        run, host="127.0.0.1", port=None, token=None, allow_hosts=(), data=None, is_framed=False
    )
    decided = 0
    with app.start(), closing(_Page(app)) as page:
        while decided < most:
            items = page.ask("queue", count=min(_AT_ONCE, most - decided))["items"]
            if not items:
                break
            for item in items:
                page.decide(item, int(truth[item["index"]]))
            decided += len(items)
    return decided


class _Page:
    """What a browser with the token does."""

    def __init__(self, app: Review) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", app.port, timeout=60)
        self._sent = {
            "X-Hardsight-Token": app.token,
            "Origin": f"http://127.0.0.1:{app.port}",
            "Content-Type": "application/json",
        }

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def ask(self, what: str, **query: Any) -> Any:
        """The answer to a question."""
        words = urlencode({"reviewer": _NAME, **query})
        return self._answer("GET", f"/api/{what}?{words}", None)

    def decide(self, item: Mapping[str, Any], right: int) -> None:
        """Keep the label if it is right, else give the right one."""
        action = "keep" if right == item["label"] else "relabel"
        body = {
            "reviewer": _NAME, "index": item["index"], "base": item["base"], "action": action,
            "new": None if action == "keep" else right,
        }  # fmt: skip
        self._answer("POST", "/api/decide", json.dumps(body))

    def _answer(self, method: str, path: str, body: str | None) -> Any:
        self._line.request(method, path, body, self._sent)
        answer = self._line.getresponse()
        content = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"the app answered {answer.status}: {content[:200]!r}")
        return json.loads(content)
