r"""Angles and norms with correct values and gradients at the edge cases.

``acos(cos.clamp(-1, 1))`` gives NaN gradients on an aligned pair and, in float32, the angle 0 for
anything below about 2e-4 rad. Here an angle between two rows is

.. math:: \angle(u, v) = 2\,\mathrm{atan2}(\lVert u - v\rVert, \lVert u + v\rVert)

on unit vectors, exact near 0 and :math:`\pi`. A matrix of angles starts from cosines, because a
matrix product is fast, and recomputes the few pairs near :math:`\pm 1` by the formula above.

Conventions for all angles in hardsight: computations are in float32 or wider, for any input dtype;
a zero vector has the angle :math:`\pi/2` to everything and gets no gradient; an exactly aligned or
opposite pair gets the gradient 0, the middle of its subgradients.
"""

import functools
import math

import numpy as np
import torch
from torch import Tensor

from hardsight._checks import check_labels, check_rows, check_width, is_traced

# Beyond this |cosine| an angle is recomputed from its chord. Below it the rounding error of a
# float32 cosine, about 1e-7, is amplified by 1 / sin(angle), which is at most 7.
_NEAR = 0.99
_TINY = 1e-12  # squares of a norm between this and its inverse fit into float32
_PAIRS_AT_ONCE = 1 << 16  # bounds the memory of the recomputed pairs


