"""The review app on a synthetic table of a million rows, in a real Chromium: all targets, measured.

Everything runs on this machine: the command in a separate process, and the browser. The times that
a person waits are measured inside the page, from the key event to the frame that shows the answer.
Pictures are 28 by 28 pixels from idx files; photographs of 1600 by 1200 have separate rows.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import psutil
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from benchmarks._large_run import large_run, photo_run
from benchmarks._measure import publish
from hardsight.review import decisions

_MIB = 2**20
_ROOT = Path(__file__).parents[1]


def main(args: Sequence[str] | None = None) -> None:
    options = _options(args)
    rows: list[dict[str, Any]] = []
    folder = options.folder or Path(tempfile.gettempdir()) / "hardsight-benchmark-review"
    run = large_run(folder, options.rows)
    with _browser() as browser:
        bench = _Bench(options, browser, rows)
        for step in (
            _starts,
            _keys,
            _filters,
            _far_row,
            _scrolling,
            _memory,
            _bulk,
            _commits,
            _tabs,
        ):
            if not options.only or step.__name__.strip("_") in options.only:
                bench.fresh(run)
                step(bench, run)
        if not options.only or "photos" in options.only:
            bench.fresh(photos := photo_run(folder, 300))
            _photos(bench, photos)
    if options.kills and (not options.only or "kills" in options.only):
        _forget(run)
        _kills(bench, run, options.kills)
    bench.stop()
    size = sum(file.stat().st_size for file in _assets())
    bench.add("size of the page, all files", "kB", [size / 1000], at_most=150)
    publish(f"hardsight review, {options.rows:,} rows", rows, file=options.out)


def _options(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the made run is kept; made if missing")
    parser.add_argument("--keys", type=int, default=200, help="decisions by keyboard")
    parser.add_argument("--scroll-s", type=float, default=60, help="seconds of scrolling")
    parser.add_argument("--scroll-speed", type=float, default=2500, help="pixels a second")
    parser.add_argument("--kills", type=int, default=50, help="kill -9 and start again, as often")
    parser.add_argument("--only", nargs="*", help="starts keys filters far_row scrolling ...")
    parser.add_argument("--out", type=Path, help="write the rows to this CSV file")
    return parser.parse_args(args)


def _assets() -> list[Path]:
    with resources.as_file(resources.files("hardsight.review") / "assets") as folder:
        return list(folder.iterdir())


def _forget(run: Path) -> None:
    for file in run.glob("review.sqlite*"):
        file.unlink()


class Command:
    """``hardsight review`` in a process of its own."""

    def __init__(self, run: Path) -> None:
        self.began = time.perf_counter()
        words = [sys.executable, "-m", "hardsight", "review", str(run), "--no-browser"]
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(_ROOT)}
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("open: "):
                break
        self.url = line.removeprefix("open: ").strip()
        self.token = self.url.partition("#token=")[2]
        self.seen = psutil.Process(self.process.pid)
        self._connection = http.client.HTTPConnection(urlsplit(self.url).netloc)

    def ask(self, path: str, body: dict[str, Any] | None = None, **values: Any) -> Any:
        """The answer to a request as the page would send it."""
        origin = self.url.partition("/#")[0]
        sent = {"X-Hardsight-Token": self.token, "Origin": origin,
                "Content-Type": "application/json"}  # fmt: skip
        query = urlencode({"reviewer": "bench", **values})
        content = None if body is None else json.dumps({"reviewer": "bench", **body})
        method = "GET" if body is None else "POST"
        self._connection.request(method, f"/api/{path}?{query}", content, sent)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)

    def peak_mib(self) -> float:
        """The most memory that the process ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(s.split()[1]) / 1024 for s in status.splitlines() if s.startswith("VmHWM"))

    def end(self, how: int = signal.SIGINT) -> None:
        """End it by a signal."""
        self.process.send_signal(how)
        self.process.wait(timeout=20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._connection.close()


class _Bench:
    """One command and one browser at a time, and the rows measured so far."""

    def __init__(self, options: argparse.Namespace, browser: Any, rows: list[Any]) -> None:
        self.options, self.browser, self.rows = options, browser, rows
        self.command: Command | None = None

    def fresh(self, run: Path) -> None:
        self.stop()
        _forget(run)
        self.browser.get("about:blank")

    def stop(self) -> None:
        if self.command is not None:
            self.command.end()
            self.command = None

    def open(self, run: Path, page: str = "") -> Command:
        self.stop()
        self.command = Command(run)
        self.visit(self.command.url)
        self.wait(_PAINTED)
        if page:
            self.press(page)
        return self.command

    def visit(self, url: str) -> None:
        self.browser.get("about:blank")
        self.browser.get(url)

    def press(self, *keys: str) -> None:
        ActionChains(self.browser).send_keys(*keys).perform()

    def js(self, code: str, *values: Any) -> Any:
        return self.browser.execute_script(code, *values)

    def ask_page(self, name: str, *values: Any) -> Any:
        """Call a function of ``review_page.js`` and wait for what it gives."""
        return self._page(f"bench.{name}(...[...arguments].slice(0, -1))", *values)

    def wait(self, condition: str) -> None:
        self._page(f"bench.until(() => {condition})")

    def _page(self, call: str, *values: Any) -> Any:
        self.js(f"if (!window.bench) {{ {_PAGE} }}")
        found, error = self.browser.execute_async_script(
            f"const tell = arguments[arguments.length - 1];"
            f"{call}.then((found) => tell([found, null]), (error) => tell([null, String(error)]))",
            *values,
        )
        if error:
            raise RuntimeError(error)
        return found

    def add(
        self, name: str, unit: str, values: Sequence[float], *, at_most: float | None = None,
        at_least: float | None = None, by: Callable[[Any], Any] = np.max,
    ) -> None:  # fmt: skip
        value = float(by(values))
        target, is_met = "", ""
        if at_most is not None:
            target, is_met = f"<= {at_most:g}", "yes" if value <= at_most else "NO"
        if at_least is not None:
            target, is_met = f">= {at_least:g}", "yes" if value >= at_least else "NO"
        entry = {
            "name": name, "unit": unit, "target": target, "measured": round(value, 2),
            "met": is_met, "median": round(float(np.median(values)), 2),
            "max": round(float(np.max(values)), 2), "n": len(values),
            "load": round(os.getloadavg()[0], 1),  # by others, too, if the machine is shared
        }  # fmt: skip
        self.rows.append(entry)
        print("  ".join(f"{key}={value}" for key, value in entry.items()), flush=True)


def p95(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.95))


