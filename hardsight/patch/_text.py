"""Text in a CSV that a spreadsheet must not take for a formula."""

from __future__ import annotations

# what makes a cell a formula in some spreadsheet, in full width too; an apostrophe is doubled, so
# that every text comes back as it was
_RISKY = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20'"


def defused(text: str) -> str:
    """The text with an apostrophe before it, if a spreadsheet could take it for a formula.

    Example:
        >>> defused("=1+1"), defused("cat"), defused("'x")
        ("'=1+1", 'cat', "''x")
    """
    return f"'{text}" if text[:1] and text[0] in _RISKY else text


def restored(text: str) -> str:
    """What :func:`defused` was given.

    Example:
        >>> restored("'=1+1"), restored("cat"), restored("'tis")
        ('=1+1', 'cat', "'tis")
    """
    return text[1:] if text[:1] == "'" and text[1:2] and text[1] in _RISKY else text
