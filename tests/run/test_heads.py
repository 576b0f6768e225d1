"""What a model returns and where its embeddings are, seen by the verbs that run it over data."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hardsight as hs
from hardsight.cli import main
from hardsight.data import MemorySource
from hardsight.data.source import Parts
from hardsight.errors import (
    AmbiguousHeadError,
    HardsightWarning,
    HeadMismatchError,
    HeadNotFoundError,
    ModelError,
    NonFiniteError,
    NotLogitsError,
    OutOfMemoryError,
    ShapeError,
    TableError,
)
from hardsight.heads import Head, _capture
from hardsight.run.loop import ModelPass
from hardsight.table import RunFolder
from tests._nets import OneLayer

CLASSES, WIDTH = 3, 8


def rows(count: int = 40, seed: int = 0) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 6, generator=draw), torch.arange(count) % CLASSES)


class Net(nn.Module):
    """A body and a head; ``end`` makes of inputs, features and logits what is returned."""

    def __init__(self, end=lambda x, features, logits: logits) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = nn.Linear(6, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.end = end

    def features(self, x: Tensor) -> Tensor:
        return self.body(x).relu()

    def forward(self, x: Tensor):
        features = self.features(x)
        return self.end(x, features, self.fc(features))


def avh_in_float64(features: Tensor, labels: Tensor, weight: Tensor) -> np.ndarray:
    x, w = features.detach().double().numpy(), weight.detach().double().numpy()
    norms = np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(w, axis=1))
    cosines = np.divide(x @ w.T, norms, out=np.zeros_like(norms), where=norms > 0)  # zero rows: π/2
    angles = np.arccos(np.clip(cosines, -1, 1))
    return angles[np.arange(len(x)), labels] / angles.sum(1)


def late_branch(x: Tensor, features: Tensor, logits: Tensor) -> Tensor:
    """Another way out for examples that begin with a number above 9."""
    return torch.where(x[:, :1] > 9, logits.flip(1), logits)


def with_late_example(count: int = 40, at: int = 33) -> TensorDataset:
    data = rows(count)
    data.tensors[0][at, 0] = 10.0
    return data


# every batch


def test_score_names_the_example_of_a_later_batch_that_does_not_fit_the_head(tmp_path):
    with pytest.raises(
        HeadMismatchError,
        match=r"1 of 8 rows of batch 5 \(examples 33\).*Scores that need no head: model_confid",
    ):
        hs.score(Net(late_branch), with_late_example(), batch_size=8)


def test_no_row_of_a_batch_that_does_not_fit_is_kept_for_a_resume(tmp_path):
    options = {"batch_size": 8, "shard_rows": 8, "out": tmp_path / "run"}
    with pytest.raises(HeadMismatchError, match="batch 5"):
        hs.score(Net(late_branch), with_late_example(), **options)
    kept = [index for part in RunFolder(tmp_path / "run").shards() for index in part["index"]]
    assert [int(index.as_py()) for index in kept] == list(range(32))
    with pytest.raises(HeadMismatchError, match="batch 1"):
        hs.score(Net(late_branch), with_late_example(), **options, resume=True)


def test_rows_are_kept_only_when_the_device_has_said_that_they_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(_capture, "is_there", lambda tensor: False)  # as on a GPU
    options = {"batch_size": 8, "shard_rows": 16, "out": tmp_path / "run"}
    with pytest.raises(HeadMismatchError, match="batch 5"):
        hs.score(Net(late_branch), with_late_example(48), **options)
    kept = [index for part in RunFolder(tmp_path / "run").shards() for index in part["index"]]
    assert [int(index.as_py()) for index in kept] == list(range(32))


def test_a_later_batch_is_held_to_the_head_by_evaluate_too():
    with pytest.raises(HeadMismatchError, match=r"1 of 8 rows of batch 5 \(examples 33\)"):
        hs.evaluation_card(Net(late_branch), with_late_example(), batch_size=8)


def test_a_later_batch_is_held_to_the_head_by_adapt_too(tmp_path):
    images = np.zeros((300, 8, 8), np.uint8)
    images[270:] = 200
    source = MemorySource(images, np.arange(300) % 3, classes=("a", "b", "c"), spec="dark")

    class Flat(Net):
        def forward(self, images: Tensor) -> Tensor:
            x = images.flatten(1)[:, :6]
            logits = self.fc(self.features(x))
            return torch.where(x[:, :1] > x.new_tensor(0.5), logits.flip(1), logits)

    with pytest.raises(HeadMismatchError, match=r"rows of batch 2 \(examples 270, 271"):
        hs.adapt(
            Flat(), source, source, out=tmp_path / "run", rounds=1,
            pretrain=0, retrain=1, device="cpu", show_progress=False,
        )  # fmt: skip


def test_a_language_model_with_padding_on_the_right_is_scored_at_its_own_tokens():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=30, n_positions=16, n_embd=16, n_layer=1, n_head=2, num_labels=CLASSES,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = GPT2ForSequenceClassification(config).eval()
    lengths = torch.tensor([8] * 8 + [3, 5, 1, 8, 2, 7, 4, 6] * 3)
    ids = torch.randint(3, 30, (32, 8))
    ids[torch.arange(8) >= lengths[:, None]] = 0
    labels = torch.arange(32) % CLASSES

    def collate(samples):
        tokens = torch.stack([sample[0] for sample in samples])
        found = torch.tensor([sample[1] for sample in samples])
        return {"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": found}

    loader = DataLoader(TensorDataset(ids, labels), batch_size=8, collate_fn=collate)
    table = hs.score(model, loader)
    with torch.no_grad():
        hidden = model.transformer(ids, attention_mask=(ids != 0).long()).last_hidden_state
    expected = avh_in_float64(hidden[torch.arange(32), lengths - 1], labels, model.score.weight)
    np.testing.assert_allclose(table.column("avh"), expected, rtol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_rounding_of_the_forward_pass_is_not_a_mismatch(precision):
    net = nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.LayerNorm(512), nn.Linear(512, CLASSES))
    table = hs.score(net, rows(400), precision=precision, batch_size=50)
    assert len(table) == 400


# heads by hand and by name


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        unit = nn.functional.normalize
        return 4 * nn.functional.linear(unit(x), unit(self.weight))


@pytest.mark.parametrize("classes", [2, 3])
def test_the_size_of_a_batch_does_not_decide_whether_a_head_is_found(classes):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, WIDTH), Cosine(WIDTH, classes, bias=False))
    data = TensorDataset(rows().tensors[0], torch.arange(40) % classes)
    one, many = (hs.score(net, data, batch_size=size).to_pandas() for size in (1, 40))
    np.testing.assert_allclose(one["avh"], many["avh"], rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_cosine_head_is_scored_in_every_dtype(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, WIDTH), Cosine(WIDTH, CLASSES, bias=False)).to(dtype)
    inputs, labels = rows().tensors
    features = net[0](inputs.to(dtype))
    expected = avh_in_float64(features, labels, net[1].weight)
    table = hs.score(net, TensorDataset(inputs.to(dtype), labels))
    rtol = 0.1 if dtype == torch.bfloat16 else 1e-4
    np.testing.assert_allclose(table.column("avh"), expected, rtol=rtol)


def test_a_head_made_by_hand_is_held_to_the_model():
    net, data = Net(), rows()
    weight, bias = net.fc.weight.detach(), net.fc.bias.detach()
    expected = hs.score(net, data)
    for head in (Head("fc", weight, bias), Head("fc", weight)):
        table = hs.score(net, data, head=head)
        np.testing.assert_array_equal(table.column("avh"), expected.column("avh"))
        assert table.metadata["bias"] == expected.metadata["bias"]
    for head in (Head("fc", weight.flip(0), bias), Head("fc", torch.randn(CLASSES, WIDTH), bias)):
        with pytest.raises(HeadMismatchError, match=r"given for Net does not give its logits"):
            hs.score(net, data, head=head)


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU())
        self.classifier_weight = nn.Parameter(torch.randn(WIDTH, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bd,dc->bc", self.body(x), self.classifier_weight)


def test_a_bare_parameter_is_a_head_by_its_name():
    net, data = Einsum(), rows()
    table = hs.score(net, data, head="classifier_weight")
    inputs, labels = data.tensors
    expected = avh_in_float64(net.body(inputs), labels, net.classifier_weight.T)
    np.testing.assert_allclose(table.column("avh"), expected, rtol=1e-4, atol=1e-6)
    assert table.metadata["model"]["head"] == "classifier_weight"


# outputs


class Answer(dict):
    """Keys as attributes too."""

    __getattr__ = dict.__getitem__


ENDS = {
    "tuple": lambda x, features, logits: (features, logits),
    "list": lambda x, features, logits: [logits.sum(), features, logits],
    "dict": lambda x, features, logits: {"features": features, "out": logits},
    "mapping": lambda x, features, logits: Answer(hidden=features, scores=logits),
    "nested": lambda x, features, logits: {"a": {"logits": logits}, "f": features},
    "nested tuple": lambda x, features, logits: (features, (None, [logits])),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("scores", [None, ["entropy"]], ids=["all", "without a head"])
def test_the_output_that_fits_the_classes_of_the_data_is_scored(end, scores):
    expected, table = (
        hs.score(Net(), rows(), scores=scores),
        hs.score(Net(end), rows(), scores=scores),
    )
    for name in expected.scores:
        np.testing.assert_array_equal(table.column(name), expected.column(name))
    np.testing.assert_array_equal(table.column("prediction"), expected.column("prediction"))
    assert table.metadata["model"]["output"] is not None
    assert expected.metadata["model"]["output"] is None


@pytest.mark.parametrize(
    ("end", "shape"),
    [
        (lambda x, features, logits: logits[:1], r"\[1, 3\] for 8 examples"),
        (lambda x, features, logits: logits.T, r"\[3, 8\] for 8 examples"),
        (lambda x, features, logits: logits[:1] * -torch.inf, r"\[1, 3\] for 8 examples"),
        (lambda x, features, logits: logits.T * torch.nan, r"\[3, 8\] for 8 examples"),
    ],
    ids=["first row", "transposed", "first row, infinite", "transposed, not finite"],
)
@pytest.mark.parametrize("scores", [None, ["entropy"]], ids=["all", "without a head"])
def test_logits_need_a_row_for_each_example(end, shape, scores):
    with pytest.raises(ShapeError, match=rf"one row of logits per example.*{shape}"):
        hs.score(Net(end), rows(), scores=scores)


@pytest.mark.parametrize("scores", [None, ["entropy"]], ids=["all", "without a head"])
def test_as_many_examples_as_classes_do_not_hide_that_logits_are_transposed(scores):
    net = Net(lambda x, features, logits: logits.T)
    with pytest.raises(ShapeError, match=r"one row of logits per example.*\[3, 2\] for 2 examples"):
        hs.score(net, rows(CLASSES), scores=scores)


class RuledOut(nn.Module):
    """The first class is never predicted, as its logit is minus infinity."""

    def __init__(self, *, with_features: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = nn.Linear(6, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.with_features = with_features

    def forward(self, x: Tensor):
        features = self.body(x)
        logits = self.fc(features).masked_fill(torch.arange(CLASSES) == 0, -torch.inf)
        return (features, logits) if self.with_features else logits


def test_features_are_not_scored_because_the_logits_hold_an_infinity():
    # a layer makes the features, too: they were taken for logits of eight classes
    net = RuledOut(with_features=True)
    with pytest.raises(ModelError, match=r"several tensors.*0 \[8, 8\], 1 \[8, 3\]"):
        hs.score(net, rows())
    table = hs.score(net, rows(), output=1)
    assert table.column("prediction").tolist() == net(rows().tensors[0])[1].argmax(1).tolist()


def test_a_class_that_is_ruled_out_leaves_the_scores_that_need_only_logits():
    net = RuledOut()
    with pytest.warns(HardsightWarning, match=r"no head that can be read: avh.*are not all finite"):
        table = hs.score(net, rows())
    logits = net(rows().tensors[0]).detach()
    expected = -logits.gather(1, rows().tensors[1][:, None])[:, 0]
    np.testing.assert_allclose(table.column("conditional_energy"), expected)
    assert "avh" in table.metadata["missing"]["scores"]
    with pytest.raises(NonFiniteError, match="no finite output"):
        hs.score(net, rows(), scores="avh")


def test_infinite_scores_are_not_subtracted_when_a_table_is_taken_as_it_is(tmp_path):
    class Pictures(RuledOut):
        def forward(self, images: Tensor):
            return super().forward(images.flatten(1)[:, 10:16])

    options = {"mean": (0.0,), "std": (1.0,), "scores": ["conditional_energy"]}
    first = hs.score(Pictures(), noise(), out=tmp_path / "run", **options)
    assert np.isinf(first.column("conditional_energy")).any()
    # numpy would warn of it, which is an error here
    assert len(hs.score(Pictures(), noise(), out=tmp_path / "run", resume=True, **options)) == 60


@pytest.mark.parametrize("scores", [None, ["entropy"]], ids=["all", "without a head"])
def test_outputs_of_the_same_size_have_to_be_named(scores):
    def end(x, features, logits):
        return features[:, :CLASSES], logits

    with pytest.raises(
        ModelError, match=r"several tensors that .*: 0 \[8, 3\], 1 \[8, 3\]; pass output=1 \(--out"
    ):
        hs.score(Net(end), rows(), scores=scores)
    expected = hs.score(Net(), rows(), scores=scores)
    for which in (1, "1", -1):
        table = hs.score(Net(end), rows(), scores=scores, output=which)
        np.testing.assert_array_equal(table.column("entropy"), expected.column("entropy"))
    with pytest.raises(ModelError, match=r"output='logits' is not there .* 0 \[8, 3\], 1 \[8, 3\]"):
        hs.score(Net(end), rows(), scores=scores, output="logits")


def test_the_model_returns_what_it_returned_before_when_it_is_given_back():
    net = Net(ENDS["tuple"])
    hs.score(net, rows())
    hs.evaluation_card(net, rows(), attack_examples=0, explain_examples=0, map_examples=10,
                       feature_examples=20)  # fmt: skip
    assert len(net(torch.zeros(1, 6))) == 2
    assert not net._forward_hooks


def test_a_compiled_model_of_several_outputs_is_scored():
    net = torch.compile(Net(ENDS["tuple"]), backend="eager")
    net(rows().tensors[0][:8])  # compiled before any hook is there
    expected = hs.score(Net(), rows())
    for scores in (None, ["entropy"]):
        table = hs.score(net, rows(), scores=scores)
        np.testing.assert_array_equal(table.column("entropy"), expected.column("entropy"))


class Images(Net):
    """The same of pictures."""

    def forward(self, images: Tensor):
        return super().forward(images.flatten(1)[:, 10:16])


def noise():
    pixels = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    return MemorySource(pixels, np.arange(60) % CLASSES, classes=("a", "b", "c"), spec="noise")


def test_evaluate_attacks_and_explains_the_output_that_fits_the_classes():
    data = noise()
    options = {"mean": (0.0,), "std": (1.0,), "attack_examples": 8, "attack_steps": 1,
               "explain_examples": 0, "map_examples": 10, "feature_examples": 20}  # fmt: skip
    plain = hs.evaluation_card(Images(), data, **options)["models"][0]
    assert plain["output"] is None
    for form, output in (("tuple", 1), ("nested", "a.logits")):
        several = hs.evaluation_card(Images(ENDS[form]), data, **options)["models"][0]
        assert several["accuracy"] == plain["accuracy"]
        assert several["robustness"] == plain["robustness"]
        assert several["output"] == output


def test_training_learns_the_output_that_fits_the_classes(tmp_path):
    data = noise()
    options = {"epochs": 1, "device": "cpu", "track": True, "show_progress": False}
    plain = hs.train(Images(), data, out=tmp_path / "plain", **options)
    for form in ("tuple", "nested"):
        several = hs.train(Images(ENDS[form]), data, out=tmp_path / form, **options)
        assert several.history[0]["train_loss"] == plain.history[0]["train_loss"]
        torch.testing.assert_close(several.model.fc.weight, plain.model.fc.weight)


# without a head


class NoHead(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :CLASSES] ** 2 - 1


NEED_HEAD = ["avh", "target_angle", "angular_margin", "feature_norm",
             "class_normalized_feature_norm"]  # fmt: skip


def test_scores_that_need_only_logits_are_computed_without_a_head(tmp_path):
    with pytest.warns(
        HardsightWarning, match="no head that can be read: avh, target_angle.*no lin"
    ):
        table = hs.score(NoHead(), rows(), out=tmp_path / "run")
    expected = hs.score(NoHead(), rows(), scores=table.scores)
    for name in expected.scores:
        np.testing.assert_array_equal(table.column(name), expected.column(name))
    assert set(NEED_HEAD).isdisjoint(table.scores)
    assert "el2n" in table.scores
    missing = hs.read_table(tmp_path / "run").metadata["missing"]
    assert missing["scores"] == NEED_HEAD
    assert missing["reason"].startswith("no linear layer of NoHead has 3 outputs")
    page = hs.write_report(tmp_path / "run").read_text()
    assert "Missing: avh, target_angle" in page


def test_a_missing_score_says_why_when_it_is_asked_for():
    with pytest.raises(HeadNotFoundError, match=r"no linear layer .*Scores that need no head: mod"):
        hs.score(NoHead(), rows(), scores=["avh", "entropy"])
    table = hs.score(NoHead(), rows())
    for ask in (lambda: table.column("avh"), table.hardest):
        with pytest.raises(
            TableError, match=r"no 'avh': no linear layer .* It has model_confidence"
        ):
            ask()
    assert len(table.hardest(3, by="el2n")) == 3


def test_a_head_that_is_named_but_does_not_fit_is_an_error_and_so_are_two_heads():
    class Twins(Net):
        def __init__(self) -> None:
            super().__init__()
            self.twin = nn.Linear(WIDTH, CLASSES)
            self.twin.load_state_dict(self.fc.state_dict())

        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * (self.fc(self.features(x)) + self.twin(self.features(x)))

    with pytest.raises(HeadNotFoundError, match="body"):
        hs.score(Net(), rows(), head="body")
    with pytest.raises(AmbiguousHeadError, match="fc, twin"):
        hs.score(Twins(), rows())


@pytest.mark.parametrize("function", ["softmax", "sigmoid"])
@pytest.mark.parametrize("scores", [None, ["entropy"]])
def test_probabilities_are_refused_whatever_is_asked_for(function, scores):
    def end(x, features, logits):
        return logits.softmax(1) if function == "softmax" else logits.sigmoid()

    with pytest.raises(NotLogitsError, match=f"returns the {function} of layer 'fc'"):
        hs.score(Net(end), rows(), scores=scores)


# warnings


def test_what_the_command_line_prints_is_a_warning_in_python():
    wide = nn.Sequential(nn.Linear(6, 5))
    data = rows()
    data.tensors[0][3] = torch.nan
    with pytest.warns(HardsightWarning) as caught:
        table = hs.score(wide, data)
    said = [str(one.message) for one in caught]
    assert said == [
        "the model has 5 classes, the data names 3: is it the model of this data?",
        "1 rows are not finite: see the column 'finite'",
    ]
    assert all(one.filename == __file__ for one in caught)  # where the user's own code is
    assert table.metadata["counts"]["non_finite"] == 1


def test_a_warning_is_shown_once_for_a_line_that_runs_often():
    wide = nn.Sequential(nn.Linear(6, 5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            hs.score(wide, rows())
    assert len(caught) == 1


def test_evaluate_warns_of_a_model_with_more_classes_than_the_data():
    with pytest.warns(HardsightWarning, match="the model has 5 classes, the data names 3"):
        hs.evaluation_card(
            nn.Sequential(nn.Linear(6, 5)), rows(), attack_examples=0, explain_examples=0,
            map_examples=10, feature_examples=20,
        )  # fmt: skip


def test_a_fitting_model_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.score(Net(), rows())


# models that fail


def failing(raised: Exception, first: int = 24):
    """Raises as soon as an example from ``first`` on comes; their last number is above 50."""

    def end(x, features, logits):
        if bool((x[:, -1] > 50).any()):
            raise raised
        return logits

    data = rows()
    data.tensors[0][first:, -1] = 100.0
    return Net(end), data


@pytest.mark.parametrize("scores", [None, ["entropy"]], ids=["all", "without a head"])
@pytest.mark.parametrize(
    "raised",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
    ids=["gpu", "cpu", "python"],
)
def test_running_out_of_memory_in_a_later_batch_says_what_to_do(tmp_path, raised, scores):
    model, data = failing(raised)
    options = {"batch_size": 8, "shard_rows": 8, "scores": scores}
    with pytest.raises(
        OutOfMemoryError,
        match=r"Net ran out of memory on batch 4 \(examples 24 to 31\).*--batch-size.*--resume",
    ):
        hs.score(model, data, out=tmp_path / "run", **options)
    table = hs.score(Net(), data, out=tmp_path / "run", resume=True, **options)
    assert len(table) == 40
    with pytest.raises(OutOfMemoryError, match=r"smaller --batch-size \(batch_size=\)$"):
        hs.score(model, data, batch_size=8)


def test_a_model_that_fails_in_a_later_batch_is_named_with_its_reason(tmp_path):
    model, data = failing(ValueError("no such token\nin the vocabulary"))
    with pytest.raises(
        ModelError,
        match=r"Net failed on batch 4 \(examples 24 to 31\) with ValueError: no such token; .*resu",
    ):
        hs.score(model, data, batch_size=8, shard_rows=8, out=tmp_path / "run")
    with pytest.raises(ModelError, match=r"failed on batch 4 \(examples 24 to 31\) with ValueErr"):
        hs.evaluation_card(model, data, batch_size=8)


FILE = """
import torch
from torch import nn


