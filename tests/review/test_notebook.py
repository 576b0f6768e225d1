"""`hs.review` in a real kernel: shown inline, with a handle."""

import http.server
import inspect
import re
import socket
import threading
import urllib.error
import urllib.request

import nbformat
import pytest
from nbclient import NotebookClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import hardsight as hs
from tests.review import made
from tests.review.test_browser import act, ready

CELLS = (
    "import hardsight as hs\napp = hs.review({run!r}, token={token!r}, port={port})",
    "print(app.url)\nfound = app.decisions()\nprint(found['verdict'].tolist())",
    "app.close()\nprint('closed')",
)


def printed(cell):
    return "".join(one.get("text", "") for one in cell.outputs)


@pytest.fixture
def notebook_page(tmp_path):
    """A server of another origin on this machine, as that of notebooks is."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "served"))

        def log_message(self, *_):
            pass

    (tmp_path / "served").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path / "served" / "page.html", f"http://localhost:{server.server_port}/page.html"
        server.shutdown()


def test_a_notebook_shows_the_app_inline_and_reads_its_decisions(chromium, run, notebook_page):
    with socket.socket() as free:  # not among those that other tests try first
        free.bind(("127.0.0.1", 0))
        values = {"run": str(run), "token": made.TOKEN, "port": free.getsockname()[1]}
    cells = [nbformat.v4.new_code_cell(cell.format(**values)) for cell in CELLS]
    client = NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=150)
    file, address = notebook_page
    with client.setup_kernel():
        client.execute_cell(cells[0], 0)
        frame = next(o.data["text/html"] for o in cells[0].outputs if "data" in o)
        url = re.search(r'src="(http://[^"]*)"', frame)[1]
        assert url in printed(cells[0])  # also as text, since frames fail in some places
        file.write_text(f"<!doctype html><title>notebook</title>{frame}")
        chromium.get(address)
        chromium.switch_to.frame(chromium.find_element(By.TAG_NAME, "iframe"))
        ready(chromium)
        chromium.find_element(By.CSS_SELECTOR, ".reason").click()  # keys go there now
        act(chromium, "k")
        act(chromium, Keys.ENTER)
        client.execute_cell(cells[1], 1)
        assert printed(cells[1]).splitlines() == [url, "['keep', 'relabel']"]
        chromium.get("about:blank")
        client.execute_cell(cells[2], 2)
        assert "closed" in printed(cells[2])
        with pytest.raises(urllib.error.URLError):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30)
    chromium.get_log("browser")


def test_the_package_that_can_be_called_shows_the_options_of_the_verb():
    shown = inspect.signature(hs.review)
    assert shown == inspect.signature(hs.review.review)
    assert {"port", "open_browser"} <= set(shown.parameters)
