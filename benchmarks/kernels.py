"""Fused kernels beside the matrix products they contain, plain PyTorch, and peers, in one run.

    python -m benchmarks.kernels --out benchmarks/results

Needs a CUDA device. A time is the median of timed calls; ``graph`` is the same work replayed from a
CUDA graph, without the time Python takes to launch it. ``extra`` is the peak of allocated memory
over what was there before, less the result; for GEMMs the product counts: it is what the fused
kernels avoid. ``TFLOP/s`` is what the work needs (its matrix products once) over the time, and
``of floor`` the time over the larger of needed arithmetic at the rate of a large product and least
traffic at the rate of a large copy, both measured at the start.

Rows are written after every method. A peer that fails or takes too long says so in its row; after
one that breaks the device, or runs out of memory, the run goes on in a new process.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import importlib
import importlib.metadata
import json
import math
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight import kernels
from hardsight.losses import linear_avh_loss, linear_encouraging_loss

SEED = 0
SCALE = 16.0
SCORES = [
    (65_536, 2_048, 1_000), (65_536, 768, 1_000), (131_072, 512, 200),
    (32_768, 512, 100_000), (8_192, 512, 1_000_000),
]  # fmt: skip
LOSSES = [(4_096, 512, 10_000), (4_096, 512, 100_000), (4_096, 512, 1_000_000)]
ENCOURAGING = [(4_096, 1_024, 128_000)]
FLOAT32 = [(4_096, 512, 100_000)]
FEW = [  # where plain PyTorch may be the faster one
    *((rows, 512, classes) for rows in (256, 4_096) for classes in (10, 100, 1_000)),
    (65_536, 512, 10),
]
TARGETS = {  # times the GEMMs
    ("AVH scores", 1_000): 1.1,
    ("AVH scores", 100_000): 1.1,
    ("AVH scores", 1_000_000): 1.1,
    ("AVH loss", 10_000): 2.0,
    ("AVH loss", 100_000): 1.5,
    ("AVH loss", 1_000_000): 1.4,
}
Shape = tuple[int, int, int]
Call = Callable[[], object]
Method = tuple[str, Callable[[], Call]]  # made when its turn comes: a compiler costs time
LONGEST = 60  # seconds for one method, compilation included
_COMMAND = "HARDSIGHT_BENCHMARK_COMMAND"  # for the process that goes on


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
    needed_tflop: float | None = None
    least_mib: float | None = None
    floor_ms: float | None = None
    tflops: float | None = None
    of_floor: float | None = None
    limit: str = ""
    note: str = ""

    @property
    def key(self) -> tuple[str, int, int, int, str]:
        """What tells this row from the others of a run."""
        return self.work, self.rows, self.width, self.classes, self.method


@dataclass
class Run:
    """Settings of a run, its rows so far, and the ceilings of the device."""

    out: Path | None
    deadline: float
    rows: list[Row]
    peak_tflops: float = 0.0
    copy_tbps: float = 0.0

    def base(self, row: Row) -> Row | None:
        """The matrix product that ``row`` is held against."""
        same = (one for one in self.rows if one.key[:4] == row.key[:4] and "GEMM" in one.method)
        return next(same, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for kernels.csv and kernels.json")
    parser.add_argument("--skip", default="", help="methods to leave out, comma-separated")
    parser.add_argument(
        "--work", default="scores,loss,encouraging,few,float32,autocast", help="parts to run"
    )
    parser.add_argument("--seconds", type=float, default=200, help="after them peers are left out")
    parser.add_argument("--resume", action="store_true", help="go on after the rows in --out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    found = read(options.out) if options.resume else []
    run = Run(options.out, time.monotonic() + options.seconds, found)
    run.peak_tflops, run.copy_tbps = ceilings()
    free()
    print(f"large product {run.peak_tflops:.0f} TFLOP/s, large copy {run.copy_tbps:.2f} TB/s")
    skipped = {name for name in options.skip.split(",") if name}
    parts = {
        "scores": (score_work, SCORES),
        "loss": (loss_work, LOSSES),
        "encouraging": (encouraging_work, ENCOURAGING),
        "few": (few_work, FEW),
        "float32": (float32_work, FLOAT32),
        "autocast": (autocast_work, LOSSES),
    }
    print(HEADER)
    for name in options.work.split(","):
        work, shapes = parts[name]
        for shape in shapes:
            run_shape(run, work, shape, skipped)


def run_shape(
    run: Run, work: Callable[..., tuple[str, list[Method]]], shape: Shape, skipped: set[str]
) -> None:
    """Every method on one shape; the first is the matrix product the others are held against."""
    name, methods = work(*shape)
    done = {row.key for row in run.rows}
    for method, make in methods:
        row = Row(name, *shape, method)
        if method.split(" ")[0] in skipped or row.key in done:
            continue
        run.rows.append(row)
        if time.monotonic() > run.deadline and "GEMM" not in method and "hardsight" not in method:
            row.note = "left out: the run was over its time"
        else:
            attempt(run, row, make)
        finish(run, row)
        print(line(row), flush=True)
        write(run)
        # a broken device stays broken in this process, and what ran out of memory may hold some
        if not is_alive() or (row.note.startswith("OutOfMemory") and run.out is not None):
            if run.out is None:
                raise SystemExit(f"{method} broke the device; with --out the run would go on")
            os.environ.setdefault(_COMMAND, command())
            again = [] if "--resume" in sys.argv else ["--resume"]
            os.execv(sys.executable, [*sys.orig_argv, *again])


def attempt(run: Run, row: Row, make: Callable[[], Callable[[], object]]) -> None:
    """Measure, or note why not: that a peer fails is a result too."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST)
    try:
        measure(row, make())
    except Exception as err:
        row.note = f"{type(err).__name__}: {err}".splitlines()[0][:120]
    finally:
        signal.alarm(0)
    with contextlib.suppress(RuntimeError):
        free()


