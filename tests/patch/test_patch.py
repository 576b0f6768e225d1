"""Patches: what they hold, on disk and merged, whatever is in them."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hardsight as hs
from hardsight.errors import MissingDataError, OptionError, PatchError, RunExistsError
from hardsight.patch import (
    COLUMNS,
    Patch,
    conflicts_of,
    defused,
    merged,
    resolved,
    write_patch,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FULL_WIDTH = "\uff1d\uff0b\uff0d\uff20"
RISKY = st.sampled_from(
    ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "\nx", "'", "''", "'=x", FULL_WIDTH + "x"]
)
WORDS = TEXT | RISKY


def row(index=0, new=1, reviewer="anna", hour=0, **columns):
    """A decision; the old class of example ``i`` is ``i % 3``."""
    old = index % 3
    verdict = "cannot tell" if new < 0 else "keep" if new == old else "relabel"
    return {
        "index": index, "id": f"id {index}", "old": old, "old_name": f"class {old}", "new": new,
        "new_name": f"class {new}" if new >= 0 else "", "verdict": verdict, "reviewer": reviewer,
        "time": f"2026-01-02T{hour:02d}:00:00+00:00", "reason": "why", "evidence": "avh = 1",
        "data": "f00d", **columns,
    }  # fmt: skip


def patch_of(*rows):
    return Patch(pd.DataFrame(list(rows), columns=list(COLUMNS)))


DECISIONS = st.lists(
    st.builds(row, index=st.integers(0, 3), new=st.integers(-1, 2), hour=st.integers(0, 23),
              reviewer=st.sampled_from(["anna", "ben", "eve"])),
    max_size=8,
    unique_by=lambda made: (made["index"], made["reviewer"]),
).map(lambda rows: patch_of(*rows))  # fmt: skip


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@settings(max_examples=20)
@given(words=st.lists(WORDS, min_size=5, max_size=5))
def test_every_text_comes_back_as_it_was(tmp_path_factory, ending, words):
    id, name, reviewer, reason, evidence = words
    patch = patch_of(
        row(0, 1, id=id, new_name=name, reviewer=reviewer, reason=reason, evidence=evidence),
        row(7, -1),
    )
    file = write_patch(patch, tmp_path_factory.mktemp("patch") / f"patch.{ending}")
    again = hs.read_patch(file)
    assert again == patch
    pd.testing.assert_frame_equal(again.to_pandas(), patch.to_pandas(), check_dtype=False)


@settings(max_examples=30)
@given(word=WORDS)
def test_no_cell_of_a_csv_is_a_formula(tmp_path_factory, word):
    patch = patch_of(row(0, 1, id=word, new_name=word, reviewer=word, reason=word, evidence=word))
    file = write_patch(patch, tmp_path_factory.mktemp("patch") / "patch.csv")
    with file.open(newline="", encoding="utf-8") as source:
        _, cells = csv.reader(source)
    assert [cell for cell in cells if cell[:1] in tuple("=+-@\t\r\n" + FULL_WIDTH)] == []


def test_a_defused_text_says_what_it_said():
    assert [defused(text) for text in ("=SUM(A1)", "cat", "", "it's")] == [
        "'=SUM(A1)", "cat", "", "it's",
    ]  # fmt: skip


def test_a_patch_from_a_spreadsheet_with_semicolons_is_read(tmp_path):
    patch = patch_of(row(0, 1, reason="odd; very"), row(1, 1))
    write_patch(patch, tmp_path / "a.csv")
    with (
        (tmp_path / "a.csv").open(newline="") as source,
        (tmp_path / "b.csv").open("w", newline="", encoding="utf-8-sig") as sink,
    ):
        csv.writer(sink, delimiter=";").writerows(csv.reader(source))
    assert hs.read_patch(tmp_path / "b.csv") == patch


def test_a_file_is_not_replaced_unasked(tmp_path):
    write_patch(patch_of(row()), tmp_path / "a.csv")
    with pytest.raises(RunExistsError, match="exists; choose another --out"):
        write_patch(patch_of(row()), tmp_path / "a.csv")
    write_patch(patch_of(row(1, 0)), tmp_path / "a.csv", overwrite=True)
    assert hs.read_patch(tmp_path / "a.csv").to_pandas()["index"].tolist() == [1]


WRONG = {
    "a verdict among keep, relabel": row(verdict="maybe"),
    "an index of 0 or more": {**row(), "index": -1},
    "another class than before for 'relabel'": row(0, 0, verdict="relabel"),
    "the class from before for 'keep'": row(0, 1, verdict="keep"),
    "no new class for 'cannot tell' and 'drop'": row(0, 1, verdict="drop"),
    "whole numbers as new": row(new_name="x") | {"new": "1.5"},
    "whole numbers as index": row() | {"index": ""},
}


@pytest.mark.parametrize("expected", WRONG)
def test_a_row_that_cannot_be_a_decision_is_refused(expected):
    with pytest.raises(PatchError, match=f"expected {expected}"):
        patch_of(WRONG[expected])


def test_rows_about_different_data_or_different_labels_are_refused():
    with pytest.raises(PatchError, match=r"about different data \(fingerprints f00d, beef\)"):
        patch_of(row(), row(1, 2, data="beef"))
    with pytest.raises(PatchError, match=r"rows of example 0 .* differ in id or old class"):
        patch_of(row(), row(0, 2, reviewer="ben", id="another"))


def test_what_is_not_a_patch_is_refused_in_words(tmp_path):
    with pytest.raises(MissingDataError, match=r"no patch .*gone\.csv; write one with"):
        hs.read_patch(tmp_path / "gone.csv")
    with pytest.raises(OptionError, match=r"ends with \.csv, \.jsonl, \.parquet, got 'x\.txt'"):
        hs.read_patch(tmp_path / "x.txt")
    cases = {
        "a.csv": (b"a,b\n1,2\n", "but index, id, old, new, verdict, data is missing"),
        "b.csv": (b"index,id\n1\n", "row 1 of .* has 1 cells, but the header has 2"),
        "c.csv": (b"\xff\xfe\x00", "cannot be read as a patch"),
        "empty.csv": (b"", "expected the columns"),
        "d.jsonl": (b"{nonsense", "cannot be read as a patch"),
        "e.jsonl": (b"[1]\n", "expected an object in every line"),
        "f.parquet": (b"PAR1", "cannot be read as a patch"),
    }
    for name, (content, said) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(PatchError, match=said):
            hs.read_patch(tmp_path / name)


def test_a_patch_by_hand_needs_few_columns(tmp_path):
    line = {"index": 3, "id": "a.png", "old": 0, "new": 2, "verdict": "relabel", "data": "f00d"}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    found = hs.read_patch(tmp_path / "a.jsonl")
    assert (len(found), found.data, found.reviewers) == (1, "f00d", [""])
    assert found.changes().new.tolist() == [2]


# ---------------------------------------------------------------------------- merging


@settings(max_examples=8)
@given(a=DECISIONS, b=DECISIONS, c=DECISIONS)
def test_merging_does_not_depend_on_order_grouping_or_repetition(a, b, c):
    whole = merged([a, b, c])
    assert merged([c, a, b]) == whole
    assert merged([merged([a, b]), c]) == whole == merged([a, merged([b, c])])
    assert merged([whole, whole, a]) == whole
    assert merged([a]) == a


@settings(max_examples=8)
@given(a=DECISIONS, b=DECISIONS)
def test_a_resolved_patch_has_no_conflicts_and_leaves_the_rest_alone(a, b):
    whole = merged([a, b])
    disputed = {conflict.index for conflict in conflicts_of(whole)}
    for how in ("majority", "newest", "drop"):
        done = resolved(whole, how)
        assert conflicts_of(done) == []
        assert resolved(done, how) == done
        rows, before = done.to_pandas(), whole.to_pandas()
        assert set(before["index"]) - set(rows["index"]) <= disputed
        assert len(done.changes().index) == rows["index"].nunique()
        if how == "drop":
            assert not disputed & set(rows["index"])


def test_the_majority_the_newest_or_nobody_decides():
    patch = patch_of(
        row(0, 1, "anna", 1), row(0, 1, "ben", 2), row(0, 2, "eve", 3),
        row(1, 0, "anna", 5), row(1, 2, "ben", 4),
        row(2, 0, "anna", 1),
    )  # fmt: skip
    assert [str(conflict) for conflict in conflicts_of(patch)] == [
        "0 (id 0) anna: class 1, ben: class 1, eve: class 2",
        "1 (id 1) anna: class 0, ben: class 2",
    ]
    found = {how: resolved(patch, how).changes() for how in ("majority", "newest", "drop")}
    got = {how: dict(zip(made.index.tolist(), made.new.tolist(), strict=True))
           for how, made in found.items()}  # fmt: skip
    # about example 1 there is one vote each, so the majority is a tie
    assert got == {"majority": {0: 1, 2: 0}, "newest": {0: 2, 1: 0, 2: 0}, "drop": {2: 0}}
    with pytest.raises(OptionError, match="unknown resolution 'coin'"):
        resolved(patch, "coin")


def test_people_who_agree_are_not_a_conflict_and_a_keep_against_a_relabel_is():
    assert conflicts_of(patch_of(row(0, 1, "anna"), row(0, 1, "ben", 5))) == []
    assert len(conflicts_of(patch_of(row(0, 1, "anna"), row(0, 0, "ben")))) == 1
    assert len(conflicts_of(patch_of(row(0, 1, "anna"), row(0, -1, "ben")))) == 1


def test_a_later_decision_of_the_same_person_replaces_the_earlier_one():
    early, late = patch_of(row(0, 1, hour=1)), patch_of(row(0, 2, hour=2))
    assert merged([late, early]).changes().new.tolist() == [2]
    assert merged([early, patch_of(row(0, -1, time=""))]) == early


def test_patches_of_different_data_are_not_merged():
    with pytest.raises(PatchError, match="are about different data"):
        merged([patch_of(row()), patch_of(row(data="beef"))])
    with pytest.raises(OptionError, match="at least one patch"):
        merged([])


def test_disputed_labels_are_not_applied():
    patch = patch_of(*(row(index, new, who) for index in range(5) for new, who in
                       ((index % 3, "anna"), (-1, "ben"))))  # fmt: skip
    with pytest.raises(
        PatchError, match=r"people disagree about 5 examples .* and 2 more; resolve"
    ):
        patch.changes()


def test_many_decisions_are_read_back(tmp_path):
    index = np.arange(20_000)
    frame = pd.DataFrame([row()] * len(index)).assign(
        index=index, id=[f"{n}.png" for n in index], old=0, old_name="a"
    )
    patch = Patch(frame)
    write_patch(patch, tmp_path / "a.parquet")
    assert hs.read_patch(tmp_path / "a.parquet").changes().new.sum() == len(index)
