"""The app in a real Chromium: what a person sees, types and marks."""

import json
import signal
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from hardsight.errors import OutputError
from hardsight.review import Review, decisions
from tests._browser import boxes_of_labels, colours, complaints, console, resize
from tests.cli.test_review import Started
from tests.review import made

NAMES = ["ant", "bee", "cat", "dog"]


def served(run, **options):
    defaults = {"host": "127.0.0.1", "port": None, "token": made.TOKEN, "allow_hosts": (),
                "data": None, "is_framed": False}  # fmt: skip
    return Review(run, **{**defaults, **options}).start()


@pytest.fixture
def review(run):
    found = served(run)
    yield found
    found.close()


@pytest.fixture
def page(chromium, review):
    """The page of a run, opened by the address that is printed; nothing is logged as an error."""
    chromium.get_log("browser")
    resize(chromium, 1280, 900)
    visit(chromium, review.url)
    yield chromium
    assert console(chromium) == []
    chromium.get("about:blank")


def visit(driver, url):
    driver.get("about:blank")
    driver.get(url)
    ready(driver)


def until(driver, condition, seconds=30):
    return WebDriverWait(driver, seconds, poll_frequency=0.02).until(condition)


def find(driver, selector):
    return driver.find_element(By.CSS_SELECTOR, selector)


def text(driver, selector):
    return driver.execute_script(
        "return document.querySelector(arguments[0])?.innerText ?? ''", selector
    )


def shown(driver):
    """The index whose picture is painted, once it is; -1 if there is none."""
    found = driver.execute_script(
        "const p = document.querySelector('#picture');"
        "return p && p.dataset.ready === p.dataset.index ? p.dataset.ready ?? null : null"
    )
    return None if found is None else int(found)


def ready(driver, other_than=None):
    return (
        until(driver, lambda d: (at := shown(d)) is not None and at != other_than and (at + 1)) - 1
    )


def press(driver, *keys):
    ActionChains(driver).send_keys(*keys).perform()


def act(driver, key):
    """Press a key that decides, and wait for the next picture."""
    before = shown(driver)
    press(driver, key)
    return ready(driver, before)


def notice(driver, part):
    until(driver, lambda d: part in text(d, "#notice:not([hidden])"))


def test_the_queue_by_keyboard_alone(page, run):
    first = ready(page)
    heading = text(page, ".panel h2")
    said = text(page, ".panel .prediction")
    second = act(page, Keys.ENTER)
    third = act(page, "k")
    press(page, "/")
    until(page, lambda d: d.switch_to.active_element.get_attribute("role") == "combobox")
    press(page, "do", Keys.ENTER)
    fourth = ready(page, third)
    fifth = act(page, "c")
    sixth = act(page, "s")
    assert len({first, second, third, fourth, fifth, sixth}) == 6
    found = decisions(run).set_index("index")
    assert heading == f"{NAMES[found.old[first]]} → {NAMES[found.new[first]]}"
    assert said == f"prediction {NAMES[found.new[first]]} · likely wrong label"
    assert found.verdict.to_dict() == {
        first: "relabel",
        second: "keep",
        third: "keep" if found.old[third] == 3 else "relabel",
        fourth: "cannot tell",
    }
    assert found.new[third] == 3
    assert text(page, ".progress p").startswith("5 of 6")
    assert "class" not in page.current_url
    press(page, "s")
    until(page, lambda d: "All decided" in text(d, ".panel"))
    press(page, Keys.ARROW_LEFT)  # to the last one, not to the one before it
    assert ready(page) == sixth


def test_undo_goes_back_also_after_a_reload_in_the_middle(page, run):
    first = ready(page)
    second = act(page, "k")
    third = act(page, Keys.ENTER)
    page.refresh()
    assert ready(page) == third  # the token is kept, and so is the place
    assert "token" not in page.current_url
    assert act(page, "u") == second
    notice(page, f"example {second} is open again")
    assert act(page, "u") == first
    assert decisions(run).empty
    press(page, "u")
    notice(page, "nothing to undo")


def test_undo_of_a_changed_decision_brings_the_earlier_one_back(page, run):
    first = ready(page)
    second = act(page, "k")
    press(page, Keys.ARROW_LEFT)
    assert ready(page, second) == first
    assert act(page, "c") == second
    assert act(page, "u") == first
    notice(page, "is again as you decided before")
    assert "is right" in text(page, ".verdict")
    assert text(page, ".progress p").startswith("1 of 6")
    press(page, "u")
    notice(page, f"example {first} is open again")
    assert text(page, ".progress p").startswith("0 of 6")
    assert decisions(run).empty