def widen(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float32, or unchanged if it is wider.

    Example:
        >>> widen(torch.ones(1, dtype=torch.bfloat16)).dtype, widen(torch.ones(1).double()).dtype
        (torch.float32, torch.float64)
    """
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def widen_together(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors in the wider of their dtypes, at least float32, for a product.

    Example:
        >>> [t.dtype for t in widen_together(torch.ones(1).half(), torch.ones(1).double())]
        [torch.float64, torch.float64]
    """
    dtype = common_dtype(first, second)
    return first.to(dtype), second.to(dtype)


def common_dtype(first: Tensor, second: Tensor) -> torch.dtype:
    """Return the wider of both dtypes, at least float32.

    Example:
        >>> common_dtype(torch.ones(1).half(), torch.ones(1).bfloat16())
        torch.float32
    """
    return torch.promote_types(torch.promote_types(first.dtype, second.dtype), torch.float32)


def units_and_norms(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return every row divided by its norm, and the norms, without overflow or underflow.

    Args:
        vectors: ``[..., D]``, any scale.

    Returns:
        ``[..., D]`` and ``[...]``, float32 or wider. A zero row stays zero; its gradient is 0.

    Example:
        >>> units_and_norms(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
        (tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]]), tensor([5.0000e-30, 0.0000e+00]))
    """
    wide = widen(vectors)
    # a fast path without a gradient: one pass over the data instead of three
    if not (wide.requires_grad or is_traced(wide)):
        norms = torch.linalg.vector_norm(wide, dim=-1)
        # for all rows or none: a branch per row would cost more than the safe path
        if ((norms > _TINY) & (norms < 1 / _TINY)).all():  # squares are in range
            return wide / norms.unsqueeze(-1), norms
    scaled, scale = _scaled(wide)
    norms = _norm(scaled)
    is_zero = norms == 0
    # divide by 1 instead of a norm of 0, which keeps the gradient finite
    unit = scaled / (norms + is_zero).unsqueeze(-1)
    # the row is 0 already; this also sets its gradient to 0
    unit.masked_fill_(is_zero.unsqueeze(-1), 0.0)
    return unit, norms * scale.squeeze(-1)


def row_norms(vectors: Tensor) -> Tensor:
    """Return the Euclidean norm of every row ``[..., D]``; see :func:`units_and_norms`.

    Example:
        >>> row_norms(torch.tensor([[3e30, 4e30], [0.0, 0.0]]))
        tensor([5.0000e+30, 0.0000e+00])
    """
    return units_and_norms(vectors)[1]


def unit_vectors(vectors: Tensor) -> Tensor:
    """Return every row ``[..., D]`` divided by its norm; see :func:`units_and_norms`.

    Example:
        >>> unit_vectors(torch.tensor([[3e-30, 4e-30]]))
        tensor([[0.6000, 0.8000]])
    """
    return units_and_norms(vectors)[0]


def angle_between(first: Tensor, second: Tensor) -> Tensor:
    """Return the angle between rows at the same position.

    Args:
        first: ``[..., D]``, any scale.
        second: ``[..., D]``, broadcast against ``first``.

    Returns:
        ``[...]`` in ``[0, pi]``, radians.

    Example:
        >>> angle_between(torch.tensor([[1.0, 0.0]]), torch.tensor([[1e-6, 1e-6]]))
        tensor([0.7854])
        >>> angle_between(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1e-6]]))
        tensor([1.0000e-06])
    """
    return _unit_angle(unit_vectors(first), unit_vectors(second))


def target_angles(embeddings: Tensor, labels: Tensor, class_weights: Tensor) -> Tensor:
    """Return the angle between every example and the weight of its own class.

    Args:
        embeddings: ``[N, D]``.
        labels: class indices in ``[0, C)``, ``[N]``.
        class_weights: ``[C, D]``.

    Returns:
        ``[N]`` in ``[0, pi]``, radians; exact even if an example is aligned with its class. On an
        accelerator, where labels are not checked, a negative label gives NaN.

    Raises:
        ShapeError: the tensors do not fit each other.
        LabelError: a label is not a class.
    """
    check_width(embeddings, class_weights)
    check_rows(embeddings=embeddings, labels=labels)
    check_labels(labels, len(class_weights))
    # only N pairs, so all are computed by the exact formula
    angles = angle_between(embeddings, class_weights[labels.long()])
    if labels.device.type == "cpu" and not is_traced(labels):
        return angles
    # labels were not checked, and -1 has picked the last class
    return angles.masked_fill_(labels < 0, math.nan)


def unit_target_angles(embeddings: Tensor, labels: Tensor, class_weights: Tensor) -> Tensor:
    """Return :func:`target_angles` of rows that already are unit vectors (or zero)."""
    return _unit_angle(embeddings, class_weights[labels.long()])


def pairwise_angles(embeddings: Tensor, class_weights: Tensor) -> Tensor:
    """Return the angle between every example and every class weight.

    Args:
        embeddings: ``[N, D]``, any scale.
        class_weights: ``[C, D]``, any scale.

    Returns:
        ``[N, C]`` in ``[0, pi]``, radians. Under ``torch.compile`` and ``torch.func`` transforms,
        pairs near 0 and pi cannot be picked out; they have the resolution of a cosine (5e-4 rad in
        float32) and a bounded gradient.

    Example:
        >>> axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> pairwise_angles(axes[:1], axes)
        tensor([[0.0000, 1.5708, 3.1416]])
    """
    check_width(embeddings, class_weights)
    return unit_pairwise_angles(unit_vectors(embeddings), unit_vectors(class_weights))


def unit_pairwise_angles(embeddings: Tensor, class_weights: Tensor) -> Tensor:
    """Return :func:`pairwise_angles` of rows that already are unit vectors (or zero)."""
    embeddings, class_weights = widen_together(embeddings, class_weights)
    # the product needs equal dtypes
    return angles_from_cosines(
        unit_cosines(embeddings, class_weights), embeddings=embeddings, class_weights=class_weights
    )


def unit_cosines(embeddings: Tensor, class_weights: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return products ``[N, C]`` of unit rows, at full precision even under autocast."""
    # autocast would run even a float32 product in half precision
    with torch.autocast(embeddings.device.type, enabled=False):
        return torch.mm(embeddings, class_weights.T, out=out)


