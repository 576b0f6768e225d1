"""Where a number comes from: versions and digests for the metadata."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn

from hardsight._optional import versions_of


def versions(*more: str) -> dict[str, str]:
    """Versions of everything that can change a score, and of ``more`` packages."""
    return versions_of("torch", "numpy", "pyarrow", "pillow", *more)


def values_digest(values: Any) -> str:
    """SHA-256 over plain values, such as the names of classes."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def state_digest(model: nn.Module) -> str:
    """SHA-256 over the names and values of all parameters and buffers."""
    return tensors_digest(**model.state_dict())


def tensors_digest(*tensors: Any, **named: Any) -> str:
    """SHA-256 over tensors, their names, shapes and dtypes."""
    digest = hashlib.sha256()
    entries = [*enumerate(tensors), *named.items()]
    for name, tensor in entries:
        if not isinstance(tensor, Tensor):  # extra state of a module
            continue
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {list(plain.shape)} {plain.dtype}".encode())
        if plain.numel():
            digest.update(plain.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
