import errno
import json
import os
from pathlib import Path
from unittest import TestCase

import pytest
import torch
import transformers

from hardsight.errors import ModelError
from hardsight.models import AMCNet, StoredModel, load_model, stored_tokenizer
from hardsight.preprocessing import Preprocessing

HOW = Preprocessing(size=(16, 16), mean=(0.5,), std=(0.25,), channels=1, origin="a recipe")


def written(folder, spec="amc13", **options):
    net = AMCNet(width=0.1, channels=1, num_classes=3, seed=5)
    options = options or {"width": 0.1, "channels": 1, "num_classes": 3}
    StoredModel(spec, options, HOW, ("a", "b", "c")).write(folder, net.state_dict())
    return net.eval()


def test_the_folder_of_a_trained_model_is_a_model_name(tmp_path):
    net = written(tmp_path)
    loaded = load_model(str(tmp_path))
    images = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(loaded.model(images), net(images), rtol=0, atol=0)
    assert loaded.preprocessing == HOW
    assert loaded.spec == str(tmp_path)
    assert loaded.weights_digest is not None


def test_a_model_of_a_local_folder_is_found_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "vit").mkdir()
    monkeypatch.chdir(tmp_path)
    for spec, kept in [("hf:vit", f"hf:{tmp_path / 'vit'}"), ("hf:owner/vit", "hf:owner/vit")]:
        written(tmp_path, spec=spec)
        assert json.loads((tmp_path / "model.json").read_text())["spec"] == kept


def test_the_model_of_another_user_that_may_not_be_read_is_said(tmp_path, monkeypatch):
    written(tmp_path)

    def denied(file, *args, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))

    # as for a user without the right; the tests may run as root, who may read everything
    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(ModelError, match=r"cannot read .*model\.json: Permission denied; ask"):
        load_model(str(tmp_path))


