"""Groups from what a user names to the table, the report and the card."""

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import hardsight as hs
from hardsight.cli import main
from hardsight.data import group_columns
from hardsight.errors import (
    DataError,
    HardsightWarning,
    MissingDataError,
    OptionError,
    RunMismatchError,
)

QUIET = {"device": "cpu", "workers": 0, "show_progress": False, "mean": (0.0,), "std": (1.0,)}
CLASSES = ("blue", "green", "red")
NET = """
import torch


class Brightest(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 3, bias=False)
        self.fc.weight.data = 8 * torch.eye(3).flip(0) - 3

    def forward(self, images):
        return self.fc(images.mean((2, 3)))
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Pictures in domain/class folders, dark at night in one of the domains, listed with facts."""
    root, draw = tmp_path_factory.mktemp("groups"), np.random.default_rng(0)
    (root / "net.py").write_text(NET)
    rows = ["path,label,light,age"]
    for domain in ("photo", "sketch"):
        for number, name in enumerate(CLASSES):
            (root / domain / name).mkdir(parents=True)
            for at in range(60):
                light = "night" if at % 2 else "day"
                is_dark = domain == "sketch" and light == "night"
                pixels = np.full((2, 2, 3), 90.0) + draw.normal(0, 10, 3)
                pixels[..., 2 - number] += 0 if is_dark else 60
                path = f"{domain}/{name}/{at:02d}.png"
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / path)
                rows.append(f"{path},{name},{light},{20 + at}")
    (root / "list.csv").write_text("\n".join(rows) + "\n")
    return root


def net(places):
    names = {}
    exec(places.joinpath("net.py").read_text(), names)
    return names["Brightest"]()


def test_groups_are_columns_and_the_planted_slice_is_on_report_and_card(places, tmp_path):
    data, asked = places / "list.csv", ("light", "folder:1", "age")
    table = hs.score(net(places), data, group=asked, out=tmp_path / "run", **QUIET)
    assert table.metadata["groups"] == ["light", "folder 1", "age"]
    frame = table.to_pandas()
    assert frame["folder 1"].tolist() == [name.split("/")[0] for name in frame["id"]]
    page = hs.write_report(tmp_path / "run").read_text()
    assert "light</bdi> = <b><bdi>night</bdi></b> and <bdi>folder 1</bdi> = <b><bdi>sketch" in page
    assert page.count("<b><bdi>day</bdi></b>") == 0
    assert "1: up to 34.8" in page  # numbers become quarters
    card = hs.evaluation_card(
        net(places), data, group=asked[:2], out=tmp_path / "card", attack_examples=0,
        explain_examples=0, map_examples=10, feature_examples=50, **QUIET,
    )  # fmt: skip
    slices = card["models"][0]["groups"]["slices"]
    assert [[list(pair) for pair in one["where"]] for one in slices] == [
        [["light", "night"], ["folder 1", "sketch"]]
    ]
    text = hs.write_card(tmp_path / "card").read_text()
    assert "Worst slices" in text
    assert "light</bdi> = <b><bdi>night" in text


def test_a_fair_attribute_raises_no_alarm(places, tmp_path):
    coins = np.random.default_rng(1).integers(0, 2, 360)
    table = hs.score(net(places), places / "list.csv", group={"coin": coins}, **QUIET)
    page = hs.write_report(table, out=tmp_path / "page.html").read_text()
    assert "No slice was found" in page
    assert 'id="groups"' in page


def test_a_report_without_groups_has_no_part_about_them(places, tmp_path):
    table = hs.score(net(places), places / "list.csv", **QUIET)
    assert 'id="groups"' not in hs.write_report(table, out=tmp_path / "page.html").read_text()


def test_groups_follow_chosen_rows_and_a_joined_table(places, tmp_path):
    joined = tmp_path / "facts.csv"
    joined.write_text("id,camera\nsketch/red/03.png,old\nphoto/blue/02.png,new\n")
    rows = [2, 4, 303]
    with pytest.warns(HardsightWarning, match=r"1 of 3 examples of .* are not in .*facts\.csv"):
        table = hs.score(
            net(places), places / "list.csv", rows=rows, group=f"{joined}:camera", **QUIET
        )
    assert table.column("index").tolist() == rows
    assert table.column("camera").tolist() == ["new", None, "old"]
    by_index = tmp_path / "numbers.csv"
    by_index.write_text("index,camera\n303,old\n2,new\n")
    source = hs.data.open_source(places / "list.csv", rows=rows)
    with pytest.warns(HardsightWarning, match="such as index '4': they are in no group"):
        found = group_columns(source, f"{by_index}:camera")
    assert found["camera"].tolist() == ["new", None, "old"]


def test_names_that_look_like_numbers_are_joined_as_names(tmp_path):
    texts = pd.DataFrame(
        {"id": ["7", "007", "x"], "text": ["a b", "c d", "e f"], "label": [0, 1, 1]}
    )
    source = hs.data.open_source(texts)
    (tmp_path / "sites.csv").write_text("id,site\n007,A\n7,B\nx,C\n")
    found = group_columns(source, f"{tmp_path / 'sites.csv'}:site")
    assert found["site"].tolist() == ["B", "A", "C"]
    (tmp_path / "sites.csv").write_text("id,site,site\n007,A,B\n7,B,A\nx,C,C\n")
    with pytest.raises(DataError, match=r"column 'site' is there twice in .*sites\.csv"):
        group_columns(source, f"{tmp_path / 'sites.csv'}:site")


