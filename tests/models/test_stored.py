import json

import pytest
import torch

from hardsight.errors import ModelError
from hardsight.models import AMCNet, StoredModel, load_model
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
