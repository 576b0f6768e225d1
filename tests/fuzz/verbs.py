"""Cases of the other commands, and of any command with any value for any of its flags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from scipy.stats import spearmanr

from hardsight.cli import main
from hardsight.models import MODELS
from tests.fuzz.cases import Step
from tests.fuzz.draw import Array, Draw
from tests.fuzz.judge import Answer
from tests.fuzz.nets import make_net
from tests.fuzz.oracle import Expected, Outputs, decided, expected_scores

_NAMES = ("ant", "bee", "cat")


def _fine(answer: Answer) -> str:
    return f"refusal of what is fine: {answer.output}" if answer.exit_code else ""


def _anything(answer: Answer) -> str:
    """Any answer will do that is an answer at all."""
    return ""


def _photos(draw: Draw, folder: Path, *, size: int = 4) -> tuple[Array, Expected]:
    """A few pictures in class folders: what a model is fed, and their rows without outputs."""
    count = draw.whole("photos.count", 9, 18)
    pictures = draw.bytes_of("photos", count, size, size, 3).astype(np.uint8)
    labels = np.sort(np.arange(count) % len(_NAMES))
    ids = [f"{_NAMES[label]}/{at:02d}.png" for at, label in enumerate(labels)]
    for name, picture in zip(ids, pictures, strict=True):
        (folder / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / "photos" / name)
    nothing = Outputs(np.zeros((count, 1)), None, np.zeros((1, 1)), np.zeros(count))
    rows = Expected(list(range(count)), ids, labels, list(_NAMES), nothing)
    return (pictures / 255).transpose(0, 3, 1, 2), rows


def _with_net(draw: Draw, folder: Path) -> tuple[list[str], Expected]:
    """A network that is found at once on a few pictures: its flags, and the rows."""
    inputs, rows = _photos(draw, folder)
    net = make_net(_Plainly(draw), folder, inputs, len(_NAMES))
    rows.outputs = net.outputs
    return net.flags, rows


class _Plainly(Draw):
    """Numbers at random, every choice the plain one."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw.seed, draw.number)
        self._is_faulty = False

    def pick(self, name: str, options: Any, **how: Any) -> Any:
        return options[0]


# --- evaluate


def evaluate(draw: Draw, folder: Path) -> Iterator[Step]:
    """A card whose means can be worked by hand."""
    (_, model), rows = _with_net(draw, folder)
    words = ["evaluate", model, "--data", "photos", "--out", "card", "--workers", "0"]
    words += draw.pick("evaluate.attacks", _ATTACKS)
    words += draw.pick("evaluate.maps", (["--explain-examples", "0"], []))
    words += draw.pick("evaluate.more", _MORE)

    def judge(answer: Answer) -> str:
        return _fine(answer) or _complaint_about_card(folder / "card" / "card.json", rows)

    yield Step(words, judge)


_ATTACKS = (
    ["--attack-examples", "0"],
    ["--mean", "0", "--std", "1", "--attack-steps", "2", "--epsilons", "0,1/255"],
)
_MORE: tuple[list[str], ...] = (
    [],
    ["--ood", "photos"],
    ["--train", "photos"],
    ["--compare", "other=net.py:make", "--batch-size", "2"],
)


def _complaint_about_card(file: Path, rows: Expected) -> str:
    card = json.loads(file.read_text(encoding="utf-8"))["models"][0]
    scores = {name: values for name, (values, _) in
              expected_scores(rows.outputs, rows.labels).items()}  # fmt: skip
    right = (rows.outputs.logits.argmax(axis=1) == rows.labels).mean()
    wanted = {
        "margin": (card["margin"]["all"]["mean"], scores["logit_margin"].mean()),
        "norm": (card["norm"]["all"]["mean"], scores["feature_norm"].mean()),
        "angle": (card["angle"]["all"]["mean"], scores["target_angle"].mean()),
    }
    if decided(rows.outputs.logits, rows.outputs.tolerance).all():
        wanted["accuracy"] = (card["accuracy"]["top1"]["value"], right)
    for name, (value, truth) in wanted.items():
        if abs(value - truth) > 1e-3 * (1 + abs(truth)):
            return f"card: {name}: expected {truth}, got {value}"
    return ""


