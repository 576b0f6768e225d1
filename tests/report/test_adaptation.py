"""The page of an adaptation: complete, harmless, and seen in a real browser."""

import copy
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from selenium.webdriver.common.by import By

from hardsight.errors import DataError, MissingDataError
from hardsight.report import write_adaptation
from tests._browser import accessible, console, print_faults, resize, widths_of_pictures

PARTS = ("summary", "accuracy", "rounds", "classes", "examples", "run")
CLASSES = ["cat", "dog", "<b onmouseover=alert(1)>owl</b>"]


def evaluation(accuracy):
    return {
        "accuracy": accuracy, "mean_class_accuracy": accuracy - 0.01,
        "class_accuracy": [accuracy, None, 0.5], "class_examples": [5, 0, 5], "examples": 10,
    }  # fmt: skip


def record(rule, number, accuracy):
    return {
        "round": number, "rule": rule, "portion": 0.2, "thresholds": [1, 1, 1],
        "quality": {
            "examples": 10, "selected": 4, "mean_confidence": 0.9, "mean_avh": 0.03,
            "mean_avc": 0.4, "mean_norm": 12.0, "counts": [2, 2, 0], "right": [2, 1, 0],
            "true_positive_rate": {"value": 0.75, "low": 0.3, "high": 0.95, "n": 4},
        },
        "never_predicted": ["dog"] if number == 1 else [], "too_rarely_predicted": ["cat"],
        "compared": {"with": "cbst", "both": 3, "only_rule": 1, "only_rule_right": 1,
                     "only_other": 1, "only_other_right": 0},
        "evaluation": evaluation(accuracy),
    }  # fmt: skip


RESULT = {
    "format": 1, "classes": CLASSES, "config": {"source": {"split": "photo"}, "target": {}},
    "source": {"spec": "pacs", "examples": 20},
    "target": {"spec": "street/", "examples": 10, "labelled": True},
    "runs": {
        "cbst+avh": {
            "rounds": [{"round": 0, "evaluation": evaluation(0.4)},
                       record("cbst+avh", 1, 0.5), record("cbst+avh", 2, 0.6)],
            "stopped": "stopped in round 3: no target example passed",
        },
        "source-only": {"rounds": [{"round": 0, "evaluation": evaluation(0.4)}], "stopped": None},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, make):
    folder = tmp_path_factory.mktemp("adapted")
    (folder / "result.json").write_text(json.dumps(RESULT))
    rows = [
        {"index": at, "id": f"{at}<script>.png", "selected_by": rule, "not_by": other, "label": at,
         "true_label": 0, "probability": 0.9, "avc": 0.5, "thumbnail": make.png(at, at)}
        for at, rule, other in ((0, "cbst+avh", "cbst"), (1, "cbst", "cbst+avh"))
    ]  # fmt: skip
    for number in (1, 2):
        place = folder / "cbst+avh" / f"round-{number:02d}"
        place.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), place / "examples.parquet")
    return folder


@pytest.fixture
def browser(chromium, run):
    resize(chromium, 1280)
    console(chromium)
    chromium.get(write_adaptation(run).as_uri())
    yield chromium
    assert console(chromium) == []


def test_every_part_is_visible_and_every_picture_is_drawn(browser):
    for part in PARTS:
        assert browser.find_element(By.CSS_SELECTOR, f"#{part} :is(h1, h2)").is_displayed()
    assert widths_of_pictures(browser) == [16] * 4
    assert len(browser.find_elements(By.CSS_SELECTOR, "#accuracy circle")) == 4
    assert "is cat" in browser.find_element(By.CSS_SELECTOR, "#examples .card.wrong").text
    summary = browser.find_element(By.ID, "summary").text
    assert "75.0%" in summary
    assert "60.0%" in summary
    assert "stopped in round 3" in summary
    assert "1 class never predicted" in summary


def test_what_is_said_below_a_picture_stays_within_its_card(browser):
    below = browser.execute_script(
        "return [...document.querySelectorAll('.card')].map(card => "
        "card.querySelector('dl').getBoundingClientRect().bottom - "
        "card.getBoundingClientRect().bottom)"
    )
    assert len(below) == 4
    assert max(below) <= 1


def test_names_in_the_data_stay_text(browser):
    assert browser.find_elements(By.CSS_SELECTOR, "b[onmouseover]") == []
    assert browser.find_elements(By.CSS_SELECTOR, "main script") == []


@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_screen_does_not_scroll_sideways(browser, width):
    resize(browser, width)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(f"return {wide}") <= 0


def test_the_button_changes_the_theme(browser):
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(colour)
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script(colour) != before
    browser.execute_script("localStorage.clear()")


def test_a_target_without_labels_has_a_page_without_accuracy(tmp_path):
    plain = copy.deepcopy(RESULT)
    plain["target"]["labelled"] = False
    for one in plain["runs"].values():
        for each in one["rounds"]:
            each["evaluation"] = None
            if "quality" in each:
                each["quality"] |= {"true_positive_rate": None, "right": None}
                del each["compared"]["only_rule_right"], each["compared"]["only_other_right"]
    (tmp_path / "result.json").write_text(json.dumps(plain))
    text = write_adaptation(tmp_path, out=tmp_path / "page.html", title="mine").read_text("utf-8")
    assert "The target has no labels" in text
    assert 'id="classes"' not in text
    assert 'id="accuracy"' not in text
    assert "<title>mine" in text


def test_the_chart_reaches_from_the_lowest_to_the_highest_accuracy(run, make, tmp_path):
    chart = make.page(write_adaptation(run, out=tmp_path / "page.html")).part("accuracy")
    first = chart.split('<g class="series')[1].split("</g>")[0]
    places = [float(y) for y in re.findall(r'cy="(.*?)"', first)]
    np.testing.assert_allclose(places, [196, 104, 12], atol=0.2)
    rounds = re.findall(r'y="214" text-anchor="middle">(.*?)</text>', chart)
    assert rounds == ["0", "1", "2"]
    assert "cbst+avh 60.0%" in re.search(r'aria-label="(.*?)"', chart.split("<svg")[1])[1]


def test_what_is_no_adaptation_is_refused(tmp_path):
    with pytest.raises(MissingDataError, match="expected a finished adaptation at"):
        write_adaptation(tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(DataError, match="is not a finished adaptation: "):
        write_adaptation(tmp_path)
    (tmp_path / "result.json").write_text('{"history": []}')
    with pytest.raises(DataError, match="is not a finished adaptation; make one"):
        write_adaptation(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({**RESULT, "format": 2}))
    with pytest.raises(DataError, match="has format 2, but this version reads 1"):
        write_adaptation(tmp_path)


def test_the_page_is_for_screen_readers_and_for_paper(browser):
    assert accessible(browser) == []
    assert print_faults(browser) == []
