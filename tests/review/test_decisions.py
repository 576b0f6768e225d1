"""Decisions: stored before anything else happens, undone, never overwritten in silence."""

import sqlite3
import tracemalloc
from contextlib import closing

import numpy as np
import pytest

import hardsight
from hardsight.errors import MissingDataError, TableError
from hardsight.exchange import patch_of
from hardsight.review import decisions
from tests.review import made

WRONG = [18, 38, 58, 78, 98, 118]  # positions in the data of the rows 9, 19, ...


def test_the_queue_holds_the_suspects_hardest_first_with_suggestion_and_reason(looked_at):
    queue = looked_at.queue()
    assert (queue["total"], queue["open"]) == (6, 6)
    assert sorted(item["index"] for item in queue["items"]) == WRONG
    margins = [
        dict((s[0], s[1]) for s in item["scores"])["logit_margin"] for item in queue["items"]
    ]
    assert margins == sorted(margins)  # a smaller margin is more suspect
    for item in queue["items"]:
        assert item["suggestion"] == item["prediction"] != item["label"]
        names = ["ant", "bee", "cat", "dog"]
        assert f"The model says {names[item['prediction']]}" in item["reason"]
        assert "more suspect than" in item["reason"]


def test_every_action_is_read_back_by_the_public_function(app, run):
    first, second, third, fourth = app.queue()["items"][:4]
    for item, action, new in (
        (first, "relabel", first["suggestion"]), (second, "keep", None),
        (third, "cannot tell", None), (fourth, "skip", None),
    ):  # fmt: skip
        answer = app.decide(item, action, new)
        assert answer.status_code == 200, answer.text
    found = decisions(run)
    assert found.columns.tolist() == [
        "index", "id", "old", "new", "verdict", "reviewer", "time", "reason"
    ]  # fmt: skip
    assert found["index"].tolist() == [item["index"] for item in (first, second, third)]
    assert found["verdict"].tolist() == ["relabel", "keep", "cannot tell"]
    assert found["new"].tolist() == [first["suggestion"], second["label"], -1]
    assert found["old"].tolist() == [item["label"] for item in (first, second, third)]
    assert found["id"].tolist() == [item["id"] for item in (first, second, third)]
    assert set(found["reviewer"]) == {"anna"}
    assert found["reason"].tolist() == [item["reason"] for item in (first, second, third)]
    assert str(found["time"].dtype).startswith("datetime64[")
    assert [item["index"] for item in app.queue()["items"]] == [
        item["index"] for item in app.queue()["items"]
    ]
    assert app.queue()["open"] == 2


def test_the_class_that_an_example_has_already_is_kept_not_changed(app, run):
    item = app.queue()["items"][0]
    assert app.decide(item, "relabel", item["label"]).status_code == 200
    assert decisions(run)["verdict"].tolist() == ["keep"]


def test_undo_brings_back_what_was_decided_before(app, run):
    item = app.queue()["items"][0]
    app.decide(item, "keep")
    again = app.example(item["index"])
    last = app.decide(vars(again), "relabel", item["suggestion"]).json()["recent"]
    assert decisions(run)["verdict"].tolist() == ["relabel"]
    undone = app.post("undo", batch=last[0]["batch"]).json()
    assert (undone["count"], undone["index"]) == (1, item["index"])
    assert decisions(run)["verdict"].tolist() == ["keep"]
    app.post("undo", batch=undone["recent"][0]["batch"])
    assert decisions(run).empty
    assert app.queue()["open"] == 6
    assert app.post("undo", batch=last[0]["batch"]).status_code == 409  # only once


def test_undo_works_after_a_restart(run):
    first = made.App(run)
    item = first.queue()["items"][0]
    first.decide(item, "keep")
    first.close()
    second = made.App(run)
    recent = second.queue()["recent"]
    assert [(one["index"], one["action"]) for one in recent] == [(item["index"], "keep")]
    assert second.post("undo", batch=recent[0]["batch"]).status_code == 200
    second.close()
    assert decisions(run).empty


def test_a_second_window_of_the_same_reviewer_gets_the_conflict(app, run):
    item = app.queue()["items"][0]
    assert app.decide(item, "keep").status_code == 200
    answer = app.decide(item, "relabel", item["suggestion"])  # from a window that saw neither
    assert answer.status_code == 409
    assert answer.json() == {"error": "stale", "index": [item["index"]], "count": 1}
    assert decisions(run)["verdict"].tolist() == ["keep"]


