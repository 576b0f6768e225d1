"""The scoring run from Python: what goes in, what comes out, what is said when it cannot."""

from __future__ import annotations

import json
import math
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import hardsight as hs
from hardsight.data import MemorySource, decoded, open_source
from hardsight.errors import (
    BadExampleError,
    DataError,
    HardsightWarning,
    HeadMismatchError,
    HeadNotFoundError,
    LabelError,
    ModelError,
    OptionError,
    RunExistsError,
    RunMismatchError,
    ShapeError,
    UnknownNameError,
)
from hardsight.models import SmallCNN, StoredModel
from hardsight.preprocessing import Preprocessing
from hardsight.run.score import ScoreConfig, run_score
from hardsight.table import RunFolder


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_scores_of_stored_embeddings_match_their_equations_in_float64(embeddings_file):
    table = hs.score(None, embeddings_file)
    stored = np.load(embeddings_file)
    x, w = stored["embeddings"].astype(float), stored["class_weights"].astype(float)
    y, rows = stored["labels"], np.arange(500)
    cosines = (x @ w.T) / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(w, axis=1))
    angles = np.arccos(cosines)
    logits = x @ w.T + stored["bias"]
    probs = softmax(logits)
    others = np.where(np.arange(4) == y[:, None], -np.inf, logits)
    expected = {
        "avh": angles[rows, y] / angles.sum(1),
        "target_angle": angles[rows, y],
        "feature_norm": np.linalg.norm(x, axis=1),
        "model_confidence": probs[rows, y],
        "logit_margin": logits[rows, y] - others.max(1),
        "el2n": np.linalg.norm(probs - np.eye(4)[y], axis=1),
        "entropy": -(probs * np.log(probs)).sum(1),
        "conditional_energy": -logits[rows, y],
        "min_energy": -logits.max(1),
        "free_energy": -np.log(np.exp(logits).sum(1)),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(table.column(name), values, rtol=2e-4, atol=2e-5, err_msg=name)
    np.testing.assert_array_equal(table.column("prediction"), logits.argmax(1))
    np.testing.assert_array_equal(table.column("index"), rows)


def test_a_model_and_its_stored_embeddings_give_the_same_scores(tmp_path):
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU()), nn.Linear(8, 5)
    images, labels = torch.rand(70, 1, 4, 4), torch.arange(70) % 5
    by_model = hs.score(nn.Sequential(body, head), TensorDataset(images, labels), batch_size=16)
    with torch.no_grad():
        features = body(images).numpy()
    by_file = hs.score(
        hs.heads.Head(name="stored", weight=head.weight.detach(), bias=head.bias.detach()),
        features,
        labels=labels.numpy(),
    )
    assert by_model.scores == by_file.scores
    for name in by_model.scores:
        np.testing.assert_allclose(
            by_model.column(name), by_file.column(name), rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_the_table_states_where_its_numbers_come_from(tmp_path):
    table = hs.score(
        SmallCNN(), "builtin:digits", split="test", out=tmp_path / "run", sample="out-of-sample"
    )
    about = table.metadata
    assert about["sample"] == "out-of-sample"
    assert about["config"]["device"] in ("cpu", "cuda", "mps")
    assert about["data"]["rows"] == len(table) == 449
    assert len(about["data"]["fingerprint"]) == 64
    assert about["model"]["head"] == "head"
    assert len(about["model"]["digest"]) == 64
    assert about["versions"]["torch"] == version("torch")
    assert about["scores"]["avh"] == {
        "version": 1, "low": 0.0, "high": 1.0, "higher_is_harder": True,
        "meaning": about["scores"]["avh"]["meaning"],
    }  # fmt: skip
    assert about["classes"] == [str(digit) for digit in range(10)]
    assert about["counts"] == {"errors": 0, "non_finite": 0}
    assert 0 <= about["bias"]["flip_rate"] <= 1
    assert hs.read_table(tmp_path / "run").metadata == about


def test_a_folder_of_images_with_a_users_own_model_file(photos, net_file, tmp_path):
    table = hs.score(f"{net_file}:make", photos, out=tmp_path / "run", size=(8, 8), mean=(0.5,))
    assert len(table) == 36
    assert table.classes == ["blue", "green", "red"]
    assert table.to_pandas()["id"][0] == "blue/00.png"
    assert table.metadata["preprocessing"]["size"] == [8, 8]
    assert "as given" in table.metadata["preprocessing"]["origin"]
    pictures = RunFolder(tmp_path / "run").thumbnails()
    assert sorted(pictures) == list(range(36))
    assert pictures[0].startswith((b"\x89PNG", b"\xff\xd8"))


def test_a_dataloader_is_scored_in_the_order_of_its_dataset():
    torch.manual_seed(0)
    images, labels = torch.rand(50, 1, 8, 8), torch.arange(50) % 10
    model = SmallCNN()
    shuffled = DataLoader(TensorDataset(images, labels), batch_size=7, shuffle=True)
    table = hs.score(model, shuffled)
    plain = hs.score(model, TensorDataset(images, labels), batch_size=7)
    np.testing.assert_array_equal(table.column("label"), labels.numpy())
    np.testing.assert_array_equal(table.column("avh"), plain.column("avh"))


def test_a_hugging_face_dataset_is_scored():
    from datasets import Dataset, Features, Image, Value
    from PIL import Image as Pillow

    pictures = [Pillow.new("L", (8, 8), shade) for shade in range(0, 200, 10)]
    data = Dataset.from_dict(
        {"image": pictures, "label": [shade % 2 for shade in range(20)]},
        features=Features({"image": Image(), "label": Value("int64")}),
    )
    table = hs.score(SmallCNN(num_classes=2), data)
    assert len(table) == 20


def test_only_the_asked_for_scores_are_columns(embeddings_file):
    table = hs.score(None, embeddings_file, scores=["entropy", "avh"])
    assert table.columns == ["index", "id", "label", "prediction", "finite", "entropy", "avh"]


def test_the_progress_bar_shows_a_name_with_brackets_as_it_is(embeddings_file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # room for the whole path
    odd = embeddings_file.rename(embeddings_file.with_name("[b] [x].npz"))
    assert len(hs.score(None, odd, show_progress=True)) == 500
    assert "[b] [x].npz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [("mean", math.nan), ("mean", math.inf), ("std", math.inf), ("std", math.nan),
     ("white", math.inf)],
)  # fmt: skip
def test_pixels_are_not_turned_into_something_that_is_no_number(photos, net_file, option, value):
    given = value if option == "white" else (value,)
    with pytest.raises(OptionError, match=rf"{option}.* finite.* got .*{value}"):
        hs.score(f"{net_file}:make", photos, size=(8, 8), scores="entropy", **{option: given})


