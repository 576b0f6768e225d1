"""Cases of ``hardsight train``: recipes that are fine, wrong, or contradict themselves."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from safetensors.numpy import load_file

import hardsight.losses  # noqa: F401  # fills the registry
from hardsight.registry import LOSSES
from hardsight.run.train import TrainConfig
from tests.fuzz.cases import Step
from tests.fuzz.draw import Array, Draw
from tests.fuzz.judge import Answer
from tests.fuzz.oracle import angular_cross_entropy, cross_entropy, encouraging, focal

Recipe = dict[str, Any]
_SIZE, _WIDTH, _NAMES = 4, 5, ("ant", "bee", "cat")

_NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear({inputs}, {width}), nn.Linear({width}, {classes})
        with torch.no_grad():
            self.body.weight.copy_(torch.tensor({body}))
            self.body.bias.zero_()
            self.head.weight.copy_(torch.tensor({head}))
            self.head.bias.copy_(torch.tensor({bias}))

    def forward(self, x):
        return self.head(torch.tanh(self.body(x.flatten(1))))
"""


@dataclass
class _Course:
    """What is trained: pictures by split, and the network in numpy."""

    pixels: dict[str, Array] = field(default_factory=dict)
    labels: dict[str, Array] = field(default_factory=dict)
    ids: dict[str, list[str]] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)

    def features(self, split: str, weights: dict[str, Array]) -> Array:
        """``[N, D]``, of pictures that were normalised by 0.5 and 0.25."""
        flat = ((self.pixels[split] - 0.5) / 0.25).reshape(len(self.labels[split]), -1)
        return np.tanh(flat @ weights["body.weight"].T + weights["body.bias"])

    def logits(self, split: str, weights: dict[str, Array]) -> Array:
        """``[N, C]``."""
        found = self.features(split, weights) @ weights["head.weight"].T
        return found + weights["head.bias"]


def train_by_recipe(draw: Draw, folder: Path) -> Iterator[Step]:
    """A recipe on a few pictures."""
    course = _course(draw, folder)
    recipe = copy.deepcopy(_recipe(draw))  # a fault is put into it
    fault = draw.pick("recipe.fault", (_no_fault,), faults=_FAULTS, plain=0.15)
    verdict = fault(draw, recipe)
    (folder / "recipe.toml").write_text(_toml(recipe), encoding="utf-8")

    def judge(answer: Answer) -> str:
        if answer.exit_code:
            if (folder / "run" / "result.json").exists():
                return "refusal with a result: there is a result all the same"
            return "" if verdict.may_refuse else f"refusal of what is fine: {answer.output}"
        if verdict.must_refuse:
            return f"accepted although {verdict.must_refuse}"
        if verdict.must_tell and verdict.must_tell not in answer.output:
            return f"accepted without a word: {verdict.must_tell} has no effect"
        return _complaint(folder / "run", recipe, course)

    yield Step(["train", "recipe.toml"], judge)
    if not (folder / "run" / "result.json").exists():
        return
    then = draw.pick("then", ("nothing", "again", "resume", "score"), plain=0.7)
    if then == "again":
        yield Step(["train", "recipe.toml"], lambda answer: "" if answer.exit_code else
                   "accepted: training on top of a finished run")  # fmt: skip
    elif then == "resume":
        yield Step(["train", "recipe.toml", "--resume"], _fine)
    elif then == "score":
        words = ["score", "--model", "net.py:Net", "--weights", "run/model.safetensors"]
        yield Step([*words, "--data", "photos/test", "--out", "scores"], _fine)


def _fine(answer: Answer) -> str:
    return f"refusal of what is fine: {answer.output}" if answer.exit_code else ""


# --- what is trained