def test_another_reviewer_begins_with_the_first_suspect(page):
    first = ready(page)
    act(page, "k")
    act(page, "k")
    find(page, "#reviewer").click()
    until(page, lambda d: d.switch_to.active_element.get_attribute("aria-label") == "Your name")
    press(page, "ben", Keys.ENTER)
    until(page, lambda d: text(d, ".progress p").startswith("0 of 6"))
    until(page, lambda d: shown(d) == first)
    assert text(page, "#reviewer") == "ben"


def test_where_the_share_of_wrong_labels_is_not_known_the_page_says_why(page):
    ready(page)
    assert "is not known: the table has no probabilities" in text(page, ".panel")


def test_a_key_that_is_held_down_decides_once(page, run):
    ready(page)
    before = shown(page)
    page.execute_script(
        "for (const repeat of [false, true, true, true]) document.body.dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'k', repeat, bubbles: true }))"
    )
    ready(page, before)
    assert len(decisions(run)) == 1


def test_two_tabs_in_conflict(page, run):
    index = ready(page)
    first = page.current_window_handle
    token_url = page.current_url.split("#")[0] + f"#token={made.TOKEN}"
    page.switch_to.new_window("tab")
    visit(page, token_url)
    assert ready(page) == index
    act(page, "k")
    page.close()
    page.switch_to.window(first)
    press(page, Keys.ENTER)  # before or after it has heard of the other one: never overwritten
    notice(page, "Meanwhile you decided")
    assert decisions(run)["verdict"].tolist() == ["keep"]
    assert shown(page) == index
    assert "is right" in text(page, ".verdict")
    assert text(page, ".progress").startswith("1 of")  # the decision of the other tab counts
    console(page)  # the browser logs the refused request


def test_the_map_opens_with_the_ends_of_its_axes(page, run):
    ready(page)
    press(page, "g")
    until(page, lambda d: "60 of 60" in text(d, ".summary"))
    find(page, ".map-panel summary").click()
    until(page, lambda d: "angle to the labelled class, from" in text(d, ".map-box"))
    until(page, lambda d: find(d, ".map img").get_property("naturalWidth") == 512)


def test_filter_bulk_and_one_undo_for_all(page, run):
    ready(page)
    press(page, "g")
    until(page, lambda d: "60 of 60" in text(d, ".summary"))
    Select(find(page, "select[name=label]")).select_by_visible_text("cat")
    until(page, lambda d: "60 of 60" not in text(d, ".summary") and "of" in text(d, ".summary"))
    cats = int(text(page, ".summary").split()[0])
    assert "label=2" in page.current_url
    until(page, lambda d: len(d.find_elements(By.CSS_SELECTOR, ".cell img")) >= 10)
    press(page, "a", "k")
    until(page, lambda d: "Keep the labels of" in text(d, "dialog"))
    press(page, Keys.ENTER)
    notice(page, f"{cats} decisions stored")
    assert decisions(run)["old"].tolist() == [2] * cats
    press(page, "u")
    notice(page, f"{cats} decisions undone")
    assert decisions(run).empty


def test_marking_with_arrows_and_shift(page, run):
    ready(page)
    press(page, "g")
    until(page, lambda d: len(d.find_elements(By.CSS_SELECTOR, ".cell img")) >= 10)
    press(page, Keys.ARROW_RIGHT, " ")
    until(page, lambda d: "1 marked" in text(d, ".summary"))
    ActionChains(page).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).key_up(
        Keys.SHIFT
    ).perform()
    until(page, lambda d: "3 marked" in text(d, ".summary"))
    press(page, "c")
    notice(page, "3 decisions stored")
    assert decisions(run)["verdict"].tolist() == ["cannot tell"] * 3


def test_a_failed_store_keeps_the_picture_and_says_so(page, review, run, monkeypatch):
    index = ready(page)

    def full(*_, **__):
        raise OutputError("the decision was not stored: database or disk is full; free some space")

    with monkeypatch.context() as patch:
        patch.setattr(review.session.store, "decide", full)
        press(page, "k")
        notice(page, "Not stored")
        assert "disk is full" in text(page, "#notice")
        assert shown(page) == index
    assert act(page, "k") != index
    assert "Not stored" not in text(page, "#notice:not([hidden])")
    assert decisions(run)["index"].tolist() == [index]
    console(page)


