"""Decoded pictures on disk: the same pixels, and never those of other data."""

from __future__ import annotations

import io
import os
import pickle
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from PIL import Image

import hardsight as hs
from hardsight.cli import main
from hardsight.data import PictureCache, open_source
from hardsight.run.loop import decoded_once

COUNT = 2100  # just above what is worth keeping


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDSIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def png(pixels):
    with io.BytesIO() as sink:
        Image.fromarray(pixels).save(sink, "PNG", compress_level=1)
        return sink.getvalue()


def parquet(file, pictures):
    rows = {
        "image": [{"bytes": each, "path": None} for each in pictures],
        "label": [at % 3 for at in range(len(pictures))],
    }
    pq.write_table(pa.table(rows), file)
    return file


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (COUNT, 4, 5, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def encoded(pixels):
    return [png(each) for each in pixels]


@pytest.fixture
def data(tmp_path, encoded):
    return parquet(tmp_path / "data.parquet", encoded)


def opened(data, **options):
    return decoded_once(open_source(data), workers=0, show=False, **options)


def test_the_second_run_reads_the_pixels_of_the_first(data, pixels):
    np.testing.assert_array_equal(opened(data).images, pixels)
    again = hs.data.kept_pictures(open_source(data), lambda part: pytest.fail("decoded twice"))
    np.testing.assert_array_equal(again.images, pixels)
    assert isinstance(again.images, np.memmap)


def test_every_example_is_as_it_was(data):
    plain, kept = open_source(data), opened(data)
    assert kept.images is not None
    assert kept.fingerprint() == plain.fingerprint()
    assert (kept.spec, kept.classes, len(kept)) == (plain.spec, plain.classes, len(plain))
    np.testing.assert_array_equal(kept.labels, plain.labels)
    for at in (0, 1, COUNT - 1):
        ours, theirs = kept[at], plain[at]
        assert (ours.id, ours.label) == (theirs.id, theirs.label)
        assert ours.content.mode == theirs.content.mode
        np.testing.assert_array_equal(np.asarray(ours.content), np.asarray(theirs.content))
    with pytest.raises(IndexError):
        kept[COUNT]


def test_scores_are_the_same_with_and_without(data, folder, monkeypatch):
    how = {"device": "cpu", "workers": 0, "show_progress": False, "channels": 1}
    with_it = hs.score("small_cnn", data, **how)
    assert len(list(folder.glob("*.npy"))) == 1
    monkeypatch.setenv("HARDSIGHT_CACHE", "off")
    without = hs.score("small_cnn", data, **how)
    assert with_it.to_pandas().equals(without.to_pandas())
    assert with_it.metadata["data"] == without.metadata["data"]


def test_training_gives_the_same_model_with_and_without(data, folder, tmp_path, monkeypatch):
    how = {"epochs": 1, "batch_size": 256, "device": "cpu", "workers": 0, "show_progress": False}
    first = hs.train("small_cnn", data, out=tmp_path / "with", **how)
    assert len(list(folder.glob("*.npy"))) == 1
    monkeypatch.setenv("HARDSIGHT_CACHE", "off")
    second = hs.train("small_cnn", data, out=tmp_path / "without", **how)
    assert first.preprocessing == second.preprocessing
    assert first.history[0]["train_loss"] == pytest.approx(second.history[0]["train_loss"])


def test_data_that_changed_is_decoded_again(data, encoded, folder, pixels):
    opened(data)
    changed = list(encoded)
    changed[7], changed[8] = changed[8], changed[7]  # which are not among those compared
    parquet(data, changed)
    np.testing.assert_array_equal(opened(data).images[7], pixels[8])


def test_a_changed_picture_is_seen_even_if_the_clock_was_set_back(data, encoded, pixels):
    opened(data)
    when = data.stat()
    changed = list(encoded)
    changed[0], changed[1] = changed[1], changed[0]
    parquet(data, changed)
    os.utime(data, ns=(when.st_atime_ns, when.st_mtime_ns))
    np.testing.assert_array_equal(opened(data).images[0], pixels[1])


def test_a_damaged_entry_is_made_again(data, folder, pixels):
    opened(data)
    (file,) = folder.glob("*.npy")
    file.write_bytes(file.read_bytes()[:-1000])
    np.testing.assert_array_equal(opened(data).images, pixels)


def test_another_decoder_has_an_entry_of_its_own(data, folder, monkeypatch):
    opened(data)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.0")
    opened(data)
    assert len(list(folder.glob("*.npy"))) == 2


def test_pictures_of_folders_are_kept_and_a_changed_file_is_seen(tmp_path, folder):
    for at in range(COUNT):
        place = tmp_path / "photos" / "ab"[at % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2), at % 200).save(place / f"{at:04}.bmp")
    first = opened(tmp_path / "photos")
    assert first.images.shape == (COUNT, 2, 3)
    Image.new("L", (3, 2), 255).save(tmp_path / "photos" / "a" / "0002.bmp")
    assert (opened(tmp_path / "photos").images[1] == 255).all()


