"""Classes of a model and of data: matched by name, so that no label means another class."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import hardsight as hs
from hardsight.cli import main
from hardsight.data import MemorySource
from hardsight.errors import HardsightWarning, LabelError, MissingDataError, OptionError
from hardsight.models import StoredModel
from hardsight.preprocessing import Preprocessing
from hardsight.run.evaluate import evaluation_card

COLOURS = {"cat": 0, "dog": 1, "horse": 2}  # the channel that is bright
OTHER_ORDER = ("dog", "horse", "cat")
QUICK = {"attack_examples": 0, "explain_examples": 0, "map_examples": 10, "feature_examples": 10}


class ColourNet(nn.Module):
    """Tells classes apart by colour; each output stands for the class of its name."""

    def __init__(self, names=OTHER_ORDER):
        super().__init__()
        self.fc = nn.Linear(3, len(names))
        with torch.no_grad():
            self.fc.bias.zero_()
            self.fc.weight.zero_()
            for output, name in enumerate(names):
                self.fc.bias[output] = 0.0 if name in COLOURS else -9.0
                if name in COLOURS:
                    self.fc.weight[output, COLOURS[name]] = 10.0

    def forward(self, images):
        return self.fc(images.mean(dim=(2, 3)))


def named_by_config(names=OTHER_ORDER):
    net = ColourNet(names)
    net.config = SimpleNamespace(id2label=dict(enumerate(names)))
    return net


def named_by_itself(names=OTHER_ORDER):
    net = ColourNet(names)
    net.classes = list(names)
    return net


@pytest.fixture
def photos(tmp_path):
    draw = np.random.default_rng(0)
    for name, channel in COLOURS.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            pixels = draw.integers(0, 60, (8, 8, 3), dtype=np.uint8)
            pixels[..., channel] += 150
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def accuracy(table) -> float:
    return float((table.column("label") == table.column("prediction")).mean())


def assert_named_by_folder(table) -> None:
    named = [table.classes[label] for label in table.column("label")]
    assert named == [name.split("/")[0] for name in table.column("id")]


@pytest.fixture
def run_folder(tmp_path):
    """A model as ``hardsight train`` leaves it."""
    folder = tmp_path / "trained"
    folder.mkdir()
    net = ColourNet()
    how = Preprocessing(size=(8, 8), channels=3)
    (tmp_path / "nets.py").write_text(
        "from torch import nn\nimport torch\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(3, 3)\n"
        "    def forward(self, x):\n        return self.fc(x.mean((2, 3)))\n"
    )
    StoredModel(f"{tmp_path}/nets.py:Net", {}, how, OTHER_ORDER).write(folder, net.state_dict())
    return folder


class FakeTimm(SimpleNamespace):
    """As much of timm as naming a model and its classes takes."""

    @classmethod
    def with_names(cls, **config):
        net = ColourNet()
        net.num_classes, net.pretrained_cfg = 3, config
        info = SimpleNamespace(
            label_names=lambda: ["n2", "n3", "n1"],
            label_descriptions=lambda: ["dog, hound", "horse, Equus caballus", "cat"],
        )
        data = SimpleNamespace(
            resolve_model_data_config=lambda model: {"input_size": (3, 8, 8), "crop_pct": 1.0},
            infer_imagenet_subset=lambda model: None if "label_names" in config else "three",
            ImageNetInfo=lambda subset: info,
        )
        return cls(
            is_model=lambda name: True, create_model=lambda name, **given: net, data=data,
            list_models=list,
        )  # fmt: skip


class FakeTorchvision(SimpleNamespace):
    """As much of torchvision.models as naming a model and its classes takes."""

    @classmethod
    def with_names(cls):
        preset = SimpleNamespace(
            crop_size=[8], resize_size=[8], mean=[0.0] * 3, std=[1.0] * 3,
            interpolation=SimpleNamespace(value="bilinear"),
        )  # fmt: skip
        enum = Enum("Net_Weights", {"V1": 1})
        enum.V1.transforms, enum.V1.meta = lambda: preset, {"categories": list(OTHER_ORDER)}
        enum.DEFAULT = enum.V1
        return cls(
            list_models=lambda module=None: ["net"],
            get_model_weights=lambda name: enum,
            get_model=lambda name, **given: ColourNet(),
        )


@pytest.mark.parametrize("make", [named_by_config, named_by_itself])
def test_a_module_that_names_its_classes_is_matched_by_name(photos, make):
    table = hs.score(make(), photos, device="cpu")
    assert accuracy(table) == 1.0
    assert table.classes == list(OTHER_ORDER)
    assert_named_by_folder(table)
    order = table.metadata["class_order"]
    assert (order["taken"], order["labels"]) == ("name", [2, 0, 1])
    assert order["data_classes"] == ["cat", "dog", "horse"]


def test_a_wrapped_module_is_asked_inside(photos):
    table = hs.score(nn.DataParallel(named_by_config()), photos, device="cpu")
    assert accuracy(table) == 1.0


class Around(nn.Module):
    """A user's wrapper, such as one that returns the logits of another model alone."""

    def __init__(self, net, outputs=None):
        super().__init__()
        self.net = net
        self.fc = nn.Identity() if outputs is None else nn.Linear(3, outputs)

    def forward(self, images):
        return self.fc(self.net(images))