class Pair(nn.Module):
    def __init__(self, order):
        super().__init__()
        torch.manual_seed(0)
        self.auxiliary, self.fc = nn.Linear(64, 10), nn.Linear(64, 10)
        self.order = order

    def forward(self, images):
        return self.order(self.auxiliary(images.flatten(1)), self.fc(images.flatten(1)))


def same_size():
    return Pair(lambda auxiliary, logits: (auxiliary, logits))


def by_batch():
    body, norm = nn.Linear(64, 8), nn.BatchNorm1d(8, track_running_stats=False)
    return nn.Sequential(nn.Flatten(), body, norm, nn.ReLU(), nn.Linear(8, 10))


def nested():
    return Pair(lambda auxiliary, logits: {"aux": {"z": auxiliary}, "main": {"z": logits}})


def late():
    def order(auxiliary, logits):
        if len(logits) == 1:  # the last batch of 449 examples by 64
            raise RuntimeError("CUDA out of memory")
        return logits

    return Pair(order)


class NoHead(nn.Module):
    def forward(self, images):
        return images.flatten(1)[:, 20:30] ** 2 - 1
"""


def command(tmp_path, *words):
    (tmp_path / "nets.py").write_text(FILE)
    data = ["--data", "builtin:digits", "--split", "test", "--out", str(tmp_path / "run")]
    model = ["--model", f"{tmp_path / 'nets.py'}:{words[0]}"]
    return CliRunner().invoke(main, ["score", *model, *data, *words[1:]])


def test_the_command_line_chooses_an_output(tmp_path):
    refused = command(tmp_path, "same_size")
    assert refused.exit_code == 1
    assert "0 [8, 10], 1 [8, 10]" in refused.output
    assert command(tmp_path, "same_size", "--output", "1").exit_code == 0
    assert hs.read_table(tmp_path / "run").metadata["model"]["output"] == 1


def test_the_command_line_names_a_nested_output_by_its_path(tmp_path):
    refused = command(tmp_path, "nested")
    assert refused.exit_code == 1
    assert "pass output='main.z' (--output main.z)" in refused.output
    assert command(tmp_path, "nested", "--output", "aux.z").exit_code == 0
    model = hs.read_table(tmp_path / "run").metadata["model"]
    assert (model["output"], model["head"]) == ("aux.z", "auxiliary")


def test_the_command_line_notes_which_scores_are_missing(tmp_path):
    done = command(tmp_path, "NoHead")
    assert done.exit_code == 0, done.output
    assert done.output.count("the model has no head that can be read: avh, target_angle") == 1
    assert "Warning" not in done.output


def test_the_command_line_ends_without_a_traceback_when_memory_runs_out(tmp_path):
    done = command(tmp_path, "late", "--batch-size", "64", "--shard-rows", "64")
    assert done.exit_code == 1
    assert "--batch-size" in done.output
    assert "--resume" in done.output
    assert "Traceback" not in done.output


# rows that depend on more than the example


class ByBatch(nn.Module):
    """BatchNorm that takes the statistics of every batch, also in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = nn.Linear(6, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.body(x.flatten(1)[:, -6:])).relu())


