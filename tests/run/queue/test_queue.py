"""Which examples of a pool to label next, from a model to a list that review opens."""

import gc
import warnings

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import hardsight as hs
from hardsight.cli import main
from hardsight.errors import (
    DataError,
    HardsightWarning,
    ModelError,
    OptionError,
    RunExistsError,
)
from hardsight.run.queue import RULES, k_centres, ranked
from tests.review.made import App

QUIET = {"device": "cpu", "workers": 0, "show_progress": False, "mean": (0.0,), "std": (1.0,)}
NET = """
import torch


class Colours(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 3, bias=False)
        self.fc.weight.data = 4 * torch.eye(3)

    def forward(self, images):
        return self.fc(images.mean((2, 3)))
"""


@pytest.fixture
def pool(tmp_path):
    """Loose pictures, from clearly red to half red and half green, and some blue ones."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "pool" / "deep").mkdir(parents=True)
    for at in range(20):
        pixels = np.zeros((4, 4, 3), np.uint8)
        pixels[..., 0], pixels[..., 1] = 200, 10 * at  # the last ones are between red and green
        if at >= 15:
            pixels[...] = (0, 10 * (at - 15), 250)
        folder = tmp_path / "pool" / ("deep" if at % 2 else "")
        Image.fromarray(pixels).save(folder / f"{at:02d}.png")
    return tmp_path / "pool"


def net(pool):
    names = {}
    exec((pool.parent / "net.py").read_text(), names)
    return names["Colours"]()


def test_the_most_uncertain_come_first(pool):
    for by in ("margin", "entropy", "angular_margin", "avc"):
        table = hs.queue(net(pool), pool, unlabelled=True, budget=4, by=by, **QUIET)
        assert table.column("id").tolist()[0] == "14.png"
        assert table.column("urgency").tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])
        assert set(table.column("label").tolist()) == {-1}


def test_columns_are_what_they_say(pool):
    table = hs.queue(net(pool), pool, unlabelled=True, budget=20, **QUIET)
    source = hs.data.unlabelled_source(pool)
    frame = table.to_pandas().sort_values("index")
    weights = 4 * np.eye(3)
    for row in frame.itertuples():
        rgb = np.asarray(source[row.index].content, float).mean((0, 1)) / 255
        logits = weights @ rgb
        probs = np.exp(logits) / np.exp(logits).sum()
        first, second = np.sort(probs)[::-1][:2]
        angles = np.arccos(np.clip(weights @ rgb / (4 * np.linalg.norm(rgb)), -1, 1))
        assert row.id == source.id_of(row.index)
        assert row.prediction == probs.argmax()
        assert row.probability_gap == pytest.approx(first - second, abs=1e-5)
        assert row.entropy == pytest.approx(-(probs * np.log(probs)).sum(), abs=1e-5)
        assert row.angle_gap == pytest.approx(np.diff(np.sort(angles)[:2])[0], abs=1e-3)
        closeness = np.pi - angles
        assert row.avc == pytest.approx(closeness.max() / closeness.sum(), abs=1e-4)


def test_classes_are_mixed_if_wanted(pool):
    table = hs.queue(net(pool), pool, unlabelled=True, budget=6, balanced=True, **QUIET)
    assert np.bincount(table.column("prediction"), minlength=3).tolist() == [3, 0, 3]
    plain = hs.queue(net(pool), pool, unlabelled=True, budget=6, **QUIET)
    assert set(plain.column("prediction").tolist()) == {0}


def test_coverage_takes_the_farthest_next():
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(300, 5)).astype(np.float32)
    got = k_centres(rows, 12)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    taken = [int((units @ units.sum(axis=0)).argmax())]
    while len(taken) < 12:  # the definition, without chunks
        taken.append(int((units @ units[taken].T).max(axis=1).argmin()))
    assert got.tolist() == taken


def test_coverage_spreads_over_the_pool(pool):
    table = hs.queue(net(pool), pool, unlabelled=True, budget=2, by="coverage", **QUIET)
    assert sorted(table.column("prediction").tolist()) == [0, 2]


@pytest.mark.parametrize("by", RULES)
def test_what_is_not_finite_is_never_taken(by):
    draw = np.random.default_rng(1)
    predictions = np.where(np.arange(40) % 4 == 0, -1, np.arange(40) % 3)
    columns = {name: draw.random(40) for name in ("entropy", "probability_gap", "angle_gap", "avc")}
    embeddings = draw.normal(size=(40, 3)).astype(np.float32)
    for balanced in (False, True):
        rows = ranked(
            columns, predictions, budget=30, by=by, balanced=balanced, embeddings=embeddings
        )
        assert sorted(rows.tolist()) == np.flatnonzero(predictions >= 0).tolist()
    with pytest.raises(OptionError, match="from 1 to the 30 usable examples of the pool, got 31"):
        ranked(columns, predictions, budget=31, by=by, embeddings=embeddings)


def test_what_cannot_be_queued_is_counted(pool):
    class Blank(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net(pool)

        def forward(self, images):
            blue = images[:, 2, 0, 0] > 0.9
            return self.inner(torch.where(blue[:, None, None, None], torch.nan, images))

    (pool / "broken.png").write_bytes(b"nothing")
    says = r"6 of the 21 examples of .* cannot be queued: 1 could not be read, and 5 have no finite"
    with pytest.warns(HardsightWarning, match=says):
        hs.queue(Blank(), pool, budget=3, unlabelled=True, **QUIET)


def test_the_command_writes_a_list_that_review_opens_with_pictures(pool, tmp_path):
    out = tmp_path / "next.parquet"
    words = ["queue", f"{pool.parent / 'net.py'}:Colours", "--data", str(pool), "--unlabelled",
             "--mean", "0", "--std", "1", "--device", "cpu", "--out", str(out)]  # fmt: skip
    done = CliRunner().invoke(main, [*words, "--budget", "5"])
    assert done.exit_code == 0, done.output
    assert "5 of 20 examples, most urgent first" in done.output
    assert "next: hardsight review" in done.output
    app = App(out)
    try:
        found = app.queue()  # nothing has a label: all are up, in the order of the list
        table = hs.read_table(out)
        assert [item["index"] for item in found["items"]] == table.column("index").tolist()
        first = found["items"][0]
        assert (first["label"], first["prediction"]) == (-1, 0)
        refused = app.decide(first, "keep")
        assert refused.status_code == 400
        assert "1 of 1 examples have no label to keep; choose a class" in refused.text
        assert app.get("start").json()["has_labels"] is False
        assert app.decide(first, "relabel", 1).status_code == 200
        assert len(app.queue()["items"]) == 4
        assert app.review.decisions()["new"].tolist() == [1]
        shown = app.review.session.pictures.of(first["index"], first["id"], 64)
        assert (shown.note, bool(shown.content)) == ("", True)
    finally:
        app.close()
    again = CliRunner().invoke(main, [*words, "--budget", "5"])
    assert again.exit_code != 0
    assert "exists; name another file, or replace it with --overwrite" in again.output
    many = CliRunner().invoke(main, [*words, "--budget", "21", "--overwrite"])
    assert many.exit_code == 2
    assert "at most the 20 examples" in many.output


def test_bad_pools_and_options_are_refused(pool, tmp_path):
    with pytest.raises(OptionError, match="a budget of at least 1, got 0"):
        hs.queue(net(pool), pool, unlabelled=True, budget=0, **QUIET)
    with pytest.raises(OptionError, match="expected by to be one of margin, entropy"):
        hs.queue(net(pool), pool, unlabelled=True, budget=1, by="margins", **QUIET)
    with pytest.raises(OptionError, match=r"ends in \.parquet"):
        hs.queue(net(pool), pool, unlabelled=True, budget=1, out=tmp_path / "next", **QUIET)
    with pytest.raises(DataError, match="holds a stream"):
        hs.queue(net(pool), iter([(torch.zeros(3, 4, 4), 0)]), budget=1, **QUIET)
    hs.queue(net(pool), pool, unlabelled=True, budget=1, out=tmp_path / "a.parquet", **QUIET)
    with pytest.raises(RunExistsError, match="exists; name another"):
        hs.queue(net(pool), pool, unlabelled=True, budget=1, out=tmp_path / "a.parquet", **QUIET)


def test_embeddings_on_disk_are_closed_if_the_model_fails_half_way(pool):
    model = net(pool)

    def fails(module, inputs):
        if (inputs[0][:, 2] > 0.9).any():  # the blue ones, after the others
            raise RuntimeError("no blue")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.register_forward_pre_hook(fails)
        with pytest.raises(ModelError, match="no blue"):
            hs.queue(model, pool, unlabelled=True, budget=4, by="coverage", batch_size=2, **QUIET)
        gc.collect()  # a file that is still open says so when it goes
    assert not [warning for warning in told if warning.category is ResourceWarning]
