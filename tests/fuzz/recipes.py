"""A grammar of recipes: fine ones, wrong ones, and some that contradict themselves."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hardsight.losses  # noqa: F401  # fills the registry
from hardsight.registry import LOSSES
from hardsight.run.train import TrainConfig
from tests.fuzz.draw import Draw

Recipe = dict[str, Any]
SIDE = 4  # pixels of a picture


@dataclass(frozen=True)
class Verdict:
    """What may come of a recipe.

    Attributes:
        must_refuse: why it cannot be trained; empty if it can.
        may_refuse: whether a refusal is as good an answer.
        must_tell: a key without effect, which the output has to name unless it refuses.
    """

    must_refuse: str = ""
    may_refuse: bool = False
    must_tell: str = ""


def make_recipe(draw: Draw) -> tuple[Recipe, Verdict]:
    """Draw a recipe, and what may come of it."""
    recipe = copy.deepcopy(_fine_recipe(draw))  # a fault is put into it
    fault = draw.pick("recipe.fault", (_no_fault,), faults=_FAULTS, plain=0.15)
    return recipe, fault(draw, recipe)


def _fine_recipe(draw: Draw) -> Recipe:
    """A recipe that can be trained."""
    recipe: Recipe = {
        "model": draw.pick("recipe.model", ("net.py:Net", "small_cnn"), plain=0.8),
        "out": "run",
        "epochs": draw.pick("recipe.epochs", (1, 2)),
        "batch_size": draw.pick("recipe.batch_size", (100, 4, 1)),
        "device": "cpu",
        "workers": 0,
        "data": _data(draw),
        "loss": _losses(draw),
        "optimizer": draw.pick("recipe.optimizer", OPTIMIZERS),
        "schedule": draw.pick("recipe.schedule", _SCHEDULES),
    }
    for key, values in _FURTHER.items():
        value = draw.pick(f"recipe.{key}", values, plain=0.85)
        if value is not None:
            recipe[key] = value
    if draw.chance("recipe.track", 0.15):
        recipe["track"] = True
    return recipe


OPTIMIZERS: tuple[Recipe, ...] = (
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
        data["size"] = [SIDE, SIDE]
    return data


def _losses(draw: Draw) -> list[Recipe]:
    names = ["cross_entropy", *LOSSES]
    count = draw.pick("recipe.losses", (1, 2, 3))
    losses = []
    for at in range(count):
        name = draw.pick(f"recipe.loss {at}", names, plain=0.4)
        loss: Recipe = {"name": name, "options": needed_options(name)}
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


def needed_options(name: str) -> Recipe:
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


def toml_of(recipe: Recipe) -> str:
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


_Fault = Callable[[Draw, Recipe], Verdict]


def _no_fault(draw: Draw, recipe: Recipe) -> Verdict:
    return Verdict(may_refuse=_is_odd(recipe))


def _is_odd(recipe: Recipe) -> bool:
    """Whether the values of a fine recipe may still not go together on tiny data."""
    small = recipe["batch_size"] < 4  # a loss of pairs has none
    selects = recipe.get("select") == "loss" and not recipe["data"]["validation"]
    frozen = recipe.get("freeze_body") and not any(map(_reaches_head, recipe["loss"]))
    return bool(small or selects or frozen or recipe["data"].get("imbalance", 1) > 1)


def _reaches_head(loss: Recipe) -> bool:
    """Whether a loss is on in every epoch and depends on the weights of the head for sure."""
    if loss.get("start_epoch") or "end_epoch" in loss or loss.get("ramp") == "linear":
        return False
    inputs = LOSSES[loss["name"]].inputs if loss["name"] in LOSSES else ("logits",)
    return "embeddings" not in inputs or "class_weights" in inputs


def _unknown_key(draw: Draw, recipe: Recipe) -> Verdict:
    table = draw.pick("fault.table", ("", "data", "optimizer", "schedule", "loss", "options"))
    key = draw.pick("fault.key", ("lerning_rate", "weigth", "", "a b", "[red]", "__class__"))
    place = recipe if not table else recipe.get(table, {})
    if table == "loss":
        place = recipe["loss"][0]
    elif table == "options":
        place = recipe["loss"][0]["options"]
    place[key] = 1
    return Verdict("a key is unknown", may_refuse=True)


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


# lists that one number may stand for
_ONE_FOR_ALL = {("data", "size"), ("data", "mean"), ("data", "std")}
_SAMPLES: tuple[Any, ...] = ("word", 3, 2.5, True, [[1]], {"a": 1})


def _wrong_type(draw: Draw, recipe: Recipe) -> Verdict:
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
    if path in _ONE_FOR_ALL:
        accepted += (int, float)
    wrong = [
        sample
        for sample in _SAMPLES
        if not isinstance(sample, accepted) or (isinstance(sample, bool) and bool not in kinds)
    ]
    _put(recipe, path, draw.pick("fault.value", wrong, plain=0.2))
    return Verdict(f"{'.'.join(path)} is of another type", may_refuse=True)


_EXTREMES: tuple[Any, ...] = (-1, 0, float("nan"), float("inf"), -0.5, 10**20, 1e30, 1e300)
# a number of these is a legal wish for hours of work, many processes or all of the memory
_COSTLY = {"epochs", "steps", "devices", "num_nodes", "workers", "size", "crop_padding"}


def _extreme(draw: Draw, recipe: Recipe) -> Verdict:
    numeric = [(path, hint) for path, hint in _fields(TrainConfig) if _kinds(hint) & {int, float}]
    path, hint = draw.pick("fault.field", numeric, plain=0.01)
    values = [value for value in _EXTREMES if float in _kinds(hint) or isinstance(value, int)]
    if path[-1] in _COSTLY:
        values = [value for value in values if not value > 0]
    _put(recipe, path, draw.pick("fault.value", values, plain=0.2))
    return Verdict(may_refuse=True)


def _wrong_option(draw: Draw, recipe: Recipe) -> Verdict:
    """An option of a loss, of another type or beyond any range."""
    name = draw.pick("fault.loss", list(LOSSES), plain=0.1)
    spec = LOSSES[name]
    options = [key for key in inspect.signature(spec.function).parameters if key not in spec.inputs]
    key = draw.pick("fault.option", options, plain=0.1)
    value = draw.pick("fault.value", ("word", {"a": 1}, [[1]], True, *_EXTREMES), plain=0.2)
    recipe["loss"] = [{"name": name, "options": {**needed_options(name), key: value}}]
    return Verdict("" if isinstance(value, float | int) else f"{key} of {name} is wrong",
                    may_refuse=True)  # fmt: skip


def _contradiction(draw: Draw, recipe: Recipe) -> Verdict:
    changes, key = copy.deepcopy(draw.pick("fault.contradiction", _CONTRADICTIONS, plain=0.05))
    for path, value in changes.items():
        _put(recipe, tuple(path.split(".")), value)
    if "loss" in changes:
        recipe["loss"] = changes["loss"]
    return Verdict(may_refuse=True, must_tell=key)


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


def _missing_key(draw: Draw, recipe: Recipe) -> Verdict:
    del recipe[draw.pick("fault.key", ("model", "data", "out"), plain=0.3)]
    return Verdict("a key is missing", may_refuse=True)


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


def _missing_thing(draw: Draw, recipe: Recipe) -> Verdict:
    path, value = draw.pick("fault.thing", _NOT_THERE, plain=0.1)
    if path == ("model", "weights"):
        recipe["model"] = {"name": "net.py:Net", "weights": value}
    else:
        _put(recipe, path, value)
    if path == ("head",):  # found out where a loss or the tracker reads it
        recipe["track"] = True
    return Verdict(f"there is no {value!r} for {'.'.join(path)}", may_refuse=True)


_FAULTS: tuple[_Fault, ...] = (
    _unknown_key,
    _wrong_type,
    _extreme,
    _wrong_option,
    _contradiction,
    _missing_key,
    _missing_thing,
)