def _course(draw: Draw, folder: Path) -> _Course:
    course = _Course()
    for split, count in (("train", draw.whole("train.count", 6, 15)), ("test", 6)):
        pictures = draw.bytes_of(f"train.{split}", count, _SIZE, _SIZE, 3).astype(np.uint8)
        labels = np.arange(count) % len(_NAMES)
        order = np.argsort(labels, kind="stable")
        for at in range(count):
            place = folder / "photos" / split / _NAMES[labels[at]]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pictures[at]).save(place / f"{at:02d}.png")
        course.pixels[split] = (pictures / 255).transpose(0, 3, 1, 2)[order]
        course.labels[split] = labels[order]
        course.ids[split] = [f"{_NAMES[labels[at]]}/{at:02d}.png" for at in order]
    inputs = 3 * _SIZE * _SIZE
    course.weights = {
        "body.weight": draw.weights("train.body", _WIDTH, inputs) / 8,
        "body.bias": np.zeros(_WIDTH),
        "head.weight": draw.weights("train.head", len(_NAMES), _WIDTH) / 2,
        "head.bias": draw.weights("train.bias", len(_NAMES)) / 4,
    }
    text = _NET.format(
        inputs=inputs,
        width=_WIDTH,
        classes=len(_NAMES),
        body=course.weights["body.weight"].tolist(),
        head=course.weights["head.weight"].tolist(),
        bias=course.weights["head.bias"].tolist(),
    )
    (folder / "net.py").write_text(text, encoding="utf-8")
    return course


# --- recipes


def _recipe(draw: Draw) -> Recipe:
    """A recipe that can be trained."""
    recipe: Recipe = {
        "model": "net.py:Net",
        "out": "run",
        "epochs": draw.pick("recipe.epochs", (1, 2)),
        "batch_size": draw.pick("recipe.batch_size", (100, 4, 1)),
        "device": "cpu",
        "workers": 0,
        "data": _data(draw),
        "loss": _losses(draw),
        "optimizer": draw.pick("recipe.optimizer", _OPTIMIZERS),
        "schedule": draw.pick("recipe.schedule", _SCHEDULES),
    }
    for key, values in _FURTHER.items():
        value = draw.pick(f"recipe.{key}", values, plain=0.85)
        if value is not None:
            recipe[key] = value
    if draw.chance("recipe.track", 0.15):
        recipe["track"] = True
    return recipe


_OPTIMIZERS: tuple[Recipe, ...] = (
    {"name": "sgd", "lr": 0.5, "weight_decay": 0.0, "momentum": 0.0},
    {"name": "sgd", "lr": 0.25, "weight_decay": 0.5, "momentum": 0.9},
    {"name": "sgd", "lr": 0.25, "weight_decay": 0.0, "momentum": 0.5, "nesterov": True},
    {"name": "adam", "lr": 0.125},
    {"name": "adamw", "lr": 0.125, "weight_decay": 0.5, "betas": [0.5, 0.9]},
)
_SCHEDULES: tuple[Recipe, ...] = (
    {"name": "constant"},
    {"name": "cosine", "final": 0.1},
    {"name": "step", "step_epochs": 1, "gamma": 0.5},
    {"name": "one_cycle", "warmup_epochs": 0.5},
    {"name": "gaussian_ramps", "warmup_epochs": 1, "ramp_down_epochs": 1},
    {"name": "constant", "warmup_epochs": 1},
)
_FURTHER: dict[str, tuple[Any, ...]] = {
    "seed": (None, 7),
    "augment": (None, {"flip": True}, {"crop_padding": 1}),
    "sampling": (None, "class_balanced"),
    "adversarial": (None, {"epsilon": 0.1, "steps": 2}, {"epsilon": 0.1, "attack": "fgsm"}),
    "freeze_body": (None, True),
    "reset_head": (None, True),
    "select": (None, "last", "loss"),
    "gradient_clip": (None, 0.5),
    "head": (None, "head"),
    "resident": (None, False),
    "precision": (None, "float32", "bfloat16"),
    "thumbnails": (None, 0, 3),
    "deterministic": (None, True),
    "track_test": (None, True),
}


