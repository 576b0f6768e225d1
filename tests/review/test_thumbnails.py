"""Thumbnails that the app made, kept in the user's cache for the next time."""

import json
import os

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from hardsight.cli import main
from hardsight.data import PictureCache
from tests.review import made


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDSIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path):
    """A run over a folder of photographs, without thumbnails of its own."""
    rng = np.random.default_rng(0)
    columns = {name: values[:4] for name, values in made.rows_of().items()}
    columns["index"] = np.arange(4)
    columns["id"] = [f"{'ab'[at % 2]}/{at}.jpg" for at in range(4)]
    order = np.argsort(columns["id"])  # as a folder is read
    columns["id"] = [columns["id"][at] for at in order]
    for id in columns["id"]:
        file = tmp_path / "photos" / id
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (300, 400, 3), dtype=np.uint8)).save(file)
    run = made.save(tmp_path / "run", columns, thumbnails=False)
    return run, tmp_path / "photos"


def small(run, data, index=0):
    """A thumbnail as the app sends it, once the app knows the files of the data."""
    app = made.App(run, data=str(data))
    try:
        pictures = app.review.session.pictures
        pictures.opening.join(timeout=60)
        content = app.get("pictures", of=str(index), size="small").content
    finally:
        app.close()
    length = int.from_bytes(content[:4], "little")
    return json.loads(content[4 : 4 + length])[0], content[4 + length :]


def test_a_thumbnail_is_made_once(photos, cache):
    (kind, note, _), first = small(*photos)
    assert (kind, note) == ("image/jpeg", "")
    assert [entry.pictures for entry in PictureCache.here().entries()] == [1]
    file = sorted(photos[1].glob("*/*.jpg"))[0]
    stamp = file.stat()
    file.write_bytes(bytes(stamp.st_size))  # nothing that could be decoded, and no trace of it
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert small(*photos)[1] == first


def test_a_photograph_that_was_changed_is_made_again(photos, cache):
    run, data = photos
    _, first = small(run, data)
    file = sorted(data.glob("*/*.jpg"))[0]
    Image.new("RGB", (500, 300), (9, 200, 30)).save(file)
    _, second = small(run, data)
    assert second != first


def test_the_command_lists_and_clears_thumbnails(photos, cache):
    small(*photos)
    listed = CliRunner().invoke(main, ["cache", "list"]).output
    assert "thumbnails" in listed
    assert CliRunner().invoke(main, ["cache", "clear"]).exit_code == 0
    assert not cache.exists()


def test_without_a_cache_nothing_is_written(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("HARDSIGHT_CACHE", "off")
    (kind, _, _), _ = small(*photos)
    assert kind == "image/jpeg"
    assert not (tmp_path / "cache").exists()
