from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from hardsight.cli import main
from hardsight.data import MemorySource
from hardsight.errors import ConfigError, OptionError, RunLockedError, UnknownNameError
from hardsight.experiments import (
    EXPERIMENTS,
    SHORT_NAMES,
    Claim,
    Lab,
    Result,
    Table,
    experiment,
    run_experiment,
    spread,
)
from hardsight.experiments.lab import page, plain, read_result, setting_of, write_result
from hardsight.run_folder import held


@dataclass(frozen=True)
class One:
    epochs: int = 1
    seeds: tuple[int, ...] = (0,)


def test_a_result_carries_everything_needed_to_make_it_again(planted, tmp_path):
    run_experiment("planted", out=tmp_path / "out", device="cpu")
    content = json.loads((tmp_path / "out" / "result.json").read_text())
    assert content["command"] == "hardsight experiment run planted --scale smoke"
    assert content["setting"] == {"epochs": 1, "seeds": [0, 1]}
    assert content["seeds"] == [0, 1]
    assert {"torch", "hardsight", "python"} <= set(content["versions"])
    assert content["hardware"]["gpu"] is None
    assert content["hardware"]["cpu"]
    assert len(content["data"]["accuracy"]) == 2
    assert (tmp_path / "out" / "accuracy.svg").read_text().lstrip().startswith("<?xml")


def test_the_page_shows_numbers_claims_figures_and_the_command(planted, tmp_path):
    run_experiment("planted", out=tmp_path, device="cpu", overrides=["epochs=2", "seeds=[0, 1]"])
    page = (tmp_path / "README.md").read_text()
    assert "| digits are learned | 99 % |" in page
    assert "**no**" in page
    assert "The paper's numbers:" in page
    assert "![Points.](accuracy.svg)" in page
    assert page.index("## What holds") < page.index("![Points.]") < page.index("## Accuracy")
    # what is as the scale has it needs no flag
    assert "$ hardsight experiment run planted --scale smoke --set 'epochs=2'\n" in page


def test_a_result_keeps_its_settings_to_the_last_digit(planted, tmp_path):
    facts = dict.fromkeys(("title", "reproduces", "about", "command", "scale"), "x")
    facts |= {"seeds": [0], "versions": {}, "training_seconds": 0, "hardware": {"gpu": "x"}}
    write_result(Result(data={"a": 127 / 255}), facts | {"setting": {"a": 127 / 255}}, tmp_path)
    content = json.loads((tmp_path / "result.json").read_text())
    assert content["setting"] == {"a": 127 / 255}
    assert content["data"] == {"a": 0.498039}


def test_a_written_result_is_read_back_and_judged_as_it_was(planted, tmp_path):
    facts = dict.fromkeys(("title", "reproduces", "about", "command", "scale"), "x")
    facts |= {"seeds": [0], "versions": {}, "training_seconds": 0, "hardware": {"gpu": "x"}}
    table = Table("T", ("a", "b"), [("x", spread([1.0, 2.0])), (1.5, None)], paper=[("x", 2.0)])
    result = Result([table], [Claim("s", "p", "seen", None)], data={"a": [1.0]})
    write_result(result, facts | {"setting": {}, "remark": "By hand."}, tmp_path)
    again, stored = read_result(tmp_path)
    assert again.tables[0].rows[0][1].std == pytest.approx(table.rows[0][1].std, rel=1e-5)
    assert again.claims == result.claims
    text = (tmp_path / "README.md").read_text()
    assert page(again, stored) == text
    assert "\n\n> By hand.\n\n" in text


def test_an_experiment_that_judges_its_data_has_tables_and_claims_of_what_is_stored(
    planted, tmp_path
):
    def asks(setting, data):
        values = data["accuracy"]
        return [Table("T", ("mean",), [(sum(values) / 2,)])], [Claim("s", "", str(values), True)]

    @experiment(
        "judging",
        title="",
        reproduces="",
        asks=asks,
        scales=dict.fromkeys(("smoke", "short"), One()),
    )
    def run(lab, setting):
        """Measures."""
        return Result(data={"accuracy": np.array([1 / 3, 2 / 3])})

    result = run_experiment("judging", out=tmp_path, device="cpu")
    assert result.claims[0].seen == "[0.333333, 0.666667]"
    assert result.tables[0].rows[0][0] == pytest.approx(0.5)
    assert EXPERIMENTS["judging"].judge(One(), read_result(tmp_path)[0].data)[1] == result.claims


