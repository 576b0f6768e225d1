"""One writer at a time, and a lock that a killed owner does not hold."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hardsight.errors import HardsightWarning, RunLockedError
from hardsight.run_folder import held

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from hardsight.run_folder import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def owner(tmp_path):
    """Another process that holds the lock, and the lock's file."""
    file = tmp_path / ".lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout.readline() == "held\n"
    yield process, file
    process.kill()
    process.communicate()


def test_the_second_is_told_who_holds_it_and_what_to_do(owner):
    process, file = owner
    with pytest.raises(RunLockedError) as said, held(file):
        pytest.fail("two processes hold the lock")
    text = str(said.value)
    assert f"process {process.pid} on {socket.gethostname()}, since 20" in text
    assert str(file) in text.partition("since")[2]  # its command
    assert "wait for it to end, stop it, or choose another --out" in text
    assert file.exists()


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a POSIX signal")
def test_a_killed_owner_holds_nobody_up(owner):
    process, file = owner
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert file.exists()  # it could not clean up
    with held(file):
        assert json.loads(file.read_text())["pid"] == os.getpid()
    assert not file.exists()


def test_a_file_that_was_left_behind_holds_nobody_up(tmp_path):
    file = tmp_path / ".lock"
    file.write_text("no JSON at all")
    with held(file):
        pass
    assert not file.exists()


def test_it_is_free_again_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), held(tmp_path / ".lock"):
            raise KeyError
    assert not (tmp_path / ".lock").exists()


def test_two_threads_of_a_process_exclude_each_other(tmp_path):
    file, said = tmp_path / ".lock", []

    def try_it():
        try:
            with held(file):
                said.append("held")
        except RunLockedError as err:
            said.append(str(err))

    with held(file):
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert f"process {os.getpid()}" in said[0]


def test_whoever_waits_gets_it_when_it_is_free(tmp_path):
    file, order = tmp_path / ".lock", []

    def wait():
        with held(file, wait=True):
            order.append("second")

    with held(file):
        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        order.append("first")
    for thread in threads:
        thread.join(timeout=30)
    assert order == ["first", *["second"] * 3]
    assert not file.exists()


def test_of_many_that_come_and_go_only_one_holds_it_at_a_time(tmp_path):
    """Files that are removed while others wait for them must not be held twice."""
    file, inside, most = tmp_path / ".lock", [], []

    def work():
        for _ in range(50):
            with held(file, wait=True):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(most) == 200
    assert max(most) == 1


FORK = """
import os, sys, time
from pathlib import Path
from hardsight.run_folder import held
with held(Path(sys.argv[1])):
    if os.fork() == 0:  # such as a loader's worker that outlives its parent
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_outlives_a_killed_owner_does_not_hold_it(tmp_path):
    file = tmp_path / ".lock"
    process = subprocess.Popen(
        [sys.executable, "-c", FORK, str(file)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # it is alive
        with held(file):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_that_leaves_the_block_does_not_free_it(tmp_path):
    file = tmp_path / ".lock"
    try:
        with held(file):
            child = os.fork()
            if child == 0:
                raise InterruptedError  # through the block, as an error in a worker would
            os.waitpid(child, 0)
            other = subprocess.run(
                [sys.executable, "-c", HOLD, str(file)], capture_output=True, text=True, cwd=ROOT
            )
    except InterruptedError:
        os._exit(0)
    assert "RunLockedError" in other.stderr
    assert not file.exists()


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def unsupported(*args):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(HardsightWarning, match="has no locks"), held(tmp_path / ".lock"):
        pass
    assert not (tmp_path / ".lock").exists()
