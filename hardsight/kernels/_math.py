"""Pieces of arithmetic that every kernel shares; written for Triton, used by Gluon too."""

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)
LOG2E = tl.constexpr(1.4426950408889634)
# Under this 1 - |cosine| the sine of an angle is rounding, and its gradient is held: float32 eps.
FLAT = tl.constexpr(1.1920929e-07)


@triton.jit
def arc_from_gap(size, root):
    """Angle from the nearer axis; ``size`` is ``|cos|`` and ``root`` is ``sqrt(1 - size)``.

    Minimax polynomial of ``acos(x) / sqrt(1 - x)`` over [0, 1], degree 6: 9e-8 in exact arithmetic,
    3e-7 in float32.
    """
    poly = 0.0026117200031876564 * size - 0.012003393843770027
    poly = poly * size + 0.027762912213802338
    poly = poly * size - 0.04919743537902832
    poly = poly * size + 0.08883588761091232
    poly = poly * size - 0.21459108591079712
    poly = poly * size + 1.570796251296997
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
    """``1 / sqrt(1 + size)`` over [0, 1] to 7e-5, without the special-function unit."""
    poly = 0.05081595107913017 * size - 0.1864088922739029
    poly = poly * size + 0.33883509039878845
    poly = poly * size - 0.4960090219974518
    return poly * size + 0.999925971031189


@triton.jit
def elevation(cosines):
    """``pi / 2 - acos(cosines)``; cosines outside [-1, 1] by rounding count as +-1.

    Odd, so that a masked cosine of 0 adds nothing to a sum, and sums stay small.
    """
    size = tl.minimum(tl.abs(cosines), 1.0)
    rise = 1.5707963267948966 - arc_from_gap(size, tl.sqrt(1.0 - size))
    return tl.where(cosines < 0, -rise, rise)


@triton.jit
def arc_slope(cosines, coarse: tl.constexpr):
    """The elevation, and its derivative ``1 / sin(angle)``, held where the sine is rounding."""
    size = tl.minimum(tl.abs(cosines), 1.0)
    gap = tl.maximum(1.0 - size, FLAT)
    inverse = tl.rsqrt(gap)
    if coarse:
        rise = 1.5707963267948966 - arc_from_gap_coarse(size, gap * inverse)
        slope = inverse * inverse_root_coarse(size)
    else:
        rise = 1.5707963267948966 - arc_from_gap(size, gap * inverse)
        slope = inverse * tl.rsqrt(1.0 + size)
    return tl.where(cosines < 0, -rise, rise), slope
