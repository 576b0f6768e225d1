"""Errors of the fused kernels beside those of the plain version, at full size, against float64.

    python -m benchmarks.kernel_errors --out benchmarks/results/kernel_errors.csv

Needs a CUDA device. The kernels see every row and every class. They are compared with float64 and
with the plain version on a sample of the rows and, for gradients of class weights, of the classes.
All get the same inputs in the same dtype. For values, the error is the largest over the sample; for
gradients, it is the norm of the difference divided by the norm.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, softplus

from benchmarks._measure import publish
from hardsight.losses import linear_avh_loss, linear_encouraging_loss
from hardsight.scores._summary import head_summaries

Shape = tuple[int, int, int]
SCORES: list[Shape] = [(65_536, 2_048, 1_000), (32_768, 512, 100_000), (8_192, 512, 1_000_000)]
LOSSES: list[Shape] = [(4_096, 512, 10_000), (4_096, 512, 100_000), (4_096, 512, 1_000_000)]
ENCOURAGING: list[Shape] = [(4_096, 1_024, 128_000)]
SAMPLE = 128
# a fused error is at most so many plain ones; float32 products are three of TF32
FACTORS = {torch.bfloat16: 5.0, torch.float16: 5.0, torch.float32: 16.0}
SCALE = 16.0
LOG_END = 0.75
_CELLS_AT_ONCE = 1 << 27  # 1 GiB of float64


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the rows to this CSV file")
    options = parser.parse_args(args)
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    rows = []
    for work, shape, dtype in cases():
        for value, fused, plain in errors(work, shape, dtype):
            facts = dict(zip(("rows", "width", "classes"), shape, strict=True))
            name = str(dtype).removeprefix("torch.")
            rows.append({"name": work, **facts, "dtype": name, "value": value}
                        | {"fused": f"{fused:.2e}", "plain": f"{plain:.2e}"}
                        | {"ratio": round(fused / max(plain, 1e-12), 2)})  # fmt: skip
            print(*rows[-1].values(), flush=True)
    publish(f"Errors against float64, {SAMPLE} rows and classes", rows, file=options.out)


def cases() -> Iterator[tuple[str, Shape, torch.dtype]]:
    """Every work at every size and in every dtype."""
    for work, shapes in (("scores", SCORES), ("AVH loss", LOSSES), ("EL", ENCOURAGING)):
        for shape in shapes:
            for dtype in FACTORS:
                yield work, shape, dtype


def errors(
    work: str, shape: Shape, dtype: torch.dtype, *, device: str = "cuda"
) -> list[tuple[str, float, float]]:
    """Name of each value with the fused and the plain error."""
    generator = torch.Generator(device).manual_seed(0)
    x, labels, w = _inputs(shape, dtype, generator)
    picked = torch.randperm(len(x), device=device, generator=generator)[:SAMPLE]
    if work == "scores":
        return _score_errors(x, labels, w, picked)
    some = torch.randint(len(w), (SAMPLE // 2,), device=device, generator=generator)
    classes = torch.cat([some, labels[picked[: SAMPLE // 2]]])
    return _loss_errors(work, x, labels, w, picked, classes)


def _score_errors(
    x: Tensor, labels: Tensor, w: Tensor, picked: Tensor
) -> list[tuple[str, float, float]]:
    fused = _score_values(x, labels, w, "triton")
    plain = _score_values(x[picked], labels[picked], w, "torch")
    found = []
    for name, exact in _exact_scores(x[picked].double(), labels[picked], w).items():
        scale = exact.abs() if name == "AVH, relative" else torch.ones_like(exact)
        pair = fused[name][picked], plain[name]
        found.append((name, *(float(((one - exact) / scale).abs().max()) for one in pair)))
    return found


def _score_values(x: Tensor, labels: Tensor, w: Tensor, impl: str) -> dict[str, Tensor]:
    found = head_summaries(x, labels, w, impl=impl)
    angles, logits, targets = found.angles, found.logits, found.targets
    assert angles is not None
    assert logits is not None
    assert targets is not None
    return {
        "AVH, relative": angles.target / (angles.target + angles.others),
        "own angle": angles.target,
        "nearest other angle": angles.nearest_other,
        "own probability": targets.log_prob.exp(),
        "log-sum-exp": logits.largest + logits.log_total,
    }


def _exact_scores(x: Tensor, labels: Tensor, w: Tensor) -> dict[str, Tensor]:
    logits = torch.cat([x @ part.double().T for part in w.split(65_536)], dim=1)
    angles = torch.cat([_angles(x, part.double()) for part in w.split(65_536)], dim=1)
    own = labels[:, None]
    target = angles.gather(1, own).squeeze(1)
    total = angles.sum(dim=1)
    nearest = angles.scatter(1, own, torch.inf).amin(dim=1)
    log_total = logits.logsumexp(dim=1)
    return {
        "AVH, relative": target / total,
        "own angle": target,
        "nearest other angle": nearest,
        "own probability": (logits.gather(1, own).squeeze(1) - log_total).exp(),
        "log-sum-exp": log_total,
    }


def _loss_errors(
    work: str, x: Tensor, labels: Tensor, w: Tensor, picked: Tensor, classes: Tensor
) -> list[tuple[str, float, float]]:
    loss: Callable[..., Tensor] = {
        "AVH loss": partial(linear_avh_loss, scale=SCALE),
        "EL": partial(linear_encouraging_loss, log_end=LOG_END),
    }[work]
    fused, plain = (
        _differentiated(partial(loss, impl=impl), x, labels, w, picked, classes)
        for impl in ("triton", "torch")
    )
    exact = _exact_loss(work, x.double(), labels, w, picked, classes)
    values = [float((one[0] - exact[0]).abs().max()) for one in (fused, plain)]
    found: list[tuple[str, float, float]] = [("loss", *values)]
    for index, name in ((1, "gradient of embeddings"), (2, "gradient of class weights")):
        norms = [float((one[index] - exact[index]).norm()) for one in (fused, plain)]
        size = float(exact[index].norm())
        found.append((name, norms[0] / size, norms[1] / size))
    return found


def _differentiated(
    loss: Any, x: Tensor, labels: Tensor, w: Tensor, picked: Tensor, classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of the picked rows, and gradients of picked rows and classes, all rows taking part."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    values = loss(x, labels, w, reduction="none")
    x_grad, w_grad = torch.autograd.grad(values.sum(), (x, w))
    return values.detach()[picked], x_grad[picked], w_grad[classes]


def _exact_loss(
    work: str, x: Tensor, labels: Tensor, w: Tensor, picked: Tensor, classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by its definition: the softmax differentiated by hand, logits by autograd."""
    logits = _angular_logits if work == "AVH loss" else _linear_logits
    everyone = torch.arange(len(x), device=x.device)
    own, others = [], []
    for rows in everyone.split(_CELLS_AT_ONCE // len(w)):
        cells = torch.cat([logits(x[rows], part.double()) for part in w.split(65_536)], dim=1)
        own.append(cells.gather(1, labels[rows, None]).squeeze(1))
        others.append(cells.scatter_(1, labels[rows, None], -torch.inf).logsumexp(dim=1))
    log_total = torch.cat(others)
    log_odds = (torch.cat(own) - log_total).requires_grad_()
    losses = softplus(-log_odds) if work == "AVH loss" else _encouraging(log_odds)
    (slopes,) = torch.autograd.grad(losses.sum(), log_odds)

    def gradient(of: Tensor, x: Tensor, rows: Tensor, w: Tensor, chosen: Tensor) -> Tensor:
        """Of ``x`` (rows) or ``w`` (chosen classes) by the logits between them."""
        cells = logits(x, w)
        shares = (cells.detach() - log_total[rows, None]).exp()
        signs = torch.where(labels[rows, None] == chosen, 1.0, -shares)
        return torch.autograd.grad(cells, of, signs * slopes[rows, None])[0]

    some = x[picked].requires_grad_()
    every_class = torch.arange(len(w), device=x.device)
    x_grad = torch.zeros_like(some)
    for chosen in every_class.split(65_536):
        x_grad += gradient(some, some, picked, w[chosen].double(), chosen)
    few = w[classes].double().requires_grad_()
    return losses.detach()[picked], x_grad, gradient(few, x, everyone, few, classes)


def _encouraging(log_odds: Tensor) -> Tensor:
    """Cross-entropy plus the log bonus, which goes on as its tangent from ``LOG_END`` on."""
    log_probs, probs = logsigmoid(log_odds), log_odds.sigmoid()
    rest = 1 - LOG_END
    tangent = math.log(rest) - (probs - LOG_END) / rest
    return torch.where(probs < LOG_END, logsigmoid(-log_odds), tangent) - log_probs


def _angular_logits(x: Tensor, w: Tensor) -> Tensor:
    return -SCALE * _angles(x, w)


def _linear_logits(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.T


def _angles(x: Tensor, w: Tensor) -> Tensor:
    return torch.acos((normalize(x) @ normalize(w).T).clamp(-1, 1))


def _inputs(
    shape: Shape, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Half of the rows somewhere between nowhere and their class; class weights of norm 1."""
    rows, width, classes = shape
    options: Any = {"device": generator.device, "generator": generator}
    x = torch.randn(rows, width, **options)
    w = torch.randn(classes, width, **options)
    labels = torch.randint(classes, (rows,), **options)
    half = rows // 2
    x[:half] += torch.rand(half, 1, **options) * w[labels[:half]]
    return x.to(dtype), labels, (w * width**-0.5).to(dtype)


if __name__ == "__main__":
    main()
