"""Keep spreadsheets from taking text in a CSV for a formula."""

from __future__ import annotations

# first characters that make a cell a formula in some spreadsheet, including full-width ones; the
# apostrophe is among them, so that every text can be restored exactly
_RISKY = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20'"


def defused(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet could take for a formula.

    Example:
        >>> defused("=1+1"), defused("cat"), defused("'x")
        ("'=1+1", 'cat', "''x")
    """
    return f"'{text}" if text[:1] and text[0] in _RISKY else text


def restored(text: str) -> str:
    """Undo :func:`defused`.

    Example:
        >>> restored("'=1+1"), restored("cat"), restored("'tis")
        ('=1+1', 'cat', "'tis")
    """
    return text[1:] if text[:1] == "'" and text[1:2] and text[1] in _RISKY else text