@pytest.mark.parametrize("make", [named_by_config, named_by_itself])
def test_a_model_inside_a_users_own_module_names_its_classes(photos, make):
    table = hs.score(Around(make()), photos, device="cpu")
    assert accuracy(table) == 1.0
    assert table.metadata["class_order"]["taken"] == "name"
    assert "(id2label of ColourNet in Around)" in table.metadata["class_order"]["note"] or (
        "(classes of ColourNet in Around)" in table.metadata["class_order"]["note"]
    )
    card = evaluation_card(Around(make()), photos, **QUICK)
    assert card["models"][0]["accuracy"]["top1"]["value"] == 1.0


def test_a_part_with_other_classes_than_the_whole_names_nothing(photos):
    # a backbone that knew three classes, under a new head of four
    with pytest.warns(HardsightWarning, match="the model has 4 classes, the data names 3"):
        table = hs.score(Around(named_by_config(("x", "y", "z")), outputs=4), photos, device="cpu")
    assert table.metadata["class_order"]["taken"] == "position"
    # two parts that disagree
    net = Around(named_by_config())
    net.other = named_by_config(("cat", "dog", "horse"))
    table = hs.score(net, photos, device="cpu")
    assert table.metadata["class_order"]["taken"] == "position"


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("classes", np.array(OTHER_ORDER)),
        ("classes", {0: "dog", 1: "horse", 2: "cat"}),
        ("classes", {"0": "dog", "1": "horse", "2": "cat"}),
        ("class_names", OTHER_ORDER),
        ("class_to_idx", {"cat": 2, "dog": 0, "horse": 1}),
        ("id2label", {0: "dog", 1: "horse", 2: "cat"}),
    ],
)
def test_usual_ways_to_name_classes_are_read(photos, attribute, value):
    net = ColourNet()
    setattr(net, attribute, value)
    assert accuracy(hs.score(net, photos, device="cpu")) == 1.0


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("classes", {1: "dog", 2: "horse", 3: "cat"}),  # not numbered from 0
        ("class_to_idx", {"cat": 0, "dog": 0, "horse": 1}),
        ("class_to_idx", {"cat": "a"}),
        ("classes", 3),
        ("classes", nn.Linear(2, 2)),
    ],
)
def test_what_does_not_number_the_outputs_names_nothing(photos, attribute, value):
    net = ColourNet(("cat", "dog", "horse"))
    setattr(net, attribute, value)
    table = hs.score(net, photos, device="cpu")
    assert (accuracy(table), table.metadata["class_order"]["taken"]) == (1.0, "position")