# --- study


def study_human(draw: Draw, folder: Path) -> Iterator[Step]:
    """Scores against a file of human frequencies."""
    flags, rows = _with_net(draw, folder)
    yield Step(["score", *flags, "--data", "photos", "--out", "run"], _fine)
    people = draw.bytes_of("people", len(rows.ids), high=101) / 100
    fault = draw.pick("people.fault", ("none",), faults=_PEOPLE_FAULTS, plain=0.2)
    kind = draw.pick("people.file", ("index", "id", "name", "byte order mark"))
    keys = {
        "index": [str(at) for at in rows.index],
        "name": [name.split("/")[1] for name in rows.ids],
    }.get(kind, rows.ids)
    lines = [f"{key},{value}" for key, value in zip(keys, people.tolist(), strict=True)]
    header = "index,frequency" if kind == "index" else "id,human_frequency"
    text = _with_fault(fault, header, lines)
    encoding = {"latin-1": "latin-1", "utf-16": "utf-16"}.get(fault, "utf-8")
    encoding = "utf-8-sig" if kind == "byte order mark" and encoding == "utf-8" else encoding
    (folder / "people.csv").write_bytes(text.encode(encoding))

    def judge(answer: Answer) -> str:
        if fault != "none":
            return "" if answer.exit_code else f"accepted although people.csv is {fault}"
        return _fine(answer) or _complaint_about_study(folder, rows, people)

    words = ["study", "human", "run", "--human", "people.csv"]
    words += draw.pick("people.scores", ([], ["--scores", "avh,model_confidence"]))
    yield Step(words, judge, without=_figures(draw))


def _figures(draw: Draw) -> tuple[str, ...]:
    """Drawing takes ten times as long as all else of a study, so few draw: others cannot."""
    return () if draw.chance("study.figures", 0.15) else ("matplotlib",)


_PEOPLE_FAULTS = (
    "latin-1",
    "utf-16",
    "above one",
    "words",
    "twice",
    "empty",
    "no header",
    "strange",
)


def _with_fault(fault: str, header: str, lines: list[str]) -> str:
    lines = {
        "latin-1": [*lines, "é,0.5"],
        "above one": [*lines[:-1], lines[-1].rpartition(",")[0] + ",1.5"],
        "words": [*lines[:-1], lines[-1].rpartition(",")[0] + ",often"],
        "twice": [*lines, lines[0]],
        "empty": [],
    }.get(fault, lines)
    header = {"no header": "", "strange": "when,where", "empty": ""}.get(fault, header)
    return "\n".join([header, *lines] if header else lines) + ("\n" if lines else "")


def _complaint_about_study(folder: Path, rows: Expected, people: Array) -> str:
    content = json.loads((folder / "run" / "study-human" / "study.json").read_text())["result"]
    known = expected_scores(rows.outputs, rows.labels)
    for score in content["scores"]:
        if score["name"] not in ("avh", "model_confidence"):
            continue
        values = known[score["name"]][0]
        if len(np.unique(np.round(values, 3))) < len(values):  # rounding may turn near ties round
            continue
        wanted = float(spearmanr(values, people).statistic)
        if abs(score["correlations"]["spearman"]["value"] - wanted) > 1e-6:
            return f"study: {score['name']}: expected {wanted}, got {score['correlations']}"
    return ""


def study_degradation(draw: Draw, folder: Path) -> Iterator[Step]:
    """The same pictures at levels of noise."""
    flags, _ = _with_net(draw, folder)
    words = ["study", "degradation", *flags, "--data", "photos", "--out", "study"]
    words += draw.pick(
        "degradation.levels",
        (["--noise", "0,0.2", "--contrast", "1,0.5"],
         ["--noise", "0,0.2", "--contrast", "1,0.5", "--limit", "4"]),
        faults=(["--noise", "0"], ["--contrast", "1,-1"], ["--noise", "nan,0"], ["--limit", "1"],
                ["--noise", "0,x"], ["--scores", "nothing"]),
    )  # fmt: skip
    is_faulty = words[-1] in ("0", "1", "1,-1", "nan,0", "0,x", "nothing")
    yield Step(words, _anything if is_faulty else _fine, without=_figures(draw))


