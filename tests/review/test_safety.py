"""What the app refuses: other hosts, other origins, no token, paths, and names that act as code."""

import io
import itertools
import json
import re
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import hardsight as hs
from hardsight.errors import OptionError
from hardsight.models import SAGPoolNet
from tests._texts import reviews
from tests.review import made

GOOD = {"index": 18, "action": "keep", "base": 0, "reviewer": "anna"}
API = ("start", "queue", "example/18", "explained/18", "grid", "pictures?of=18", "changes",
       "dashboard", "map", "axes")  # fmt: skip


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize("token", [None, "", "wrong", made.TOKEN[:-1], made.TOKEN + "x", "é"])
def test_no_data_without_the_token(looked_at, path, token):
    sent = looked_at.headers(**{"x-hardsight-token": token})
    sent = {name: value.encode("utf-8") for name, value in sent.items()}
    answer = looked_at.client.get(f"/api/{path}", headers=sent)
    assert answer.status_code == 401
    assert "open the address that the command printed" in answer.text


def test_a_token_in_the_query_or_a_cookie_is_not_one(looked_at):
    assert looked_at.client.get(f"/api/start?token={made.TOKEN}").status_code == 401
    cookie = {"cookie": f"x-hardsight-token={made.TOKEN}; token={made.TOKEN}"}
    assert looked_at.client.get("/api/start", headers=cookie).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "",
             "127.0.0.1:{port}.evil.example", "0.0.0.0:{port}", "localhost.evil:{port}", "[::1]"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/assets/main.js", "/api/start"])
def test_another_host_is_refused_before_anything_else(looked_at, host, path):
    sent = looked_at.headers(host=host.format(port=looked_at.review.port))
    answer = looked_at.client.get(path, headers=sent)
    assert answer.status_code == 403
    assert "--allow-host" in answer.text


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"]
)
def test_names_of_this_machine_are_taken(looked_at, host):
    sent = looked_at.headers(host=host.format(port=looked_at.review.port))
    assert looked_at.client.get("/api/start", headers=sent).status_code == 200


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "https://127.0.0.1", "http://127.0.0.1:1",
               "http://127.0.0.1:{port}.evil.example", "http://localhost"],
)  # fmt: skip
def test_another_origin_cannot_post(looked_at, origin):
    origin = origin and origin.format(port=looked_at.review.port)
    answer = looked_at.client.post(
        "/api/decide", json=GOOD, headers=looked_at.headers(origin=origin)
    )
    assert answer.status_code == 403
    assert looked_at.queue()["open"] == 6


def test_a_post_that_the_browser_calls_cross_site_is_refused(app):
    sent = app.headers(**{"sec-fetch-site": "cross-site"})
    assert app.client.post("/api/decide", json=GOOD, headers=sent).status_code == 403
    sent = app.headers(**{"sec-fetch-site": "same-origin"})
    assert app.client.post("/api/decide", json=GOOD, headers=sent).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_form_cannot_post(looked_at, kind):
    sent = looked_at.headers(**{"content-type": kind})
    answer = looked_at.client.post("/api/decide", content=b'{"index": 18}', headers=sent)
    assert answer.status_code == 415


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'"keep"', b"[" * 100_000, b" " * 3_000_000])
def test_a_body_that_is_not_a_decision_is_refused(looked_at, body):
    sent = looked_at.headers(**{"content-type": "application/json"})
    assert looked_at.client.post("/api/decide", content=body, headers=sent).status_code == 400


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(looked_at, method):
    assert (
        looked_at.client.request(method, "/api/decide", headers=looked_at.headers()).status_code
        == 405
    )


def test_no_answer_invites_other_sites(looked_at):
    answer = looked_at.client.get(
        "/api/start", headers=looked_at.headers(origin="http://evil.example")
    )
    assert not [name for name in answer.headers if name.startswith("access-control")]


PATHS = ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd",
         "....//....//etc/passwd", "..\\..\\etc\\passwd", "%2fetc%2fpasswd", "file:///etc/passwd",
         "..%252f..%252fetc/passwd", "main.js/../../../_store.py", "\x00",
         "x/../start"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "form", ["/{}", "/assets/{}", "/api/example/{}", "/api/{}", "/api/pictures?of={}",
             "/api/pictures?of=18&size={}"],
)  # fmt: skip
def test_no_path_reaches_the_disk(looked_at, form, path):
    address = form.format(path.replace("\x00", "%00"))
    answer = looked_at.client.get(address, headers=looked_at.headers())
    # some forms are the address of something else, once a browser has shortened them
    assert answer.status_code in (400, 404) or answer.json()["title"] == "run"
    assert "root:" not in answer.text
    assert "sqlite" not in answer.text


