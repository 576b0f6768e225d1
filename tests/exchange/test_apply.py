"""A patch over data in every stored form: exactly the decided labels, and nothing else."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import hardsight as hs
from hardsight.data import open_source
from hardsight.data.source import patched
from hardsight.errors import (
    DataError,
    OptionError,
    OutputError,
    PatchError,
    RunExistsError,
)
from hardsight.patch import write_patch
from tests.exchange import made

NEW = {0: 1, 3: 2, 4: 0, 5: 1, 11: 0}  # of example 5 it is the label that it has


@pytest.fixture(params=made.FORMS, ids=lambda form: form.__name__)
def form(request):
    return request.param


@pytest.fixture
def data(form, tmp_path):
    (tmp_path / "data").mkdir()
    return form(tmp_path / "data")


def labels_by_content(source):
    return dict(zip(made.contents(source), source.labels.tolist(), strict=True))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_export_apply_and_reading_back_give_the_decided_labels(data, tmp_path, ending):
    data, options = data
    before = made.hashes(tmp_path / "data")
    source = made.opened(data, options)
    patch = made.patch_for(source, NEW, unsure=[7])
    file = write_patch(patch, tmp_path / f"patch.{ending}")
    assert hs.read_patch(file) == patch
    out, again, how = made.out_for(data, options, tmp_path)
    done = hs.apply_patch(file, data, out=out, **options)
    wanted = source.labels.copy()
    wanted[list(NEW)] = list(NEW.values())
    copy = made.opened(again, how)
    assert copy.classes == source.classes
    assert labels_by_content(copy) == dict(zip(made.contents(source), wanted.tolist(), strict=True))
    assert (done.examples, done.changed, done.dropped, done.unsure) == (12, 4, 0, 1)
    assert made.hashes(tmp_path / "data") == before


def test_what_nobody_can_tell_is_left_out_if_asked_for(form, data, tmp_path):
    data, options = data
    before = made.hashes(tmp_path / "data")
    source = made.opened(data, options)
    patch = made.patch_for(source, {0: 1}, unsure=[7, 8])
    out, again, how = made.out_for(data, options, tmp_path)
    if form in made.APART:
        with pytest.raises(PatchError, match="cannot be left out of"):
            hs.apply_patch(patch, data, out=out, cannot_tell="drop", **options)
        assert not out.exists()
        return
    done = hs.apply_patch(patch, data, out=out, cannot_tell="drop", **options)
    labels = labels_by_content(source)
    keys = made.contents(source)
    labels[keys[0]] = 1
    del labels[keys[7]], labels[keys[8]]
    assert labels_by_content(made.opened(again, how)) == labels
    assert (done.examples, done.dropped) == (10, 2)
    assert made.hashes(tmp_path / "data") == before


def test_data_that_changed_since_it_was_scored_is_refused(data, tmp_path):
    data, options = data
    patch = made.patch_for(made.opened(data, options), NEW, data="0" * 64)
    out, _, _ = made.out_for(data, options, tmp_path)
    with pytest.raises(PatchError, match=r"is about other data than .* 000000000000 when it was"):
        hs.apply_patch(patch, data, out=out, **options)
    assert not out.exists()
    assert not [file for file in out.parent.iterdir() if file.name.startswith(".")]


def test_the_same_patch_is_laid_over_the_data_while_it_is_read(data):
    data, options = data
    source = made.opened(data, options)
    fixed = open_source(data, patch=made.patch_for(source, NEW, unsure=[7]), **options)
    wanted = source.labels.copy()
    wanted[list(NEW)] = list(NEW.values())
    assert fixed.labels.tolist() == wanted.tolist()
    assert fixed.spec == source.spec
    assert fixed.fingerprint() != source.fingerprint()
    assert [facts["changed"] for facts in fixed.patches] == [4]


# ---------------------------------------------------------------------------- one after the other


def test_patches_are_applied_in_their_order_each_to_what_the_one_before_left(data, tmp_path):
    data, options = data
    source = made.opened(data, options)
    first = made.patch_for(source, {0: 1, 3: 2})
    second = made.patch_for(open_source(data, patch=first, **options), {0: 2, 4: 0})
    out, again, how = made.out_for(data, options, tmp_path)
    hs.apply_patch([first, second], data, out=out, **options)
    wanted = source.labels.copy()
    wanted[[0, 3, 4]] = [2, 2, 0]
    both = open_source(data, patch=[first, second], **options)
    assert both.labels.tolist() == wanted.tolist()
    keys = made.contents(source)
    assert labels_by_content(made.opened(again, how)) == dict(zip(keys, wanted, strict=True))
    with pytest.raises(PatchError, match="is about other data"):
        open_source(data, patch=[second, first], **options)


def test_a_second_patch_finds_its_examples_behind_those_that_the_first_left_out(tmp_path):
    data, _ = made.folder(tmp_path)
    source = open_source(data)
    first = made.patch_for(source, {0: 1}, dropped=[2, 5])
    between = open_source(data, patch=first)
    assert between.numbers.tolist() == [0, 1, 3, 4, 6, 7, 8, 9, 10, 11]
    second = made.patch_for(between, {})
    rows = made.patch_for(source, {6: 2}, data=between.fingerprint())
    assert len(second) == 0
    hs.apply_patch([first, rows], data, out=tmp_path / "fixed")
    labels = labels_by_content(open_source(tmp_path / "fixed"))
    keys = made.contents(source)
    assert (labels[keys[0]], labels[keys[6]], len(labels)) == (1, 2, 10)


# ---------------------------------------------------------------------------- class folders


@pytest.fixture
def photos(tmp_path):
    return made.folder(tmp_path)[0]


def test_a_name_that_is_taken_gets_the_old_class(photos, tmp_path):
    for name in ("ant", "bee", "cat"):
        picture = Image.new("L", (4, 4), {"ant": 1, "bee": 2, "cat": 3}[name])
        picture.save(photos / name / "same.PNG")
    source = open_source(photos)
    ids = {source.id_of(at): at for at in range(len(source))}
    patch = made.patch_for(source, {ids["ant/same.PNG"]: 2, ids["bee/same.PNG"]: 2})
    done = hs.apply_patch(patch, photos, out=tmp_path / "fixed")
    found = sorted(file.name for file in (tmp_path / "fixed" / "cat").glob("same*"))
    assert found == ["same-from-ant.PNG", "same-from-bee.PNG", "same.PNG"]
    grey = {file.name: Image.open(file).getpixel((0, 0))
            for file in (tmp_path / "fixed" / "cat").glob("same*")}  # fmt: skip
    assert grey == {"same-from-ant.PNG": 1, "same-from-bee.PNG": 2, "same.PNG": 3}
    assert any("2 pictures had a name that was taken" in note for note in done.notes)


def test_two_pictures_that_change_places_do(photos, tmp_path):
    for name, grey in (("ant", 1), ("bee", 2)):
        Image.new("L", (4, 4), grey).save(photos / name / "same.png")
    source = open_source(photos)
    ids = {source.id_of(at): at for at in range(len(source))}
    patch = made.patch_for(source, {ids["ant/same.png"]: 1, ids["bee/same.png"]: 0})
    hs.apply_patch(patch, photos, out=tmp_path / "fixed")
    assert Image.open(tmp_path / "fixed" / "ant" / "same.png").getpixel((0, 0)) == 2
    assert Image.open(tmp_path / "fixed" / "bee" / "same.png").getpixel((0, 0)) == 1


def test_pictures_are_hard_links_or_copies_and_it_says_which(photos, tmp_path):
    patch = made.patch_for(open_source(photos), {0: 1})
    linked = hs.apply_patch(patch, photos, out=tmp_path / "linked")
    copied = hs.apply_patch(patch, photos, out=tmp_path / "copied", copy=True)
    original = photos / "cat" / "nested" / "11.png"
    assert original.samefile(tmp_path / "linked" / "cat" / "nested" / "11.png")
    assert not original.samefile(tmp_path / "copied" / "cat" / "nested" / "11.png")
    assert "12 files are hard links" in linked.notes[0]
    assert copied.notes[0] == "12 files are copies"


def test_a_file_system_without_links_gets_copies(photos, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    done = hs.apply_patch(made.patch_for(open_source(photos), {0: 1}), photos, out=tmp_path / "f")
    assert done.notes[0] == "12 files are copies"


def test_other_files_travel_hidden_ones_do_not_and_emptied_classes_stay(photos, tmp_path):
    (photos / "ant" / "notes.txt").write_text("as they are")
    (photos / ".cache").mkdir()
    (photos / ".cache" / "x").write_text("hidden")
    (photos / "dog").mkdir()
    source = open_source(photos)
    patch = made.patch_for(source, {at: 1 for at in np.flatnonzero(source.labels == 0).tolist()})
    done = hs.apply_patch(patch, photos, out=tmp_path / "fixed")
    fixed = tmp_path / "fixed"
    assert (fixed / "ant" / "notes.txt").read_text() == "as they are"
    assert not (fixed / ".cache").exists()
    assert any("hidden" in note for note in done.notes)
    assert open_source(fixed).classes == source.classes == ("ant", "bee", "cat", "dog")
    assert (open_source(fixed).labels == 0).sum() == 0


def test_a_class_that_is_new_becomes_a_folder(photos, tmp_path):
    patch = made.patch_for(open_source(photos), {0: 3, 1: 5})
    with pytest.raises(PatchError, match=r"has classes that .* does not have \(new 3, new 5\)"):
        open_source(photos, patch=patch)
    hs.apply_patch(patch, photos, out=tmp_path / "fixed")
    found = open_source(tmp_path / "fixed")
    assert found.classes == ("ant", "bee", "cat", "new 3", "new 5")
    assert [found.id_of(at) for at in np.flatnonzero(found.labels == 3)] == ["new 3/nested/0.png"]


HOSTILE = ["../../x", "/etc/x", "..", ".", ".hidden", "a/b", "a\\b", "x\ny", "x\0", "", "c:x"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_class_name_leads_out_of_the_copy(photos, tmp_path, name):
    patch = made.patch_for(open_source(photos), {0: 3}, new_name=name)
    before = made.hashes(tmp_path)
    if name == "":  # then its number is its name
        hs.apply_patch(patch, photos, out=tmp_path / "fixed")
        assert (tmp_path / "fixed" / "3").is_dir()
        return
    with pytest.raises(PatchError, match="cannot be the name of a folder"):
        hs.apply_patch(patch, photos, out=tmp_path / "fixed")
    assert made.hashes(tmp_path) == before


@pytest.mark.parametrize("id", ["../../x", "/etc/passwd", "a\nb", "=cmd|x", "ant/nested/1.png"])
def test_no_id_of_a_patch_is_ever_a_path(photos, tmp_path, id):
    patch = made.patch_for(open_source(photos), {0: 1}, id=id)
    before = made.hashes(tmp_path)
    with pytest.raises(PatchError, match=r"example 0 of .* is 'ant/nested/0\.png', but"):
        hs.apply_patch(patch, photos, out=tmp_path / "fixed")
    assert made.hashes(tmp_path) == before


def test_links_to_pictures_become_the_pictures(photos, tmp_path):
    target = tmp_path / "far.png"
    target.write_bytes(made.png(0))
    (photos / "ant" / "link.png").symlink_to(target)
    (photos / "ant" / "nowhere.png").symlink_to(tmp_path / "gone.png")
    source = open_source(photos)
    done = hs.apply_patch(made.patch_for(source, {5: 2}), photos, out=tmp_path / "fixed")
    copy = tmp_path / "fixed" / "ant" / "link.png"
    assert copy.read_bytes() == made.png(0)
    assert not copy.is_symlink()
    assert any("1 files cannot be read" in note for note in done.notes)


# ---------------------------------------------------------------------------- other forms


def test_a_class_that_is_new_is_written_as_the_others_are(tmp_path):
    cases = {made.named_list: "new 3", made.packed_npz_of_names: "new 3", made.npz: "3",
             made.parquet: "new 3"}  # fmt: skip
    for form, name in cases.items():
        place = tmp_path / form.__name__
        place.mkdir()
        data, options = form(place)
        source = open_source(data, **options)
        columns = {"new_name": "3"} if name == "3" else {}
        out, again, how = made.out_for(data, options, place)
        hs.apply_patch(made.patch_for(source, {0: 3}, **columns), data, out=out, **options)
        found = made.opened(again, how)
        assert found.classes == (*source.classes, name), form
        assert found.labels[0] == 3


def test_a_one_hot_array_has_no_place_for_a_new_class(tmp_path):
    data, _ = made.one_hot_npz(tmp_path)
    patch = made.patch_for(open_source(data), {0: 3}, new_name="3")
    with pytest.raises(PatchError, match="is one-hot with 3 classes and has no place for '3'"):
        hs.apply_patch(patch, data, out=tmp_path / "fixed.npz")


def test_a_class_that_does_not_fit_the_type_is_refused(tmp_path):
    data, _ = made.npz(tmp_path)
    patch = made.patch_for(open_source(data), {0: 300}, new_name="300")
    with pytest.raises(PatchError, match=r"class 300 does not fit into labels of data\.npz"):
        hs.apply_patch(patch, data, out=tmp_path / "fixed.npz")
    assert not (tmp_path / "fixed.npz").exists()


def test_everything_else_in_a_file_is_as_it_was(tmp_path):
    import pyarrow.parquet as pq

    data, _ = made.parquet(tmp_path)
    hs.apply_patch(made.patch_for(open_source(data), NEW), data, out=tmp_path / "fixed.parquet")
    old, new = pq.read_table(data), pq.read_table(tmp_path / "fixed.parquet")
    assert old.schema.equals(new.schema, check_metadata=True)
    assert old.drop(["label"]).equals(new.drop(["label"]))
    data, _ = made.npz(tmp_path)
    hs.apply_patch(made.patch_for(open_source(data), NEW), data, out=tmp_path / "fixed.npz")
    with np.load(data) as old, np.load(tmp_path / "fixed.npz") as new:
        assert old.files == new.files
        assert (str(new["about"]), new["labels"].dtype) == ("a note", np.uint8)
    data, _ = made.named_list(tmp_path)
    hs.apply_patch(made.patch_for(open_source(data), NEW), data, out=tmp_path / "fixed.csv")
    lines = (tmp_path / "fixed.csv").read_text().splitlines()
    assert lines[:3] == ["path;label;note", "pictures/0.png;bee;=note 0",
                         "pictures/1.png;ant;=note 1"]  # fmt: skip


def test_a_list_elsewhere_leads_to_the_same_pictures(tmp_path):
    data, options = made.numbered_list_of_a_split(tmp_path)
    out = tmp_path / "far" / "away" / "fixed.csv"
    done = hs.apply_patch(made.patch_for(open_source(data, **options), NEW), data, out=out,
                          **options)  # fmt: skip
    text = out.read_bytes().decode("utf-8")
    assert text.startswith("\ufeffpath,label,split\r\n../../pictures/0.png,1,train\r\n")
    assert text.count(",test\r\n") == 12
    assert "24 paths were changed" in done.notes[0]


def test_data_that_is_not_in_files_is_patched_while_it_is_read(tmp_path):
    source = open_source("builtin:digits")
    patch = made.patch_for(source, {0: 4})
    with pytest.raises(DataError, match=r"is not in files .* hs\.data\.open_source"):
        hs.apply_patch(patch, "builtin:digits", out=tmp_path / "fixed")
    assert open_source("builtin:digits", patch=patch).labels[0] == 4
    memory = hs.data.decoded(source)
    again = made.patch_for(memory, {0: 4}, dropped=[1])
    assert patched(memory, again).labels[:2].tolist() == [4, memory.labels[2]]


# ---------------------------------------------------------------------------- where it may go


def test_the_data_is_never_written_to(photos, tmp_path):
    patch = made.patch_for(open_source(photos), {0: 1})
    for out in (photos, photos / "inside", tmp_path, photos / ".." / "photos"):
        with pytest.raises(OptionError, match=r"never touched|would become part"):
            hs.apply_patch(patch, photos, out=out, overwrite=True)
    data, _ = made.npz(tmp_path)
    (tmp_path / "link.npz").symlink_to(data)
    patch = made.patch_for(open_source(data), {0: 1})
    for out in (data, tmp_path / "link.npz"):
        with pytest.raises(OptionError, match="is the data itself"):
            hs.apply_patch(patch, data, out=out, overwrite=True)
    with pytest.raises(OptionError, match=r"to end with \.npz, got --out .*fixed"):
        hs.apply_patch(patch, data, out=tmp_path / "fixed")


def test_overwrite_replaces_an_earlier_copy_and_nothing_else(photos, tmp_path):
    out = tmp_path / "fixed"
    source = open_source(photos)
    hs.apply_patch(made.patch_for(source, {0: 1}), photos, out=out)
    with pytest.raises(RunExistsError, match="exists; choose another --out, or replace it"):
        hs.apply_patch(made.patch_for(source, {1: 1}), photos, out=out)
    hs.apply_patch(made.patch_for(source, {1: 1}), photos, out=out, overwrite=True)
    assert (out / "ant" / "nested" / "0.png").exists()
    assert json.loads((out / ".hardsight-patch.json").read_text())["changed"] == 1
    shutil.rmtree(out)
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(RunExistsError, match="is not a folder that hardsight wrote"):
        hs.apply_patch(made.patch_for(source, {1: 1}), photos, out=out, overwrite=True)
    assert (out / "thesis.txt").read_text() == "mine"


def test_a_disk_that_fills_up_leaves_nothing(photos, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copy2", full)
    patch = made.patch_for(open_source(photos), {0: 1})
    with pytest.raises(OutputError, match="No space left on device; free some space"):
        hs.apply_patch(patch, photos, out=tmp_path / "fixed")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["photos"]


def test_a_kill_leaves_nothing_that_looks_like_a_copy(photos, tmp_path, forks):
    write_patch(made.patch_for(open_source(photos), {0: 1}), tmp_path / "patch.csv")
    code = f"from tests.exchange.test_apply import *; apply_until_killed({str(tmp_path)!r})"
    assert forks.start(code).wait() == -9
    assert not (tmp_path / "fixed").exists()
    assert [file for file in tmp_path.iterdir() if file.name.startswith(".tmp-")]
    hs.apply_patch(tmp_path / "patch.csv", photos, out=tmp_path / "fixed")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fixed", "patch.csv", "photos"]


def apply_until_killed(place):
    """End as by the system when half of the files are there."""
    import signal

    place, count, link = Path(place), 0, os.link

    def counting(*args, **options):
        nonlocal count
        count += 1
        if count > 6:
            os.kill(os.getpid(), signal.SIGKILL)
        link(*args, **options)

    os.link = counting
    hs.apply_patch(place / "patch.csv", place / "photos", out=place / "fixed")


def test_lines_of_json_whose_label_stays_are_the_same_to_the_byte(tmp_path):
    data, options = made.lines_of_a_split(tmp_path)
    source = made.opened(data, options)
    patch = made.patch_for(source, {3: 2}, dropped=[5])
    hs.apply_patch(patch, data, out=tmp_path / "fixed.jsonl", **options)
    before, after = (file.read_bytes().split(b"\n") for file in (data, tmp_path / "fixed.jsonl"))
    own = [line for line in before if line.strip()]
    gone, changed = own[2 * 5], own[2 * 3]  # every second row is of another split
    kept = [line for line in before if line.strip() and line not in (gone, changed)]
    rest = [line for line in after if line.strip()]
    assert [line for line in rest if line in kept] == kept
    (new,) = [json.loads(line) for line in rest if line not in kept]
    assert new == {**json.loads(changed), "label": "cat"}
