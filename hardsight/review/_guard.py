"""Check the host, the origin and the token of every request.

The page itself holds no data and needs no token. The token is in the fragment of its address, which
browsers never send to a server, and the page sends it as a header with every request for data.
There is no cookie, so another site cannot make requests in the user's name. Requests for an unknown
host name are refused first, because a foreign name can be made to lead to this machine (DNS
rebinding).
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN_HEADER = "x-hardsight-token"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_METHODS = ("GET", "HEAD", "POST")


class Guard:
    """An ASGI app that only passes on requests that come from the page itself.

    Args:
        app: the app that answers them.
        token: the token that requests for data must send.
        hosts: the allowed values of the header ``Host``, lower case.
        origins: the allowed values of the header ``Origin``, lower case.
        framed_by: who may show the page in a frame, in the syntax of ``frame-ancestors``.
    """

    def __init__(
        self,
        app: App,
        *,
        token: str,
        hosts: Iterable[str],
        origins: Iterable[str],
        framed_by: str = "'none'",
    ) -> None:
        self._app, self._token = app, token.encode()
        self._hosts, self._origins = frozenset(hosts), frozenset(origins)
        headers = {
            "content-security-policy": f"{_POLICY}; frame-ancestors {framed_by}",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
            "cross-origin-resource-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
            "permissions-policy": "camera=(), microphone=(), geolocation=()",
        }
        if framed_by == "'none'":
            headers["x-frame-options"] = "DENY"
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or refuse it with a reason."""
        if scope["type"] != "http":  # WebSockets are not served
            return
        status, reason = self._refusal(scope)

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        if not status:
            await self._app(scope, receive, sent)
            return
        plain = [(b"content-type", b"text/plain; charset=utf-8")]
        await sent({"type": "http.response.start", "status": status, "headers": plain})
        await sent({"type": "http.response.body", "body": reason.encode()})

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        """Status and reason for a request that is refused; status 0 if it is allowed."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)

        def only(name: str) -> str | None:
            values = headers.get(name.encode(), [])
            return values[0].decode("latin-1").strip().lower() if len(values) == 1 else None

        if only("host") not in self._hosts:
            return 403, "the app was not started for this host name; allow it with --allow-host\n"
        if scope["method"] not in _METHODS:
            return 405, "this method is not served\n"
        if scope["method"] == "POST":
            if only("origin") not in self._origins or only("sec-fetch-site") not in (
                None,
                "same-origin",
            ):
                return 403, "the app only accepts posts from its own page\n"
            if (only("content-type") or "").partition(";")[0].strip() != "application/json":
                return 415, "expected JSON\n"
        if scope["path"].startswith("/api/") and not self._has_token(headers):
            return 401, "the token is missing or wrong; open the address that the command printed\n"
        return 0, ""

    def _has_token(self, headers: dict[bytes, list[bytes]]) -> bool:
        tokens = headers.get(TOKEN_HEADER.encode(), [])
        # compare_digest: a plain == would tell by its time how much of a guess is right
        return len(tokens) == 1 and hmac.compare_digest(tokens[0], self._token)
