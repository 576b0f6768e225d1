"""The app on a port of this machine: in a thread for Python, in the foreground for a terminal."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from hardsight._checks import checked_options, require
from hardsight.errors import OptionError, OutputError
from hardsight.review._decisions import decisions

if TYPE_CHECKING:
    import pandas as pd

_FIRST_PORT, _PORTS_TRIED = 8712, 50
_LEAST_TOKEN = 16
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_FRAMES = "http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview:"


class Review:
    """A running app.

    Attributes:
        url: its address, with the token behind ``#``.
        port: that it listens on.
        session: what it can be asked, without the web.
        app: what it can be asked, as an ASGI application with all its checks.
        notes: what there is to know about how it was started, in words.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        host: str,
        port: int | None,
        token: str | None,
        allow_hosts: Sequence[str],
        data: str | os.PathLike[str] | None,
        is_framed: bool,
        card: str | os.PathLike[str] | None = None,
        model: str | None = None,
        weights: str | os.PathLike[str] | None = None,
        owns_process: bool = False,
    ) -> None:
        _check_installed()
        if owns_process:
            _give_back_memory()
        from hardsight.review._app import app_of
        from hardsight.review._guard import Guard
        from hardsight.review._session import Session

        self._run = run
        self.notes: list[str] = []
        _check_token(host, token)
        if weights is not None and model is None:
            raise OptionError("weights (--weights) belong to a model: name it with model (--model)")
        self.session = Session(
            run, data=data, card=card, model=model,
            weights=None if weights is None else os.fspath(weights),
        )  # fmt: skip
        try:
            self._socket, self.port = self._bound(host, port)
        except BaseException:
            self.session.close()
            raise
        self.token = token or secrets.token_urlsafe(24)
        names = _names(host, allow_hosts)
        self.url = f"http://{_in_url(_reached_by(host))}:{self.port}/#token={self.token}"
        self.app = Guard(
            app_of(self.session),
            token=self.token,
            hosts=_hosts(names, self.port),
            origins=_origins(names, self.port),
            framed_by=" ".join([_FRAMES, *_framers(allow_hosts)]) if is_framed else "'none'",
        )
        self._server = _server(self.app)
        self._thread: threading.Thread | None = None
        self._add_notes(host)

    def __repr__(self) -> str:
        return f"Review({os.fspath(self._run)!r}, url={self.url!r})"

    def __enter__(self) -> Review:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decisions(self) -> pd.DataFrame:
        """What has been decided so far; see :func:`hardsight.review.decisions`."""
        return decisions(self._run)

    def close(self) -> None:
        """Stop serving. All decisions are stored already."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)
            self._thread = None
        self._socket.close()
        self.session.close()

    def start(self) -> Review:
        """Serve in a thread, and return when the page can be opened."""
        self._thread = threading.Thread(target=self._serve, name="hardsight-review", daemon=True)
        self._thread.start()
        return self

    def serve(self) -> None:
        """Serve until Ctrl-C."""
        try:
            self._serve()
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def _bound(self, host: str, port: int | None) -> tuple[socket.socket, int]:
        first = _FIRST_PORT if port is None else port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        last: OSError | None = None
        for number in range(first, min(first + _PORTS_TRIED, 65536)) if first else (0,):
            # by its number, or asyncio does not see that it is TCP and leaves Nagle's algorithm on:
            # the second part of an answer would wait 40 ms for a receipt of the first
            bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            try:
                if os.name == "posix":  # elsewhere it would let two programs share a port
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind((host, number))
                bound.listen(128)  # a browser that is early waits
            except OSError as err:
                bound.close()
                last = err
                continue
            taken = bound.getsockname()[1]
            if first and number != first:
                self.notes.append(f"port {first} is in use; {taken} is the next one that is free")
            return bound, taken
        reason = (last.strerror if last else None) or last or "no port is free"
        raise OutputError(
            f"cannot listen on {host}, port {first} and the ones after it: {reason}; choose "
            "another --port or --host"
        )

    def _add_notes(self, host: str) -> None:
        if not _is_loopback(host):
            self.notes.append(
                f"listening on {host}: everybody who can reach this machine and knows the token "
                "can see the pictures and decide; nothing is encrypted on the way"
            )
        if _is_loopback(host) and os.environ.get("SSH_CONNECTION"):
            there = os.environ["SSH_CONNECTION"].split()
            name = there[2] if len(there) > 2 else socket.gethostname()
            user = os.environ.get("USER", "")
            self.notes.append(
                "from your own machine first: ssh -N -L "
                f"{self.port}:localhost:{self.port} {user}{'@' if user else ''}{name}"
            )


@checked_options
def review(
    run: str | os.PathLike[str],
    *,
    port: int | None = None,
    open_browser: bool = True,
    host: str = "127.0.0.1",
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    data: str | os.PathLike[str] | None = None,
    card: str | os.PathLike[str] | None = None,
    model: str | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> Review:
    """Look at the suspects of a run and fix their labels, in a browser or inside a notebook.

    Serves a page from a thread of this process, prints its address and returns. Every decision is
    on the disk, in ``review.sqlite`` beside the table, before the next picture shows.

    Args:
        run: folder of a finished run of ``hardsight score``, or of ``hardsight train`` with
            tracking; or its table.
        port: of the page; the next one that is free if it is in use.
        open_browser: show it at once; in a notebook it is shown there instead.
        host: address to listen on. Beyond this machine a token is asked for.
        token: of at least 16 characters, which requests must bring; by default a random one.
        allow_hosts: further names under which the page is reached, such as that of a proxy.
        data: where the data lies now, if not where it was scored.
        card: folder of ``hardsight evaluate`` on the same data, for its Grad-CAM maps.
        model: that makes Grad-CAM maps of the examples that you ask for; by default the one that
            the run names, if it can be built without running anybody's Python code. Code that is
            named here is run.
        weights: of ``model``, a safetensors or torch file of tensors.

    Returns:
        a handle with ``url``, ``decisions()`` and ``close()``.

    Raises:
        MissingDataError: there is no finished run with a row per example, or no card.
        TableError: the table, the card or the decisions cannot be used.
        OptionError: the host is beyond this machine and there is no token, or it is too short.
        OutputError: no port is free, or decisions cannot be kept.
        MissingExtraError: the app is not installed.
    """
    in_notebook = _in_notebook()
    made = Review(
        run, host=host, port=port, token=token, allow_hosts=allow_hosts, data=data,
        is_framed=in_notebook, card=card, model=model, weights=weights,
    ).start()  # fmt: skip
    for line in (*made.notes, made.url):  # always, since frames fail in some places
        print(line)
    if in_notebook:
        _show_frame(made.url)
    elif open_browser:
        open_in_browser(made.url)
    return made


def open_in_browser(url: str) -> bool:
    """Open an address if there is a screen; a text browser would take over the terminal."""
    has_screen = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if not has_screen or os.environ.get("SSH_CONNECTION"):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


def _in_notebook() -> bool:
    """Whether this runs in a kernel, which can show pages."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and hasattr(found, "kernel")


