"""Training on a GPU: precisions, compilation, resident images, the guard against NaN."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hardsight as hs
from hardsight.errors import NonFiniteError

DIGITS = {
    "split": "train", "test_split": "test", "epochs": 5, "batch_size": 64, "device": "cuda",
    "optimizer": {"name": "adamw", "lr": 0.005}, "schedule": "one_cycle",
    "augment": {"crop_padding": 1}, "show_progress": False,
}  # fmt: skip


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_precision_learns_the_digits(tmp_path, precision, channels_last):
    done = hs.train(
        "small_cnn", "builtin:digits", out=tmp_path / "run", precision=precision,
        channels_last=channels_last, **DIGITS,
    )  # fmt: skip
    assert done.test is not None
    assert done.test["accuracy"] > 0.9
    assert next(done.model.parameters()).device.type == "cpu"


def test_a_compiled_model_learns_and_is_tracked(tmp_path):
    both = ["cross_entropy", {"name": "amc", "weight": 0.1}]
    done = hs.train(
        "small_cnn", "builtin:digits", out=tmp_path / "run", compile=True, track=True, loss=both,
        **DIGITS,
    )  # fmt: skip
    assert done.test is not None
    assert done.test["accuracy"] > 0.9
    assert done.dynamics is not None
    assert set(done.dynamics.column("epochs_seen")) == {5}


def test_recorded_steps_are_tracked_like_plain_ones(tmp_path):
    margins = {}
    for capture in (False, True):
        done = hs.train(
            "small_cnn", "builtin:digits", out=tmp_path / str(capture), capture=capture,
            track=True, precision="float32", deterministic=True, **{**DIGITS, "epochs": 2},
        )  # fmt: skip
        rows = done.dynamics
        assert set(rows.column("epochs_seen")) == {2}
        margins[capture] = rows.column("aum")
    np.testing.assert_allclose(margins[True], margins[False], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("net", ["small_cnn", "el_mnist"])
def test_recorded_steps_learn_what_plain_ones_do(tmp_path, precision, net):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (330, 28, 28), dtype=torch.uint8, generator=generator).numpy()
    labels = (images.mean(axis=(1, 2)) > 127.5).astype(int)
    data = hs.data.MemorySource(images, labels)
    last = {}
    for capture in (False, True):
        done = hs.train(
            net, data, out=tmp_path / str(capture), capture=capture, precision=precision,
            batch_size=64, epochs=2, loss=[{"name": "encouraging", "options": {"log_end": 0.75}}],
            optimizer={"name": "sgd", "lr": 0.01}, device="cuda", show_progress=False,
            deterministic=precision == "float32",
        )  # fmt: skip
        last[capture] = [row["train_loss"] for row in done.history]
    assert last[True] == pytest.approx(last[False], rel=1e-4 if precision == "float32" else 0.05)


def test_resident_and_streamed_images_train_alike(tmp_path):
    losses = []
    for resident in (True, False):
        done = hs.train(
            "small_cnn", "builtin:digits", out=tmp_path / str(resident), resident=resident,
            precision="float32", deterministic=True, **{**DIGITS, "epochs": 1},
        )  # fmt: skip
        losses.append(done.history[0]["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


class Breaks(nn.Module):
    """Gives NaN for one example, after some steps of training."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, inputs):
        self.calls += self.training
        marked = (inputs[:, 3] == 99) & (self.calls > 3)
        return torch.where(marked[:, None], torch.nan, self.layer(inputs))


def test_the_first_bad_step_is_named_though_it_is_looked_for_later(tmp_path):
    inputs = torch.randn(64, 4)
    inputs[9, 3] = 99
    data = torch.utils.data.TensorDataset(inputs, torch.arange(64) % 3)
    with pytest.raises(NonFiniteError, match=r"nan at step 3; .* not finite: 9 \(1 of 64\)"):
        hs.train(
            Breaks(), data, out=tmp_path / "run", epochs=8, batch_size=64, validation=0.0,
            device="cuda", precision="float32", optimizer={"lr": 1e-5}, show_progress=False,
        )  # fmt: skip


class Averages(nn.Module):
    """Subtracts a mean of its inputs, by putting another tensor in the buffer's place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return self.layer(inputs - self.mean)


def test_a_model_that_replaces_its_tensors_is_not_replayed(tmp_path):
    data = torch.utils.data.TensorDataset(torch.randn(64, 4) + 3, torch.arange(64) % 3)
    means = []
    for capture in (False, None):  # never, and by default
        torch.manual_seed(0)
        model, out = Averages(), tmp_path / str(capture)
        how = {"batch_size": 16, "epochs": 3, "validation": 0.0, "device": "cuda",
               "precision": "float32", "show_progress": False}  # fmt: skip
        told = pytest.warns(UserWarning, match="changes mean") if capture is None else nullcontext()
        with told:
            hs.train(model, data, out=out, capture=capture, **how)
        means.append(load_file(out / "model.safetensors")["mean"])
    torch.testing.assert_close(means[0], means[1])
