"""A grammar of classifier heads: lines of Python, and the same in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tests.fuzz.draw import Array, Draw
from tests.fuzz.oracle import log_sum_exp, softmax

WIDTH = 5  # of the features


@dataclass(frozen=True)
class Parts:
    """What a head is made from.

    Attributes:
        draw: of the case.
        features: ``[N, D]``, called ``h`` in Python.
        tokens: ``[N, T, D]``, called ``tokens``.
        marked: rows that a head may treat in another way, called ``marked``; none of the first.
        weight: ``[C, D]``.
        bias: ``[C]``.
    """

    draw: Draw
    features: Array
    tokens: Array
    marked: Array
    weight: Array
    bias: Array

    @property
    def layer(self) -> str:
        """The plain layer, in Python."""
        return f"linear({text_of(self.weight)}, {text_of(self.bias)})"

    def logits(self, features: Array | None = None) -> Array:
        """``[N, C]``."""
        return (self.features if features is None else features) @ self.weight.T + self.bias

    def other(self) -> Array:
        """The weight of a second layer, ``[C, D]``."""
        return self.draw.weights("net.other", *self.weight.shape)


@dataclass(frozen=True)
class Head:
    """How logits are made.

    Attributes:
        setup: lines of ``__init__``.
        forward: lines of ``forward`` that set ``z``.
        logits: in numpy.
        features: that a linear layer turns into the logits; ``None`` if there are none.
        weight: of that layer.
        may_refuse: the layer is hidden too well for a search to be expected to find it.
        must_refuse: why no number could be right.
        flags: that name what the search would not find.
        divides: by the lengths of the features, which torch keeps from 0 by a number that float16
            rounds to 0.
    """

    setup: list[str]
    forward: list[str]
    logits: Array
    features: Array | None
    weight: Array
    may_refuse: bool = False
    must_refuse: str = ""
    flags: tuple[str, ...] = ()
    divides: bool = False


_Maker = Callable[[Parts], Head]


def text_of(values: Array) -> str:
    """An array as a tensor in Python."""
    return f"torch.tensor({values.tolist()})"


def make_head(draw: Draw, features: Array, tokens: Array, marked: Array, *, classes: int) -> Head:
    """Draw a head on features ``[N, D]`` or tokens ``[N, T, D]``."""
    weight = draw.weights("net.weight", classes, WIDTH)
    # a class without a direction has no angle; two classes in one direction are one class
    weight[:, 0] += np.arange(classes) / 8 + 1 / 32
    bias = draw.weights("net.bias", classes)
    kind = draw.pick("net.head", list(_HEADS), faults=["softmax"], plain=0.25)
    with np.errstate(all="ignore"):  # features may be infinite on purpose
        parts = Parts(draw, features, tokens, marked, weight, bias)
        return {**_HEADS, "softmax": _softmax}[kind](parts)


def _plain(setup: str, forward: str = "z = self.head(h)") -> _Maker:
    """A head whose layer is written in another way; ``LAYER`` is the plain one."""

    def head(parts: Parts) -> Head:
        lines = setup.replace("LAYER", parts.layer).splitlines()
        return Head(lines, forward.splitlines(), parts.logits(), parts.features, parts.weight)

    return head


def _without_bias(setup: str, forward: str = "z = self.head(h)") -> _Maker:
    """The same without a bias; ``WEIGHT`` is that of the layer."""

    def head(parts: Parts) -> Head:
        lines = setup.replace("WEIGHT", text_of(parts.weight)).splitlines()
        logits = parts.features @ parts.weight.T
        head = Head(lines, forward.splitlines(), logits, parts.features, parts.weight)
        return _with_name(parts.draw, head) if "Parameter" in setup else head

    return head


def _with_name(draw: Draw, head: Head) -> Head:
    """The head of a bare parameter, which has to be named, on features that pass a module."""
    kind = draw.pick("net.head named", ("through a module", "in the open", "unnamed"), plain=0.5)
    if kind == "unnamed":
        return replace(head, may_refuse=True)
    head = replace(head, flags=("--head", "weight"))
    if kind == "in the open":  # nothing hooks onto the features, unless the body ends in a module
        return replace(head, may_refuse=True)
    setup = [*head.setup, "self.embeddings = nn.Identity()"]
    return replace(head, setup=setup, forward=["h = self.embeddings(h)", *head.forward])


def _convolution(parts: Parts) -> Head:
    setup = [
        f"self.head = nn.Conv2d({WIDTH}, {len(parts.weight)}, 1)",
        f"self.head.weight.data.copy_({text_of(parts.weight)}[:, :, None, None])",
        f"self.head.bias.data.copy_({text_of(parts.bias)})",
    ]
    forward = ["z = self.head(h[:, :, None, None]).flatten(1)"]
    return Head(setup, forward, parts.logits(), parts.features, parts.weight)


def _on_tokens(line: str, features: Callable[[Parts], Array], *, hidden: bool = False) -> _Maker:
    """A head on tokens of which some are taken, or their mean."""

    def head(parts: Parts) -> Head:
        taken = features(parts)
        setup = [f"self.head = {parts.layer}"]
        return Head(setup, line.splitlines(), parts.logits(taken), taken, parts.weight, hidden)

    return head


def _last_unless_marked(parts: Parts) -> Array:
    return np.where(parts.marked[:, None], parts.tokens[:, 0], parts.tokens[:, -1])


def _mean_unless_marked(parts: Parts) -> Array:
    return np.where(parts.marked[:, None], parts.tokens[:, 0], parts.tokens.mean(axis=1))


def _temperature(parts: Parts) -> Head:
    setup, forward = [f"self.head = {parts.layer}"], ["z = self.head(h) / 0.25"]
    return Head(setup, forward, 4 * parts.logits(), parts.features, parts.weight)


def _cosine(parts: Parts) -> Head:
    setup = [
        f"self.head = Cosine({WIDTH}, {len(parts.weight)}, bias=False)",
        f"self.head.weight.data.copy_({text_of(parts.weight)})",
    ]
    lengths = np.linalg.norm(parts.features, axis=1, keepdims=True)
    unit = parts.features / np.where(lengths > 0, lengths, 1)  # as torch does it
    rows = 4 * parts.weight / np.linalg.norm(parts.weight, axis=1, keepdims=True)
    return Head(setup, ["z = self.head(h)"], unit @ rows.T, unit, rows, divides=True)


def _prior(parts: Parts) -> Head:
    prior = parts.draw.weights("net.prior", len(parts.weight))
    setup, forward = [f"self.head = {parts.layer}"], [f"z = self.head(h) + {text_of(prior)}.to(h)"]
    logits = parts.logits() + prior
    return Head(setup, forward, logits, parts.features, parts.weight, may_refuse=True)


def _class_scales(parts: Parts) -> Head:
    scales = 1 + np.arange(len(parts.weight)) / 4
    setup, forward = [f"self.head = {parts.layer}"], [f"z = self.head(h) * {text_of(scales)}.to(h)"]
    logits = parts.logits() * scales
    return Head(setup, forward, logits, parts.features, parts.weight, may_refuse=True)


def _masked_class(parts: Parts) -> Head:
    """The first class is ruled out for all."""
    low = parts.draw.pick("net.mask", (-1e4, -np.inf))
    logits = parts.logits()
    logits[:, 0] = low
    mask = f"torch.arange({len(parts.weight)}) == 0"
    forward = [f"z = self.head(h).masked_fill({mask}, float('{low}'))"]
    setup = [f"self.head = {parts.layer}"]
    return Head(setup, forward, logits, None, parts.weight, may_refuse=True)


def _masked_rows(parts: Parts) -> Head:
    """The first class is ruled out for marked rows."""
    logits = parts.logits()
    logits[parts.marked, 0] = -1e4
    mask = f"marked[:, None] & (torch.arange({len(parts.weight)}) == 0)"
    forward = [f"z = self.head(h).masked_fill({mask}, -1e4)"]
    some = bool(parts.marked.any())
    features = None if some else parts.features
    return Head([f"self.head = {parts.layer}"], forward, logits, features, parts.weight, some)


def _other_path(parts: Parts) -> Head:
    """Marked rows go through another layer."""
    logits, other = parts.logits(), parts.other()
    logits[parts.marked] = (parts.features @ other.T)[parts.marked]
    setup = [f"self.head = {parts.layer}", f"self.other = linear({text_of(other)})"]
    forward = ["z = torch.where(marked[:, None], self.other(h), self.head(h))"]
    some = bool(parts.marked.any())
    return Head(setup, forward, logits, None if some else parts.features, parts.weight, some)


def _auxiliary(parts: Parts) -> Head:
    setup = [f"self.aux = linear({text_of(parts.other())})", f"self.head = {parts.layer}"]
    forward = ["self.aux(h)", "z = self.head(h)"]
    return Head(setup, forward, parts.logits(), parts.features, parts.weight)


def _ensemble(parts: Parts) -> Head:
    weight = parts.weight + parts.other()
    setup = [f"self.head = {parts.layer}", f"self.other = linear({text_of(parts.other())})"]
    logits = parts.features @ weight.T + parts.bias
    forward = ["z = self.head(h) + self.other(h)"]
    return Head(setup, forward, logits, parts.features, weight, may_refuse=True)


def _hidden_layer(parts: Parts) -> Head:
    inner = parts.draw.weights("net.inner", WIDTH, WIDTH)
    hidden = np.tanh(parts.features @ inner.T)
    setup = [f"self.inner = linear({text_of(inner)})", f"self.head = {parts.layer}"]
    forward = ["z = self.head(torch.tanh(self.inner(h)))"]
    return Head(setup, forward, parts.logits(hidden), hidden, parts.weight)


def _log_softmax(parts: Parts) -> Head:
    logits = parts.logits() - log_sum_exp(parts.logits())[:, None]
    setup, forward = [f"self.head = {parts.layer}"], ["z = F.log_softmax(self.head(h), dim=1)"]
    return Head(setup, forward, logits, None, parts.weight, may_refuse=True)


def _softmax(parts: Parts) -> Head:
    setup, forward = [f"self.head = {parts.layer}"], ["z = F.softmax(self.head(h), dim=1)"]
    why = "probabilities are not logits"
    return Head(setup, forward, softmax(parts.logits()), None, parts.weight, must_refuse=why)


_HEADS: dict[str, _Maker] = {
    "linear": _plain("self.head = LAYER"),
    "without bias": _without_bias("self.head = linear(WEIGHT)"),
    "wrapped": _plain("self.top = nn.Sequential(nn.Dropout(0.5), LAYER)", "z = self.top(h)"),
    "named": _plain("self.parts = nn.ModuleDict({'out': LAYER})", "z = self.parts['out'](h)"),
    "tied": _without_bias(
        "self.words = nn.Embedding.from_pretrained(WEIGHT, freeze=False)\n"
        "self.head = linear(WEIGHT)\n"
        "self.head.weight = self.words.weight"
    ),
    "weight norm": _plain("self.head = nn.utils.parametrizations.weight_norm(LAYER)"),
    "called twice": _plain("self.head = LAYER", "self.head(torch.tanh(h + 1))\nz = self.head(h)"),
    "convolution": _convolution,
    "mean of tokens": _on_tokens("z = self.head(tokens).mean(1)", lambda p: p.tokens.mean(axis=1)),
    "last token": _on_tokens("z = self.head(tokens)[:, -1]", lambda p: p.tokens[:, -1]),
    "padded tokens": _on_tokens(
        "last = torch.where(marked, 0, tokens.shape[1] - 1)\n"
        "z = self.head(tokens)[torch.arange(len(x)), last]",
        _last_unless_marked,
        hidden=True,
    ),
    "masked mean": _on_tokens(
        "kept = (~marked[:, None] | (torch.arange(tokens.shape[1]) == 0))[:, :, None]\n"
        "z = (self.head(tokens) * kept).sum(1) / kept.sum(1)",
        _mean_unless_marked,
        hidden=True,
    ),
    "temperature": _temperature,
    "cosine": _cosine,
    "einsum": _without_bias(
        "self.weight = nn.Parameter(WEIGHT)", "z = torch.einsum('nd,cd->nc', h, self.weight)"
    ),
    "functional": _without_bias(
        "self.weight = nn.Parameter(WEIGHT)", "z = F.linear(h, self.weight)"
    ),
    "prior": _prior,
    "class scales": _class_scales,
    "masked class": _masked_class,
    "masked rows": _masked_rows,
    "other path": _other_path,
    "auxiliary": _auxiliary,
    "ensemble": _ensemble,
    "hidden layer": _hidden_layer,
    "log softmax": _log_softmax,
}