def test_one_score_may_be_named_without_a_list(embeddings_file):
    assert hs.score(None, embeddings_file, scores="avh").scores == ["avh"]


def test_the_class_normalized_norm_alone_brings_no_other_column(embeddings_file):
    table = hs.score(None, embeddings_file, scores=["class_normalized_feature_norm"])
    assert table.scores == ["class_normalized_feature_norm"]
    values, labels = table.column("class_normalized_feature_norm"), table.column("label")
    for label in range(4):
        assert values[labels == label].min() == 0
        assert values[labels == label].max() == 1


def test_scores_that_need_no_head_work_without_one():
    class NoHead(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :3] ** 2

    data = TensorDataset(torch.rand(9, 1, 2, 2), torch.arange(9) % 3)
    table = hs.score(NoHead(), data, scores=["model_confidence"])
    assert table.scores == ["model_confidence"]
    with pytest.raises(HeadNotFoundError, match=r"Scores that need no head: .*model_confidence"):
        hs.score(NoHead(), data, scores=["avh"])


def test_probabilities_are_not_taken_for_logits():
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    data = TensorDataset(torch.randn(6, 4), torch.arange(6) % 3)
    for scores in (["entropy"], None):
        with pytest.raises((ModelError, HeadMismatchError), match="remove the softmax"):
            hs.score(net, data, scores=scores)


def test_a_model_with_one_output_is_told_that_it_needs_two():
    data = TensorDataset(torch.randn(6, 4), torch.arange(6) % 2)
    with pytest.raises(LabelError, match=r"has 1 output.* two outputs: torch\.cat"):
        hs.score(nn.Sequential(nn.Linear(4, 1)), data)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_is_scored_without_a_head_and_else_explained():
    script = torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    data = TensorDataset(torch.randn(6, 4), torch.arange(6) % 3)
    assert len(hs.score(script, data, scores=["entropy"])) == 6
    with pytest.raises(HeadNotFoundError, match=r"TorchScript .*Scores that need no head: model_c"):
        hs.score(script, data, scores=["avh"])
    assert "TorchScript" in hs.score(script, data).metadata["missing"]["reason"]


def test_a_model_in_train_mode_is_scored_in_eval_mode_and_left_in_train_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(64, 3))
    model.train()
    data = TensorDataset(torch.rand(30, 1, 8, 8), torch.arange(30) % 3)
    first, second = hs.score(model, data), hs.score(model, data)
    np.testing.assert_array_equal(first.column("avh"), second.column("avh"))
    assert model.training
    assert model[1].training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_model_in_another_precision_takes_pictures_in_float32(photos, dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.ReLU(), nn.Linear(16, 3))
    expected = hs.score(net, photos, size=(8, 8))
    table = hs.score(net.to(dtype), photos, size=(8, 8))
    np.testing.assert_allclose(table.column("avh"), expected.column("avh"), atol=0.01)
    assert not net._forward_pre_hooks


