"""A run that dies at any moment continues, and ends with the same models and labels."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn

import hardsight as hs
from hardsight.errors import RunExistsError, RunMismatchError
from hardsight.models import load_model
from tests._deaths import Died


def outcome(folder: Path) -> dict:
    """Everything a run ends with that does not depend on the clock."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if name.startswith("source/"):
            continue
        if file.name == "model.safetensors":
            found[name] = file.read_bytes()
        if file.suffix == ".parquet":
            found[name] = pq.read_table(file).to_pylist()
        if file.name == "round.json":
            record = json.loads(file.read_text())
            record.pop("seconds")
            found[name] = record
    return found


def before_every_rename(act, patch) -> list:
    """Let ``act(number)`` happen before every rename, of files and of folders alike.

    Returns:
        what was renamed, as it grows.
    """
    calls = []
    plain, plain_path = os.replace, Path.replace

    def acting(original):
        def replace(*args):
            act(len(calls))
            calls.append(args)
            return original(*args)

        return replace

    patch.setattr(os, "replace", acting(plain))
    patch.setattr(Path, "replace", acting(plain_path))
    return calls


def die_before_rename(number: int, patch) -> None:
    """Let the process end before its ``number``-th rename, as an error that nobody catches."""

    def act(at):
        if at == number:
            raise Died

    before_every_rename(act, patch)


def die_while_training(number: int, patch, *, at_its_end: bool = False) -> None:
    """Let the process end as it trains for the ``number``-th time, before the first step or after
    the last, of which nothing is kept yet.
    """
    plain, calls = Trainer.fit, []

    def fit(*args, **options):
        calls.append(args)
        if len(calls) < number or at_its_end:
            plain(*args, **options)
        if len(calls) == number:
            raise Died

    patch.setattr(Trainer, "fit", fit)


@pytest.mark.long
def test_dying_before_any_rename_and_resuming_gives_the_same_run(
    net, make_stripes, settings, tmp_path, monkeypatch
):
    source, target = make_stripes(24), make_stripes(24, seed=1, noise=150, bright=40)
    settings |= {"pretrain": 1, "rule": "crst-lrent", "examples": 1, "show_progress": False}
    hs.adapt(net, source, target, out=tmp_path / "whole", **settings)
    expected = outcome(tmp_path / "whole")
    going, cuts = tmp_path / "going", []

    def keep(number):
        """What a process that is killed here leaves behind: nothing of its own clears up."""
        if number % 2 == 0 and going.exists():
            cuts.append(shutil.copytree(going, tmp_path / f"cut-{number}"))

    with monkeypatch.context() as patch:
        calls = before_every_rename(keep, patch)
        hs.adapt(net, source, target, out=going, **settings)
    assert len(calls) > 20
    assert len(cuts) > len(calls) // 2 - 2
    assert outcome(going) == expected
    for number in range(0, len(calls), 12):  # and an error that goes through all that clears up
        cuts.append(tmp_path / f"died-{number}")
        with monkeypatch.context() as patch:
            die_before_rename(number, patch)
            with pytest.raises(Died):
                hs.adapt(net, source, target, out=cuts[-1], **settings)
    for out in cuts:
        hs.adapt(net, source, target, out=out, resume=True, **settings)
        assert outcome(out) == expected, out.name
        assert not list(out.rglob("*.part"))
        assert not list(out.glob("c*/round-*/checkpoints"))


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a POSIX signal")
@pytest.mark.long
def test_a_killed_process_continues_within_its_round(
    net, source, target, settings, tmp_path, forks
):
    settings |= {"retrain": {"epochs": 6, "optimizer": {"lr": 0.02}}, "seed": 4}
    for name, data in (("source", source), ("target", target)):
        np.savez(tmp_path / f"{name}.npz", images=data.images, labels=data.labels)
    files = [str(tmp_path / f"{name}.npz") for name in ("source", "target")]
    hs.adapt(net, *files, out=tmp_path / "whole", **settings)
    out = tmp_path / "killed"
    last = out / "cbst" / "round-02.part" / "checkpoints" / "last.ckpt"
    done = forks.run(
        f"import hardsight as hs; hs.adapt({net!r}, *{files!r}, out={str(out)!r}, **{settings!r})",
        loads="lightning.pytorch",
        until=last,
    )
    assert done.status == -signal.SIGKILL, done.stderr
    assert not (out / "cbst" / "round-02").exists()
    kept = torch.load(last, weights_only=True)["epoch"]
    hs.adapt(net, *files, out=out, resume=True, **settings)
    assert outcome(out) == outcome(tmp_path / "whole")
    history = (out / "cbst" / "round-02" / "metrics.csv").read_text().splitlines()
    assert len(history) == 1 + 6
    assert kept < 5  # some epochs were left to do


def test_a_finished_run_is_read_again_without_training(
    net, source, target, settings, tmp_path, monkeypatch
):
    first = hs.adapt(net, source, target, out=tmp_path / "run", **settings)
    monkeypatch.setattr(Trainer, "fit", None)
    again = hs.adapt(net, source, target, out=tmp_path / "run", resume=True, **settings)
    assert again.runs["cbst"].rounds == first.runs["cbst"].rounds
    for name, value in first.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value, rtol=0, atol=0)


def test_only_the_last_models_weights_are_kept_where_asked_and_a_run_still_continues(
    net, source, target, settings, tmp_path, monkeypatch
):
    settings |= {"rounds": 3, "keep_models": False}
    whole = hs.adapt(net, source, target, out=tmp_path / "whole", **settings)
    kept = sorted(file.parent.name for file in tmp_path.glob("whole/cbst/*/model.safetensors"))
    assert kept == ["round-03"]
    out = tmp_path / "cut"
    with monkeypatch.context() as patch:
        die_while_training(4, patch)  # after the source model and two rounds
        with pytest.raises(Died):
            hs.adapt(net, source, target, out=out, **settings)
    again = hs.adapt(net, source, target, out=out, resume=True, **settings)
    assert outcome(out) == outcome(tmp_path / "whole")
    for name, value in whole.runs["cbst"].state.items():
        torch.testing.assert_close(again.runs["cbst"].state[name], value, rtol=0, atol=0)


