"""What guards read of a file: its statements alone, which are a tenth of its syntax tree."""

import ast


def statements(code):
    """Every statement of a file, also those inside others; expressions cannot import anything."""
    waiting = list(ast.parse(code).body)
    while waiting:
        node = waiting.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting.extend(getattr(node, block, ()))