class ByDraw(Net):
    """Dropout that is never turned off."""

    def features(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.body(x.flatten(1)[:, -6:]).relu(), 0.2, training=True)


class StaysInTraining(nn.Module):
    """Its ``train()`` is overridden, so that it cannot be put into eval mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3))

    def train(self, mode: bool = True) -> StaysInTraining:
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class AlongTheBatch(nn.Module):
    """Attention that takes the batch for a sentence, as batch_first is left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.fc = nn.MultiheadAttention(6, 2), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[:, None]
        return self.fc(self.attend(tokens, tokens, tokens, need_weights=False)[0][:, 0])


BY_BATCH = r"of ByBatch for an example depend on the other examples of its batch.*batch size"
BY_DRAW = r"ByDraw gives other logits for the same examples every time.*eval mode.*turn it off"


@pytest.mark.parametrize("scores", [None, ["entropy"]], ids=["all", "without a head"])
@pytest.mark.parametrize(
    ("make", "said", "recorded"),
    [
        (ByBatch, BY_BATCH, "batch"),
        (ByDraw, BY_DRAW, "draw"),
        (StaysInTraining, "of StaysInTraining for an example depend on the other", "batch"),
        (AlongTheBatch, "of AlongTheBatch for an example depend on the other", "batch"),
    ],
)
def test_score_tells_of_a_model_whose_rows_depend_on_more_than_the_example(
    make, said, recorded, scores, tmp_path
):
    with pytest.warns(HardsightWarning, match=said) as told:
        table = hs.score(make(), rows(), scores=scores)
    assert len(told) == 1
    assert table.metadata["model"]["rows_depend_on"] == recorded
    page = hs.write_report(table, out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert {"batch": "the other examples in its batch, so", "draw": "The model is random and"}[
        recorded
    ] in page


@pytest.mark.parametrize(("make", "said"), [(ByBatch, BY_BATCH), (ByDraw, BY_DRAW)])
def test_evaluate_tells_of_a_model_whose_rows_depend_on_more_than_the_example(make, said):
    options = {"attack_examples": 0, "explain_examples": 0, "map_examples": 10}
    with pytest.warns(HardsightWarning, match=said):
        card = hs.evaluation_card(make(), rows(), feature_examples=20, **options)
    assert card["models"][0]["rows_depend_on"] in ("batch", "draw")


def test_study_degradation_tells_once_of_a_model_whose_rows_depend_on_the_batch():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")  # as a user has it: once for each line of her code
        hs.study_degradation(ByBatch(), noise(), noise=(0.0, 0.1), mean=(0.0,), std=(1.0,))
    assert [bool(re.search(BY_BATCH, str(one.message))) for one in told] == [True]


class Counted(Net):
    """Writes down how many rows every forward pass has."""

    def forward(self, x: Tensor):
        self.sizes.append(len(x))
        return super().forward(x)


def test_a_model_that_looks_at_each_example_by_itself_is_not_told_of():
    net = Counted()
    net.sizes = []
    table = hs.score(net, rows(), batch_size=16)  # a warning would be an error
    assert "rows_depend_on" not in table.metadata["model"]
    # one pass finds the head, one and a half look at half of the rows alone, then the data come
    assert net.sizes == [8, 8, 4, 16, 16, 8]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_not_taken_for_other_examples_or_a_draw(dtype):
    class Deep(nn.Module):
        """Sixty layers, whose logits are returned in float64: what was rounded is not seen."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            layers = [[nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()] for _ in range(60)]
            self.body = nn.Sequential(nn.Linear(6, 64), *(part for some in layers for part in some))
            self.fc = nn.Linear(64, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            noise = 1e-3 * len(x)  # rounds in another way in a batch of another size
            features = self.body[1:](self.body[0](x) * (1 + noise * torch.finfo(dtype).eps))
            return self.fc(features).double()

    table = hs.score(Deep().to(dtype), rows(), scores=["entropy"])
    assert "rows_depend_on" not in table.metadata["model"]


def test_a_look_at_a_model_that_draws_does_not_shift_its_draws():
    net, data = ByDraw(), rows()
    torch.manual_seed(3)
    probs = net(data.tensors[0]).softmax(dim=1).double()
    torch.manual_seed(3)
    with pytest.warns(HardsightWarning, match=BY_DRAW):
        table = hs.score(net, data, scores=["entropy"], device="cpu", batch_size=40)
    expected = -(probs * probs.log()).sum(dim=1).detach()
    np.testing.assert_allclose(table.column("entropy"), expected, rtol=1e-5)


def test_a_scored_dataset_of_a_model_that_draws_goes_on(tmp_path):
    net = ByDraw()
    options = {"batch_size": 8, "shard_rows": 8, "out": tmp_path / "run"}
    with pytest.warns(HardsightWarning, match=BY_DRAW):
        hs.score(net, rows(), **options)
    with pytest.warns(HardsightWarning, match=BY_DRAW):  # changed code, it was said
        assert len(hs.score(net, rows(), **options, resume=True)) == 40


def test_the_command_line_says_once_that_rows_depend_on_the_batch(tmp_path):
    done = command(tmp_path, "by_batch", "--batch-size", "50")
    assert done.exit_code == 0, done.output
    assert done.output.count("depend on the other examples of its batch") == 1


def test_evaluate_tells_of_data_that_is_judged_against_itself():
    options = {"attack_examples": 0, "explain_examples": 0, "map_examples": 10,
               "feature_examples": 20, "mean": (0.0,), "std": (1.0,)}  # fmt: skip
    with pytest.warns(HardsightWarning, match="the foreign data noise is the data itself"):
        hs.evaluation_card(Images(), noise(), ood=noise(), **options)
    with pytest.warns(HardsightWarning, match="the training data noise is the data itself"):
        hs.evaluation_card(Images(), noise(), train=noise(), **options)


class WholeBatches(Net):
    """Takes eight examples at a time, as a model with a batch size written into it."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != 8:
            raise RuntimeError(f"expected 8 rows, got {len(x)}")
        return super().forward(x)


def test_a_model_that_cannot_be_tried_on_fewer_examples_is_told_of():
    said = r"could not be checked whether .* of WholeBatches.* \(expected 8 rows, got 4\)"
    with pytest.warns(HardsightWarning, match=said):
        table = hs.score(WholeBatches(), rows(16), batch_size=8)
    assert len(table) == 16


def test_a_model_of_segments_is_refused_by_that_name():
    net = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1))
    with pytest.raises(ModelError, match="segmentation and detection are not built"):
        hs.score(net, "builtin:digits", mean=(0.0,), std=(1.0,))