def test_a_timm_model_in_memory_is_matched_by_the_names_of_its_imagenet(photos, monkeypatch):
    timm = FakeTimm.with_names()
    monkeypatch.setitem(sys.modules, "timm", timm)
    for net in (timm.create_model("net"), Around(timm.create_model("net"))):
        table = hs.score(net, photos, device="cpu")
        assert accuracy(table) == 1.0
        assert table.metadata["class_order"]["taken"] == "name"
    # it may have been trained on as many classes of the user's own
    for name in COLOURS:
        (photos / name).rename(photos / f"my {name}")
    table = hs.score(net, photos, device="cpu")
    assert table.metadata["class_order"]["taken"] == "position"


def test_a_torchvision_model_in_memory_is_matched_by_the_names_of_imagenet(photos, monkeypatch):
    meta = SimpleNamespace(_IMAGENET_CATEGORIES=list(OTHER_ORDER))
    monkeypatch.setitem(sys.modules, "torchvision.models._meta", meta)
    monkeypatch.setattr(ColourNet, "__module__", "torchvision.models.resnet")
    table = hs.score(ColourNet(), photos, device="cpu")
    assert accuracy(table) == 1.0
    assert table.metadata["class_order"]["taken"] == "name"
    assert "ImageNet" in table.metadata["class_order"]["note"]


def test_the_names_of_all_classes_are_said_if_two_sets_of_data_number_them_otherwise(photos):
    some = photos.parent / "some"
    for name in ("cat", "horse"):
        shutil.copytree(photos / name, some / name)
    with pytest.raises(LabelError, match=r"with all names in one order: cat, horse, dog"):
        evaluation_card(ColourNet(), some, train=photos, **QUICK)


def test_names_may_be_given_with_the_model(photos, tmp_path):
    (tmp_path / "names.txt").write_text("dog\n\nhorse\ncat\n")
    for names in (OTHER_ORDER, list(OTHER_ORDER), tmp_path / "names.txt"):
        assert accuracy(hs.score(ColourNet(), photos, model_classes=names, device="cpu")) == 1.0
    # the user's word counts more than the model's
    table = hs.score(named_by_config(), photos, model_classes=["cat", "dog", "horse"], device="cpu")
    assert accuracy(table) == 0.0


def test_names_that_are_none_are_refused(photos, tmp_path):
    with pytest.raises(MissingDataError, match=r"no file .*none\.txt with the names"):
        hs.score(ColourNet(), photos, model_classes=tmp_path / "none.txt")
    with pytest.raises(OptionError, match="expected model_classes to be a list of names"):
        hs.score(ColourNet(), photos, model_classes=[0, 1, 2])


def test_a_hugging_face_model_is_matched_by_its_id2label(photos, tmp_path):
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic",
        id2label=dict(enumerate(OTHER_ORDER)), label2id={n: i for i, n in enumerate(OTHER_ORDER)},
    )  # fmt: skip
    model = ResNetForImageClassification(config)
    model.save_pretrained(tmp_path / "tiny")
    table = hs.score(f"hf:{tmp_path / 'tiny'}", photos, device="cpu")
    assert_named_by_folder(table)
    assert table.metadata["class_order"]["taken"] == "name"
    # the same scores as with the data numbered by hand
    by_hand = hs.score(model, photos, classes=OTHER_ORDER, device="cpu").to_pandas()
    found = table.to_pandas()
    for column in ("label", "prediction", "avh", "model_confidence"):
        np.testing.assert_allclose(found[column], by_hand[column], rtol=1e-5)


@pytest.mark.parametrize("config", [{}, {"label_names": list(OTHER_ORDER)}])
def test_a_timm_model_with_its_own_weights_is_matched_by_name(photos, monkeypatch, config):
    monkeypatch.setitem(sys.modules, "timm", FakeTimm.with_names(**config))
    table = hs.score("timm:net", photos, weights="pretrained", device="cpu")
    assert accuracy(table) == 1.0