@contextlib.contextmanager
def _browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as profile:
        flags = ("headless", "no-sandbox", "disable-gpu", "disable-background-networking",
                 "no-first-run", "window-size=1280,900", f"user-data-dir={profile}")  # fmt: skip
        for flag in flags:
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        driver.set_script_timeout(1200)
        try:
            yield driver
        finally:
            driver.quit()


_PAGE = Path(__file__).with_name("review_page.js").read_text("utf-8")
_PICTURES = "document.querySelectorAll('.cell img').length > 10"
_PAINTED = "document.querySelector('#picture')?.dataset.ready"
# ---------------------------------------------------------------------------------- the steps


def _starts(bench: _Bench, run: Path) -> None:
    seconds, printed, worked = [], [], []
    for _ in range(5):
        bench.fresh(run)
        bench.command = Command(run)
        printed.append(time.perf_counter() - bench.command.began)
        bench.visit(bench.command.url)
        bench.wait(_PAINTED)
        seconds.append(time.perf_counter() - bench.command.began)
        worked.append(sum(bench.command.seen.cpu_times()[:2]))
        maps = Path(f"/proc/{bench.command.process.pid}/maps").read_text()
        assert "libtorch" not in maps, "torch was loaded"
    bench.add("command to its address", "s", printed, by=np.median)
    bench.add("command to the first picture, no torch", "s", seconds, at_most=2, by=np.median)
    bench.add("  of it time on a processor, of the command", "s", worked, by=np.median)


def _pressed(bench: _Bench, count: int, gap_s: float = 1 / 3) -> tuple[list[float], list[bool]]:
    """Milliseconds from each of some keys to the next picture, and whether it was there already."""
    bench.ask_page("watch")
    for at in range(count):
        until = time.perf_counter() + gap_s
        bench.browser.execute_cdp_cmd("Input.dispatchKeyEvent", _DOWN[at % 3])
        bench.browser.execute_cdp_cmd("Input.dispatchKeyEvent", {**_DOWN[at % 3], "type": "keyUp"})
        time.sleep(max(0.0, until - time.perf_counter()))
    time.sleep(0.5)
    taken, hits = bench.js("return [taken, hits]")
    assert len(taken) >= 0.98 * count, (len(taken), count)
    return taken, hits


_DOWN = [
    {"type": "keyDown", "key": key, "text": text, "code": code, "windowsVirtualKeyCode": number}
    for key, text, code, number in (
        ("Enter", "\r", "Enter", 13), ("k", "k", "KeyK", 75), ("s", "s", "KeyS", 83)
    )
]  # fmt: skip


def _keys(bench: _Bench, run: Path) -> None:
    command = bench.open(run)
    time.sleep(2)
    taken, hits = _pressed(bench, bench.options.keys)
    bench.add("key to next picture, p95", "ms", taken, at_most=50, by=p95)
    bench.add("next picture was there already", "%", [100 * float(np.mean(hits))], at_least=99)
    stored = command.ask("dashboard")["reviewers"][0]
    total = sum(value for name, value in stored.items() if name != "name")
    assert total == len(taken), (stored, len(taken))