def _data(draw: Draw) -> Recipe:
    data: Recipe = {"name": "photos", "split": "train", "test_split": "test", "validation": 0.0}
    data |= {"mean": [0.5], "std": [0.25]}
    kind = draw.pick("recipe.data", ("plain", "share", "measured", "imbalance", "size", "grey"))
    data |= {
        "plain": {},
        "share": {"validation": 0.4},
        "measured": {},
        "imbalance": {"imbalance": 2.0},
        "size": {"size": [6, 6]},
        "grey": {"channels": 3},
    }[kind]
    if kind == "measured":
        del data["mean"], data["std"]
    if kind == "size":  # the network is made for four pixels a side
        data["size"] = [_SIZE, _SIZE]
    return data


def _losses(draw: Draw) -> list[Recipe]:
    names = ["cross_entropy", *LOSSES]
    count = draw.pick("recipe.losses", (1, 2, 3))
    losses = []
    for at in range(count):
        name = draw.pick(f"recipe.loss {at}", names, plain=0.4)
        loss: Recipe = {"name": name, "options": _needed_options(name)}
        if at:  # the first one is on from the first epoch to the last
            loss |= draw.pick(f"recipe.loss {at}.span", _SPANS)
        losses.append(loss)
    return losses


_SPANS: tuple[Recipe, ...] = (
    {},
    {"weight": 0.5},
    {"weight": 2.0, "ramp": "gaussian", "ramp_epochs": 2},
    {"ramp": "linear", "ramp_epochs": 1.5},
    {"start_epoch": 1},
    {"end_epoch": 1},
)


def _needed_options(name: str) -> Recipe:
    """A value for each option that a loss has no default for; a number is the likeliest."""
    if name not in LOSSES:
        return {}
    spec = LOSSES[name]
    parameters = inspect.signature(spec.function).parameters
    return {
        key: 2.0
        for key, parameter in parameters.items()
        if key not in spec.inputs and parameter.default is inspect.Parameter.empty
    }


def _toml(recipe: Recipe) -> str:
    return "\n".join(f"{key} = {_toml_value(value)}" for key, value in recipe.items()) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() else json.dumps(key)


# --- what is wrong with a recipe


@dataclass(frozen=True)
class _Verdict:
    """What may come of a recipe.

    Attributes:
        must_refuse: why it cannot be trained; empty if it can.
        may_refuse: whether a refusal is as good an answer.
        must_tell: a key without effect, which the output has to name unless it refuses.
    """

    must_refuse: str = ""
    may_refuse: bool = False
    must_tell: str = ""


_Fault = Callable[[Draw, Recipe], _Verdict]


def _no_fault(draw: Draw, recipe: Recipe) -> _Verdict:
    return _Verdict(may_refuse=_is_odd(recipe))


def _is_odd(recipe: Recipe) -> bool:
    """Whether the values of a fine recipe may still be too much for tiny data."""
    small = recipe["batch_size"] < 4  # a loss of pairs has none
    selects = recipe.get("select") == "loss" and not recipe["data"]["validation"]
    return small or selects or recipe["data"].get("imbalance", 1) > 1


def _unknown_key(draw: Draw, recipe: Recipe) -> _Verdict:
    table = draw.pick("fault.table", ("", "data", "optimizer", "schedule", "loss", "options"))
    key = draw.pick("fault.key", ("lerning_rate", "weigth", "", "a b", "[red]", "__class__"))
    place = recipe if not table else recipe.get(table, {})
    if table == "loss":
        place = recipe["loss"][0]
    elif table == "options":
        place = recipe["loss"][0]["options"]
    place[key] = 1
    return _Verdict("a key is unknown", may_refuse=True)


