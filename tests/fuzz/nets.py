"""A grammar of networks: the text of a Python file, and the same network in numpy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.fuzz.draw import Array, Draw
from tests.fuzz.oracle import TOLERANCE, Outputs, log_sum_exp, softmax

_WIDTH = 5
_QUIET_ROWS = 8  # as many as a search for the head may look at


@dataclass(frozen=True)
class Net:
    """A network in a file, and what it does.

    Attributes:
        flags: that name it on the command line.
        outputs: for the rows it was made for.
        must_refuse: why no number could be right; empty if some can.
        may_refuse: whether a refusal is an answer as good as the numbers.
    """

    flags: list[str]
    outputs: Outputs
    must_refuse: str = ""
    may_refuse: bool = False


@dataclass(frozen=True)
class _Body:
    """What lies between inputs and head: features ``[N, D]`` and tokens ``[N, T, D]``."""

    setup: str
    lines: str
    features: Array
    tokens: Array
    magnitude: Array


@dataclass(frozen=True)
class _Head:
    """How logits are made.

    Attributes:
        setup: lines of ``__init__``.
        line: lines of ``forward`` that set ``z``.
        logits: in numpy.
        features: that a linear layer turns into the logits; ``None`` if there are none.
        weight: of that layer.
        may_refuse: the file hides the layer too well for a search to be expected to find it.
        must_refuse: why no number could be right.
    """

    setup: str
    line: str
    logits: Array
    features: Array | None
    weight: Array
    may_refuse: bool = False
    must_refuse: str = ""


_FILE = """\
import collections
import dataclasses
import warnings

import torch
from torch import nn
from torch.nn import functional as F


def linear(weight, bias=None):
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data.copy_(weight)
    if bias is not None:
        layer.bias.data.copy_(bias)
    return layer


class Cosine(nn.Linear):
    def forward(self, x):
        return 4 * F.linear(F.normalize(x), F.normalize(self.weight))


Both = collections.namedtuple("Both", "features scores")


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    features: torch.Tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
{setup}

    def forward(self, x):
        flat = x.flatten(1)
        marked = flat[:, 0] > {level}
{forward}


ZERO = {zero}


def made():
    net = Net()
    if ZERO:
        for parameter in net.parameters():
            parameter.data.zero_()
    return net


