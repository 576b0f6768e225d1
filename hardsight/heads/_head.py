"""The classifier head, and the check that features times its weights give the logits."""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from hardsight._checks import check_matrix
from hardsight.errors import ShapeError

Which = int | str  # a part of a model's output: its position, key or attribute
Position = Literal["mean", "first", "last", "own"]
Side = Literal["input", "output"]
# Rounding of the model's dtype, relative to the size of a typical product.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_TF32_TOLERANCE = 1e-2
_MOST_CLASSES = 4096  # compared at most, so that a million classes are not copied to float64
_CLASSES_PER_BATCH = 256  # checked in every batch; in the next batch other classes


@dataclass(frozen=True)
class LinearForm:
    r"""The form in which a layer's output is linear in its input.

    The logits are :math:`s (x W^\top + b)`, where rows of :math:`x` or :math:`W` are unit vectors
    if ``unit_features`` or ``unit_weights`` is true.

    Attributes:
        unit_features: the layer divides its input by its norm.
        unit_weights: the layer divides each row of its weight by its norm.
        use_bias: the layer adds its bias.
        scale: :math:`s`.
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
        # in float64, since a rounded norm would change the row's direction
        rows = normalize(_wide(weight)).to(weight.dtype) if self.unit_weights else weight
        kept = bias if self.use_bias else None
        return self.scale * rows, None if kept is None else self.scale * kept


_FORMS = (  # the first that fits is taken, the plain form before all others
    LinearForm(),
    LinearForm(unit_features=True, unit_weights=True, use_bias=False),
    LinearForm(unit_weights=True, use_bias=False),
    LinearForm(unit_features=True, use_bias=False),
)


@dataclass(frozen=True)
class Reading:
    """How to read embeddings and logits from a forward pass.

    Attributes:
        module: the name of the module at which embeddings are read.
        side: whether they are its input or its output.
        call: which call of the module to read, if the module is used more than once.
        position: what to take from a map or a row of tokens; ``own`` is the token whose output is
            the example's logits. A ``[B, D]`` tensor has only one position.
        form: how the logits follow from the embeddings; a head that normalises its input has unit
            vectors as embeddings.
        output: which part of the model's output holds the logits; ``None`` for a bare tensor.
    """

    module: str = ""
    side: Side = "input"
    call: int = 0
    position: Position = "mean"
    form: LinearForm = field(default_factory=LinearForm)
    output: Which | None = None

    def where(self, outputs: Tensor | None, logits: Tensor) -> Position | Tensor:
        """The position to read in a batch; a position per example, ``[B]``, if they differ.

        Args:
            outputs: of the head's layer for each token, ``[B, P, C]``.
            logits: of the model, ``[B, C]``.
        """
        if outputs is None or outputs.shape[1] == 1 or self.position == "mean":
            return self.position
        own = own_positions(outputs, logits, otherwise=self.position)
        return self.position if own is None else own

    def embeddings(self, tokens: Tensor, where: Position | Tensor) -> Tensor:
        """Embeddings ``[B, D]`` from what was read, ``[B, P, D]``."""
        features = at_position(tokens, where)
        if not self.form.unit_features:
            return features
        # in float32, since a unit vector in half precision would be rounded twice
        return normalize(features.float() if features.itemsize < 4 else features)


def at_position(tokens: Tensor, where: Position | Tensor) -> Tensor:
    """Features ``[B, D]`` at one position of ``[B, P, D]``, or their mean over all positions."""
    if tokens.shape[1] == 1:
        return tokens[:, 0]
    if isinstance(where, Tensor):
        return tokens.take_along_dim(where[:, None, None], dim=1)[:, 0]
    if where == "mean":
        return tokens.mean(dim=1)
    return tokens[:, 0 if where == "first" else -1]


def own_positions(outputs: Tensor, logits: Tensor, *, otherwise: Position) -> Tensor | None:
    """For each example the token whose output is its logits, ``[B]``.

    A language model that classifies takes the last token that is not padding, which differs from
    row to row. It picks the logits out of the layer's output, so they are equal to the last bit.

    Args:
        outputs: of the head's layer, ``[B, P, C]``.
        logits: of the model, ``[B, C]``.
        otherwise: the preferred position, which is also used if no output equals the logits.

    Returns:
        ``None`` if outputs and logits are not of the same size.
    """
    if (len(outputs), outputs.shape[2]) != logits.shape:
        return None
    # exact equality, since the logits are a copy of the layer's output for that token
    is_own = (outputs.to(logits.dtype) == logits[:, None]).all(dim=2)
    # if several tokens are equal, prefer the usual one, as in a batch without padding
    usual = 0 if otherwise == "first" else outputs.shape[1] - 1
    at = is_own.int().argmax(dim=1)  # the first one that is equal
    return torch.where(is_own[:, usual] | ~is_own.any(dim=1), usual, at)


@dataclass(frozen=True, eq=False)
class Head:
    r"""The linear map from embeddings to logits.

    .. math:: \mathrm{logits} = \mathrm{embeddings} \cdot W^\top + b

    A head holds no module, so it can be pickled, and used with a copy or a wrapper of its model.

    Attributes:
        name: the path of the layer, or of the bare parameter, in its model, such as ``"fc"`` or
            ``"classifier.6"``.
        weight: ``[C, D]``, one row per class, detached. Of a plain layer it shares the memory of
            the parameter and follows training; an effective weight (weight norm, spectral norm,
            cosine, a scale after the layer) is a copy, so find the head again after training.
        bias: ``[C]``, or ``None``. In a Head made by the user, ``None`` means the layer's own.

    Raises:
        ShapeError: the weight is not a floating-point matrix, or the bias has another length.

    Example:
        >>> import torch
        >>> Head(name="stored", weight=torch.eye(3)).num_classes
        3
    """

    name: str
    weight: Tensor
    bias: Tensor | None = None
    reading: Reading | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_matrix(weight=self.weight)
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ShapeError(
                "expected weight [C, D] and bias [C], got "
                f"weight {list(self.weight.shape)}, bias {list(self.bias.shape)}"
            )

    def __repr__(self) -> str:
        classes, width = self.weight.shape
        bias = "no bias" if self.bias is None else "bias"
        return f"Head({self.name!r}, {classes} classes, width {width}, {bias})"

    @property
    def num_classes(self) -> int:
        """Number of classes, ``C``."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """Width of the embeddings, ``D``."""
        return self.weight.shape[1]


def decided_by_bias(logits: Tensor, head: Head) -> Tensor:
    r"""Whether each example would get another prediction if the head had no bias.

    .. math:: \arg\max_c (w_c^\top x + b_c) \ne \arg\max_c w_c^\top x

    Angular scores ignore the bias. The share of examples for which this is true shows how often
    they may disagree with the model for that reason alone; sum it over batches for a whole run.

    Args:
        logits: ``[N, C]``, as the head gives them.
        head: that has the bias.

    Returns:
        ``[N]``, boolean; all false if there is no bias, or the same bias for every class.

    Raises:
        ShapeError: ``logits`` has no column for each class of the head.

    Example:
        >>> head = Head(name="fc", weight=torch.eye(2), bias=torch.tensor([5.0, 0.0]))
        >>> decided_by_bias(torch.tensor([[6.0, 3.0], [9.0, 1.0]]), head)
        tensor([ True, False])
    """
    check_matrix(logits=logits)
    if logits.shape[1] != head.num_classes:
        raise ShapeError(
            f"expected logits [N, C] for {head.num_classes} classes, got {list(logits.shape)}"
        )
    if head.bias is None:
        return torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    # in half precision, a small bias could vanish in rounding
    wide = torch.promote_types(logits.dtype, torch.float32)
    without_bias = logits.to(wide) - head.bias.to(logits.device, wide)
    return logits.argmax(dim=1) != without_bias.argmax(dim=1)


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

    Each form is tried as it is, then with a positive constant factor.

    Args:
        features: ``[B, D]``.
        logits: ``[B, C]``.
        weight: ``[C, D]``.
        bias: ``[C]``, or ``None``.
        computed_in: the dtype of the layer's own output, if it is known.
        any_bias: the bias is not known; what is the same for all rows may stand for it.
    """
    tolerance = _tolerance(features, logits, weight, computed_in=computed_in)
    # evenly spaced classes are enough: a wrong head is wrong in most of its rows
    every = slice(None, None, math.ceil(len(weight) / _MOST_CLASSES))
    x, z, w = _wide(features), _wide(logits[:, every]), _wide(weight[every])
    b = torch.zeros_like(w[:, 0]) if bias is None else _wide(bias[every])
    for form in _FORMS:
        u = normalize(x) if form.unit_features else x
        v = normalize(w) if form.unit_weights else w
        product = u @ v.T + b * form.use_bias
        target = z
        # differences from the mean over the batch do not depend on an unknown bias
        if any_bias:
            product, target = product - product.mean(dim=0), z - z.mean(dim=0)
        # a product of random vectors is about |u||v| / sqrt(D); its rounding error follows that
        typical = u.norm(dim=1)[:, None] * v.norm(dim=1) / math.sqrt(u.shape[1])
        # 1 first: fit a scale only if the plain product does not give the logits
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

    Every row is checked. Rows with NaN or infinities do not count as broken, since a table marks
    them separately.

    Args:
        features: ``[B, D]``.
        logits: ``[B, C]``.
        weight: ``[C, D]``.
        bias: ``[C]``, or ``None``.
        computed_in: the dtype of the layer's own output, coarser than the others under autocast.
        turn: number of the batch; of many classes each batch looks at other ones.
        most_classes: how many classes to check.
        any_bias: the bias is not known; what is the same for all rows may stand for it.
        any_scale: whether a positive constant factor is unknown as well.

    Returns:
        ``[B]``, boolean, on the device of the features.
    """
    # other classes each time, so that a pass checks all of them
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
        # rounding errors grow with a typical product, and with the bias that it may cancel
        size = torch.outer(norms, w.norm(dim=1) / math.sqrt(x.shape[1]))
        size = torch.maximum(size, product.abs())
        size = size if b is None else torch.maximum(size, b.abs())
        # rows that are not finite are reported elsewhere; here they would look like a wrong head
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
    """Product, logits and their size, with an unknown bias or scale removed."""
    p, z = (torch.where(rows[:, None], part, 0) for part in (product, logits))
    if any_bias:
        size = torch.maximum(size, z.abs())
        # rows that are not finite must not enter the means
        count = rows.sum().clamp_min(1)
        p, z = p - p.sum(dim=0) / count, z - z.sum(dim=0) / count
    if any_scale:
        kept = [torch.where(rows[:, None], part, 0) for part in (p, z)]
        energy = (kept[0] * kept[0]).sum().clamp_min(torch.finfo(p.dtype).tiny)
        # a negative factor would reverse the order of the classes
        scale = ((kept[0] * kept[1]).sum() / energy).clamp_min(0)
        p, size = scale * p, scale * size
        size = torch.maximum(size, z.abs()) if any_bias else size
    return p, z, size


@torch.no_grad()
def differing_outputs(outputs: Tensor, logits: Tensor, *, scaled: bool, turn: int = 0) -> Tensor:
    """Which rows of the logits differ from the head's output; nothing waits for the device.

    It is for weights in training, which may be sharded over processes, or change before they are
    read.

    Args:
        outputs: of the layer, ``[B, C]``.
        logits: of the model, ``[B, C]``.
        scaled: whether a positive constant, possibly trained, may follow the layer.
        turn: number of the batch; of many classes each batch looks at other ones.

    Returns:
        ``[B]``, boolean, on the device of the outputs.
    """
    some = _some_classes(outputs.shape[1], turn)
    dtype = torch.float64 if outputs.dtype == torch.float64 else torch.float32
    made, z = outputs[:, some].to(dtype), logits[:, some].to(outputs.device)
    is_finite = torch.logical_and(made.abs().amax(dim=1) < math.inf, _has_numbers(z))
    # a logit near 0 may be a sum of large products that cancel, with their rounding errors
    size = torch.maximum(made.abs(), made.abs().mean(dim=1, keepdim=True))
    if scaled:
        made, z, size = _fitted_to(
            made, z.to(dtype), size, is_finite, any_bias=False, any_scale=True
        )
    return torch.logical_and(_differ(made, z, _tolerance(outputs, logits) * size), is_finite)


def _some_classes(count: int, turn: int, most: int = _CLASSES_PER_BATCH) -> slice:
    # evenly spaced classes, with another first class in every batch
    step = math.ceil(count / most)
    return slice(turn % step, None, step)


def _has_numbers(logits: Tensor) -> Tensor:
    """Rows ``[B]`` without NaN and positive infinity, which a table marks as not finite."""
    return logits.amax(dim=1) < math.inf


def _differ(expected: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
    """Rows ``[B]`` in which a logit is further from the expected one than allowed."""
    z = logits.to(expected.dtype)
    if logits.dtype == torch.float16:  # float16 overflows earlier than the expected float32
        most = torch.finfo(torch.float16).max
        expected, z = expected.clamp(-most, most), z.clamp(-most, most)
    return ~((expected - z).abs() <= allowed).all(dim=1)


def activation_between(
    features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor | None
) -> str | None:
    """The activation between the layer's output and the model's, if it is a common one.

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
    # relative to the largest, since small entries of a softmax have the rounding of the others
    return bool(((expected - logits).abs() <= tolerance * expected.abs().max()).all())


# with three products, a free factor would fit almost anything
FEWEST_FOR_A_FACTOR = 4


def _fitted_scale(product: Tensor, logits: Tensor) -> float:
    """Least-squares factor from product to logits; 0 if too few values could tell."""
    energy = float((product * product).sum())
    if product.numel() < FEWEST_FOR_A_FACTOR or energy == 0:
        return 0.0
    return float((product * logits).sum()) / energy


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in float64, or in float32 on a device without float64."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def _tolerance(*tensors: Tensor, computed_in: torch.dtype | None = None) -> float:
    dtypes = [tensor.dtype for tensor in tensors] + ([] if computed_in is None else [computed_in])
    coarsest = max(_TOLERANCE.get(dtype, _TOLERANCE[torch.bfloat16]) for dtype in dtypes)
    # TF32 may be on for matrix products on a GPU, although the dtypes say float32
    exact = torch.get_float32_matmul_precision() == "highest" and all(
        tensor.device.type == "cpu" for tensor in tensors
    )
    if exact or coarsest < _TOLERANCE[torch.float32]:
        return coarsest
    return max(coarsest, _TF32_TOLERANCE)
