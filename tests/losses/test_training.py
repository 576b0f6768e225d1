"""A hundred steps of a problem that breaks an angular loss written the usual way."""

import pytest
import torch
from torch import nn

from hardsight.losses import (
    AMCLoss,
    AVHLoss,
    EncouragingLoss,
    EuclideanContrastiveLoss,
    LargeMarginSoftmaxLoss,
    LinearAVHLoss,
    LinearEncouragingLoss,
    MirrorMSELoss,
)

STEPS = 100
CLASSES, WIDTH = 4, 8


def hard_batch():
    """Duplicates, zero rows, opposite rows and one mislabelled copy, at very different scales."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(CLASSES, 6, generator=generator)
    x = torch.cat([base, base, 0 * base, -base, 30 * base, 1e-3 * base])
    labels = torch.arange(CLASSES).repeat(6)
    labels[0] = 1  # a copy of row 4, labelled otherwise
    return x, labels


def criteria():
    """The loss, and the linear layer in front of it where it takes logits."""
    owned = (CLASSES, WIDTH)
    return {
        "avh": (AVHLoss(*owned, scale=16.0), nn.Identity()),
        "large margin": (LargeMarginSoftmaxLoss(*owned), nn.Identity()),
        "linear avh": (LinearAVHLoss(*owned, scale=16.0), nn.Identity()),
        "linear encouraging": (LinearEncouragingLoss(*owned), nn.Identity()),
        "amc halves": (AMCLoss(), nn.Identity()),
        "amc all": (AMCLoss(pairs="all", average="signs"), nn.Identity()),
        "euclidean": (EuclideanContrastiveLoss(pairs="all"), nn.Identity()),
        "encouraging": (EncouragingLoss(), nn.Linear(WIDTH, CLASSES)),
        "encouraging normal": (EncouragingLoss(log_end=1.0), nn.Linear(WIDTH, CLASSES)),
        "mirror mse": (MirrorMSELoss(activation="sigmoid"), nn.Linear(WIDTH, CLASSES)),
    }


NAMES = list(criteria())


def train(name, *, dtype, autocast, scaler):
    torch.manual_seed(0)
    criterion, head = criteria()[name]
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, WIDTH), head)
    model = nn.ModuleList([net, criterion]).to(dtype)
    # the normal bonus is unbounded below: half-precision logits would grow past their range
    rate = 0.001 if name == "encouraging normal" else 0.01
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    x, labels = hard_batch()
    x = x.to(dtype)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            outputs = net(x)
            outputs.retain_grad()
            loss = criterion(outputs, labels)
        scaler.scale(loss).backward()
        assert torch.isfinite(outputs.grad).all()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert all(parameter.dtype == dtype for parameter in model.parameters())
    return losses


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.bfloat16, None),
        (torch.float32, None),
    ],
)
def test_training_stays_finite_and_learns(name, dtype, autocast):
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=autocast is torch.float16)
    losses = train(name, dtype=dtype, autocast=autocast, scaler=scaler)
    assert all(map(torch.isfinite, torch.tensor(losses)))
    assert min(losses[-10:]) < losses[0]
    if scaler.is_enabled():
        # the layers before the loss may overflow half precision now and then; each time halves it
        assert scaler.get_scale() >= 16.0
