"""Cases of ``hardsight score``: examples with a model, or stored embeddings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hardsight.registry import SCORES
from tests.fuzz.cases import Step
from tests.fuzz.draw import Array, Draw
from tests.fuzz.examples import Examples
from tests.fuzz.judge import Answer, complaint_about_table
from tests.fuzz.nets import Net, make_net
from tests.fuzz.oracle import TOLERANCE, Expected
from tests.fuzz.pictures import make_examples
from tests.fuzz.stored import make_stored


def score_examples(draw: Draw, folder: Path) -> Iterator[Step]:
    """A model on pictures or vectors."""
    examples = make_examples(draw, folder)
    flags, inputs, may, must = _prepared(draw, examples)
    at_least = inputs if len(inputs) else np.zeros((1, *inputs.shape[1:]))
    net = make_net(draw, folder, at_least, len(examples.classes), is_one_batch=len(inputs) <= 100)
    outputs = net.outputs
    precision, precision_flags = ("float32", []) if net.depends_on else _precision(draw)
    if TOLERANCE[precision] > outputs.tolerance:
        outputs = outputs.__class__(
            outputs.logits, outputs.features, outputs.weights, outputs.magnitude,
            TOLERANCE[precision],
        )  # fmt: skip
    # torch has no batch norm of one short float with weights of another
    may = may or (precision == "bfloat16" and net.dtype == "float16")
    expected = Expected(
        examples.index, examples.ids, examples.labels, examples.classes, outputs, examples.errors
    )
    yield from scored(
        draw,
        folder,
        [*examples.flags, *net.flags, *flags, *precision_flags],
        expected,
        must_refuse=examples.must_refuse or net.must_refuse or must,
        may_refuse=net.may_refuse or may,
        must_tell=examples.must_tell,
        net=net,
    )


def score_stored(draw: Draw, folder: Path) -> Iterator[Step]:
    """Stored embeddings with their head."""
    stored = make_stored(draw, folder)
    yield from scored(
        draw,
        folder,
        stored.flags,
        stored.expected,
        must_refuse=stored.must_refuse,
        may_refuse=stored.may_refuse,
    )


def _prepared(draw: Draw, examples: Examples) -> tuple[list[str], Array, bool, str]:
    """Flags of the preprocessing, what the model is fed, may refuse, must refuse."""
    pixels, flags, may, must = examples.pixels, list[str](), examples.may_refuse, ""
    is_picture = pixels.ndim == 4
    kind = draw.pick(
        "pixels.mean", ("none", "one", "three"), faults=("two", "zero", "nan"), plain=0.6
    )
    if kind == "one" or (kind == "three" and not is_picture):
        flags, pixels = ["--mean", "0.5", "--std", "0.25"], (pixels - 0.5) / 0.25
        may = may or not is_picture
    elif kind == "three":
        flags = ["--mean", "0.25,0.5,0.75", "--std", "0.5,0.25,1"]
        mean, std = np.array([0.25, 0.5, 0.75]), np.array([0.5, 0.25, 1.0])
        rgb = np.repeat(pixels, 3, axis=1) if pixels.shape[1] == 1 else pixels
        pixels = (rgb - mean[:, None, None]) / std[:, None, None]
    elif kind != "none":
        flags = {
            "two": ["--mean", "0.1,0.2"],
            "zero": ["--std", "0"],
            "nan": ["--mean", "nan"],
        }[kind]
        must = "such a mean or deviation means nothing"
    if examples.remedy and draw.pick("pixels.remedy", (True, False)):
        return [*flags, *examples.remedy], pixels, False, must
    size = draw.pick("pixels.size", ("none", "same", "other"), faults=("zero", "word"), plain=0.7)
    if size == "same" and is_picture:
        flags += ["--size", f"{pixels.shape[2]}x{pixels.shape[3]}"]
    elif size == "other" and is_picture and examples.is_flat:
        flags += ["--size", "4x7"]
        pixels = np.broadcast_to(pixels[:, :, :1, :1], (*pixels.shape[:2], 4, 7))
    elif size in ("zero", "word"):
        flags += ["--size", "0" if size == "zero" else "4xx"]
        must = must or "such a size means nothing"
    return flags, pixels, may, must


def _precision(draw: Draw) -> tuple[str, list[str]]:
    precision = draw.pick("flag.precision", ("float32", "bfloat16"), plain=0.93)
    return precision, [] if precision == "float32" else ["--precision", precision]


def _asked(draw: Draw) -> tuple[list[str] | None, list[str], str]:
    """The scores to ask for, their flags, and why they cannot be had."""
    names = [name for name, spec in SCORES.items() if not spec.per_class]
    kind = draw.pick(
        "flag.scores", ("all", "some", "one"), faults=("unknown", "per class"), plain=0.7
    )
    some = draw.shuffled("flag.scores.names", names)
    if kind == "all":
        return None, [], ""
    if kind == "unknown":
        return None, ["--scores", "avhh"], "there is no such score"
    if kind == "per class":
        wide = [name for name, spec in SCORES.items() if spec.per_class]
        return None, ["--scores", wide[0]], "the score has a value per class"
    chosen = some[: 1 if kind == "one" else draw.whole("flag.scores.count", 2, 5)]
    return chosen, ["--scores", ",".join(chosen)], ""


_OUTS = ("run", "a b", "[/b]", "é/[red]", "deep/er/run", "-run", "run.parquet")


def scored(
    draw: Draw,
    folder: Path,
    flags: list[str],
    expected: Expected,
    *,
    must_refuse: str,
    may_refuse: bool,
    must_tell: str = "",
    net: Net | None = None,
) -> Iterator[Step]:
    """The command, and what may follow it."""
    depends_on = "" if net is None else net.depends_on
    asked, scores_flags, scores_must = _asked(draw)
    out = draw.pick("flag.out", _OUTS, plain=0.8)
    strict = draw.chance("flag.strict", 0.1)
    must = must_refuse or scores_must
    if strict and expected.errors:
        must = must or "an example cannot be read, and the run is strict"
    words = [*flags, *scores_flags, f"--out={out}"]
    words += ["--strict"] if strict else []
    for name, values in _SMALL_FLAGS.items():
        value = draw.pick(f"flag.{name}", values, plain=0.7)
        value = "100" if depends_on and name == "batch-size" else value  # all in one batch
        words += [f"--{name}", value] if value else []
    words = _by_file(draw, folder, words)

    def judge(answer: Answer) -> str:
        table = folder / out / "table.parquet"
        if answer.exit_code:
            if table.exists():
                return "refusal with a table: there is a table all the same"
            # one row of three classes does not show a factor: the words say what would
            few = "too few to tell a constant factor" in answer.output
            fine = must or may_refuse or few
            return "" if fine else f"refusal of what is fine: {answer.output}"
        if must:
            return f"accepted although {must}"
        if must_tell not in " ".join(answer.output.split()):
            return f"accepted without a word: expected {must_tell!r} in {answer.output!r}"
        fault = _complaint_about_telling(answer, net, is_whole=not expected.errors)
        if fault or depends_on == "draw":  # no oracle knows its numbers
            return fault
        may_lack = may_refuse or expected.outputs.features is None
        return complaint_about_table(table, expected, asked, may_lack=may_lack)

    yield Step(["score", *words], judge)
    if (folder / out / "table.parquet").exists() and depends_on != "draw":
        yield from _afterwards(draw, folder / out, ["score", *words], out)


_TELLING = {
    "batch": "depend on the other examples of its batch",
    "draw": "gives other logits for the same examples every time",
}


def _complaint_about_telling(answer: Answer, net: Net | None, *, is_whole: bool) -> str:
    """Whether a model whose rows depend on others, or on chance, was told of, and no other was.

    Args:
        answer: of the program.
        net: the model, if there is one.
        is_whole: all examples can be read, so that it is known which come first.
    """
    said = [kind for kind, text in _TELLING.items() if text in " ".join(answer.output.split())]
    if net is None or (said and said != [net.depends_on]):
        return f"told without need: {said}" if said else ""
    if net.must_tell and is_whole and not said:
        return f"accepted without a word: its rows depend on the {net.depends_on}"
    return ""


_SMALL_FLAGS = {
    "batch-size": ("", "1", "3", "8", "100"),
    "shard-rows": ("", "1", "5"),
    "thumbnails": ("", "0", "2"),
    "sample": ("", "in-sample", "out-of-sample"),
    "seed": ("", "7"),
    "device": ("", "cpu"),
}


def _by_file(draw: Draw, folder: Path, words: list[str]) -> list[str]:
    """The same settings in a TOML file."""
    if not draw.chance("flag.by file", 0.08):
        return words
    lines, at = [], 0
    while at < len(words):
        name, equals, value = words[at].removeprefix("--").partition("=")
        if not equals and name != "strict":
            at += 1
            value = words[at]
        key = name.replace("-", "_")
        if key in ("size", "mean", "std"):
            parts = value.split("x" if key == "size" else ",")
            text = "[" + ", ".join(parts * (2 if key == "size" and len(parts) == 1 else 1)) + "]"
        elif key == "scores":
            text = json.dumps(value.split(","))
        elif value.isdigit():
            text = value
        else:
            text = "true" if name == "strict" else json.dumps(value, ensure_ascii=False)
        lines.append(f"{key} = {text}")
        at += 1
    (folder / "score.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["score.toml"]


def _afterwards(draw: Draw, run: Path, words: list[str], out: str) -> Iterator[Step]:
    """The same again, on top of a finished run."""
    kinds = ("nothing", "again", "resume", "other", "overwrite", "report")
    kind = draw.pick("then", kinds, plain=0.75)
    content = (run / "table.parquet").read_bytes()

    def refused(answer: Answer) -> str:
        if (run / "table.parquet").read_bytes() != content:
            return "overwritten: the finished table is another one now"
        return "" if answer.exit_code else f"accepted: {kind} on top of a finished run"

    def same(answer: Answer) -> str:
        if answer.exit_code:
            return f"refusal of what is fine: {answer.output}"
        if (run / "table.parquet").read_bytes() != content:
            return "overwritten: the finished table is another one now"
        return ""

    def page(answer: Answer) -> str:
        if answer.exit_code:
            return f"refusal of what is fine: {answer.output}"
        return "" if (run / "report.html").stat().st_size > 1000 else "no page: it is empty"

    if kind == "again":
        yield Step(words, refused)
    elif kind == "resume":
        yield Step([*words, "--resume"], same)
    elif kind == "overwrite":
        yield Step([*words, "--overwrite"], same)
    elif kind == "other":
        yield Step([*words, "--resume", "--seed", "99", "--batch-size", "2"], refused)
    elif kind == "report":
        yield Step(["report", "--", out] if out.startswith("-") else ["report", out], page)
