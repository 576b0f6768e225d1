"""Read names, types, defaults and texts of settings from the source of a function or class.

Every setting is written down once: as a keyword of a function with its line under ``Args``, or as a
field of a dataclass with its line under ``Attributes``. Keys of TOML files and flags of the command
line are made from that. The source is parsed and not imported, because importing it would make the
help of a command wait for torch.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

MISSING = dataclasses.MISSING
_PACKAGE = Path(__file__).parents[1]
_IN_PYTHON = " In Python "
# annotation in a signature -> the type that TOML files and the command line have for it
_PLAIN: dict[str, Any] = {
    "None": None,
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "Path": str,
    "os.PathLike[str]": str,
    "Any": str,
    "Sequence[str]": tuple[str, ...],
    "Sequence[float]": tuple[float, ...],
    "tuple[str, ...]": tuple[str, ...],
    "tuple[float, ...]": tuple[float, ...],
    "tuple[int, ...]": tuple[int, ...],
    "tuple[int, int]": tuple[int, int],
    "tuple[float, float]": tuple[float, float],
}


@dataclass(frozen=True)
class Stated:
    """One setting as it is written in the source.

    Attributes:
        name: the name of the keyword or field.
        annotation: its type, as text.
        default: its default; ``MISSING`` if it has none or one that is not a literal.
        text: its description, one paragraph of reStructuredText.
    """

    name: str
    annotation: str
    default: Any
    text: str

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that its value can have in a file or on a command line, including ``None``."""
        parts = [part.strip() for part in _split_union(self.annotation)]
        return tuple(dict.fromkeys(_PLAIN[part] for part in parts if part in _PLAIN))

    @property
    def said(self) -> str:
        """The text without its last part, "In Python ...", which only concerns Python callers."""
        return f" {self.text}".split(_IN_PYTHON)[0].strip()


def stated_in(place: str) -> dict[str, Stated]:
    """The settings of a function or dataclass of this package, by name.

    Args:
        place: a file of the package and a name in it, such as ``"run/score/_score.py:score"``.

    Raises:
        LookupError: there is no such function or class, or a setting has no text.

    Example:
        >>> sample = stated_in("run/score/_score.py:score")["sample"]
        >>> sample.annotation, sample.default
        ('str', 'unknown')
    """
    file, _, name = place.partition(":")
    node = _node(file, name)
    pairs = _fields(node) if isinstance(node, ast.ClassDef) else _keywords(node)
    section = "Attributes" if isinstance(node, ast.ClassDef) else "Args"
    texts = described_in(ast.get_docstring(node) or "", section)
    silent = [key for key, _, _ in pairs if key not in texts]
    if silent:
        raise LookupError(f"{place} says nothing about {', '.join(silent)} under {section}")
    return {key: Stated(key, annotation, default, texts[key]) for key, annotation, default in pairs}


def in_order(
    names: Iterable[str], first: Sequence[str] = (), last: Sequence[str] = ()
) -> list[str]:
    """Move some names to the front and some to the end; the others keep their order.

    Example:
        >>> in_order(["seed", "data", "model", "out"], first=["data", "model"], last=["seed"])
        ['data', 'model', 'out', 'seed']
    """
    known = list(names)
    unknown = [name for name in (*first, *last) if name not in known]
    if unknown:
        raise LookupError(f"there is no setting {', '.join(unknown)} to put in order")
    return [*first, *(name for name in known if name not in (*first, *last)), *last]


def described_in(docstring: str, section: str) -> dict[str, str]:
    """The texts of a docstring section such as ``Args``, by name, each as one line.

    Example:
        >>> described_in(described_in.__doc__, "Args")["section"]
        'the heading, without the colon.'

    Args:
        docstring: a docstring in Google style.
        section: the heading, without
            the colon.
    """
    lines = inspect.cleandoc(docstring).splitlines()
    if f"{section}:" not in lines:
        return {}
    texts: dict[str, list[str]] = {}
    for line in lines[lines.index(f"{section}:") + 1 :]:
        # the next heading is not indented
        if line and not line.startswith(" "):
            break
        # lines with a deeper indent continue the text above
        begins = re.match(r" {4}(\w+): (.*)", line)
        if begins:
            texts[begins[1]] = [begins[2]]
        elif line.strip() and texts:
            next(reversed(texts.values())).append(line.strip())
    return {name: " ".join(parts) for name, parts in texts.items()}


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((_PACKAGE / file).read_text(encoding="utf-8"))


def _node(file: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    for node in _tree(file).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    raise LookupError(f"{file} has no function or class {name!r}")


def _keywords(node: ast.FunctionDef) -> list[tuple[str, str, Any]]:
    """Name, type and default of every parameter except ``*args`` and ``**kwargs``."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    # ``ast`` lists only the defaults that exist, which belong to the last positional parameters
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    pairs = [
        *zip(positional, defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return [
        (parameter.arg, _written(parameter.annotation), _value(default))
        for parameter, default in pairs
    ]


def _fields(node: ast.ClassDef) -> list[tuple[str, str, Any]]:
    """Name, type and default of every field; a ``ClassVar`` is not a field."""
    fields = []
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            annotation = _written(line.annotation)
            if not annotation.startswith("ClassVar"):
                fields.append((line.target.id, annotation, _value(line.value)))
    return fields


def _written(annotation: ast.expr | None) -> str:
    return "Any" if annotation is None else ast.unparse(annotation)


def _value(node: ast.expr | None) -> Any:
    """The value of a literal default or of the first argument of ``setting(...)``."""
    if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == "setting":
        node = node.args[0]
    if node is None:
        return MISSING
    try:
        return ast.literal_eval(node)
    except ValueError:  # not a literal, but the name of a constant or a call
        return MISSING


def _split_union(annotation: str) -> list[str]:
    """Split a union at the top level only: ``A | B[C | D]`` into ``A`` and ``B[C | D]``."""
    parts, depth = [""], 0
    for sign in annotation:
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts
