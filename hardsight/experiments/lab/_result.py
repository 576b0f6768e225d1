"""What an experiment found: tables, claims and figures, as JSON and as a page."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from hardsight.run_folder import write_text

RESULT, PAGE = "result.json", "README.md"
FORMAT = 1
TOO_WEAK, TOO_FEW = "network too weak to judge", "cannot be decided here"
RULE = "[How a claim is judged](https://hardsight.readthedocs.io/papers/claims/)."


@dataclass(frozen=True)
class Spread:
    """A mean over seeds.

    Attributes:
        mean: of the values.
        std: their standard deviation, with n - 1; 0 for a single value.
        low: lower end of the 95 % t-interval of the mean; NaN for a single value.
        high: upper end.
        n: how many values.
        lost: seeds that gave no value and are left out.
    """

    mean: float
    std: float
    low: float
    high: float
    n: int
    lost: int = 0

    def __str__(self) -> str:
        digits = 2 if abs(self.mean) >= 1 else 4
        said = f"{self.mean:.{digits}f}" if self.n else "–"
        said = f"{said} ± {self.std:.{digits}f}" if self.n > 1 else said
        return f"{said} ({self.n} of {self.n + self.lost})" if self.lost else said


def spread(values: Sequence[float | None], *, lost: int = 0) -> Spread:
    """Mean, standard deviation and 95 % t-interval of one value per seed.

    Args:
        values: of the seeds that gave one; NaN and ``None`` count as none.
        lost: how many other seeds gave none; they are stated and change no number.

    Example:
        >>> print(spread([90.0, 91.0, 92.0]))
        91.00 ± 1.00
        >>> print(spread([90.0, 92.0], lost=1))
        91.00 ± 1.41 (2 of 3)
        >>> print(spread([90.0, 92.0, float("nan")]))
        91.00 ± 1.41 (2 of 3)
        >>> print(spread([float("nan")]))
        – (0 of 1)
    """
    numbers = [float(value) for value in values if value is not None and not math.isnan(value)]
    lost += len(values) - len(numbers)
    if not numbers:
        return Spread(math.nan, math.nan, math.nan, math.nan, 0, lost)
    mean, n = statistics.fmean(numbers), len(numbers)
    if n == 1:
        return Spread(mean, 0.0, math.nan, math.nan, 1, lost)
    std = statistics.stdev(numbers)
    reach = float(student.ppf(0.975, n - 1)) * std / math.sqrt(n)
    return Spread(mean, std, mean - reach, mean + reach, n, lost)


Cell = str | int | float | Spread | None


@dataclass(frozen=True)
class Table:
    """One table of a result.

    Attributes:
        title: what it shows.
        columns: headings, with units.
        rows: as many cells as columns each.
        note: what a reader must know: what the spread is, what was chosen how.
        paper: the paper's own rows in the same columns, if it has them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    paper: Sequence[Sequence[Cell]] | None = None

    def __post_init__(self) -> None:
        for row in (*self.rows, *(self.paper or ())):
            assert len(row) == len(self.columns), f"{self.title}: {row} under {self.columns}"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, compared with what was seen.

    Attributes:
        says: the claim.
        paper: the paper's own number or reference.
        seen: what was seen here, with numbers.
        holds: whether it holds here; ``None`` if these runs do not decide it.
        is_weak: whether they do not because the network is too weak to judge.
        needs_seeds: how many would show the paper's effect with 80 % power, if there are fewer.
    """

    says: str
    paper: str
    seen: str
    holds: bool | None
    is_weak: bool = False
    needs_seeds: int | None = None

    @classmethod
    def of_runs(cls, says: str, paper: str, seen: str, outcomes: Sequence[bool | None]) -> Claim:
        """A claim that was tested in each run by itself; see :func:`in_every_run`."""
        return cls(says, paper, seen, in_every_run(outcomes))

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.needs_seeds is not None and not self.is_weak:
            return f"{TOO_FEW}: needs {self.needs_seeds:,} seeds"
        return self.kind

    @property
    def kind(self) -> str:
        """The outcome in one of five words, to be counted."""
        if self.is_weak:
            return TOO_WEAK
        if self.needs_seeds is not None:
            return TOO_FEW
        return {True: "yes", False: "no", None: "undecided"}[self.holds]


def gated(claim: Claim, weak: str) -> Claim:
    """A claim as it is, or not judged for a reason: ``weak``, if that is not empty.

    Example:
        >>> gated(Claim("AVH rises", "Fig. 17", "in 3 of 3 runs", True), "60 % reached").seen
        '60 % reached; otherwise yes: in 3 of 3 runs'
    """
    if not weak or claim.is_weak:
        return claim
    seen = f"{weak}; otherwise {claim.verdict}: {claim.seen}"
    return replace(claim, seen=seen, holds=None, is_weak=True)


def in_every_run(outcomes: Sequence[bool | None]) -> bool | None:
    """What all runs say: yes, no, or undecided if they differ or one is undecided.

    Example:
        >>> in_every_run([True, True]), in_every_run([False, False]), in_every_run([True, False])
        (True, False, None)
        >>> in_every_run([True, None]) is None
        True
    """
    return outcomes[0] if len(set(outcomes)) == 1 else None


@dataclass(frozen=True)
class Figure:
    """A picture beside the result.

    Attributes:
        file: its name in the result's folder.
        caption: what to see in it.
        alt: what it shows, for those who cannot see it.
    """

    file: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Result:
    """What an experiment returns.

    Attributes:
        tables: in the order of reading.
        claims: the paper's sentences with their outcome.
        figures: in the order of reading.
        data: raw numbers, one per seed, ready for JSON.
    """

    tables: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    figures: Sequence[Figure] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def read_result(folder: Path) -> tuple[Result, dict[str, Any]]:
    """A written result, and its facts: what :func:`write_result` was given."""
    return _parsed((folder / RESULT).read_text(encoding="utf-8"))


def _parsed(text: str) -> tuple[Result, dict[str, Any]]:
    facts = json.loads(text)
    tables = [
        Table(**{**table, **{key: _cells(table[key]) for key in ("rows", "paper") if table[key]}})
        for table in facts.pop("tables")
    ]
    claims = [Claim(**claim) for claim in facts.pop("claims")]
    figures = [Figure(**figure) for figure in facts.pop("figures")]
    return Result(tables, claims, figures, facts.pop("data")), facts


def _cells(rows: Sequence[Sequence[Any]]) -> list[list[Cell]]:
    return [[_spread(cell) if isinstance(cell, dict) else cell for cell in row] for row in rows]


def _spread(stored: Mapping[str, float | None]) -> Spread:
    known = {key: math.nan if value is None else value for key, value in stored.items()}
    return Spread(**known)  # type: ignore[arg-type]


def write_result(result: Result, facts: Mapping[str, Any], folder: Path) -> None:
    """Write ``result.json`` and ``README.md``, each renamed into place.

    Args:
        result: what was found.
        facts: how; with a text under ``remark``, if a person has something to add.
        folder: to write to.
    """
    content = plain({"format": FORMAT, **facts, **dataclasses.asdict(result)})
    content["setting"] = facts["setting"]  # not rounded: it makes the result again
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_text(folder / RESULT, text)
    write_text(folder / PAGE, page(*_parsed(text)))  # of the stored numbers, to the last digit


def plain(value: Any) -> Any:
    """Values as JSON has them: no NaN, no arrays, names as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # numpy and torch
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def page(result: Result, facts: Mapping[str, Any]) -> str:
    """The result as Markdown, for a repository and for the documentation."""
    parts = [f"# {facts['title']}", f"*{facts['reproduces']}*", str(facts["about"])]
    if facts.get("remark"):
        parts.append(f"> {facts['remark']}")
    if result.claims:
        parts += ["## What holds", _claims(result.claims), RULE]
    for figure in result.figures:
        parts += [f"![{figure.alt}]({figure.file})", f"*{figure.caption}*"]
    for table in result.tables:
        parts += [f"## {table.title}", _grid(table.columns, table.rows), table.note]
        if table.paper:
            parts += ["The paper's numbers:", _grid(table.columns, table.paper)]
    seeds = ", ".join(str(seed) for seed in facts["seeds"])
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    seconds = facts["training_seconds"]
    trained = f"{seconds:,.0f} s of training on " if seconds else ""
    parts += [
        "## Reproduce this page",
        f"```console\n$ {facts['command']}\n```",
        "Datasets given by name are read from `--data-root` or `$HARDSIGHT_DATA`.",
        f"Scale {facts['scale']}, seeds {seeds}; {trained}"
        f"{facts['hardware']['gpu'] or facts['hardware']['cpu']}; {versions}. Settings, numbers "
        f"per seed and intervals are in `{RESULT}`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claims(claims: Sequence[Claim]) -> str:
    bold = {"no": "**no**"}
    rows = [
        (claim.says, claim.paper, claim.seen, bold.get(claim.verdict, claim.verdict))
        for claim in claims
    ]
    return _grid(("claim", "reference", "seen here", "holds"), rows)


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    lines = [columns, ["---"] * len(columns), *([said(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def said(cell: Cell) -> str:
    """A cell as text; what is unknown is empty.

    Example:
        >>> said(0.12345), said(None), said(float("nan")), said("CE")
        ('0.1235', '', '', 'CE')
    """
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, float):
        return f"{cell:.2f}" if abs(cell) >= 1 else f"{cell:.4f}"
    return str(cell).replace("|", "\\|")
