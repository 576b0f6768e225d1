"""The web side of the app: a fixed list of addresses, each of which calls the session."""

from __future__ import annotations

import json
import struct
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Route

from hardsight.errors import HardsightError, OptionError, OutputError
from hardsight.review._rows import View
from hardsight.review._store import StaleError

if TYPE_CHECKING:
    from starlette.requests import Request

    from hardsight.review._session import Session

# limits on requests, which come from a browser and are not trusted; a body holds at most the
# 100,000 numbers of one decision about many examples
_MOST_BODY = 2 * 2**20
_LONGEST_QUERY = 8192
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


def assets() -> dict[str, bytes]:
    """The files of the page by name, read once: no name in a request ever becomes a path."""
    folder = resources.files("hardsight.review") / "assets"
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.name.endswith(tuple(_KINDS))
    }


def app_of(session: Session) -> Starlette:
    """The web app of a session. It has no checks of its own: wrap it in a :class:`Guard`."""
    files = assets()

    def page(request: Request) -> Response:
        return _asset("index.html", files)

    def asset(request: Request) -> Response:
        return _asset(request.path_params["name"], files)

    def icon(request: Request) -> Response:
        return Response(status_code=204)  # browsers always ask for an icon

    def start(request: Request) -> Response:
        return _json(session.start())

    def queue(request: Request) -> Response:
        asked = _asked(request)
        return _json(
            session.queue(
                View.of(asked),
                asked.get("reviewer", ""),
                after=_number(asked, "after", 0),
                count=_number(asked, "count", 8),
                state=asked.get("state", "open"),
            )
        )

    def example(request: Request) -> Response:
        asked = _asked(request)
        return _json(session.example(request.path_params["index"], asked.get("reviewer", "")))

    def similar(request: Request) -> Response:
        return _json(session.similar(request.path_params["index"]))

    def explained(request: Request) -> Response:
        ahead = [_parsed(text) for text in _asked(request).get("ahead", "").split(",") if text]
        return _json(session.explained(request.path_params["index"], ahead))

    def grid(request: Request) -> Response:
        asked = _asked(request)
        return _json(
            session.grid(
                View.of(asked),
                asked.get("reviewer", ""),
                state=asked.get("state", "any"),
                start=_number(asked, "start", 0),
                count=_number(asked, "count", 100),
            )
        )

    def pictures(request: Request) -> Response:
        asked = _asked(request)
        indices = [_parsed(text) for text in asked.get("of", "").split(",") if text]
        shown = session.shown(indices, asked.get("size", "small"))
        # many pictures in one answer: kind, note and length of each as JSON, then all the bytes
        head = [[picture.kind, picture.note, len(picture.content)] for picture in shown]
        text = json.dumps(head).encode()
        content = b"".join(picture.content for picture in shown)
        body = struct.pack("<I", len(text)) + text + content
        return Response(body, media_type="application/octet-stream")

    def changes(request: Request) -> Response:
        asked = _asked(request)
        return _json(session.changes(asked.get("reviewer", ""), _number(asked, "since", 0)))

    def overview(request: Request) -> Response:
        return _json(session.overview(_asked(request).get("reviewer", "")))

    def angle_map(request: Request) -> Response:
        return Response(session.rows.map_picture(View.of(_asked(request))), media_type="image/png")

    def axes(request: Request) -> Response:
        # not part of "start": the ends of the axes take a pass over two columns
        return _json(session.rows.map_cells()[1])

    return Starlette(
        routes=[
            Route("/", page),
            Route("/favicon.ico", icon),
            Route("/assets/{name}", asset),
            *(
                Route(f"/api/{path}", _answered(handler))
                for path, handler in {
                    "start": start,
                    "queue": queue,
                    "example/{index:int}": example,
                    "similar/{index:int}": similar,
                    "explained/{index:int}": explained,
                    "grid": grid,
                    "pictures": pictures,
                    "changes": changes,
                    "dashboard": overview,
                    "map": angle_map,
                    "axes": axes,
                }.items()
            ),
            *(
                Route(f"/api/{path}", _posted(handler), methods=["POST"])
                for path, handler in {
                    "decide": session.decide,
                    "decide-many": session.decide_many,
                    "undo": session.undo,
                }.items()
            ),
        ],
    )


def _asset(name: str, files: Mapping[str, bytes]) -> Response:
    if name not in files:
        return Response("not found\n", status_code=404, media_type="text/plain")
    return Response(files[name], media_type=_KINDS["." + name.rpartition(".")[2]])


def _answered(handler: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Turn a handler's errors into answers with a message.

    The function is not ``async``, so Starlette runs it in a thread and slow reads block nobody.
    """

    def answer(request: Request) -> Response:
        try:
            return handler(request)
        except HardsightError as err:
            return _refused(err)

    return answer


def _posted(
    handler: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            asked = _object(await _body(request))
            return _json(await run_in_threadpool(handler, asked))
        except StaleError as err:
            return _json({"error": "stale", "index": err.index, "count": err.count}, status=409)
        except HardsightError as err:
            return _refused(err)

    return answer


def _refused(err: HardsightError) -> Response:
    if isinstance(err, OutputError):  # a full disk: the page keeps the picture and says so
        return _json({"error": str(err)}, status=507)
    return _json({"error": str(err)}, status=400)


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY:
            raise OptionError(f"expected at most {_MOST_BODY:,} bytes")
    return body


def _object(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise OptionError("expected JSON") from None
    if not isinstance(asked, dict):
        raise OptionError("expected a JSON object")
    return asked


def _asked(request: Request) -> dict[str, str]:
    if len(request.url.query) > _LONGEST_QUERY:
        raise OptionError(f"expected a query of at most {_LONGEST_QUERY:,} letters")
    return dict(request.query_params)


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    return _parsed(asked[name]) if asked.get(name) else default


def _parsed(text: str) -> int:
    # stricter than int(), which also accepts "1_0" and digits of other scripts
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise OptionError(f"expected a whole number, got {text[:40]!r}")
    return int(text)


def _json(content: dict[str, Any], *, status: int = 200) -> Response:
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Response(text, status_code=status, media_type="application/json")