def test_the_page_says_what_the_setting_of_this_run_says(planted, tmp_path):
    run_experiment("planted", out=tmp_path, device="cpu", overrides=["epochs=2", "seeds=[3]"])
    content = json.loads((tmp_path / "result.json").read_text())
    said = "Trains one small network per seed (3) for 2 epochs on all images of the small digits."
    assert content["about"] == said
    assert said in (tmp_path / "README.md").read_text()


def test_a_sentence_with_a_key_that_is_not_there_is_noticed_when_it_is_registered():
    with pytest.raises(AssertionError, match="has no 'epoch'"):

        @experiment("x", title="", reproduces="", scales=dict.fromkeys(("smoke", "short"), One()))
        def run(lab, setting):
            """Trains {epoch} epochs."""

    assert "x" not in EXPERIMENTS


def own_numbers(text):
    """Counts in a text that are not said to be the paper's."""
    counts = r"\d[\d,]* (epochs|rounds|seeds|test images|test pictures)"
    found = re.finditer(counts, text)
    return [one[0] for one in found if "paper" not in text[max(0, one.start() - 45) : one.start()]]


def test_a_count_in_a_docstring_is_seen_unless_it_is_the_papers():
    assert own_numbers("Trains 9 epochs on 1,000 test images.") == ["9 epochs", "1,000 test images"]
    assert own_numbers("Trains {epochs} epochs (the paper: 300 epochs).") == []


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_what_a_page_says_of_its_run_comes_from_the_setting(name):
    spec = EXPERIMENTS[name]
    assert own_numbers(" ".join(spec.function.__doc__.split())) == []
    for setting in spec.scales.values():
        assert not re.search(r"[{}]", spec.about(setting))


def test_the_same_recipe_is_trained_once(planted, tmp_path, monkeypatch):
    first = run_experiment("planted", out=tmp_path / "a", runs=tmp_path / "runs", device="cpu")
    import lightning.pytorch as pl

    def fail(*args, **kwargs):
        raise AssertionError("trained again")

    monkeypatch.setattr(pl.Trainer, "fit", fail)
    again = run_experiment("planted", out=tmp_path / "b", runs=tmp_path / "runs", device="cpu")
    assert again.data == first.data
    with pytest.raises(AssertionError, match="trained again"):
        run_experiment(
            "planted", out=tmp_path / "c", runs=tmp_path / "runs", device="cpu",
            overrides=["epochs=2"],
        )  # fmt: skip


def test_a_recipe_is_locked_while_it_is_trained(tmp_path, monkeypatch):
    # experiments side by side share a folder of models; two must not write the same one
    def trained(model, source, *, out, **settings):
        with pytest.raises(RunLockedError), held(Path(f"{out}.lock")):
            pass
        return SimpleNamespace(folder=out, history=[{"seconds": 2.0}, {"seconds": 1.0}])

    monkeypatch.setattr("hardsight.experiments.lab._lab.train", trained)
    here = lab(tmp_path)
    for _ in range(2):  # the second one is found, and its time counts once
        done = here.train("small_cnn", here.source("builtin:digits", "train"), seed=0)
    with held(Path(f"{done.folder}.lock")):
        pass
    assert here.training_seconds == 3.0


def test_a_scale_that_an_experiment_does_not_have_yet_is_refused(planted, tmp_path):
    with pytest.raises(OptionError, match=r"no setting .* scale 'paper' yet; use --scale short"):
        run_experiment("planted", out=tmp_path, scale="paper")
    assert planted.fullest == "short"
    assert EXPERIMENTS["el-table5"].fullest == "paper"


def test_a_result_at_the_papers_scale_lies_beside_the_shorter_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ("grey_epochs=1", "limit=100", "seeds=[0]", 'tasks=["builtin:digits/small_cnn"]')
    for scale in ("smoke", "paper"):
        run_experiment(
            "el-fig6", scale=scale, overrides=(*common, "pixels=[]", "grey_batch=32"), device="cpu"
        )
    written = json.loads((tmp_path / "results" / "el-fig6-paper" / "result.json").read_text())
    assert written["scale"] == "paper"
    assert (tmp_path / "results" / "el-fig6" / "result.json").exists()


@pytest.mark.long
@pytest.mark.pinned  # other processes draw with the seeds as they are
def test_models_are_trained_side_by_side_and_found_by_the_experiment(tmp_path, monkeypatch):
    import lightning.pytorch as pl

    def fail(*args, **kwargs):
        raise AssertionError("trained in this process")

    monkeypatch.setattr(pl.Trainer, "fit", fail)
    spec, plan = EXPERIMENTS["el-table1"], {}
    quick = ("grey_epochs=1", "limit=100", "seeds=[0]", "log_ends=[1.0]")
    result = run_experiment(
        spec.name, out=tmp_path / "out", runs=tmp_path / "runs", jobs=2, device="cpu",
        show_progress=False, overrides=quick,
    )  # fmt: skip
    spec.function(lab(tmp_path, plan=plan), setting_of(spec, "smoke", quick))
    trained = sorted(file.parent.name for file in tmp_path.glob("runs/*/result.json"))
    assert trained == sorted(plan)  # what one process would train
    assert len(trained) == 2
    assert [cell.n for row in result.tables[0].rows for cell in row[1:]] == [1, 1]


