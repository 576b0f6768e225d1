"""The page in a real browser: what a person sees, clicks and types."""

import json
import re

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from hardsight.report import write_report
from tests._browser import accessible, colours, console, print_faults, resize

PARTS = ("summary", "examples", "classes", "class-examples", "map", "distributions", "scores",
         "unusable", "run")  # fmt: skip


@pytest.fixture(scope="module")
def page(run):
    return write_report(run).as_uri()


@pytest.fixture
def browser(chromium, page):
    resize(chromium, 1280, 900)
    colours(chromium, "light")
    visit(chromium, page)
    yield chromium
    assert console(chromium) == []


def visit(driver, address):
    driver.get("about:blank")  # so that the same address with another fragment loads afresh
    driver.get(address)
    driver.execute_script("try { localStorage.clear() } catch {}")
    if driver.execute_script("return document.documentElement.dataset.theme"):
        driver.get("about:blank")
        driver.get(address)


def requests(driver):
    messages = [json.loads(line["message"])["message"] for line in driver.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    # the browser's own start page is no doing of ours
    return [url for url in urls if not url.startswith(("chrome:", "data:", "about:"))]


def find(driver, selector):
    return driver.find_element(By.CSS_SELECTOR, selector)


def find_all(driver, selector):
    return driver.find_elements(By.CSS_SELECTOR, selector)


def background(driver):
    return driver.execute_script("return getComputedStyle(document.body).backgroundColor")


def overflow(driver):
    return driver.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def first_column(driver, column):
    cells = find_all(driver, f"#class-table tbody tr > :nth-child({column})")
    return [cell.get_attribute("data-v") for cell in cells]


def test_every_part_is_visible_and_nothing_is_requested(chromium, page):
    requests(chromium)  # forget what earlier tests did
    visit(chromium, page)
    for part in PARTS:
        assert find(chromium, f"#{part} :is(h1, h2)").is_displayed()
    assert set(requests(chromium)) == {page}
    assert console(chromium) == []


def test_the_request_probe_can_fail(chromium, tmp_path):
    (tmp_path / "leaky.html").write_text('<img src="other.png">')
    requests(chromium)
    chromium.get((tmp_path / "leaky.html").as_uri())
    assert [url for url in requests(chromium) if url.endswith("other.png")]
    console(chromium)


def test_an_injected_script_is_stopped_by_the_page_itself(chromium, page, run, tmp_path):
    text = (run / "report.html").read_text("utf-8")
    text = text.replace("</footer>", "</footer><script>document.title = 'owned'</script>")
    (tmp_path / "injected.html").write_text(text, "utf-8")
    chromium.get((tmp_path / "injected.html").as_uri())
    assert chromium.title != "owned"
    assert any("Content Security Policy" in line for line in console(chromium))


def test_headings_sort_the_classes_by_mouse_and_by_keyboard(browser):
    means = [float(value) for value in first_column(browser, 4)]
    assert means == sorted(means, reverse=True)
    examples = find(browser, "#class-table th:nth-child(2) button")
    examples.click()
    heading = find(browser, "#class-table thead th:nth-child(2)")
    assert heading.get_attribute("aria-sort") == "descending"
    counts = [int(value) for value in first_column(browser, 2)]
    assert counts == sorted(counts, reverse=True)
    examples.send_keys(Keys.ENTER)
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [int(value) for value in first_column(browser, 2)] == sorted(counts)
    assert len(find_all(browser, "#class-table [aria-sort]")) == 1
    find(browser, "#class-table th:first-child button").send_keys(Keys.SPACE)
    assert first_column(browser, 1) == [f"kind {i}" for i in range(10)]


def test_the_theme_follows_the_system_until_the_button_is_used(browser):
    light = background(browser)
    colours(browser, "dark")
    dark = background(browser)
    assert dark != light
    button = find(browser, "#theme")
    assert button.get_attribute("aria-pressed") == "true"
    button.send_keys(Keys.ENTER)
    assert background(browser) == light
    assert button.get_attribute("aria-pressed") == "false"
    browser.refresh()
    assert background(browser) == light  # remembered


def test_the_picker_shows_one_class_at_a_time(browser):
    def shown():
        panels = find_all(browser, ".panel")
        return [one.get_attribute("aria-label") for one in panels if one.is_displayed()]

    picker = Select(find(browser, "#class-picker"))
    names = [option.text for option in picker.options]
    assert shown() == names[:1]
    picker.select_by_visible_text(names[4])
    assert shown() == [names[4]]
    find(browser, '[data-pick="1"]').click()
    assert shown() == [names[5]]
    assert find(browser, ".panel.current .card").is_displayed()


def test_a_class_in_the_table_leads_to_its_examples(browser):
    link = find(browser, "#class-table tbody tr:nth-child(3) a")
    name = link.text
    link.send_keys(Keys.ENTER)
    WebDriverWait(browser, 30).until(
        lambda _: find(browser, ".panel.current").get_attribute("aria-label") == name
    )


def test_an_address_with_a_class_opens_that_class(chromium, page):
    visit(chromium, f"{page}#class-7")
    assert find(chromium, ".panel.current").get_attribute("id") == "class-7"


def test_every_picture_of_the_page_is_drawn(browser):
    drawn = browser.execute_script(
        "for (const img of document.images) img.loading = 'eager';"
        "return Promise.all([...document.images].map(img => img.decode())).then("
        "() => [...document.images].map(img => img.naturalWidth))"
    )
    assert len(drawn) > 100
    assert set(drawn) == {16}
    assert all(img.get_attribute("alt") for img in find_all(browser, ".cards img")[:20])


def test_a_picture_opens_with_all_its_numbers_and_steps_to_the_next(browser):
    find_all(browser, "#examples .open")[0].send_keys(Keys.ENTER)
    dialog = find(browser, "#enlarged")
    assert dialog.is_displayed()
    name = find(dialog, "h2").text
    assert name.startswith("class-")
    assert len(find_all(dialog, "dl div")) == 9
    assert "Angle to own class" in dialog.text
    dialog.send_keys(Keys.ARROW_RIGHT)
    assert find(dialog, "h2").text != name
    dialog.send_keys(Keys.ESCAPE)
    assert not dialog.is_displayed()


def test_points_of_the_map_are_reached_by_keyboard(browser):
    ActionChains(browser).move_to_element(find(browser, "#theme")).perform()  # not over a point
    browser.execute_script("arguments[0].focus()", find(browser, ".points"))
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    tip = find(browser, "#tip")
    assert tip.is_displayed()
    name = find(tip, ".id").text
    assert name.startswith("class-")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert find(browser, "#enlarged h2").text == name


def test_the_skip_link_is_the_first_stop(browser):
    find(browser, "body").send_keys(Keys.TAB)
    link = browser.switch_to.active_element
    assert link.text == "Skip to the report"
    link.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"


@pytest.mark.parametrize("width", [360, 390, 768])
def test_a_narrow_screen_does_not_scroll_sideways(browser, width):
    resize(browser, width, 844)
    assert overflow(browser) <= 0


def test_many_long_and_hostile_names_do_no_harm(chromium, make, tmp_path):
    names = [f"{i} " + ("<b onmouseover=alert(1)>עברית</b>" * 4 + "x" * 90) for i in range(300)]
    columns = make.rows(3000, 300)
    columns["id"] = [f"{i}-{'long' * 60}<script>alert(1)</script>.png" for i in range(3000)]
    about = make.metadata(columns, 300, classes=names, data={"spec": "y" * 300})
    folder = make.save(tmp_path, make.table(columns, about), errors=[(1, "z" * 300, "w" * 300)])
    resize(chromium, 390, 844)
    visit(chromium, write_report(folder).as_uri())
    assert overflow(chromium) <= 0
    assert console(chromium) == []
    assert find_all(chromium, "b[onmouseover]") == []
    find(chromium, "#class-filter").send_keys("299 ")
    visible = chromium.execute_script(
        "return document.querySelectorAll('#class-table tbody tr:not([hidden])').length"
    )
    assert visible == 1
    assert find(chromium, "#class-count").text == "1 of 300 classes"


@pytest.fixture
def dynamics(chromium, tracked):
    resize(chromium, 1280, 900)
    colours(chromium, "light")
    visit(chromium, write_report(tracked).as_uri())
    yield chromium
    assert console(chromium) == []


def test_training_dynamics_are_drawn_and_reached_from_the_top(dynamics):
    link = find(dynamics, "nav a[href='#dynamics']")
    assert link.text == "Training"
    for selector in ("#dynamics .map", "#dynamics .learned svg", "#dynamics .curves svg"):
        box = find(dynamics, selector).size
        assert box["width"] > 60
        assert box["height"] > 30
    assert len(find_all(dynamics, "#dynamics .curves li")) == 24
    widths = dynamics.execute_script(
        "return [...document.querySelectorAll('#dynamics img')].map(img => img.naturalWidth)"
    )
    assert set(widths) == {16}


def test_points_of_the_data_map_open_like_those_of_the_other_map(dynamics):
    ActionChains(dynamics).move_to_element(find(dynamics, "#theme")).perform()
    for layer in find_all(dynamics, ".points"):
        dynamics.execute_script("arguments[0].focus()", layer)
        dynamics.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        name = find(dynamics, "#tip .id").text
        dynamics.switch_to.active_element.send_keys(Keys.ENTER)
        assert find(dynamics, "#enlarged h2").text == name
        find(dynamics, "#enlarged").send_keys(Keys.ESCAPE)
    assert len(find_all(dynamics, ".points")) == 2


@pytest.mark.parametrize("width", [360, 390, 768])
def test_dynamics_on_a_narrow_screen_do_not_scroll_sideways(dynamics, width):
    resize(dynamics, width, 844)
    assert overflow(dynamics) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_curves_and_bars_stand_out_from_their_ground(dynamics, scheme):
    colours(dynamics, scheme)
    pairs = {
        "#dynamics .curves .line": "stroke",
        "#dynamics .curves circle": "fill",
        "#dynamics .learned .bars rect": "fill",
    }
    for selector, part in pairs.items():
        ink, ground = dynamics.execute_script(
            "const e = document.querySelector(arguments[0]);"
            "return [getComputedStyle(e)[arguments[1]], getComputedStyle(document.body)"
            ".backgroundColor]",
            selector, part,
        )  # fmt: skip
        assert contrast(ink, ground) >= 3, selector


def contrast(one, other):
    """WCAG contrast of two ``rgb(...)`` colours."""

    def light(colour):
        parts = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_report_is_for_screen_readers_and_for_paper(browser):
    assert accessible(browser) == []
    assert print_faults(browser) == []


def test_the_checks_of_a_page_can_fail(chromium, tmp_path):
    (tmp_path / "bad.html").write_text(
        "<!doctype html><html lang=en><title>bad</title><main><h1>Bad</h1><h2>A heading</h2>"
        "<style>@media (prefers-color-scheme: dark) { body { background: #222 } }</style>"
        "<img src='x.gif'><table style='width: 3000px'><tr><td>1</table></main>"
    )
    chromium.get((tmp_path / "bad.html").as_uri())
    found = accessible(chromium)
    assert any(one.startswith("image-alt") for one in found)
    assert any(one.startswith("dark: color-contrast") for one in found)
    faults = [one[:13] for one in print_faults(chromium)]
    assert faults == ["not white", "headings", "too wide: <ta"]
    console(chromium)


def test_dynamics_are_for_paper(dynamics):
    assert print_faults(dynamics) == []
