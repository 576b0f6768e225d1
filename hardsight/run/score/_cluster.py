"""Join a Ray cluster, and notice when it is gone: what Ray itself would wait for in silence."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hardsight._checks import first_line
from hardsight.errors import EngineError, OptionError

_PATIENCE = 4.0  # seconds for a node that is alive to answer
_LONG = 8.0  # seconds of silence before a line says what is being waited for
_ASK_EVERY = 5.0  # seconds between two questions whether the cluster is still there, while it works
_SLOW_START = (
    "this takes longer on a busy machine. Ray writes logs to the folder logs of its newest "
    "session, by default /tmp/ray/session_latest; press Ctrl-C to stop"
)
_REASONS = (
    "Is this machine a node of that cluster (`ray status`), does it have the same versions of Ray "
    "and Python, and if the cluster has a token, does this process (RAY_AUTH_MODE=token, and the "
    "head's ~/.ray/auth_token)?"
)
_SLOW_ANSWER = f"something answers there. {_REASONS} Press Ctrl-C to stop"
# bytes that a process with torch maps; the share of all memory that Ray's object store takes, and
# the largest that the store may be
_OWN_SPACE, _STORE_SHARE, _LARGEST_STORE = 8 << 30, 0.3, 200 << 30
# Ray speaks gRPC, which is HTTP/2: the bytes that open a connection (preface and an empty SETTINGS
# frame), and the type of the frame that a server must answer with
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = bytes([4])


def check_connected(ray: Any, address: str | None) -> None:
    """Raise if this process is connected to another cluster than the one at ``address``."""
    connected = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", connected):
        raise OptionError(
            f"this process is connected to the Ray cluster at {connected}, not to {address}; leave "
            "ray_address out, or call ray.shutdown() first"
        )


def connect(ray: Any, address: str | None) -> None:
    """Join the cluster at ``address``, or start Ray on this machine.

    Args:
        ray: the package.
        address: of the cluster; by default that of the variable RAY_ADDRESS.

    Raises:
        EngineError: there is no such cluster, it cannot be joined, or Ray does not start.
        OptionError: the address is one of Ray Client.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would send usage data otherwise
    # Ray prints an error for every actor pool, about arguments that leave the object store. Ours
    # stay in it as long as the driver lives
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = address or os.environ.get("RAY_ADDRESS")
    # keep the output of workers off this terminal: their errors come back as values
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address in (None, "local"):
        _check_address_space()
        try:
            with _saying_what_takes_long("start on this machine", _SLOW_START):
                ray.init(address="local", include_dashboard=False, **quiet)
        except Exception as err:  # Ray has no exception type for a node that starts too slowly
            raise EngineError(
                f"Ray did not start on this machine ({first_line(err).rstrip('.')})"
            ) from err
        return
    if address.startswith("ray://"):
        raise OptionError(
            f"{address} is for Ray Client, whose driver is not part of the cluster; run the "
            "command on a node, with ray_address='auto' (--ray-address auto), or through "
            "`ray job submit`"
        )
    answers = _knock(_place_of(address))
    try:
        with _saying_what_takes_long(f"answer at {address}", _SLOW_ANSWER):
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as err:
        if not answers:
            raise EngineError(_unreachable(address, err)) from err
        said = first_line(err).rstrip(".")
        raise EngineError(
            f"something answers at {address!r}, but Ray could not join it ({said}). {_REASONS}"
        ) from err


@contextmanager
def saying_if_gone(place: str, in_full: Callable[[str], str]) -> Iterator[None]:
    """Print what is missing if the head of the cluster stops answering while the block runs.

    Ray ends this process a minute later, without an exception that could be caught.
    """
    done = threading.Event()

    def watch() -> None:
        silent = 0
        while silent < 3:
            if done.wait(_ASK_EVERY):
                return
            try:
                _knock(place)
                silent = 0
            except EngineError:
                silent += 1
        said = in_full(
            f"the Ray cluster at {place} does not answer any more. If it is gone, Ray ends this "
            "process within a minute"
        )
        print(f"hardsight: {said}", file=sys.stderr, flush=True)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _place_of(address: str) -> str:
    """HOST:PORT of what Ray takes ``auto`` for: the cluster that this machine was last a node of.

    If that cluster was killed, its address is still on record, and Ray would wait for it.
    """
    if address != "auto":
        return address
    from ray._private import services  # Ray has no public name for it

    resolve = getattr(services, "canonicalize_bootstrap_address", None)
    try:
        return (resolve and resolve(address)) or address
    except (ConnectionError, ValueError):
        return address  # Ray itself will say that it knows of no cluster


def _check_address_space() -> None:
    """Raise if this process may not map Ray's object store.

    Ray maps a share of all memory, in this process and in others that inherit its limits. If the
    limit is too low, the first process that hits it dies without an error, and the others wait for
    it forever.
    """
    if sys.platform == "win32":
        return
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = _OWN_SPACE + min(int(_STORE_SHARE * memory), _LARGEST_STORE)
    if most != resource.RLIM_INFINITY and most < needed:
        raise EngineError(
            f"Ray needs {needed / 2**30:.0f} GiB of address space to start on this machine, and "
            f"its processes may have {most / 2**30:.0f} (ulimit -v); lift the limit with `ulimit "
            "-v unlimited`, or pass the address of a running cluster as ray_address (--ray-address)"
        )


@contextmanager
def _saying_what_takes_long(what: str, why: str) -> Iterator[None]:
    """Print what is being waited for if the block takes long; Ray itself waits in silence."""

    def say() -> None:
        print(
            f"hardsight: still waiting for Ray to {what} after {_LONG:g} s; {why}", file=sys.stderr
        )

    timer = threading.Timer(_LONG, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _knock(address: str) -> bool:
    """Whether a gRPC server answers; ``False`` if there is no HOST:PORT to ask.

    Raises:
        EngineError: nothing answers there; Ray itself would wait for minutes.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return False
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE) as door:
            door.sendall(_HELLO)
            answer = door.recv(9)
        if answer[3:4] != _SETTINGS:
            raise ConnectionError("what listens there is not Ray")
    except (OSError, OverflowError) as err:
        raise EngineError(_unreachable(address, err)) from err
    return True


def _unreachable(address: str, err: BaseException) -> str:
    return (
        f"no Ray cluster at {address!r} ({first_line(err).rstrip('.')}); start one with `ray start "
        "--head`, check ray_address (--ray-address), or leave it out to start Ray on this machine"
    )