def _photos(bench: _Bench, run: Path) -> None:
    bench.open(run)
    time.sleep(2)
    taken, hits = _pressed(bench, 100)
    bench.add("photographs: key to next picture, p95", "ms", taken, at_most=50, by=p95)
    bench.add("photographs: picture was there already", "%", [100 * float(np.mean(hits))],
              at_least=99)  # fmt: skip
    bench.press("g")
    bench.wait("document.querySelector('.cell')")
    bench.ask_page("full")
    blank = bench.ask_page("scroll", 10, 600)
    bench.add("photographs: longest blank cell, 600 px/s", "ms", [blank], at_most=200)


def _filters(bench: _Bench, run: Path) -> None:
    bench.open(run, "g")
    bench.wait(_PICTURES)
    views = [f"label={c}" for c in range(0, 40, 4)]
    views += [f"label={c}&prediction={c + 1}" for c in range(1, 20, 4)]
    views += ["only=suspects", "group=0", "by=avh&low=0.2&high=0.7", "by=entropy&low=1", "text=123",
              "text=99", "sort=logit_margin", "sort=avh&order=asc", "sort=id", "sort=label",
              "sort=entropy&only=suspects", "sort=free_energy&label=7", "state=open"]  # fmt: skip
    taken = [bench.ask_page("filter", view) for view in views]
    slowest = views[int(np.argmax(taken))]
    bench.add("filter or sort to its rows, p95", "ms", taken, at_most=300, by=p95)
    bench.add(f"  the slowest of them: {slowest}", "ms", [max(taken)])
    assert bench.command is not None
    bench.add("server, most memory so far", "MiB", [bench.command.peak_mib()], at_most=500)


def _far_row(bench: _Bench, run: Path) -> None:
    bench.open(run, "g")
    bench.wait(_PICTURES)
    last = bench.options.rows - 1
    taken = []
    for _ in range(5):
        taken.append(bench.ask_page("goTo", "End", last))
        bench.ask_page("goTo", "Home", 0)
    bench.add(f"to row {last:,} and its picture", "ms", taken, at_most=300)


def _scrolling(bench: _Bench, run: Path) -> None:
    command = bench.open(run, "g")
    bench.wait(_PICTURES)
    bench.ask_page("full")
    blank = [bench.ask_page("scroll", 15, speed) for speed in (600, 1500, 3000)]
    bench.add("longest blank cell, scrolling 600 to 3,000 px/s", "ms", blank, at_most=200)
    rng = np.random.default_rng(0)
    jumps = [bench.ask_page("jump", float(share)) for share in rng.random(30)]
    bench.add("blank after a jump anywhere", "ms", jumps, at_most=200)
    bench.add("server after it, most memory", "MiB", [command.peak_mib()], at_most=500)


def _memory(bench: _Bench, run: Path) -> None:
    """Scrolls long, and looks ten times whether memory still grows."""
    command = bench.open(run, "g")
    bench.wait(_PICTURES)
    seconds, speed = bench.options.scroll_s, bench.options.scroll_speed
    page: list[float] = []
    server: list[float] = []
    for _ in range(10):
        bench.ask_page("scroll", seconds / 10, speed)
        page.append(_renderer(bench.browser).memory_full_info().uss / 1e6)
        server.append(command.seen.memory_full_info().uss / _MIB)
    far = f"{seconds / 60:g} min of scrolling at {speed:,.0f} px/s"
    bench.add(f"browser's page, {far}, ten looks", "MB", page, at_most=300)
    bench.add(f"server, {far}, ten looks", "MiB", server, at_most=500)
    print("page, MB:", *(round(value) for value in page))
    print("server, MiB:", *(round(value) for value in server))
    bench.add("server after it, most memory", "MiB", [command.peak_mib()], at_most=500)


def _renderer(browser: Any) -> psutil.Process:
    """The process of the page: the largest one that renders."""
    driver = psutil.Process(browser.service.process.pid)
    pages = [
        child
        for child in driver.children(recursive=True)
        if "--type=renderer" in " ".join(child.cmdline())
    ]
    return max(pages, key=lambda page: page.memory_full_info().uss)


