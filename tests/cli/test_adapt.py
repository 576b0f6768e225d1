"""``hardsight adapt`` as a stranger meets it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from hardsight.cli import main


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def domains(tmp_path):
    """Stripes in three classes, and paler ones, as files."""
    draw = np.random.default_rng(0)
    labels = np.arange(60) % 3
    for name, noise, bright in (("source", 60, 150), ("target", 150, 40)):
        pixels = draw.integers(0, noise, size=(60, 8, 8), dtype=np.uint8)
        for row, label in enumerate(labels):
            pixels[row, 2 * label : 2 * label + 3] += bright
        np.savez(tmp_path / f"{name}.npz", images=pixels, labels=labels)
    return tmp_path


def run(*args: object):
    return CliRunner().invoke(main, ["adapt", *[str(arg) for arg in args]])


def flags(folder, *more):
    return (
        "--model", "small_cnn", "--source", folder / "source.npz", "--target",
        folder / "target.npz", "--out", folder / "run", "--rounds", 1, "--source-epochs", 1,
        "--epochs", 1, "--batch-size", 32, "--device", "cpu", *more,
    )  # fmt: skip


def test_the_help_says_what_happens_and_names_every_rule():
    from hardsight.run.adapt import ADAPT_RULES

    done = run("--help")
    assert done.exit_code == 0
    for word in (*ADAPT_RULES, "Examples:", "--unlabelled", "--resume"):
        assert word in done.output
    assert "adapt" in CliRunner().invoke(main, ["--help"]).output


def test_flags_alone_end_with_a_table_a_page_and_the_next_command(domains):
    rules = ("--rule", "cbst+avh", "--rule", "source-only", "--portion", 0.3)
    done = run(*flags(domains, *rules))
    assert done.exit_code == 0, done.output
    for word in ("cbst+avh", "source-only", "accuracy", "30.0%", "class mean"):
        assert word in done.output
    page = domains / "run" / "adapt.html"
    assert f"page -> {page}" in done.output.replace("\n", "")
    assert page.is_file()
    step = next(line for line in done.output.splitlines() if line.startswith("next: "))
    words = step.removeprefix("next: hardsight ").split()
    scored = CliRunner().invoke(main, [*words, "--device", "cpu"])
    assert scored.exit_code == 0, scored.output
    assert "60 rows" in scored.output


def test_flags_go_over_the_file(domains):
    (domains / "adapt.toml").write_text(
        'model = "small_cnn"\nout = "elsewhere"\nrounds = 9\nrule = "source-only"\n'
        "pretrain = {epochs = 9}\n"
        f'[source]\nname = "{domains / "source.npz"}"\n[target]\nname = "nowhere"\n'
    )
    more = ("--set", "retrain.optimizer.lr=0.003", "--seed", 3)
    done = run(domains / "adapt.toml", *flags(domains, *more))
    assert done.exit_code == 0, done.output
    config = json.loads((domains / "run" / "result.json").read_text())["config"]
    assert (config["rounds"], config["pretrain"]["epochs"], config["seed"]) == (1, 1, 3)
    assert config["rule"] == "source-only"
    assert config["retrain"]["optimizer"]["lr"] == 0.003


def test_a_run_that_stops_early_says_so(domains):
    done = run(*flags(domains, "--rule", "threshold", "--set", "threshold=1.0"))
    assert done.exit_code == 0, done.output
    assert "stopped in round 1: no target example passed" in done.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--portion", 1.5), 2, "expected portion in (0, 1], got 1.5"),
        (("--rule", "cbts"), 2, "Did you mean 'cbst'"),
        (("--set", "portions=1"), 2, "unknown key 'portions'"),
        (("--target", "nowhere/"), 2, "nowhere"),
    ],
)
def test_what_was_typed_wrong_ends_with_exit_code_2(domains, more, code, said):
    done = run(*flags(domains, *more))
    assert done.exit_code == code
    assert said in done.output


def test_what_has_to_be_named_is_asked_for_by_its_option(domains):
    done = run("--model", "small_cnn", "--set", f"source.name={domains / 'source.npz'}")
    assert done.exit_code == 2
    assert "name --target, --out, or a CONFIG file that does" in done.output


def test_without_labels_of_the_target_nothing_is_said_of_right_and_wrong(domains, tmp_path):
    from PIL import Image

    (tmp_path / "street").mkdir()
    for number, pixels in enumerate(np.load(domains / "target.npz")["images"][:30]):
        Image.fromarray(pixels).save(tmp_path / "street" / f"{number}.png")
    given = (*flags(domains), "--target", tmp_path / "street", "--unlabelled")
    done = run(*given)
    assert done.exit_code == 0, done.output
    assert "selected" in done.output
    for word in ("right", "accuracy", "class mean"):
        assert word not in done.output


def test_an_existing_run_is_continued_only_when_asked(domains):
    source_only = ("--rule", "source-only")
    assert run(*flags(domains, *source_only)).exit_code == 0
    again = run(*flags(domains, *source_only))
    assert again.exit_code == 1
    assert "--resume" in again.output
    assert run(*flags(domains, *source_only, "--resume")).exit_code == 0


def test_what_went_other_than_hoped_is_told():
    from types import SimpleNamespace

    from hardsight.run.adapt import rule_notes

    rounds = [
        {"round": 0},
        {"round": 1, "never_predicted": list("abcdefg"), "too_rarely_predicted": ["x"]},
    ]
    notes = rule_notes(SimpleNamespace(rounds=rounds, stopped="stopped in round 2: why"))
    assert notes == [
        "round 1: never predicted, so given to no example: a, b, c, d, e and 2 more",
        "round 1: predicted too rarely for the portion, so given to no example: x",
        "stopped in round 2: why",
    ]
