"""`hardsight review`: what it prints, what it refuses, and what survives it."""

import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from hardsight.cli import main
from hardsight.review import decisions
from tests.review import made

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path):
    return made.save(tmp_path / "run")


class Started:
    """The command in a process of its own."""

    def __init__(self, run, *options, **env):
        words = [sys.executable, "-m", "hardsight", "review", str(run), "--no-browser", *options]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
        )  # fmt: skip
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith("open: "):
                break
        else:
            self.process.communicate()
            raise AssertionError(f"it ended and said {self.lines}")
        self.url, _, self.token = self.lines[-1].removeprefix("open: ").partition("#token=")

    def ask(self, path, body=None):
        sent = {"X-Hardsight-Token": self.token, "Origin": self.url.rstrip("/"),
                "Content-Type": "application/json"}  # fmt: skip
        data = None if body is None else json.dumps({"reviewer": "anna", **body}).encode()
        request = urllib.request.Request(f"{self.url}api/{path}", data, sent)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return json.load(answer)

    def end(self, how=signal.SIGINT):
        self.process.send_signal(how)
        with self.process.stdout as lines:  # `communicate` would lose those that came with "open:"
            rest = lines.read()
        return self.process.wait(timeout=60), rest


def test_it_prints_an_address_loads_neither_torch_nor_pandas_and_ends_with_ctrl_c(run):
    started = Started(run)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", started.url)
    assert started.ask("start")["suspects"] == 6
    assert started.ask("queue?reviewer=anna&only=suspects&count=8")["total"] == 6
    loaded = Path(f"/proc/{started.process.pid}/maps")
    if loaded.exists():  # elsewhere the guard of imports has to do
        assert not {"libtorch", "pandas"} & set(re.split(r"[/.\s]", loaded.read_text()))
    code, rest = started.end()
    step = f"hardsight patch export {shlex.quote(str(run))} --out fixes.csv"
    assert (code, rest) == (0, f"next, once you have decided: {step}\n")


def test_what_was_confirmed_survives_a_kill(run):
    """Kill with a decision on its way, start again: none confirmed is lost, none is doubled."""
    confirmed, on_its_way = [], []
    for _ in range(2):
        started = Started(run)
        first, second, third = started.ask("queue?reviewer=anna&count=3&only=all")["items"]
        for item in (first, second):
            started.ask("decide", keeping(item))
            confirmed.append(item["index"])
        sending = threading.Thread(target=sent_in_vain, args=(started, third))
        sending.start()
        started.end(signal.SIGKILL)
        sending.join()
        on_its_way.append(third["index"])
    found = decisions(run)["index"].tolist()
    assert len(found) == len(set(found))
    assert set(confirmed) <= set(found) <= {*confirmed, *on_its_way}


def keeping(item):
    return {"index": item["index"], "action": "keep", "base": item["base"]}


def sent_in_vain(started, item):
    with contextlib.suppress(OSError, http.client.HTTPException):  # perhaps it was answered
        started.ask("decide", keeping(item))


def test_a_port_that_is_in_use_is_left_for_the_next_one(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        started = Started(run, "--port", str(port), SSH_CONNECTION="1.2.3.4 5 lab.example 22")
        assert started.lines[0].startswith(f"port {port} is in use; ")
        assert "ssh -N -L" in started.lines[1]
        assert started.ask("start")["rows"] == 60
        started.end()


def refusal(*words):
    result = CliRunner().invoke(main, ["review", *map(str, words)])
    return result.exit_code, " ".join(result.output.split())


def test_what_cannot_be_reviewed_is_refused_in_words(run, tmp_path):
    code, text = refusal(tmp_path / "nothing")
    assert (code, "no score table at" in text) == (2, True)
    (tmp_path / "photos").mkdir()
    code, text = refusal(tmp_path / "photos")
    assert (code, "write one with `hardsight score`" in text) == (2, True)
    manifest = run / "run.json"
    finished = manifest.read_text()
    manifest.write_text(finished.replace('"finished"', '"unfinished"'))
    code, text = refusal(run)
    assert (code, "is unfinished; continue it with `hardsight score" in text) == (2, True)
    manifest.write_text(finished.replace('"format": 1', '"format": 2'))
    code, text = refusal(run)
    assert (code, "written by another version of hardsight" in text) == (1, True)
    assert not (run / "review.sqlite").exists()


def test_beyond_this_machine_it_asks_for_a_token(run):
    code, text = refusal(run, "--host", "0.0.0.0")
    assert (code, "choose a token of at least 16 characters with --token" in text) == (2, True)


def test_without_the_extra_it_says_how_to_get_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, text = refusal(run)
    assert (code, "pip install 'hardsight[app]'" in text) == (1, True)
