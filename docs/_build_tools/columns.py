"""The reference of scores and summaries, from what each column states about itself."""

from typing import Any

PAGES = {"reference/scores.md": "SCORES", "reference/tracking.md": "SUMMARIES"}
_PLACE = "<!-- columns -->"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put the table where a page asks for it."""
    registry = PAGES.get(page.file.src_uri)
    return markdown.replace(_PLACE, table(registry)) if registry else markdown


def table(registry: str) -> str:
    """Every column of a registry: name, title, range, direction, meaning."""
    from hardsight import scores, tracking

    specs = getattr(scores if registry == "SCORES" else tracking, registry).values()
    rows = [_row(spec) for spec in specs if not getattr(spec, "per_class", False)]
    return "\n".join(
        ["| column | title | range | harder | meaning |", "|---|---|---|---|---|", *rows]
    )


def _row(spec: Any) -> str:
    facts = {**spec.facts(), **spec.shown()}
    low, high = (
        edge if bound is None else f"{bound:.3g}"
        for bound, edge in ((facts["low"], "−∞"), (facts["high"], "∞"))
    )
    unit = f" {facts['unit']}" if facts["unit"] else ""
    harder = "high" if facts["higher_is_harder"] else "low"
    return (
        f"| `{spec.name}` | {facts['title']} | {low} to {high}{unit} | {harder} | "
        f"{facts['meaning']} |"
    )
