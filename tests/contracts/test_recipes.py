"""Every key of a recipe changes the run, or is refused, or is said to play no part.

Each key has a case below; a key without one fails here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from PIL import Image

import hardsight as hs
from hardsight.errors import HardsightError
from hardsight.patch import write_patch
from hardsight.run.adapt import AdaptConfig
from hardsight.run.train import FoldsResult, TrainConfig
from tests.exchange.made import patch_for

NET = """
from torch import nn


def make(num_classes=3, width=4):
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(4 * width, num_classes),
    )


def other(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))


class Two(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.second = nn.Linear(192, num_classes), nn.Linear(192, num_classes)

    def forward(self, images):
        return self.first(images.flatten(1)), self.second(images.flatten(1))


def two(num_classes=3):
    return Two(num_classes)
"""
BOTH = ["cross_entropy", {"name": "amc"}]


@dataclass(frozen=True)
class Case:
    """What is changed (``given``) against which run (``base``), and what has to come of it."""

    given: dict[str, Any]
    base: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    warned: str = ""


def loss(**keys):
    return {"loss": ["cross_entropy", {"name": "amc", **keys}]}


def table(name, /, **keys):
    return {name: keys}


STEP, RAMPS = {"name": "step", "step_epochs": 1}, {"name": "gaussian_ramps", "warmup_epochs": 1}
ATTACK = {"epsilon": 0.1}
PACED = {"order": "easy_first", "table": "TABLE"}
WEIGHED = {"order": "weighted", "table": "TABLE", "by": "aum"}
TRAIN = {
    "model.name": Case(table("model", name="NET:other")),
    "model.weights": Case(table("model", name="NET:make", weights="WEIGHTS")),
    "model.options": Case(table("model", name="NET:make", options={"width": 5})),
    "model.classes": Case(table("model", name="NET:make", classes=["c", "a", "b"])),
    "model.class_order": Case(
        table("model", name="NET:make", classes=["c", "a", "b"], class_order="position"),
        table("model", name="NET:make", classes=["c", "a", "b"]),
    ),
    "model.trust_remote_code": Case(
        table("model", name="NET:make", trust_remote_code=True),
        warned="model.trust_remote_code plays no part",
    ),
    "output": Case(
        {"model": {"name": "NET:two"}, "output": 1}, {"model": {"name": "NET:two"}, "output": 0}
    ),
    "data.name": Case(table("data", name="OTHER")),
    "data.split": Case({"split": "two"}),
    "data.root": Case({"root": "WEIGHTS"}, refused="data_root cannot be used here"),
    "data.rows": Case({"rows": "ROWS"}),
    "data.validation": Case({"validation": 0.5}),
    "data.validation_split": Case({"validation_split": "two"}, {"validation": 0.0}),
    "data.test_split": Case({"test_split": "two"}),
    **{
        f"data.{key}": Case({key: value}, refused=f"{key} (cannot be used here|plays no part)")
        for key, value in (
            ("text_column", "text"),
            ("label_column", "label"),
            ("image_column", "path"),
            ("tokenizer", "WEIGHTS"),
            ("max_tokens", 9),
        )
    },  # what each changes: tests/run/test_texts.py
    "data.classes": Case(table("data", name="PHOTOS", classes=["c", "a", "b"])),
    "data.patch": Case(table("data", name="PHOTOS", patch="PATCH")),
    "data.size": Case(table("data", name="PHOTOS", size=[6, 6])),
    "data.channels": Case(table("data", name="PHOTOS", channels=1), refused="cannot take images"),
    "data.mean": Case(table("data", name="PHOTOS", mean=[0.1])),
    "data.std": Case(table("data", name="PHOTOS", std=[0.1])),
    "data.crop": Case(
        table("data", name="PHOTOS", size=[6, 6], crop=0.5),
        table("data", name="PHOTOS", size=[6, 6]),
    ),
    "data.squash": Case(
        table("data", name="WIDE", size=[6, 6], squash=True),
        table("data", name="WIDE", size=[6, 6]),
    ),
    "data.white": Case(table("data", name="PHOTOS", white=200.0)),
    "data.imbalance": Case({"imbalance": 3.0}),
    "out": Case({"out": "elsewhere"}),
    "epochs": Case({"epochs": 3}),
    "batch_size": Case({"batch_size": 5}),
    "seed": Case({"seed": 1}),
    "loss.name": Case({"loss": "encouraging"}),
    "loss.weight": Case(loss(weight=0.1), {"loss": BOTH}),
    "loss.ramp": Case(loss(ramp="linear", ramp_epochs=4), {"loss": BOTH}),
    "loss.ramp_epochs": Case(
        loss(ramp="linear", ramp_epochs=9), loss(ramp="linear", ramp_epochs=4)
    ),
    "loss.start_epoch": Case(loss(start_epoch=1), {"loss": BOTH}),
    "loss.end_epoch": Case(loss(end_epoch=1), {"loss": BOTH}),
    "loss.class_balance": Case(
        {"loss": {"name": "cross_entropy", "class_balance": 1.0}, "imbalance": 3.0},
        {"imbalance": 3.0},
    ),
    "loss.hardest": Case({"loss": {"name": "cross_entropy", "hardest": 0.5}}),
    "loss.decays": Case(
        {"loss": {"name": "focal", "options": {"gamma": 3.0}, "decays": {"gamma": 0.5}}},
        {"loss": {"name": "focal", "options": {"gamma": 3.0}}},
    ),
    "loss.options": Case({"loss": {"name": "cross_entropy", "options": {"label_smoothing": 0.2}}}),
    "optimizer.name": Case({"optimizer": "adam"}),
    "optimizer.lr": Case(table("optimizer", lr=0.3)),
    "optimizer.weight_decay": Case(table("optimizer", weight_decay=0.5)),
    "optimizer.momentum": Case(table("optimizer", momentum=0.1)),
    "optimizer.nesterov": Case(table("optimizer", nesterov=True)),
    "optimizer.betas": Case(
        table("optimizer", name="adam", betas=[0.1, 0.9]), {"optimizer": "adam"}
    ),
    "schedule.name": Case({"schedule": "constant"}),
    "schedule.step_epochs": Case(
        {"schedule": {**STEP, "step_epochs": 2}, "epochs": 3}, {"schedule": STEP, "epochs": 3}
    ),
    "schedule.drop_epochs": Case(
        {"schedule": {"name": "step", "drop_epochs": [3]}, "epochs": 3},
        {"schedule": STEP, "epochs": 3},
    ),
    "schedule.gamma": Case({"schedule": {**STEP, "gamma": 0.5}}, {"schedule": STEP}),
    "schedule.warmup_epochs": Case(table("schedule", warmup_epochs=1)),
    "schedule.final": Case(table("schedule", final=0.9)),
    "schedule.ramp_down_epochs": Case(
        {"schedule": {**RAMPS, "ramp_down_epochs": 2}}, {"schedule": RAMPS}
    ),
    "schedule.final_beta1": Case(
        {"schedule": {**RAMPS, "final_beta1": 0.1}, "optimizer": "adam"},
        {"schedule": RAMPS, "optimizer": "adam"},
    ),
    "augment.crop_padding": Case(table("augment", crop_padding=2)),
    "augment.flip": Case(table("augment", flip=True)),
    "sampling.name": Case({"sampling": "class_balanced"}),
    "sampling.order": Case(
        {"sampling": {"order": "easy_first", "table": "TABLE", "by": "early_el2n"}}
    ),
    "sampling.by": Case(
        table("sampling", **PACED, by="aum"), table("sampling", **PACED, by="mean_avh")
    ),
    "sampling.table": Case(
        table("sampling", table="TABLE"), refused="no part without sampling.order"
    ),
    "sampling.start": Case(
        table("sampling", **PACED, by="aum", start=0.9), table("sampling", **PACED, by="aum")
    ),
    "sampling.full_epoch": Case(
        table("sampling", **PACED, by="aum", full_epoch=1), table("sampling", **PACED, by="aum")
    ),
    "sampling.power": Case(table("sampling", **WEIGHED, power=5.0), table("sampling", **WEIGHED)),
    "adversarial.epsilon": Case({"adversarial": 0.1}),
    "adversarial.attack": Case({"adversarial": {**ATTACK, "attack": "fgsm"}}, {"adversarial": 0.1}),
    "adversarial.norm": Case({"adversarial": {**ATTACK, "norm": "l2"}}, {"adversarial": 0.1}),
    "adversarial.steps": Case({"adversarial": {**ATTACK, "steps": 1}}, {"adversarial": 0.1}),
    "adversarial.step_size": Case(
        {"adversarial": {**ATTACK, "step_size": 0.001}}, {"adversarial": 0.1}
    ),
    "adversarial.share": Case({"adversarial": {**ATTACK, "share": 0.5}}, {"adversarial": 0.1}),
    "freeze_body": Case({"freeze_body": True}),
    "reset_head": Case({"reset_head": True}),
    # all epochs are alike, of which the first is kept: but for the last one
    "select": Case({"optimizer": {"lr": 0.0}, "select": "last"}, {"optimizer": {"lr": 0.0}}),
    "gradient_clip": Case({"gradient_clip": 1e-3}),
    "head": Case({"head": "fc"}, refused="fc"),
    "device": Case({"device": "nowhere"}, refused="nowhere"),
    "devices": Case({"devices": 2}),
    "num_nodes": Case({"num_nodes": 2}),
    "strategy": Case({"strategy": "ddp"}),
    "precision": Case({"precision": "bfloat16"}),
    "channels_last": Case({"channels_last": True}),
    "compile": Case({"compile": True}),
    "capture": Case({"capture": True}, refused="records steps of a single CUDA device"),
    "deterministic": Case({"deterministic": True}),
    "autotune": Case({"autotune": True}),
    "resident": Case({"resident": False}),
    "workers": Case({"workers": 1}),
    "folds": Case({"folds": 2}),
    "track": Case({"track": True}),
    "thumbnails": Case({"thumbnails": 3, "track": True}, {"track": True}),
    "track_test": Case({"test_split": "two", "track_test": True}, {"test_split": "two"}),
    "resume": Case({"resume": True, "out": "done"}, {"out": "again"}),
    # without it the run is refused
    "overwrite": Case({"overwrite": True, "out": "taken", "seed": 5}, {"out": "not taken"}),
}
# what a key cannot do beside another one
NO_PART = {
    "folds": Case({"folds": 2, "devices": 2}, refused="one after the other on one device"),
    "track": Case({"folds": 2, "track": True}, refused="as many histories; leave one"),
    "thumbnails": Case({"thumbnails": 3}, warned="thumbnails plays no part"),
    "track_test": Case({"track_test": True}, refused="track_test needs data.test_split"),
    "select": Case({"validation": 0.0, "select": "loss"}, refused="needs examples that are held"),
    "loss.start_epoch": Case(loss(start_epoch=9), warned="loss amc plays no part"),
    "schedule.step_epochs": Case({"schedule": {**STEP, "step_epochs": 9}}, warned="never drops"),
    "schedule.final_beta1": Case(
        {"schedule": {**RAMPS, "final_beta1": 0.1}}, refused="final_beta1 needs an optimizer"
    ),
    "deterministic": Case({"deterministic": True, "autotune": True}, refused="leave one out"),
}


SOFT = {"rule": "crst-lrent"}
MANY = {"rule": "threshold", "threshold": 0.34}  # nearly all, of which another rule takes a share
ADAPT = {
    "model": Case(table("model", name="NET:other")),
    "output": Case(
        {"model": {"name": "NET:two"}, "output": 1}, {"model": {"name": "NET:two"}, "output": 0}
    ),
    "source": Case(table("source", name="OTHER", split="one", validation=0.2)),
    "target.name": Case(table("target", name="OTHER", split="one")),
    "target.split": Case(table("target", name="PHOTOS", split="one")),
    "target.root": Case(
        table("target", name="PHOTOS", split="two", root="ROOT"), refused="data_root cannot be use"
    ),
    "target.classes": Case(
        table("target", name="PHOTOS", split="two", classes=["c", "a", "b"]), refused="another ord"
    ),
    "target.unlabelled": Case(table("target", name="PHOTOS", split="two", unlabelled=True)),
    "out": Case({"out": "adapted-elsewhere"}),
    "rule": Case({"rule": "avc"}),
    "rounds": Case({"rounds": 2}),
    "portion": Case({"portion": 0.4}),
    "portion_step": Case({"portion_step": 0.3, "rounds": 2}, {"rounds": 2}),
    "portion_max": Case({"portion_max": 0.2, "rounds": 2}, {"rounds": 2}),
    "empty": Case({"empty": "one", "portion": 0.01}, {"portion": 0.01}),
    "comparison": Case({"comparison": ">"}),
    "alpha": Case({**SOFT, "alpha": 0.9}, SOFT),
    "mrkld_weight": Case({"rule": "crst-mrkld", "mrkld_weight": 3.0}, {"rule": "crst-mrkld"}),
    "entropy_weight": Case({"rule": "entropy", "entropy_weight": 3.0}, {"rule": "entropy"}),
    "threshold": Case({"rule": "threshold", "threshold": 0.34}, {"rule": "threshold"}),
    "compare": Case({"compare": "avc"}),
    "examples": Case({**MANY, "examples": 1}, MANY),
    "keep_models": Case({"keep_models": False, "rounds": 2}, {"rounds": 2}),
    "pretrain": Case(table("pretrain", epochs=1, optimizer={"lr": 0.01})),
    "pretrain.epochs": Case({"pretrain": 2}),
    "retrain": Case(table("retrain", epochs=1, schedule="constant")),
    "retrain.epochs": Case({"retrain": 2}),
    "batch_size": Case({"batch_size": 5}),
    "seed": Case({"seed": 1}),
    "augment": Case({"augment": {"flip": True}}),
    "head": Case({"head": "fc"}, refused="fc"),
    "device": Case({"device": "nowhere"}, refused="nowhere"),
    "precision": Case({"precision": "bfloat16"}),
    "channels_last": Case({"channels_last": True}),
    "deterministic": Case({"deterministic": True}),
    "resident": Case({"resident": False}),
    "workers": Case({"workers": 1}),
    "resume": Case({"resume": True, "out": "adapted"}, {"out": "adapted-again"}),
    "overwrite": Case({"overwrite": True, "out": "kept", "seed": 5}, {"out": "not kept"}),
}
# tables of training, whose keys have their cases above
OF_TRAINING = ("model", "source", "augment", "pretrain", "retrain")


def leaves(kind, above=""):
    """Keys of a dataclass and of the tables in it, as ``--set`` names them."""
    hints = typing.get_type_hints(kind)
    for one in dataclasses.fields(kind):
        options = typing.get_args(hints[one.name]) or (hints[one.name],)
        inner = next((option for option in options if dataclasses.is_dataclass(option)), None)
        if inner is None:
            yield above + one.name
        else:
            yield from leaves(inner, f"{above}{one.name}.")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A network, two sets of pictures in two splits each, and weights, as files."""
    root = tmp_path_factory.mktemp("recipes")
    (root / "net.py").write_text(NET)
    draw = np.random.default_rng(0)
    sets = (("photos", "one"), ("photos", "two"), ("other", "one"), ("wide", "one"))
    for data, split in sets:
        width = 12 if data == "wide" else 8
        for label, name in enumerate("abc"):
            (root / data / split / name).mkdir(parents=True)
            for number in range(7):
                pixels = draw.integers(0, 80, (8, width, 3), dtype=np.uint8)
                pixels[..., label] += 100
                Image.fromarray(pixels).save(root / data / split / name / f"{number}.png")
    places = {
        "NET": f"{root / 'net.py'}",
        "PHOTOS": str(root / "photos"),
        "OTHER": str(root / "other"),
        "WIDE": str(root / "wide"),
        "ROOT": str(root),
        "PATCH": str(root / "patch.csv"),
        "ROWS": str(root / "rows.npy"),
        "TABLE": str(root / "tracked"),
    }
    source = hs.data.open_source(places["PHOTOS"], split="one")
    write_patch(patch_for(source, {0: 1, 1: 2, 8: 0}), places["PATCH"])
    np.save(places["ROWS"], np.arange(0, 21, 2))
    for out in ("weights", "done", "taken"):
        seed = 7 if out == "weights" else 0
        trained(places, {"out": out, "seed": seed})
    trained(places, {"out": "tracked", "track": True, "thumbnails": 0})
    adapted(places, {"out": "adapted"})
    adapted(places, {"out": "kept"})
    return {**places, "WEIGHTS": str(root / "weights" / "model.safetensors")}


def filled(value, places):
    """Settings with the names of places in place of words in capitals."""
    if isinstance(value, dict):
        return {key: filled(inner, places) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, places) for inner in value]
    if isinstance(value, str):
        word, colon, rest = value.partition(":")
        return places.get(word, word) + colon + rest
    return value