def test_wordnet_ids_of_a_timm_model_match_too(photos, monkeypatch):
    for number, name in enumerate(("cat", "dog", "horse"), start=1):
        (photos / name).rename(photos / f"n{number}")
    monkeypatch.setitem(sys.modules, "timm", FakeTimm.with_names())
    table = hs.score("timm:net", photos, weights="pretrained", device="cpu")
    assert accuracy(table) == 1.0
    assert "by a synonym" in table.metadata["class_order"]["note"]


def test_a_torchvision_model_with_its_own_weights_is_matched_by_name(photos, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torchvision.models", FakeTorchvision.with_names())
    table = hs.score("torchvision:net", photos, weights="V1", device="cpu")
    assert accuracy(table) == 1.0


def test_weights_of_a_user_do_not_inherit_the_package_names(photos, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "timm", FakeTimm.with_names())
    torch.save(ColourNet(("cat", "dog", "horse")).state_dict(), tmp_path / "mine.pt")
    table = hs.score("timm:net", photos, weights=tmp_path / "mine.pt", device="cpu")
    assert accuracy(table) == 1.0
    assert table.metadata["class_order"]["taken"] == "position"


def test_the_weights_of_a_run_are_matched_by_the_names_of_their_description(photos, run_folder):
    model = f"{run_folder.parent}/nets.py:Net"
    table = hs.score(model, photos, weights=run_folder / "model.safetensors", device="cpu")
    assert accuracy(table) == 1.0
    assert "model.json" in table.metadata["model"]["weights"]


def test_data_may_have_some_of_the_models_classes(photos):
    names = ("zebra", "horse", "ant", "cat", "dog")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = hs.score(named_by_config(names), photos, mean=(0,), std=(1,), device="cpu")
    assert accuracy(table) == 1.0
    assert table.classes == list(names)
    assert table.metadata["class_order"]["labels"] == [3, 4, 1]
    assert table.metadata["data"]["named"] == 3


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("Dog", "Horse", "CAT"), "without regard to case"),
        (("_dog ", "horse", "cat"), "without regard to case, spaces"),
        (("dog, domestic dog", "horse, Equus caballus", "cat, Felis catus"), "by a synonym"),
    ],
)
def test_names_that_differ_in_writing_match_and_the_reading_is_said(photos, names, said):
    net = ColourNet()
    table = hs.score(net, photos, model_classes=names, device="cpu")
    assert accuracy(table) == 1.0
    assert said in table.metadata["class_order"]["note"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("dog", "horse", "zebra"), "the model has no class 'cat'"),
        (("a", "b", "c"), "the model has no class 'cat', 'dog', 'horse'"),
        (("dog", "horse", "cat", "cat"), r"the model's outputs 2, 3 are all called 'cat'"),
        (("dog", "horse", "Cat", "CAT"), r"the model's outputs 2, 3 are all called 'cat'"),
        (("dog", "horse, cat", "ant"), r"'cat' and 'horse' would both be 'horse, cat'"),
    ],
)
def test_names_that_do_not_match_are_refused_with_both_lists(photos, names, problem):
    net = named_by_config(names)
    with pytest.raises(LabelError, match=problem) as caught:
        hs.score(net, photos, device="cpu")
    said = str(caught.value)
    assert "The data has cat, dog, horse" in said
    assert f"the model has {', '.join(names)} (id2label of ColourNet)" in said
    assert "--class-order position" in said
    assert 'class_order="position"' in said


def test_long_lists_are_shortened(photos):
    names = tuple(f"thing {number}" for number in range(1000))
    with pytest.raises(LabelError, match="thing 5 and 994 more"):
        hs.score(named_by_config(names), photos, device="cpu")


def test_names_that_repeat_do_no_harm_where_nobody_asks_for_them(photos):
    names = ("dog", "horse", "crane", "crane", "cat")
    assert accuracy(hs.score(named_by_config(names), photos, device="cpu")) == 1.0


