"""Pieces of arithmetic that every kernel shares; written for Triton, used by Gluon too."""

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)
LOG2E = tl.constexpr(1.4426950408889634)
# Under this 1 - |cosine| the sine of an angle is rounding, and its gradient is held: float32 eps.
FLAT = tl.constexpr(1.1920929e-07)
MASKED = tl.constexpr(1e4)  # a "cosine" whose elevation is about -1e10 or less, and finite


@triton.jit
def arc_from_gap(size, root):
    """Angle from the nearer axis; ``size`` is ``|cos|`` and ``root`` is ``sqrt(1 - size)``.

    Minimax polynomial of ``acos(x) / sqrt(1 - x)`` over [0, 1], degree 6, exact at 0: 1e-7 in exact
    arithmetic, 3e-7 in float32.
    """
    poly = 0.0027233681175857782 * size - 0.012331496924161911
    poly = poly * size + 0.028129136189818382
    poly = poly * size - 0.04939036816358566
    poly = poly * size + 0.08888409286737442
    poly = poly * size - 0.21459604799747467
    poly = poly * size + 1.5707963705062866
    return root * poly


@triton.jit
def arc_from_gap_coarse(size, root):
    """As :func:`arc_from_gap`, degree 4: 5e-6, for gradients that are rounded to half precision."""
    poly = 0.009732966311275959 * size - 0.03761821240186691
    poly = poly * size + 0.0856383740901947
    poly = poly * size - 0.2142806053161621
    poly = poly * size + 1.570791482925415
    return root * poly


@triton.jit
def inverse_root_coarse(size):
    """``1 / sqrt(1 + size)`` over [0, 1] to 5e-4, without the special-function unit."""
    poly = -0.08455872535705566 * size + 0.2749797999858856
    poly = poly * size - 0.48317399621009827
    return poly * size + 0.999521017074585


@triton.jit
def elevation(cosines):
    """``pi / 2 - acos(cosines)``; a cosine beyond +-1 by rounding is at most 3e-4 rad off it.

    Odd and exactly 0 at 0, so that sums over many classes near pi / 2 stay small and a masked
    cosine of 0 adds nothing. At ``MASKED`` it is so far below any angle that its power is 0.
    """
    size = tl.abs(cosines)
    rise = 1.5707963267948966 - arc_from_gap(size, tl.sqrt(tl.abs(1.0 - size)))
    return with_sign(rise, cosines)


@triton.jit
def with_sign(size, sign):
    """``size``, at least 0 up to rounding, with the sign of ``sign``; one instruction."""
    bits = sign.to(tl.int32, bitcast=True) & -2147483648
    return (size.to(tl.int32, bitcast=True) ^ bits).to(tl.float32, bitcast=True)


@triton.jit
def arc_slope(cosines, coarse: tl.constexpr):
    """The elevation, and its derivative ``1 / sin(angle)``, held where the sine is rounding."""
    size = tl.abs(cosines)
    gap = tl.maximum(1.0 - size, FLAT)
    inverse = tl.rsqrt(gap)
    if coarse:
        rise = 1.5707963267948966 - arc_from_gap_coarse(size, gap * inverse)
        slope = inverse * inverse_root_coarse(size)
    else:
        rise = 1.5707963267948966 - arc_from_gap(size, gap * inverse)
        slope = inverse * tl.rsqrt(1.0 + size)
    return with_sign(rise, cosines), slope
