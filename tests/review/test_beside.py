"""What stands beside an example: similar ones, nearest classes, maps, and what it is itself."""

import base64
import io
import json
import math
import shlex
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

import hardsight as hs
from hardsight.errors import HardsightWarning, MissingDataError, TableError
from hardsight.scores import SCORES
from tests.review import made


def vectors(n=60, width=6, seed=3):
    return np.random.default_rng(seed).normal(size=(n, width))


def keep(run, embeddings, weights=None):
    """As a scoring run keeps them: a file for each shard."""
    (run / "embeddings").mkdir()
    for number, part in enumerate(np.split(embeddings.astype(np.float32), [25, 40])):
        np.save(run / "embeddings" / f"{number:08d}.npy", part)
    if weights is not None:
        np.save(run / "embeddings" / "class_weights.npy", weights.astype(np.float32))


def angles_to(vector, others):
    """In float64, by the definition."""
    cosines = others @ vector / np.linalg.norm(others, axis=1) / np.linalg.norm(vector)
    return np.arccos(np.clip(cosines, -1, 1))


@pytest.fixture
def with_app(run):
    opened = []

    def open_app(**options):
        opened.append(made.App(run, **options))
        return opened[-1]

    yield open_app
    for app in opened:
        app.close()


def test_similar_examples_are_the_nearest_by_angle(run, with_app):
    embeddings = vectors()
    keep(run, embeddings)
    app = with_app()
    assert app.get("start").json()["has_similar"]
    row = 9
    angles = angles_to(embeddings[row], embeddings)
    angles[row] = np.inf
    nearest = np.argsort(angles)[:5]
    found = app.get("similar/18").json()["similar"]
    assert [one["index"] for one in found] == (2 * nearest).tolist()  # every second example
    np.testing.assert_allclose([one["angle"] for one in found], angles[nearest], atol=1e-5)
    assert found[0]["label"] == made.rows_of()["label"][nearest[0]]
    assert found[0]["id"] == made.rows_of()["id"][nearest[0]]


def test_a_scoring_run_keeps_what_the_app_shows(tmp_path):
    """The angles of the app are those of the table, over classes in the table's own numbers."""
    hs.score(
        hs.models.SmallCNN(num_classes=10), "builtin:digits", scores=["avh", "target_angle"],
        keep_embeddings=True, out=tmp_path / "run",
    )  # fmt: skip
    table = hs.read_table(tmp_path / "run")
    app = made.App(tmp_path / "run")
    for index in (0, 7, 500):
        item = app.example(index)
        own = next(one["angle"] for one in item.nearest if one["label"] == item.label)
        # embeddings are kept in half precision
        np.testing.assert_allclose(own, table.column("target_angle")[index], atol=2e-3)
        assert len(app.get(f"similar/{index}").json()["similar"]) == 5
    named = [[one["label"] for one in app.example(index).nearest] for index in (0, 7, 500)]
    app.close()
    # every run keeps the nearest classes of the examples in doubt, also without embeddings
    shutil.rmtree(tmp_path / "run" / "embeddings")
    (tmp_path / "run" / "neighbours.parquet").unlink()
    app = made.App(tmp_path / "run")
    assert app.get("start").json()["nearest_note"] == ""
    for index, labels in zip((0, 7, 500), named, strict=True):
        item = app.example(index)
        assert [one["label"] for one in item.nearest] == labels
        own = next(one["angle"] for one in item.nearest if one["label"] == item.label)
        np.testing.assert_allclose(own, table.column("target_angle")[index], atol=1e-6)
    app.close()
    (tmp_path / "run" / "nearest.parquet").write_bytes(b"PAR1 damaged")
    app = made.App(tmp_path / "run")
    assert app.example(7).nearest == []  # the table has no margin, which would tell two
    app.close()


def test_nearest_classes_are_kept_of_examples_whose_label_is_in_doubt(tmp_path):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    rng = np.random.default_rng(0)
    net[1].weight.data = torch.from_numpy(rng.normal(size=(10, 64)).astype(np.float32))
    scores, plain = ["avh", "model_confidence"], {"mean": (0.0,), "std": (1.0,)}
    table = hs.score(net, "builtin:digits", scores=scores, out=tmp_path / "run", **plain)
    kept = pq.read_table(tmp_path / "run" / "nearest.parquet")
    confidence = table.column("model_confidence")
    wanted = table.column("index")[confidence < 0.9]
    assert 0 < len(wanted) < len(table)
    assert kept["index"].to_pylist() == wanted.tolist()
    assert "nearest classes" not in table.columns


def test_a_copy_is_at_angle_zero_and_what_has_no_angle_is_left_out(run, with_app):
    embeddings = vectors()
    embeddings[20] = 3 * embeddings[9]
    embeddings[21], embeddings[22] = 0, np.nan
    keep(run, embeddings)
    app = with_app()
    found = app.get("similar/18").json()["similar"]
    assert found[0]["index"] == 40
    assert found[0]["angle"] < 1e-6
    assert not {42, 44} & {one["index"] for one in found}
    assert app.get("similar/42").json() == app.get("similar/44").json() == {"similar": []}
    assert app.get("similar/1").status_code == 400


def test_nearest_classes_come_from_stored_weights_and_name_the_label(run, with_app):
    embeddings, weights = vectors(), vectors(12, seed=5)
    keep(run, embeddings, weights)
    item = with_app().example(18)
    angles = angles_to(embeddings[9], weights)
    wanted = np.argsort(angles)[:5].tolist()
    wanted += [item.label] if item.label not in wanted else []
    assert [one["label"] for one in item.nearest] == wanted
    np.testing.assert_allclose([one["angle"] for one in item.nearest], angles[wanted], atol=1e-5)


def test_the_app_says_how_to_get_the_nearest_classes_if_they_were_not_kept(run, with_app):
    note = with_app().get("start").json()["nearest_note"]
    assert note.endswith("similar examples if it has --keep-embeddings")
    keep(run, vectors(), vectors(12, seed=5))
    assert with_app().get("start").json()["nearest_note"] == ""


def test_a_tracked_training_keeps_the_nearest_classes_of_its_suspects(tmp_path):
    quiet = {"device": "cpu", "show_progress": False, "workers": 0}
    done = hs.train(
        "small_cnn", "builtin:digits", split="train", out=tmp_path / "run", epochs=2, track=True,
        batch_size=128, thumbnails=0, **quiet,
    )  # fmt: skip
    # the same angles by another way
    scored = hs.score(
        done.model, "builtin:digits", split="train", scores=["avh", "target_angle"],
        preprocessing=done.preprocessing, **quiet,
    )  # fmt: skip
    own = dict(zip(scored.column("index"), scored.column("target_angle"), strict=True))
    rows = pq.read_table(tmp_path / "run" / "nearest.parquet").to_pylist()
    kept = {row["index"]: row for row in rows}
    table = done.dynamics
    label = dict(zip(table.column("index"), table.column("label"), strict=True))
    assert set(table.suspects(100)["index"]) <= set(kept)
    for index, row in kept.items():
        angles = dict(zip(row["classes"], row["angles"], strict=True))
        np.testing.assert_allclose(angles[label[index]], own[index], atol=1e-4)
        assert row["angles"] == sorted(row["angles"])
    app = made.App(tmp_path / "run")
    start, first = app.get("start").json(), int(table.suspects(1)["index"].iloc[0])
    shown = [one["label"] for one in app.example(first).nearest]
    app.close()
    assert start["has_nearest"]
    assert start["nearest_note"] == ""
    assert shown == kept[first]["classes"]


def tracked_run(folder):
    """The table of a tracked training, which has no angles."""
    columns = {"suspicion": np.linspace(0, 1, 60, dtype=np.float32), **made.rows_of()}
    for name in ("avh", "target_angle", "angular_margin"):
        del columns[name]
    return made.save(folder, columns, data={"spec": "my photos", "split": None})


def test_a_tracked_training_without_angles_says_how_to_get_the_nearest_classes(tmp_path):
    run = tracked_run(tmp_path / "my run")
    app = made.App(run)
    note = app.get("start").json()["nearest_note"]
    app.close()
    assert "run `hardsight score` and review its result" in note
    (tmp_path / "my run" / "model.json").write_text("{}")
    app = made.App(run)
    note = app.get("start").json()["nearest_note"]
    app.close()
    command = note.partition("`")[2].partition("`")[0]
    words = shlex.split(command)
    assert words[:4] == ["hardsight", "score", "--model", str(run)]
    assert words[4:6] == ["--data", "my photos"]
    assert note.endswith(f"review {run}-scores")


def test_on_the_map_of_a_tracked_training_only_suspects_are_orange(tmp_path):
    columns = made.rows_of()
    # every example lost an epoch to some rival, but only the wrong ones lost most of them
    wrong = np.arange(60) % 10 == 9
    columns["suspicion"] = np.where(wrong, 0.9, 0.2).astype(np.float32)
    columns["rival"] = (columns["label"] + 1) % 4
    named = {name: SCORES[name].facts() for name in made.SCORE_NAMES}
    scores = {**named, "suspicion": hs.tracking.SUMMARIES["suspicion"].facts()}
    app = made.App(made.save(tmp_path / "run", columns, scores=scores))
    drawn = np.asarray(Image.open(io.BytesIO(app.get("map").content)).convert("RGBA")).astype(int)
    app.close()
    red, _, blue, _ = drawn[drawn[..., 3] > 0].T
    assert 0 < (red > blue).mean() < 0.3


def test_a_class_is_named_as_the_nearest_only_if_the_angles_say_so(tmp_path):
    columns = made.rows_of()
    columns["angular_margin"][19] = 0.2  # the model says another class, and the label is nearer
    app = made.App(made.save(tmp_path / "run", columns))
    named, unnamed = app.example(18).nearest, app.example(38).nearest
    app.close()
    assert [one["label"] for one in named] == columns_of(columns, 9)
    assert [one["label"] for one in unnamed] == [columns["label"][19], -1]


def columns_of(columns, row):
    return [columns["prediction"][row], columns["label"][row]]


@pytest.mark.parametrize("content", [vectors(59), vectors(60)[:, 0], np.ones((60, 3), int)])
def test_embeddings_of_another_shape_are_not_used(run, with_app, content):
    (run / "embeddings").mkdir()
    np.save(run / "embeddings" / "00000000.npy", content)
    app = with_app()
    assert not app.get("start").json()["has_similar"]
    assert app.get("similar/18").json() == {"similar": []}
    assert len(app.example(18).nearest) == 2  # what the table itself tells


def test_a_pickle_in_place_of_embeddings_is_never_opened(run, with_app):
    (run / "embeddings").mkdir()
    np.save(run / "embeddings" / "00000000.npy", np.array([{"a": 1}] * 60), allow_pickle=True)
    assert not with_app().get("start").json()["has_similar"]


def card(folder, *, fingerprint="f00d", map_=None, id="class-1/0009.png"):
    sink = io.BytesIO()
    Image.new("RGB", (96, 96), (200, 80, 10)).save(sink, "PNG")
    encoded = base64.b64encode(sink.getvalue()).decode() if map_ is None else map_
    content = {
        "models": [{"name": "net"}],
        "data": {"spec": "photos", "fingerprint": fingerprint},
        "explanations": [{"id": id, "label": 2, "models": [{"prediction": 1, "map": encoded}]}],
    }
    folder.mkdir(exist_ok=True)
    (folder / "card.json").write_text(json.dumps(content))
    return folder


def test_maps_of_a_card_are_shown_for_their_examples(run, with_app, tmp_path):
    app = with_app(card=card(tmp_path / "card"))
    assert app.example(18).map == 1
    assert app.example(38).map is None
    answer = app.get("pictures", of="18,38", size="map")
    length = int.from_bytes(answer.content[:4], "little")
    (kind, _, size), (_, note, none) = json.loads(answer.content[4 : 4 + length])
    assert (kind, none, note) == ("image/jpeg", 0, "no map")
    assert size > 100


def test_a_map_that_is_not_a_picture_is_not_sent(run, with_app, tmp_path):
    bad = base64.b64encode(b"<svg onload=alert(1)>").decode()
    app = with_app(card=card(tmp_path / "card", map_=bad))
    answer = app.get("pictures", of="18", size="map")
    assert b"<svg" not in answer.content
    assert b"cannot be read" in answer.content


def test_a_card_that_cannot_be_used_is_refused(run, tmp_path):
    with pytest.raises(MissingDataError, match=r"no evaluation card at .* `hardsight evaluate`"):
        made.App(run, card=tmp_path)
    with pytest.raises(TableError, match="is about photos and the table is about nowhere/photos"):
        made.App(run, card=card(tmp_path / "other", fingerprint="other"))
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(TableError, match="is not an evaluation card"):
        made.App(run, card=tmp_path)
    with pytest.raises(TableError, match="a map cannot be read"):
        made.App(run, card=card(tmp_path / "damaged", map_="&&&"))