def test_an_undo_in_another_window_is_a_conflict_too(app):
    item = app.queue()["items"][0]
    made_now = app.decide(item, "keep").json()
    shown = vars(app.example(item["index"]))
    app.post("undo", batch=made_now["recent"][0]["batch"])
    assert app.decide(shown, "cannot tell").status_code == 409


def test_two_processes_see_each_other(run):
    one, other = made.App(run), made.App(run)
    item = one.queue()["items"][0]
    seen = other.queue()["items"][0]
    assert one.decide(item, "keep").status_code == 200
    assert other.decide(seen, "relabel", seen["suggestion"]).status_code == 409
    assert other.queue()["open"] == 5
    assert other.get("changes", since=0).json()["changed"] == [item["index"]]
    one.close()
    other.close()


def test_two_reviewers_are_blind_until_they_decide_and_then_see_the_difference(app, run):
    item = app.queue("anna")["items"][0]
    app.decide(item, "keep", reviewer="anna")
    for_ben = app.queue("ben")["items"][0]
    assert (for_ben["index"], for_ben["others"], for_ben["base"]) == (item["index"], [], 0)
    assert app.queue("ben")["open"] == 6  # a decision of anna's leaves his queue alone
    answer = app.decide(for_ben, "relabel", item["suggestion"], reviewer="ben").json()
    assert answer["others"] == [{"reviewer": "anna", "action": "keep", "new": -1}]
    found = decisions(run)
    assert found["reviewer"].tolist() == ["anna", "ben"]
    assert found["verdict"].tolist() == ["keep", "relabel"]
    board = app.get("dashboard", "ben").json()
    assert board["unresolved"] == 1
    assert [one["index"] for one in board["disagreements"]] == [item["index"]]
    assert app.get("dashboard", "carl").json()["disagreements"] == []  # he has not decided


def test_one_decision_for_many_is_one_undo(app, run):
    seen = app.get("grid").json()["seq"]
    marked = app.post("decide-many", indices=WRONG[:3], action="relabel", seen=seen)
    assert marked.json()["count"] == 3
    ants = app.get("grid", label=0).json()["total"]
    every = app.post("decide-many", view={"label": 0}, expect=ants, action="keep",
                     seen=marked.json()["seq"])  # fmt: skip
    assert every.json()["count"] == ants > 10
    assert (decisions(run)["verdict"] == "keep").sum() == ants
    undone = app.post("undo", batch=every.json()["recent"][0]["batch"]).json()
    assert undone["count"] == ants
    assert sorted(decisions(run)["index"]) == WRONG[:3]
    assert set(decisions(run)["verdict"]) == {"relabel"}


def test_one_class_for_many_keeps_those_that_have_it_and_can_be_exported(app, run):
    seen, (wrong, right) = app.get("grid").json()["seq"], (WRONG[0], 0)
    label = app.example(right).label
    assert app.example(wrong).label != label
    made = app.post("decide-many", indices=[right, wrong], action="relabel", new=label, seen=seen)
    assert (made.json()["count"], made.json()["recent"][0]["action"]) == (2, "relabel")
    found = decisions(run).set_index("index")
    assert found["verdict"].to_dict() == {right: "keep", wrong: "relabel"}
    assert set(found["new"]) == {label}
    kept, changed = (app.get("grid", state=state).json()["total"] for state in ("keep", "relabel"))
    assert (kept, changed) == (1, 1)
    assert len(patch_of(run)) == 2
    app.post("undo", batch=made.json()["recent"][0]["batch"])
    assert decisions(run).empty


def test_a_log_that_gives_an_example_the_class_it_has_is_read_as_kept(app, run):
    app.decide(app.queue()["items"][0], "keep")
    with closing(sqlite3.connect(run / "review.sqlite", isolation_level=None)) as log:
        log.execute(
            'INSERT INTO log ("index", reviewer, action, old, new, base_seq, batch, time) '
            "SELECT 0, 'ben', 'relabel', old, old, 0, 'b', time FROM log"
        )
    assert decisions(run)["verdict"].tolist() == ["keep", "keep"]


