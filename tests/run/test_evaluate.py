"""A card from end to end: its numbers against direct computation, its refusals, its honesty."""

from __future__ import annotations

import copy
import inspect
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.metrics import accuracy_score, roc_auc_score
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from hardsight.data import batches, open_source
from hardsight.errors import (
    DataError,
    HardsightWarning,
    LabelError,
    MissingDataError,
    ModelError,
    NonFiniteError,
    OptionError,
    OutputError,
    ShapeError,
)
from hardsight.models import SmallCNN, StoredModel
from hardsight.preprocessing import Preprocessing
from hardsight.run.evaluate import EvaluateConfig, evaluation_card, named_model, run_evaluate
from hardsight.stats import mcnemar
from tests._nets import tiny_vit

PLAIN = {"mean": (0.0,), "std": (1.0,)}
QUICK = {"map_examples": 30, "feature_examples": 100, "explain_examples": 0, "attack_examples": 0,
         "device": "cpu"}  # fmt: skip


def digits(split):
    (batch,) = batches(open_source("builtin:digits", split=split), Preprocessing(), batch_size=2000)
    return batch.inputs, batch.labels


def trained(net, seed, steps=60):
    inputs, labels = digits("train")
    optimizer = torch.optim.AdamW(net.train().parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    order = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(0, len(labels), (64,), generator=order)
        loss = cross_entropy(net(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.eval()


@pytest.fixture(scope="module")
def nets():
    narrow = SmallCNN(seed=1, embedding_width=3)
    narrow.body[-1] = nn.Identity()  # three features without a sign cannot tell ten digits apart
    return {"first": trained(SmallCNN(seed=0), 0), "second": trained(narrow, 1)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """90 digits to evaluate, and noise that is none."""
    folder = tmp_path_factory.mktemp("data")
    inputs, labels = digits("test")
    images = (255 * inputs[:90, 0]).round().byte().numpy()
    np.savez(folder / "digits.npz", images=images, labels=labels[:90].numpy())
    noise = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(folder / "noise.npz", images=noise, labels=np.arange(60) % 2)
    return folder


@pytest.fixture(scope="module")
def card(nets, files, tmp_path_factory):
    return evaluation_card(
        nets, files / "digits.npz", ood=[files / "noise.npz"], train="builtin:digits",
        train_split="train", epsilons=(0.05, 0.15), epsilons_l2=(0.5,), attack_steps=4,
        attack_examples=90, explain_examples=12, map_examples=50, device="cpu",
        out=tmp_path_factory.mktemp("out") / "card", **PLAIN,
    )  # fmt: skip


@pytest.fixture(scope="module")
def direct(nets, files):
    """Logits of both models, without any of our loops."""
    stored, noise = np.load(files / "digits.npz"), np.load(files / "noise.npz")["images"]
    with torch.no_grad():
        return {
            "labels": stored["labels"],
            **{name: net(torch.tensor(stored["images"][:, None] / 255).float()).numpy()
               for name, net in nets.items()},
            "noise": nets["first"](torch.tensor(noise[:, None] / 255).float()).numpy(),
        }  # fmt: skip


def test_accuracy_is_that_of_the_model(card, direct):
    for model in card["models"]:
        expected = accuracy_score(direct["labels"], direct[model["name"]].argmax(1))
        assert model["accuracy"]["top1"]["value"] == expected
        assert model["counts"] == {"rows": 90, "unreadable": 0, "non_finite": 0}


def test_at_epsilon_zero_every_attack_gives_exactly_the_clean_accuracy(card):
    for model in card["models"]:
        for curve in model["robustness"]["curves"].values():
            assert curve[0]["epsilon"] == 0
            assert curve[0]["accuracy"] == pytest.approx(model["accuracy"]["top1"])
            values = [point["accuracy"]["value"] for point in curve]
            assert values == sorted(values, reverse=True)
            assert values[-1] < values[0]


def test_foreign_examples_are_judged_by_the_energy_of_their_logits(card, direct):
    values = -np.concatenate([direct["first"].max(1), direct["noise"].max(1)])
    found = card["models"][0]["ood"][0]["min_energy"]
    assert found["auroc"]["value"] == pytest.approx(roc_auc_score(np.arange(150) >= 90, values))
    assert (found["own"], found["foreign"]) == (90, 60)


def test_comparison_is_paired(card, direct):
    (compared,) = card["comparisons"]
    right = {name: direct[name].argmax(1) == direct["labels"] for name in ("first", "second")}
    row = compared["rows"][0]
    assert row["p"] == mcnemar(right["second"], right["first"]).p
    assert row["difference"] == pytest.approx(right["second"].mean() - right["first"].mean())
    keys = {one["key"] for one in compared["rows"]}
    assert keys == {"top1", "nll", "brier", "margin", "auroc", "fgsm", "pgd_linf", "pgd_l2"}


def test_likelihoods_are_compared_on_the_examples_that_calibration_is_judged_on(card):
    rows = {row["key"]: row for row in card["comparisons"][0]["rows"]}
    first, second = (model["calibration"]["before"] for model in card["models"])
    for key in ("nll", "brier"):
        assert (rows[key]["first"], rows[key]["second"]) == (first[key], second[key])
        assert rows[key]["n"] == 72
    assert rows["margin"]["n"] == rows["top1"]["n"] == 90


def test_temperature_is_fitted_on_other_examples_than_it_is_judged_on(card):
    for model in card["models"]:
        part = model["calibration"]
        assert (part["validation"], part["n"]) == (18, 72)
        assert sum(one["count"] for one in part["before"]["bins"]) == 72
        assert part["temperature"] > 0


def test_training_data_gives_shots_and_a_probe(card):
    first = card["models"][0]
    assert first["accuracy"]["shots"]["many"]["n"] == 90  # 130 and more of each digit
    assert first["representation"]["probe"]["trained_on"] == "the training data"
    assert first["representation"]["probe"]["accuracy"]["value"] > 0.8


def test_an_embedding_of_width_three_has_a_sphere(card):
    first, second = (model["representation"] for model in card["models"])
    assert first["sphere"] is None
    lengths = np.linalg.norm(second["sphere"]["points"], axis=1)
    assert set(lengths.round(2)) <= {0.0, 1.0}
    assert first["map"]["labels"] == second["map"]["labels"]  # the same examples for all models


def test_searches_include_images_made_against_the_other_model(card):
    names = [check["name"] for check in card["models"][0]["robustness"]["masking"]["checks"]]
    assert "images made against second" in names
    for model in card["models"]:
        masking = model["robustness"]["masking"]
        assert masking["worst"]["value"] <= masking["base"]["value"]


def test_images_made_against_a_copy_do_what_images_made_against_the_model_do(nets, files):
    class Scaled(nn.Module):
        """The same model behind another normalisation."""

        preprocessing = Preprocessing(mean=(0.3,), std=(0.5,))

        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, images):
            return self.net(images * 0.5 + 0.3)

    plain = copy.deepcopy(nets["first"])
    plain.preprocessing = Preprocessing(origin="plain pixels")
    options = {**QUICK, "attack_examples": 30, "attack_steps": 5, "epsilons": (0.1,),
               "epsilons_l2": (0,)}  # fmt: skip
    models = {"plain": plain, "scaled": Scaled(nets["first"])}
    for model in evaluation_card(models, files / "digits.npz", **options)["models"]:
        masking = model["robustness"]["masking"]
        (transferred,) = [one for one in masking["checks"] if one["name"].startswith("images")]
        assert transferred["accuracy"]["value"] == pytest.approx(masking["base"]["value"], abs=0.04)
        assert masking["base"]["value"] < 0.9 * model["accuracy"]["top1"]["value"]


def test_maps_are_measured_and_shown_side_by_side(card):
    for model in card["models"]:
        part = model["explanation"]
        assert part["layer"] == "body.9"
        assert part["n"] == 12
        assert 0.2 <= part["top_share"] <= 1
    assert len(card["explanations"]) == 8
    assert all(len(one["models"]) == 2 for one in card["explanations"])


def test_every_option_is_on_the_card_that_is_not_on_it_in_another_form(card):
    options = set(inspect.signature(evaluation_card).parameters)
    elsewhere = {"models", "data", "ood", "train", "show_progress", "resume", "overwrite"}
    assert set(card["settings"]) == options - elsewhere


def test_every_number_has_a_definition(card):
    assert {row["key"] for row in card["comparisons"][0]["rows"]} <= set(card["definitions"])
    assert {row["test"] for row in card["comparisons"][0]["rows"]} <= set(card["definitions"])


def test_the_file_holds_the_card_and_only_what_json_knows(card):
    text = (Path(card["settings"]["out"]) / "card.json").read_text("utf-8")
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == card


def test_two_runs_give_the_same_card_and_leave_nothing_behind(nets, files, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    net = nets["first"].train()
    net.zero_grad(set_to_none=True)
    options = {**QUICK, "attack_examples": 6, "attack_steps": 3, "epsilons": (0.1,),
               "explain_examples": 2, **PLAIN}  # fmt: skip
    one, two = (evaluation_card(net, files / "digits.npz", **options) for _ in range(2))
    assert one == two
    assert list(tmp_path.iterdir()) == []
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())
    net.eval()


def test_a_model_that_hides_its_gradients_is_caught(nets, files):
    class Sure(nn.Module):
        """The same decisions, so sure that cross-entropy has no gradient in float32."""

        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, images):
            return 3000 * self.net(images)

    options = {**QUICK, "attack_examples": 40, "attack_steps": 5, "epsilons": (0.15,),
               "epsilons_l2": (0,), **PLAIN}  # fmt: skip
    models = {"plain": nets["first"], "sure": Sure(nets["first"])}
    plain, sure = evaluation_card(models, files / "digits.npz", **options)["models"]
    assert plain["accuracy"] == sure["accuracy"]
    pgd = [model["robustness"]["curves"]["pgd_linf"][-1]["accuracy"]["value"]
           for model in (plain, sure)]  # fmt: skip
    assert pgd[1] > pgd[0] + 0.2  # what a careless table would call robust
    assert not plain["robustness"]["masking"]["suspicious"]
    assert sure["robustness"]["masking"]["suspicious"]
    worst = sure["robustness"]["masking"]["worst"]["value"]
    assert worst <= plain["robustness"]["masking"]["base"]["value"] + 0.05


def test_without_a_known_normalisation_attacks_are_left_out_and_never_guessed(nets, files):
    options = {**QUICK, "attack_examples": 5}
    (model,) = evaluation_card(nets["first"], files / "digits.npz", **options)["models"]
    assert "does not state how its inputs are made from pixels" in model["robustness"]["note"]
    with pytest.raises(OptionError, match=r"pass --mean and --std .* 0 and 1 for plain pixels"):
        evaluation_card(nets["first"], files / "digits.npz", epsilons=(0.1,), **options)
    stated = Preprocessing(origin="told")
    found = evaluation_card(nets["first"], files / "digits.npz", preprocessing=stated, **options)
    assert found["models"][0]["robustness"]["n"] == 5


def test_a_constant_model_gets_notes_instead_of_numbers(files):
    net = SmallCNN()
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    card = evaluation_card(net, files / "digits.npz", ood=[files / "noise.npz"], **QUICK)
    (model,) = card["models"]
    assert "values of the indicator are equal" in model["ood"][0]["min_energy"]["note"]
    assert model["accuracy"]["top1"]["n"] == 90


class Flat(nn.Module):
    """No convolution anywhere."""

    def __init__(self, classes=10):
        super().__init__()
        self.fc = nn.Linear(64, classes)

    def forward(self, images):
        return self.fc(images.flatten(1))


def test_a_model_without_convolutions_has_no_maps_but_a_reason(files):
    options = {**QUICK, "explain_examples": 3}
    (model,) = evaluation_card(Flat(), files / "digits.npz", **options)["models"]
    assert "Flat has no 2-d convolution" in model["explanation"]["note"]
    with pytest.raises(ModelError, match="no layer 'body' of Flat"):
        evaluation_card(Flat(), files / "digits.npz", cam_layer="body", **options)


def test_a_vision_transformer_of_hugging_face_has_every_part(files):
    options = {**QUICK, "attack_examples": 6, "epsilons": (0.1,), "explain_examples": 4, **PLAIN}
    (model,) = evaluation_card(tiny_vit(10), files / "digits.npz", **options)["models"]
    assert model["explanation"]["grid"] == [4, 4]
    assert model["explanation"]["n"] == 4
    assert model["robustness"]["n"] == 6
    assert model["representation"]["width"] == 16


def test_examples_with_nan_outputs_count_as_wrong_and_nowhere_else(files):
    class Broken(Flat):
        def forward(self, images):
            dark = images.mean((1, 2, 3)) < 0.28
            logits = super().forward(images)
            return torch.where(dark[:, None] & (len(images) > 8), torch.nan, logits)

    (model,) = evaluation_card(Broken(), files / "digits.npz", **QUICK)["models"]
    bad = model["counts"]["non_finite"]
    assert 0 < bad < 90
    assert model["accuracy"]["top1"]["n"] == 90
    assert model["margin"]["all"]["n"] == 90 - bad


@pytest.mark.parametrize("first", [1, 8, 12])
def test_nan_outputs_of_the_first_examples_do_not_end_an_evaluation(files, first):
    broken = torch.from_numpy(np.load(files / "digits.npz")["images"][:first]).flatten(1)

    class Broken(SmallCNN):
        def forward(self, images):
            pixels = (255 * images).round().to(torch.uint8).flatten(1)
            seen = (pixels[:, None] == broken).all(2).any(1)
            return super().forward(images) * torch.where(seen[:, None], torch.nan, 1.0)

    options = {**QUICK, "explain_examples": 6, "attack_examples": 6}
    card = evaluation_card(Broken(), files / "digits.npz", **PLAIN, **options)
    (model,) = card["models"]
    assert model["counts"]["non_finite"] == first
    # of 6 each; the first has no output, so neither a class to attack nor one to explain
    assert model["robustness"]["n"] == model["explanation"]["n"] == len(card["explanations"]) == 5


def test_a_model_without_any_finite_output_is_refused_before_its_head_is_looked_for(files):
    class Broken(Flat):
        def forward(self, images):
            return super().forward(images) * torch.nan

    with pytest.raises(NonFiniteError, match=r"Broken has no finite output for any of the first"):
        evaluation_card(Broken(), files / "digits.npz", **QUICK)


def test_one_example_has_a_card_with_notes_for_what_needs_more(files):
    inputs, labels = digits("test")
    data = TensorDataset(inputs[:1], labels[:1])
    with pytest.warns(HardsightWarning, match="the model has 10 classes, the data names 4"):
        (model,) = evaluation_card(Flat(), data, **QUICK)["models"]
    assert model["accuracy"]["top1"]["n"] == 1
    assert "too few" in model["representation"]["probe"]["note"]
    assert "too few" in model["calibration"]["note"]


class Torn(Flat):
    """NaN for the image whose first pixel has a certain value, right for all others."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, images):
        logits = super().forward(images)
        torn = (255 * images[:, 0, 0, 0]).round() == self.value
        return torch.where(torn[:, None], torch.nan, logits)


def test_models_with_nan_for_different_examples_are_compared_on_those_both_have(tmp_path):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 200, (40, 8, 8), dtype=np.uint8)
    images[:, 0, 0] = 0
    images[11, 0, 0], images[30, 0, 0] = 250, 251
    np.savez(tmp_path / "own.npz", images=images, labels=np.arange(40) % 10)
    foreign = draw.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    foreign[:, 0, 0] = 0
    np.savez(tmp_path / "foreign.npz", images=foreign, labels=np.arange(30) % 2)
    a, b = Torn(250), Torn(251)
    b.fc.load_state_dict(a.fc.state_dict())
    options = {**QUICK, "attack_examples": 40, "epsilons": (0.1,), "epsilons_l2": (0.1,),
               "attack_steps": 1, **PLAIN}  # fmt: skip
    card = evaluation_card({"a": a, "b": b}, tmp_path / "own.npz", ood=[tmp_path / "foreign.npz"],
                    **options)  # fmt: skip
    # the same weights: whatever both models answer, they answer alike
    rows = [row for row in card["comparisons"][0]["rows"] if row["key"] != "top1"]
    assert {row["key"] for row in rows} == {
        "nll", "brier", "margin", "auroc", "fgsm", "pgd_linf", "pgd_l2"
    }  # fmt: skip
    assert {row["n"] for row in rows if row["key"] == "auroc"} == {38 + 30}
    assert {row["n"] for row in rows if row["key"] in ("margin", "fgsm", "pgd_l2")} == {38}
    for row in rows:
        assert row["difference"] == 0, row
        assert row["p"] == 1, row


def test_bad_input_says_what_was_expected(nets, files, tmp_path):
    data = files / "digits.npz"
    with pytest.raises(LabelError, match=r"digits.npz has 10 classes, the model 4"):
        evaluation_card(Flat(4), data, **QUICK)
    with pytest.raises(OptionError, match="models with the same classes, got a 10, b 12 classes"):
        evaluation_card({"a": Flat(), "b": Flat(12)}, data, **QUICK)
    with pytest.raises(OptionError, match="two models are called 'Flat'; name them"):
        evaluation_card([Flat(), Flat()], data, **QUICK)
    with pytest.raises(OptionError, match="at least one model, got none"):
        evaluation_card([], data, **QUICK)
    wide = np.zeros((4, 9, 9), np.uint8)
    np.savez(tmp_path / "wide.npz", images=wide, labels=[0, 1, 0, 1])
    with pytest.raises(ShapeError, match=r"inputs of shape \[1, 8, 8\], .* got \[1, 9, 9\] from"):
        evaluation_card(Flat(), data, ood=[tmp_path / "wide.npz"], **QUICK)
    options = {**QUICK, "attack_examples": 4, "epsilons": (0.1,)}
    normalised = TensorDataset(torch.linspace(-2, 2, 1280).view(20, 1, 8, 8), torch.arange(20) % 10)
    with pytest.raises(OptionError, match=r"gives pixels from .* instead of \[0, 1\]"):
        evaluation_card(Flat(), normalised, **options, **PLAIN)
    with pytest.raises(OptionError, match="every epsilon to be >= 0, got"):
        evaluation_card(Flat(), data, **{**QUICK, "epsilons": (-0.1,)}, **PLAIN)
    with pytest.raises(
        OptionError, match=r"in \[0, 1\], the pixel scale, got .*8 of 255 is 0.0314"
    ):
        evaluation_card(Flat(), data, **{**QUICK, "epsilons": (8,)}, **PLAIN)
    for key, value, said in [
        ("attack_steps", 0, "attack_steps >= 1, got 0"),
        ("attack_examples", -1, "attack_examples >= 0, got -1"),
        ("explain_examples", -2, "explain_examples >= 0, got -2"),
        ("batch_size", 0, "batch_size >= 1, got 0"),
        ("seed", -1, "seed >= 0, got -1"),
    ]:
        with pytest.raises(OptionError, match=said):
            evaluation_card(Flat(), data, **{**QUICK, key: value})
    with pytest.raises(OptionError, match=r"every std to be above 0 and finite, got \(0.0,\)"):
        evaluation_card(Flat(), data, mean=(0.5,), std=(0.0,), **QUICK)
    for nothing in (None, 5):
        with pytest.raises(OptionError, match=r"expected a module or its name, .* got"):
            evaluation_card(nothing, data, **QUICK)
    np.savez(tmp_path / "e.npz", embeddings=np.ones((4, 2), "f4"), labels=[0, 1, 0, 1])
    with pytest.raises(OptionError, match="holds embeddings; an evaluation needs examples"):
        evaluation_card(Flat(), tmp_path / "e.npz", **QUICK)
    with pytest.raises(OptionError, match=r"validation_share in \(0, 1\), got 1"):
        evaluation_card(Flat(), data, validation_share=1, **QUICK)
    with pytest.raises(OptionError, match="map_examples >= 10, got 1"):
        evaluation_card(Flat(), data, **{**QUICK, "map_examples": 1})
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="choose another --out"):
        evaluation_card(Flat(), data, out=tmp_path / "file", **QUICK)


def test_a_model_without_a_finite_output_is_refused_with_a_next_step(files):
    class Silent(Flat):
        def forward(self, images):
            few = len(images) <= 8  # on which the head is looked for
            return super().forward(images) * (1.0 if few else torch.nan)

    with pytest.raises(NonFiniteError, match=r"no finite output for any of the 90 .* check its"):
        evaluation_card(Silent(), files / "digits.npz", **QUICK)


def test_foreign_data_without_a_finite_output_gets_a_note(files):
    class Bright(Flat):
        def forward(self, images):
            bright = images.mean((1, 2, 3)) > 0.4
            return torch.where(bright[:, None], torch.nan, super().forward(images))

    (model,) = evaluation_card(Bright(), files / "digits.npz", ood=[files / "noise.npz"], **QUICK)[
        "models"
    ]
    assert model["ood"][0]["avc"] == {"note": "no foreign example has a finite output"}


def test_an_example_that_only_one_model_could_read_stops_the_comparison(files):
    inputs, labels = digits("test")

    class Flaky(TensorDataset):
        reads = 0

        def __getitem__(self, index):
            self.reads += index == 50
            if index == 50 and self.reads == 2:
                raise OSError("the share is gone")
            return super().__getitem__(index)

    with pytest.raises(DataError, match=r"read 89 of the examples of Flaky, .* \(90\), so"):
        evaluation_card(
            {"a": Flat(), "b": Flat()}, Flaky(inputs[:90], labels[:90]), workers=0, **QUICK
        )


def test_pixels_that_do_not_fit_cost_an_unasked_card_its_attacks_only(files):
    normalised = TensorDataset(torch.linspace(-2, 2, 1280).view(20, 1, 8, 8), torch.arange(20) % 10)
    options = {**QUICK, "attack_examples": 4, **PLAIN}
    (model,) = evaluation_card(Flat(), normalised, **options)["models"]
    assert "pass the mean and std" in model["robustness"]["note"]
    assert model["accuracy"]["top1"]["n"] == 20


def test_one_foreign_dataset_and_a_folder_need_no_list(files, tmp_path):
    how = Preprocessing()
    (tmp_path / "net").mkdir()
    StoredModel("small_cnn", {}, how, ()).write(tmp_path / "net", SmallCNN().state_dict())
    card = evaluation_card(tmp_path / "net", files / "digits.npz", ood=files / "noise.npz", **QUICK)
    assert len(card["ood"]) == 1
    assert card["models"][0]["name"] == str(tmp_path / "net")


def test_named_data_is_found_below_the_root_that_the_error_asks_for(tmp_path):
    inputs, labels = digits("test")
    images = (255 * inputs[:40, 0]).round().byte().numpy()
    (tmp_path / "mnist").mkdir()
    for name, array in (("images-idx3", images), ("labels-idx1", labels[:40].byte().numpy())):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        (tmp_path / f"mnist/t10k-{name}-ubyte").write_bytes(head + array.tobytes())
    card = evaluation_card(Flat(), "mnist", split="test", data_root=tmp_path, **QUICK)
    assert card["data"]["rows"] == 40
    with pytest.raises(
        OptionError, match=r"data_root is for named datasets \(.*mnist.*leave it out"
    ):
        evaluation_card(Flat(), "builtin:digits", split="test", data_root=tmp_path, **QUICK)


def test_an_equals_sign_in_the_path_of_weights_is_no_name():
    assert named_model("net.py:make@runs/lr=0.1/w.safetensors") == (
        None, "net.py:make", "runs/lr=0.1/w.safetensors"
    )  # fmt: skip
    assert named_model("EL=net.py:make@runs/lr=0.1/w.pt") == (
        "EL",
        "net.py:make",
        "runs/lr=0.1/w.pt",
    )
    assert named_model("amc13:width=0.5@w.pt") == (None, "amc13:width=0.5", "w.pt")


def test_models_by_name_with_their_weights(nets, files, tmp_path):
    save_file(nets["first"].state_dict(), tmp_path / "w.safetensors")
    spec = "hardsight.models:SmallCNN"
    given = {**QUICK, "data": str(files / "digits.npz"), "out": str(tmp_path / "card")}
    config = EvaluateConfig.load(None, (), model=f"a={spec}@{tmp_path / 'w.safetensors'}",
                                 compare=(f"b={spec}",), **given)  # fmt: skip
    found = run_evaluate(config)["models"]
    assert [model["name"] for model in found] == ["a", "b"]
    assert found[0]["accuracy"]["top1"]["value"] > 0.8
    assert found[0]["weights_digest"]
    assert named_model("net.py:make@w.pt") == (None, "net.py:make", "w.pt")
    with pytest.raises(OptionError, match="names its weights already; leave --weights out"):
        run_evaluate(EvaluateConfig.load(None, (), model=f"{spec}@w.pt", weights="w.pt", **given))
    with pytest.raises((MissingDataError, DataError)):
        run_evaluate(EvaluateConfig.load(
            None, (), model=spec, **{**given, "data": "nowhere", "out": str(tmp_path / "other")}
        ))  # fmt: skip


def test_a_card_says_what_its_numbers_have_to_be_read_with(tmp_path):
    class Broken(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(64, 10))

        def forward(self, images):
            logits = super().forward(images)
            dark = images.mean(dim=(1, 2, 3)) < 0.28
            return torch.where(dark[:, None], logits * float("nan"), logits)

    quick = {**QUICK, "mean": (0,), "std": (1,)}
    with pytest.warns(HardsightWarning) as caught:
        card = evaluation_card({"mine": Broken()}, "builtin:digits", split="test", **quick)
    broken = card["models"][0]["counts"]["non_finite"]
    assert 0 < broken < 449
    said = [str(warning.message) for warning in caught]
    assert f"mine: {broken} of 449 outputs are not finite, and count as wrong answers" in said
    with pytest.warns(HardsightWarning, match="no --weights were given: small_cnn was evaluated"):
        evaluation_card("small_cnn", "builtin:digits", split="test", **quick)
    for name, number in (("a", 4), ("b", 4)):
        (tmp_path / name).mkdir()
        for at in range(number):
            Image.new("L", (8, 8), 60 * at).save(tmp_path / name / f"{at}.png")
    (tmp_path / "a" / "0.png").write_bytes(b"no picture")
    with pytest.warns(HardsightWarning, match="1 example could not be read"):
        evaluation_card(SmallCNN(num_classes=2), tmp_path, **quick)


def test_a_model_in_half_precision_is_evaluated(nets):
    net = nets["first"]
    full, half = (
        evaluation_card(model, "builtin:digits", split="test", **QUICK)["models"][0]["accuracy"][
            "top1"
        ]
        for model in (net, copy.deepcopy(net).bfloat16())
    )
    assert half["value"] == pytest.approx(full["value"], abs=0.02)


def test_the_ensemble_is_one_more_search_and_the_worst_is_no_better(nets, files):
    options = {**QUICK, "attack_examples": 40, "epsilons": (0.1,), "epsilons_l2": (0,),
               "attack_steps": 2, **PLAIN}  # fmt: skip
    model, data = Flat(), files / "digits.npz"
    plain = evaluation_card(model, data, **options)["models"][0]["robustness"]["masking"]
    found = evaluation_card(model, data, ensemble_steps=4, **options)["models"][0]["robustness"]
    by = {check["name"]: check["accuracy"]["value"] for check in found["masking"]["checks"]}
    name = "APGD on two losses and Square, 4 steps"
    assert name in by
    assert not any("APGD" in check["name"] for check in plain["checks"])
    assert found["masking"]["worst"]["value"] <= min(by[name], plain["worst"]["value"])
    with pytest.raises(OptionError, match="expected ensemble_steps >= 0, got -1"):
        evaluation_card(model, data, ensemble_steps=-1, **options)
