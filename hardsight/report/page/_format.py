"""Numbers as a reader sees them."""

from __future__ import annotations

import math

NONE = "\N{EN DASH}"  # what stands in place of a number that does not exist
MINUS = "\N{MINUS SIGN}"


def number(value: float | None, *, digits: int = 4, trim: bool = True) -> str:
    r"""A number with ``digits`` significant digits, or :data:`NONE`; a minus is a minus sign.

    Args:
        value: the number.
        digits: significant digits, fewer if ``trim`` removes zeros.
        trim: drop zeros at the end.

    Example:
        >>> print(*[ascii(number(x)) for x in (0.123456, 0.05, 1234.5, 1.5e-7, -2.0, None)])
        '0.1235' '0.05' '1,234' '1.5e\u22127' '\u22122' '\u2013'
        >>> number(0.09, digits=3, trim=False)
        '0.0900'
    """
    if value is None or not math.isfinite(value):
        return NONE
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{_trim(mantissa)}e{int(exponent)}"
    else:
        before = int(f"{value:.{digits - 1}e}".split("e")[1]) + 1  # digits before the point
        text = f"{value:,.{max(0, digits - before)}f}"
        text = _trim(text) if trim else text
    return text.replace("-", MINUS)


def count(value: float) -> str:
    """A whole number with thousands separators.

    Example:
        >>> count(60000)
        '60,000'
    """
    return f"{int(value):,}"


def percent(share: float | None) -> str:
    """A share as a percentage, or :data:`NONE`; only all is 100, only none is 0.

    Example:
        >>> [percent(x) for x in (0.9432, 1.0, 0.99999, 0.00001, 0.0)]
        ['94.3%', '100%', '>99.9%', '<0.1%', '0%']
    """
    if share is None or not math.isfinite(share):
        return NONE
    if share in (0, 1):
        return f"{100 * share:.0f}%"
    if share > 0.9995:
        return ">99.9%"
    return f"{100 * share:.1f}%" if share >= 0.0005 else "<0.1%"


def plural(n: float, noun: str) -> str:
    """A count with its noun.

    Example:
        >>> plural(1, "class"), plural(1200, "example")
        ('1 class', '1,200 examples')
    """
    if int(n) == 1:
        return f"1 {noun}"
    return f"{count(n)} {noun}{'es' if noun.endswith('s') else 's'}"


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