def test_a_bulk_of_a_stale_window_changes_nothing(app, run):
    seen = app.get("grid").json()["seq"]
    item = app.queue()["items"][0]
    app.decide(item, "keep")
    answer = app.post("decide-many", indices=WRONG, action="relabel", seen=seen)
    assert (answer.status_code, answer.json()["index"]) == (409, [item["index"]])
    assert len(decisions(run)) == 1
    grown = app.post("decide-many", view={}, expect=59, action="keep", seen=seen)
    assert grown.status_code == 400
    assert "the filter now matches 60 examples, not 59" in grown.json()["error"]


def test_suggestions_are_accepted_only_where_there_are_any(app, run):
    seen = app.get("grid").json()["seq"]
    answer = app.post("decide-many", view={}, expect=60, action="relabel", seen=seen).json()
    assert answer["count"] == 6
    assert sorted(decisions(run)["index"]) == WRONG
    none = app.post("decide-many", indices=[0], action="relabel", seen=answer["seq"])
    assert "none of the chosen examples has a suggestion" in none.json()["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"index": 1, "action": "keep", "base": 0}, "no example 1"),
        ({"index": 18, "action": "burn", "base": 0}, "expected one of keep, relabel"),
        ({"index": 18, "action": "relabel", "new": 4, "base": 0}, "a class from 0 to 3"),
        ({"index": 18, "action": "relabel", "new": -1, "base": 0}, "a class from 0 to 3"),
        ({"index": 18, "action": "relabel", "new": "1", "base": 0}, "new to be a whole number"),
        ({"index": 2**70, "action": "keep", "base": 0}, "whole number"),
        ({"index": True, "action": "keep", "base": 0}, "index to be a whole number"),
        ({"index": 18, "action": "keep"}, "base to be a whole number"),
        ({"index": 18, "action": "keep", "base": 0, "reviewer": " "}, "name of a reviewer"),
        ({"index": 18, "action": "keep", "base": 0, "reviewer": "a\x07"}, "name of a reviewer"),
    ],
)
def test_what_is_not_a_decision_is_refused_in_words(looked_at, body, words):
    content = {"reviewer": "anna", **body}
    answer = looked_at.client.post("/api/decide", json=content, headers=looked_at.headers())
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert looked_at.queue()["seq"] == 0  # nothing was stored


def test_the_log_is_only_added_to(app, run):
    item = app.queue()["items"][0]
    app.decide(item, "keep")
    log = sqlite3.connect(run / "review.sqlite")
    for statement in ("UPDATE log SET action = 'skip'", "DELETE FROM log"):
        with pytest.raises(sqlite3.IntegrityError, match="only added to"):
            log.execute(statement)
    assert log.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    log.close()


def test_decisions_of_other_data_are_refused(run, tmp_path):
    app = made.App(run)
    app.decide(app.queue()["items"][0], "keep")
    app.close()
    other = made.save(tmp_path / "other", made.rows_of(50))
    (run / "review.sqlite").rename(other / "review.sqlite")
    for read in (decisions, made.App):
        with pytest.raises(TableError, match="are about other data or classes"):
            read(other)


def test_decisions_of_a_newer_version_are_refused(run):
    made.App(run).close()
    log = sqlite3.connect(run / "review.sqlite")
    log.execute("PRAGMA user_version = 2")
    log.close()
    with pytest.raises(TableError, match="written by a newer version"):
        made.App(run)


def test_what_is_not_a_log_is_left_alone(run):
    (run / "review.sqlite").write_bytes(b"my own notes" * 100)
    with pytest.raises((TableError, hardsight.errors.OutputError), match=r"review\.sqlite"):
        made.App(run)
    assert (run / "review.sqlite").read_bytes().startswith(b"my own notes")


def test_no_decisions_are_an_empty_table(run):
    found = decisions(run)
    assert found.empty
    assert "verdict" in found.columns
    assert not (run / "review.sqlite").exists()  # reading leaves nothing behind


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(MissingDataError, match="no score table"):
        decisions(tmp_path)