def _show_frame(url: str) -> None:
    shown = require("IPython.display", extra="ipython", feature="a page inside a notebook")
    shown.display(shown.IFrame(url, width="100%", height=820))


def _give_back_memory() -> None:
    """Let freed memory go back to the system at once, in a process that does nothing else.

    Of a million rows each passing array has megabytes. By default allocators keep them for the next
    one, which took as much again as what is in use.
    """
    import ctypes

    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    try:
        libc = ctypes.CDLL(None)
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            libc.mallopt(option, 2**20)
    except (OSError, AttributeError, TypeError):  # not glibc: its allocator does as it likes
        return


def _check_installed() -> None:
    for module in ("starlette", "uvicorn", "duckdb"):
        if find_spec(module) is None:  # found, it loads when it is needed
            require(module, extra="app", feature="`hardsight review`")


def _check_token(host: str, token: str | None) -> None:
    if token is not None and (
        len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token
    ):
        raise OptionError(
            f"expected a token of at least {_LEAST_TOKEN} letters and digits, without spaces"
        )
    if token is None and not _is_loopback(host):
        raise OptionError(
            f"--host {host} lets others on the network see the pictures and decide, whoever has "
            f"the token; choose one of at least {_LEAST_TOKEN} characters with --token, or leave "
            "--host out and reach this machine with ssh -L"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _reached_by(host: str) -> str:
    """A name that a browser can open: not that of all addresses at once."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host


def _names(host: str, allow_hosts: Sequence[str]) -> set[str]:
    """Names under which requests may come, with a port where one was stated."""
    names = {*(name.strip().lower() for name in allow_hosts if name.strip())}
    names.add(_in_url(host).lower())
    if _is_loopback(host):
        names |= {"localhost", "127.0.0.1", "[::1]"}
    if host in ("0.0.0.0", "::"):
        own = socket.gethostname()
        names |= {own.lower(), socket.getfqdn().lower(), "localhost", "127.0.0.1"}
        try:
            found = socket.getaddrinfo(own, None)
        except OSError:
            found = []
        names |= {_in_url(str(place[4][0])) for place in found}
    return names


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _has_port(name: str) -> bool:
    return name.rpartition("]")[2].count(":") == 1


def _hosts(names: set[str], port: int) -> set[str]:
    """The header ``Host`` for each name; behind a proxy it has the proxy's own port, or none."""
    return {one for name in names for one in ((name,) if _has_port(name) else _both(name, port))}


def _both(name: str, port: int) -> tuple[str, ...]:
    local = name in ("localhost", "127.0.0.1", "[::1]")
    return (f"{name}:{port}",) if local else (f"{name}:{port}", name)


def _origins(names: set[str], port: int) -> set[str]:
    return {f"{scheme}://{host}" for host in _hosts(names, port) for scheme in ("http", "https")}


def _framers(allow_hosts: Sequence[str]) -> list[str]:
    return [f"{scheme}://{name}" for name in allow_hosts for scheme in ("http", "https")]


def _server(app: Any) -> Any:
    import uvicorn

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,  # the logs of this process are its owner's
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing that a request says about itself is believed
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)