def test_an_example_of_a_batch_in_parts_is_named_by_its_own_id():
    class OddOne(OneLayer):
        def forward(self, x: Tensor) -> Tensor:
            logits = self.fc(x)
            return torch.where(x[:, :1] > 5, logits.flip(1) + 1, logits)

    model, examples = OddOne(3), torch.randn(4, 6)
    head = hs.find_head(model, torch.randn(4, 6).clamp(max=4))
    examples[:, 0] = torch.tensor([0.0, 0.0, 9.0, 0.0])
    # the longest texts first: the third and last row of the batch is the second of its part
    parts = Parts([examples[[3, 1]], examples[[0, 2]]], order=[2, 1, 3, 0], sizes=[2, 2])
    with (
        pytest.raises(HeadMismatchError, match=r"\(examples third\)"),
        ModelPass(model, head, device=torch.device("cpu")) as running,
    ):
        running.outputs(parts, ["first", "second", "third", "fourth"])


def test_an_error_in_a_part_of_a_batch_names_the_examples_of_that_part():
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if (x > 5).any():
                raise RuntimeError("no such token")
            return x

    inputs = torch.tensor([[0.0], [1.0], [9.0], [3.0]])
    parts = Parts([inputs[[3, 1]], inputs[[0, 2]]], order=[2, 1, 3, 0], sizes=[2, 2])
    with (
        pytest.raises(ModelError, match=r"batch 1 \(2 of its examples, such as first\)"),
        ModelPass(Fails(), None, device=torch.device("cpu")) as running,
    ):
        running.outputs(parts, ["first", "second", "third", "fourth"])
