"""`patch` of score and train: the labels that people decided on are used at once."""

import numpy as np
import pytest

import hardsight as hs
from hardsight.data import open_source
from hardsight.errors import PatchError, RunMismatchError
from hardsight.exchange import apply_patch, patch_of
from hardsight.models import SmallCNN
from hardsight.patch import write_patch
from tests.exchange import made
from tests.review.made import App

OPTIONS = {"device": "cpu", "show_progress": False}


@pytest.fixture
def photos(tmp_path):
    return made.folder(tmp_path)[0]


@pytest.fixture
def model():
    return SmallCNN(num_classes=3, seed=0).eval()


def test_score_uses_the_fixed_labels_and_says_with_which_patch(photos, model, tmp_path):
    source = open_source(photos)
    patch = made.patch_for(source, {0: 1, 4: 2}, dropped=[7])
    file = write_patch(patch, tmp_path / "patch.csv")
    table = hs.score(model, photos, patch=file, out=tmp_path / "run", **OPTIONS)
    plain = hs.score(model, photos, **OPTIONS)
    assert table.column("label").tolist() == [1, 0, 0, 0, 2, 1, 1, 2, 2, 2, 2]
    assert table.column("index").tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]
    # the rows whose label is as it was have the scores that they had
    same = np.setdiff1d(np.arange(12), [0, 4, 7])
    old = plain.to_pandas().set_index("index").loc[same, "avh"]
    new = table.to_pandas().set_index("index").loc[same, "avh"]
    np.testing.assert_allclose(new, old, rtol=1e-5)
    (facts,) = table.metadata["data"]["patches"]
    assert (facts["changed"], facts["dropped"], facts["digest"]) == (2, 1, patch.digest)
    assert facts["of"] == source.fingerprint()
    assert table.metadata["data"]["spec"] == str(photos)


def test_a_run_goes_on_with_its_own_patch_alone(photos, model, tmp_path):
    source, out = open_source(photos), tmp_path / "run"
    first = write_patch(made.patch_for(source, {0: 1}), tmp_path / "first.csv")
    other = write_patch(made.patch_for(source, {0: 2}), tmp_path / "other.csv")
    hs.score(model, photos, patch=first, out=out, **OPTIONS)
    moved = first.rename(tmp_path / "moved.csv")
    hs.score(model, photos, patch=moved, out=out, resume=True, **OPTIONS)
    for patch in (other, None, [moved, moved]):
        with pytest.raises((RunMismatchError, PatchError), match=r"patch = |is about other data"):
            hs.score(model, photos, patch=patch, out=out, resume=True, **OPTIONS)


def test_a_patched_run_is_reviewed_and_patched_again(photos, model, tmp_path):
    first = made.patch_for(open_source(photos), {0: 1})
    hs.score(model, photos, patch=first, out=tmp_path / "run", **OPTIONS)
    app = App(tmp_path / "run")
    item = vars(app.example(4))
    assert app.decide(item, "relabel", 2).status_code == 200
    app.close()
    second = patch_of(tmp_path / "run")
    fixed = open_source(photos, patch=[first, second])
    assert fixed.labels[[0, 4]].tolist() == [1, 2]
    done = apply_patch([first, second], photos, out=tmp_path / "fixed")
    assert done.changed == 2
    with pytest.raises(PatchError, match="is about other data"):
        apply_patch(second, photos, out=tmp_path / "other")


def test_stored_embeddings_are_scored_with_the_fixed_labels(tmp_path):
    data, _ = made.npz_embeddings(tmp_path)
    source = open_source(data)
    table = hs.score(None, data, patch=made.patch_for(source, {0: 1}), **OPTIONS)
    assert table.column("label")[:2].tolist() == [1, 0]
    with pytest.raises(hs.errors.DataError, match="cannot be left out while they are read"):
        open_source(data, patch=made.patch_for(source, {}, dropped=[0]))


def test_training_learns_the_fixed_labels_and_validates_on_others(tmp_path):
    data, _ = made.split_folder(tmp_path)
    source = open_source(data, split="train")
    file = write_patch(made.patch_for(source, {0: 1, 4: 2}, dropped=[7]), tmp_path / "patch.csv")
    recipe = {
        "split": "train", "validation_split": "test", "patch": str(file), "epochs": 1,
        "batch_size": 4, "device": "cpu", "workers": 0, "track": True, "thumbnails": 0,
    }  # fmt: skip
    (data / "test" / "ant" / "nested" / "0.png").unlink()  # so that it is another split
    with pytest.warns(hs.errors.HardsightWarning, match="are also in the training data"):
        hs.train("small_cnn", data, out=tmp_path / "run", show_progress=False, **recipe)
    table = hs.read_table(tmp_path / "run")
    assert table.column("index").tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]
    assert table.column("label").tolist() == [1, 0, 0, 0, 2, 1, 1, 2, 2, 2, 2]
    assert table.metadata["data"]["patches"][0]["changed"] == 2
    assert table.metadata["class_order"]["taken"] == "position"
    write_patch(made.patch_for(source, {0: 2}), file, overwrite=True)
    with pytest.raises(RunMismatchError, match="other training data"):
        hs.train(
            "small_cnn", data, out=tmp_path / "run", show_progress=False, resume=True, **recipe
        )


def test_a_stream_cannot_be_patched(photos):
    patch = made.patch_for(open_source(photos), {0: 1})
    with pytest.raises(hs.errors.DataError, match="is a stream, which cannot be patched"):
        open_source(iter([(np.zeros(3, np.float32), 0)]), patch=patch)