def trained(places, given):
    settings = {
        "model": {"name": "NET:make"}, "data": {"name": "PHOTOS"}, "split": "one",
        "validation": 0.2, "epochs": 2, "batch_size": 4, "device": "cpu", "workers": 0,
        "out": "run", **given,
    }  # fmt: skip
    settings = filled(settings, places)
    model, data = settings.pop("model"), settings.pop("data")
    out = Path(places["ROOT"]) / settings.pop("out")
    return hs.train(model, data, out=out, show_progress=False, **settings)


class Stop(Exception):
    """What follows needs more machines than a test has."""


def engine(monkeypatch):
    """Notes what the engine is told, instead of where it would not matter here."""
    notes: list[Any] = []
    trainer, loader, compiled = pl.Trainer, torch.utils.data.DataLoader.__init__, []

    def made(**options):
        told = {**options, "plugins": [type(each).__name__ for each in options["plugins"] or ()]}
        notes.append({key: str(value) for key, value in told.items() if key != "max_epochs"})
        if options["devices"] != 1 or options["num_nodes"] != 1 or options["strategy"] != "auto":
            raise Stop
        return trainer(**options)

    def loading(self, *args, **options):
        notes.append(f"loader of {options.get('num_workers')}")
        loader(self, *args, **options)

    monkeypatch.setattr(pl, "Trainer", made)
    monkeypatch.setattr(torch.utils.data.DataLoader, "__init__", loading)
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append("compiled") or model)
    return notes, compiled


