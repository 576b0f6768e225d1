"""Columns that the user names: they are the ones that are read, in every form that has columns."""

import datasets
import numpy as np
import pandas as pd
import pytest

from hardsight.data import group_columns, open_source
from hardsight.errors import DataError, OptionError, UnknownPartError

STARS, LABELS = [0, 1] * 3, [1, 0, 0, 1, 0, 0]  # two columns of labels that disagree
HEADS = {"embeddings": {"class_weights": np.eye(2, 4)}}
FORMS = [
    ("parquet", "pictures"),
    ("parquet", "paths"),
    ("parquet", "texts"),
    ("parquet", "embeddings"),
    ("frame", "pictures"),
    ("frame", "paths"),
    ("frame", "texts"),
    ("frame", "embeddings"),
    ("csv", "paths"),
    ("csv", "texts"),
    ("dataset", "pictures"),
    ("dataset", "texts"),
]
every_form = pytest.mark.parametrize(("kind", "holds"), FORMS)


@pytest.fixture
def written(tmp_path, png_bytes, write_parquet, monkeypatch):
    """Write six examples in a form, with some of their columns."""
    monkeypatch.chdir(tmp_path)  # paths of a frame start there
    pictures = [png_bytes((number, 0, 0)) for number in range(6)]
    names = [f"{number}.png" for number in range(6)]
    for name, picture in zip(names, pictures, strict=True):
        (tmp_path / name).write_bytes(picture)
    vectors = np.random.default_rng(0).normal(size=(6, 4)).tolist()
    cells = {
        "pictures": {"image": pictures, "scan": pictures[::-1]},
        "paths": {"path": names, "scan": names[::-1]},
        "texts": {"text": [f"film {name}" for name in names]},
        "embeddings": {"embedding": vectors},
    }

    def write(kind, holds, *, without=()):
        columns = cells[holds] | {"stars": STARS, "label": LABELS}
        columns = {name: column for name, column in columns.items() if name not in without}
        if kind == "parquet":
            return write_parquet(tmp_path / "x.parquet", columns)
        if kind == "dataset":
            made = datasets.Dataset.from_dict(columns)
            return made.cast_column("image", datasets.Image()) if holds == "pictures" else made
        if kind == "frame":
            return pd.DataFrame(columns)
        pd.DataFrame(columns).to_csv(tmp_path / "x.csv", index=False)
        return tmp_path / "x.csv"

    return write


@every_form
def test_the_labels_are_those_of_the_column_that_is_named(written, kind, holds):
    data, head = written(kind, holds), HEADS.get(holds, {})
    assert open_source(data, **head).labels.tolist() == LABELS
    assert open_source(data, label_column="stars", **head).labels.tolist() == STARS
    alone = written(kind, holds, without=["label"])
    assert open_source(alone, label_column="stars", **head).labels.tolist() == STARS


@every_form
def test_a_column_that_is_not_there_is_refused_by_name(written, kind, holds):
    said = r"no column 'nope' in .*: it has .*stars.*; pass label_column= \(--label-column\)"
    with pytest.raises(UnknownPartError, match=said):
        open_source(written(kind, holds), label_column="nope", **HEADS.get(holds, {}))


@pytest.mark.parametrize(("kind", "holds"), [form for form in FORMS if form[1] != "embeddings"])
def test_the_columns_of_a_group_that_is_not_there_are_listed(written, kind, holds):
    source = open_source(written(kind, holds))
    with pytest.raises(UnknownPartError, match=r"unknown group column 'star'.*mean 'stars'"):
        group_columns(source, "star")


@every_form
def test_without_a_column_of_labels_the_message_says_how_to_name_one(written, kind, holds):
    data = written(kind, holds, without=["label"])
    with pytest.raises(DataError, match=r"label_column= \(--label-column\)"):
        open_source(data, **HEADS.get(holds, {}))


def test_of_a_table_with_many_columns_a_message_lists_a_few():
    wide = pd.DataFrame(np.eye(2, 5000), columns=[f"f{number}" for number in range(5000)])
    wide.insert(0, "text", ["a film", "a plot"])
    for more, said in (({}, "no column of labels"), ({"label_column": "nope"}, "no column 'nope'")):
        with pytest.raises(DataError, match=said + r".* f10 and 4,989 more; ") as caught:
            open_source(wide, **more)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("kind", "holds"), [form for form in FORMS if form[1] in ("pictures", "paths")]
)
def test_the_pictures_are_those_of_the_column_that_is_named(written, kind, holds):
    if kind == "dataset":
        with pytest.raises(OptionError, match="image_column cannot be used here"):
            open_source(written(kind, holds), image_column="scan")
        return
    source = open_source(written(kind, holds), image_column="scan")
    assert [source[at].content.getpixel((0, 0))[0] for at in range(6)] == [5, 4, 3, 2, 1, 0]
    with pytest.raises(UnknownPartError, match=r"no column 'nope' in .*; pass image_column="):
        open_source(written(kind, holds), image_column="nope")


def test_a_column_of_labels_beside_labels_is_refused(written):
    data = written("parquet", "embeddings")
    for given in (data, pd.read_parquet(data)):
        with pytest.raises(OptionError, match="label_column cannot be used here: labels are given"):
            open_source(given, labels=STARS, label_column="stars", **HEADS["embeddings"])


def test_data_without_columns_takes_none(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 2, 2), np.uint8), labels=[0, 1, 0, 1])
    for data in (tmp_path / "x.npz", "builtin:digits"):
        with pytest.raises(OptionError, match="label_column cannot be used here"):
            open_source(data, label_column="stars")