def test_the_order_can_be_forced(photos):
    net = ColourNet(("cat", "dog", "horse"))
    net.classes = ["chat", "chien", "cheval"]
    table = hs.score(net, photos, class_order="position", device="cpu")
    assert accuracy(table) == 1.0
    assert table.classes == ["cat", "dog", "horse"]
    assert table.metadata["class_order"]["taken"] == "position"
    with pytest.raises(OptionError, match="unknown class_order 'names'"):
        hs.score(net, photos, class_order="names")


def test_names_can_be_asked_for(photos):
    with pytest.raises(LabelError, match=r"the model has no class names.*--model-classes"):
        hs.score(ColourNet(), photos, class_order="name")


@pytest.mark.parametrize(
    "names", [("LABEL_0", "LABEL_1", "LABEL_2"), ("0", "1", "2"), ("class 0", "class 1", "class 2")]
)
def test_placeholders_are_no_names(photos, names):
    net = ColourNet(("cat", "dog", "horse"))
    net.config = SimpleNamespace(id2label=dict(enumerate(names)))
    table = hs.score(net, photos, device="cpu")
    assert accuracy(table) == 1.0
    assert table.classes == ["cat", "dog", "horse"]
    order = table.metadata["class_order"]
    assert order["taken"] == "position"
    assert "the model has no class names" in order["note"]


def test_numbers_are_names_where_both_sides_have_the_same(photos):
    for number, name in enumerate(("cat", "dog", "horse")):
        (photos / name).rename(photos / str(number))
    table = hs.score(ColourNet(), photos, model_classes=["1", "2", "0"], device="cpu")
    assert accuracy(table) == 1.0
    assert table.metadata["class_order"]["labels"] == [2, 0, 1]


def numbered(photos):
    """The photographs as arrays with integer labels, in the model's order."""
    pixels, labels = [], []
    for label, name in enumerate(OTHER_ORDER):
        for file in sorted((photos / name).iterdir()):
            pixels.append(np.asarray(Image.open(file)))
            labels.append(label)
    return np.stack(pixels), np.array(labels)


def test_integers_are_taken_as_outputs_and_that_is_said(photos):
    pixels, labels = numbered(photos)
    table = hs.score(named_by_config(), MemorySource(pixels, labels), device="cpu")
    assert accuracy(table) == 1.0
    assert table.classes == list(OTHER_ORDER)
    order = table.metadata["class_order"]
    assert order["taken"] == "position"
    assert "the data has no class names, so its labels are the model's outputs" in order["note"]


def test_fewer_integers_than_outputs_are_a_warning(photos):
    pixels, labels = numbered(photos)
    few = MemorySource(pixels[labels < 2], labels[labels < 2])
    with pytest.warns(HardsightWarning, match="the model has 3 classes, the data names 2"):
        table = hs.score(named_by_config(), few, device="cpu")
    assert accuracy(table) == 1.0


def test_names_of_another_head_are_left_alone_with_a_warning(photos):
    net = ColourNet(("cat", "dog", "horse"))
    names = [f"thing {number}" for number in range(1000)]
    net.config = SimpleNamespace(id2label=dict(enumerate(names)))
    with pytest.warns(HardsightWarning, match="names for 1,000 classes, but the model has 3"):
        table = hs.score(net, photos, device="cpu")
    assert accuracy(table) == 1.0
    assert table.metadata["class_order"]["taken"] == "position"


