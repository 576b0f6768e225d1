"""The report of a table of tokens: hard words in their sentences, and the hardest words of all."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

from hardsight import write_report
from hardsight.table import ScoreTable, with_metadata

NAMES = ["A", " dog", " bark", "s", ".", " cat"]
ABOUT = {"classes": NAMES, "scores": {"avh": {"higher_is_harder": True}}, "data": {"spec": "x.txt"}}


def tokens(sentences, hardness, given=None, position=1):
    """A table of sentences, each a list of tokens by name."""
    names = [name for sentence in sentences for name in sentence]
    labels = [NAMES.index(name) for name in names]
    given = given or ["A"] * len(sentences)
    first = [
        text for at, one in enumerate(sentences) for text in [given[at], *[None] * (len(one) - 1)]
    ]
    rows = pa.table({
        "index": np.arange(len(names)),
        "id": [str(row) for row in range(len(names))],
        "label": labels,
        "prediction": [0] * len(names),
        "finite": [value == value for value in hardness],
        "avh": hardness,
        "sentence": [at for at, one in enumerate(sentences) for _ in one],
        "position": [position + step for one in sentences for step in range(len(one))],
        "token": names,
        "given": pa.array(first, pa.string()),
    })  # fmt: skip
    return ScoreTable(with_metadata(rows, ABOUT))


def page_of(tmp_path, table):
    return write_report(table, out=tmp_path / "report.html").read_text(encoding="utf-8")


def words_of(html):
    body = html.partition('id="word-table"')[2].partition("</table>")[0]
    cells = re.findall(r'<th scope="row"><bdi>(.*?)</bdi></th>(.*?)</tr>', body)
    return {word: re.findall(r">([^<>]+)</td>", rest) for word, rest in cells}


def test_a_word_of_several_tokens_is_as_hard_as_its_hardest_one(tmp_path):
    sentences = [[" dog", " bark", "s", "."], [" cat", " bark", "s", "."]]
    html = page_of(tmp_path, tokens(sentences, [0.1, 0.2, 0.6, 0.0, 0.3, 0.4, 0.1, 0.0]))
    words = words_of(html)
    assert list(words) == ["barks", "cat", "dog", "."]
    assert words["barks"] == ["2", "0.5", "0%", "0"]
    assert words["dog"][:2] == ["1", "0.1"]


def test_the_hardest_sentence_comes_first_with_its_hardest_token_darkest(tmp_path):
    sentences = [[" dog", " bark", "s", "."], [" cat", " bark", "s", "."]]
    html = page_of(tmp_path, tokens(sentences, [0.1, 0.1, 0.1, 0.0, 0.3, 0.9, 0.1, 0.0]))
    shown = re.findall(r"<p class=\"aside\">Sentence (\d+)", html)
    assert shown == ["1", "0"]
    assert re.findall(r'<mark class="hard4" title="([^"]*)">(.*?)</mark>', html) == [
        ("AVH 0.9, predicted instead: A", "bark")
    ]


def test_what_the_model_was_given_is_shown_and_is_not_a_hard_word(tmp_path):
    table = tokens([["s", " dog", "."]], [0.9, 0.1, 0.0], given=["Hors"])
    html = page_of(tmp_path, table)
    assert '<span class="given" title="given to the model">Hors</span>' in html
    assert next(iter(words_of(html))) == "Horss"  # a word that goes on has the part it began with
    html = page_of(
        tmp_path / "b", tokens([[" dog", "."]], [0.1, 0.2], given=["Ein Hund."], position=0)
    )
    assert '<p class="aside"><bdi>Ein Hund.</bdi></p>' in html


def test_rows_that_are_not_finite_mark_nothing(tmp_path):
    html = page_of(tmp_path, tokens([[" dog", " cat", "."]], [float("nan"), 0.2, 0.1]))
    assert "nan" not in html.partition('id="sentences"')[2].partition("</section>")[0].lower()
    assert list(words_of(html)) == ["cat", "."]


def test_names_of_a_vocabulary_are_not_all_of_the_page(tmp_path):
    table = tokens([[" dog", " cat", "."]], [0.3, 0.2, 0.1])
    names = [*NAMES, *(f"word-{n}" for n in range(30_000))]
    table.metadata["classes"] = names
    html = page_of(tmp_path, table)
    assert "word-29999" not in html
    assert "more: see the table" in html


def test_text_in_a_token_is_not_markup(tmp_path):
    table = tokens([[" dog", " cat", "."]], [0.3, 0.2, 0.1], given=["<script>alert(1)</script>"])
    assert "<script>alert(1)" not in page_of(tmp_path, table)


def test_other_tables_have_no_sentences(tmp_path):
    rows = pa.table({"index": [0], "label": [0], "prediction": [0], "avh": [0.5]})
    assert 'id="sentences"' not in page_of(tmp_path, ScoreTable(with_metadata(rows, ABOUT)))


@pytest.mark.parametrize("count", [1, 2])
def test_a_table_of_one_short_sentence_has_a_page(tmp_path, count):
    html = page_of(tmp_path, tokens([[" dog"]] * count, [0.5] * count))
    assert 'id="sentences"' in html


def test_what_was_cut_passed_over_or_not_known_is_said(tmp_path):
    table = tokens([[" dog", " cat", "."]] * 4, [0.3, 0.2, 0.1] * 4)
    table.metadata["data"] = {"spec": "x.txt", "sentences": 4}
    table.metadata["counts"] = {
        "truncated": 2, "unknown": 3, "passed_over": {"empty sentences": 5},
    }  # fmt: skip
    html = page_of(tmp_path, table)
    assert "2 of 4 sentences are longer than the model can read. The rest was cut off" in html
    assert "3 of 12 tokens are not in the vocabulary" in html
    assert "Left out: empty sentences (5)." in html
    assert "<dt>Tokens</dt>" in html
    assert "of 4 sentences" in html