def _too_long(*_: object) -> None:
    raise TimeoutError(f"took more than {LONGEST} s")


def is_alive() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def finish(run: Run, row: Row) -> None:
    """Ratios, and where the time stands against the floor of the work."""
    base = run.base(row)
    if base is not None:
        row.ratio = quotient(row.median_ms, base.median_ms)
        row.graph_ratio = quotient(row.graph_ms, base.graph_ms)
    size = row.rows * row.width + row.classes * row.width  # values of both inputs
    products = 1 if row.work == "AVH scores" else 3
    row.needed_tflop = 2e-12 * products * row.rows * row.width * row.classes
    # inputs read once; a loss also writes both gradients, and reads the inputs again for them
    row.least_mib = 2 * size * (1 if products == 1 else 3) / 2**20
    arithmetic = 1e3 * row.needed_tflop / run.peak_tflops
    traffic = row.least_mib * 2**20 / run.copy_tbps * 1e-9
    row.floor_ms = max(arithmetic, traffic)
    best = row.graph_ms or row.median_ms
    if best is None or row.median_ms is None:
        return
    row.tflops = 1e3 * row.needed_tflop / best
    row.of_floor = best / row.floor_ms
    row.limit = "arithmetic" if arithmetic > traffic else "memory"
    if row.median_ms > 1.3 * best:
        row.limit = "launches, when called; " + row.limit


