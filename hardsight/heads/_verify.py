"""Whether features times weights give the logits."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

# Rounding of the model's dtype, relative to the size of a typical product.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_TF32_TOLERANCE = 1e-2
_MOST_CLASSES = 4096  # compared; a head of a million classes must not be copied to float64
_CLASSES_PER_BATCH = 256  # in every batch; of a wider head, other ones in the next batch


@dataclass(frozen=True)
class LinearForm:
    r"""The way in which a layer's output is linear in its input.

    The logits are :math:`s (x W^\top + b)`, with unit rows of :math:`x` or :math:`W` where
    ``unit_features`` or ``unit_weights`` says so.
    """

    unit_features: bool = False
    unit_weights: bool = False
    use_bias: bool = True
    scale: float = 1.0

    @property
    def plain(self) -> bool:
        """Whether the layer's own weight and bias give the logits."""
        return self == LinearForm()

    def effective(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weight and bias with the normalisation and the scale folded in."""
        if self.plain:
            return weight, bias
        rows = normalize(_wide(weight)).to(weight.dtype) if self.unit_weights else weight
        kept = bias if self.use_bias else None
        return self.scale * rows, None if kept is None else self.scale * kept


_FORMS = (  # the first that fits is taken; a plain layer is never read as anything else
    LinearForm(),
    LinearForm(unit_features=True, unit_weights=True, use_bias=False),
    LinearForm(unit_weights=True, use_bias=False),
    LinearForm(unit_features=True, use_bias=False),
)


def linear_form(
    features: Tensor,
    logits: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    computed_in: torch.dtype | None = None,
    *,
    any_bias: bool = False,
) -> LinearForm | None:
    """The form in which ``weight`` and ``bias`` turn ``features`` into ``logits``, if any.

    A form is tried as it is, then times one positive constant.

    Args:
        features: ``[B, D]``.
        logits: ``[B, C]``.
        weight: ``[C, D]``.
        bias: ``[C]``, or ``None``.
        computed_in: the dtype of the layer's own output, if it is known.
        any_bias: the bias is not known; whatever is the same for all rows may stand for it.
    """
    tolerance = _tolerance(features, logits, weight, computed_in=computed_in)
    every = slice(None, None, math.ceil(len(weight) / _MOST_CLASSES))
    x, z, w = _wide(features), _wide(logits[:, every]), _wide(weight[every])
    b = torch.zeros_like(w[:, 0]) if bias is None else _wide(bias[every])
    for form in _FORMS:
        u = normalize(x) if form.unit_features else x
        v = normalize(w) if form.unit_weights else w
        product = u @ v.T + b * form.use_bias
        target = z
        if any_bias:
            product, target = product - product.mean(dim=0), z - z.mean(dim=0)
        # a product of random vectors is about |u||v| / sqrt(D); its rounding error follows that
        typical = u.norm(dim=1)[:, None] * v.norm(dim=1) / math.sqrt(u.shape[1])
        for scale in (1.0, _fitted_scale(product, target)):
            bound = tolerance * torch.maximum(z.abs(), scale * typical)
            if scale > 0 and bool(((scale * product - target).abs() <= bound).all()):
                return LinearForm(form.unit_features, form.unit_weights, form.use_bias, scale)
    return None


@torch.no_grad()
def differing_rows(
    features: Tensor,
    logits: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    computed_in: torch.dtype | None = None,
    turn: int = 0,
    most_classes: int = _CLASSES_PER_BATCH,
    any_bias: bool = False,
    any_scale: bool = False,
) -> Tensor:
    r"""Which rows of a batch break :math:`x W^\top + b = z`; nothing waits for the device.

    Every row is looked at. A row of NaN or infinities breaks nothing: a table lists such rows by
    themselves.

    Args:
        features: ``[B, D]``.
        logits: ``[B, C]``.
        weight: ``[C, D]``.
        bias: ``[C]``, or ``None``.
        computed_in: the dtype of the layer's own output, coarser than the others under autocast.
        turn: number of the batch; of many classes each batch looks at other ones.
        most_classes: how many are looked at.
        any_bias: the bias is not known; whatever is the same for all rows may stand for it.
        any_scale: the same for one positive constant.

    Returns:
        ``[B]``, boolean, on the device of the features.
    """
    some = _some_classes(len(weight), turn, most_classes)
    device = features.device
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    allowed = _tolerance(features, logits, weight, computed_in=computed_in)
    with torch.autocast(device.type, enabled=False):
        x, w = features.to(dtype), weight[some].to(device, dtype)
        b = None if bias is None else bias[some].to(device, dtype)
        z = logits[:, some].to(device)
        product = x @ w.T if b is None else torch.addmm(b, x, w.T)
        norms = x.norm(dim=1)
        # rounding follows the size of a typical product, and of the bias that it may cancel
        size = torch.outer(norms, w.norm(dim=1) / math.sqrt(x.shape[1]))
        size = torch.maximum(size, product.abs())
        size = size if b is None else torch.maximum(size, b.abs())
        is_finite = torch.logical_and(norms < math.inf, _has_numbers(z))
        if any_bias or any_scale:
            product, z, size = _fitted_to(
                product, z.to(dtype), size, is_finite, any_bias=any_bias, any_scale=any_scale
            )
        return torch.logical_and(_differ(product, z, allowed * size), is_finite)


def _fitted_to(
    product: Tensor,
    logits: Tensor,
    size: Tensor,
    rows: Tensor,
    *,
    any_bias: bool,
    any_scale: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Product, logits and their size without a bias or a scale that is not known."""
    p, z = (torch.where(rows[:, None], part, 0) for part in (product, logits))
    if any_bias:
        size = torch.maximum(size, z.abs())
        count = rows.sum().clamp_min(1)
        p, z = p - p.sum(dim=0) / count, z - z.sum(dim=0) / count
    if any_scale:
        kept = [torch.where(rows[:, None], part, 0) for part in (p, z)]
        energy = (kept[0] * kept[0]).sum().clamp_min(torch.finfo(p.dtype).tiny)
        scale = ((kept[0] * kept[1]).sum() / energy).clamp_min(0)
        p, size = scale * p, scale * size
        size = torch.maximum(size, z.abs()) if any_bias else size
    return p, z, size


@torch.no_grad()
def differing_outputs(outputs: Tensor, logits: Tensor, *, scaled: bool, turn: int = 0) -> Tensor:
    """Which rows of the logits are not what the head's layer made; nothing waits for the device.

    For weights in training: they may be spread over processes, or change before they are read.

    Args:
        outputs: of the layer, ``[B, C]``.
        logits: of the model, ``[B, C]``.
        scaled: allow one positive constant after the layer, which may be trained too.
        turn: number of the batch; of many classes each batch looks at other ones.

    Returns:
        ``[B]``, boolean, on the device of the outputs.
    """
    some = _some_classes(outputs.shape[1], turn)
    dtype = torch.float64 if outputs.dtype == torch.float64 else torch.float32
    made, z = outputs[:, some].to(dtype), logits[:, some].to(outputs.device)
    is_finite = torch.logical_and(made.abs().amax(dim=1) < math.inf, _has_numbers(z))
    size = torch.maximum(made.abs(), made.abs().mean(dim=1, keepdim=True))
    if scaled:
        made, z, size = _fitted_to(
            made, z.to(dtype), size, is_finite, any_bias=False, any_scale=True
        )
    return torch.logical_and(_differ(made, z, _tolerance(outputs, logits) * size), is_finite)


def _some_classes(count: int, turn: int, most: int = _CLASSES_PER_BATCH) -> slice:
    step = math.ceil(count / most)
    return slice(turn % step, None, step)


def _has_numbers(logits: Tensor) -> Tensor:
    """Rows ``[B]`` without NaN and positive infinity, which a table marks as not finite."""
    return logits.amax(dim=1) < math.inf


def _differ(expected: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
    """Rows ``[B]`` in which a logit is further from the expected one than allowed."""
    z = logits.to(expected.dtype)
    if logits.dtype == torch.float16:  # overflows where float32 does not
        most = torch.finfo(torch.float16).max
        expected, z = expected.clamp(-most, most), z.clamp(-most, most)
    return ~((expected - z).abs() <= allowed).all(dim=1)


def activation_between(
    features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor | None
) -> str | None:
    """The function that turns the layer's output into what the model returns, if it is a usual one.

    Returns:
        ``"softmax"``, ``"log_softmax"`` or ``"sigmoid"``, or ``None``.
    """
    product = _wide(features) @ _wide(weight).T
    product = product if bias is None else product + _wide(bias)
    usual = {
        "softmax": product.softmax(dim=1),
        "log_softmax": log_softmax(product, dim=1),
        "sigmoid": product.sigmoid(),
    }
    tolerance = _tolerance(features, logits, weight)
    return next((name for name, z in usual.items() if agree(z, logits, tolerance)), None)


def agree(expected: Tensor, logits: Tensor, tolerance: float | None = None) -> bool:
    """Whether two versions of the same output differ by no more than rounding.

    Args:
        expected: of any shape.
        logits: of the same shape, else they do not agree.
        tolerance: as a share of the largest value; that of the coarser dtype by default.

    Example:
        >>> agree(torch.tensor([100.0, 1.0]), torch.tensor([100.0, 1.001]))
        True
    """
    if expected.shape != logits.shape:
        return False
    tolerance = _tolerance(expected, logits) if tolerance is None else tolerance
    expected, logits = _wide(expected), _wide(logits)
    return bool(((expected - logits).abs() <= tolerance * expected.abs().max()).all())


def _fitted_scale(product: Tensor, logits: Tensor) -> float:
    """Least-squares factor from product to logits; 0 where too few values could tell."""
    energy = float((product * product).sum())
    if product.numel() < 4 or energy == 0:
        return 0.0
    return float((product * logits).sum()) / energy


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in float64, or in float32 where the device has nothing wider."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def _tolerance(*tensors: Tensor, computed_in: torch.dtype | None = None) -> float:
    dtypes = [tensor.dtype for tensor in tensors] + ([] if computed_in is None else [computed_in])
    coarsest = max(_TOLERANCE.get(dtype, _TOLERANCE[torch.bfloat16]) for dtype in dtypes)
    exact = torch.get_float32_matmul_precision() == "highest" and all(
        tensor.device.type == "cpu" for tensor in tensors
    )
    if exact or coarsest < _TOLERANCE[torch.float32]:
        return coarsest
    return max(coarsest, _TF32_TOLERANCE)