class Pairs:
    """A user's own dataset of tensors, with names."""

    def __init__(self, photos):
        self.classes = ["cat", "dog", "horse"]
        self.items = [
            (torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 255, label)
            for label, name in enumerate(self.classes)
            for file in sorted((photos / name).iterdir())
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    def __init__(self, photos):
        self.pairs = Pairs(photos)
        self.classes = self.pairs.classes

    def __iter__(self):
        return iter(self.pairs.items)


def collated(items):
    return torch.stack([image for image, _ in items]), torch.tensor([label for _, label in items])


@pytest.mark.parametrize(
    "data",
    [Pairs, Stream, lambda photos: DataLoader(Pairs(photos), batch_size=4, collate_fn=collated)],
    ids=["dataset", "stream", "own collate_fn"],
)
def test_labels_of_every_kind_of_data_are_translated(photos, data):
    table = hs.score(named_by_config(), data(photos), device="cpu")
    assert accuracy(table) == 1.0
    assert table.metadata["class_order"]["labels"] == [2, 0, 1]


def test_labels_of_stored_embeddings_are_translated(tmp_path):
    embeddings = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    names = np.array(["cat", "dog", "horse", "cat"])
    weights = torch.eye(3)[[1, 2, 0]]  # dog, horse, cat
    np.savez(tmp_path / "e.npz", embeddings=embeddings, labels=names)
    table = hs.score(weights, tmp_path / "e.npz", model_classes=OTHER_ORDER, device="cpu")
    assert accuracy(table) == 1.0
    assert table.column("label").tolist() == [2, 0, 1, 2]


def test_a_run_goes_on_with_the_same_order_only(photos, tmp_path):
    out = tmp_path / "run"
    first = hs.score(named_by_config(), photos, out=out, device="cpu")
    again = hs.score(named_by_config(), photos, out=out, device="cpu", resume=True)
    assert again.column("label").tolist() == first.column("label").tolist()
    page = hs.write_report(out).read_text(encoding="utf-8")
    assert "classes are matched by name" in page


def test_what_people_chose_is_found_by_the_datas_numbers(photos, tmp_path):
    table = hs.score(named_by_config(("ant", *OTHER_ORDER)), photos, device="cpu")
    counts = np.ones((15, 3), dtype=int)
    counts[np.arange(15), np.arange(15) // 5] = 8  # of the own class, in the folders' order
    np.save(tmp_path / "counts.npy", counts)
    frequency = hs.data.human_frequency(table, file=tmp_path / "counts.npy")
    np.testing.assert_allclose(frequency, 0.8)


def test_a_card_shows_every_class_by_its_own_name(photos):
    dark = np.zeros((8, 8, 3), dtype=np.uint8)
    dark[..., COLOURS["dog"]] = 200
    Image.fromarray(dark).save(photos / "cat" / "not-a-cat.png")
    card = evaluation_card(named_by_config(), photos, train=photos, device="cpu", **QUICK)
    assert card["data"]["classes"] == list(OTHER_ORDER)
    assert card["data"]["class_order"]["taken"] == "name"
    (model,) = card["models"]
    assert model["accuracy"]["top1"]["value"] == pytest.approx(15 / 16)
    by_class = zip(card["data"]["classes"], model["accuracy"]["classes"], strict=True)
    assert {name: one["n"] for name, one in by_class} == {"dog": 5, "horse": 5, "cat": 6}


def test_models_of_different_orders_do_not_share_a_card(photos):
    models = {"one": named_by_config(), "two": named_by_config(("horse", "cat", "dog"))}
    said = "number their classes in the same way, but one and two do not"
    with pytest.raises(OptionError, match=said):
        evaluation_card(models, photos, device="cpu", **QUICK)


def test_a_degradation_is_studied_with_the_right_labels(photos):
    noise, contrast = hs.study_degradation(named_by_config(), photos, device="cpu")
    assert noise.accuracy[0].value == contrast.accuracy[0].value == 1.0


def source_of(photos):
    """Plain pixels, and no examples held out."""
    return {"name": photos, "mean": (0.0,), "std": (1.0,), "validation": 0}


def test_an_adaptation_starts_from_the_models_own_numbers(photos, tmp_path):
    done = hs.adapt(
        named_by_config(), source_of(photos), photos, out=tmp_path / "run", rule="source-only",
        pretrain=0, device="cpu",
    )  # fmt: skip
    assert done.accuracy()[0] == 1.0
    assert done.classes == OTHER_ORDER
    stored = json.loads((tmp_path / "run" / "source-only" / "model.json").read_text())
    assert stored["classes"] == list(OTHER_ORDER)


def test_an_adaptation_of_other_classes_is_refused(photos, tmp_path):
    net = named_by_config(("a", "b", "c"))
    with pytest.raises(LabelError, match="the model has no class 'cat'"):
        hs.adapt(net, source_of(photos), photos, out=tmp_path / "run", rule="source-only",
                 pretrain=0, device="cpu")  # fmt: skip


def test_training_goes_on_in_the_models_own_numbers(photos, tmp_path):
    done = hs.train(
        named_by_config(), {**source_of(photos), "validation": 0.4}, out=tmp_path / "run",
        epochs=1, optimizer={"lr": 1e-9}, device="cpu",
    )  # fmt: skip
    assert done.history[0]["val_accuracy"] == 1.0
    stored = json.loads((tmp_path / "run" / "model.json").read_text())
    assert stored["classes"] == list(OTHER_ORDER)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["class_order"]["taken"] == "name"


def test_training_teaches_new_classes(photos, tmp_path):
    net = named_by_config(("a", "b", "c"))
    hs.train(net, source_of(photos), out=tmp_path / "run", epochs=1, device="cpu", select="last")
    stored = json.loads((tmp_path / "run" / "model.json").read_text())
    assert stored["classes"] == ["cat", "dog", "horse"]


@pytest.fixture
def net_file(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n"
        "    classes = ['dog', 'horse', 'cat']\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(3, 3)\n"
        "        self.fc.weight.data = 10 * torch.eye(3)[[1, 2, 0]]\n"
        "        self.fc.bias.data.zero_()\n"
        "    def forward(self, x):\n        return self.fc(x.mean((2, 3)))\n\n"
        "class Bare(Net):\n    classes = None\n\n"
        "class Other(Net):\n    classes = ['a', 'b', 'c']\n"
    )
    return tmp_path / "net.py"


def invoke(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.mark.parametrize(
    ("words", "right"),
    [(("score", "--model"), "accuracy 100.00%"), (("evaluate",), "accuracy 100.00%"),
     (("study", "degradation", "--noise", "0,0.1", "--contrast", "1,0.9", "--model"), "1.000")],
    ids=["score", "evaluate", "study"],
)  # fmt: skip
def test_commands_match_by_name_and_say_so_once(photos, net_file, tmp_path, words, right):
    few = [f"--{key.replace('_', '-')}={n}" for key, n in QUICK.items()]
    more = few if words[0] == "evaluate" else []
    common = ["--data", photos, "--device", "cpu", *more, "--out"]
    done = invoke(*words, f"{net_file}:Net", *common, tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert right in done.output
    assert done.output.count("classes are matched by name") == 1
    assert "cat is output 2" in done.output
    names = ("--model-classes", "dog,horse,cat")
    done = invoke(*words, f"{net_file}:Bare", *names, *common, tmp_path / "named")
    assert done.exit_code == 0, done.output
    assert right in done.output


def test_commands_refuse_other_names_and_take_the_order_if_asked(photos, net_file, tmp_path):
    common = ("--data", photos, "--device", "cpu", "--out", tmp_path / "run")
    done = invoke("score", "--model", f"{net_file}:Other", *common)
    assert done.exit_code in (1, 2)
    assert "--class-order position" in done.output
    assert not (tmp_path / "run").exists()
    done = invoke("score", "--model", f"{net_file}:Other", *common, "--class-order", "position")
    assert done.exit_code == 0, done.output
    assert "taken by position, as asked for: 0 is cat, 1 is dog" in done.output


def test_a_command_says_that_it_takes_the_order_of_the_data(photos, net_file, tmp_path):
    done = invoke("score", "--model", f"{net_file}:Bare", "--data", photos, "--device", "cpu",
                  "--out", tmp_path / "run")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "the model has no class names, so its outputs are the data's labels" in done.output