def test_killed_in_the_middle_and_started_again(chromium, run):
    """The page says that nothing was stored, keeps the picture, and goes on when it is back."""
    with socket.socket() as free:  # not among those that other tests try first
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first = Started(run, "--token", made.TOKEN, "--port", str(port))
    resize(chromium, 1280, 900)
    visit(chromium, f"{first.url}#token={made.TOKEN}")
    decided = ready(chromium)
    index = act(chromium, "k")
    first.end(signal.SIGKILL)
    press(chromium, Keys.ENTER)
    notice(chromium, "Not stored: the app does not answer")
    assert shown(chromium) == index
    second = Started(run, "--token", made.TOKEN, "--port", str(port))
    assert second.url == first.url
    act(chromium, Keys.ENTER)
    assert decisions(run)["index"].tolist() == [decided, index]
    assert decisions(run)["verdict"].tolist() == ["keep", "relabel"]
    chromium.get("about:blank")
    second.end()
    chromium.get_log("browser")


def test_pictures_that_were_moved_away_leave_a_placeholder_and_a_message(chromium, tmp_path):
    columns = made.rows_of(20)
    for at, id in enumerate(columns["id"]):
        file = tmp_path / "photos" / id
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(made.png_of(int(columns["prediction"][at])))
    columns["index"] = np.argsort(np.argsort(columns["id"]))  # as a folder is listed
    about = {"spec": str(tmp_path / "photos"), "split": None, "fingerprint": "f00d"}
    run = made.save(tmp_path / "run", columns, thumbnails=False, data=about)
    (tmp_path / "photos").rename(tmp_path / "moved")
    resize(chromium, 1280, 900)
    with served(run) as review:
        visit(chromium, review.url)
        assert text(chromium, "#picture .missing") == "no picture"
        notice(chromium, "say where it is with --data")
        act(chromium, "k")  # deciding still works
    with served(run, data=tmp_path / "moved") as review:
        visit(chromium, review.url)
        assert chromium.execute_script(
            "return document.querySelector('#picture img').naturalWidth"
        ) == 12  # fmt: skip
        assert text(chromium, "#notice:not([hidden])") == ""
        chromium.get("about:blank")
    chromium.get_log("browser")


def test_similar_examples_and_texts(chromium, run):
    rng = np.random.default_rng(0)
    (run / "embeddings").mkdir()
    for name, length in (("00000000", 60), ("class_weights", 4)):
        content = rng.normal(size=(length, 5)).astype(np.float32)
        np.save(run / "embeddings" / f"{name}.npy", content)
    resize(chromium, 1280, 900)
    with served(run) as review:
        review.session.pictures.of = lambda index, id, size: SimpleNamespace(
            content=f"<b>text</b> of {index}".encode(), kind="text/plain", note=""
        )
        visit(chromium, review.url)
        index = ready(chromium)
        assert text(chromium, "#picture .text") == f"<b>text</b> of {index}"
        until(chromium, lambda d: len(d.find_elements(By.CSS_SELECTOR, ".similar li")) == 5)
        until(chromium, lambda d: "<b>text</b>" in text(d, ".similar .thumb"))
        assert find(chromium, ".angles").get_attribute("aria-label").count("°") == 4  # classes
        assert complaints(chromium) == []
        other = find(chromium, ".similar button")
        other.click()
        assert ready(chromium, index) != index
        press(chromium, "g")
        until(chromium, lambda d: "<b>text</b>" in text(d, ".cell .thumb"))
        chromium.get("about:blank")


@pytest.mark.slow
def test_the_last_of_a_million_rows_can_be_reached(chromium, tmp_path):
    """Its rows are higher than a browser lets an element be."""
    columns = made.rows_of(1_000_000)
    run = made.save(tmp_path / "run", columns, thumbnails=False)
    resize(chromium, 1280, 900)
    with served(run) as review:
        visit(chromium, review.url)
        press(chromium, "g")
        until(chromium, lambda d: "1,000,000 of" in text(d, ".summary"))
        press(chromium, Keys.END)
        until(chromium, lambda d: d.find_elements(By.CSS_SELECTOR, '[data-place="999999"]'))
        box = (
            "const b = document.querySelector('{}').getBoundingClientRect();"
            "return [b.top, b.bottom]"
        )
        top, bottom = chromium.execute_script(box.format('[data-place="999999"]'))
        outer = chromium.execute_script(box.format("#cells"))
        assert outer[0] <= top < bottom <= outer[1] + 1
        until(chromium, lambda d: find(d, '[data-place="999999"]').get_attribute("data-index"))
        press(chromium, Keys.HOME)
        until(chromium, lambda d: d.find_elements(By.CSS_SELECTOR, '[data-place="0"]'))
        chromium.get("about:blank")
    chromium.get_log("browser")