def make_module(net):
    torch.manual_seed(3)
    return load_model(net).model


@pytest.mark.parametrize("pretrain", [0, 2])
def test_a_module_that_was_half_trained_in_place_continues_from_where_the_run_began(
    net, source, target, settings, tmp_path, monkeypatch, pretrain
):
    settings |= {"pretrain": pretrain}
    whole = hs.adapt(make_module(net), source, target, out=tmp_path / "whole", **settings)
    module, out = make_module(net), tmp_path / "cut"
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with monkeypatch.context() as patch:
        die_while_training(2 if pretrain else 1, patch, at_its_end=True)  # in the first round
        with pytest.raises(Died):
            hs.adapt(module, source, target, out=out, **settings)
    assert not torch.equal(module.state_dict()["0.weight"], before["0.weight"])
    again = hs.adapt(module, source, target, out=out, resume=True, **settings)
    assert again.runs["cbst"].rounds[0] == whole.runs["cbst"].rounds[0]
    assert outcome(out) == outcome(tmp_path / "whole")
    once_more = hs.adapt(module, source, target, out=out, resume=True, **settings)
    assert once_more.runs["cbst"].rounds == again.runs["cbst"].rounds


def test_a_module_of_other_layers_cannot_continue_a_run_and_stays_as_it_was(
    net, source, target, settings, tmp_path
):
    settings |= {"rule": "source-only", "pretrain": 0}
    hs.adapt(make_module(net), source, target, out=tmp_path / "run", **settings)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    before = other[1].weight.clone()
    with pytest.raises(RunMismatchError, match=r"cannot be continued with this module.*layers"):
        hs.adapt(other, source, target, out=tmp_path / "run", resume=True, **settings)
    torch.testing.assert_close(other[1].weight, before, rtol=0, atol=0)


def test_a_module_keeps_its_weights_where_the_settings_are_those_of_another_run(
    net, source, target, settings, tmp_path
):
    settings |= {"rule": "source-only", "pretrain": 0}
    hs.adapt(make_module(net), source, target, out=tmp_path / "run", **settings)
    module = load_model(net).model
    before = module[0].weight.clone()
    with pytest.raises(RunMismatchError, match=r"portion = 0.3 instead of 0.4"):
        hs.adapt(module, source, target, out=tmp_path / "run", resume=True,
                 **{**settings, "portion": 0.4})  # fmt: skip
    torch.testing.assert_close(module[0].weight, before, rtol=0, atol=0)


def test_changed_target_data_between_two_steps_is_an_error(net, source, target, settings, tmp_path):
    hs.adapt(net, source, target, out=tmp_path / "run", **settings)
    other = target.with_images(255 - target.images)
    with pytest.raises(RunMismatchError, match="other target data"):
        hs.adapt(net, source, other, out=tmp_path / "run", resume=True, **settings)
    with pytest.raises(RunMismatchError, match="other source data"):
        hs.adapt(net, source.subset(range(60)), target, out=tmp_path / "run", resume=True,
                 **settings)  # fmt: skip


def test_other_settings_or_weights_between_two_steps_are_an_error(
    net, source, target, settings, tmp_path
):
    settings |= {"rule": "source-only"}
    hs.adapt(net, source, target, out=tmp_path / "run", **settings)
    with pytest.raises(RunMismatchError, match=r"portion = 0.3 instead of 0.4"):
        hs.adapt(net, source, target, out=tmp_path / "run", resume=True,
                 **{**settings, "portion": 0.4})  # fmt: skip
    text = Path(net.partition(":")[0]).read_text()
    Path(net.partition(":")[0]).write_text(text.replace("nn.Dropout(0.1)", "nn.BatchNorm2d(6)"))
    with pytest.raises(RunMismatchError, match="other weights to start from"):
        hs.adapt(net, source, target, out=tmp_path / "run", resume=True, **settings)


@pytest.mark.parametrize(("pretrain", "by_name"), [(0, False), (2, True)])
def test_the_same_weights_in_changed_code_cannot_continue_a_run(
    net, source, target, settings, tmp_path, pretrain, by_name
):
    settings |= {"rule": "source-only", "pretrain": pretrain}
    model = net if by_name else make_module(net)
    hs.adapt(model, source, target, out=tmp_path / "run", **settings)
    file = Path(net.partition(":")[0])
    file.write_text(file.read_text().replace("nn.ReLU()", "nn.Tanh()"))
    other = net if by_name else load_model(net).model
    before = None if by_name else other[0].weight.clone()
    with pytest.raises(RunMismatchError, match=r"the adaptation in .*/run cannot .* changed code"):
        hs.adapt(other, source, target, out=tmp_path / "run", resume=True, **settings)
    if not by_name:
        torch.testing.assert_close(other[0].weight, before, rtol=0, atol=0)


def test_a_run_is_never_overwritten(net, source, target, settings, tmp_path):
    settings |= {"rule": "source-only"}
    hs.adapt(net, source, target, out=tmp_path / "run", **settings)
    with pytest.raises(RunExistsError, match=r"holds a finished adaptation.*--resume"):
        hs.adapt(net, source, target, out=tmp_path / "run", **settings)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(RunExistsError, match="files that are not an adaptation"):
        hs.adapt(net, source, target, out=tmp_path / "mine", **settings)
