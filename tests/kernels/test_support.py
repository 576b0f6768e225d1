import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from hardsight.errors import LabelError, MissingExtraError, OptionError, ShapeError
from hardsight.kernels import (
    _support,
    angular_log_odds,
    head_statistics,
    is_supported,
    linear_log_odds,
)

X, W, LABELS = torch.ones(3, 4), torch.ones(5, 4), torch.tensor([0, 1, 4])


def test_importing_the_kernels_loads_no_triton():
    code = "import sys, hardsight.kernels; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cpu_tensors_are_supported_by_the_interpreter_alone(monkeypatch):
    assert is_supported(X, W)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert not is_supported(X, W)
    with pytest.raises(OptionError, match="expected tensors on a CUDA device, got cpu; pass impl"):
        head_statistics(X, LABELS, W)


@pytest.mark.parametrize("other", [torch.float64, torch.int64])
def test_other_dtypes_are_not_supported(other):
    assert not is_supported(X.to(other), W.to(other))


def test_mixed_dtypes_are_refused_with_a_way_out():
    assert not is_supported(X.bfloat16(), W)
    with pytest.raises(OptionError, match=r"got torch\.bfloat16 and torch\.float32; cast them or"):
        head_statistics(X.bfloat16(), LABELS, W)


def test_nothing_to_score_is_refused():
    assert not is_supported(X[:0], W)
    with pytest.raises(ShapeError, match=r"at least one example.*got embeddings \[0, 4\]"):
        head_statistics(X[:0], LABELS[:0], W)


def test_a_bias_of_another_length_is_refused():
    with pytest.raises(ShapeError, match=r"one bias per class, got bias \[4\]"):
        linear_log_odds(X, LABELS, W, torch.ones(4))


def test_labels_of_two_dimensions_are_refused():
    with pytest.raises(ShapeError, match=r"labels to have 1 dimension, got \[3, 1\]"):
        angular_log_odds(X, LABELS[:, None], W, scale=1)


@pytest.mark.parametrize("labels", [[0, 1, 5], [-1, 0, 0]])
def test_labels_out_of_range_are_refused(labels):
    with pytest.raises(LabelError, match=r"expected labels in \[0, 5\)"):
        linear_log_odds(X, torch.tensor(labels), W)


def test_an_old_triton_is_not_used_and_is_named(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "3.2.0")
    assert _support.installed_triton() == (3, 2)
    monkeypatch.setattr(_support, "_IS_TRITON_USABLE", False)
    assert not is_supported(X, W)
    with pytest.raises(MissingExtraError, match=r"Triton 3\.6 or newer, got 3\.2: pip install"):
        head_statistics(X, LABELS, W)


def test_a_missing_triton_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hardsight\[kernels\]'"):
        head_statistics(X, LABELS, W)


class Kernel:
    """Stands for a kernel of Triton and, once launched, for the compiled one."""

    arg_names = ("matrix", "values", "bias", "rows", "scale", "BLOCK")
    function, packed_metadata = "function", "metadata"

    def __init__(self, launches):
        self.launches = launches

    def __getitem__(self, grid):
        def launch(*args, **constants):
            self.launches.append((grid, args, constants))
            return self

        return launch

    def run(self, *args):
        self.launches.append(args)


@pytest.fixture
def launched(launching, monkeypatch):
    """Launch the same thing twice on a GPU that is not there; what Triton got each time."""
    _run = launching.run
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    monkeypatch.setattr(_run, "_compiled", {})
    device = torch.device("cuda", 0)
    tensor = SimpleNamespace(device=device, dtype=torch.bfloat16, data_ptr=lambda: 4096)
    matrix = SimpleNamespace(base=tensor, block_shape=[64, 64])

    def launch():
        launches = []
        kernel = Kernel(launches)
        for _ in range(2):
            _run.run(kernel, (3,), (tensor, None), (5, 0.5), (matrix,), BLOCK=64, num_warps=4)
        by_name = ((3,), (matrix, tensor, None, 5, 0.5), {"BLOCK": 64, "num_warps": 4})
        again = (3, 1, 1, 7, "function", "metadata", None, None, None, matrix, 4096, 0, 5, 0.5, 64)
        names = {"by name": by_name, "again": again}
        return [
            next((name for name, one in names.items() if one == seen), seen) for seen in launches
        ]

    return launch


def test_a_tried_release_of_triton_is_launched_without_its_look_up(launched, monkeypatch):
    monkeypatch.setattr("hardsight.kernels._run.NATIVE", True)
    assert launched() == ["by name", "again"]


@pytest.mark.parametrize(("numbers", "asked"), [((5, 0.7), 1), ((7, 0.5), 2)])
def test_another_size_is_asked_for_and_another_scale_is_not(
    launched, launching, monkeypatch, numbers, asked
):
    _run = launching.run
    monkeypatch.setattr(_run, "NATIVE", True)
    launched()
    launches = []
    kernel, tensor = (
        Kernel(launches),
        SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32, data_ptr=lambda: 4096),
    )
    for given in ((5, 0.5), numbers):
        _run.run(kernel, (3,), (tensor, tensor, None), given, BLOCK=64)
    assert sum(isinstance(one[0], tuple) for one in launches) == asked


def test_another_release_is_asked_every_time(launched, monkeypatch):
    # an older compiled kernel takes no constants; the interpreter has no compiled kernel at all
    monkeypatch.setattr("hardsight.kernels._run.NATIVE", False)
    assert launched() == ["by name", "by name"]


def test_a_profiler_of_triton_sees_every_launch(launched, monkeypatch):
    import triton

    monkeypatch.setattr("hardsight.kernels._run.NATIVE", True)
    monkeypatch.setattr(triton.knobs.runtime.launch_enter_hook, "calls", [print])
    assert launched() == ["by name", "by name"]


@pytest.mark.parametrize(
    ("version", "hip", "interpret", "native"),
    [
        ("3.6.0", None, "0", True),
        ("3.9.1+git1234", None, "0", True),
        ("3.2.0", None, "0", False),
        ("3.10.0", None, "0", False),
        ("3.6.0", "7.0", "0", False),
        ("3.6.0", None, "1", False),
    ],
)
def test_internals_of_triton_are_used_in_the_releases_tried(
    launching, monkeypatch, version, hip, interpret, native
):
    import triton

    monkeypatch.setattr(triton, "__version__", version)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    assert launching.run.is_native() is native


@pytest.mark.parametrize(
    ("capability", "native", "found"),
    [((9, 0), True, True), ((9, 0), False, False), ((8, 0), True, False), ((10, 0), True, False)],
)
def test_the_hopper_kernels_are_loaded_on_hopper_and_a_tried_triton_alone(
    launching, monkeypatch, capability, native, found
):
    _launch = launching.portable
    monkeypatch.setattr(_launch, "NATIVE", native)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    module = _launch._hopper_module.__wrapped__(torch.device("cuda", 0))
    assert (module is not None) is found
    assert _launch._hopper_module.__wrapped__(torch.device("cpu")) is None


def test_kernels_on_a_gpu_need_the_c_compiler_that_triton_calls(monkeypatch):
    # images for inference have a GPU and Triton, but often no compiler: the plain version runs
    device = torch.device("cuda", 0)
    on_gpu = SimpleNamespace(dtype=X.dtype, device=device, is_cuda=True, numel=lambda: 12)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(_support, "_COMPILER_FOUND", True)
    assert is_supported(on_gpu, on_gpu)
    monkeypatch.setattr(_support, "_COMPILER_FOUND", False)
    assert not is_supported(on_gpu, on_gpu)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert is_supported(X, W)