def ceilings() -> tuple[float, float]:
    """Rates of a large product (TFLOP/s) and a large copy (TB/s, read and written)."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    product = statistics.median(timed(lambda: torch.mm(a, b), 15)[5:])
    source = torch.empty(2**30, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    copy = statistics.median(timed(lambda: target.copy_(source), 10)[3:])
    return 2e-9 * 8192**3 / product, 8e-9 * 2**30 / copy


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

    def nearest() -> object:
        return kernels.head_statistics(x, labels, w, logits=False, nearest_class=True)

    def compiled() -> Call:
        function = torch.compile(plain_avh, dynamic=False)
        return lambda: function(x, labels, w)

    return "AVH scores", [
        ("GEMM", lambda: lambda: torch.mm(x, w.T)),
        ("hardsight", lambda: fused),
        ("hardsight, and the nearest class", lambda: nearest),
        ("hardsight, all statistics", lambda: lambda: kernels.head_statistics(x, labels, w)),
        ("eager", lambda: lambda: plain_avh(x, labels, w)),
        ("compile", compiled),
    ]


def loss_work(rows: int, width: int, classes: int) -> tuple[str, list[Method]]:
    """AVH loss, mean over the batch, with gradients for embeddings and class weights."""
    x, labels, w = inputs(rows, width, classes)
    x.requires_grad_()
    w.requires_grad_()

    def fused() -> object:
        loss = linear_avh_loss(x, labels, w, scale=SCALE, impl="triton")
        return torch.autograd.grad(loss, (x, w))

    def compiled() -> Call:
        function = torch.compile(plain_avh_loss, dynamic=False)
        return lambda: torch.autograd.grad(function(x, labels, w), (x, w))

    return "AVH loss", [
        ("3 GEMMs", lambda: lambda: three_products(x.detach(), w.detach())),
        ("hardsight", lambda: fused),
        *peers(x, labels, w),
        ("eager", lambda: lambda: torch.autograd.grad(plain_avh_loss(x, labels, w), (x, w))),
        ("compile", compiled),
    ]


def few_work(rows: int, width: int, classes: int) -> tuple[str, list[Method]]:
    """The same with few classes, where the matrix of angles is small: fused against plain."""
    x, labels, w = inputs(rows, width, classes)
    x.requires_grad_()
    w.requires_grad_()

    def loss(impl: str) -> Call:
        return lambda: torch.autograd.grad(
            linear_avh_loss(x, labels, w, scale=SCALE, impl=impl), (x, w)
        )

    def compiled() -> Call:
        function = torch.compile(plain_avh_loss, dynamic=False)
        return lambda: torch.autograd.grad(function(x, labels, w), (x, w))

    return "AVH loss, few classes", [
        ("3 GEMMs", lambda: lambda: three_products(x.detach(), w.detach())),
        ("hardsight", lambda: loss("triton")),
        ("hardsight, plain", lambda: loss("torch")),
        ("compile", compiled),
    ]


def float32_work(rows: int, width: int, classes: int) -> tuple[str, list[Method]]:
    """The same in float32, which the portable kernels take, and with class weights in it alone."""
    narrow, labels, w = inputs(rows, width, classes)
    narrow.requires_grad_()
    x = narrow.detach().float().requires_grad_()
    w = w.float().requires_grad_()

    def loss(embeddings: Tensor, impl: str) -> Call:
        return lambda: torch.autograd.grad(
            linear_avh_loss(embeddings, labels, w, scale=SCALE, impl=impl), (embeddings, w)
        )

    return "AVH loss, float32", [
        ("3 GEMMs", lambda: lambda: three_products(x.detach(), w.detach())),
        ("hardsight", lambda: loss(x, "triton")),
        ("hardsight, embeddings in bfloat16", lambda: loss(narrow, "triton")),
        ("hardsight, plain", lambda: loss(x, "torch")),
    ]


def autocast_work(rows: int, width: int, classes: int) -> tuple[str, list[Method]]:
    """Rounded embeddings beside float32 master weights, as a training loop under autocast has them.

    Held against all of it in bfloat16, and against the same call outside of autocast, which widens.
    """
    x, labels, narrow = inputs(rows, width, classes)
    x.requires_grad_()
    narrow.requires_grad_()
    w = narrow.detach().float().requires_grad_()

    def loss(weights: Tensor, *, inside: bool) -> Call:
        def call() -> object:
            with torch.autocast("cuda", torch.bfloat16, enabled=inside):
                value = linear_avh_loss(x, labels, weights, scale=SCALE)
            return torch.autograd.grad(value, (x, weights))

        return call

    def compiled() -> Call:
        function = torch.compile(plain_avh_loss, dynamic=False)

        def call() -> object:
            with torch.autocast("cuda", torch.bfloat16):
                value = function(x, labels, w)
            return torch.autograd.grad(value, (x, w))

        return call

    return "AVH loss, autocast", [
        ("3 GEMMs", lambda: lambda: three_products(x.detach(), narrow.detach())),
        ("hardsight, all in bfloat16", lambda: loss(narrow, inside=False)),
        ("hardsight, float32 weights", lambda: loss(w, inside=True)),
        ("hardsight, outside of autocast", lambda: loss(w, inside=False)),
        ("compile", compiled),
    ]


def encouraging_work(rows: int, width: int, classes: int) -> tuple[str, list[Method]]:
    """Encouraging loss of a linear head, with gradients for embeddings and class weights."""
    x, labels, w = inputs(rows, width, classes)
    w.mul_(width**-0.5)
    x.requires_grad_()
    w.requires_grad_()

    def fused() -> object:
        loss = linear_encouraging_loss(x, labels, w, log_end=0.75, impl="triton")
        return torch.autograd.grad(loss, (x, w))

    def eager() -> object:
        return torch.autograd.grad(plain_encouraging_loss(x, labels, w), (x, w))

    def compiled() -> Call:
        function = torch.compile(plain_encouraging_loss, dynamic=False)
        return lambda: torch.autograd.grad(function(x, labels, w), (x, w))

    return "Encouraging loss", [
        ("3 GEMMs", lambda: lambda: three_products(x.detach(), w.detach())),
        ("hardsight", lambda: fused),
        *(peer for peer in peers(x, labels, w) if "plain CE" in peer[0]),
        ("eager", lambda: eager),
        ("compile", compiled),
    ]


def peers(x: Tensor, labels: Tensor, w: Tensor) -> list[Method]:
    """Other people's fused or angular losses; one that is not installed fails, and says so."""

    def cut() -> Call:
        module = importlib.import_module("cut_cross_entropy")
        return lambda: torch.autograd.grad(module.linear_cross_entropy(x, w, labels), (x, w))

    def liger() -> Call:
        module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
        linear = module.LigerFusedLinearCrossEntropyFunction
        return lambda: torch.autograd.grad(flat(linear.apply(x, w, labels))[0], (x, w))

    def arcface() -> Call:
        module = importlib.import_module("pytorch_metric_learning.losses")
        loss = module.ArcFaceLoss(num_classes=w.shape[0], embedding_size=w.shape[1], scale=SCALE)
        loss.W = torch.nn.Parameter(w.detach().T)
        return lambda: torch.autograd.grad(loss(x, labels), (x, loss.W))

    return [
        ("cut-cross-entropy (plain CE)", cut),
        ("Liger (plain CE)", liger),
        ("pytorch-metric-learning ArcFace", arcface),
    ]


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
    f"{'work':<22}{'rows':>7}{'width':>6}{'classes':>9}  {'method':<32}{'ms':>9}{'x GEMM':>8}"
    f"{'graph ms':>10}{'x GEMM':>8}{'extra MiB':>11}{'TFLOP/s':>9}{'of floor':>9}  note"
)


