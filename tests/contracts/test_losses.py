"""What every registered loss must hold to, whatever it computes."""

import ast
import inspect
from pathlib import Path

import pytest
import torch

import hardsight.losses
from hardsight.errors import TensorError
from hardsight.registry import LOSSES

# losses whose options change what is computed are held to the same, one by one
VARIANTS = {
    f"{name}, {option} {value}": (name, {option: value})
    for option, value, names in (
        ("pairs", "hard", ("amc", "euclidean_contrastive")),
        ("pairs", "semi_hard", ("amc", "euclidean_contrastive")),
        ("triplets", "semi_hard", ("angular_triplet",)),
    )
    for name in names
}
NAMES = sorted({*LOSSES, *VARIANTS})
OWNED = ("class_weights", "bias")  # what a module may hold instead of taking
REQUIRED = {"scale": 3.0}
PAIRWISE = ("amc", "euclidean_contrastive")


def spec_of(name):
    return LOSSES[VARIANTS[name][0] if name in VARIANTS else name]


def inputs_of(name, rows=6, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    tensors = {
        "embeddings": randn(rows, 5),
        "logits": randn(rows, 4),
        "labels": torch.randint(0, 4, (rows,), generator=generator),
        "class_weights": randn(4, 5),
        "bias": randn(4),
    }
    return [tensors[key] for key in spec_of(name).inputs]


def options_of(name):
    parameters = inspect.signature(spec_of(name).function).parameters
    needed = {key: value for key, value in REQUIRED.items() if key in parameters}
    return needed | VARIANTS.get(name, ("", {}))[1]


def keyword_only(callable_):
    return {
        parameter.name: (parameter.default, parameter.annotation)
        for parameter in inspect.signature(callable_).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def positional(callable_):
    return [
        parameter.name
        for parameter in inspect.signature(callable_).parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]


def floating(tensors):
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def value_and_grads(name, tensors, **options):
    leaves = [
        tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor
        for tensor in tensors
    ]
    value = spec_of(name).function(*leaves, **options_of(name), **options)
    grads = torch.autograd.grad(value.sum(), floating(leaves), allow_unused=True)
    return value, [grad for grad in grads if grad is not None]


def test_every_loss_of_the_package_is_registered():
    functions = {spec.function.__name__ for spec in LOSSES.values()}
    public = {name for name in vars(hardsight.losses) if name.endswith("_loss")} - {"reduce_loss"}
    assert public <= functions
    assert {spec.module.__name__ for spec in LOSSES.values()} <= set(vars(hardsight.losses))


def unexported_files(folder):
    """Files that define a public function or class, none of which ``__init__`` lists."""
    listed = ast.parse((folder / "__init__.py").read_text())
    modules = {
        node.module.rsplit(".", 1)[-1]
        for node in ast.walk(listed)
        if isinstance(node, ast.ImportFrom)
    }
    registering = {
        path.stem
        for path in folder.glob("_*.py")
        if path.stem != "__init__" and "@loss(" in path.read_text()
    }
    return registering - modules


def test_every_file_with_a_loss_has_its_line_in_the_public_list(tmp_path):
    assert unexported_files(Path(hardsight.losses.__file__).parent) == set()
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "_new.py").write_text('@loss("new", function=f, inputs=())\nclass New: ...\n')
    assert unexported_files(tmp_path) == {"_new"}


@pytest.mark.parametrize("name", NAMES)
def test_module_and_function_have_the_same_options_and_tensors(name):
    spec = spec_of(name)
    module_options = keyword_only(spec.module.__init__)
    for placement in ("device", "dtype"):
        module_options.pop(placement, None)
    assert module_options == keyword_only(spec.function)
    assert positional(spec.function) == list(spec.inputs)
    taken = [key for key in spec.inputs if key not in OWNED]
    assert positional(spec.module.forward) == ["self", *taken]


@pytest.mark.parametrize("name", NAMES)
def test_module_computes_what_its_function_does(name):
    spec = spec_of(name)
    tensors = dict(zip(spec.inputs, inputs_of(name), strict=True))
    owned = [key for key in spec.inputs if key in OWNED]
    module = spec.module(*((4, 5) if owned else ()), reduction="none", **options_of(name))
    with torch.no_grad():
        for key in owned:
            getattr(module, key).copy_(tensors[key])
    got = module(*(tensors[key] for key in spec.inputs if key not in owned))
    expected = spec.function(*tensors.values(), reduction="none", **options_of(name))
    torch.testing.assert_close(got, expected)
    assert "reduction='none'" in repr(module)


@pytest.mark.parametrize("name", NAMES)
def test_module_state_round_trips(name, tmp_path):
    spec = spec_of(name)
    shape = (4, 5) if set(OWNED) & set(spec.inputs) else ()
    options = options_of(name)
    if "weight" in keyword_only(spec.function):
        options["weight"] = torch.arange(1.0, 5.0)
    first, second = spec.module(*shape, **options), spec.module(*shape, **options)
    assert ("weight" in first.state_dict()) == ("weight" in options)  # so it moves with .to()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    taken = [
        tensor for key, tensor in zip(spec.inputs, inputs_of(name), strict=True) if key not in OWNED
    ]
    torch.testing.assert_close(first(*taken), second(*taken))