def test_columns_of_parquet_and_of_hugging_face_datasets_are_groups(places, tmp_path):
    import datasets
    import pandas as pd

    files = sorted((places / "photo").rglob("*.png"))[::20]
    frame = pd.DataFrame({
        "image": [{"bytes": file.read_bytes(), "path": file.name} for file in files],
        "label": np.arange(len(files)) % 3,
        "site": [f"s{at % 2}" for at in range(len(files))],
    })  # fmt: skip
    frame.to_parquet(tmp_path / "photos.parquet")
    sites = frame["site"].tolist()
    stored = hs.data.open_source(tmp_path / "photos.parquet")
    assert group_columns(stored, "site")["site"].tolist() == sites
    features = {"image": datasets.Image(), "label": datasets.Value("int64"),
                "site": datasets.ClassLabel(names=["s0", "s1"])}  # fmt: skip
    columns = {"image": [str(f) for f in files], "label": frame["label"].tolist(),
               "site": [at % 2 for at in range(len(files))]}  # fmt: skip
    hub = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    assert group_columns(hs.data.open_source(hub), "site")["site"].tolist() == sites


def test_a_run_with_other_groups_is_not_continued(places, tmp_path):
    options = {"out": tmp_path / "run", **QUIET}
    hs.score(net(places), places / "list.csv", group="light", **options)
    with pytest.raises(RunMismatchError, match="other groups"):
        hs.score(net(places), places / "list.csv", group="age", resume=True, **options)


@pytest.mark.parametrize(
    ("group", "error", "said"),
    [
        ("lights", DataError, r"unknown group column 'lights'\. Did you mean 'light'"),
        ("folder:7", DataError, "no example of .* lies 7 folders deep"),
        ("folder:first", OptionError, "expected folder:1, folder:2 or the like"),
        (("light", "light"), OptionError, "two groups are called 'light'"),
        ("none.csv:x", MissingDataError, r"no table at none\.csv"),
        ("label", OptionError, "has a column 'label' of its own"),
        ({"coin": [1, 2]}, DataError, "each of the 360 examples of .*, got shape"),
    ],
)
def test_a_group_that_is_not_there_is_refused(places, group, error, said):
    with pytest.raises(error, match=said):
        hs.score(net(places), places / "list.csv", group=group, **QUIET)


def test_tables_that_cannot_be_joined_are_refused(places, tmp_path):
    source = hs.data.open_source(places / "list.csv")

    def joined(text, column="camera"):
        (tmp_path / "facts.csv").write_text(text)
        return group_columns(source, f"{tmp_path / 'facts.csv'}:{column}")

    with pytest.raises(DataError, match="a column id, path or index in"):
        joined("name,camera\na,old\n")
    with pytest.raises(DataError, match=r"unknown group column 'camera'"):
        joined("id,lens\na,old\n")
    with pytest.raises(DataError, match="more than one row for id 'a'"):
        joined("id,camera\na,old\na,new\n")
    with pytest.raises(DataError, match=r"no example of .* is in .*: it names id 'a', the data"):
        joined("id,camera\na,old\n")
    stream = hs.data.open_source(iter([(torch.zeros(3), 0)]))
    with pytest.raises(OptionError, match="is a stream"):
        group_columns(stream, "light")


def test_the_command_line_takes_groups(places, tmp_path):
    words = ["score", "--model", f"{places / 'net.py'}:Brightest", "--data",
             str(places / "list.csv"), "--mean", "0", "--std", "1", "--device", "cpu",
             "--out", str(tmp_path / "run")]  # fmt: skip
    done = CliRunner().invoke(main, [*words, "--group", "light,folder:1"])
    assert done.exit_code == 0, done.output
    assert hs.read_table(tmp_path / "run").metadata["groups"] == ["light", "folder 1"]
    refused = CliRunner().invoke(main, [*words[:-1], str(tmp_path / "x"), "--group", "lite"])
    assert refused.exit_code == 2
    assert "unknown group column 'lite'" in refused.output


def test_a_group_of_one_example_is_shown_without_an_interval(places, tmp_path):
    alone = {"camera": ["only once", *["usual"] * 359]}
    hs.score(net(places), places / "list.csv", group=alone, out=tmp_path / "run", **QUIET)
    hs.evaluation_card(
        net(places), places / "list.csv", group=alone, out=tmp_path / "card",
        attack_examples=0, explain_examples=0, map_examples=10, feature_examples=50, **QUIET,
    )  # fmt: skip
    for page in (hs.write_report(tmp_path / "run"), hs.write_card(tmp_path / "card")):
        row = page.read_text().split("<bdi>only once</bdi>")[1].split("</tr>")[0]
        assert "– to –" not in row
        usual = page.read_text().split("<bdi>usual</bdi>")[1].split("</tr>")[0]
        assert usual.count(" to ") > row.count(" to ") == 1  # that of the accuracy