def digest(tensors):
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def observed(places, given, monkeypatch):
    """Everything that a run leaves behind or asks of its engine, but for its own settings."""
    notes, compiled = engine(monkeypatch)
    out = str(given.get("out", "run"))
    given = {**given, "out": out if "out" in given else f"run-{len(list_runs(places))}"}
    try:
        done = trained(places, given)
    except Stop:
        return notes
    if isinstance(done, FoldsResult):
        return [done.folds, notes]
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in done.history]
    thumbnails = done.folder / "thumbnails.parquet"
    return [
        digest(done.model.state_dict()),
        [list(p.stride()) for p in done.model.parameters()],
        rows, done.best_epoch, done.test, done.preprocessing, notes, compiled,
        json.loads((done.folder / "model.json").read_text())["classes"],
        None if done.dynamics is None else len(done.dynamics),
        thumbnails.stat().st_size if thumbnails.exists() else None,
        sorted(done.tracked), out,
    ]  # fmt: skip


def list_runs(places):
    return list(Path(places["ROOT"]).glob("run-*"))


def adapted(places, given):
    settings = {
        "model": {"name": "NET:make"},
        "source": {"name": "PHOTOS", "split": "one", "validation": 0.2},
        "target": {"name": "PHOTOS", "split": "two"},
        "rounds": 1, "pretrain": 1, "retrain": 1, "batch_size": 8, "device": "cpu", "workers": 0,
        **given,
    }  # fmt: skip
    settings = filled(settings, places)
    model, source, target = (settings.pop(key) for key in ("model", "source", "target"))
    out = Path(places["ROOT"]) / settings.pop("out")
    return hs.adapt(
        model["name"], source, target, out=out, show_progress=False, **settings
    )  # fmt: skip


