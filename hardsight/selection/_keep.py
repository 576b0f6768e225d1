"""Turn ``keep``, a share or a number, into a number of rows, never confusing the two."""

from __future__ import annotations

from hardsight.errors import OptionError

_EXPECTED = "expected keep to be a share in (0, 1], such as 0.5, or a whole number of rows"


def rows_to_keep(keep: float, rows: int) -> int:
    """The number of rows of a table that ``keep`` means.

    A float is a share, an int a number of rows. The int 1 is refused, because it could be either.

    Args:
        keep: a share in ``(0, 1]``, or a whole number of rows.
        rows: number of rows of the table.

    Raises:
        OptionError: ``keep`` is neither, or larger than the table.

    Example:
        >>> rows_to_keep(0.5, 301), rows_to_keep(40, 301), rows_to_keep(1.0, 301)
        (150, 40, 301)
    """
    if isinstance(keep, bool) or not keep > 0:  # in this form NaN is refused as well
        raise OptionError(f"{_EXPECTED}, got {keep!r}, which keeps nothing")
    if isinstance(keep, int):
        # 1 is both a share and a count
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
    # at least 1, so that a small share of a small table still keeps a row
    return min(rows, max(1, round(keep * rows)))