def test_nan_embeddings_are_kept_flagged_and_counted(embeddings_file, tmp_path):
    stored = dict(np.load(embeddings_file))
    stored["embeddings"][[3, 77]] = np.nan
    stored["embeddings"][5, 0] = np.inf
    np.savez(tmp_path / "bad.npz", **stored)
    table = hs.score(None, tmp_path / "bad.npz")
    clean = hs.score(None, embeddings_file)
    assert len(table) == 500
    assert np.flatnonzero(~table.column("finite")).tolist() == [3, 5, 77]
    assert table.metadata["counts"]["non_finite"] == 3
    assert table.column("prediction")[3] == -1
    good = table.column("finite")
    np.testing.assert_allclose(table.column("avh")[good], clean.column("avh")[good], rtol=1e-5)
    assert set(table.hardest(500)["index"]).isdisjoint({3, 77})


def test_unreadable_images_are_listed_and_the_rest_is_scored(photos, net_file, tmp_path):
    (photos / "red" / "zz-empty.png").touch()
    whole = (photos / "green" / "00.png").read_bytes()
    (photos / "green" / "00.png").write_bytes(whole[: len(whole) // 2])
    table = hs.score(f"{net_file}:make", photos, out=tmp_path / "run", size=(8, 8))
    assert len(table) == 35
    errors = RunFolder(tmp_path / "run").errors()
    assert errors["id"].tolist() == ["green/00.png", "red/zz-empty.png"]
    assert all(errors["reason"])
    assert table.metadata["counts"]["errors"] == 2
    assert 12 not in table.column("index")
    with pytest.raises(BadExampleError, match=r"green/00.png cannot be read: .*repair it"):
        hs.score(f"{net_file}:make", photos, size=(8, 8), strict=True)


def test_a_whole_batch_of_unreadable_images_does_not_stop_the_run(photos, net_file):
    for number in range(4):
        (photos / "blue" / f"{number:02d}.png").write_bytes(b"no image")
    table = hs.score(f"{net_file}:make", photos, size=(8, 8), batch_size=2)
    assert len(table) == 32


def test_when_no_image_can_be_read_the_error_says_so(photos, net_file, tmp_path):
    for file in photos.rglob("*.png"):
        file.write_bytes(b"no image")
    said = r"none of the 36 examples of .* the first, blue/00.png: not an image"
    with pytest.raises(DataError, match=said):
        hs.score(f"{net_file}:make", photos, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_never_overwritten(embeddings_file, tmp_path):
    hs.score(None, embeddings_file, out=tmp_path / "run")
    with pytest.raises(RunExistsError, match="holds a finished scored dataset; choose another"):
        hs.score(None, embeddings_file, out=tmp_path / "run")
    again = hs.score(None, embeddings_file, out=tmp_path / "run", resume=True)
    assert len(again) == 500


def test_a_finished_table_is_not_passed_off_as_one_of_other_data(embeddings_file, tmp_path):
    hs.score(None, embeddings_file, out=tmp_path / "run")
    stored = dict(np.load(embeddings_file))
    np.savez(tmp_path / "few.npz", **{**stored, "embeddings": stored["embeddings"][:90],
                                      "labels": stored["labels"][:90]})  # fmt: skip
    with pytest.raises(RunMismatchError, match="it has other data; use the same settings"):
        hs.score(None, tmp_path / "few.npz", out=tmp_path / "run", resume=True)
    np.savez(embeddings_file, **{**stored, "bias": stored["bias"][::-1]})
    with pytest.raises(RunMismatchError, match="it has other data; other model"):
        hs.score(None, embeddings_file, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("wide", ["embeddings", "class_weights", "bias"])
def test_stored_tensors_of_different_precision_give_the_same_scores(
    embeddings_file, tmp_path, wide
):
    stored = dict(np.load(embeddings_file))
    np.savez(tmp_path / "wide.npz", **{**stored, wide: stored[wide].astype(np.float64)})
    expected = hs.score(None, embeddings_file)
    found = hs.score(None, tmp_path / "wide.npz")
    np.testing.assert_allclose(found.column("avh"), expected.column("avh"), rtol=1e-5)
    assert (found.column("prediction") == expected.column("prediction")).all()
    assert found.metadata["bias"] == expected.metadata["bias"]


def test_a_trained_model_is_taken_by_the_path_of_its_folder(tmp_path):
    StoredModel("small_cnn", {}, Preprocessing(), ()).write(tmp_path, SmallCNN().state_dict())
    assert len(hs.score(tmp_path, "builtin:digits", split="test")) == 449


def test_an_unfinished_run_is_named_and_not_touched(embeddings_file, tmp_path):
    _interrupted(embeddings_file, tmp_path / "run", after=2)
    before = sorted((tmp_path / "run").rglob("*"))
    with pytest.raises(RunExistsError, match=r"unfinished .* \(2 shards\); continue it with --r"):
        hs.score(None, embeddings_file, out=tmp_path / "run", shard_rows=50, batch_size=50)
    assert sorted((tmp_path / "run").rglob("*")) == before


def test_resuming_with_other_data_or_settings_is_refused(embeddings_file, tmp_path):
    _interrupted(embeddings_file, tmp_path / "run", after=2)
    options = {"out": tmp_path / "run", "shard_rows": 50, "resume": True}
    with pytest.raises(RunMismatchError, match="it has batch_size = 50 instead of 25"):
        hs.score(None, embeddings_file, batch_size=25, **options)
    with pytest.raises(RunMismatchError, match=r"it has scores = \[.*\] instead of \['avh'\]"):
        hs.score(None, embeddings_file, batch_size=50, scores=["avh"], **options)
    stored = dict(np.load(embeddings_file))
    stored["labels"] = (stored["labels"] + 1) % 4
    np.savez(embeddings_file, **stored)
    with pytest.raises(RunMismatchError, match="it has other data"):
        hs.score(None, embeddings_file, batch_size=50, **options)


def _interrupted(data: Path, out: Path, *, after: int) -> None:
    """A run that dies when it writes shard number ``after``."""
    original = RunFolder.write_shard

    def dying(self, number, rows, errors, **more):
        if number == after:
            raise KeyboardInterrupt
        original(self, number, rows, errors, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "write_shard", dying)
        with pytest.raises(KeyboardInterrupt):
            hs.score(None, data, out=out, shard_rows=50, batch_size=50)


CODE = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, images):
        return super().forward({images})
"""


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_does_not_go_on_in_changed_code_with_the_same_weights(tmp_path, is_finished):
    file, out = tmp_path / "net.py", tmp_path / "run"
    file.write_text(CODE.format(images="images"))

    def score(**options):
        return hs.score(
            f"{file}:Net", "builtin:digits", split="test", out=out, device="cpu", seed=3,
            batch_size=50, shard_rows=50, **options,
        )  # fmt: skip

    if is_finished:
        score()
    else:
        original = RunFolder.write_shard

        def dying(self, number, rows, errors, **more):
            if number == 3:
                raise KeyboardInterrupt
            original(self, number, rows, errors, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunFolder, "write_shard", dying)
            with pytest.raises(KeyboardInterrupt):
                score()
    before = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    file.write_text(CODE.format(images="images.flip(3)"))
    with pytest.raises(
        RunMismatchError,
        match=r"results of the first examples have changed.*same weights in changed code",
    ):
        score(resume=True)
    assert {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    file.write_text(CODE.format(images="images + 0.0"))  # other code, the same outputs
    assert len(score(resume=True)) == 449


def test_a_resumed_run_ends_with_the_same_bytes(embeddings_file, tmp_path):
    hs.score(None, embeddings_file, out=tmp_path / "whole", shard_rows=50, batch_size=50)
    _interrupted(embeddings_file, tmp_path / "broken", after=3)
    hs.score(
        None, embeddings_file, out=tmp_path / "broken", shard_rows=50, batch_size=50, resume=True
    )
    for name in ("table.parquet", "errors.parquet"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes()
    assert not (tmp_path / "broken" / "shards").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scores": ["avhh"]}, UnknownNameError, "unknown score 'avhh'. Did you mean 'avh'?"),
        ({"scores": ["avc"]}, ModelError, "one value per class, not a column"),
        ({"scores": "avhh"}, UnknownNameError, "unknown score 'avhh'. Did you mean 'avh'?"),
        ({"batch_size": 0}, OptionError, "expected batch_size to be 1 or more, got 0"),
        ({"shard_rows": 0}, OptionError, "expected shard_rows to be 1 or more, got 0"),
        ({"thumbnails": -1}, OptionError, "expected thumbnails to be 0 or more, got -1"),
        ({"device": "cuda:99"}, OptionError, "device 'cuda:99' cannot be used here"),
        ({"device": "gpu"}, OptionError, "device 'gpu' cannot be used here"),
        ({"sample": "maybe"}, OptionError, "expected sample to be one of unknown, in-sample"),
        ({"class_weights": np.zeros((4, 9))}, ShapeError, "of the same width D"),
        ({"batch_size": "8"}, OptionError, "expected batch_size to be a whole number or None, got"),
        ({"batch_size": 8.5}, OptionError, "expected batch_size to be a whole number or None, got"),
        ({"batch_size": True}, OptionError, "expected batch_size to be a whole number"),
        ({"mean": 0.5}, OptionError, "expected mean to be a list of numbers such as"),
        ({"std": ("a",)}, OptionError, "expected std to be a list of numbers such as"),
        ({"size": "8"}, OptionError, "expected size to be a whole number or a list of 2 whole num"),
        ({"size": (8, 8, 8)}, OptionError, "a whole number or a list of 2 whole numbers such as"),
        ({"strict": "no"}, OptionError, "expected strict to be True or False, got 'no'"),
        (
            {"scores": 3},
            OptionError,
            "expected scores to be text or a list of names or None, got 3",
        ),
        ({"out": 3}, OptionError, "expected out to be text or a path or None, got 3"),
        ({"output": 1.5}, OptionError, "expected output to be a whole number or text or None"),
    ],
)
def test_wrong_options_are_named(embeddings_file, options, error, message):
    with pytest.raises(error, match=message.replace("?", r"\?")):
        hs.score(None, embeddings_file, **options)


def test_embeddings_without_a_head_ask_for_one(tmp_path):
    np.savez(tmp_path / "e.npz", embeddings=np.ones((4, 3), "f4"), labels=np.array([0, 1, 0, 1]))
    with pytest.raises(
        OptionError, match=r"no class weights; pass class_weights=FILE.*--out-of-sample 5"
    ):
        hs.score(None, tmp_path / "e.npz")
    with pytest.raises(OptionError, match="embeddings, which need no model"):
        hs.score(SmallCNN(), tmp_path / "e.npz")
    with pytest.raises(ShapeError, match="of the same width D"):
        hs.score(torch.ones(2, 5), tmp_path / "e.npz")
    with pytest.warns(HardsightWarning, match="the model has 3 classes, the data names 2"):
        assert len(hs.score(torch.eye(3), tmp_path / "e.npz")) == 4


def test_images_without_a_model_ask_for_one(photos):
    with pytest.raises(
        OptionError, match=r"images and texts need a model, got none.*--model.*hardsight train"
    ):
        hs.score(None, photos)


def test_data_with_more_classes_than_the_model_is_refused(photos):
    with pytest.raises(LabelError, match=r"has 3 classes, the model 2; .*: blue, green, red$"):
        hs.score(SmallCNN(num_classes=2, channels=3), photos)


def test_a_label_outside_the_model_names_its_example():
    class Stream(IterableDataset):  # knows neither its length nor its classes
        def __iter__(self):
            yield from zip(torch.rand(5, 1, 8, 8), [0, 1, 2, 7, 0], strict=True)

    with pytest.raises(LabelError, match=r"expected labels in \[0, 3\).* got 7 for 3; score data"):
        hs.score(SmallCNN(num_classes=3), Stream())
    assert len(hs.score(SmallCNN(num_classes=8), Stream())) == 5


def test_nothing_is_written_when_the_first_examples_fail(tmp_path):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(64, 10)

        def forward(self, images):
            raise RuntimeError("sizes do not fit")

    with pytest.raises(ModelError, match="sizes do not fit"):
        hs.score(Broken(), "builtin:digits", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_output_folder_that_cannot_be_made_is_an_error_with_a_next_step(
    embeddings_file, tmp_path
):
    (tmp_path / "file").touch()
    with pytest.raises(hs.errors.OutputError, match="choose another --out"):
        hs.score(None, embeddings_file, out=tmp_path / "file" / "run")


def test_settings_and_keywords_give_the_same_table(embeddings_file, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        f'data = {json.dumps(str(embeddings_file))}\nscores = ["avh"]\nbatch_size = 32\n'
    )
    settings = ScoreConfig.load(config, ["batch_size=64"], seed=4)
    assert (settings.batch_size, settings.seed, settings.scores) == (64, 4, ("avh",))
    by_settings = run_score(settings)
    by_keywords = hs.score(None, embeddings_file, scores=["avh"], batch_size=64, seed=4)
    assert by_settings.to_arrow().equals(by_keywords.to_arrow(), check_metadata=True)


def test_the_numbers_do_not_depend_on_the_number_of_cores(embeddings_file):
    tables = []
    before = torch.get_num_threads()
    try:
        for cores in (1, 3):
            torch.set_num_threads(cores)
            tables.append(hs.score(None, embeddings_file, batch_size=32).to_arrow())
            assert torch.get_num_threads() == cores  # given back
    finally:
        torch.set_num_threads(before)
    assert tables[0].equals(tables[1], check_metadata=True)


def test_an_error_in_one_piece_ends_the_run_and_gives_the_threads_back(
    embeddings_file, monkeypatch
):
    from hardsight.scores import TiledHead

    def broken(self, embeddings, labels):
        raise MemoryError("no room")

    monkeypatch.setattr(TiledHead, "summaries", broken)
    before = torch.get_num_threads()
    with pytest.raises(MemoryError, match="no room"):
        hs.score(None, embeddings_file, batch_size=32)
    assert torch.get_num_threads() == before


def test_every_example_that_the_report_shows_has_one_of_the_pictures_asked_for(tmp_path):
    hs.score(SmallCNN(), "builtin:digits", thumbnails=30, out=tmp_path / "run", device="cpu")
    assert len(RunFolder(tmp_path / "run").thumbnails()) == 30
    text = hs.report.write_report(tmp_path / "run").read_text("utf-8")
    cards = text.count('<li class="card ')
    assert cards > 30  # some are in several lists
    assert text.count("data-picture=") == 30
    assert text.count("data-picture=") + text.count("data-copy=") == cards


@pytest.mark.timeout(60)
def test_a_folder_with_a_pipe_and_odd_files_is_scored_and_what_was_left_out_is_said(
    photos, net_file, tmp_path
):
    import os

    from click.testing import CliRunner

    from hardsight.cli import main

    (photos / "blue" / "holiday.heic").write_bytes(b"x")
    (photos / "blue" / "no ending").write_bytes(b"x")
    (photos / "blue" / "up").symlink_to(photos)
    os.mkfifo(photos / "blue" / "pipe.png")
    words = ["score", "--model", f"{net_file}:make", "--data", str(photos), "--out",
             str(tmp_path / "run"), "--device", "cpu"]  # fmt: skip
    run = CliRunner().invoke(main, words)
    assert run.exit_code == 0, run.output
    said = " ".join(run.output.split())
    assert "3 files were passed over: 1 .heic, 1 without an ending, 1 link to a folder" in said
    assert "1 examples could not be read" in said
    counts = hs.read_table(tmp_path / "run").metadata["counts"]
    assert counts["passed_over"][".heic"] == 1
    assert RunFolder(tmp_path / "run").errors()["id"].tolist() == ["blue/pipe.png"]


def test_data_of_which_nothing_can_be_read_says_why(tmp_path):
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 9

        def __getitem__(self, index):
            raise KeyError("colour")

    said = r"none of the 9 examples of Broken could be read; the first, 0: KeyError: 'colour'"
    for scores in (None, "entropy"):
        with pytest.raises(DataError, match=said):
            hs.score(SmallCNN(), Broken(), scores=scores, out=tmp_path / "run")
    with pytest.raises(DataError, match=said):
        hs.evaluation_card(SmallCNN(), Broken())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_example_that_calls_sys_exit_is_one_that_cannot_be_read(workers):
    class Leaves(Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, index):
            if index % 10 == 5:
                sys.exit(0)
            return torch.rand(1, 8, 8), index % 3

    model = SmallCNN(num_classes=3)
    with pytest.warns(HardsightWarning, match="3 examples could not be read"):
        table = hs.score(model, Leaves(), batch_size=8, workers=workers, device="cpu")
    assert table.column("index").tolist() == [row for row in range(30) if row % 10 != 5]


def test_a_stream_is_not_read_again_for_pictures(tmp_path):
    class Stream(IterableDataset):
        passes = 0

        def __iter__(self):
            type(self).passes += 1
            yield from zip(torch.rand(30, 1, 8, 8), [k % 3 for k in range(30)], strict=True)

    table = hs.score(SmallCNN(num_classes=3), Stream(), out=tmp_path / "run")
    assert len(table) == 30
    assert Stream.passes == 1  # the run goes on where the looks at the first examples stopped
    assert RunFolder(tmp_path / "run").thumbnails() == {}


@pytest.mark.parametrize("count", [5, 30, 1500])
def test_a_generator_is_scored_from_its_first_example_on(count):
    images = torch.rand(count, 1, 8, 8)
    samples = [(image, number % 3) for number, image in enumerate(images)]
    model = SmallCNN(num_classes=3)
    table = hs.score(model, (sample for sample in samples), batch_size=16)
    expected = hs.score(model, samples, batch_size=16)
    assert table.to_arrow().equals(expected.to_arrow())


class AroundAnIterator(IterableDataset):
    """Hands out the same iterator every time, as a wrapper of a stream often does."""

    def __init__(self, samples):
        self.samples = iter(samples)

    def __iter__(self):
        return self.samples


class AroundAGenerator(AroundAnIterator):
    """The same behind a generator of its own, so that no two iterators are the same object."""

    def __iter__(self):
        yield from self.samples


@pytest.mark.parametrize("count", [5, 30, 500])
@pytest.mark.parametrize("around", [AroundAnIterator, AroundAGenerator])
def test_a_dataset_around_a_generator_loses_no_examples_to_the_search_for_the_head(around, count):
    images = torch.rand(count, 1, 8, 8)
    samples = [(image, number % 3) for number, image in enumerate(images)]
    model = SmallCNN(num_classes=3)
    expected = hs.score(model, samples, batch_size=16).to_arrow()
    assert hs.score(model, around(samples), batch_size=16).to_arrow().equals(expected)
    loader = DataLoader(around(samples), batch_size=16)
    assert hs.score(model, loader).to_arrow().equals(expected)


@pytest.mark.parametrize("around", [AroundAnIterator, AroundAGenerator])
def test_a_dataset_around_a_generator_is_not_taken_for_a_shorter_one_when_read_again(around):
    samples = [(torch.rand(1, 8, 8), number % 3) for number in range(500)]
    models = {"a": SmallCNN(num_classes=3), "b": SmallCNN(num_classes=3)}
    with pytest.raises(DataError, match=r"can be read only once|ended after 0 samples"):
        hs.evaluation_card(models, around(samples), attack_examples=0, explain_examples=0)


def test_a_stream_that_breaks_while_it_is_looked_at_is_not_taken_for_one_that_ends_there():
    def samples():
        yield from [(torch.rand(1, 8, 8), number % 3) for number in range(12)]
        raise OSError("line dropped")

    with pytest.raises(DataError, match=r"broke after position 11: OSError: line dropped"):
        hs.score(SmallCNN(num_classes=3), AroundAnIterator(samples()))


def test_a_generator_that_was_read_is_not_taken_for_an_empty_one():
    samples = ((torch.rand(1, 8, 8), number % 3) for number in range(1500))
    source = hs.data.open_source(samples)
    assert len(hs.score(SmallCNN(num_classes=3), source)) == 1500
    with pytest.raises(DataError, match=r"generator can be read only once.*pass a list, a Dataset"):
        hs.score(SmallCNN(num_classes=3), source)


def test_numbers_of_numpy_are_numbers(tmp_path):
    options = {"batch_size": np.int64(100), "seed": np.int32(0), "mean": np.array([0.5]),
               "std": torch.tensor([0.5])}  # fmt: skip
    table = hs.score(SmallCNN(), "builtin:digits", split="test", out=tmp_path / "run", **options)
    assert table.metadata["preprocessing"]["mean"] == [0.5]
    assert len(table.hardest(np.int64(3))) == 3


class BreaksWhenReadAgain(MemorySource):
    """Its examples can be read for their scores; a bug shows when small pictures are made."""

    read = frozenset()

    def __getitem__(self, index):
        if index in self.read and index >= 300:  # the first ones are also read to find the head
            raise TypeError("a bug")
        self.read |= {index}
        return super().__getitem__(index)


def test_a_bug_in_a_dataset_is_not_taken_for_a_missing_picture(tmp_path):
    digits = decoded(open_source("builtin:digits", split="test"))
    source = BreaksWhenReadAgain(digits.images, digits.labels, classes=digits.classes)
    with pytest.raises(TypeError, match="a bug"):
        hs.score(SmallCNN(), source, out=tmp_path / "run")


class NaNFor(torch.nn.Module):
    """No number for some images: those whose first pixel is lit."""

    def __init__(self):
        super().__init__()
        self.flat, self.head = torch.nn.Flatten(), torch.nn.Linear(64, 10)

    def forward(self, images):
        logits = self.head(self.flat(images))
        return logits.masked_fill(images[:, 0, 0, :1] > 0.5, torch.nan)


@pytest.mark.parametrize("dark", [(0,), range(20)])
def test_a_model_without_numbers_for_the_first_examples_is_scored(dark):
    torch.manual_seed(0)
    digits = hs.data.decoded(hs.data.open_source("builtin:digits", split="test"))
    images = digits.images.copy()
    images[:, 0, 0] = 0
    images[list(dark), 0, 0] = 255
    table = hs.score(NaNFor(), digits.with_images(images), device="cpu", mean=(0.0,), std=(1.0,))
    assert len(table) == len(images)
    assert set(np.flatnonzero(np.isnan(table.column("model_confidence")))) == set(dark)


class Streamed(IterableDataset):
    """Random rows by a seed; from ``other_from`` on, those of another seed or with other labels."""

    def __init__(self, count=200, *, fail=None, other_from=None, labels=False):
        draw, other = (torch.Generator().manual_seed(seed) for seed in (0, 1))
        self.rows = [torch.randn(6, generator=draw) for _ in range(count)]
        self.labels = [number % 3 for number in range(count)]
        for at in range(count if other_from is None else other_from, count):
            if labels:
                self.labels[at] = (self.labels[at] + 1) % 3
            else:
                self.rows[at] = torch.randn(6, generator=other)
        self.fail = fail

    def __iter__(self):
        for number, sample in enumerate(zip(self.rows, self.labels, strict=True)):
            if number == self.fail:
                raise OSError("line dropped")
            yield sample


def begun_stream(tmp_path, wrapped=lambda stream: stream):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    options = {"batch_size": 8, "shard_rows": 32, "out": tmp_path / "run"}
    with pytest.raises(DataError, match="broke after position 149"):
        hs.score(model, wrapped(Streamed(fail=150)), **options)
    assert len(RunFolder(tmp_path / "run").done()) == 4
    return model, {**options, "resume": True}


WRAPPED = {
    "dataset": lambda stream: stream,
    "generator": lambda stream: (sample for sample in stream),
    "loader": lambda stream: DataLoader(stream, batch_size=8),
}


@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("labels", [False, True], ids=["contents", "labels"])
@pytest.mark.parametrize("other_from", [20, 127])
def test_a_stream_that_only_begins_like_the_scored_one_is_not_mixed_with_it(
    tmp_path, wrapped, labels, other_from
):
    model, options = begun_stream(tmp_path, wrapped)
    other = Streamed(other_from=other_from, labels=labels)
    with pytest.raises(RunMismatchError, match=r"first 128 examples of the stream .* --overwrite"):
        hs.score(model, wrapped(other), **options)
    table = hs.score(model, wrapped(Streamed()), **options)  # nothing was lost
    expected = hs.score(model, wrapped(Streamed()), batch_size=8)
    assert table.column("avh").tolist() == expected.column("avh").tolist()


def test_a_stream_that_ends_before_what_was_scored_is_refused(tmp_path):
    model, options = begun_stream(tmp_path)
    with pytest.raises(RunMismatchError, match=r"ends after 100 examples, and 128 of them were"):
        hs.score(model, Streamed(100), **options)
    with pytest.raises(DataError, match=r"no examples|none of the examples"):
        hs.score(model, Streamed(0), **options)
    assert len(hs.score(model, Streamed(128), **options)) == 128


def test_what_was_not_read_before_may_be_anything(tmp_path):
    # what comes after the finished shards was never scored
    model, options = begun_stream(tmp_path)
    assert len(hs.score(model, Streamed(other_from=128), **options)) == 200


def test_a_finished_table_of_a_stream_says_what_it_was_compared_by(tmp_path):
    model, options = begun_stream(tmp_path)
    finished = hs.score(model, Streamed(), **options)
    with pytest.warns(HardsightWarning, match=r"only the first examples of the stream Streamed"):
        again = hs.score(model, Streamed(other_from=100), **options)
    assert again.column("avh").tolist() == finished.column("avh").tolist()


def test_a_shard_without_a_readable_example_has_the_columns_of_the_others(tmp_path):
    for number in range(12):
        folder = tmp_path / "photos" / ("a" if number < 6 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), 20 * number, np.uint8)).save(folder / f"{number:02}.png")
    for number in (3, 4, 5):
        (tmp_path / "photos" / "a" / f"{number:02}.png").write_bytes(b"")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    options = {"mean": (0.0,), "std": (1.0,), "batch_size": 3}
    with pytest.warns(HardsightWarning, match="3 examples could not be read"):
        # the second shard has no row, and no number that could be in float64
        table = hs.score(net, tmp_path / "photos", shard_rows=3, out=tmp_path / "run", **options)
    assert table.column("index").tolist() == [0, 1, 2, *range(6, 12)]
    with pytest.warns(HardsightWarning, match="3 examples could not be read"):
        expected = hs.score(net, tmp_path / "photos", **options)
    assert table.column("entropy").tolist() == expected.column("entropy").tolist()


@pytest.mark.parametrize("said", [6, 20])
def test_a_stream_of_another_length_than_it_says_is_told_of(said):
    class Stream(Streamed):
        def __len__(self):
            return said

    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.warns(HardsightWarning, match=rf"Stream .*{said} examples, but 12 came"):
        assert len(hs.score(net, Stream(12))) == 12


@pytest.mark.parametrize("verb", [hs.score, hs.evaluation_card])
def test_a_model_without_values_is_refused_in_words(verb):
    with torch.device("meta"):
        net = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    data = TensorDataset(torch.rand(12, 6), torch.arange(12) % 3)
    with pytest.raises(ModelError, match=r"is on the meta device and has no values; load weights"):
        verb(net, data, device="cpu")


@pytest.mark.parametrize(
    ("option", "value"),
    [("head", "fc"), ("output", 1), ("weights", "w.pt"), ("trust_remote_code", True)],
)
def test_what_is_said_of_a_model_is_refused_for_stored_embeddings(embeddings_file, option, value):
    with pytest.raises(OptionError, match=rf"{option} cannot be used with stored embeddings"):
        hs.score(None, embeddings_file, **{option: value})
