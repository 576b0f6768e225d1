"""The fused kernels run here on the CPU, through Triton's interpreter."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import hardsight.kernels
from hardsight.kernels._support import require_triton

_TRITON_SIDE = ("_math", "_portable", "_launch", "_run", "_hopper", "_hopper_launch")


@pytest.fixture(scope="package", autouse=True)
def interpreted():
    """Load Triton and the kernels as interpreted ones for these tests alone.

    Triton decides when a module of it, or of ours, is imported; so both are imported anew, and what
    was there before comes back afterwards.
    """
    require_triton()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_triton(name)}
        for name in _TRITON_SIDE:
            patch.delattr(hardsight.kernels, name, raising=False)
        _prepare_once_per_launch(patch)
        _leave_out_idle_work(patch)
        yield
        for name in [name for name in sys.modules if _is_triton(name)]:
            del sys.modules[name]
        for name in _TRITON_SIDE:
            vars(hardsight.kernels).pop(name, None)
        sys.modules.update(before)


def _prepare_once_per_launch(patch: pytest.MonkeyPatch) -> None:
    """Keep the interpreter from preparing its language again in every call of a helper function.

    It replaces some 200 functions of ``triton.language`` before a kernel runs, and the same ones
    again before each helper of that kernel: a third of the time of these tests.
    """
    from triton.runtime import interpreter

    prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    prepared: set[int] = set()  # modules whose functions can run, by their global names

    def once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in prepared:
            return None
        prepared.add(module)
        return prepare(function)

    def launched(self: Any, *args: Any, **options: Any) -> Any:
        prepared.clear()  # the language is put back when a kernel has run
        return launch(self, *args, **options)

    patch.setattr(interpreter, "_patch_lang", once)
    patch.setattr(interpreter.GridExecutor, "__call__", launched)


def _leave_out_idle_work(patch: pytest.MonkeyPatch) -> None:
    """Keep the interpreter from two things that take a third of the time of these tests.

    For every index it works out whether the sum overflows, and then asserts nothing, since it is
    not in its debug mode. For every value it makes the table of NumPy's types again.
    """
    from triton.runtime import interpreter

    options, type_of, known = interpreter.interpreter_builder.options, interpreter._get_np_dtype, {}
    assert not options.debug  # in which it would assert
    quick = dataclasses.replace(options, sanitize_overflow=False)

    def type_by_name(kind: Any) -> Any:
        if kind.name not in known:
            known[kind.name] = type_of(kind)
        return known[kind.name]

    patch.setattr(interpreter.interpreter_builder, "options", quick)
    patch.setattr(interpreter, "_get_np_dtype", type_by_name)


def _is_triton(module: str) -> bool:
    ours = module.startswith("hardsight.kernels.") and module.endswith(_TRITON_SIDE)
    # its extension module cannot be loaded twice
    theirs = module.split(".")[0] == "triton" and not module.startswith("triton._C")
    return ours or theirs


@pytest.fixture
def launching():
    """The files that prepare and launch kernels, as Triton's interpreter has loaded them."""
    from hardsight.kernels import _hopper_launch, _launch, _run

    return SimpleNamespace(hopper=_hopper_launch, portable=_launch, run=_run)


class Head:
    """Random embeddings, labels and a head, and the same in float64."""

    def __init__(self, rows: int, width: int, classes: int, dtype: torch.dtype, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.embeddings = normal(rows, width).to(dtype)
        self.class_weights = normal(classes, width).to(dtype)
        self.bias = normal(classes)
        self.labels = torch.randint(classes, (rows,), generator=generator)
        self.weights = normal(rows)  # of the examples in a sum of losses
        self.own = torch.nn.functional.one_hot(self.labels, classes).bool()

    def angles(self) -> Tensor:
        return float64_angles(self.embeddings.double(), self.class_weights.double())

    def logits(self) -> Tensor:
        return self.embeddings.double() @ self.class_weights.double().T + self.bias


def float64_angles(embeddings: Tensor, class_weights: Tensor) -> Tensor:
    """Angles by the chord formula in float64, all pairs at once."""
    u = embeddings / embeddings.norm(dim=1, keepdim=True)
    v = class_weights / class_weights.norm(dim=1, keepdim=True)
    apart = (u[:, None] - v[None]).norm(dim=2)
    together = (u[:, None] + v[None]).norm(dim=2)
    return 2 * torch.atan2(apart, together)


@pytest.fixture(name="make_head")
def _make_head():
    return Head


@pytest.fixture(name="angles64")
def _angles64():
    return float64_angles


SIZES = [
    pytest.param(5, 7, 3, id="smaller-than-a-block"),
    pytest.param(33, 17, 65, id="one-over-the-blocks"),
    pytest.param(64, 32, 96, id="whole-blocks"),
    pytest.param(1, 16, 200, id="one-example-many-classes"),
]


def pytest_generate_tests(metafunc):
    """Sizes and dtypes for every test that takes them."""
    if "rows" in metafunc.fixturenames:
        metafunc.parametrize(("rows", "width", "classes"), SIZES)
    if "dtype" in metafunc.fixturenames:
        dtypes = [torch.float32, torch.bfloat16, torch.float16]
        metafunc.parametrize("dtype", dtypes, ids=["float32", "bfloat16", "float16"])


def pytest_collection_modifyitems(items):
    """The interpreter is NumPy, which warns of infinities that a GPU takes in its stride."""
    ignore = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(ignore)
