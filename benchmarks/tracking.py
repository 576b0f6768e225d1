"""What tracking costs: the same training loop with and without it.

Two loops on equal networks take turns, so anything else the machine does affects both. The output
shows medians over rounds and their spread. The tracker's own work is also timed separately: its
updates, and the end of an epoch (evaluating what is pending, checking, writing to disk). If the
machine is busy, the difference between two loops says little, and that sum says more.

    python benchmarks/tracking.py                      # a small residual network, on the CPU
    python benchmarks/tracking.py --device cuda --width 64 --blocks 2 --round-steps 130 --amp

On a machine that is busy with other work, ``--clock process`` counts the processor time of this
process instead of the time on the wall.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hardsight.tracking import HardnessTracker


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.way = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the next size."""
        return torch.relu(self.body(maps) + self.way(maps))


class SmallResNet(nn.Module):
    """ResNet-18 in outline, for 32x32 pictures."""

    def __init__(self, width: int, blocks: int, classes: int) -> None:
        super().__init__()
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
        for stage, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            for place in range(blocks):
                stride = 2 if stage and not place else 1
                layers.append(Block(inputs if not place else outputs, outputs, stride))
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and logits."""
        embeddings = self.body(pictures)
        return embeddings, self.fc(embeddings)


class Loop:
    """A network in training; ``step`` is what is timed."""

    def __init__(self, options: argparse.Namespace, *, track: bool) -> None:
        torch.manual_seed(0)
        self.device, self.amp = torch.device(options.device), options.amp
        self.net = SmallResNet(options.width, options.blocks, options.classes).to(self.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.pictures = torch.randn(options.batch, 3, 32, 32, device=self.device)
        self.labels = torch.randint(options.classes, (options.batch,), device=self.device)
        self.batch, self.steps = options.batch, options.epoch_steps
        self.folder = tempfile.TemporaryDirectory()
        self.tracker = None
        if track:
            self.tracker = HardnessTracker(
                options.batch * self.steps, head=self.net.fc, folder=self.folder.name
            )
        self.taken = 0

    def step(self) -> None:
        """One step of training, and the end of the epoch where it is due."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp):
            embeddings, logits = self.net(self.pictures)
        if self.tracker is not None:
            index = torch.arange(self.batch) + self.batch * (self.taken % self.steps)
            self.tracker.update(index, embeddings, logits, self.labels)
        loss = cross_entropy(logits.float(), self.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.taken += 1
        if self.tracker is not None and self.taken % self.steps == 0:
            self.tracker.end_epoch()

    def epoch(self, options: argparse.Namespace) -> tuple[float, float]:
        """Seconds of one update, and of ending an epoch, without the network's own work."""
        assert self.tracker is not None
        self.tracker.discard_epoch()
        self.taken = 0
        with torch.no_grad():
            embeddings, logits = self.net(self.pictures)
        steps = iter(torch.arange(self.steps * self.batch).split(self.batch))

        def update() -> None:
            self.tracker.update(next(steps), embeddings, logits, self.labels)

        return seconds(update, self.steps, options), seconds(self.tracker.end_epoch, 1, options)


CLOCKS = {"wall": time.perf_counter, "process": time.process_time}


def seconds(action: Callable[[], None], times: int, options: argparse.Namespace) -> float:
    """Time of one of ``times`` calls, the device's work included."""
    clock = CLOCKS[options.clock]
    _wait(options.device)
    start = clock()
    for _ in range(times):
        action()
    _wait(options.device)
    return (clock() - start) / times


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


Pairs = list[tuple[float, float]]


def measure(options: argparse.Namespace) -> tuple[Pairs, Pairs]:
    """Seconds per step without and with tracking; seconds per update and per end of an epoch."""
    plain, tracked = Loop(options, track=False), Loop(options, track=True)
    for loop in (plain, tracked):
        seconds(loop.step, options.round_steps, options)  # warm up
    pairs = []
    for number in range(options.rounds):
        order = (plain, tracked) if number % 2 else (tracked, plain)
        taken = {loop: seconds(loop.step, options.round_steps, options) for loop in order}
        pairs.append((taken[plain], taken[tracked]))
    return pairs, [tracked.epoch(options) for _ in range(5)]


def report(pairs: Pairs, epochs: Pairs, options: argparse.Namespace) -> str:
    """One table, in milliseconds."""
    plain, tracked = zip(*pairs, strict=True)
    updates, ends = zip(*epochs, strict=True)
    rows = {"step, plain": plain, "step, tracked": tracked}
    rows |= {"update alone": updates, "end of an epoch": ends}
    lines = [f"{'':<18}{'median ms':>12}{'quartiles ms':>22}{'n':>6}"]
    for name, times in rows.items():
        low, middle, high = (1e3 * value for value in statistics.quantiles(times, n=4))
        lines.append(f"{name:<18}{middle:>12.3f}{f'{low:.3f} .. {high:.3f}':>22}{len(times):>6}")
    low, step, high = statistics.quantiles([100 * (b / a - 1) for a, b in pairs], n=4)
    per_step = statistics.median(updates) + statistics.median(ends) / options.epoch_steps
    direct = 100 * per_step / statistics.median(plain)
    lines += [
        f"overhead, loops side by side: median {step:+.2f} %, quartiles {low:+.2f} .. "
        f"{high:+.2f} %",
        f"overhead, the tracker alone:  {direct:+.2f} %, an update and its share of the end of an "
        f"epoch of {options.epoch_steps} steps, {options.epoch_steps * options.batch} rows",
    ]
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    lines.append(
        f"{where}, {torch.get_num_threads()} threads, {options.clock} clock, torch "
        f"{torch.__version__}, batch {options.batch} of 32x32, width {options.width}, blocks "
        f"{options.blocks}, {options.classes} classes, bf16 autocast "
        f"{'on' if options.amp else 'off'}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What tracking costs a training step.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--round-steps", type=int, default=1, help="steps before the loops swap")
    parser.add_argument("--epoch-steps", type=int, default=390, help="50,000 examples by default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--amp", action="store_true", help="bfloat16 autocast")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(report(*measure(options), options))


if __name__ == "__main__":
    main()
