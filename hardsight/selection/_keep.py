"""How many rows ``keep`` means: a share or a number, and never one read as the other."""

from __future__ import annotations

from hardsight.errors import OptionError

_EXPECTED = "expected keep to be a share in (0, 1], such as 0.5, or a whole number of rows"


def rows_to_keep(keep: float, rows: int) -> int:
    """The number of rows of a table that ``keep`` asks for.

    A float is a share, an int a number of rows. 1 is refused, because it could be either.

    Args:
        keep: a share in ``(0, 1]``, or a whole number of rows.
        rows: that there are.

    Raises:
        OptionError: it is neither, or there are not as many rows.

    Example:
        >>> rows_to_keep(0.5, 301), rows_to_keep(40, 301), rows_to_keep(1.0, 301)
        (150, 40, 301)
    """
    if isinstance(keep, bool) or not keep > 0:  # NaN, too
        raise OptionError(f"{_EXPECTED}, got {keep!r}, which keeps nothing")
    if isinstance(keep, int):
        # the one number that is both a share and a count
        if keep == 1:
            raise OptionError(
                f"{_EXPECTED}, got 1, which could be either; write 1.0 for every row, or 2 or more "
                "for a number of rows"
            )
        if keep > rows:
            raise OptionError(f"expected to keep at most all {rows:,} rows, got keep = {keep:,}")
        return keep
    if keep > 1:
        raise OptionError(f"{_EXPECTED}, got {keep!r}; a number of rows is written without a point")
    # never none: a small share of a small table still keeps a row
    return min(rows, max(1, round(keep * rows)))
