"""Suspects on the page: group, suggestion, reason and share, as the table has them."""

import html
import re

import numpy as np
import pytest

from hardsight.gallery import gallery_rows
from hardsight.report import write_report
from hardsight.suspects import suspects_of
from hardsight.table import read_table
from tests.suspects import made

HOSTILE = "<b>bee</b>"


@pytest.fixture(scope="module")
def written(make, tmp_path_factory):
    table, _ = made.noisy_pass(1500, 0.1, seed=6)
    table.metadata["classes"] = ["ant", HOSTILE, "cat", "dog"]
    again = make.table({name: table.column(name) for name in table.columns}, table.metadata)
    folder = tmp_path_factory.mktemp("suspects")
    make.save(folder, again)
    return folder


def cards_of(page):
    cards = page.text.split('<ol class="cards" data-strip="suspects">')[1].split("</ol>")[0]
    return re.split(r'<li class="card', cards)[1:]


def test_the_cards_of_suspects_say_what_the_table_says(make, written):
    page = make.page(write_report(written, overwrite=True))
    found = suspects_of(read_table(written))
    cards = cards_of(page)
    assert len(cards) == 24
    for card, row in zip(cards, found.order.tolist(), strict=False):
        text = html.unescape(re.sub(r"<(?!b>bee|/b>)[^>]*>", "", card))
        assert found.groups[found.group[row]] in text
        assert found.reason(row) in text
        assert f"about {round(10 * float(found.error_share[row]))} of 10 wrong here" in text
    value, detail = page.fact("Wrong labels")
    assert value == f"about {round(float(found.error_share.sum()))}"
    assert "estimated" in detail


def test_names_of_classes_never_become_markup(make, written):
    page = make.page(write_report(written, overwrite=True))
    assert HOSTILE not in page.part("examples")
    assert html.escape(HOSTILE) in page.part("examples")


def test_clean_data_has_few_suspects_or_none(make, tmp_path):
    table, _ = made.noisy_pass(1500, 0.0, seed=6)
    found = suspects_of(table)
    shown = gallery_rows(table).suspects
    assert (found.error_share[shown] >= 0.1).all()
    assert len(shown) < 24


def test_suspects_take_their_part_of_the_budget():
    table, _ = made.noisy_pass(1500, 0.2, seed=1)
    for budget in (1, 2, 5, 40, 600):
        gallery = gallery_rows(table, budget=budget)
        assert len(gallery.indices()) <= budget
        first = suspects_of(table).order[: len(gallery.suspects)]
        np.testing.assert_array_equal(gallery.suspects, first)
    assert len(gallery.suspects) == 24


def test_a_tracked_run_that_held_nothing_out_shows_no_share(make, tracked):
    page = make.page(write_report(tracked, overwrite=True))
    found = suspects_of(read_table(tracked))
    for card, row in zip(cards_of(page)[:10], found.order.tolist(), strict=False):
        assert found.groups[found.group[row]] in card
        assert "of 10 wrong here" not in card  # nothing was held out