def test_a_way_of_training_changes_no_recipe(tmp_path, monkeypatch):
    given = []

    def trained(model, source, *, out, **settings):
        given.append((out, settings))
        return SimpleNamespace(folder=out, history=[])

    monkeypatch.setattr("hardsight.experiments.lab._lab.train", trained)
    for how in (None, {"autotune": True}):
        here = Lab(scale="smoke", out=tmp_path, runs=tmp_path / "runs", device="cpu", how=how)
        here.train("small_cnn", here.source("builtin:digits", "train"), seed=0)
    assert given[0][0] == given[1][0]
    assert "autotune" not in given[0][1]
    assert given[1][1]["autotune"] is True
    with pytest.raises(OptionError, match=r"unknown way of training .*Did you mean 'capture'"):
        run_experiment("el-table1", out=tmp_path / "x", how=["captur=true"])
    with pytest.raises(OptionError, match="--jobs of at least 1, got 0"):
        run_experiment("el-table1", out=tmp_path / "x", jobs=0)


def test_what_was_measured_of_a_model_is_kept_beside_it(tmp_path):
    run, calls = SimpleNamespace(folder=tmp_path / "run"), []
    run.folder.mkdir()
    here = lab(tmp_path)
    test = here.source("builtin:digits", "test")

    def measure():
        calls.append(1)
        return {"accuracy": 91.5}

    for key in ({"steps": 2}, {"steps": 2}, {"steps": 3}, {"steps": 2, "on": test}):
        assert here.measured(run, key, measure) == {"accuracy": 91.5}
    assert len(calls) == 3


def test_an_unknown_setting_is_named_with_the_nearest(planted, tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'epochs'"):
        run_experiment("planted", out=tmp_path, overrides=["epoch=1"])
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        run_experiment("planted", out=tmp_path, overrides=["epochs"])
    with pytest.raises(OptionError, match="Did you mean 'smoke'"):
        run_experiment("planted", out=tmp_path, scale="smok")


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("el-fig5", 'targets=["cat"]', r"unknown class 'cat'.* Known: 0, 1"),
        ("el-table1", 'tasks=["mnist"]', r"expected DATASET/NETWORK, .* got 'mnist'"),
        ("el-table4", 'pairs=["mnist/small_cnn"]', r"expected DATASET/NETWORK > FOREIGN, .* got"),
        ("avh-table5", "epochs=[1, 2]", r"one entry per model .* epochs 2"),
        ("avh-table5", 'domains=["plain"]', r"at least two domains,.* got plain"),
        ("label-errors", "epochs=[1, 2]", "one number of epochs per dataset"),
        ("amc-table1", "weights=[]", r"amc-table1: expected at least one of weights, got none"),
        ("avh-human", "seeds=[]", r"avh-human: expected at least one of seeds, got none"),
        ("avh-human", "seeds=[0, 0]", r"avh-human: expected different seeds, got 0, 0"),
    ],
)
def test_a_setting_that_cannot_be_run_is_refused_in_one_line(name, override, message, tmp_path):
    done = CliRunner().invoke(
        main, ["experiment", "run", name, "--set", override, "--out", str(tmp_path)]
    )
    assert done.exit_code == 2, (done.output, done.exception)
    assert re.search(message, done.output)
    assert not list(tmp_path.iterdir())


def test_the_studies_go_by_their_plain_names_too(planted, tmp_path, monkeypatch):
    assert set(SHORT_NAMES.values()) <= set(EXPERIMENTS)
    monkeypatch.setitem(SHORT_NAMES, "short", "planted")
    monkeypatch.chdir(tmp_path)
    run_experiment("short", device="cpu", overrides=["seeds=[0]"])
    content = json.loads((tmp_path / "results" / "planted" / "result.json").read_text())
    assert content["name"] == "planted"


def test_an_unknown_experiment_is_named_with_the_nearest(planted):
    with pytest.raises(UnknownNameError, match="Did you mean 'planted'"):
        run_experiment("plantd")


