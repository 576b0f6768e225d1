"""What the README tells a stranger to type."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import hardsight as hs
from hardsight.run.train import TrainConfig

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
    exec(compile(code, "README.md", "exec"), {})
    table = hs.read_table("runs/reviews")
    assert len(table.suspects(5)) == 5
    assert table.metadata["data"]["spec"] == "reviews.csv"
    (guide,) = blocks("python", '"reviews.csv", sample', GUIDES[1].read_text(encoding="utf-8"))
    assert code.splitlines()[:-1] == [
        line.partition("  #")[0] for line in guide.splitlines()[: len(code.splitlines()) - 1]
    ]


def test_the_recipe_of_the_readme_is_one_and_the_guide_has_the_same(tmp_path):
    (recipe,) = blocks("toml", "photos/")
    file = tmp_path / "recipe.toml"
    file.write_text(recipe)
    config = TrainConfig.load(file)
    assert (config.data.name, config.track, config.out) == ("photos/", True, "runs/first")
    (again,) = blocks("toml", "photos/", GUIDES[0].read_text(encoding="utf-8"))
    assert tomllib.loads(again) == tomllib.loads(recipe)