def test_a_folder_cannot_name_code_to_be_run(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    written(tmp_path, spec="evil.py:make")
    with pytest.raises(ModelError, match=r"names the code 'evil.py:make'.*--model evil.py:make"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("content", ["{", "{}", '{"format": 2}', "[]", '{"format": 1, "spec": 3}'])
def test_a_damaged_description_is_named(tmp_path, content):
    written(tmp_path)
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(ModelError, match=r"model\.json does not describe a model"):
        load_model(str(tmp_path))


def test_an_interrupted_write_leaves_the_old_model(tmp_path):
    written(tmp_path)
    before = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json.part").write_text("{")
    assert json.loads((tmp_path / "model.json").read_text()) == before
    load_model(str(tmp_path))


BESIDE = pytest.mark.parametrize("place", [".", "checkpoints", "round-03"])


def weights_in(folder, place):
    """The weights of a run: its model's, those of its best epoch, or those of a round."""
    if place == ".":
        return folder / "model.safetensors"
    file = folder / place / ("best.safetensors" if place == "checkpoints" else "model.safetensors")
    file.parent.mkdir()
    return (folder / "model.safetensors").rename(file)


@BESIDE
def test_weights_are_used_as_the_description_beside_them_says(tmp_path, place):
    net = written(tmp_path)
    file = weights_in(tmp_path, place)
    with TestCase().assertLogs("hardsight", "INFO") as log:
        loaded = load_model("amc13", weights=file)
    assert f"model.json describes the weights {file}" in "\n".join(log.output)
    images = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(loaded.model(images), net(images), rtol=0, atol=0)
    assert (loaded.preprocessing, loaded.classes) == (HOW, ("a", "b", "c"))
    assert "model.json" in loaded.weights_origin


@pytest.mark.parametrize("name", ["last.ckpt", "previous.ckpt"])
def test_the_checkpoint_of_an_epoch_is_used_as_its_run_says(tmp_path, name):
    net = written(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    state = {f"model.{key}": value for key, value in net.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "checkpoints" / name)
    loaded = load_model("amc13", weights=tmp_path / "checkpoints" / name)
    images = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(loaded.model(images), net(images), rtol=0, atol=0)
    assert (loaded.preprocessing, loaded.classes) == (HOW, ("a", "b", "c"))


def test_the_description_also_serves_a_module_and_code_of_the_user(tmp_path):
    net = written(tmp_path, "nets.py:make")
    code = "from hardsight.models import AMCNet as make"
    (tmp_path / "nets.py").write_text(code)
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "nets.py").write_text(code)
    for model in (AMCNet(width=0.1, channels=1, num_classes=3), f"{tmp_path}/nets.py:make",
                  f"{tmp_path}/moved/nets.py:make"):  # fmt: skip
        loaded = load_model(model, weights=tmp_path / "model.safetensors")
        torch.testing.assert_close(dict(loaded.model.state_dict()), dict(net.state_dict()))
        assert (loaded.preprocessing, loaded.classes) == (HOW, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        ("small_cnn", {}, r"says that these weights are of amc13, got small_cnn; name the folder"),
        ("amc13:width=0.2", {}, r"trained with width=0\.1, got width=0\.2"),
        ("amc13", {"options": {"channels": 3}}, "trained with channels=1, got channels=3"),
        ("amc13", {"num_classes": 4}, "trained with num_classes=3, got num_classes=4"),
        ("other.py:make", {}, r"are of amc13, got other\.py:make"),
        (torch.nn.Linear(2, 2), {}, "are of amc13, got Linear"),
    ],
)
def test_another_model_than_the_weights_were_trained_in_is_refused(tmp_path, spec, options, said):
    written(tmp_path)
    with pytest.raises(ModelError, match=said):
        load_model(spec, weights=tmp_path / "model.safetensors", **options)


@pytest.mark.parametrize("spec", ["amc13", "amc13:width=0.1,channels=1", "hardsight.models:AMCNet"])
def test_the_same_model_by_another_name_is_not_refused(tmp_path, spec):
    written(tmp_path)
    loaded = load_model(spec, weights=tmp_path / "model.safetensors", num_classes=3)
    assert loaded.classes == ("a", "b", "c")


def test_weights_of_another_run_are_refused_for_a_folder(tmp_path):
    for name, classes in (("one", ("a", "b", "c")), ("two", ("c", "b", "a"))):
        (tmp_path / name).mkdir()
        net = AMCNet(width=0.1, channels=1, num_classes=3)
        options = {"width": 0.1, "channels": 1, "num_classes": 3}
        StoredModel("amc13", options, HOW, classes).write(tmp_path / name, net.state_dict())
    with pytest.raises(ModelError, match=r"two/model\.json, which differs from .*one/model\.json"):
        load_model(str(tmp_path / "one"), weights=tmp_path / "two" / "model.safetensors")
    with pytest.raises(ModelError, match=r"trained with width=0\.1, got width=2"):
        load_model(str(tmp_path / "one"), options={"width": 2})


def test_a_file_of_another_tool_is_not_a_description(tmp_path):
    written(tmp_path)
    (tmp_path / "model.json").write_text('{"modelTopology": {}}')
    options = {"width": 0.1, "channels": 1, "num_classes": 3}
    loaded = load_model("amc13", weights=tmp_path / "model.safetensors", options=options)
    assert loaded.preprocessing is None


def test_a_damaged_description_beside_weights_is_named(tmp_path):
    written(tmp_path)
    (tmp_path / "model.json").write_text('{"format": ')
    with pytest.raises(ModelError, match=r"model\.json does not describe a model"):
        load_model("amc13", weights=tmp_path / "model.safetensors")


def test_other_weights_in_the_folder_are_not_described(tmp_path):
    net = written(tmp_path)
    torch.save(net.state_dict(), tmp_path / "mine.pt")
    options = {"width": 0.1, "channels": 1, "num_classes": 3}
    assert load_model("amc13", weights=tmp_path / "mine.pt", options=options).classes == ()


def with_one_bit_changed(file):
    """A weight with another exponent, as a bad disk or an interrupted copy leaves it."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x40
    file.write_bytes(content)


@pytest.mark.parametrize("named", ["folder", "weights", "both"])
def test_weights_that_were_changed_after_training_are_refused(tmp_path, named):
    written(tmp_path)
    file = tmp_path / "model.safetensors"
    with_one_bit_changed(file)
    given = {"folder": (str(tmp_path), None), "weights": ("amc13", file),
             "both": (str(tmp_path), file)}[named]  # fmt: skip
    said = r"model\.safetensors was changed since.*model\.json says.*copy the file again.*--weights"
    with pytest.raises(ModelError, match=said):
        load_model(given[0], weights=given[1])


def test_weights_changed_on_purpose_can_be_used_from_another_folder(tmp_path):
    written(tmp_path)
    (tmp_path / "mine").mkdir()
    file = (tmp_path / "model.safetensors").rename(tmp_path / "mine" / "model.safetensors")
    with_one_bit_changed(file)
    options = {"width": 0.1, "channels": 1, "num_classes": 3}
    assert load_model("amc13", weights=file, options=options).weights_digest is not None


def test_a_folder_of_before_digests_were_kept_is_read(tmp_path):
    net = written(tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    assert content.pop("weights_digest")
    (tmp_path / "model.json").write_text(json.dumps(content))
    loaded = load_model(str(tmp_path))
    torch.testing.assert_close(dict(loaded.model.state_dict()), dict(net.state_dict()))


def test_a_tokenizer_that_is_a_file_is_not_looked_up_by_name(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda *name, **_: asked.append(name)
    )
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is a file; name the folder"):
        stored_tokenizer(str(file))
    assert not asked