def _bulk(bench: _Bench, run: Path) -> None:
    command = bench.open(run)
    size = bench.options.rows // 10
    bench.visit(f"{command.url.partition('#')[0]}#token={command.token}")
    bench.wait(_PAINTED)
    bench.js("location.hash = '#grid?by=avh&low=0&high=0.1'")
    bench.wait(f"document.querySelector('.summary')?.textContent.startsWith('{size:,} of')")
    bench.wait(_PICTURES)
    bench.press("a", "k")
    bench.wait("document.querySelector('dialog[open]')")
    start = time.perf_counter()
    bench.press(Keys.ENTER)
    bench.ask_page("notice", f"{size:,} decisions stored")
    stored = time.perf_counter() - start
    bench.wait(_PICTURES)
    start = time.perf_counter()
    bench.press("u")
    bench.ask_page("notice", f"{size:,} decisions undone")
    undone = time.perf_counter() - start
    bench.add(f"one decision for {size:,} rows", "s", [stored], at_most=2)
    bench.add("undone by one key", "s", [undone], at_most=2)
    assert command.ask("changes", since=0)["seq"] == 2 * size
    bench.add("server after it, most memory", "MiB", [command.peak_mib()], at_most=500)


def _commits(bench: _Bench, run: Path) -> None:
    command = bench.open(run)
    taken: list[float] = []
    synced: list[float] = []
    worked: list[float] = []
    after = 0
    while len(taken) < 300:
        for item in command.ask("queue", after=after, count=24)["items"]:
            body = {"index": item["index"], "action": "keep", "base": item["base"]}
            before, start = sum(command.seen.cpu_times()[:2]), time.perf_counter()
            command.ask("decide", body)
            taken.append(1000 * (time.perf_counter() - start))
            worked.append(1000 * (sum(command.seen.cpu_times()[:2]) - before))
            after = item["place"] + 1
            synced.append(1000 * _synced(run))
    bench.add("decision stored and answered, p95", "ms", taken, at_most=10, by=p95)
    # the system counts in hundredths of a second: the mean is what it tells
    bench.add("  of it time on a processor, of the command, mean", "ms", worked, by=np.mean)
    bench.add("  4 kB written and synced by hand, in turns, p95", "ms", synced, by=p95)


def _synced(run: Path) -> float:
    """Seconds that the disk itself takes: what a decision cannot be faster than."""
    file = run / "synced.tmp"
    try:
        with file.open("wb") as sink:
            sink.write(bytes(4096))
            sink.flush()
            start = time.perf_counter()
            os.fsync(sink.fileno())
            return time.perf_counter() - start
    finally:
        file.unlink()


def _tabs(bench: _Bench, run: Path) -> None:
    command = bench.open(run)
    first = bench.browser.current_window_handle
    seconds = []
    for _ in range(9):
        bench.browser.switch_to.new_window("tab")
        start = time.perf_counter()
        bench.browser.get(command.url)
        bench.wait(_PAINTED)
        seconds.append(time.perf_counter() - start)
    answered = []
    for handle in bench.browser.window_handles:
        bench.browser.switch_to.window(handle)
        start = time.perf_counter()
        bench.js("location.hash = '#grid?label=3'")
        bench.wait("document.querySelector('.summary')?.textContent.includes('of') && "
                   "document.querySelectorAll('.cell img').length > 10")  # fmt: skip
        answered.append(time.perf_counter() - start)
    bench.add("ten tabs: a new one to its picture", "s", seconds)
    bench.add("ten tabs: each filters and shows pictures", "s", answered)
    for handle in bench.browser.window_handles:
        bench.browser.switch_to.window(handle)
        if handle != first:
            bench.browser.close()
    bench.browser.switch_to.window(first)


def _kills(bench: _Bench, run: Path, times: int) -> None:
    """Decide as fast as it goes, kill -9 in the middle, start again."""
    confirmed: list[int] = []
    doubtful = 0
    rng = np.random.default_rng(0)
    bench.stop()
    for _ in range(times):
        command = Command(run)
        items = command.ask("queue", after=0, count=24)["items"]
        end = time.perf_counter() + rng.uniform(0.02, 0.25)
        killer = subprocess.Popen(
            [sys.executable, "-c", "import os, sys, time; time.sleep(float(sys.argv[2]));"
             "os.kill(int(sys.argv[1]), 9)", str(command.process.pid), f"{rng.uniform(0.05, 0.2)}"]
        )  # fmt: skip
        try:
            while time.perf_counter() < end + 5:
                for item in items:
                    body = {"index": item["index"], "action": "keep", "base": item["base"]}
                    command.ask("decide", body)
                    confirmed.append(item["index"])
                items = command.ask("queue", after=0, count=24)["items"]
        except (http.client.HTTPException, OSError):
            doubtful += 1  # the last one was sent and not answered: it may be there or not
        killer.wait()
        command.end(signal.SIGKILL)
    found = decisions(run)["index"].tolist()
    lost = len(set(confirmed) - set(found))
    doubled = len(found) - len(set(found))
    extra = len(set(found) - set(confirmed))
    assert extra <= doubtful, (extra, doubtful)
    name = f"kill -9 {times} times while deciding"
    bench.add(f"{name}: lost of {len(confirmed):,} confirmed", "", [lost], at_most=0)
    bench.add(f"{name}: doubled", "", [doubled], at_most=0)


if __name__ == "__main__":
    main()
