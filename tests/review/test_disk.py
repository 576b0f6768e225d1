"""A disk that is full while somebody decides."""

import os
import resource

import pytest

from hardsight.errors import OutputError
from hardsight.review import decisions
from tests.review import made


@pytest.fixture
def limited():
    """A function after whose call no file may grow beyond some size; None for no limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, before if size is None else (size, before[1]))

    yield limit
    limit(None)


def test_a_full_disk_is_said_and_nothing_confirmed_is_lost(app, run, limited):
    first, second, *_ = app.queue()["items"]
    assert app.decide(first, "keep").status_code == 200
    limited(max(file.stat().st_size for file in run.glob("review.sqlite*")))
    answers = [app.decide(second, "keep")]
    while answers[-1].status_code == 200:  # until the log has to grow
        answers.append(app.decide(vars(app.example(second["index"])), "keep"))
    assert answers[-1].status_code == 507
    assert "the decision was not stored" in answers[-1].json()["error"]
    assert "free some space" in answers[-1].json()["error"]
    # the first one, and those that were answered with yes
    assert app.get("changes", since=0).json()["seq"] == len(answers)
    assert first["index"] in decisions(run)["index"].tolist()


def test_it_goes_on_once_there_is_room(app, run, limited):
    item = app.queue()["items"][0]
    limited(0)
    assert app.decide(item, "keep").status_code == 507
    limited(None)
    assert app.decide(item, "keep").status_code == 200
    assert decisions(run)["index"].tolist() == [item["index"]]


def test_a_folder_that_cannot_be_written_to_is_said(run, limited):
    limited(0)
    with pytest.raises(OutputError, match=r"cannot store decisions in .* make the run writable"):
        made.App(run)


def test_the_decisions_of_a_run_can_be_written_by_everybody_the_umask_allows(run):
    before = os.umask(0o002)
    try:
        made.App(run).close()
        (run / "usual").touch()
    finally:
        os.umask(before)
    assert (run / "review.sqlite").stat().st_mode == (run / "usual").stat().st_mode


def test_decisions_that_this_user_may_not_write_are_refused_before_the_first_one(run, monkeypatch):
    made.App(run).close()
    # as for another user without the right; the tests may run as root, who may write everything
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(OutputError, match=r"may not write to it; make the run writable for every"):
        made.App(run)