def test_the_command_line_lists_and_runs(planted, tmp_path):
    listed = CliRunner().invoke(main, ["experiment", "list"])
    assert listed.exit_code == 0
    assert "planted" in listed.output
    done = CliRunner().invoke(
        main, ["experiment", "run", "planted", "--out", str(tmp_path), "--device", "cpu"]
    )
    assert done.exit_code == 0, done.output
    assert "does not hold: digits are learned" in done.output
    assert "README.md" in done.output
    wrong = CliRunner().invoke(main, ["experiment", "run", "plantd"])
    assert wrong.exit_code == 2
    assert "Did you mean 'planted'" in wrong.output


def lab(tmp_path, **more):
    return Lab(scale="smoke", out=tmp_path, runs=tmp_path / "runs", device="cpu", **more)


def test_data_is_decoded_once_by_a_lab_and_by_labs_that_share_it(tmp_path, monkeypatch):
    here = lab(tmp_path)
    assert here.source("builtin:digits", "test") is here.source("builtin:digits", "test")
    shared = {}
    one = lab(tmp_path, sources=shared).source("builtin:digits", "test")
    assert lab(tmp_path, sources=shared).source("builtin:digits", "test") is one
    assert lab(tmp_path).source("builtin:digits", "test") is not one  # nothing outlives its lab


def test_outputs_are_those_of_the_normalised_images(tmp_path):
    here = lab(tmp_path)
    done = here.train("small_cnn", here.source("builtin:digits", "train"), seed=0, epochs=1)
    test = here.source("builtin:digits", "test", limit=20)
    found = here.outputs(done, test)
    how = done.preprocessing
    pixels = (torch.tensor(test.images)[:, None] / 255 - how.mean[0]) / how.std[0]
    with torch.no_grad():
        wanted = done.model(pixels)
    torch.testing.assert_close(found.logits, wanted)
    torch.testing.assert_close(
        found.embeddings @ found.class_weights.T + found.bias, wanted, rtol=1e-4, atol=1e-4
    )
    assert found.accuracy == (wanted.argmax(1).numpy() == test.labels).mean()


def test_kept_outputs_are_found_again_and_equal(tmp_path, monkeypatch):
    lab = Lab(
        scale="smoke", out=tmp_path, runs=tmp_path, device="cpu", show_progress=False,
        keep_outputs=True,
    )  # fmt: skip
    source = lab.source("builtin:digits", "test", limit=50)
    run = lab.train("small_cnn", source, seed=0, epochs=1, validation=0.0, select="last")
    first = lab.outputs(run, source)
    other = lab.outputs(run, source.subset(range(20)))
    monkeypatch.setattr(Lab, "_outputs", None)
    again = lab.outputs(run, source)
    for name in ("embeddings", "logits", "labels", "class_weights", "bias"):
        assert torch.equal(getattr(again, name), getattr(first, name)), name
    assert again.index is first.index is None
    assert again.errors == first.errors == 0
    assert len(other.logits) == 20


def test_a_limit_keeps_the_share_of_every_class(tmp_path):
    here = lab(tmp_path)
    some = here.source("builtin:digits", "train", limit=100)
    assert len(some) == 100
    assert np.bincount(some.labels).min() >= 9
    again = lab(tmp_path).source("builtin:digits", "train", limit=100)
    np.testing.assert_array_equal(some.images, again.images)


def test_spread_is_the_t_interval_worked_by_hand():
    got = spread([1.0, 2.0, 3.0])
    # t(0.975, 2) = 4.302653, standard error = 1 / sqrt(3)
    assert (got.mean, got.std, got.n) == (2.0, 1.0, 3)
    assert got.low == pytest.approx(2 - 4.302653 / math.sqrt(3), rel=1e-6)
    assert got.high == pytest.approx(2 + 4.302653 / math.sqrt(3), rel=1e-6)
    assert str(spread([5.0])) == "5.00"


def test_json_has_no_nan_and_no_arrays():
    assert plain({"a": np.array([1.5, np.nan]), 3: (1, math.inf)}) == {
        "a": [1.5, None],
        "3": [1, None],
    }


def test_copies_in_memory_change_what_they_say_and_nothing_else():
    source = MemorySource(np.arange(32, dtype=np.uint8).reshape(2, 4, 4), [0, 1], ids=["a", "b"])
    swapped = source.relabelled([1, 0])
    assert [swapped.label_of(0), swapped.id_of(0), source.label_of(0)] == [1, "a", 0]
    dark = source.with_images(source.images // 2)
    assert dark[1].content.getpixel((0, 0)) == 8
    assert source.subset([1])[0].id == "b"
    assert len({copy.fingerprint() for copy in (source, swapped, dark, source.subset([1]))}) == 4