def test_the_dashboard_counts_per_class(app):
    item = app.queue()["items"][0]
    app.decide(item, "relabel", item["suggestion"])
    board = app.get("dashboard").json()
    labels = made.rows_of()["label"]
    wrong = np.arange(60) % 10 == 9
    for one in board["classes"]:
        assert one["suspects"] == (wrong & (labels == one["label"])).sum()
        own = one["label"] == item["label"]
        assert (one["decided"], one["changed"]) == ((1, 1) if own else (0, 0))
    assert sum(one["suspects"] for one in board["classes"]) == 6
    assert board["more_classes"] == 0
    assert math.isclose(board["accuracy"]["after"] - board["accuracy"]["before"], 1 / 60)


def test_pictures_whose_labels_lie_apart_are_shown(tmp_path):
    columns = {name: values[:6] for name, values in made.rows_of().items()}
    columns |= {"index": np.arange(6), "id": [str(at) for at in range(6)]}
    run = made.save(tmp_path / "run", columns, thumbnails=False)
    np.save(tmp_path / "pictures.npy", np.full((6, 9, 9, 3), 7, np.uint8))
    app = made.App(run, data=str(tmp_path / "pictures.npy"))
    try:
        content = app.get("pictures", of="4", size="large").content
    finally:
        app.close()
    length = int.from_bytes(content[:4], "little")
    assert json.loads(content[4 : 4 + length])[0][:2] == ["image/png", ""]


def test_a_filter_by_text_looks_at_ids_names_of_classes_and_texts(tmp_path):
    columns = {name: values[:6] for name, values in made.rows_of().items()}
    columns |= {"index": np.arange(6), "id": [str(at) for at in range(6)]}
    run = made.save(tmp_path / "run", columns, thumbnails=False)
    words = ["A quiet Film", "loud", "a film again", "nothing", "no", "Ünruhig (50%)"]
    lines = [f'"{text}",{label}' for text, label in zip(words, columns["label"], strict=True)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    app = made.App(run, data=str(tmp_path / "reviews.csv"))

    def found(text):
        answer = app.get("grid", text=text, sort="index", order="asc").json()
        assert answer["searched"] == "ids, class names and texts"
        return answer["index"]

    try:
        assert found("film") == [0, 2]
        assert found("ünruhig") == found("(50%)") == [5]  # a text, not a pattern
        assert found("4") == [4]  # an id
        names = np.array(["ant", "bee", "cat", "dog"])
        said = (names[columns["label"]] == "bee") | (names[columns["prediction"]] == "bee")
        assert found("BEE") == np.flatnonzero(said).tolist()
        assert app.get("grid").json()["searched"] == ""
        assert app.queue(only="all", text="film")["total"] == 2
    finally:
        app.close()


def test_texts_that_are_others_by_now_are_not_searched(tmp_path):
    columns = {name: values[:6] for name, values in made.rows_of().items()}
    columns |= {"index": np.arange(6), "id": [f"{at}.png" for at in range(6)]}
    run = made.save(tmp_path / "run", columns, thumbnails=False)
    (tmp_path / "reviews.csv").write_text("text,label\n" + "film,a\nmore film,b\n" * 3)
    app = made.App(run, data=str(tmp_path / "reviews.csv"))
    try:
        assert app.get("grid", text="film").json()["total"] == 0
    finally:
        app.close()


def test_without_texts_the_page_says_that_only_ids_and_names_were_searched(app):
    assert app.get("grid", text="class-2/").json()["searched"] == "ids and class names"


def test_a_run_with_a_row_per_token_is_refused_with_the_next_step(tmp_path):
    about = {"spec": "text", "split": None, "fingerprint": "f00d", "sentences": True}
    run = made.save(tmp_path / "run", data=about)
    with pytest.raises(TableError, match=r"a row for each token .*; look at its report"):
        made.App(run)


class FailsInEvaluation(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.was_trained = nn.Linear(64, 10), False

    def forward(self, x):
        self.was_trained |= self.training
        if self.was_trained and not self.training:
            raise ValueError("no evaluation here")
        return self.fc(x.flatten(1))


def test_a_model_that_fails_in_evaluation_does_not_take_the_training_with_it(tmp_path):
    with pytest.warns(HardsightWarning, match="review shows no angles: .*no evaluation here"):
        done = hs.train(
            FailsInEvaluation(), "builtin:digits", split="train", out=tmp_path / "run", epochs=1,
            validation=0.0, track=True, thumbnails=0, device="cpu", show_progress=False, workers=0,
        )  # fmt: skip
    assert len(done.dynamics) == 1348
    assert not (tmp_path / "run" / "nearest.parquet").exists()
