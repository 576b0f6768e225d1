"""Small files in one file on the disk: bounded, and never in the way."""

import os
import sqlite3
from contextlib import ExitStack, closing

import pytest

from hardsight.run_folder import KeptBytes, kept_count


@pytest.fixture
def file(tmp_path):
    return tmp_path / "kept.sqlite"


@pytest.fixture
def opened():
    """Opens a file, and closes it after the test."""
    with ExitStack() as stack:

        def opens(file, about="one", most_bytes=1000):
            return stack.enter_context(closing(KeptBytes(file, about=about, most_bytes=most_bytes)))

        yield opens


def test_what_is_put_is_there_for_the_next_process(opened, file):
    first = opened(file)
    first.put("a", b"\x00abc")
    first.close()
    second = opened(file)
    assert second.get("a") == b"\x00abc"
    assert second.get("b") is None
    assert kept_count(file) == 1


def test_what_belongs_to_something_else_is_forgotten(opened, file):
    first = opened(file)
    first.put("a", b"abc")
    first.close()
    assert opened(file, about="another").get("a") is None


def test_the_longest_unused_make_room(opened, file):
    kept = opened(file)
    for name in "abcdefghi":
        kept.put(name, bytes(100))
    assert kept.get("a") is not None  # used just now
    for name in "jk":
        kept.put(name, bytes(100))
    assert kept.get("a") is not None
    assert kept.get("b") is None
    assert kept.get("k") is not None
    assert kept_count(file) <= 10
    kept.put("large", bytes(1001))
    assert kept.get("large") is None


def test_the_file_does_not_grow_beyond_its_bound(opened, file):
    kept = opened(file, most_bytes=200_000)
    for number in range(300):
        kept.put(str(number), os.urandom(5000))
    assert file.stat().st_size < 2 * 200_000


def test_a_damaged_file_is_begun_again(opened, file):
    file.write_bytes(b"not a database at all" * 100)
    kept = opened(file)
    kept.put("a", b"abc")
    assert kept.get("a") == b"abc"


def test_a_place_that_cannot_be_written_keeps_nothing(opened, tmp_path):
    kept = opened(tmp_path / "missing" / "kept.sqlite")
    kept.put("a", b"abc")
    assert kept.get("a") is None
    assert kept_count(tmp_path / "missing" / "kept.sqlite") == 0
    kept.close()


def test_a_disk_that_is_full_keeps_what_was_there(opened, file):
    kept = opened(file, most_bytes=10**6)
    kept.put("a", b"abc")
    limits = sqlite3.connect(file)
    pages = limits.execute("PRAGMA page_count").fetchone()[0]
    limits.close()
    kept._connection.execute(f"PRAGMA max_page_count = {pages}")
    kept.put("b", bytes(500_000))
    assert kept.get("b") is None
    assert kept.get("a") == b"abc"


def test_two_processes_may_keep_at_the_same_time(opened, file):
    one, other = opened(file), opened(file)
    one.put("a", b"1")
    other.put("b", b"2")
    assert (one.get("b"), other.get("a")) == (b"2", b"1")
