"""A grammar of networks: the text of a Python file, and the same network in numpy."""

from __future__ import annotations

import contextlib
import io
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.fuzz.draw import Array, Draw
from tests.fuzz.heads import WIDTH, Head, make_head, text_of
from tests.fuzz.oracle import TOLERANCE, Outputs

_QUIET_ROWS = 8  # as many as a search for the head may look at


@dataclass(frozen=True)
class Net:
    """A network in a file, and what it does.

    Attributes:
        flags: that name it on the command line.
        outputs: for the rows it was made for.
        must_refuse: why no number could be right; empty if some can.
        may_refuse: whether a refusal is an answer as good as the numbers.
        dtype: of its weights.
        depends_on: what its answers depend on beside the example: ``batch`` or ``draw``.
        must_tell: whether that shows in the first examples, so that it has to be said.
    """

    flags: list[str]
    outputs: Outputs
    must_refuse: str = ""
    may_refuse: bool = False
    dtype: str = "float32"
    depends_on: str = ""
    must_tell: bool = False


_FILE = """\
import torch
from torch import nn
from torch.nn import functional as F
{needed}

def linear(weight, bias=None):
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data.copy_(weight)
    if bias is not None:
        layer.bias.data.copy_(bias)
    return layer


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
# what only some networks need, by a word that tells them
_NEEDED = {
    "Cosine(": """

class Cosine(nn.Linear):
    def forward(self, x):
        return 4 * F.linear(F.normalize(x), F.normalize(self.weight))
""",
    "Both(": """
import collections

Both = collections.namedtuple("Both", "features scores")
""",
    "Answer(": """
import dataclasses


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    features: torch.Tensor
""",
    "ModelOutput(": """
from transformers.modeling_outputs import SequenceClassifierOutput as ModelOutput
""",
    "warnings.": """