@pytest.mark.parametrize("why", ["sizes", "damaged", "few", "bound"])
def test_what_cannot_be_kept_is_read_as_ever(why, tmp_path, encoded, folder, monkeypatch):
    pictures = list(encoded)
    if why == "sizes":
        pictures[1000] = png(np.zeros((9, 9, 3), np.uint8))
    elif why == "damaged":
        pictures[1000] = b"not a picture"
    elif why == "few":
        pictures = pictures[:2000]
    else:
        monkeypatch.setenv("HARDSIGHT_CACHE_BYTES", "1000")
    found = opened(parquet(tmp_path / "odd.parquet", pictures))
    assert found.images is None
    assert not list(folder.glob("*"))
    assert np.asarray(found[0].content).shape == (4, 5, 3)


def test_the_longest_unused_go_first(tmp_path, encoded, folder, monkeypatch):
    monkeypatch.setenv("HARDSIGHT_CACHE_BYTES", str(3 * COUNT * 60))
    names = ("a", "b", "c")
    for at, name in enumerate(names):
        opened(parquet(tmp_path / f"{name}.parquet", encoded[at:] + encoded[:at]))
        for entry in PictureCache.here().entries():
            age = 100 if entry.spec.endswith("b.parquet") else 10
            when = entry.used - age
            os.utime(entry.file.with_suffix(".json"), (when, when))
    kept = {entry.spec[-9:-8] for entry in PictureCache.here().entries()}
    assert kept == {"a", "c"}


def test_a_folder_that_cannot_be_written_is_said_and_done_without(data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HARDSIGHT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(hs.errors.HardsightWarning, match="are not kept in .*HARDSIGHT_CACHE"):
        assert opened(data).images is None


def test_a_bound_that_is_not_a_number_is_refused(data, monkeypatch):
    monkeypatch.setenv("HARDSIGHT_CACHE_BYTES", "8GB")
    with pytest.raises(hs.errors.ConfigError, match="number of bytes, got '8GB'"):
        opened(data)


def test_a_loader_process_that_is_spawned_maps_the_file_again(data, pixels):
    kept = opened(data)
    sent = pickle.dumps(kept)
    assert len(sent) < pixels.nbytes / 2
    np.testing.assert_array_equal(pickle.loads(sent).images, pixels)


def test_a_subset_reads_from_the_same_file(data, pixels):
    turned = np.arange(COUNT)[::-1]
    kept = decoded_once(open_source(data).subset(turned), workers=0, show=False)
    np.testing.assert_array_equal(np.asarray(kept[5].content), pixels[-6])
    assert kept.parts[0].images is not None
    assert kept.fingerprint() == open_source(data).subset(turned).fingerprint()


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a POSIX signal")
def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_counts(
    data, folder, pixels, forks
):
    code = f"""
import os
os.environ["HARDSIGHT_CACHE"] = {str(folder)!r}
import signal
from contextlib import nullcontext
from hardsight.data import kept_pictures, open_source
def advance(count):
    os.kill(os.getpid(), signal.SIGKILL)
kept_pictures(open_source({str(data)!r}), lambda part: nullcontext(advance))
"""
    assert forks.run(code).status == -signal.SIGKILL
    assert any(file.name.startswith(".tmp-") for file in folder.iterdir())
    np.testing.assert_array_equal(opened(data).images, pixels)
    CliRunner().invoke(main, ["cache", "clear"])
    assert not folder.exists()


def test_the_command_lists_and_clears(data, folder):
    opened(data)
    listed = CliRunner().invoke(main, ["cache", "list"])
    assert listed.exit_code == 0
    assert "2,100" in listed.output
    assert "4 x 5 x 3" in listed.output
    cleared = CliRunner().invoke(main, ["cache", "clear"])
    assert cleared.output.endswith("freed\n")
    assert not folder.exists()
    assert "0 bytes of at most 8.0 GiB" in CliRunner().invoke(main, ["cache", "list"]).output


def test_the_cache_can_be_turned_off(data, folder, monkeypatch):
    monkeypatch.setenv("HARDSIGHT_CACHE", "off")
    assert opened(data).images is None
    assert "the cache is off" in CliRunner().invoke(main, ["cache", "list"]).output
    assert not folder.exists()
