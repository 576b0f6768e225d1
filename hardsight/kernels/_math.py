"""Arithmetic that all kernels share; written for Triton, and used by Gluon as well."""

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)
LOG2E = tl.constexpr(1.4426950408889634)
# If 1 - |cosine| is below float32's eps, the sine of the angle is mostly rounding, so the gradient
# is held constant there.
FLAT = tl.constexpr(1.1920929e-07)
# A "cosine" for masked classes: its elevation is about -1e10, so far down that its power is 0, yet
# finite.
MASKED = tl.constexpr(1e4)


@triton.jit
def arc_from_gap(size, root):
    """Return the angle from the nearer axis, given ``|cos|`` and ``root``, ``sqrt(1 - |cos|)``.

    The division by the root takes out the steep part near 1, where ``acos`` has an infinite slope.
    Minimax polynomial of ``acos(x) / sqrt(1 - x)`` over [0, 1], of degree 6 and exact at 0; the
    error is 1e-7 in exact arithmetic and 3e-7 in float32.
    """
    poly = 0.0027233681175857782 * size - 0.012331496924161911
    poly = poly * size + 0.028129136189818382
    poly = poly * size - 0.04939036816358566
    poly = poly * size + 0.08888409286737442
    poly = poly * size - 0.21459604799747467
    poly = poly * size + 1.5707963705062866
    return root * poly


@triton.jit
def arc_from_sine_coarse(size, sine):
    """Return the angle from the nearer axis by its sine, for gradients rounded to half precision.

    Minimax polynomial of ``acos(x) / sqrt(1 - x^2)`` over [0, 1], of degree 5; the error is 1.5e-5.
    """
    poly = -0.07812005281448364 * size + 0.30118411779403687
    poly = poly * size - 0.5617161989212036
    poly = poly * size + 0.7664392590522766
    poly = poly * size - 0.9987003803253174
    poly = poly * size + 1.5707817077636719
    return sine * poly


@triton.jit
def elevation(cosines):
    """Return ``pi / 2 - acos(cosines)``; off by at most 3e-4 rad if rounding leaves +-1.

    It is odd and exactly 0 at 0, so that sums over many classes near pi / 2 stay small and a masked
    cosine of 0 adds nothing. At ``MASKED`` it is so far below any angle that its power is 0.
    """
    size = tl.abs(cosines)
    rise = 1.5707963267948966 - arc_from_gap(size, tl.sqrt(tl.abs(1.0 - size)))
    return with_sign(rise, cosines)


@triton.jit
def with_sign(size, sign):
    """Return ``size``, which is at least 0 up to rounding, with the sign of ``sign``."""
    # a single instruction on the bits
    bits = sign.to(tl.int32, bitcast=True) & -2147483648
    return (size.to(tl.int32, bitcast=True) ^ bits).to(tl.float32, bitcast=True)


@triton.jit
def arc_slope(cosines, coarse: tl.constexpr):
    """Return the elevation and its derivative ``1 / sin(angle)``, held constant below ``FLAT``.

    At ``-MASKED`` the elevation is so low that its power is 0.
    """
    size = tl.abs(cosines)
    if coarse:  # one reciprocal root serves both, since the result is rounded to half precision
        square = tl.maximum(1.0 - cosines * cosines, 2 * FLAT)
        slope = tl.rsqrt(square)
        rise = 1.5707963267948966 - arc_from_sine_coarse(size, square * slope)
    else:
        gap = tl.maximum(1.0 - size, FLAT)
        inverse = tl.rsqrt(gap)
        rise = 1.5707963267948966 - arc_from_gap(size, gap * inverse)
        slope = inverse * tl.rsqrt(1.0 + size)
    return with_sign(rise, cosines), slope
