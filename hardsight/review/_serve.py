"""Serve the app on a port, in a thread for Python or in the foreground for the command line."""

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
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
# where notebooks show a page in a frame: Jupyter on this machine, and VS Code
_FRAMES = "http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview:"


class Review:
    """A running app.

    Attributes:
        url: its address, with the token after ``#``.
        port: the port it listens on.
        session: the review itself, without the web.
        app: the ASGI application with all its checks.
        notes: messages about how it was started.
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
            # the protocol is named, because asyncio only turns Nagle's algorithm off if it is TCP;
            # otherwise the second part of an answer waits 40 ms for the receipt of the first
            bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            try:
                if os.name == "posix":  # on Windows it would let two programs share a port
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind((host, number))
                bound.listen(128)  # already now: a browser that comes early waits
            except OSError as err:
                bound.close()
                last = err
                continue
            taken = bound.getsockname()[1]
            if first and number != first:
                self.notes.append(f"port {first} is in use; using {taken}, the next free one")
            return bound, taken
        reason = (last.strerror if last else None) or last or "no port is free"
        raise OutputError(
            f"cannot listen on {host}, port {first} or the ports after it: {reason}; choose "
            "another --port or --host"
        )

    def _add_notes(self, host: str) -> None:
        if not _is_loopback(host):
            self.notes.append(
                f"listening on {host}: everybody who can reach this machine and knows the token "
                "can see the pictures and decide; the connection is not encrypted"
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
    """Open an app to look at the suspects of a run and fix their labels.

    This serves a page from a thread of this process, prints its address and returns. Every decision
    is on the disk, in ``review.sqlite`` beside the table, before the next picture is shown.

    Args:
        run: folder of a finished run of ``hardsight score``, or of ``hardsight train`` with
            tracking; or its table.
        port: port of the page; if it is in use, the next free one is taken.
        open_browser: whether to open the page in a browser; in a notebook it is shown there.
        host: address to listen on. An address that other machines can reach requires a token.
        token: secret of at least 16 characters that every request must send; random by default.
        allow_hosts: other host names of the page, such as that of a proxy.
        data: where the data is now, if it has moved since it was scored.
        card: folder of ``hardsight evaluate`` for the same data, to show its Grad-CAM maps.
        model: model that makes Grad-CAM maps on request. By default it is the one that the run
            names, if it can be built without running anybody's Python code; the code of a model
            that is named here is run.
        weights: weights of ``model``, a safetensors or torch file of tensors.

    Returns:
        a handle with ``url``, ``decisions()`` and ``close()``.

    Raises:
        MissingDataError: there is no finished run with a row per example, or no card.
        TableError: the table, the card or the decisions cannot be used.
        OptionError: other machines can reach the host and there is no token, or it is too short.
        OutputError: no port is free, or decisions cannot be stored.
        MissingExtraError: the app is not installed.
    """
    in_notebook = _in_notebook()
    made = Review(
        run, host=host, port=port, token=token, allow_hosts=allow_hosts, data=data,
        is_framed=in_notebook, card=card, model=model, weights=weights,
    ).start()  # fmt: skip
    for line in (*made.notes, made.url):  # also in notebooks, some of which cannot show frames
        print(line)
    if in_notebook:
        _show_frame(made.url)
    elif open_browser:
        open_in_browser(made.url)
    return made


def open_in_browser(url: str) -> bool:
    """Open an address in a browser if there is a screen.

    Without one, ``webbrowser`` may start a text browser, which would take over the terminal.
    """
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
    """Whether this runs in a notebook's kernel, which can show pages."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _show_frame(url: str) -> None:
    shown = require("IPython.display", extra="ipython", feature="a page inside a notebook")
    shown.display(shown.IFrame(url, width="100%", height=820))


def _give_back_memory() -> None:
    """Return freed memory to the system at once, in a process that does nothing else.

    With a million rows, every temporary array takes megabytes. By default allocators keep that
    memory for later, which doubled the memory of the app.
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
        if find_spec(module) is None:  # only looked up: each is imported when it is needed
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
            f"--host {host} lets everybody on the network who has the token see the pictures and "
            f"decide; choose a token of at least {_LEAST_TOKEN} characters with --token, or leave "
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
    """A host name that a browser can open, in place of one that stands for all addresses."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host


def _names(host: str, allow_hosts: Sequence[str]) -> set[str]:
    """The host names that requests may use, with a port if ``allow_hosts`` has one."""
    names = {*(name.strip().lower() for name in allow_hosts if name.strip())}
    names.add(_in_url(host).lower())
    if _is_loopback(host):
        names |= {"localhost", "127.0.0.1", "[::1]"}
    if host in ("0.0.0.0", "::"):
        own = socket.gethostname()
        names |= {own.lower(), socket.getfqdn().lower(), "localhost", "127.0.0.1"}
        try:
            addresses = socket.getaddrinfo(own, None)
        except OSError:
            addresses = []
        names |= {_in_url(str(address[4][0])) for address in addresses}
    return names


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _has_port(name: str) -> bool:
    return name.rpartition("]")[2].count(":") == 1


def _hosts(names: set[str], port: int) -> set[str]:
    """The allowed values of ``Host``; behind a proxy it has the port of the proxy, or none."""
    return {host for name in names for host in ((name,) if _has_port(name) else _both(name, port))}


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
        log_config=None,  # a library must not configure the logging of the process
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody can send X-Forwarded-For
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)
