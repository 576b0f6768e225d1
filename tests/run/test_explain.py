"""Grad-CAM maps of single examples of a run, by the model that the run names."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import hardsight as hs
from hardsight.errors import DataError, ModelError
from hardsight.evaluate import grad_cam
from hardsight.models import SmallCNN, StoredModel
from hardsight.preprocessing import Preprocessing
from hardsight.run.evaluate import Explainer

HOW = Preprocessing(mean=(0.5,), std=(0.25,), channels=1)
CODE = """
from pathlib import Path
from hardsight.models import SmallCNN

def make(num_classes=3):
    Path(__file__).with_suffix(".ran").touch()
    return SmallCNN(num_classes=num_classes, channels=1)
"""


def stored(folder, says=0):
    """A model on disk that says one class of everything."""
    net = SmallCNN(num_classes=3, channels=1).eval()
    with torch.no_grad():
        net.head.bias[says] += 5
    options = {"num_classes": 3, "channels": 1}
    folder.mkdir(parents=True, exist_ok=True)
    StoredModel("small_cnn", options, HOW, ("0", "1", "2")).write(folder, net.state_dict())
    return net


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(5).integers(0, 256, (12, 16, 16), dtype=np.uint8)


@pytest.fixture
def data(tmp_path, pixels):
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(12) % 3)
    return tmp_path / "data.npz"


def scored(model, data, out, **options):
    return hs.score(model, data, out=out, device="cpu", show_progress=False, **options)


def decoded(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))), np.float64)


def prepared(pixels):
    return ((torch.from_numpy(pixels).float() / 255 - 0.5) / 0.25)[:, None]


def test_a_map_is_grad_cam_of_the_predicted_class(tmp_path, data, pixels):
    net = stored(tmp_path / "net")
    table = scored(str(tmp_path / "net"), data, tmp_path / "run")
    explainer = Explainer(table, {"data": str(data)})
    inputs = prepared(pixels)
    classes = net(inputs).argmax(dim=1)
    wanted = grad_cam(net, inputs, classes)
    for at in (0, 7):
        picture, prediction = explainer.explained(at, table.column("id")[at])
        assert prediction == classes[at] == table.column("prediction")[at]
        shown = decoded(picture)
        assert shown.shape == (256, 256, 3)
        # the map is laid over a grey picture in warm colours: what is warm is the map
        warm = (shown[..., 0] - shown[..., 2]).reshape(16, 16, 16, 16).mean(axis=(1, 3))
        np.testing.assert_allclose(warm / 255, 0.75 * 0.9 * wanted[at] ** 2 + 0.75 * wanted[at]
                                   * (1 - wanted[at]), atol=0.02)  # fmt: skip


def test_every_example_of_folds_is_explained_by_the_model_that_did_not_see_it(
    tmp_path, data, pixels
):
    nets = [stored(tmp_path / "run" / "folds" / f"fold-{n}" / "model", says=n) for n in (1, 2)]
    table = scored(nets[0], data, tmp_path / "scores", preprocessing=HOW)
    table.path.rename(tmp_path / "run" / "table.parquet")
    explainer = Explainer(hs.read_table(tmp_path / "run" / "table.parquet"), {"data": str(data)})
    inputs = prepared(pixels)
    for fold, net in enumerate(nets, start=1):
        said = [explainer.explained(at, table.column("id")[at], fold)[1] for at in range(3)]
        assert said == net(inputs[:3]).argmax(dim=1).tolist() == [fold] * 3


def test_code_that_a_run_names_is_not_run_unless_it_is_named_again(tmp_path, data):
    file = tmp_path / "net.py"
    file.write_text(CODE)
    table = scored(f"{file}:make", data, tmp_path / "run", channels=1, size=16)
    file.with_suffix(".ran").unlink()
    explainer = Explainer(table, {"data": str(data)})
    with pytest.raises(ModelError, match=r"net.py:make, which is Python code, .* with --model"):
        explainer.explained(0, table.column("id")[0])
    assert not file.with_suffix(".ran").exists()


def test_a_model_that_is_named_is_built(tmp_path, data):
    file, weights = tmp_path / "net.py", tmp_path / "weights.pt"
    file.write_text(CODE)
    torch.save(SmallCNN(num_classes=3, channels=1).state_dict(), weights)
    table = scored(f"{file}:make", data, tmp_path / "run", weights=weights, channels=1, size=16)
    named = Explainer(table, {"data": str(data)}, model=f"{file}:make", weights=str(weights))
    assert named.explained(3, table.column("id")[3])[1] == table.column("prediction")[3]


def test_other_weights_than_those_that_were_scored_are_refused(tmp_path, data):
    stored(tmp_path / "net")
    table = scored(str(tmp_path / "net"), data, tmp_path / "run")
    stored(tmp_path / "net", says=1)
    explainer = Explainer(table, {"data": str(data)})
    with pytest.raises(ModelError, match="is not the model that was scored"):
        explainer.explained(0, table.column("id")[0])


def test_another_example_at_the_same_place_is_not_explained(tmp_path, data):
    stored(tmp_path / "net")
    table = scored(str(tmp_path / "net"), data, tmp_path / "run")
    explainer = Explainer(table, {"data": str(data)})
    with pytest.raises(DataError, match="example 0 is another one now"):
        explainer.explained(0, "somebody else")
    with pytest.raises(DataError, match="example 99 is another one now"):
        explainer.explained(99, "99")


def test_stored_embeddings_have_no_maps(tmp_path, data):
    stored(tmp_path / "net")
    table = scored(str(tmp_path / "net"), data, tmp_path / "run")
    np.savez(tmp_path / "rows.npz", embeddings=np.ones((4, 3), np.float32), labels=[0, 1, 0, 1])
    with pytest.raises(DataError, match="Grad-CAM needs pictures"):
        Explainer(table, {"data": str(tmp_path / "rows.npz")})


def test_a_stored_model_that_names_code_is_not_built(tmp_path, data):
    stored(tmp_path / "net")
    table = scored(str(tmp_path / "net"), data, tmp_path / "run")
    (tmp_path / "evil.py").write_text(CODE)
    about = json.loads((tmp_path / "net" / "model.json").read_text())
    (tmp_path / "net" / "model.json").write_text(
        json.dumps({**about, "spec": f"{tmp_path}/evil.py:make"})
    )
    with pytest.raises(ModelError):
        Explainer(table, {"data": str(data)}).explained(0, table.column("id")[0])
    assert not (tmp_path / "evil.ran").exists()
