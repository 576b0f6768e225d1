"""A tiny training run to track, the same every time."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NUM_EXAMPLES, NUM_CLASSES, WIDTH, BATCH = 22, 3, 6, 5


class Run:
    """A small network, its data and its loop; ``step`` gives what a tracker's update takes."""

    def __init__(self, seed: int = 0) -> None:
        make = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(NUM_EXAMPLES, 4, generator=make)
        self.labels = torch.randint(NUM_CLASSES, (NUM_EXAMPLES,), generator=make)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, NUM_CLASSES)
        self.model = nn.Sequential(self.body, nn.Tanh(), self.head)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        self.epoch = 0

    def orders(self) -> list[Tensor]:
        """Batches of indices of the next epoch."""
        shuffle = torch.Generator().manual_seed(100 + self.epoch)
        self.epoch += 1
        return list(torch.randperm(NUM_EXAMPLES, generator=shuffle).split(BATCH))

    def forward(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        embeddings = torch.tanh(self.body(self.inputs[index]))
        return index, embeddings, self.head(embeddings), self.labels[index]

    def learn(self, logits: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        cross_entropy(logits, labels).backward()
        self.optimizer.step()

    def steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """One epoch; the optimizer steps when the next step is asked for."""
        for index in self.orders():
            step = self.forward(index)
            yield step
            self.learn(step[2], step[3])

    def state(self) -> dict[str, object]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
        }

    def load(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def make_run() -> type[Run]:
    return Run