@pytest.mark.parametrize(
    "path", ["/assets", "/assets/", "/api/", "/api", "/review.sqlite", "/docs"]
)
def test_nothing_is_listed(looked_at, path):
    assert looked_at.client.get(path, headers=looked_at.headers()).status_code == 404


def test_the_shell_holds_no_data_and_may_load_nothing_else(looked_at):
    page = looked_at.client.get("/")
    assert page.status_code == 200
    for secret in (made.TOKEN, "run", "cat", "anna"):
        assert secret not in re.sub(r"<[^>]*>", "", page.text).split()
    assert made.TOKEN not in page.text
    policy = page.headers["content-security-policy"]
    for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src blob:",
                 "connect-src 'self'", "base-uri 'none'", "form-action 'none'",
                 "frame-ancestors 'none'", "require-trusted-types-for 'script'"):  # fmt: skip
        assert part in policy.split("; ")
    assert "unsafe" not in policy
    for answer in (
        page,
        looked_at.get("start"),
        looked_at.client.get("/nowhere"),
        looked_at.client.get("/api/x"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers


def test_the_page_is_small_and_asks_nobody_else(looked_at):
    from importlib import resources

    folder = resources.files("hardsight.review") / "assets"
    texts = {file.name: file.read_text("utf-8") for file in folder.iterdir()}
    assert sum(len(text.encode()) for text in texts.values()) <= 150_000
    for name, text in texts.items():
        assert looked_at.client.get("/" if name == "index.html" else f"/assets/{name}").text == text
        outside = re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", re.sub(r"(?m)//.*$", "", text))
        assert [url for url in outside if not url.startswith("http://www.w3.org/")] == [], name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), (
            name
        )
        assert not re.search(r'(?:src|href)="/', text), (
            name
        )  # relative, so that a proxy can move it


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sort": "logit_margin; DROP TABLE examples"}, "unknown column"),
        ({"sort": 'id" FROM read_csv("/etc/passwd") --'}, "unknown column"),
        ({"by": "1=1 OR avh", "low": "0"}, "unknown column"),
        ({"label": "0 OR 1=1"}, "a whole number"),
        ({"by": "avh", "low": "nan"}, "finite number"),
        ({"order": "desc, (select 1)"}, "asc or desc"),
        ({"text": "x" * 300}, "at most 200 letters"),
        ({"lasso": "1,2,3"}, "corners"),
        ({"lasso": "1,2,3,4,9999,6"}, "between 0 and"),
        ({"state": "open' OR '1'='1"}, "expected one of"),
        ({"start": "9" * 30}, "a whole number"),
        ({"reviewer": ""}, "name of a reviewer"),
    ],
)
def test_a_filter_is_a_list_of_known_things(looked_at, values, words):
    answer = looked_at.get("grid", **values)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_text_of_a_filter_is_bound_not_pasted(looked_at):
    assert looked_at.get("grid", text="' OR '1'='1").json()["total"] == 0
    assert looked_at.get("grid", text="%").json()["total"] == 0
    assert looked_at.get("grid", text="CLASS-2/").json()["total"] == 15


def test_the_database_can_read_nothing_but_its_table(looked_at, tmp_path):
    import duckdb

    (tmp_path / "secret.csv").write_text("a\n1\n")
    database = looked_at.review.session.rows.database
    for query in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"COPY examples TO '{tmp_path}/out.csv'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET threads = 1",
    ):
        with pytest.raises(duckdb.Error):
            database.execute(query)
    assert not (tmp_path / "out.csv").exists()


def pictures_of(answer):
    length = struct.unpack("<I", answer.content[:4])[0]
    head = json.loads(answer.content[4 : 4 + length])
    sizes = [one[2] for one in head]
    starts = 4 + length + np.cumsum([0, *sizes])
    parts = [answer.content[a:b] for a, b in itertools.pairwise(starts)]
    return [(kind, note, part) for (kind, note, _), part in zip(head, parts, strict=True)]


