"""List what is installed, what is missing, and how to install it."""

from __future__ import annotations

import importlib
import os
import platform
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import hardsight

# import name -> (distribution, what it is for, how to install it)
_PARTS = {
    "torch": ("torch", "scoring and training", "pip install torch"),
    "numpy": ("numpy", "arrays", "pip install numpy"),
    "pyarrow": ("pyarrow", "tables", "pip install pyarrow"),
    "PIL": ("pillow", "images", "pip install pillow"),
    "datasets": ("datasets", "hub:OWNER/NAME data", "pip install datasets"),
    "safetensors": ("safetensors", "weights", "pip install safetensors"),
    "lightning": ("lightning", "hardsight train", "pip install 'hardsight[train]'"),
    "matplotlib": (
        "matplotlib",
        "figures of hardsight study and hardsight experiment",
        "pip install 'hardsight[experiments]'",
    ),
    "cleanlab": ("cleanlab", "the peer in label-errors", "pip install 'hardsight[experiments]'"),
    "starlette": ("starlette", "hardsight review", "pip install 'hardsight[app]'"),
    "uvicorn": ("uvicorn", "hardsight review", "pip install 'hardsight[app]'"),
    "duckdb": ("duckdb", "filters of hardsight review", "pip install 'hardsight[app]'"),
    "ray": ("ray", "hardsight score --engine ray", "pip install 'hardsight[ray]'"),
    "torch_geometric": ("torch-geometric", "graphs", "pip install 'hardsight[graph]'"),
    "sentencepiece": (
        "sentencepiece",
        "hardsight experiment run el-translation",
        "pip install 'hardsight[translation]'",
    ),
    "sacrebleu": (
        "sacrebleu",
        "hardsight experiment run el-translation",
        "pip install 'hardsight[translation]'",
    ),
    "triton": ("triton", "fused GPU kernels", "pip install 'hardsight[kernels]'"),
    "transformers": ("transformers", "hf:NAME models", "pip install transformers"),
    "timm": ("timm", "timm:NAME models", "pip install timm"),
    "torchvision": ("torchvision", "torchvision:NAME models", "pip install torchvision"),
}


@dataclass(frozen=True)
class Finding:
    """A line of the doctor's table.

    Attributes:
        part: what was checked.
        found: version, device, or error.
        ok: whether it can be used.
        purpose: what it is for.
        step: what to do if it cannot.
    """

    part: str
    found: str
    ok: bool
    purpose: str
    step: str


def findings() -> list[Finding]:
    """All findings about this installation, core parts first."""
    system = f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores"
    rows = [Finding("hardsight", f"{hardsight.__version__} ({system})", True, "", "")]
    rows += [_part(module, *about) for module, about in _PARTS.items()]
    return [*rows, *_devices()]


def _part(module: str, distribution: str, purpose: str, step: str) -> Finding:
    try:
        # packages may warn of deprecations at import. If a filter turned such a warning into an
        # error, the package would stay half imported
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module(module)
        return Finding(distribution, version(distribution), True, purpose, "")
    except PackageNotFoundError:
        return Finding(distribution, "found", True, purpose, "")
    except ModuleNotFoundError as err:
        if err.name == module:
            return Finding(distribution, "not installed", False, purpose, step)
        return Finding(distribution, f"broken: {err}", False, purpose, f"reinstall: {step}")
    except Exception as err:  # a broken binary may raise anything on import
        return Finding(distribution, f"broken: {err}", False, purpose, f"reinstall: {step}")


def _devices() -> list[Finding]:
    import torch

    findings = [Finding("cpu", f"{torch.get_num_threads()} threads", True, "device", "")]
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        memory = f"{facts.total_memory / 2**30:.0f} GiB"
        findings.append(Finding(f"cuda:{number}", f"{facts.name}, {memory}", True, "device", ""))
    if not torch.cuda.is_available():
        step = "needs an NVIDIA GPU and a CUDA build of torch"
        findings.append(Finding("cuda", "none", False, "device", step))
    if torch.backends.mps.is_available():
        findings.append(Finding("mps", "available", True, "device", ""))
    return findings