# --- adapt


def adapt(draw: Draw, folder: Path) -> Iterator[Step]:
    """One round of self-training."""
    flags, _ = _with_net(draw, folder)
    words = ["adapt", *flags, "--source", "photos", "--target", "photos", "--out", "run"]
    words += ["--rounds", "1", "--epochs", "1", "--batch-size", "8", "--device", "cpu"]
    words += ["--set", "source.validation=0", "--set", "workers=0"]
    words += draw.pick("adapt.source epochs", (["--source-epochs", "0"], ["--source-epochs", "1"]))
    words += draw.pick("adapt.rule", tuple(["--rule", rule] for rule in _RULES), plain=0.2)
    words += draw.pick(
        "adapt.more",
        ([], ["--unlabelled"], ["--portion", "1", "--portion-max", "1"]),
        faults=(["--portion", "0"], ["--portion", "nan"], ["--portion-max", "0.1"],
                ["--rule", "nothing"], ["--set", "target.nothing=1"], ["--set", "alpha=word"],
                ["--set", "nothing"], ["--target", "nowhere"], ["--head", "body"]),
    )  # fmt: skip
    faulty = words[-2:] in (["--portion", "0"], ["--portion", "nan"], ["--portion-max", "0.1"])
    refused = words[-1] in ("nothing", "target.nothing=1", "alpha=word", "nowhere")

    def judge(answer: Answer) -> str:
        if refused:
            return "" if answer.exit_code else f"accepted although {words[-1]} means nothing"
        return "" if faulty or words[-1] == "body" else _fine(answer)

    yield Step(words, judge)


_RULES = ("cbst", "cbst+avh", "avc", "crst-mrkld", "crst-lrent", "source-only", "entropy",
          "threshold", "crst", "bn-only")  # fmt: skip


# --- networks of the registry


def named_model(draw: Draw, folder: Path) -> Iterator[Step]:
    """A network by name, with weights from a seed: its table must agree with itself."""
    name = draw.pick("model", list(MODELS), plain=0.3)
    _, rows = _photos(draw, folder, size=32)
    options = draw.pick("model.options", ("", ":channels=3", ":nothing=1"), plain=0.7)
    flags = ["--model", f"{name}{options}", "--num-classes", "3", "--mean", "0.5,0.5,0.5"]
    table = folder / "run" / "table.parquet"

    def judge(answer: Answer) -> str:
        if answer.exit_code:  # networks of other channels or sizes
            return "refusal with a table: there is a table all the same" if table.exists() else ""
        return _complaint_about_itself(table, rows)

    yield Step(["score", *flags, "--data", "photos", "--out", "run"], judge)


def _complaint_about_itself(file: Path, rows: Expected) -> str:
    """Logits are not known, but margin, confidence and prediction must tell the same story."""
    table = pq.read_table(file).to_pandas()
    if table["id"].tolist() != rows.ids or table["label"].tolist() != rows.labels.tolist():
        return f"rows: expected {rows.ids}, got {table['id'].tolist()}"
    right = table["prediction"] == table["label"]
    sure = table["logit_margin"].abs() > 1e-4
    if ((table["logit_margin"] > 0) != right)[sure].any():
        return "prediction: the margin tells another story"
    if not np.allclose(np.log(table["model_confidence"]),
                       table["free_energy"] - table["conditional_energy"], atol=1e-3):  # fmt: skip
        return "model_confidence: the energies tell another story"
    nearest = (table["angular_margin"] > 1e-4) & (table["avh"] >= 1 / 3)
    return "avh: the angular margin tells another story" if nearest.any() else ""


# --- any flag


