"""Docstrings as Markdown, and equations as MathML: no script, no network.

Docstrings carry equations as ``.. math::`` blocks and ``:math:`` roles. ``DocstringsAsMarkdown``
turns both into the form the Markdown pages use, and the page hook turns all of them into MathML,
which a browser renders by itself.
"""

import html
import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_BLOCK = re.compile(r"^\.\. math::[ \t]*(?P<first>.*)\n(?P<rest>(?:[ \t]+\S.*\n|[ \t]*\n)*)", re.M)
_EXAMPLE = re.compile(r"^Example:$", re.M)  # the section name whose sessions are shown as code
_ROLE = re.compile(r":math:`(?P<tex>[^`]+)`")
_REFERENCE = re.compile(r":(?:func|class|meth|mod):`~?(?P<name>[^`]+)`")
_RENDERED = re.compile(
    r'<(?P<tag>div|span) class="arithmatex">\\[\[(](?P<tex>.*?)\\[\])]</(?P=tag)>', re.S
)


class DocstringsAsMarkdown(griffe.Extension):
    """Docstrings as Markdown: equations, and cross-references as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Turn ``.. math::`` and ``:math:`` into TeX that the Markdown extension knows."""
    text = _EXAMPLE.sub("Examples:", _BLOCK.sub(_block, text + "\n"))
    text = _ROLE.sub(lambda match: rf"\({match['tex']}\)", text)
    return _REFERENCE.sub(lambda match: f"`{match['name']}`", text).replace("``", "`")


def _block(match: re.Match[str]) -> str:
    lines = [match["first"], *match["rest"].splitlines()]
    tex = " ".join(line.strip() for line in lines if line.strip())
    return f"\\[ {tex} \\]\n\n"


def on_page_content(content: str, **_: Any) -> str:
    """Replace the TeX of a rendered page by MathML."""
    return _RENDERED.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match["tag"] == "div" else "inline"
    return convert(html.unescape(match["tex"]).strip(), display=display)
