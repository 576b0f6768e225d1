"""Pixels are treated the same way by every verb and in every form of data."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hardsight as hs
from hardsight.cli import main
from hardsight.data import MemorySource
from hardsight.errors import DataError, HardsightWarning, OptionError
from hardsight.models import SmallCNN
from hardsight.preprocessing import Preprocessing

LABELS = torch.arange(24) % 3
MEAN, STD = (0.4,), (0.2,)


class Flat(nn.Module):
    """A linear model that keeps what it was fed."""

    def __init__(self, width=64, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(width, classes)
        self.fed = []

    def forward(self, inputs):
        self.fed.append(inputs.detach().clone())
        return self.head(inputs.flatten(1).float())


def bytes_of(channels=1, side=8):
    draw = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (24, channels, side, side), generator=draw, dtype=torch.uint8)
    pixels[:, :, 0, :2] = torch.tensor([0, 255], dtype=torch.uint8)
    return pixels


def forms(pixels, folder):
    """The same 8-bit pictures in every form that data may have."""
    arrays = pixels[:, 0].numpy()
    np.savez(folder / "x.npz", images=arrays, labels=LABELS.numpy())
    np.savez(folder / "floats.npz", images=arrays.astype("f4") / 255, labels=LABELS.numpy())
    pairs = TensorDataset(pixels, LABELS)
    return {
        "npz": folder / "x.npz",
        "floats in npz": folder / "floats.npz",
        "memory": MemorySource(arrays, LABELS.numpy()),
        "pictures": [(Image.fromarray(a), int(b)) for a, b in zip(arrays, LABELS, strict=True)],
        "tensors": pairs,
        "loader": DataLoader(pairs, batch_size=5),
        "grey tensors": TensorDataset(pixels[:, 0], LABELS),
        "arrays": [(a, int(b)) for a, b in zip(arrays, LABELS, strict=True)],
        "arrays with channels": [
            (a[:, :, None], int(b)) for a, b in zip(arrays, LABELS, strict=True)
        ],
    }


FORMS = ["npz", "floats in npz", "memory", "pictures", "tensors", "loader", "grey tensors",
         "arrays", "arrays with channels"]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_eight_bit_pixels_reach_a_model_the_same_way_from_every_form(tmp_path, form):
    pixels, model = bytes_of(), Flat()
    data = forms(pixels, tmp_path)[form]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HardsightWarning)
        table = hs.score(model, data, mean=MEAN, std=STD, device="cpu", batch_size=24)
    expected = (pixels.double() / 255 - MEAN[0]) / STD[0]
    torch.testing.assert_close(model.fed[-1].double(), expected, atol=2e-6, rtol=0)
    assert table.metadata["preprocessing"]["mean"] == list(MEAN)


def test_dividing_bytes_of_a_users_dataset_is_said_and_can_be_turned_off():
    data, model = TensorDataset(bytes_of(), LABELS), Flat()
    with pytest.warns(HardsightWarning, match=r"8-bit tensors of TensorDataset .* divided by 255"):
        hs.score(model, data, device="cpu")
    assert float(model.fed[-1].max()) == 1
    hs.score(model, data, white=1, device="cpu")
    assert float(model.fed[-1].max()) == 255
    hs.score(model, data, white=255, device="cpu")
    assert float(model.fed[-1].max()) == 1


@pytest.mark.parametrize("form", ["npz", "array", "dataset", "loader", "numpy dataset"])
def test_floats_of_0_to_255_are_refused_or_scaled_as_asked(tmp_path, form):
    pixels = bytes_of().float()
    np.savez(tmp_path / "x.npz", images=pixels[:, 0].numpy(), labels=LABELS.numpy())
    data = {
        "npz": tmp_path / "x.npz",
        "array": pixels[:, 0].numpy(),
        "dataset": TensorDataset(pixels, LABELS),
        "loader": DataLoader(TensorDataset(pixels, LABELS), batch_size=5),
        "numpy dataset": [(a.numpy(), int(b)) for a, b in zip(pixels, LABELS, strict=True)],
    }[form]
    options = {"labels": LABELS} if form == "array" else {}
    said = r"run from 0 to 255, and white is 1 for floats; pass white=255 .*or white=1"
    with pytest.raises(DataError, match=said):
        hs.score(Flat(), data, device="cpu", **options)
    model = Flat()
    hs.score(model, data, white=255, device="cpu", batch_size=24, **options)
    torch.testing.assert_close(model.fed[-1].flatten(), pixels.flatten() / 255)
    hs.score(model, data, white=1, device="cpu", batch_size=24, **options)
    torch.testing.assert_close(model.fed[-1].flatten(), pixels.flatten())


@pytest.mark.parametrize("verb", [hs.score, hs.evaluation_card])
def test_floats_that_may_be_pixels_of_0_to_255_are_told_of(verb):
    # resized, so that they are no longer whole numbers
    data = TensorDataset(bytes_of().float() * 0.99 + 0.3, LABELS)
    quick = {} if verb is hs.score else {"attack_examples": 0, "explain_examples": 0}
    said = r"floats of TensorDataset run from 0\.3 to 25\d.* go to the model as they are.*white=255"
    for stated in ({}, {"size": 8}, {"size": 8, "squash": True}, {"channels": 1}):
        with pytest.warns(HardsightWarning, match=said):
            verb(Flat(), data, device="cpu", **quick, **stated)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HardsightWarning)
        for white in (1, 255):
            verb(Flat(), data, white=white, size=8, device="cpu", **quick)
            verb(Flat(), data, white=white, device="cpu", **quick)
        verb(Flat(), TensorDataset(torch.randn(24, 1, 8, 8) * 99, LABELS), device="cpu", **quick)


PLAIN = r"nothing says what Flat wants done to pictures.*--mean 0 --std 1"


@pytest.mark.parametrize("verb", [hs.score, hs.evaluation_card])
@pytest.mark.parametrize("form", ["npz", "pictures"])
def test_pictures_for_a_model_that_states_nothing_about_them_are_told_of(tmp_path, verb, form):
    data = forms(bytes_of(), tmp_path)[form]
    quick = {} if verb is hs.score else {"attack_examples": 0, "explain_examples": 0}
    for size in ({}, {"size": (8, 8)}):
        with pytest.warns(HardsightWarning, match=PLAIN):
            verb(Flat(), data, device="cpu", **quick, **size)
    stated = Flat()
    stated.preprocessing = Preprocessing()
    with warnings.catch_warnings():
        warnings.simplefilter("error", HardsightWarning)
        verb(stated, data, device="cpu", **quick)
        verb(Flat(), data, mean=(0,), std=(1,), device="cpu", **quick)
        verb(Flat(), data, preprocessing=Preprocessing(), device="cpu", **quick)
        # of tensors we know no more than that they come as the model takes them
        verb(Flat(), TensorDataset(torch.rand(24, 1, 8, 8), LABELS), device="cpu", **quick)


def test_mean_and_std_are_applied_to_tensors_and_recorded():
    inputs, model = torch.rand(24, 1, 8, 8), Flat()
    table = hs.score(
        model, TensorDataset(inputs, LABELS), mean=MEAN, std=STD, device="cpu", batch_size=24
    )
    torch.testing.assert_close(model.fed[-1], (inputs - 0.4) / 0.2, atol=1e-5, rtol=0)
    about = table.metadata["preprocessing"]
    assert (about["mean"], about["std"]) == ([0.4], [0.2])
    assert "applied to the tensors of TensorDataset" in about["origin"]


def test_tensors_are_used_as_they_are_and_that_is_what_is_recorded():
    inputs, model = torch.randn(24, 1, 8, 8), Flat()
    model.preprocessing = Preprocessing(size=(32, 32), mean=MEAN, std=STD)
    table = hs.score(model, TensorDataset(inputs, LABELS), device="cpu", batch_size=24)
    torch.testing.assert_close(model.fed[-1], inputs)
    about = table.metadata["preprocessing"]
    assert (about["size"], about["mean"], about["std"]) == (None, [0.0], [1.0])
    assert about["origin"] == "the inputs of TensorDataset, as they are"


def test_what_is_not_finite_is_left_to_the_model_and_the_table():
    inputs = torch.rand(24, 1, 8, 8)
    inputs[3] = torch.nan
    data = TensorDataset(inputs, LABELS)
    table = hs.score(Flat(), data, mean=MEAN, std=STD, device="cpu")
    assert np.flatnonzero(~table.column("finite")).tolist() == [3]


def test_a_size_is_applied_to_tensors():
    model = Flat(width=3 * 16)
    data = TensorDataset(torch.rand(24, 1, 8, 8), LABELS)
    table = hs.score(model, data, size=4, channels=3, device="cpu")
    assert model.fed[-1].shape[1:] == (3, 4, 4)
    assert table.metadata["preprocessing"]["size"] == [4, 4]


def test_an_explicit_preprocessing_is_a_statement_too():
    inputs, model = torch.rand(24, 1, 8, 8), Flat()
    how = Preprocessing(mean=MEAN, std=STD)
    hs.score(model, TensorDataset(inputs, LABELS), preprocessing=how, device="cpu", batch_size=24)
    torch.testing.assert_close(model.fed[-1], (inputs - 0.4) / 0.2, atol=1e-5, rtol=0)


def test_normalised_tensors_are_not_normalised_again():
    data = TensorDataset(torch.randn(24, 1, 8, 8), LABELS)
    said = r"mean and std are for pixels in \[0, 1\].*normalised already.*mean=0 and std=1"
    with pytest.raises(DataError, match=said):
        hs.score(Flat(), data, mean=MEAN, std=STD, device="cpu")
    assert len(hs.score(Flat(), data, mean=(0.0,), std=(1.0,), device="cpu")) == 24


def test_tensors_in_0_to_1_for_a_model_that_normalises_are_remarked_on():
    model = Flat()
    model.preprocessing = Preprocessing(mean=MEAN, std=STD)
    data = TensorDataset(torch.rand(24, 1, 8, 8), LABELS)
    with pytest.warns(
        HardsightWarning, match=r"lie in \[0, 1\] .* mean 0\.4 and std 0\.2; if they"
    ):
        hs.score(model, data, device="cpu")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"mean": MEAN}, "mean cannot be"), ({"size": (4, 4), "std": STD}, "size, std cannot be")],
)
def test_what_cannot_be_applied_is_refused(tmp_path, options, said):
    vectors = TensorDataset(torch.randn(24, 64), LABELS)
    with pytest.raises(OptionError, match=rf"{said} applied .* TensorDataset.*float32 \[64\]"):
        hs.score(Flat(), vectors, device="cpu", **options)
    np.savez(tmp_path / "x.npz", x=torch.randn(24, 64).numpy(), y=LABELS.numpy())
    with pytest.raises(OptionError, match=rf"{said} applied .*vectors \[64\]"):
        hs.score(Flat(), tmp_path / "x.npz", device="cpu", **options)
    loader = DataLoader(vectors, collate_fn=lambda rows: [*map(torch.stack, zip(*rows))])  # noqa: B905
    with pytest.raises(OptionError, match=rf"{said} applied to what the collate_fn"):
        hs.score(Flat(), loader, device="cpu", **options)
    np.savez(tmp_path / "e.npz", embeddings=np.eye(3, 64), labels=[0, 1, 2],
             class_weights=np.eye(3, 64))  # fmt: skip
    with pytest.raises(OptionError, match=r"cannot be used with stored embeddings"):
        hs.score(None, tmp_path / "e.npz", device="cpu", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, r"a size of at least 1 x 1 pixels, got 0"),
        ({"size": (8, -1)}, r"a size of at least 1 x 1"),
        ({"channels": 2}, r"expected 1 or 3 channels, got 2"),
        ({"crop": 0.0}, r"expected crop, .* in \(0, 1\], got 0.0"),
        ({"crop": 1.5}, r"expected crop"),
        ({"white": 0}, r"expected white to be above 0"),
        ({"squash": True}, r"pass size=\(H, W\) \(--size\) as well"),
    ],
)
def test_values_outside_their_range_are_refused(options, said):
    with pytest.raises(OptionError, match=said):
        hs.score(SmallCNN(), "builtin:digits", split="test", device="cpu", **options)
    with pytest.raises(OptionError, match=said):
        hs.evaluation_card(SmallCNN(), "builtin:digits", split="test", device="cpu", **options)


@pytest.fixture
def mixed(tmp_path):
    """A folder of tall RGB pictures, one of them grey, with a bright band at the top."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(6):
            pixels = np.full((16, 8, 3), 20 * number, np.uint8)
            pixels[:4] = 255
            image = Image.fromarray(pixels)
            image = image.convert("L") if (name, number) == ("dog", 2) else image
            image.save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def test_one_grey_picture_asks_for_channels_and_works_with_them(mixed):
    model = Flat(width=3 * 64, classes=2)
    with pytest.raises(DataError, match=r"pass size=.*and channels=3 \(--channels 3\) if some"):
        hs.score(model, mixed, size=(8, 8), device="cpu")
    assert len(hs.score(model, mixed, size=(8, 8), channels=3, device="cpu")) == 12
    grey = Flat(width=64, classes=2)
    assert len(hs.score(grey, mixed, size=(8, 8), channels=1, device="cpu")) == 12


def test_a_size_crops_unless_it_is_to_squash(mixed):
    options = {"size": (8, 8), "channels": 1, "device": "cpu"}
    seen = {}
    for name, more in {"crop": {}, "squash": {"squash": True}, "centre": {"crop": 0.5}}.items():
        model = Flat(width=64, classes=2)
        hs.score(model, mixed, **options, **more)
        seen[name] = model.fed[-1][0, 0]
    assert float(seen["crop"].max()) == 0  # the band is cut off
    assert float(seen["squash"][0].min()) == 1
    assert seen["centre"].shape == (8, 8)


def test_a_models_own_squashing_can_be_turned_off(mixed):
    model = Flat(width=64, classes=2)
    model.preprocessing = Preprocessing(size=(8, 8), channels=1, squash=True)
    table = hs.score(model, mixed, squash=False, device="cpu")
    assert float(model.fed[-1][0].max()) == 0
    assert table.metadata["preprocessing"]["squash"] is False


PIXELS = ["--size", "8", "--channels", "1", "--squash"]


def test_the_command_line_takes_the_same_options_in_every_verb(mixed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = 'model = "small_cnn"\nout = "trained"\nepochs = 1\nbatch_size = 4\ndevice = "cpu"\n'
    recipe += f'[data]\nname = "{mixed}"\nsize = [8, 8]\nchannels = 1\nsquash = true\n'
    (tmp_path / "recipe.toml").write_text(recipe + "validation = 0.34\n")
    (tmp_path / "score.toml").write_text(
        f'data = "{mixed}"\nmodel = "trained"\nsize = [8, 8]\nchannels = 1\ncrop = 0.5\n'
        'squash = false\nwhite = 255.0\ndevice = "cpu"\n'
    )
    for words in (
        ["train", "recipe.toml"],
        ["score", "--data", str(mixed), "--model", "trained", "--out", "a", *PIXELS],
        ["score", "score.toml", "--out", "b"],
        ["evaluate", "trained", "--data", str(mixed), "--out", "card", "--device", "cpu",
         "--attack-examples", "0", "--explain-examples", "0", *PIXELS],
        ["study", "degradation", "--model", "trained", "--data", str(mixed), "--device", "cpu",
         "--noise", "0,0.1", "--contrast", "1,0.5", "--out", "study", *PIXELS],
        ["adapt", "--model", "trained", "--source", str(mixed), "--target", str(mixed),
         "--rounds", "1", "--out", "adapted", "--device", "cpu", *PIXELS],
    ):  # fmt: skip
        run = CliRunner().invoke(main, words)
        assert run.exit_code == 0, (words, run.output)
    how = hs.read_table("a").metadata["preprocessing"]
    assert (how["size"], how["channels"], how["squash"]) == ([8, 8], 1, True)
    how = hs.read_table("b").metadata["preprocessing"]
    assert (how["crop"], how["squash"], how["white"]) == (0.5, False, 255.0)


def test_training_squashes_and_crops_as_scoring_does(mixed, tmp_path):
    for more in ({}, {"squash": True}, {"crop": 0.5}):
        data = {"name": mixed, "size": (8, 8), "channels": 1, "validation": 0.0, **more}
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        done = hs.train("small_cnn", data, out=out, epochs=1, select="last", device="cpu")
        wanted = {"squash": False, "crop": 1.0, **more}
        how = done.preprocessing
        assert {key: getattr(how, key) for key in wanted} == wanted
        # measured on what the model sees: without the band, without half of it, or with it
        assert (how.mean[0] > 0.3) == ("squash" in more)


class Looking(nn.Module):
    """A small model that keeps the range of all it was fed."""

    def __init__(self, width=64):
        super().__init__()
        self.head = nn.Linear(width, 3)
        self.low, self.high = float("inf"), -float("inf")

    def forward(self, inputs):
        self.low = min(self.low, float(inputs.min()))
        self.high = max(self.high, float(inputs.max()))
        return self.head(inputs.flatten(1))


def trained(data, tmp_path, **table):
    model = Looking()
    table = {"name": data, "validation": 0.0, **table}
    done = hs.train(model, table, out=tmp_path / "run", epochs=1, select="last", device="cpu")
    return model, done


def test_training_treats_tensors_as_scoring_does(tmp_path):
    pixels = bytes_of()
    with pytest.warns(HardsightWarning, match="8-bit tensors"):
        model, done = trained(TensorDataset(pixels, LABELS), tmp_path / "bytes")
    mean, std = done.preprocessing.mean[0], done.preprocessing.std[0]
    assert mean == pytest.approx(float(pixels.float().mean()) / 255, abs=1e-3)
    assert model.low == pytest.approx(-mean / std, abs=1e-4)
    with pytest.raises(DataError, match="run from 0 to 255, and white is 1"):
        trained(TensorDataset(pixels.float(), LABELS), tmp_path / "floats")
    model, _ = trained(TensorDataset(pixels.float(), LABELS), tmp_path / "white", white=255.0)
    assert (model.low, model.high) == (0, 1)
    model, done = trained(TensorDataset(torch.randn(24, 1, 8, 8), LABELS), tmp_path / "own")
    assert model.low < -2
    assert done.preprocessing.origin == "the inputs of TensorDataset, as they are"
    with pytest.raises(DataError, match="normalised already"):
        trained(TensorDataset(torch.randn(24, 1, 8, 8), LABELS), tmp_path / "twice", mean=MEAN)
    with pytest.raises(OptionError, match=r"mean cannot be applied .*float32 \[64\]"):
        trained(TensorDataset(torch.randn(24, 64), LABELS), tmp_path / "vectors", mean=MEAN)


def test_a_model_trained_on_tensors_is_scored_on_them_the_same_way(tmp_path):
    data = TensorDataset(torch.rand(24, 1, 8, 8), LABELS)
    table = {"name": data, "validation": 0.0, "mean": MEAN, "std": STD}
    done = hs.train("small_cnn", table, out=tmp_path / "run", epochs=1, select="last", device="cpu")
    assert done.preprocessing.stated == ("mean", "std")
    by_folder = hs.score(tmp_path / "run", data, device="cpu")
    by_hand = hs.score(done.model, data, mean=MEAN, std=STD, device="cpu")
    np.testing.assert_allclose(by_folder.column("avh"), by_hand.column("avh"), atol=1e-6)
    assert by_folder.metadata["preprocessing"]["mean"] == [0.4]


def test_evaluation_records_what_was_done_to_tensors():
    options = {"attack_examples": 0, "explain_examples": 0, "map_examples": 10,
               "feature_examples": 10, "device": "cpu"}  # fmt: skip
    data = TensorDataset(torch.randn(24, 1, 8, 8), LABELS)
    card = hs.evaluation_card(Flat(), data, **options)
    assert (
        card["models"][0]["preprocessing"]["origin"] == "the inputs of TensorDataset, as they are"
    )
    with pytest.raises(DataError, match="run from 0 to 255"):
        hs.evaluation_card(Flat(), TensorDataset(bytes_of().float(), LABELS), **options)
    with pytest.raises(DataError, match="normalised already"):
        hs.evaluation_card(Flat(), data, mean=MEAN, std=STD, **options)


def test_a_study_of_degradation_takes_bytes_of_a_users_dataset():
    pixels, model = bytes_of(), Flat()
    study = hs.study_degradation(
        model, TensorDataset(pixels, LABELS), noise=(), contrast=(1.0, 0.5), device="cpu",
        batch_size=24,
    )  # fmt: skip
    assert len(study) == 1
    torch.testing.assert_close(model.fed[-1], pixels / 255 * 0.5 + 0.25, atol=1e-5, rtol=0)


def test_preprocessing_keeps_what_was_stated_when_it_is_stored():
    how = Preprocessing(mean=MEAN, stated=("mean",), white=16.0)
    assert Preprocessing(**dataclasses.asdict(how)) == how
