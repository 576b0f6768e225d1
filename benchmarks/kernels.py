"""Fused kernels beside the matrix products they contain, plain PyTorch, and peers, in one run.

    python -m benchmarks.kernels --out benchmarks/results

Needs a CUDA device. Peers that are not installed are left out and named. A time is the median of
timed calls; ``graph`` is the same work replayed from a CUDA graph, without the time Python takes to
launch it. ``extra`` is the peak of allocated memory over what was there before, less the result;
for GEMMs the product counts: it is what the fused kernels avoid.
"""

from __future__ import annotations

import argparse
import csv
import gc
import importlib
import importlib.metadata
import json
import math
import platform
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight import kernels

SEED = 0
SCALE = 16.0
SCORES = [(65_536, 2_048, 1_000), (32_768, 512, 100_000), (8_192, 512, 1_000_000)]
LOSSES = [(4_096, 512, 10_000), (4_096, 512, 100_000), (4_096, 512, 1_000_000)]
ENCOURAGING = [(4_096, 1_024, 128_000)]
TARGETS = {  # times the GEMMs
    ("AVH scores", 1_000): 1.1,
    ("AVH scores", 100_000): 1.1,
    ("AVH scores", 1_000_000): 1.1,
    ("AVH loss", 10_000): 2.0,
    ("AVH loss", 100_000): 1.5,
    ("AVH loss", 1_000_000): 1.4,
}
Shape = tuple[int, int, int]
Method = tuple[str, Callable[[], object]]


@dataclass
class Row:
    """One method on one shape; times in milliseconds, memory in MiB."""

    work: str
    rows: int
    width: int
    classes: int
    method: str
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    calls: int = 0
    ratio: float | None = None
    graph_ms: float | None = None
    graph_ratio: float | None = None
    extra_mib: float | None = None
    note: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for kernels.csv and kernels.json")
    parser.add_argument("--skip", default="", help="methods to leave out, comma-separated")
    parser.add_argument("--work", default="scores,loss,encouraging", help="parts to run")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    skipped = {name for name in options.skip.split(",") if name}
    parts = {
        "scores": (score_work, SCORES),
        "loss": (loss_work, LOSSES),
        "encouraging": (encouraging_work, ENCOURAGING),
    }
    rows: list[Row] = []
    print(HEADER)
    for name in options.work.split(","):
        work, shapes = parts[name]
        for shape in shapes:
            rows += shape_rows(work, shape, skipped)
            if options.out:  # after every shape: a run that is cut short keeps what it has
                write(options.out, rows)


def shape_rows(
    work: Callable[..., tuple[str, list[Method]]], shape: Shape, skipped: set[str]
) -> list[Row]:
    """Every method on one shape; the first is the matrix product the others are held against."""
    name, methods = work(*shape)
    rows: list[Row] = []
    for method, call in methods:
        if method.split(" ")[0] in skipped:
            continue
        row = Row(name, *shape, method)
        rows.append(row)
        try:
            measure(row, call)
        except Exception as err:  # that a peer fails is a result too
            row.note = f"{type(err).__name__}: {err}".splitlines()[0][:120]
        free()
        row.ratio = quotient(row.median_ms, rows[0].median_ms)
        row.graph_ratio = quotient(row.graph_ms, rows[0].graph_ms)
        print(line(row), flush=True)
    return rows