def test_names_from_data_never_become_code(chromium, tmp_path):
    bad = "<img src=x onerror=\"document.title='owned'\">"
    columns = made.rows_of(20)
    columns["id"] = [f"{bad}/{i}" for i in range(20)]
    names = [bad, "<script>document.title='owned'</script>", "=1+1", "javascript:alert(1)"]
    review = served(made.save(tmp_path / "<b>run", columns, classes=names))
    resize(chromium, 1280, 900)
    visit(chromium, review.url)
    seen = text(chromium, ".panel h2")
    act(chromium, "k")
    seen += text(chromium, ".panel h2")
    assert "<img src=x" in seen
    assert "<script>" in seen
    press(chromium, "/")
    until(chromium, lambda d: "<script>" in text(d, "#class-list"))
    press(chromium, Keys.ESCAPE)
    for key in "gd":
        press(chromium, key)
        time.sleep(0.2)
    until(chromium, lambda d: "Dashboard" in text(d, "h1"))
    assert "owned" not in chromium.title
    assert "<b>run" in chromium.title
    assert console(chromium) == []
    chromium.get("about:blank")
    review.close()


def test_long_names_leave_room_for_the_score_below_a_small_picture(chromium, tmp_path):
    names = [f"{letter}nother-long-name" for letter in "abcd"]
    review = served(made.save(tmp_path / "run", made.rows_of(20), classes=names))
    resize(chromium, 1280, 900)
    visit(chromium, review.url)
    press(chromium, "g")
    until(chromium, lambda d: text(d, ".caption .soft"))
    below = chromium.execute_script(
        "return [...document.querySelectorAll('.caption')].map((caption) => "
        "caption.querySelector('.soft').getBoundingClientRect().bottom"
        " - caption.getBoundingClientRect().bottom)"
    )
    assert len(below) > 5
    assert max(below) <= 0
    chromium.get("about:blank")
    review.close()


@pytest.mark.parametrize("degrees", [20, 178])
def test_long_names_of_classes_stay_inside_the_angle_diagram(chromium, tmp_path, degrees):
    columns = made.rows_of(20)
    columns["target_angle"] = np.full(20, np.radians(degrees), np.float32)
    names = [f"{letter.upper()}NOTHER-LONG-NAME" for letter in "abcd"]
    review = served(made.save(tmp_path / "run", columns, classes=names))
    resize(chromium, 1280, 900)
    visit(chromium, review.url)
    around, *labels = boxes_of_labels(chromium, "svg.angles")
    beyond = [max(around[0] - left, right - around[1]) for left, right, *_ in labels]
    assert len(beyond) == 3
    assert max(beyond) <= 1
    chromium.get("about:blank")
    review.close()


@pytest.mark.parametrize("first", [2, 86, 150])
def test_labels_of_near_classes_do_not_cover_each_other(chromium, run, first):
    (run / "embeddings").mkdir()
    np.save(run / "embeddings" / "00000000.npy", np.tile(np.float32([1, 0]), (60, 1)))
    angles = np.radians(first + np.arange(5))
    weights = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    np.save(run / "embeddings" / "class_weights.npy", weights)
    review = served(run)
    resize(chromium, 1280, 900)
    visit(chromium, review.url)
    around, *labels = boxes_of_labels(chromium, "svg.angles")
    assert len(labels) == 6  # with that of the example itself
    for at, (left, right, top, bottom) in enumerate(labels):
        assert around[0] <= left < right <= around[1] + 1
        assert around[2] <= top < bottom <= around[3]
        for other in labels[:at]:
            apart = right <= other[0] or other[1] <= left
            assert apart or bottom <= other[2] + 3 or other[3] <= top + 3
    chromium.get("about:blank")
    review.close()


def test_an_example_without_a_label_has_nothing_to_keep(chromium, tmp_path):
    columns = made.rows_of(20)
    columns["label"] = np.full(20, -1)
    review = served(made.save(tmp_path / "run", columns))
    resize(chromium, 1280, 900)
    visit(chromium, review.url)
    first = shown(chromium)
    assert "keep" not in text(chromium, "#main .actions")
    press(chromium, "k")
    notice(chromium, "has no label to keep. Choose a class")
    assert act(chromium, "1") != first
    press(chromium, "g")
    until(chromium, lambda d: "cannot tell" in text(d, "#main"))
    assert "keep labels" not in text(chromium, "#main")
    assert review.decisions()["verdict"].tolist() == ["relabel"]
    assert console(chromium) == []
    chromium.get("about:blank")
    review.close()