def _fields(kind: type, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every key of a configuration, with its type; those of nested tables included."""
    found: list[tuple[tuple[str, ...], Any]] = []
    hints = typing.get_type_hints(kind)
    for entry in dataclasses.fields(kind):
        hint = hints[entry.name]
        tables = [t for t in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(t)]
        if tables:
            found += _fields(tables[0], (*above, entry.name))
        else:
            found.append(((*above, entry.name), hint))
    return found


def _put(recipe: Recipe, path: tuple[str, ...], value: Any) -> None:
    *above, last = path
    place: Any = recipe
    for name in above:
        if isinstance(place.get(name), str) or name not in place:
            place[name] = (
                {"name": place.get(name, "x")} if name != "adversarial" else {"epsilon": 0.1}
            )
        place = place[name][0] if isinstance(place[name], list) else place[name]
    place[last] = value


def _kinds(hint: Any) -> set[Any]:
    options = typing.get_args(hint) if typing.get_origin(hint) not in (tuple, dict) else ()
    return {typing.get_origin(option) or option for option in (options or (hint,))}


_SAMPLES: tuple[Any, ...] = ("word", 3, 2.5, True, [[1]], {"a": 1})


def _wrong_type(draw: Draw, recipe: Recipe) -> _Verdict:
    path, hint = draw.pick("fault.field", _fields(TrainConfig), plain=0.01)
    kinds = _kinds(hint)
    fitting = {
        str: (str,),
        int: (int,),
        float: (float, int),
        bool: (bool,),
        tuple: (),
        dict: (dict,),
    }
    accepted = tuple(kind for name in kinds for kind in fitting.get(name, ()))
    wrong = [
        sample
        for sample in _SAMPLES
        if not isinstance(sample, accepted) or (isinstance(sample, bool) and bool not in kinds)
    ]
    _put(recipe, path, draw.pick("fault.value", wrong, plain=0.2))
    return _Verdict(f"{'.'.join(path)} is of another type", may_refuse=True)


_EXTREMES: tuple[Any, ...] = (-1, 0, float("nan"), float("inf"), -0.5, 10**20, 1e30)
# a number of these is a legal wish for hours of work, many processes or all of the memory
_COSTLY = {"epochs", "steps", "devices", "num_nodes", "workers", "size", "crop_padding"}


def _extreme(draw: Draw, recipe: Recipe) -> _Verdict:
    numeric = [(path, hint) for path, hint in _fields(TrainConfig) if _kinds(hint) & {int, float}]
    path, hint = draw.pick("fault.field", numeric, plain=0.01)
    values = [value for value in _EXTREMES if float in _kinds(hint) or isinstance(value, int)]
    if path[-1] in _COSTLY:
        values = [value for value in values if not value > 0]
    _put(recipe, path, draw.pick("fault.value", values, plain=0.2))
    return _Verdict(may_refuse=True)


def _wrong_option(draw: Draw, recipe: Recipe) -> _Verdict:
    """An option of a loss, of another type or beyond any range."""
    name = draw.pick("fault.loss", list(LOSSES), plain=0.1)
    spec = LOSSES[name]
    options = [key for key in inspect.signature(spec.function).parameters if key not in spec.inputs]
    key = draw.pick("fault.option", options, plain=0.1)
    value = draw.pick("fault.value", ("word", {"a": 1}, [[1]], True, *_EXTREMES), plain=0.2)
    recipe["loss"] = [{"name": name, "options": {**_needed_options(name), key: value}}]
    return _Verdict("" if isinstance(value, float | int) else f"{key} of {name} is wrong",
                    may_refuse=True)  # fmt: skip


def _contradiction(draw: Draw, recipe: Recipe) -> _Verdict:
    changes, key = copy.deepcopy(draw.pick("fault.contradiction", _CONTRADICTIONS, plain=0.05))
    for path, value in changes.items():
        _put(recipe, tuple(path.split(".")), value)
    if "loss" in changes:
        recipe["loss"] = changes["loss"]
    return _Verdict(may_refuse=True, must_tell=key)


_CONTRADICTIONS: tuple[tuple[Recipe, str], ...] = (
    ({"head": "nowhere", "loss": "cross_entropy"}, "head"),
    ({"optimizer": {"name": "adam", "momentum": 0.5}}, "momentum"),
    ({"optimizer": {"name": "adamw", "nesterov": True}}, "nesterov"),
    ({"optimizer": {"name": "sgd", "betas": [0.5, 0.5]}}, "betas"),
    ({"data.validation": 0.2, "data.validation_split": "test"}, "validation"),
    ({"data.test_split": "train"}, "test_split"),
    ({"data.validation_split": "train"}, "validation_split"),
    ({"loss": [{"name": "cross_entropy", "weight": -1.0}]}, "weight"),
    ({"loss": [{"name": "cross_entropy", "weight": 0.0}]}, "weight"),
    ({"loss": [{"name": "cross_entropy", "start_epoch": 1}], "epochs": 2}, "start_epoch"),
    ({"loss": [{"name": "cross_entropy", "end_epoch": 1}], "epochs": 2}, "end_epoch"),
    ({"loss": [{"name": "cross_entropy", "start_epoch": 5}], "epochs": 2}, "start_epoch"),
    ({"schedule": {"name": "constant", "gamma": 0.5}}, "gamma"),
    ({"schedule": {"name": "cosine", "step_epochs": 3}}, "step_epochs"),
    ({"schedule": {"name": "step", "final": 0.5}}, "final"),
    ({"adversarial": {"epsilon": 0.1, "attack": "fgsm", "steps": 5}}, "steps"),
)


def _missing_key(draw: Draw, recipe: Recipe) -> _Verdict:
    del recipe[draw.pick("fault.key", ("model", "data", "out"), plain=0.3)]
    return _Verdict("a key is missing", may_refuse=True)


_NOT_THERE: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("data", "name"), "nowhere"),
    (("data", "split"), "nowhere"),
    (("data", "test_split"), "nowhere"),
    (("data", "classes"), ["ant", "bee"]),
    (("model",), "nowhere.py:Net"),
    (("model",), "net.py:Nett"),
    (("model",), "unknown_net"),
    (("model", "weights"), "net.py"),
    (("device",), "quantum"),
    (("head",), "body"),
    (("precision",), "float8"),
    (("out",), "net.py"),
    (("out",), "photos"),
    (("loss",), []),
)


def _missing_thing(draw: Draw, recipe: Recipe) -> _Verdict:
    path, value = draw.pick("fault.thing", _NOT_THERE, plain=0.1)
    if path == ("model", "weights"):
        recipe["model"] = {"name": "net.py:Net", "weights": value}
    else:
        _put(recipe, path, value)
    if path == ("head",):  # found out where a loss or the tracker reads it
        recipe["track"] = True
    return _Verdict(f"there is no {value!r} for {'.'.join(path)}", may_refuse=True)


_FAULTS: tuple[_Fault, ...] = (
    _unknown_key,
    _wrong_type,
    _extreme,
    _wrong_option,
    _contradiction,
    _missing_key,
    _missing_thing,
)


# --- the result


def _complaint(run: Path, recipe: Recipe, course: _Course) -> str:
    """Where the result differs from what it must be; empty if it does not."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    history = result["history"]
    if len(history) != recipe["epochs"] or not 1 <= result["best_epoch"] <= recipe["epochs"]:
        return f"epochs: expected {recipe['epochs']}, got {len(history)}"
    weights = {name: values.astype(np.float64) for name, values in
               load_file(run / "model.safetensors").items()}  # fmt: skip
    if not all(np.isfinite(values).all() for values in weights.values()):
        return "weights: not finite"
    data = recipe["data"] if isinstance(recipe["data"], dict) else {}
    if recipe.get("track") is True:
        rows = pq.read_table(run / "dynamics.parquet", columns=["id"]).column("id").to_pylist()
        all_seen = data.get("imbalance", 1) == 1 and not recipe.get("sampling")
        if all_seen and sorted(rows) != sorted(course.ids["train"]):
            return f"dynamics: expected a row per example, got {len(rows)}"
    if not _is_stated(data):
        return ""
    if data.get("test_split") == "test" and recipe.get("precision") != "bfloat16":
        logits = course.logits("test", weights)
        right = float((logits.argmax(axis=1) == course.labels["test"]).mean())
        near = np.sort(logits, axis=1)
        if (near[:, -1] - near[:, -2]).min() > 1e-3 and abs(
            result["test"]["accuracy"] - right
        ) > 1e-6:
            return f"test accuracy: expected {right}, got {result['test']['accuracy']}"
    return _complaint_about_first_step(recipe, course, history, weights)


def _is_stated(data: Recipe) -> bool:
    return data.get("mean") == [0.5] and data.get("std") == [0.25]


def _complaint_about_first_step(
    recipe: Recipe, course: _Course, history: list[dict[str, float]], weights: dict[str, Array]
) -> str:
    """One step over all examples can be worked by hand: its loss, and the weights after it."""
    data = recipe["data"]
    changed = [
        key for key in ("augment", "adversarial", "reset_head", "sampling") if recipe.get(key)
    ]
    if (
        changed
        or data.get("validation")
        or data.get("imbalance", 1) > 1
        or data["split"] != "train"
    ):
        return ""
    if recipe["batch_size"] < len(course.labels["train"]) or recipe.get("precision") == "bfloat16":
        return ""
    losses = [_numpy_loss(loss) for loss in recipe["loss"]]
    if any(loss is None for loss in losses):
        return ""

    def total(state: dict[str, Array]) -> float:
        z, x = course.logits("train", state), course.features("train", state)
        parts = (
            loss(z, x, state["head.weight"], course.labels["train"]) for loss in losses if loss
        )
        return float(sum(parts))

    wanted = total(course.weights)
    if abs(history[0]["train_loss"] - wanted) > 1e-3 * (1 + abs(wanted)):
        return f"first loss: expected {wanted}, got {history[0]['train_loss']}"
    if recipe["epochs"] > 1 or recipe["schedule"] != {"name": "constant"}:
        return ""
    if recipe.get("gradient_clip") or recipe["optimizer"] not in _OPTIMIZERS:
        return ""
    return _complaint_about_step(recipe["optimizer"], course.weights, weights, total)


def _numpy_loss(loss: Recipe) -> Callable[[Array, Array, Array, Array], float] | None:
    """A loss at epoch 0, with its weight; ``None`` for one that is not written here."""
    factor = loss.get("weight", 1.0)
    if loss.get("start_epoch", 0) > 0 or loss.get("ramp") == "linear":
        factor = 0.0
    if loss.get("ramp") == "gaussian":
        factor *= math.exp(-5)
    options = loss.get("options", {})
    known: dict[str, Callable[[Array, Array, Array, Array], Array]] = {
        "cross_entropy": lambda z, x, w, y: cross_entropy(z, y),
        "encouraging": lambda z, x, w, y: encouraging(z, y, 0.75),
        "linear_encouraging": lambda z, x, w, y: encouraging(z, y, 0.75),
        "focal": lambda z, x, w, y: focal(z, y, 2.0),
        "avh": lambda z, x, w, y: angular_cross_entropy(x, w, y, options["scale"]),
        "linear_avh": lambda z, x, w, y: angular_cross_entropy(x, w, y, options["scale"]),
    }
    found = known.get(loss["name"])
    needed = _needed_options(loss["name"])
    if found is None or options != needed:
        return None
    return lambda z, x, w, y: factor * float(found(z, x, w, y).mean())


def _complaint_about_step(
    optimizer: Recipe,
    before: dict[str, Array],
    after: dict[str, Array],
    total: Callable[[dict[str, Array]], float],
) -> str:
    """Compare the head after the step with one by differences in float64."""
    lr, name = optimizer["lr"], optimizer["name"]
    for key in ("head.weight", "head.bias"):
        old = before[key]
        slope = np.zeros_like(old)
        for at in np.ndindex(old.shape):
            for sign in (1, -1):
                moved = old.copy()
                moved[at] += sign * 1e-5
                slope[at] += sign * total({**before, key: moved}) / 2e-5
        decay = optimizer.get("weight_decay", 0.0)
        sure = np.abs(slope) > 1e-4 * (name != "sgd")  # adam goes by the sign alone
        if name == "sgd":
            step = slope + decay * old
            step *= 1 + optimizer["momentum"] * optimizer.get("nesterov", False)
            wanted = old - lr * step
        else:
            wanted = old * (1 - lr * decay) - lr * np.sign(slope)
        apart = np.abs(after[key] - wanted)[sure]
        if len(apart) and apart.max() > 2e-3 * (1 + np.abs(wanted).max()):
            return f"first step: {key}: expected {wanted.tolist()}, got {after[key].tolist()}"
    return ""