@pytest.mark.parametrize("name", NAMES)
def test_reductions_agree(name):
    values, _ = value_and_grads(name, inputs_of(name), reduction="none")
    is_mined = "pairs" in options_of(name)
    assert values.shape == ((12,) if is_mined else (3,) if name in PAIRWISE else (6,))
    # every example of the batch takes part, except those without a partner of their class
    missing = 0
    if is_mined or "triplet" in name:
        labels = inputs_of(name)[1]
        missing = int(((labels[:, None] == labels).sum(dim=1) == 1).sum())
    mean = values.sum() / (len(values) - missing)
    for reduction, expected in (("sum", values.sum()), ("mean", mean)):
        got, _ = value_and_grads(name, inputs_of(name), reduction=reduction)
        assert got.shape == ()
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_maths_is_float32_or_wider_and_gradients_keep_the_dtype(name, dtype):
    tensors = inputs_of(name, dtype=dtype)
    value, grads = value_and_grads(name, tensors)
    assert value.dtype == torch.promote_types(dtype, torch.float32)
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    exact, exact_grads = value_and_grads(name, wide)
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-6)
    rounding = 4 * torch.finfo(dtype).eps
    for grad, exact_grad in zip(grads, exact_grads, strict=True):
        assert grad.dtype == dtype
        torch.testing.assert_close(
            grad.double(), exact_grad, rtol=max(rounding, 1e-5), atol=max(rounding, 1e-6)
        )


@pytest.mark.parametrize("name", NAMES)
def test_gradients_pass_gradcheck(name):
    tensors = [
        t.requires_grad_() if t.is_floating_point() else t
        for t in inputs_of(name, rows=4, dtype=torch.float64)
    ]
    assert torch.autograd.gradcheck(
        lambda *args: spec_of(name).function(*args, **options_of(name)), tensors
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_one_is_finite(name):
    value, grads = value_and_grads(name, inputs_of(name, rows=1))
    assert torch.isfinite(value)
    assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_zero_equal_and_huge_inputs_have_finite_gradients(name, dtype):
    huge = torch.finfo(torch.float16).max / 8
    for fill in (0.0, 1.0, 1e-4, huge if "logits" in spec_of(name).inputs[:1] else 100.0):
        tensors = [
            torch.full_like(t, fill) if t.is_floating_point() else t
            for t in inputs_of(name, dtype=dtype)
        ]
        value, grads = value_and_grads(name, tensors)
        assert torch.isfinite(value)
        assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("name", NAMES)
def test_calls_repeat_and_leave_their_inputs_alone(name):
    tensors = inputs_of(name)
    before = [tensor.clone() for tensor in tensors]
    first, second = (value_and_grads(name, tensors) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(tensors, before, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_is_nan_for_the_mean_and_0_for_the_sum(name):
    assert torch.isnan(value_and_grads(name, inputs_of(name, rows=0))[0])
    assert value_and_grads(name, inputs_of(name, rows=0), reduction="sum")[0] == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_reduction_names_the_known_ones(name):
    with pytest.raises(ValueError, match="one of 'mean', 'sum', 'none', got 'avg'"):
        value_and_grads(name, inputs_of(name), reduction="avg")


@pytest.mark.parametrize("name", NAMES)
def test_check_finite_names_a_planted_nan(name):
    tensors = inputs_of(name)
    tensors[0][5] = float("nan")
    with pytest.raises(ArithmeticError, match=r"positions (5|\(2, 5\)|\(5, 5\), \(5, 5\));"):
        value_and_grads(name, tensors, check_finite=True)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_does_not_round_the_maths(name):
    tensors = inputs_of(name)
    if name.startswith("linear_"):  # as a linear layer does, they round what they are given
        tensors[0], tensors[2] = (tensors[i].bfloat16().to(tensors[i].dtype) for i in (0, 2))
    expected, _ = value_and_grads(name, tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, _ = value_and_grads(name, tensors)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_vmap_over_batches_equals_a_loop(name):
    batches = [inputs_of(name, seed=seed) for seed in range(3)]

    def loss(*tensors):
        return spec_of(name).function(*tensors, **options_of(name))

    stacked = [torch.stack(column) for column in zip(*batches, strict=True)]
    expected = torch.stack([loss(*batch) for batch in batches])
    torch.testing.assert_close(torch.func.vmap(loss)(*stacked), expected)


@pytest.mark.parametrize("name", NAMES)
def test_functional_gradients_equal_autograds(name):
    tensors = inputs_of(name)

    def loss(first):
        return spec_of(name).function(first, *tensors[1:], **options_of(name))

    _, grads = value_and_grads(name, tensors)
    torch.testing.assert_close(torch.func.grad(loss)(tensors[0]), grads[0])
    per_batch = torch.func.vmap(torch.func.grad(loss))(torch.stack([tensors[0]] * 2))
    torch.testing.assert_close(per_batch[1], grads[0])


@pytest.mark.parametrize("name", NAMES)
def test_compiled_in_one_graph_gives_the_same_values_and_gradients(name):
    tensors = inputs_of(name)

    def loss(*args):
        return spec_of(name).function(*args, **options_of(name))

    torch.compiler.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in tensors]
    value = compiled(*leaves)
    expected, grads = value_and_grads(name, tensors)
    torch.testing.assert_close(value, expected)
    got = torch.autograd.grad(value, floating(leaves), allow_unused=True)
    torch.testing.assert_close([grad for grad in got if grad is not None], grads)


@pytest.mark.parametrize("name", NAMES)
def test_an_array_in_place_of_a_tensor_is_named(name):
    for position, tensor in enumerate(inputs_of(name)):
        given = list(inputs_of(name))
        given[position] = tensor.numpy()
        argument = spec_of(name).inputs[position]
        options = options_of(name)
        if argument == "logits" and spec_of(name).name in PAIRWISE:  # else they are not looked at
            options["similarity"] = "predictions"
        with pytest.raises(TensorError, match=f"expected {argument} to be a torch.Tensor, got nd"):
            spec_of(name).function(*given, **options)
