"""Grad-CAM maps on request: made by another process, kept in the run, never waited for."""

import io
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

import hardsight as hs
from hardsight.errors import OptionError
from hardsight.models import SmallCNN, StoredModel
from hardsight.preprocessing import Preprocessing
from tests.review import made


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A run over real pictures by a stored model, as `score --model FOLDER` leaves it."""
    home = tmp_path_factory.mktemp("explained")
    pictures = np.random.default_rng(2).integers(0, 256, (8, 12, 12), dtype=np.uint8)
    np.savez(home / "data.npz", images=pictures, labels=np.arange(8) % 2)
    torch.manual_seed(0)
    net = SmallCNN(num_classes=2, channels=1)
    options = {"num_classes": 2, "channels": 1}
    (home / "net").mkdir()
    StoredModel("small_cnn", options, Preprocessing(), ("0", "1")).write(
        home / "net", net.state_dict()
    )
    return hs.score(str(home / "net"), home / "data.npz", out=home / "run", device="cpu",
                    show_progress=False).path.parent  # fmt: skip


@pytest.fixture
def with_app():
    opened = []

    def open_app(run, **options):
        opened.append(made.App(run, **options))
        return opened[-1]

    yield open_app
    for app in opened:
        app.close()


def waited(app, index, seconds=60, **values):
    end = time.monotonic() + seconds
    while (found := app.get(f"explained/{index}", **values).json())["state"] == "pending":
        assert time.monotonic() < end, "no map came"
        time.sleep(0.05)
    return found


def picture(app, index):
    content = app.get("pictures", of=str(index), size="map").content
    length = int.from_bytes(content[:4], "little")
    return json.loads(content[4 : 4 + length])[0], content[4 + length :]


def stand_in(folder, monkeypatch, script):
    """Another program in the place of the process that makes maps."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\n{script}")
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))


def test_a_map_is_made_by_another_process_and_kept_in_the_run(scored, with_app, monkeypatch):
    app = with_app(scored)
    assert app.get("explained/3", ahead="4,5").json()["state"] == "pending"
    found = waited(app, 3, ahead="4,5")
    assert (found["state"], found["note"]) == ("there", "")
    assert found["prediction"] == hs.read_table(scored).column("prediction")[3]
    (kind, _, _), content = picture(app, 3)
    assert kind in ("image/png", "image/jpeg")
    assert Image.open(io.BytesIO(content)).size == (256, 256)
    waited(app, 5)  # asked for ahead of its turn
    app.close()

    def refuse(*_, **__):
        raise AssertionError("a map that is kept needs no process")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    again = with_app(scored)
    for index in (3, 4, 5):
        assert again.get(f"explained/{index}").json()["state"] == "there"


def test_a_run_without_its_data_says_so_and_starts_nothing(run, with_app, monkeypatch):
    app = with_app(run)
    app.get("pictures", of="18", size="large")  # by now it is known that the data is not there
    monkeypatch.setattr(subprocess, "Popen", None)
    found = waited(app, 18)
    assert found["state"] == "none"
    assert "nowhere/photos" in found["note"]


def test_a_process_that_ends_is_told_of(scored, with_app, tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, "raise SystemExit(3)")
    found = waited(with_app(scored), 6)
    assert found["state"] == "none"
    assert "the process that makes maps ended" in found["note"]


def test_nobody_waits_for_a_map_and_no_process_is_left(scored, with_app, tmp_path, monkeypatch):
    script = f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    stand_in(tmp_path, monkeypatch, script + "time.sleep(600)")
    app = with_app(scored)
    assert app.get("explained/7").json()["state"] == "pending"
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    began = time.monotonic()
    item = app.queue(only="all")["items"][0]
    assert app.decide(item, "keep").status_code == 200
    assert app.get(f"explained/{item['index']}").json()["state"] in ("pending", "there")
    assert time.monotonic() - began < 5
    app.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_the_process_says_is_not_believed(scored, with_app, tmp_path, monkeypatch):
    script = 'import sys\nfor line in sys.stdin: print(\'{"map": "PHN2Zz4=", "prediction": 1}\''
    stand_in(tmp_path, monkeypatch, script + ", flush=True)")
    app = with_app(scored, data=str(scored.parent / "data.npz"))  # named another way: other maps
    waited(app, 2)
    (_, note, size), content = picture(app, 2)
    assert (note, size, content) == ("cannot be read", 0, b"")


def test_only_examples_of_the_table_are_explained(looked_at):
    answer = looked_at.get("explained/17")
    assert answer.status_code == 400
    assert "no example 17" in answer.json()["error"]
    assert looked_at.get("explained/18", ahead="x").status_code == 400


def test_weights_need_a_model(run):
    with pytest.raises(OptionError, match=r"name it with model \(--model\)"):
        made.App(run, weights="net.safetensors")