def observed_adaptation(places, given, monkeypatch):
    notes, _ = engine(monkeypatch)
    out = given.get("out", "adapting")
    number = len(list(Path(places["ROOT"]).glob("adapting-*")))
    done = adapted(places, {**given, "out": out if "out" in given else f"adapting-{number}"})
    rounds = {
        rule: [{k: v for k, v in record.items() if k != "seconds"} for record in run.rounds]
        for rule, run in done.runs.items()
    }
    examples = [file.stat().st_size for file in sorted(done.folder.rglob("examples.parquet"))]
    return [
        digest(done.model.state_dict()), [list(p.stride()) for p in done.model.parameters()],
        rounds, notes, examples, sorted(file.name for file in done.folder.rglob("*")), out,
    ]  # fmt: skip


BASES: dict[str, Any] = {}


def base_of(places, base, monkeypatch, observe):
    key = json.dumps([observe.__name__, base], sort_keys=True)
    if key not in BASES:
        with monkeypatch.context() as patch:
            BASES[key] = observe(places, base, patch)
    return BASES[key]


def test_every_key_of_a_recipe_has_a_case():
    assert sorted(TRAIN) == sorted(leaves(TrainConfig))
    assert set(NO_PART) <= set(TRAIN)


def test_a_key_without_a_case_would_be_seen():
    made = dataclasses.make_dataclass("Made", [("inner", AdaptConfig), ("own", int)])
    assert {"own", "inner.seed", "inner.model.name"} <= set(leaves(made))