def test_without_a_token_the_page_asks_for_it(chromium, run):
    review = served(run)
    chromium.get("about:blank")
    chromium.get(review.url.split("#")[0])
    chromium.execute_script("sessionStorage.clear()")
    chromium.refresh()
    until(chromium, lambda d: "token" in text(d, "main"))
    assert "ant" not in text(chromium, "main").split()
    press(chromium, review.url, Keys.ENTER)
    ready(chromium)
    chromium.get("about:blank")
    review.close()
    chromium.get_log("browser")


def test_nothing_is_asked_of_anybody_else(page):
    page.get_log("performance")  # forget what earlier tests did
    page.refresh()
    ready(page)
    messages = [json.loads(line["message"])["message"] for line in page.get_log("performance")]
    urls = {
        message["params"]["request"]["url"].split("#")[0].split("?")[0]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }
    ours = page.current_url.split("#")[0]
    others = {url for url in urls if url.startswith("http") and not url.startswith(ours)}
    assert others == set()
    assert f"{ours}api/start" in urls


def test_a_page_of_another_origin_cannot_decide(chromium, run, tmp_path):
    """The attack itself: a page elsewhere that knows the port and even the token."""
    import http.server

    review = served(run)
    code = (
        "const out = []; (async () => { for (const headers of ["
        "{'Content-Type': 'text/plain'}, {'Content-Type': 'application/json', "
        f"'X-Hardsight-Token': '{made.TOKEN}'" + "}]) { try { const r = await fetch('"
        + review.url.split("#")[0]
        + "api/decide', {method: 'POST', headers, body: JSON.stringify({index: 18, action: 'keep',"
        " base: 0, reviewer: 'eve'})}); out.push(r.status) } catch (e) { out.push('blocked') } }"
        " document.title = JSON.stringify(out) })()"
    )  # fmt: skip
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "index.html").write_text(f"<script>{code}</script>")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "evil"))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as evil:
        threading.Thread(target=evil.serve_forever, daemon=True).start()
        chromium.get(f"http://127.0.0.1:{evil.server_port}/index.html")
        until(chromium, lambda d: d.title == '["blocked","blocked"]')
        evil.shutdown()
    assert decisions(run).empty
    chromium.get("about:blank")
    review.close()
    chromium.get_log("browser")


def test_maps_are_asked_for_by_a_key_and_no_answer_is_waited_for(page):
    ready(page)
    assert "where the model looked" in text(page, ".panel .ask")
    press(page, "m")
    until(page, lambda d: "No Grad-CAM map: the data cannot be opened" in text(d, ".cam"))
    act(page, "k")
    until(page, lambda d: "No Grad-CAM map" in text(d, ".cam"))
    press(page, "m")
    until(page, lambda d: not text(d, ".cam"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_and_can_be_used_by_everybody(page, scheme, width):
    ready(page)
    colours(page, scheme)
    resize(page, width, 844)
    act(page, "k")
    for key, heading in (("q", "Queue"), ("g", "Grid"), ("d", "Dashboard")):
        press(page, key)
        until(page, lambda d, heading=heading: text(d, "h1") == heading)
        if key == "q":
            ready(page)
        over = page.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert over <= 0, heading
        assert complaints(page) == [], heading
    colours(page, "light")


def test_every_dialog_can_be_used_by_everybody(page):
    ready(page)
    for open_it in ("?", "/", "#reviewer"):
        if open_it.startswith("#"):
            find(page, open_it).click()
        else:
            press(page, open_it)
        until(page, lambda d: d.find_elements(By.CSS_SELECTOR, "dialog[open]"))
        assert complaints(page) == [], open_it
        press(page, Keys.ESCAPE)
        until(page, lambda d: not d.find_elements(By.CSS_SELECTOR, "dialog[open]"))


def test_the_check_of_pages_can_fail(page):
    ready(page)
    page.execute_script(
        "const b = document.createElement('button'); document.querySelector('main').append(b);"
        "const p = document.createElement('p'); p.textContent = 'pale'; p.style.color = '#ccc';"
        "document.querySelector('main').append(p)"
    )
    rules = {one.partition(":")[0] for one in complaints(page)}
    assert {"button-name", "color-contrast"} <= rules