import warnings
""",
}


def make_net(
    draw: Draw,
    folder: Path,
    inputs: Array,
    num_classes: int,
    *,
    name: str = "net",
    is_one_batch: bool = False,
) -> Net:
    """Draw a network for inputs ``[N, ...]``, and write its file into ``folder``.

    Args:
        draw: of the case.
        folder: of the case.
        inputs: what the rows of the table are made from, after any preprocessing.
        num_classes: of the data; the network may have more.
        name: of the file, so that a case may have several.
        is_one_batch: all inputs are run at once, so that a network may mix them.
    """
    flat = inputs.reshape(len(inputs), -1)
    level, marked = _marked(flat)
    tokens = inputs.shape[2] if inputs.ndim == 4 else 1
    depends_on = "" if not is_one_batch else draw.pick("net.depends on", ("", "batch", "draw"),
                                                       plain=0.96)  # fmt: skip
    classes = num_classes + draw.pick("net.more classes", (0, 1, 3), plain=0.8)

    def made_of(rows: list[int], pixels: Array = flat) -> tuple[_Body, Head]:
        body = _body(draw, pixels[rows], tokens, depends_on)
        return body, make_head(draw, body.features, body.tokens, marked[rows], classes=classes)

    def without_features(rows: list[int]) -> Head:
        body = _body(draw, flat[rows], tokens)
        return make_head(draw, 0 * body.features, body.tokens, marked[rows], classes=classes)

    body, head = made_of(list(range(len(flat))))
    output, output_flags = _output(draw)
    dtypes = ("float32",) if depends_on else ("float32", "float64", "bfloat16", "float16")
    dtype = draw.pick("net.dtype", dtypes, plain=0.75)
    quirk, quirk_must = _quirk(draw, bool(marked.any()))
    logits, features = head.logits, head.features
    if head.divides and dtype == "float16":
        logits = np.where(head.features.any(axis=1, keepdims=True), logits, np.nan)
    if quirk == "nan":
        logits = np.where(marked[:, None], np.nan, logits)
        features = None if features is None else np.where(marked[:, None], np.nan, features)
    if quirk == "nan" and depends_on == "batch":  # one such row spoils the mean of all
        spoilt = made_of(list(range(len(flat))), np.where(marked[:, None], np.nan, flat))[1]
        logits, features = spoilt.logits, spoilt.features
    weights = "none"
    if quirk in _MADE:
        weights = draw.pick("net.weights", **_split(_WEIGHTS), plain=0.8)
    forward = [*_PRELUDES.get(quirk, ()), *body.forward, *head.forward, f"return {output.text}"]
    setup, factory = _indented([*body.setup, *head.setup]), _factory(quirk, dtype)
    used = "\n".join([setup, *forward, factory])
    text = _FILE.format(
        needed="".join(lines for word, lines in _NEEDED.items() if word in used),
        setup=setup,
        level=level,
        forward=_indented(forward),
        zero=weights != "none",
        factory=factory,
    )
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    if weights != "none":
        _write_weights(text, folder / f"{name}-{weights}", weights)
    return Net(
        [
            *("--model", f"{name}.py:{_FACTORY_NAMES.get(quirk, 'make')}"),
            *(() if weights == "none" else ("--weights", f"{name}-{weights}")),
            *output_flags,
            *head.flags,
        ],
        Outputs(logits, features, head.weight, body.magnitude, TOLERANCE[dtype]),
        must_refuse=head.must_refuse or output.must_refuse or quirk_must or _WEIGHTS[weights],
        may_refuse=head.may_refuse or output.may_refuse or (bool(depends_on) and len(flat) < 2),
        dtype=dtype,
        depends_on=depends_on,
        must_tell=bool(depends_on) and quirk != "nan" and _shows(made_of, without_features,
                                                                 len(flat), depends_on),
    )  # fmt: skip


def _shows(
    made_of: Callable[[list[int]], tuple[_Body, Head]],
    without_features: Callable[[list[int]], Head],
    count: int,
    depends_on: str,
) -> bool:
    """Whether the last of the first examples come out by far otherwise without the others.

    If features are drawn: whether they matter at all, and are not zero already.
    """
    first = list(range(min(count, _QUIET_ROWS)))
    half = first[len(first) // 2 :]
    if len(half) < 2:
        return False
    body, head = made_of(first)
    whole = head.logits[half]
    other = made_of(half)[1] if depends_on == "batch" else without_features(half)
    if not np.isfinite(whole).all() or (
        depends_on == "draw" and np.median(np.abs(body.features)) < 0.1
    ):
        return False
    with np.errstate(invalid="ignore"):
        return bool(np.abs(whole - other.logits).max() > 0.1 * np.abs(whole).max())


def _indented(lines: list[str]) -> str:
    return textwrap.indent("\n".join(lines), " " * 8)


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
# networks that answer one example by the others, or by chance; half of the features are dropped
_DEPENDING: dict[str, tuple[Callable[[Array], Array], str]] = {
    "batch": (
        lambda h: (h - h.mean(axis=0)) / np.sqrt(h.var(axis=0) + 0.25),
        "self.norm(self.body(flat))",
    ),
    "draw": (lambda h: h, "F.dropout(self.body(flat), 0.5, True)"),
}


@dataclass(frozen=True)
class _Body:
    """What lies before the head: features ``[N, D]`` and tokens ``[N, T, D]``."""

    setup: list[str]
    forward: list[str]
    features: Array
    tokens: Array
    magnitude: Array


def _body(draw: Draw, flat: Array, tokens: int, depends_on: str = "") -> _Body:
    weight = draw.weights("net.body weight", WIDTH, flat.shape[1])
    bias = draw.weights("net.body bias", WIDTH)
    kind = draw.pick("net.body", list(_BODIES), plain=0.4)
    setup = [f"self.body = linear({text_of(weight)}, {text_of(bias)})"]
    if kind == "batch norm":
        setup += [
            f"self.norm = nn.BatchNorm1d({WIDTH})",
            "self.norm.running_mean.fill_(0.5)",
            "self.norm.running_var.fill_(4.0)",
        ]
    if depends_on == "batch":
        setup += [f"self.norm = nn.BatchNorm1d({WIDTH}, eps=0.25, track_running_stats=False)"]
    function, written = _DEPENDING[depends_on] if depends_on else _BODIES[kind]
    # the parts of a picture, its rows, all go through the first columns of the layer
    parts = flat.reshape(len(flat), tokens, -1)
    wide = parts.shape[2]
    forward = [
        f"parts = flat.reshape(len(x), {tokens}, {wide})",
        f"tokens = torch.tanh(F.linear(parts, self.body.weight[:, :{wide}], self.body.bias))",
        f"h = {written}",
    ]
    with np.errstate(all="ignore"):  # inputs may be infinite on purpose
        sums = np.abs(flat) @ np.abs(weight).T + np.abs(bias)
        return _Body(
            setup,
            forward,
            features=function(flat @ weight.T + bias),
            tokens=np.tanh(parts @ weight[:, :wide].T + bias),
            magnitude=np.linalg.norm(sums, axis=1),
        )


@dataclass(frozen=True)
class _Output:
    """What ``forward`` returns.

    Attributes:
        text: in Python.
        name: of the part that holds the logits, if it has to be named to be sure.
        may_refuse: whether a refusal is as good an answer, also if it is named.
        must_refuse: why no number could be right.
    """

    text: str
    name: str = ""
    may_refuse: bool = False
    must_refuse: str = ""


_OUTPUTS = {
    "tensor": _Output("z"),
    "features and logits": _Output("h, z", "1"),
    "logits and features": _Output("z, h", "0"),
    "loss and logits": _Output("z.sum(), z"),
    "list": _Output("[z]"),
    "logits by name": _Output("{'logits': z}"),
    "one by name": _Output("{'out': z}"),
    "named features and logits": _Output("{'features': h, 'logits': z}"),
    "two by name": _Output("{'features': h, 'out': z}", "out"),
    "dataclass": _Output("Answer(z, h)"),
    "model output": _Output("ModelOutput(logits=z, hidden_states=(h,))"),
    "named tuple": _Output("Both(h, z)", "scores"),
    "map of one pixel": _Output("z[:, :, None, None]", may_refuse=True),
    "nested": _Output("{'head': {'logits': z}}"),
    "nested beside features": _Output("{'head': {'logits': z}, 'f': h}", "head.logits"),
    "nested in a tuple": _Output("h, (z.sum(), [z])", "1.1.0"),
    "nested dataclass": _Output("[Answer(z, h)]", "0.logits"),
    "nested deeply": _Output("{'a': ({'b': [h, z]}, None)}", "a.0.b.1"),
    "transposed": _Output("z.T", may_refuse=True),
    "first row": _Output("z[:1]", may_refuse=True),
    "tokens": _Output(
        "torch.stack([z, z + 1], 1)", must_refuse="there are two predictions per example"
    ),
    "nothing": _Output("None", must_refuse="there is no output"),
    "text": _Output("'logits'", must_refuse="a text is not logits"),
    "whole numbers": _Output("z.round().long()", must_refuse="classes are not logits"),
}


def _output(draw: Draw) -> tuple[_Output, list[str]]:
    """What forward returns, and the flags that name a part of it."""
    faults = {name: output.must_refuse for name, output in _OUTPUTS.items()}
    output = _OUTPUTS[draw.pick("net.output", **_split(faults), plain=0.5)]
    if not output.name:
        return output, []
    if draw.pick("net.output named", (True, False), plain=0.4):
        return output, ["--output", output.name]
    return replace(output, may_refuse=True), []


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
    "nan": ["flat = torch.where(marked[:, None], torch.nan, flat)"],
    "fails": ["if bool(marked.any()):", "    raise KeyError('a table of its own')"],
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
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # what a network prints and warns of is for its users
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