def measure(row: Row, call: Callable[[], object]) -> None:
    """Time one method, from Python and from a graph, and measure its memory."""
    for _ in range(2):
        call()
    free()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    kept = 0 if "GEMM" in row.method else sum(t.numel() * t.element_size() for t in flat(result))
    row.extra_mib = (torch.cuda.max_memory_allocated() - before - kept) / 2**20
    del result
    row.calls = max(5, min(50, int(150 / statistics.median(timed(call, 3)))))
    times = sorted(timed(call, row.calls))
    row.median_ms = statistics.median(times)
    row.p10_ms, row.p90_ms = times[row.calls // 10], times[-1 - row.calls // 10]
    try:
        row.graph_ms = statistics.median(timed(replay_of(call), row.calls))
    except RuntimeError:  # not every peer can be recorded
        torch.cuda.synchronize()


def timed(call: Callable[[], object], count: int) -> list[float]:
    """Milliseconds of each of ``count`` calls, by device events."""
    events = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(count)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def replay_of(call: Callable[[], object]) -> Callable[[], object]:
    """``call`` recorded once, to be replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    return graph.replay


def score_work(rows: int, width: int, classes: int) -> tuple[str, list[Method]]:
    """AVH of every example: target angle over the sum of all angles."""
    x, labels, w = inputs(rows, width, classes)

    def fused() -> Tensor:
        found = kernels.head_statistics(x, labels, w, logits=False)
        return found.target_angle / (found.target_angle + found.other_angle_total)

    compiled = torch.compile(plain_avh, dynamic=False)
    return "AVH scores", [
        ("GEMM", lambda: torch.mm(x, w.T)),
        ("hardsight", fused),
        ("statistics, all of hardsight", lambda: kernels.head_statistics(x, labels, w)),
        ("eager", lambda: plain_avh(x, labels, w)),
        ("compile", lambda: compiled(x, labels, w)),
    ]


def loss_work(rows: int, width: int, classes: int) -> tuple[str, list[Method]]:
    """AVH loss, mean over the batch, with gradients for embeddings and class weights."""
    x, labels, w = inputs(rows, width, classes)
    x.requires_grad_()
    w.requires_grad_()

    def fused(x: Tensor, labels: Tensor, w: Tensor) -> Tensor:
        return kernels.avh_loss(x, labels, w, scale=SCALE).mean()

    compiled = torch.compile(plain_avh_loss, dynamic=False)
    return "AVH loss", [
        ("3 GEMMs", lambda: three_products(x.detach(), w.detach())),
        ("hardsight", lambda: torch.autograd.grad(fused(x, labels, w), (x, w))),
        ("eager", lambda: torch.autograd.grad(plain_avh_loss(x, labels, w), (x, w))),
        ("compile", lambda: torch.autograd.grad(compiled(x, labels, w), (x, w))),
        *peers(x, labels, w),
    ]


def encouraging_work(rows: int, width: int, classes: int) -> tuple[str, list[Method]]:
    """Encouraging loss of a linear head, with gradients for embeddings and class weights."""
    x, labels, w = inputs(rows, width, classes)
    w.mul_(width**-0.5)
    x.requires_grad_()
    w.requires_grad_()

    def fused() -> object:
        loss = kernels.linear_encouraging_loss(x, labels, w, log_end=0.75).mean()
        return torch.autograd.grad(loss, (x, w))

    return "Encouraging loss", [
        ("3 GEMMs", lambda: three_products(x.detach(), w.detach())),
        ("hardsight", fused),
        ("eager", lambda: torch.autograd.grad(plain_encouraging_loss(x, labels, w), (x, w))),
        *(peer for peer in peers(x, labels, w) if "plain CE" in peer[0]),
    ]


def peers(x: Tensor, labels: Tensor, w: Tensor) -> Iterator[Method]:
    """Other people's fused or angular losses, where they are installed."""
    cut = optional("cut_cross_entropy")
    if cut is not None:
        yield (
            "cut-cross-entropy (plain CE)",
            lambda: torch.autograd.grad(cut.linear_cross_entropy(x, w, labels), (x, w)),
        )
    liger = optional("liger_kernel.ops.fused_linear_cross_entropy")
    if liger is not None:
        linear = liger.LigerFusedLinearCrossEntropyFunction
        yield (
            "Liger (plain CE)",
            lambda: torch.autograd.grad(flat(linear.apply(x, w, labels))[0], (x, w)),
        )
    metric = optional("pytorch_metric_learning.losses")
    if metric is not None:
        arcface = metric.ArcFaceLoss(num_classes=w.shape[0], embedding_size=w.shape[1], scale=SCALE)
        arcface.W = torch.nn.Parameter(w.detach().T)
        yield (
            "pytorch-metric-learning ArcFace",
            lambda: torch.autograd.grad(arcface(x, labels), (x, arcface.W)),
        )


def optional(module: str):
    """The module, or None and a line that says why not."""
    try:
        return importlib.import_module(module)
    except ImportError as err:
        print(f"left out: {module} ({err})")
        return None


def plain_avh(x: Tensor, labels: Tensor, w: Tensor) -> Tensor:
    angles = plain_angles(x, w)
    return angles.gather(1, labels[:, None]).squeeze(1) / angles.sum(dim=1)


def plain_avh_loss(x: Tensor, labels: Tensor, w: Tensor) -> Tensor:
    return F.cross_entropy(SCALE * (math.pi - plain_angles(x, w)), labels)


def plain_angles(x: Tensor, w: Tensor) -> Tensor:
    cosines = (F.normalize(x) @ F.normalize(w).T).float()
    return torch.acos(cosines.clamp(-1 + 1e-6, 1 - 1e-6))


def plain_encouraging_loss(x: Tensor, labels: Tensor, w: Tensor) -> Tensor:
    log_probs = (x @ w.T).float().log_softmax(dim=1).gather(1, labels[:, None]).squeeze(1)
    probs = log_probs.exp()
    tangent = math.log(0.25) - (probs - 0.75) / 0.25
    bonus = torch.where(probs <= 0.75, torch.log1p(-probs.clamp_max(0.75)), tangent)
    return (bonus - log_probs).mean()


def three_products(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """What forward and backward of a linear head cost at least: 3 matrix products."""
    logits = torch.mm(x, w.T)
    return torch.mm(logits, w), torch.mm(logits.T, x)


def inputs(rows: int, width: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(SEED)

    def normal(count: int) -> Tensor:
        made = torch.randn(count, width, device="cuda", generator=generator)
        return made.to(torch.bfloat16)

    labels = torch.randint(classes, (rows,), device="cuda", generator=generator)
    return normal(rows), labels, normal(classes)


def flat(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, tuple | list):
        return [tensor for part in result for tensor in flat(part)]
    return []


def free() -> None:
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()


def quotient(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value / base


HEADER = (
    f"{'work':<17}{'rows':>7}{'width':>6}{'classes':>9}  {'method':<33}{'ms':>9}{'p10':>9}"
    f"{'p90':>9}{'x GEMM':>8}{'graph ms':>10}{'x GEMM':>8}{'extra MiB':>11}  note"
)


def line(row: Row) -> str:
    def number(value: float | None, width: int, digits: int) -> str:
        return f"{'-':>{width}}" if value is None else f"{value:>{width},.{digits}f}"

    target = TARGETS.get((row.work, row.classes)) if row.method == "hardsight" else None
    return (
        f"{row.work:<17}{row.rows:>7}{row.width:>6}{row.classes:>9}  {row.method:<33}"
        f"{number(row.median_ms, 9, 3)}{number(row.p10_ms, 9, 3)}{number(row.p90_ms, 9, 3)}"
        f"{number(row.ratio, 8, 2)}{number(row.graph_ms, 10, 3)}{number(row.graph_ratio, 8, 2)}"
        f"{number(row.extra_mib, 11, 1)}  {row.note or (f'want {target} x' if target else '')}"
    )


def write(folder: Path, rows: list[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "kernels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(asdict(rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    record = {
        "environment": environment(),
        "seed": SEED,
        "scale": SCALE,
        "dtype": "bfloat16",
        "rows": [asdict(row) for row in rows],
    }
    (folder / "kernels.json").write_text(json.dumps(record, indent=1) + "\n")


def environment() -> dict[str, object]:
    names = ("torch", "triton", "pytorch-metric-learning", "cut-cross-entropy", "liger-kernel")
    return {
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
    }


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