@pytest.mark.parametrize("key", TRAIN)
def test_a_key_of_a_recipe_changes_the_run_or_is_refused(key, places, monkeypatch):
    case = TRAIN[key]
    if case.warned:
        with pytest.warns(UserWarning, match=case.warned):
            trained(places, {**case.given, "out": f"warned-{key}"})
    else:
        assert_changes_or_is_refused(case, key, places, monkeypatch, trained, observed)


def assert_changes_or_is_refused(case, key, places, monkeypatch, run, observe):
    if case.refused:
        with pytest.raises(HardsightError, match=case.refused):
            run(places, {**case.given, "out": f"refused-{key}"})
    else:
        base = base_of(places, case.base, monkeypatch, observe)
        assert observe(places, {**case.base, **case.given}, monkeypatch) != base


def test_every_setting_of_an_adaptation_has_a_case():
    own = {key for key in leaves(AdaptConfig) if key.partition(".")[0] not in OF_TRAINING}
    assert set(ADAPT) == {*own, *OF_TRAINING, "pretrain.epochs", "retrain.epochs"}


@pytest.mark.parametrize("key", ADAPT)
def test_a_setting_of_an_adaptation_changes_it_or_is_refused(key, places, monkeypatch):
    about = (ADAPT[key], f"adaptation-{key}", places, monkeypatch)
    assert_changes_or_is_refused(*about, adapted, observed_adaptation)


@pytest.mark.parametrize("key", NO_PART)
def test_a_key_that_plays_no_part_beside_another_is_not_taken_in_silence(key, places):
    case = NO_PART[key]
    given = {**case.given, "out": f"no-part-{key}"}
    if case.refused:
        with pytest.raises(HardsightError, match=case.refused):
            trained(places, given)
    else:
        with pytest.warns(UserWarning, match=case.warned):
            trained(places, given)


def test_two_runs_of_one_recipe_are_seen_to_be_the_same(places, monkeypatch):
    # or every key would seem to change something
    with monkeypatch.context() as patch:
        first = observed(places, {"seed": 3}, patch)
    with monkeypatch.context() as patch:
        assert observed(places, {"seed": 3}, patch) == first
