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
        rows = normalize(weight.float()).to(weight.dtype) if self.unit_weights else weight
        kept = bias if self.use_bias else None
        return self.scale * rows, None if kept is None else self.scale * kept


_FORMS = (  # the first that fits is taken; a plain layer is never read as anything else
    LinearForm(),
    LinearForm(unit_features=True, unit_weights=True, use_bias=False),
    LinearForm(unit_weights=True, use_bias=False),
    LinearForm(unit_features=True, use_bias=False),
)


def linear_form(
    features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor | None
) -> LinearForm | None:
    """The form in which ``weight`` and ``bias`` turn ``features`` into ``logits``, if any.

    A form is tried as it is, then times one positive constant.

    Args:
        features: ``[B, D]``.
        logits: ``[B, C]``.
        weight: ``[C, D]``.
        bias: ``[C]``, or ``None``.
    """
    tolerance = _tolerance(features, logits, weight)
    every = slice(None, None, math.ceil(len(weight) / _MOST_CLASSES))
    x, z, w = _wide(features), _wide(logits[:, every]), _wide(weight[every])
    b = torch.zeros_like(w[:, 0]) if bias is None else _wide(bias[every])
    for form in _FORMS:
        u = normalize(x) if form.unit_features else x
        v = normalize(w) if form.unit_weights else w
        product = u @ v.T + b * form.use_bias
        # a product of random vectors is about |u||v| / sqrt(D); its rounding error follows that
        typical = u.norm(dim=1)[:, None] * v.norm(dim=1) / math.sqrt(u.shape[1])
        for scale in (1.0, _fitted_scale(product, z)):
            bound = tolerance * torch.maximum(z.abs(), scale * typical)
            if scale > 0 and bool(((scale * product - z).abs() <= bound).all()):
                return LinearForm(form.unit_features, form.unit_weights, form.use_bias, scale)
    return None


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
    """Whether two versions of the same output differ by no more than rounding."""
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


def _tolerance(*tensors: Tensor) -> float:
    coarsest = max(_TOLERANCE.get(tensor.dtype, _TOLERANCE[torch.bfloat16]) for tensor in tensors)
    exact = torch.get_float32_matmul_precision() == "highest" and all(
        tensor.device.type == "cpu" for tensor in tensors
    )
    if exact or coarsest < _TOLERANCE[torch.float32]:
        return coarsest
    return max(coarsest, _TF32_TOLERANCE)