def test_the_state_in_memory_is_that_of_the_log(app, run):
    """Random decisions and undoings, of two reviewers, against what the log says."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        name = ["anna", "ben"][rng.integers(2)]
        recent = app.queue(name)["recent"]
        if recent and rng.random() < 0.3:
            batch = recent[rng.integers(len(recent))]["batch"]
            assert app.post("undo", name, batch=batch).status_code == 200
        elif rng.random() < 0.2:
            chosen = (2 * rng.choice(60, 5, replace=False)).tolist()
            seen = app.get("grid", name).json()["seq"]
            assert app.post("decide-many", name, indices=chosen, action="keep", seen=seen)
        else:
            item = vars(app.example(int(2 * rng.integers(8)), name))
            app.decide(item, ["keep", "skip", "relabel"][rng.integers(3)], 2, name)
    states = {name: app.get("grid", name, count=60).json() for name in ("anna", "ben")}
    again = made.App(run)
    for name, state in states.items():
        fresh = again.get("grid", name, count=60).json()
        assert (fresh["action"], fresh["new"]) == (state["action"], state["new"])
    again.close()
    told = {
        (row.index, row.reviewer): row.verdict for row in decisions(run).itertuples(index=False)
    }
    shown = {
        (index, name): action
        for name, state in states.items()
        for index, action in zip(state["index"], state["action"], strict=True)
        if action not in ("", "skip")
    }
    assert told == shown


def test_a_decision_costs_no_memory_that_grows_with_the_table(tmp_path):
    """At a key, nothing is made that has a place for every row."""
    rows = 40_000
    app = made.App(made.save(tmp_path / "run", made.rows_of(rows), thumbnails=False))
    try:
        first, second = app.queue(count=2)["items"]
        app.decide(first, "keep")
        asked = {"reviewer": "anna", "index": second["index"], "action": "keep",
                 "base": second["base"]}  # fmt: skip
        tracemalloc.start()
        app.review.session.decide(asked)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        app.close()
    assert peak < rows


@pytest.fixture
def doubted(tmp_path):
    """An app whose model contradicts every label, and one who decides about places of its queue."""
    n = 400
    columns = made.rows_of(n)
    columns["label"] = (columns["prediction"] + 1) % 4
    columns["logit_margin"] = np.linspace(-9, -1, n, dtype=np.float32)
    app = made.App(made.save(tmp_path / "run", columns, thumbnails=False, sample="in-sample"))
    order = app.get("grid", only="suspects", count=n).json()["index"]
    assert len(order) == n

    def left_after(places, wrong):
        for action, chosen in (
            ("relabel", places[wrong[places]]),
            ("keep", places[~wrong[places]]),
        ):
            if len(chosen):
                indices = [order[place] for place in chosen]
                seen = app.get("changes", since=0).json()["seq"]
                answer = app.post(
                    "decide-many", indices=indices, action=action, new=None, seen=seen
                )
                assert answer.status_code == 200
        return app.get("dashboard").json()["left"]

    yield left_after
    app.close()


@pytest.mark.parametrize("rest", [0.0, 0.5, 0.9])
def test_the_interval_of_errors_left_holds_whatever_the_rest_of_the_queue_is(doubted, rest):
    """Of the beginning, which was looked at, nine in ten are wrong; nobody knows the rest."""
    n, looked = 400, 40
    wrong = np.arange(n) % 10 < 10 * np.where(np.arange(n) < looked, 0.9, rest)
    left = doubted(np.arange(looked), wrong)
    assert left["low"] <= wrong[looked:].sum() <= left["high"]
    # once somebody has looked at the end, what lies between is bounded on both sides
    closer = doubted(np.arange(n - looked, n), wrong)
    assert closer["low"] <= wrong[looked:-looked].sum() <= closer["high"]
    assert closer["high"] - closer["low"] <= left["high"] - left["low"]


def test_a_few_decisions_in_every_part_of_the_queue_do_not_add_up_to_errors(doubted):
    """Small shares were overestimated a little in each part, and the parts added up."""
    wrong = np.arange(400) < 60
    places = np.arange(0, 400, 5)
    left = doubted(places, wrong)
    truth = int(np.delete(wrong, places).sum())
    assert left["low"] <= truth <= left["high"]
    assert left["high"] - left["low"] < 80


def test_decisions_are_read_in_a_folder_that_cannot_be_written(app, run, monkeypatch):
    app.decide(app.queue()["items"][0], "keep")
    app.close()
    told = decisions(run)
    connect = sqlite3.connect

    def refused(place, **options):
        if options.get("uri"):
            return connect(place, **options)
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr("sqlite3.connect", refused)  # root may write anywhere
    assert len(told) == 1
    assert decisions(run).equals(told)
    (run / "review.sqlite").write_bytes(b"not a database, and longer than its head" * 9)
    with pytest.raises(TableError, match=r"cannot read the decisions in .*; allow writing"):
        decisions(run)
