"""Tables on a narrow terminal."""

from __future__ import annotations

import io

from rich.console import Console

from hardsight.cli._tables import print_table


def printed(title, columns, rows):
    console = Console(file=io.StringIO(), width=80)
    print_table(console, title, columns, rows)
    return console.file.getvalue()


def test_words_stay_whole_on_eighty_columns():
    columns = ("", "examples", "‖x‖", "AVH", "confidence", "accuracy", "what was seen")
    rows = [
        ("network", "people [0, 0.2)", "1.825 → 12.92", "0.08768 → 0.07503", "0.1244 → 0.7554",
         "0.314 → 0.9154", "the norm rose in 2 of 2 steps"),
    ]  # fmt: skip
    words = printed("Curves", columns, rows).split()
    for word in " ".join([*columns, *rows[0]]).split():
        assert word in words


def test_brackets_are_printed_as_they_are():
    said = printed("a [title]", ["[bold]"], [["-0.2 [-0.3, -0.1]"]])
    assert "a [title]" in said
    assert "[bold]" in said
    assert "[-0.3, -0.1]" in said


def test_columns_that_do_not_fit_follow_below_with_the_first_before_them():
    columns = ["example", *(f"a_long_name_of_column_{number}" for number in range(6))]
    said = printed("Wide", columns, [["cat", *(f"0.{number} [0, 1]" for number in range(6))]])
    assert max(map(len, said.splitlines())) <= 80
    parts = said.split("example")[1:]
    assert len(parts) == 3
    for place, part in enumerate(parts):
        assert "cat" in part.split()
        for number in range(6):
            assert (f"a_long_name_of_column_{number}" in part.split()) == (number // 2 == place)
            assert (f"0.{number}" in part.split()) == (number // 2 == place)


def test_nothing_is_cut_off_where_two_words_do_not_fit():
    columns = ["a" * 60, "b" * 60]
    said = printed("Wide", columns, [["c" * 60, "d" * 60]])
    assert max(map(len, said.splitlines())) <= 80
    for letter in "abcd":
        assert said.count(letter) == 60 + "Wide".count(letter)


def test_a_table_without_rows_has_its_heading():
    assert printed("None", ["a", "b"], []).split()[:3] == ["None", "a", "b"]


def test_columns_with_room_to_wrap_leave_it_to_the_others():
    columns = ["score", "n", "Spearman", "Pearson", "Kendall", "p (Holm)", "within classes"]
    row = ["class_normalized_feature_norm", "449", *["-0.688 [-0.739, -0.630]"] * 3, "< 0.001",
           "-0.505 [-0.571, -0.430]"]  # fmt: skip
    said = printed("Scores", columns, [row])
    assert max(map(len, said.splitlines())) <= 80
    assert said.split().count("[-0.739,") == 3
    assert "[-0.571," in said.split()