def line(row: Row) -> str:
    def number(value: float | None, width: int, digits: int) -> str:
        return f"{'-':>{width}}" if value is None else f"{value:>{width},.{digits}f}"

    target = TARGETS.get((row.work, row.classes)) if row.method == "hardsight" else None
    return (
        f"{row.work:<22}{row.rows:>7}{row.width:>6}{row.classes:>9}  {row.method:<32}"
        f"{number(row.median_ms, 9, 3)}{number(row.ratio, 8, 2)}{number(row.graph_ms, 10, 3)}"
        f"{number(row.graph_ratio, 8, 2)}{number(row.extra_mib, 11, 1)}{number(row.tflops, 9, 0)}"
        f"{number(row.of_floor, 9, 2)}  {row.note or (f'want {target} x' if target else '')}"
    )


def write(run: Run) -> None:
    """Everything so far; a run that is cut short keeps what it has."""
    if run.out is None:
        return
    run.out.mkdir(parents=True, exist_ok=True)
    rows = [{name: rounded(value) for name, value in asdict(row).items()} for row in run.rows]
    with (run.out / "kernels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    record = {
        "command": command(),
        "environment": environment(),
        "seed": SEED,
        "scale": SCALE,
        "dtype": "bfloat16",
        "large_product_tflops": round(run.peak_tflops, 1),
        "large_copy_tbps": round(run.copy_tbps, 3),
        "rows": rows,
    }
    (run.out / "kernels.json").write_text(json.dumps(record, indent=1) + "\n")


def rounded(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


def command() -> str:
    """As it was given, also after the run went on in a new process."""
    return os.environ.get(_COMMAND, " ".join(["python", "-m", "benchmarks.kernels", *sys.argv[1:]]))


def read(folder: Path) -> list[Row]:
    """Rows of a run that is to go on."""
    with (folder / "kernels.json").open() as file:
        rows = json.load(file)["rows"]
    names = {field.name for field in fields(Row)}
    return [Row(**{name: value for name, value in row.items() if name in names}) for row in rows]


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