def test_pictures_are_those_of_their_index_and_encoded_again(looked_at, run):
    answer = looked_at.get("pictures", of="18,0,3,999999", size="small")
    assert answer.headers["content-type"] == "application/octet-stream"
    (kind, _, first), (_, _, second), *missing = pictures_of(answer)
    assert kind == "image/png"
    for content, row in ((first, 9), (second, 0)):
        shown = np.asarray(Image.open(io.BytesIO(content)))
        stored = np.asarray(Image.open(io.BytesIO(made.png_of(made.rows_of()["prediction"][row]))))
        np.testing.assert_array_equal(shown, stored)
    assert [(kind, part) for kind, _, part in missing] == [("image/png", b"")] * 2
    assert first not in (run / "thumbnails.parquet").read_bytes()


def test_too_many_pictures_at_once_are_refused(looked_at):
    assert looked_at.get("pictures", of=",".join(["0"] * 65)).status_code == 400
    assert looked_at.get("pictures", of="0", size="enormous").status_code == 400


HOSTILE = [
    b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    b"<html><script>alert(1)</script>",
    b"\x89PNG\r\n\x1a\n" + b"\x00" * 50,
    b"",
]


def test_what_is_not_a_picture_is_not_sent(tmp_path, monkeypatch):
    columns = made.rows_of(4)
    stored = iter(HOSTILE)
    monkeypatch.setattr(made, "png_of", lambda label: next(stored))
    app = made.App(made.save(tmp_path / "run", columns))
    for size in ("small", "large"):
        shown = pictures_of(app.get("pictures", of="0,2,4,6", size=size))
        assert [part for _, _, part in shown] == [b""] * 4
        assert all("nowhere/photos" in note for _, note, _ in shown)
    app.close()


def test_beyond_this_machine_a_token_is_asked_for(run):
    words = "lets everybody on the network who has the token see the pictures"
    with pytest.raises(OptionError, match=words):
        made.App(run, host="0.0.0.0", token=None)
    with pytest.raises(OptionError, match="at least 16 letters and digits"):
        made.App(run, host="0.0.0.0", token="short")
    app = made.App(run, host="0.0.0.0", allow_hosts=("lab.example", "hub.example:8000"))
    assert any("everybody who can reach this machine" in note for note in app.review.notes)
    for host, status in (
        ("lab.example", 200), (f"lab.example:{app.review.port}", 200), ("hub.example:8000", 200),
        ("hub.example", 403), ("evil.example", 403), (f"localhost:{app.review.port}", 200),
    ):  # fmt: skip
        assert app.client.get("/api/start", headers=app.headers(host=host)).status_code == status
    post = {"host": "hub.example:8000", "origin": "https://hub.example:8000"}
    assert app.client.post("/api/decide", json=GOOD, headers=app.headers(**post)).status_code == 200
    app.close()


def test_on_this_machine_the_token_is_random_and_only_in_the_fragment(run):
    urls = []
    for _ in range(2):
        app = made.App(run, token=None)
        urls.append(app.review.url)
        app.close()
    tokens = [re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=([\w-]{32})", url)[1] for url in urls]
    assert tokens[0] != tokens[1]


def test_the_next_free_port_is_taken_and_said_also_if_nobody_asked_for_one(run):
    first, second = made.App(run), made.App(run)
    said = second.review.notes
    ports = first.review.port, second.review.port
    first.close()
    second.close()
    assert ports[0] != ports[1]
    assert said[0] == f"port 8712 is in use; using {ports[1]}, the next free one"


def test_texts_and_graphs_are_shown_as_what_they_are(tmp_path):
    texts, labels = reviews(40)
    rows = "".join(f"{text},{label}\n" for text, label in zip(texts, labels, strict=True))
    (tmp_path / "reviews.csv").write_text(f"words,verdict\n{rows}")
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, labels)
    hs.score(
        model, tmp_path / "reviews.csv", text_column="words", label_column="verdict",
        out=tmp_path / "run",
    )  # fmt: skip
    app = made.App(tmp_path / "run")
    ((kind, note, text),) = pictures_of(app.get("pictures", of="3", size="large"))
    app.close()
    assert (kind, note, text.decode()) == ("text/plain", "", texts[3])
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    for name, lines in {
        "A": "1, 2\n2, 1\n3, 4\n4, 3\n", "graph_indicator": "1\n1\n2\n2\n", "graph_labels": "0\n1\n"
    }.items():  # fmt: skip
        (graphs / f"TOY_{name}.txt").write_text(lines)
    torch.manual_seed(0)
    hs.score(SAGPoolNet(1, width=8), graphs, out=tmp_path / "drawn")
    app = made.App(tmp_path / "drawn")
    ((kind, note, drawn),) = pictures_of(app.get("pictures", of="1", size="large"))
    app.close()
    assert (note, Image.open(io.BytesIO(drawn)).size) == ("", (640, 640))
