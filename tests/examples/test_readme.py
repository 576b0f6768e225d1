"""What the README tells a stranger to type."""

from __future__ import annotations

import re
import shlex
import tomllib
from contextlib import closing
from pathlib import Path

import numpy as np
from click.testing import CliRunner

import hardsight as hs
from hardsight.cli import main
from hardsight.run.train import TrainConfig
from tests.review import made

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = [ROOT / "docs" / "guides" / f"{name}.md" for name in ("label-errors", "text")]


def blocks(kind: str, word: str, page: str = README) -> list[str]:
    return [code for code in re.findall(rf"```{kind}\n(.*?)```", page, re.S) if word in code]


def test_a_csv_of_texts_is_scored_by_a_bag_of_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = ["a fine film", "a dull film", "fine and warm", "cold and dull"] * 5
    rows = [f"{text},{int('fine' in text)}" for text in texts]
    Path("reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (code,) = blocks("python", '"reviews.csv"')
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    table = hs.read_table("runs/reviews")
    assert len(table.suspects(5)) == 5
    assert table.metadata["data"]["spec"] == "reviews.csv"
    (guide,) = blocks("python", '"reviews.csv", sample', GUIDES[1].read_text(encoding="utf-8"))
    assert code.splitlines()[:-1] == [
        line.partition("  #")[0] for line in guide.splitlines()[: len(code.splitlines()) - 1]
    ]


def test_the_path_of_texts_ends_with_two_models_to_compare(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = ["a fine film", "a dull film", "fine and warm", "cold and dull"] * 5
    rows = [f"{text},{int('fine' in text)}" for text in texts]
    for file in ("reviews.csv", "reviews-test.csv"):
        Path(file).write_text("\n".join(["text,label", *rows]) + "\n")
    Path("reviews.csv").write_text(Path("reviews.csv").read_text() + "a fine day,0\n")
    names: dict[str, object] = {}
    (first,), (then,) = blocks("python", '"reviews.csv"'), blocks("python", "reviews-fixed.csv")
    exec(compile(first, "README.md", "exec"), names)
    with closing(made.App(Path("runs/reviews"))) as app:
        assert app.decide(vars(app.example(20)), "relabel", 1).status_code == 200
    (typed,) = blocks("console", "reviews-fixed.csv")
    patches = [line[2:] for line in typed.splitlines() if line.startswith("$ hardsight patch")]
    assert len(patches) == 2
    for line in patches:
        assert CliRunner().invoke(main, shlex.split(line)[1:]).exit_code == 0, line
    assert "a fine day,1" in Path("reviews-fixed.csv").read_text()
    capsys.readouterr()
    exec(compile(then, "README.md", "exec"), names)
    assert len(capsys.readouterr().out.split()) == 2  # an accuracy each


def test_stored_embeddings_are_scored_and_fixed_as_the_readme_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    labels = np.arange(90) % 3
    rows = draw.normal(size=(90, 4)).astype(np.float32)
    rows[np.arange(90), labels] += 9
    labels[0] = 1
    np.save("embeddings.npy", rows)
    np.save("labels.npy", labels)
    (typed,) = blocks("console", "labels-fixed.npy")
    score, *_, export, apply = [line[2:] for line in typed.splitlines()]
    assert CliRunner().invoke(main, shlex.split(score)[1:]).exit_code == 0
    with closing(made.App(Path("runs/stored"))) as app:
        # among the first, not the first: one wrong label of 90 can turn a head against others too
        (item,) = (one for one in app.queue()["items"] if one["index"] == 0)
        assert app.decide(item, "relabel", 0).status_code == 200
    for line in (export, apply):
        assert CliRunner().invoke(main, shlex.split(line)[1:]).exit_code == 0, line
    assert np.load("labels-fixed.npy").tolist() == [0, *labels[1:].tolist()]


def test_the_recipe_of_the_readme_is_one_and_the_guide_has_the_same(tmp_path):
    (recipe,) = blocks("toml", "photos/")
    file = tmp_path / "recipe.toml"
    file.write_text(recipe)
    config = TrainConfig.load(file)
    assert (config.data.name, config.track, config.out) == ("photos/", True, "runs/first")
    (again,) = blocks("toml", "photos/", GUIDES[0].read_text(encoding="utf-8"))
    assert tomllib.loads(again) == tomllib.loads(recipe)
