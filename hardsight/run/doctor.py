"""List what is installed, what is missing, and how to install it."""

from __future__ import annotations

import importlib
import os
import platform
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import hardsight

# the extra that has a package, "" for one that is installed by its own name; the import name of
# each, and what it is for
_PARTS: list[tuple[str, dict[str, str]]] = [
    ("", {"torch": "scoring and training", "numpy": "arrays", "pyarrow": "tables",
          "PIL": "images", "datasets": "hub:OWNER/NAME data", "safetensors": "weights"}),
    ("train", {"lightning": "hardsight train"}),
    ("experiments", {"matplotlib": "figures of hardsight study and hardsight experiment",
                     "cleanlab": "the peer in label-errors"}),
    ("app", {"starlette": "hardsight review", "uvicorn": "hardsight review",
             "duckdb": "filters of hardsight review"}),
    ("ray", {"ray": "hardsight score --engine ray"}),
    ("graph", {"torch_geometric": "graphs"}),
    ("translation", dict.fromkeys(("sentencepiece", "sacrebleu"),
                                  "hardsight experiment run el-translation")),
    ("kernels", {"triton": "fused GPU kernels"}),
    ("", {"transformers": "hf:NAME models", "timm": "timm:NAME models",
          "torchvision": "torchvision:NAME models"}),
]  # fmt: skip
_DISTRIBUTIONS = {"PIL": "pillow", "torch_geometric": "torch-geometric"}  # if of another name


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
    for extra, parts in _PARTS:
        rows += [_part(module, purpose, extra) for module, purpose in parts.items()]
    return [*rows, *_devices()]


def _part(module: str, purpose: str, extra: str) -> Finding:
    distribution = _DISTRIBUTIONS.get(module, module)
    step = f"pip install 'hardsight[{extra}]'" if extra else f"pip install {distribution}"
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