def angles_from_cosines(
    cosines: Tensor, *, embeddings: Tensor, class_weights: Tensor, overwrite: bool = False
) -> Tensor:
    """Return angles ``[N, C]`` of unit rows from their cosines; see :func:`pairwise_angles`.

    With ``overwrite`` the cosines' memory is used for the angles.
    """
    # a trace cannot branch on values, so near 0 and pi its angles are those of the cosines
    if is_traced(cosines):
        return _bounded_acos(cosines)
    if (
        cosines.shape[1] == 0
        # from the extremes of each row, which is cheaper than a mask of all pairs
        or not (cosines.amax(1) > _NEAR).logical_or_(cosines.amin(1) < -_NEAR).any()
    ):
        return _acos_(cosines) if overwrite else torch.acos(cosines)
    near = cosines.abs() > _NEAR
    rows, columns = near.nonzero(as_tuple=True)
    parts = [slice(k, k + _PAIRS_AT_ONCE) for k in range(0, len(rows), _PAIRS_AT_ONCE)]
    exact = torch.cat(
        # in parts, since with near-duplicates of a class nearly all pairs may be near
        [_unit_angle(embeddings[rows[part]], class_weights[columns[part]]) for part in parts]
    )
    if overwrite:
        # 0.0 keeps the arc cosine and its gradient finite at entries that are replaced next
        return _acos_(cosines.masked_fill_(near, 0.0)).index_put_((rows, columns), exact)
    return torch.acos(cosines.masked_fill(near, 0.0)).index_put((rows, columns), exact)


def safe_root_(squares: Tensor) -> Tensor:
    """Return the square root of squares, with the gradient 0 at 0; overwrites ``squares``.

    Here and elsewhere a mask is added, or filled in place, although ``torch.where`` with a number
    would be easier to read: on a GPU that number costs an extra kernel launch.

    Example:
        >>> safe_root_(torch.tensor([4.0, 0.0]))
        tensor([2., 0.])
    """
    is_zero = squares == 0
    # sqrt(1) - 1 is 0 with a finite gradient, which the mask then zeroes
    return torch.add(squares.masked_fill_(is_zero, 1.0).sqrt(), is_zero, alpha=-1)


def _scaled(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Divide rows by their largest entry, so squares neither overflow nor vanish.

    The scale carries no gradient: norms and directions do not depend on it.
    """
    # detached, since the scale cancels, and so does its gradient
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    scale = largest + (largest == 0)
    return vectors / scale, scale


def _norm(vectors: Tensor) -> Tensor:
    """Return the norm, with gradient 0 instead of NaN at the zero vector."""
    return safe_root_(vectors.square().sum(dim=-1))


def _unit_angle(first: Tensor, second: Tensor) -> Tensor:
    apart = _norm(first - second)  # 2 sin(angle / 2)
    together = _norm(first + second)  # 2 cos(angle / 2)
    # for two zero vectors atan2(0, 0) has no gradient; by convention their angle is pi / 2
    undefined = apart + together == 0
    angle = 2 * torch.atan2(apart, together + undefined)
    return angle.masked_fill_(undefined, math.pi / 2)


def _bounded_acos(cosines: Tensor) -> Tensor:
    """Return the arc cosine with a finite gradient, -1 / sin: the sine has a lower bound."""
    smallest = torch.finfo(cosines.dtype).eps
    # (1 - c)(1 + c) keeps the precision that 1 - c * c loses near 1
    squares = ((1 - cosines) * (1 + cosines)).clamp_min(smallest)
    return torch.atan2(squares.sqrt(), cosines)


def _acos_(cosines: Tensor) -> Tensor:
    """Compute the arc cosine of a matrix ``[N, C]`` in place, by the faster library; no gradient.

    With AVX-512, a numpy thread is as fast as four torch threads and equally accurate, within two
    units in the last place. numpy reports which of its loops it uses, so the choice depends only on
    the machine, and a resumed run makes the same choice.
    """
    is_plain = cosines.device.type == "cpu" and cosines.dtype == torch.float32
    # more than four torch threads are faster than a numpy thread
    if not is_plain or torch.get_num_threads() > 4 or not _numpy_is_vectorized():
        return torch.acos_(cosines)
    values = cosines.numpy()
    with np.errstate(invalid="ignore"):  # NaN rows stay NaN, as in torch
        np.arccos(values, out=values)
    return cosines


@functools.cache
def _numpy_is_vectorized() -> bool:
    """Whether numpy computes float32 arc cosines with AVX-512 on this machine."""
    introspect = getattr(np.lib, "introspect", None)  # since numpy 2.1
    if introspect is None:
        return False
    loops = introspect.opt_func_info(func_name="^arccos$").get("arccos", {})
    loop = str(loops.get("ff", {}).get("current", ""))  # float32 to float32
    return "AVX512" in loop or "X86_V4" in loop
