"""What a user may get wrong, and what she is told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError
from torch import nn

import hardsight as hs
from hardsight.data import MemorySource
from hardsight.errors import (
    ConfigError,
    DataError,
    ModelError,
    NonFiniteError,
    OptionError,
    ProbabilityError,
    UnknownNameError,
)
from hardsight.run.adapt import AdaptConfig, seen_by, selected_by
from hardsight.run.loop import Outputs
from hardsight.selftrain import select


def settings_of(**given):
    return AdaptConfig.load(None, (), **{"model": "m", "source": "s", "target": "t", "out": "o",
                                         **given})  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
         "torchrun started 2 processes, and adapting is done by one process; start it without tor"),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS_PER_NODE": "2",
          "SLURM_NNODES": "2", "SLURM_JOB_NAME": "job"},
         "srun started 4 processes, and adapting is done by one process; start it without srun"),
    ],
)  # fmt: skip
def test_several_processes_of_a_launcher_are_refused(monkeypatch, tmp_path, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        hs.adapt("small_cnn", "builtin:digits", "builtin:digits", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["portion", "portion_max", "threshold"])
@pytest.mark.parametrize("value", [0.0, -0.2, 1.5, float("nan")])
def test_a_portion_outside_its_range_is_refused(key, value):
    with pytest.raises(OptionError, match=rf"expected {key} in \(0, 1\], got {value}"):
        settings_of(**{key: value})


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"rule": "cbts"}, UnknownNameError, "unknown rule 'cbts'. Did you mean 'cbst'"),
        ({"rule": []}, ConfigError, "at least one rule"),
        ({"rule": ["cbst", "cbst"]}, ConfigError, "every rule once"),
        ({"compare": "entropy"}, UnknownNameError, "unknown rule to compare with 'entropy'"),
        ({"portion": 0.6}, OptionError, "portion to be at most portion_max, got 0.6 and 0.5"),
        ({"portion_step": -0.1}, OptionError, r"portion_step in \[0, 1\), got -0.1"),
        ({"rounds": 0}, ConfigError, "rounds to be at least 1, got 0"),
        ({"retrain": 0}, ConfigError, "retrain.epochs to be at least 1, got 0"),
        ({"batch_size": 0}, ConfigError, "batch_size to be at least 1"),
        ({"empty": "nver"}, ConfigError, r"unknown empty 'nver'. Did you mean 'never'\?"),
        ({"comparison": ">>"}, ConfigError, "unknown comparison '>>'"),
        ({"alpha": 0.0}, OptionError, "expected alpha above 0, got 0.0"),
        ({"mrkld_weight": -1.0}, OptionError, "mrkld_weight of at least 0, got -1.0"),
        ({"entropy_weight": -0.1}, OptionError, "entropy_weight of at least 0, got -0.1"),
        (
            {"rule": "entropy", "entropy_weight": 0.0},
            OptionError,
            "'entropy' needs an entropy_weigh",
        ),
        ({"retrain": {"optimizer": "sdg"}}, ConfigError, r"unknown optimizer 'sdg'. Did you mean"),
        ({"portions": 0.2}, ConfigError, "unknown key 'portions'. Did you mean 'portion"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given, error, said):
    with pytest.raises(error, match=said):
        settings_of(**given)


def test_the_portion_grows_by_points_and_stays_at_its_largest():
    config = settings_of()
    portions = [config.portion_of(number) for number in range(1, 10)]
    assert portions == [0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.5, 0.5]


def test_a_rule_is_held_against_another_one():
    assert settings_of().compared_with("cbst") == "cbst+avh"
    assert settings_of().compared_with("avc") == "cbst"
    assert settings_of(compare="crst-lrent").compared_with("cbst") == "crst-lrent"
    assert settings_of(compare="cbst").compared_with("cbst") == "cbst+avh"


def test_classes_that_differ_between_the_domains_are_named(net, source, target, tmp_path):
    other = MemorySource(target.images, target.labels, classes=("top", "middle", "side"))
    with pytest.raises(DataError, match="lacks low and has side, which the source lacks"):
        hs.adapt(net, source, other, out=tmp_path / "run")
    turned = MemorySource(target.images, target.labels, classes=("low", "middle", "top"))
    with pytest.raises(DataError, match="in another order"):
        hs.adapt(net, source, turned, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_labels_a_target_without_names_cannot_have_are_refused(net, source, tmp_path):
    data = [(torch.rand(1, 8, 8), label) for label in (0, 1, 7)]
    with pytest.raises(DataError, match="has the label 7, the source only 3 classes"):
        hs.adapt(net, source, data, out=tmp_path / "run")


def test_an_empty_target_is_refused(net, source, tmp_path):
    with pytest.raises(DataError, match="no examples in list"):
        hs.adapt(net, source, [], out=tmp_path / "run")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="no images below"):
        hs.adapt(net, source, {"name": tmp_path / "nothing", "unlabelled": True},
                 out=tmp_path / "run")  # fmt: skip


def test_a_target_of_loose_images_is_pointed_to_the_setting_for_them(net, source, tmp_path):
    (tmp_path / "street").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "street" / "0.png")
    with pytest.raises(DataError, match=r"directly in .*street.* target.unlabelled = true"):
        hs.adapt(net, source, tmp_path / "street", out=tmp_path / "run")


def test_stored_embeddings_cannot_be_adapted_to(net, source, tmp_path):
    np.savez(tmp_path / "e.npz", embeddings=np.zeros((3, 4), np.float32), labels=[0, 1, 2],
             class_weights=np.zeros((3, 4), np.float32))  # fmt: skip
    with pytest.raises(DataError, match="holds embeddings; adapting needs images"):
        hs.adapt(net, source, tmp_path / "e.npz", out=tmp_path / "run")


def test_images_of_another_size_are_brought_to_that_of_the_source(
    net, source, target, settings, tmp_path
):
    large = MemorySource(
        target.images.repeat(2, axis=1).repeat(2, axis=2), target.labels, classes=target.classes
    )
    done = hs.adapt(net, source, large, out=tmp_path / "run", rule="source-only", **settings)
    assert done.accuracy()[0] > 0.5


def test_tensors_of_another_shape_are_refused(source, settings, tmp_path):
    class Own(torch.utils.data.Dataset):
        def __init__(self, width):
            self.width = width

        def __len__(self):
            return 60

        def __getitem__(self, index):
            return torch.rand(self.width), index % 3

    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(DataError, match=r"one shape in both domains, got \[5\].*and \[6\]"):
        hs.adapt(model, Own(5), Own(6), out=tmp_path / "run", **settings)


def test_a_class_that_is_never_predicted_is_named_and_given_to_nobody(
    source, target, settings, tmp_path
):
    class Blind(nn.Module):
        """Never says "low"."""

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
            self.head = nn.Linear(8, 3)

        def forward(self, images):
            return self.head(self.body(images))

    torch.manual_seed(0)
    model = Blind()
    with torch.no_grad():
        model.head.bias[2] = -1e4
    settings |= {"pretrain": 0, "rounds": 1}
    done = hs.adapt(model, source, target, out=tmp_path / "run", **settings)
    record = done.runs["cbst"].rounds[1]
    assert "low" in record["never_predicted"]
    assert record["quality"]["counts"][2] == 0
    assert record["thresholds"][2] == 1.0


@pytest.mark.parametrize(
    ("rule", "said", "advice"),
    [
        ("cbst", "the thresholds at portion 0.001;", "Raise the portion, or use empty = 'one'"),
        ("threshold", "the threshold 1;", "Lower the threshold"),
    ],
)
def test_a_round_that_rejects_every_example_stops_early_and_says_so(
    rule, said, advice, net, source, target, settings, tmp_path
):
    settings |= {"portion": 0.001, "portion_step": 0.0, "rule": rule}
    settings |= {"threshold": 1.0} if rule == "threshold" else {}
    done = hs.adapt(net, source, target, out=tmp_path / "run", **settings)
    run = done.runs[rule]
    assert run.stopped.startswith(f"stopped in round 1: no target example passed {said}")
    assert run.stopped.endswith(f"the model of round 0 is kept. {advice}")
    assert len(run.rounds) == 1
    assert not list(run.folder.glob("round-*"))
    again = hs.adapt(net, source, target, out=tmp_path / "run", resume=True, **settings)
    assert again.runs[rule].stopped == run.stopped


def test_a_model_of_other_classes_is_refused(source, target, settings, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    settings |= {"pretrain": 0}
    with pytest.raises(ModelError, match=r"expected a model of 3 classes.*got 5 outputs"):
        hs.adapt(model, source, target, out=tmp_path / "run", **settings)


def test_probabilities_that_are_none_are_refused():
    with pytest.raises(ProbabilityError, match="sum to 1"):
        select(torch.tensor([[0.5, 0.7]]), portion=0.5, rule="cbst")
    logits = torch.tensor([[0.5, float("nan")]])
    seen = Outputs(torch.ones(1, 2), logits, torch.tensor([-1]), torch.ones(2, 2), None)
    with pytest.raises(NonFiniteError, match="NaN"):
        selected_by("cbst", seen, portion=0.5, config=settings_of())


def test_a_model_that_gives_nan_for_an_example_names_it():
    model = nn.Linear(2, 3)
    inputs = torch.ones(5, 2)
    inputs[3] = float("nan")
    with pytest.raises(NonFiniteError, match=r"1 of 5 target examples, first d \(position 3\)"):
        seen_by(model, inputs.split(2), sample=torch.ones(2, 2), device=torch.device("cpu"),
                precision="float32", id_of=lambda at: "abcde"[at])  # fmt: skip


def test_a_file_in_the_place_of_the_run_is_named(net, source, target, settings, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(hs.errors.OutputError, match="file is not a folder; choose another --out"):
        hs.adapt(net, source, target, out=tmp_path / "file", **settings)


def test_a_trained_model_is_taken_by_the_path_of_its_folder(
    net, source, target, settings, tmp_path
):
    first = hs.train("small_cnn", source, out=tmp_path / "first", epochs=1, device="cpu")
    options = {**settings, "pretrain": 0, "rounds": 1}
    done = hs.adapt(first.folder, source, target, out=tmp_path / "run", **options)
    assert len(done.accuracy()) == 2
    turned = MemorySource(
        source.images, 2 - source.labels, classes=source.classes[::-1], spec="turned"
    )
    again = hs.adapt(first.folder, turned, turned, out=tmp_path / "turned", **options)
    same = hs.adapt(first.folder, source, source, out=tmp_path / "same", **options)
    assert again.classes == source.classes
    assert again.accuracy()[0] == same.accuracy()[0]


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(
    net, source, target, settings, tmp_path, monkeypatch
):
    def full(*args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    options = {**settings, "rounds": 1, "pretrain": 1}
    with monkeypatch.context() as patch:
        patch.setattr("hardsight.run.adapt._rounds.save_file", full)
        with pytest.raises(hs.errors.OutputError, match=r"No space left .* --resume"):
            hs.adapt(net, source, target, out=tmp_path / "run", **options)
    done = hs.adapt(net, source, target, out=tmp_path / "run", resume=True, **options)
    assert len(done.accuracy()) == 2