def any_flags(draw: Draw, folder: Path) -> Iterator[Step]:
    """A command that works, with some of its flags set to anything."""
    flags, _ = _with_net(draw, folder)
    name = draw.pick("command", list(_BASES), plain=0.4)
    if name == "report":
        yield Step(["score", *flags, "--data", "photos", "--out", "run"], _fine)
    words = [*name.split(), *_BASES[name]]
    command: Any = main
    context = click.Context(main)
    for part in name.split():
        command = command.get_command(context, part)
    # --verbose asks for the traceback that no other answer may have
    options = [p for p in command.params if isinstance(p, click.Option) and p.name != "verbose"]
    for at in range(draw.whole("flags", 1, 3) if options else 0):
        option = draw.pick(f"flag {at}", options, plain=0.01)
        words.append(option.opts[0])
        if not option.is_flag:
            words.append(draw.pick(f"flag {at}.value", _values(option), plain=0.1))
    yield Step(words, _anything, without=_figures(draw))


_BASES: dict[str, list[str]] = {
    "score": ["--model", "net.py:make", "--data", "photos", "--out", "run"],
    "evaluate": ["net.py:make", "--data", "photos", "--out", "card", "--attack-examples", "0",
                 "--explain-examples", "0"],
    "report": ["run"],
    "study degradation": ["--model", "net.py:make", "--data", "photos", "--noise", "0,0.1",
                          "--contrast", "1,0.5"],
    "adapt": ["--model", "net.py:make", "--source", "photos", "--target", "photos", "--out", "run",
              "--rounds", "1", "--source-epochs", "0", "--epochs", "1", "--set",
              "source.validation=0"],
    "experiment list": [],
    "doctor": [],
}  # fmt: skip
# more of these is a legal wish for hours of work, or for many processes
_COSTLY = {"--epochs", "--rounds", "--source-epochs", "--attack-steps", "--workers",
           "--num-classes"}  # fmt: skip
_TEXTS = ("nowhere", "", "a b", "[/b]", ".", "photos", "net.py", "0", "nan", "é", "x=y", "a,b", "/",
          "net.py:make", "net.py:Net", "builtin:digits", "nothing:at=all", "*.py", "-1",
          "1,2,3", "photos/ant", "head", "body")  # fmt: skip


def _values(option: click.Option) -> list[str]:
    numbers = ["1", "0", "-1", "2", "x", "1.5", "", "nan", "1e3"]
    if option.opts[0] not in _COSTLY:
        numbers.append(str(10**20))
    kind = option.type
    if isinstance(kind, click.Choice):
        # a cluster takes seconds to start; tests/run/test_ray.py has one
        return [choice for choice in (*kind.choices, "x", "") if choice != "ray"]
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return numbers
    if option.opts[0] == "--set":
        return ["seed=1", "seed=word", "nothing=1", "", "=", "size=[1,2", "device=3", "model=3",
                "workers=-1", "a.b.c=1", "model.name.x=1"]  # fmt: skip
    if option.opts[0] == "--size":
        return ["4", "4x4", "0", "4x", "x", "3x5", "-4", "99999x99999"]
    return [*_TEXTS]


# --- report


def report(draw: Draw, folder: Path) -> Iterator[Step]:
    """A page about something that may be no run at all."""
    flags, _ = _with_net(draw, folder)
    yield Step(["score", *flags, "--data", "photos", "--out", "run"], _fine)
    what = draw.pick("report.of", ("run",), faults=("photos", "nowhere", "net.py", "broken"))
    if what == "broken":
        (folder / "broken").mkdir()
        content = (folder / "run" / "table.parquet").read_bytes()
        (folder / "broken" / "table.parquet").write_bytes(content[: len(content) // 2])
    title = draw.pick("report.title", ("", "<script>alert(1)</script>", "[/b] {{ x }}", "é"))
    words = ["report", what, *(["--title", title] if title else [])]
    out = draw.pick("report.out", ("", "page.html", "deep/er/page.html", "photos"), plain=0.6)
    words += ["--out", out] if out else []

    def judge(answer: Answer) -> str:
        if what != "run":
            return "" if answer.exit_code else f"accepted although {what} is not a run"
        if answer.exit_code:
            return "" if out == "photos" else f"refusal of what is fine: {answer.output}"
        page = (folder / (out or "run/report.html")).read_text(encoding="utf-8")
        return "page: a title is code in it" if "<script>alert(1)" in page else ""

    yield Step(words, judge)
