"""Cases of ``hardsight train``: a network and pictures so small that a step can be worked out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from safetensors.numpy import load_file

import hardsight.losses  # noqa: F401  # fills the registry
from tests.fuzz.cases import Step
from tests.fuzz.draw import Array, Draw
from tests.fuzz.judge import Answer
from tests.fuzz.oracle import angular_cross_entropy, cross_entropy, encouraging, focal
from tests.fuzz.recipes import OPTIMIZERS, SIDE, Recipe, make_recipe, needed_options, toml_of

_WIDTH, _NAMES = 5, ("ant", "bee", "cat")

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
    recipe, verdict = make_recipe(draw)
    (folder / "recipe.toml").write_text(toml_of(recipe), encoding="utf-8")

    def judge(answer: Answer) -> str:
        if answer.exit_code:
            if (folder / "run" / "result.json").exists():
                return "refusal with a result: there is a result all the same"
            fine = verdict.may_refuse or _diverged(answer, recipe)
            return "" if fine else f"refusal of what is fine: {answer.output}"
        if verdict.must_refuse:
            return f"accepted although {verdict.must_refuse}"
        if verdict.must_tell and verdict.must_tell not in answer.output:
            return f"accepted without a word: {verdict.must_tell} has no effect"
        if not _is_usable(folder) and "the test loss is" not in answer.output:
            return "accepted without a word: the test loss is not finite"
        return _complaint(folder / "run", recipe, course)

    yield Step(["train", "recipe.toml"], judge)
    if not (folder / "run" / "result.json").exists():
        return
    accuracy = json.loads((folder / "run" / "result.json").read_text())["test"]["accuracy"]
    yield from _afterwards(draw, folder, recipe, accuracy)


def _afterwards(draw: Draw, folder: Path, recipe: Recipe, accuracy: float) -> Iterator[Step]:
    """What may follow a training: the same again, or scores of the model it left."""
    then = draw.pick("then", ("nothing", "again", "resume", "score", "score weights"), plain=0.7)
    if then == "again":
        yield Step(["train", "recipe.toml"], lambda answer: "" if answer.exit_code else
                   "accepted: training on top of a finished run")  # fmt: skip
    elif then == "resume":
        yield Step(["train", "recipe.toml", "--resume"], _fine)
    if not then.startswith("score") or recipe["data"].get("test_split") != "test":
        return
    by_name = recipe["model"] == "small_cnn"
    model = ["run"] if by_name and then == "score" else [
        str(recipe["model"]), "--weights", "run/model.safetensors"
    ]  # fmt: skip
    words = ["score", "--model", *model, "--data", "photos", "--split", "test", "--out", "scores"]
    # the weights say nothing of mean and deviation; the folder of the run does
    words += [] if by_name else ["--mean", "0.5", "--std", "0.25"]

    def judge(answer: Answer) -> str:
        if answer.exit_code:
            return f"refusal of what is fine: {answer.output}" if _is_usable(folder) else ""
        if not by_name and not _is_stated(recipe["data"]):
            return ""
        table = pq.read_table(folder / "scores" / "table.parquet").to_pandas()
        right = float((table["label"] == table["prediction"]).mean())
        same = abs(right - accuracy) < 1e-6
        return "" if same else f"accuracy: {accuracy} when it was trained, {right} when scored"

    yield Step(words, judge)


def _diverged(answer: Answer, recipe: Recipe) -> bool:
    """Whether training ended by itself at a bonus, which pulls the logits apart without end."""
    bonus = any("bonus" in loss["name"] for loss in recipe["loss"])
    return bonus and recipe["optimizer"]["lr"] >= 0.5 and "training has diverged" in answer.output


def _is_usable(folder: Path) -> bool:
    """Whether the trained model gave its test split a finite loss, as far as it has one."""
    tested = json.loads((folder / "run" / "result.json").read_text())["test"]
    return tested is None or math.isfinite(tested["loss"])


def _fine(answer: Answer) -> str:
    return f"refusal of what is fine: {answer.output}" if answer.exit_code else ""


# --- what is trained


def _course(draw: Draw, folder: Path) -> _Course:
    course = _Course()
    for split, count in (("train", draw.whole("train.count", 6, 15)), ("test", 6)):
        pictures = draw.bytes_of(f"train.{split}", count, SIDE, SIDE, 3).astype(np.uint8)
        labels = np.arange(count) % len(_NAMES)
        order = np.argsort(labels, kind="stable")
        for at in range(count):
            place = folder / "photos" / split / _NAMES[labels[at]]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pictures[at]).save(place / f"{at:02d}.png")
        course.pixels[split] = (pictures / 255).transpose(0, 3, 1, 2)[order]
        course.labels[split] = labels[order]
        course.ids[split] = [f"{_NAMES[labels[at]]}/{at:02d}.png" for at in order]
    inputs = 3 * SIDE * SIDE
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
    data = recipe["data"]
    if recipe.get("track") is True:
        rows = pq.read_table(run / "dynamics.parquet", columns=["id"]).column("id").to_pylist()
        all_seen = data.get("imbalance", 1) == 1 and not recipe.get("sampling")
        if all_seen and sorted(rows) != sorted(course.ids["train"]):
            return f"dynamics: expected a row per example, got {len(rows)}"
    if not _is_stated(data) or recipe["model"] == "small_cnn":
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
    if recipe.get("gradient_clip") or recipe["optimizer"] not in OPTIMIZERS:
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
    needed = needed_options(loss["name"])
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
