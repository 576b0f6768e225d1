"""What cannot go to a Ray cluster is refused at once, and in words."""

from __future__ import annotations

import socket
import sys
import threading
import time

import pytest

import hardsight as hs
from hardsight.errors import EngineError, MissingExtraError, OptionError


@pytest.fixture
def unconnected(monkeypatch):
    """As if no other test of this process had a cluster."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ray_address": "auto"}, "ray_address cannot be used with engine='local'"),
        ({"engine": "spark"}, "expected engine to be one of local, ray, got 'spark'"),
        ({"engine": "ray", "ray_actors": 0}, "expected ray_actors to be 1 or more"),
        ({"engine": "ray", "ray_actors": (4, 2)}, "expected ray_actors to be 1 or more"),
        ({"engine": "ray", "ray_cpus": 0.0}, "expected ray_cpus to be above 0, got 0"),
        ({"engine": "ray", "ray_address": "ray://head:10001"}, "is for Ray Client"),
    ],
)
def test_settings_that_do_not_fit_are_refused(unconnected, options, message, embeddings_file):
    with pytest.raises(OptionError, match=message):
        hs.score(None, embeddings_file, **options)


def test_an_address_where_nobody_answers_is_an_error_within_seconds(
    unconnected, embeddings_file, tmp_path
):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"no Ray cluster at .*Connection refused.*ray start"):
            hs.score(None, embeddings_file, engine="ray", ray_address=f"127.0.0.1:{port}")
        silent.listen()
        with pytest.raises(EngineError, match=r"no Ray cluster at .*timed out"):
            hs.score(
                None, embeddings_file, engine="ray", ray_address=f"127.0.0.1:{port}",
                out=tmp_path / "run",
            )  # fmt: skip
        assert time.monotonic() - began < 30  # of which a busy machine may take most
    assert not (tmp_path / "run").exists()


def test_a_cluster_of_this_machine_that_was_killed_is_an_error_at_once(
    unconnected, embeddings_file, monkeypatch
):
    # Ray remembers its address, and would wait for it for minutes
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(
            "ray._private.services.canonicalize_bootstrap_address", lambda address: place
        )
        monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray was asked"))
        with pytest.raises(EngineError, match=rf"no Ray cluster at '{place}' .*Connection refused"):
            hs.score(None, embeddings_file, engine="ray", ray_address="auto")


def test_a_cluster_that_answers_but_cannot_be_joined_is_not_called_missing(
    unconnected, embeddings_file, monkeypatch
):
    def refused(**_):
        raise ConnectionError("Failed to connect to Ray cluster")

    def answer():
        with door.accept()[0] as visitor:
            visitor.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # as a gRPC server does first
            visitor.recv(1 << 10)

    monkeypatch.setattr("ray.init", refused)
    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=answer).start()
        place = f"127.0.0.1:{door.getsockname()[1]}"
        with pytest.raises(EngineError, match=rf"answers at '{place}'.*Failed.*RAY_AUTH_MODE=tok"):
            hs.score(None, embeddings_file, engine="ray", ray_address=place)


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_limit_of_memory_in_which_ray_would_wait_for_ever_is_named(
    unconnected, embeddings_file, monkeypatch
):
    import resource

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray was started"))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5 << 30, 5 << 30))
    with pytest.raises(EngineError, match=r"its processes may have 5 \(ulimit -v\); lift the lim"):
        hs.score(None, embeddings_file, engine="ray")


@pytest.mark.parametrize("address", [None, "auto"])
def test_long_waits_for_ray_are_explained(
    unconnected, embeddings_file, monkeypatch, capsys, address
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # whatever clusters this machine had before
    monkeypatch.setattr(
        "ray._private.services.canonicalize_bootstrap_address", lambda address: None
    )
    timer = threading.Timer
    monkeypatch.setattr("threading.Timer", lambda seconds, deed: timer(seconds / 1000, deed))

    def slow(**_):
        time.sleep(0.3)
        raise ConnectionError("in the end")

    monkeypatch.setattr("ray.init", slow)
    with pytest.raises(EngineError, match=r"\(in the end\)"):
        hs.score(None, embeddings_file, engine="ray", ray_address=address)
    said = "answer at auto" if address else "start on this machine"
    assert f"waiting for Ray to {said} after 8 s; " in capsys.readouterr().err


def test_without_ray_the_extra_is_named(embeddings_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"--engine ray.*pip install 'hardsight\[ray\]'"):
        hs.score(None, embeddings_file, engine="ray")