{factory}
"""


def make_net(
    draw: Draw, folder: Path, inputs: Array, num_classes: int, *, name: str = "net"
) -> Net:
    """Draw a network for inputs ``[N, ...]``, and write its file into ``folder``.

    Args:
        draw: of the case.
        folder: of the case.
        inputs: what the rows of the table are made from, after any preprocessing.
        num_classes: of the data; the network may have more.
        name: of the file, so that a case may have several.
    """
    flat = inputs.reshape(len(inputs), -1)
    body = _body(draw, flat, _tokens_in(inputs))
    level, marked = _marked(flat)
    classes = num_classes + draw.pick("net.more classes", (0, 1, 3), plain=0.8)
    head = _head(draw, body, classes, marked)
    output, output_may, output_must = _output(draw, len(flat), classes)
    dtype = draw.pick("net.dtype", ("float32", "float64", "bfloat16", "float16"), plain=0.75)
    quirk, quirk_must = _quirk(draw, bool(marked.any()))
    logits = head.logits
    if quirk == "nan":
        logits = np.where(marked[:, None], np.nan, logits)
    weights = "none"
    if quirk in _MADE:
        weights = draw.pick("net.weights", **_split(_WEIGHTS), plain=0.8)
    text = _FILE.format(
        setup=body.setup + head.setup,
        level=repr(level),
        forward=f"{_PRELUDES.get(quirk, '')}{body.lines}{head.line}\n{output}",
        zero=weights != "none",
        factory=_factory(quirk, dtype),
    )
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    if weights != "none":
        _write_weights(text, folder / f"{name}-{weights}", weights)
    return Net(
        [
            *("--model", f"{name}.py:{_FACTORY_NAMES.get(quirk, 'make')}"),
            *(() if weights == "none" else ("--weights", f"{name}-{weights}")),
        ],
        Outputs(logits, head.features, head.weight, body.magnitude, TOLERANCE[dtype]),
        must_refuse=head.must_refuse or output_must or quirk_must or _WEIGHTS[weights],
        may_refuse=head.may_refuse or output_may,
    )


def _tokens_in(inputs: Array) -> int:
    """Into how many equal parts an input is cut: the rows of a picture."""
    return inputs.shape[2] if inputs.ndim == 4 else 1


def _marked(flat: Array) -> tuple[float, Array]:
    """A level of the first pixel that some later rows exceed, and none of the first ones."""
    first = flat[:, 0]
    quiet = first[:_QUIET_ROWS].max()
    above = first[first > quiet]
    # rounding must not move a row over the level
    if not len(above) or above.min() - quiet < 0.05 * (1 + abs(quiet)):
        return float(np.abs(first).max() * 2 + 10), np.zeros(len(flat), bool)
    return float((quiet + above.min()) / 2), first > (quiet + above.min()) / 2


_BODIES: dict[str, tuple[Callable[[Array], Array], str]] = {
    "tanh": (np.tanh, "torch.tanh(self.body(flat))"),
    "relu": (lambda h: np.maximum(h, 0), "F.relu(self.body(flat))"),
    "none": (lambda h: h, "self.body(flat)"),
    "dropout": (np.tanh, "F.dropout(torch.tanh(self.body(flat)), 0.5, self.training)"),
    "batch norm": (lambda h: (h - 0.5) / np.sqrt(4 + 1e-5), "self.norm(self.body(flat))"),
}


def _body(draw: Draw, flat: Array, tokens: int) -> _Body:
    weight = draw.weights("net.body weight", _WIDTH, flat.shape[1])
    bias = draw.weights("net.body bias", _WIDTH)
    kind = draw.pick("net.body", list(_BODIES), plain=0.4)
    setup = f"        self.body = linear({_tensor(weight)}, {_tensor(bias)})\n"
    if kind == "batch norm":
        setup += (
            f"        self.norm = nn.BatchNorm1d({_WIDTH})\n"
            "        self.norm.running_mean.fill_(0.5)\n        self.norm.running_var.fill_(4.0)\n"
        )
    parts = flat.reshape(len(flat), tokens, -1)
    cut = weight[:, : parts.shape[2]]  # each part of a picture goes through the same layer
    cut_line = f"F.linear(parts, self.body.weight[:, :{parts.shape[2]}], self.body.bias)"
    lines = (
        f"        parts = flat.reshape(len(x), {tokens}, -1)\n"
        f"        tokens = torch.tanh({cut_line})\n"
        f"        h = {_BODIES[kind][1]}\n"
    )
    with np.errstate(all="ignore"):  # inputs may be infinite on purpose
        sums = np.abs(flat) @ np.abs(weight).T + np.abs(bias)
        return _Body(
            setup=setup,
            lines=lines,
            features=_BODIES[kind][0](flat @ weight.T + bias),
            tokens=np.tanh(parts @ cut.T + bias),
            magnitude=np.linalg.norm(sums, axis=1),
        )


def _tensor(values: Array) -> str:
    return f"torch.tensor({values.tolist()})"


def _head(draw: Draw, body: _Body, classes: int, marked: Array) -> _Head:
    kind = draw.pick("net.head", list(_HEADS), faults=["softmax"], plain=0.25)
    weight, bias = draw.weights("net.weight", classes, _WIDTH), draw.weights("net.bias", classes)
    # a class without a direction has no angle; two classes in one direction are one class
    weight[:, 0] += np.arange(classes) / 8 + 1 / 32
    made = {**_HEADS, "softmax": _softmax}[kind]
    return made(draw, body, weight, bias, marked)


def _linear(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    return _Head(_own_layer(w, b), "        z = self.head(h)", body.features @ w.T + b,
                 body.features, w)  # fmt: skip


def _own_layer(w: Array, b: Array | None = None, name: str = "head") -> str:
    bias = "" if b is None else f", {_tensor(b)}"
    return f"        self.{name} = linear({_tensor(w)}{bias})\n"


def _without_bias(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    return _Head(_own_layer(w), "        z = self.head(h)", body.features @ w.T, body.features, w)


def _wrapped(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    setup = (
        f"        self.top = nn.Sequential(nn.Dropout(0.5), linear({_tensor(w)}, {_tensor(b)}))\n"
    )
    return _Head(setup, "        z = self.top(h)", body.features @ w.T + b, body.features, w)


def _named(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    setup = f"        self.parts = nn.ModuleDict({{'out': linear({_tensor(w)}, {_tensor(b)})}})\n"
    return _Head(setup, "        z = self.parts['out'](h)", body.features @ w.T + b,
                 body.features, w)  # fmt: skip


def _tied(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    setup = (
        f"        self.words = nn.Embedding.from_pretrained({_tensor(w)}, freeze=False)\n"
        f"{_own_layer(w)}        self.head.weight = self.words.weight\n"
    )
    return _Head(setup, "        z = self.head(h)", body.features @ w.T, body.features, w)


def _weight_normed(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    setup = _own_layer(w, b) + "        nn.utils.parametrizations.weight_norm(self.head)\n"
    return _Head(setup, "        z = self.head(h)", body.features @ w.T + b, body.features, w)


def _convolution(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    setup = (
        f"        self.head = nn.Conv2d({w.shape[1]}, {len(w)}, 1)\n"
        f"        self.head.weight.data.copy_({_tensor(w)}[:, :, None, None])\n"
        f"        self.head.bias.data.copy_({_tensor(b)})\n"
    )
    return _Head(setup, "        z = self.head(h[:, :, None, None]).flatten(1)",
                 body.features @ w.T + b, body.features, w)  # fmt: skip


def _mean_of_tokens(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    features = body.tokens.mean(axis=1)
    return _Head(_own_layer(w, b), "        z = self.head(tokens).mean(1)",
                 features @ w.T + b, features, w)  # fmt: skip


def _last_token(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    features = body.tokens[:, -1]
    return _Head(_own_layer(w, b), "        z = self.head(tokens)[:, -1]",
                 features @ w.T + b, features, w)  # fmt: skip


def _padded_tokens(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    """Marked rows are shorter: their last token is the first."""
    features = np.where(marked[:, None], body.tokens[:, 0], body.tokens[:, -1])
    line = (
        ""
        "        last = torch.where(marked, 0, tokens.shape[1] - 1)\n"
        "        z = self.head(tokens)[torch.arange(len(x)), last]"
    )
    return _Head(_own_layer(w, b), line, features @ w.T + b, features, w, may_refuse=True)


def _masked_mean(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    """Marked rows are shorter: their mean is that of the first token."""
    mean, first = body.tokens.mean(axis=1), body.tokens[:, 0]
    features = np.where(marked[:, None], first, mean)
    line = (
        ""
        "        kept = (~marked[:, None] | (torch.arange(tokens.shape[1]) == 0))[:, :, None]\n"
        "        z = (self.head(tokens) * kept).sum(1) / kept.sum(1)"
    )
    return _Head(_own_layer(w, b), line, features @ w.T + b, features, w, may_refuse=True)


def _temperature(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    return _Head(_own_layer(w, b), "        z = self.head(h) / 0.25",
                 4 * (body.features @ w.T + b), body.features, w)  # fmt: skip


def _cosine(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    setup = (
        f"        self.head = Cosine({w.shape[1]}, {len(w)}, bias=False)\n"
        f"        self.head.weight.data.copy_({_tensor(w)})\n"
    )
    with np.errstate(all="ignore"):
        unit = body.features / np.linalg.norm(body.features, axis=1, keepdims=True)
    rows = 4 * w / np.linalg.norm(w, axis=1, keepdims=True)
    return _Head(setup, "        z = self.head(h)", unit @ rows.T, unit, rows)


def _einsum(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    return _Head(f"        self.weight = nn.Parameter({_tensor(w)})\n",
                 "        z = torch.einsum('nd,cd->nc', h, self.weight)",
                 body.features @ w.T, body.features, w, may_refuse=True)  # fmt: skip


def _functional(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    setup = (
        f"        self.weight = nn.Parameter({_tensor(w)})\n"
        f"        self.bias = nn.Parameter({_tensor(b)})\n"
    )
    return _Head(setup, "        z = F.linear(h, self.weight, self.bias)",
                 body.features @ w.T + b, body.features, w, may_refuse=True)  # fmt: skip


def _prior(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    prior = draw.weights("net.prior", len(w))
    return _Head(_own_layer(w, b), f"        z = self.head(h) + {_tensor(prior)}.to(h)",
                 body.features @ w.T + b + prior, body.features, w, may_refuse=True)  # fmt: skip


def _class_scales(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    scales = 1 + np.arange(len(w)) / 4
    return _Head(_own_layer(w, b), f"        z = self.head(h) * {_tensor(scales)}.to(h)",
                 (body.features @ w.T + b) * scales, body.features, w, may_refuse=True)  # fmt: skip


def _masked_class(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    low = draw.pick("net.mask", ("-1e4", "float('-inf')"))
    logits = body.features @ w.T + b
    logits[:, 0] = float(low.removeprefix("float('").removesuffix("')"))
    line = f"        z = self.head(h).masked_fill(torch.arange({len(w)}) == 0, {low})"
    return _Head(_own_layer(w, b), line, logits, None, w, may_refuse=True)


def _masked_rows(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    """Marked rows may not be of the first class."""
    logits = body.features @ w.T + b
    logits[marked, 0] = -1e4
    first = f"(torch.arange({len(w)}) == 0)"
    line = f"        z = self.head(h).masked_fill(marked[:, None] & {first}, -1e4)"
    features = None if marked.any() else body.features
    return _Head(_own_layer(w, b), line, logits, features, w, may_refuse=bool(marked.any()))


def _other_path(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    """Marked rows go through another head."""
    other = draw.weights("net.other", *w.shape)
    logits = body.features @ w.T + b
    logits[marked] = (body.features @ other.T)[marked]
    line = "        z = torch.where(marked[:, None], self.other(h), self.head(h))"
    features = None if marked.any() else body.features
    setup = _own_layer(w, b) + _own_layer(other, name="other")
    return _Head(setup, line, logits, features, w, may_refuse=bool(marked.any()))


def _auxiliary(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    other = draw.weights("net.other", *w.shape)
    setup = _own_layer(other, name="aux") + _own_layer(w, b)
    return _Head(setup, "        self.aux(h)\n        z = self.head(h)",
                 body.features @ w.T + b, body.features, w)  # fmt: skip


def _called_twice(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    line = "        self.head(torch.tanh(h + 1))\n        z = self.head(h)"
    return _Head(_own_layer(w, b), line, body.features @ w.T + b, body.features, w)


def _ensemble(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    other = draw.weights("net.other", *w.shape)
    setup = _own_layer(w, b) + _own_layer(other, name="other")
    return _Head(setup, "        z = self.head(h) + self.other(h)",
                 body.features @ (w + other).T + b, body.features, w + other,
                 may_refuse=True)  # fmt: skip


def _hidden_layer(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    inner = draw.weights("net.inner", _WIDTH, _WIDTH)
    hidden = np.tanh(body.features @ inner.T)
    setup = _own_layer(inner, name="inner") + _own_layer(w, b)
    return _Head(setup, "        z = self.head(torch.tanh(self.inner(h)))", hidden @ w.T + b,
                 hidden, w)  # fmt: skip


def _log_softmax(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    logits = body.features @ w.T + b
    with np.errstate(all="ignore"):
        logits = logits - log_sum_exp(logits)[:, None]
    return _Head(_own_layer(w, b), "        z = F.log_softmax(self.head(h), dim=1)", logits,
                 None, w, may_refuse=True)  # fmt: skip


def _softmax(draw: Draw, body: _Body, w: Array, b: Array, marked: Array) -> _Head:
    with np.errstate(all="ignore"):
        probs = softmax(body.features @ w.T + b)
    return _Head(_own_layer(w, b), "        z = F.softmax(self.head(h), dim=1)", probs, None, w,
                 must_refuse="probabilities are not logits")  # fmt: skip


_HEADS: dict[str, Callable[[Draw, _Body, Array, Array, Array], _Head]] = {
    "linear": _linear,
    "without bias": _without_bias,
    "wrapped": _wrapped,
    "named": _named,
    "tied": _tied,
    "weight norm": _weight_normed,
    "convolution": _convolution,
    "mean of tokens": _mean_of_tokens,
    "last token": _last_token,
    "padded tokens": _padded_tokens,
    "masked mean": _masked_mean,
    "temperature": _temperature,
    "cosine": _cosine,
    "einsum": _einsum,
    "functional": _functional,
    "prior": _prior,
    "class scales": _class_scales,
    "masked class": _masked_class,
    "masked rows": _masked_rows,
    "other path": _other_path,
    "auxiliary": _auxiliary,
    "called twice": _called_twice,
    "ensemble": _ensemble,
    "hidden layer": _hidden_layer,
    "log softmax": _log_softmax,
}

# what forward returns -> the line, whether a refusal is as good, why numbers cannot be right
_OUTPUTS: dict[str, tuple[str, bool, str]] = {
    "tensor": ("z", False, ""),
    "features and logits": ("h, z", True, ""),
    "logits and features": ("z, h", True, ""),
    "loss and logits": ("z.sum(), z", False, ""),
    "list": ("[z]", False, ""),
    "logits by name": ("{'logits': z}", False, ""),
    "one by name": ("{'out': z}", False, ""),
    "named features and logits": ("{'features': h, 'logits': z}", False, ""),
    "two by name": ("{'features': h, 'out': z}", True, ""),
    "dataclass": ("Answer(z, h)", False, ""),
    "named tuple": ("Both(h, z)", True, ""),
    "map of one pixel": ("z[:, :, None, None]", True, ""),
    "tokens": ("torch.stack([z, z + 1], 1)", True, "there are two predictions per example"),
    "nested": ("{'head': {'logits': z}}", True, ""),
    "nothing": ("None", False, "there is no output"),
    "text": ("'logits'", False, "a text is not logits"),
    "transposed": ("z.T", False, "there is no row per example"),
    "whole numbers": ("z.round().long()", False, "classes are not logits"),
    "first row": ("z[:1]", False, "there is one row for all examples"),
}


def _output(draw: Draw, rows: int, classes: int) -> tuple[str, bool, str]:
    reasons = {name: fault for name, (_, _, fault) in _OUTPUTS.items()}
    kind = draw.pick("net.output", **_split(reasons), plain=0.5)
    line, may, must = _OUTPUTS[kind]
    if kind in ("transposed", "first row"):  # a batch of one row, or of as many as classes, fits
        may = True
        must = must if rows >= 2 * classes + 2 else ""
    return f"        return {line}", may, must


# the name of a weights file -> why it cannot be used
_WEIGHTS = {
    "none": "",
    "plain.safetensors": "",
    "plain.pt": "",
    "nested.pt": "",
    "whole.pt": "the weights hold more than tensors",
    "others.pt": "the weights have other shapes",
    "half.pt": "the weights are cut off",
    "missing.pt": "there is no such file",
}
# how a file may make its model so that weights can be loaded into it
_MADE = ("plain", "train mode", "prints", "warns", "nan", "fails")
_PRELUDES = {
    "nan": "        flat = torch.where(marked[:, None], torch.nan, flat)\n",
    "fails": "        if bool(marked.any()):\n            raise KeyError('a table of its own')\n",
}
_FACTORY_NAMES = {"class": "Net", "instance": "net", "unknown name": "mak"}
_FAULTS = {
    "needs an argument": "the factory cannot be called",
    "syntax error": "the file is not Python",
    "raises": "the factory fails",
    "exits": "the file ends the program",
    "returns nothing": "there is no model",
    "unknown name": "there is no such factory",
}


def _split(reasons: dict[str, str]) -> dict[str, list[str]]:
    """Names without a reason to refuse, and those with one, as :meth:`Draw.pick` takes them."""
    fine = [name for name, reason in reasons.items() if not reason]
    return {"options": fine, "faults": [name for name in reasons if name not in fine]}


def _quirk(draw: Draw, some_marked: bool) -> tuple[str, str]:
    """How the file makes its model, and why that cannot work."""
    kinds = ("plain", "class", "instance", "train mode", "prints", "warns", "takes num_classes",
             "nan")  # fmt: skip
    kind = draw.pick("net.quirk", kinds, faults=("fails", *_FAULTS), plain=0.7)
    if kind in ("nan", "fails") and not some_marked:
        return "plain", ""
    return kind, "the model fails on some rows" if kind == "fails" else _FAULTS.get(kind, "")


def _factory(quirk: str, dtype: str) -> str:
    made = f"made().to(torch.{dtype}).eval()"
    if quirk == "class":
        return ""
    if quirk == "instance":
        return f"net = {made}"
    lines = {
        "train mode": f"    return made().to(torch.{dtype}).train()",
        "prints": f"    print('[/b] building [red]')\n    return {made}",
        "warns": f"    warnings.warn('this is a toy')\n    return {made}",
        "raises": "    raise IndexError('no such layer')",
        "exits": "    raise SystemExit(0)",
        "returns nothing": f"    {made}",
        "syntax error": "    return return",
    }
    arguments = {"needs an argument": "size", "takes num_classes": "num_classes=7"}
    return f"def make({arguments.get(quirk, '')}):\n{lines.get(quirk, f'    return {made}')}"


def _write_weights(text: str, file: Path, kind: str) -> None:
    """Write the weights of a network to a file of their own."""
    made: dict[str, Any] = {}
    exec(compile(text.replace("ZERO = True", "ZERO = False"), str(file), "exec"), made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the network itself
        net = made["make"]()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    if kind.endswith(".safetensors"):
        save_file(state, file)
    elif kind == "nested.pt":
        nested = {f"module.{name}": value for name, value in state.items()}
        torch.save({"epoch": 3, "state_dict": nested}, file)
    elif kind == "whole.pt":
        torch.save({"model": range, "state": state}, file)
    elif kind == "others.pt":
        torch.save({name: value.reshape(-1)[:1].clone() for name, value in state.items()}, file)
    elif kind != "missing.pt":
        torch.save(state, file)
    if kind == "half.pt":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
