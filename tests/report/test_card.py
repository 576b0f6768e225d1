"""The card as a page: complete, explained, harmless, and seen in a real browser."""

import copy
import json
import re

import numpy as np
import pytest
from selenium.webdriver.common.by import By

from hardsight.errors import DataError, MissingDataError, OptionError, OutputError
from hardsight.report import write_card
from tests._browser import (
    accessible,
    colours,
    console,
    print_faults,
    resize,
    widths_of_pictures,
)

PARTS = ("summary", "comparison", "accuracy", "margins", "ood", "calibration", "refusal",
         "robustness", "representation", "explanation", "definitions", "run")  # fmt: skip


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    """Two untrained models on 60 digits and some noise; the page does not mind bad models."""
    from hardsight.data import open_source
    from hardsight.models import SmallCNN
    from hardsight.run.evaluate import evaluation_card

    folder = tmp_path_factory.mktemp("card")
    source = open_source("builtin:digits", split="test")
    images = np.stack([np.asarray(source[i].content) for i in range(60)])
    labels = np.array([source.label_of(i) for i in range(60)])
    np.savez(folder / "digits.npz", images=images, labels=labels)
    noise = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    np.savez(folder / "noise.npz", images=noise, labels=np.arange(30) % 2)
    models = {"first": SmallCNN(seed=0), "second": SmallCNN(seed=1, embedding_width=3)}
    return evaluation_card(
        models, folder / "digits.npz", ood=[folder / "noise.npz"], mean=(0.0,), std=(1.0,),
        epsilons=(0.05,), epsilons_l2=(0.5,), attack_steps=2, attack_examples=12,
        explain_examples=4, map_examples=40, device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(card, tmp_path_factory):
    return write_card(card, out=tmp_path_factory.mktemp("page"))


@pytest.fixture
def browser(chromium, page):
    resize(chromium, 1280)
    colours(chromium, "light")
    console(chromium)
    chromium.get("about:blank")
    chromium.get(page.as_uri())
    chromium.execute_script("localStorage.clear()")
    yield chromium
    chromium.execute_script("localStorage.clear()")
    assert console(chromium) == []


def overflow(driver):
    return driver.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def test_every_link_to_a_definition_leads_to_one(page, card):
    text = page.read_text("utf-8")
    links = set(re.findall(r'href="#def-([^"]+)"', text))
    homes = set(re.findall(r'id="def-([^"]+)"', text))
    assert len(links) > 25
    assert links <= homes == set(card["definitions"])


def test_every_indicator_is_on_the_page(page, card):
    from hardsight.evaluate import INDICATORS

    titles = re.findall("Accepted, ([^<]+)", page.read_text("utf-8"))
    wanted = [card["definitions"][name]["title"].lower() for name in INDICATORS]
    assert [title.strip() for title in titles] == wanted


def test_a_file_a_folder_and_values_make_the_same_page(card, page, tmp_path):
    (tmp_path / "card.json").write_text(json.dumps(card))
    for given in (tmp_path, tmp_path / "card.json"):
        assert write_card(given) == tmp_path / "card.html"
        assert (tmp_path / "card.html").read_bytes() == page.read_bytes()
    named = write_card(card, out=tmp_path / "other.html", title="My models")
    assert "<title>My models · hardsight evaluation card</title>" in named.read_text()


def test_shares_are_percentages_in_the_comparison_as_everywhere(card, page):
    (comparison,) = card["comparisons"]
    row = next(row for row in comparison["rows"] if row["key"] == "top1")
    text = page.read_text("utf-8")
    table = text[text.index('id="comparison"') :].split("</tr>")[1]
    assert f"{100 * row['first']:.1f}%" in table
    assert f"{100 * row['second']:.1f}%" in table
    assert " points" in table


def test_one_model_without_extras_has_notes_in_place_of_parts(card, tmp_path):
    bare = copy.deepcopy(card)
    bare["models"], bare["comparisons"] = bare["models"][:1], []
    bare["ood"], bare["explanations"] = [], []
    bare["models"][0].update(
        ood=[], robustness={"note": "no normalisation"}, explanation={"note": "no convolution"},
        calibration={"note": "too few"},
    )  # fmt: skip
    text = write_card(bare, out=tmp_path / "bare.html").read_text()
    for word in ("No foreign data was named", "no normalisation", "no convolution", "too few"):
        assert word in text
    assert 'id="comparison"' not in text


def test_an_indicator_without_a_finite_value_is_not_called_constant(card, tmp_path):
    before = write_card(card, out=tmp_path / "before.html").read_text()
    changed = copy.deepcopy(card)
    note = "no foreign example has a finite output"
    changed["models"][0]["ood"][0]["avc"] = {"note": note}
    text = write_card(changed, out=tmp_path / "card.html").read_text()
    assert f"–<small class=why>{note}</small>" in text
    assert text.count("constant<small") == before.count("constant<small")


def test_a_constant_indicator_is_named_as_such(card, tmp_path):
    flat = copy.deepcopy(card)
    flat["models"][1]["ood"][0]["avc"] = {"note": "all values equal"}
    text = write_card(flat, out=tmp_path / "flat.html").read_text()
    assert text.count("all values equal") == 4


def test_hostile_names_stay_text(card, tmp_path):
    evil = copy.deepcopy(card)
    evil["models"][0]["name"] = "<script>alert(1)</script>"
    evil["data"]["classes"][0] = '"><img src=x onerror=alert(1)>'
    text = write_card(evil, out=tmp_path / "evil.html").read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text


def test_bad_input_says_what_was_expected(card, tmp_path):
    with pytest.raises(MissingDataError, match=r"expected an evaluation card at .*nowhere"):
        write_card(tmp_path / "nowhere")
    (tmp_path / "card.json").write_text("{")
    with pytest.raises(DataError, match=r"card.json is not an evaluation card: Expecting"):
        write_card(tmp_path)
    with pytest.raises(DataError, match="is not an evaluation card; make one with"):
        write_card({"format": 1})
    with pytest.raises(DataError, match="has format 99, but this version reads 1"):
        write_card({**card, "format": 99})
    with pytest.raises(OptionError, match=r"pass out='card.html'"):
        write_card(card)
    with pytest.raises(OutputError, match="cannot write the report"):
        write_card(card, out=tmp_path / "card.json" / "x.html")


def test_every_part_is_visible_in_the_browser(browser):
    for part in PARTS:
        assert browser.find_element(By.CSS_SELECTOR, f"#{part} :is(h1, h2)").is_displayed()
    drawn = widths_of_pictures(browser)
    assert set(drawn) == {96}
    assert len(drawn) == 4 * 3  # an image and two maps for each example


def rows_without_definition(driver):
    return driver.execute_script("""
        return [...document.querySelectorAll("table.numbers tbody tr")].filter((row) => {
          if (row.querySelector(".def")) return false;
          const heading = row.closest(".scroll").previousElementSibling;
          return !(heading?.matches("h2, h3") && heading.querySelector(".def"));
        }).map((row) => row.textContent)""")


def test_a_number_without_definition_would_be_noticed(browser):
    browser.execute_script("""
        const link = document.querySelector("#calibration tbody .def");
        link.replaceWith(link.textContent)""")
    assert [text[:3] for text in rows_without_definition(browser)] == ["ECE"]


def test_every_number_has_its_definition_one_click_away(browser):
    assert rows_without_definition(browser) == []
    link = browser.find_element(By.CSS_SELECTOR, '#calibration a[href="#def-ece"]')
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    link.click()
    shown = browser.execute_script("""
        const box = document.querySelector("#def-ece").getBoundingClientRect();
        return box.top >= 0 && box.bottom <= innerHeight""")
    assert shown
    assert "mean gap of confidence" in browser.find_element(By.ID, "def-ece").text


def test_every_search_for_masked_gradients_leads_to_what_it_is_for(browser):
    names = browser.find_elements(By.CSS_SELECTOR, '#robustness tbody th[scope="row"]')
    links = browser.find_elements(By.CSS_SELECTOR, '#robustness tbody th[scope="row"] > .def')
    assert len(names) == len(links) == 2 * 8  # PGD, six searches and the worst, of two models


def test_why_an_indicator_is_constant_can_be_read_without_scrolling_sideways(
    browser, card, tmp_path
):
    flat = copy.deepcopy(card)
    why = (
        "all 900 values of the indicator are equal (-0.1), so it tells nothing apart; check that "
        "the model's outputs differ between examples"
    )
    for model in flat["models"]:
        model["ood"][0] = {name: {"note": why, "is_constant": True} for name in model["ood"][0]}
    browser.get(write_card(flat, out=tmp_path / "flat.html").as_uri())
    hidden = browser.execute_script("""
        const box = document.querySelector("#ood .scroll");
        return box.scrollWidth - box.clientWidth""")
    assert hidden <= 0


def test_the_theme_button_works_and_dark_is_dark(browser):
    def background():
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = background()
    browser.find_element(By.ID, "theme").click()
    assert background() != light
    colours(browser, "dark")
    assert browser.find_element(By.ID, "theme").get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_screen_does_not_scroll_sideways(browser, width):
    resize(browser, width)
    assert overflow(browser) <= 0


def test_a_card_is_for_screen_readers_and_for_paper(browser):
    assert accessible(browser) == []
    assert print_faults(browser) == []
