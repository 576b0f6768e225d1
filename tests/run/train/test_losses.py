import math

import pytest
import torch
from torch import nn

from hardsight.errors import ConfigError, HeadError
from hardsight.losses import large_margin_softmax_loss
from hardsight.registry import LOSSES, LossSpec
from hardsight.run.train import LossConfig, TotalLoss, linear_layer

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.0]])
LABELS = torch.tensor([0, 2])


def total(*configs, epoch=0.0, **given):
    given = {"embeddings": None, "layer": None, **given}
    return TotalLoss(configs)(LOGITS, LABELS, epoch=epoch, **given)


def test_losses_are_weighted_and_added():
    log_p = LOGITS.double() - LOGITS.double().exp().sum(1, keepdim=True).log()
    plain = -log_p[[0, 1], LABELS].mean()
    smooth = 0.9 * plain - 0.1 * log_p.mean()
    got = total(
        LossConfig("cross_entropy"),
        LossConfig("cross_entropy", weight=0.5, options={"label_smoothing": 0.1}),
    )
    torch.testing.assert_close(got.double(), plain + 0.5 * smooth, atol=1e-6, rtol=1e-6)


def test_class_weights_may_be_a_list():
    got = total(LossConfig("cross_entropy", options={"weight": [1.0, 1.0, 3.0]}))
    each = -LOGITS.log_softmax(1)[[0, 1], LABELS]
    torch.testing.assert_close(got, (each[0] + 3 * each[1]) / 4)


@pytest.mark.parametrize(
    ("ramp", "epoch", "weight"),
    [
        ("none", 0, 2.0),
        ("linear", 0, 0.0),
        ("linear", 20, 0.5),
        ("linear", 200, 2.0),
        ("gaussian", 0, 2 * math.exp(-5)),
        ("gaussian", 40, 2 * math.exp(-5 / 4)),
        ("gaussian", 80, 2.0),
    ],
)
def test_a_ramp_raises_the_weight_to_its_full_value(ramp, epoch, weight):
    loss = LossConfig("cross_entropy", weight=2.0, ramp=ramp, ramp_epochs=80)
    assert loss.weight_at(epoch) == pytest.approx(weight)


def test_a_loss_plays_no_part_before_its_epoch_and_its_ramp_starts_there():
    late = LossConfig("cross_entropy", start_epoch=10, ramp="linear", ramp_epochs=4)
    assert [late.weight_at(epoch) for epoch in (9, 10, 11, 14, 20)] == [0.0, 0.0, 0.25, 1.0, 1.0]
    plain = LossConfig("cross_entropy")
    torch.testing.assert_close(total(plain, late, epoch=3.0), total(plain), rtol=0, atol=0)


def test_mixed_precision_reaches_the_loss_as_float32():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = TotalLoss([LossConfig("cross_entropy")])(
            LOGITS.bfloat16(), LABELS, embeddings=None, layer=None, epoch=0
        )
    assert got.dtype == torch.float32
    wanted = nn.functional.cross_entropy(LOGITS.bfloat16().float(), LABELS)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            LossConfig("cross_entropy", options={"label_smooth": 0.1}),
            r"option of loss cross_entropy 'label_smooth'. Did you mean 'label_smoothing'\?",
        ),
        (
            LossConfig("cross_entropy", options={"reduction": "sum"}),
            "unknown option of loss cross_entropy 'reduction'",
        ),
        (LossConfig("cross_entrpy"), r"unknown loss 'cross_entrpy'. Did you mean 'cross_entropy'"),
        (LossConfig("avh"), r"loss avh needs the option 'scale'; add options = \{scale = ...\}"),
        (
            LossConfig("amc", options={"margin": 0.5}),
            r"option of loss amc 'margin'. Did you mean 'margin_rad'\?",
        ),
    ],
)
def test_a_loss_that_cannot_be_made_is_explained(config, message):
    with pytest.raises(ConfigError, match=message):
        TotalLoss([config])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("amc", {"margin_rad": "big"}, "expected margin_rad to be float, got 'big'"),
        ("amc", {"pairs": 3}, "expected pairs to be str, got 3"),
        ("amc", {"check_finite": 1}, "expected check_finite to be bool, got 1"),
        ("focal", {"gamma": [2.0]}, r"expected gamma to be float, got \[2.0\]"),
        ("encouraging", {"bonus_start": "x"}, "expected bonus_start to be float, got 'x'"),
        ("large_margin_softmax", {"margin": 2.5}, "expected margin to be int, got 2.5"),
        (
            "cross_entropy",
            {"label_smoothing": "a"},
            "expected label_smoothing to be float, got 'a'",
        ),
        ("cross_entropy", {"ignore_index": None}, "expected ignore_index to be int, got None"),
        ("cross_entropy", {"weight": "x"}, "expected weight to be a list of numbers, got 'x'"),
        ("cross_entropy", {"weight": ["x", 1]}, r"expected weight .* numbers, got \['x', 1\]"),
        ("focal", {"weight": 2.0}, "expected weight to be a list of numbers, got 2.0"),
    ],
)
def test_a_loss_option_of_a_wrong_type_is_named_with_its_loss(name, options, message):
    with pytest.raises(ConfigError, match=rf"loss {name}, \[options\]: {message}"):
        TotalLoss([LossConfig(name, options=options)])


def test_an_option_out_of_its_range_is_named_with_its_loss():
    with pytest.raises(ConfigError, match=r"loss amc: expected margin_rad in \(0, pi\]"):
        total(LossConfig("amc", options={"margin_rad": 9.0}), embeddings=torch.randn(2, 4))


@pytest.mark.parametrize("name", ["linear_avh", "encouraging", "cross_entropy"])
def test_an_option_that_torch_cannot_hold_is_refused_before_training(name):
    options = {"ignore_index": 10**20, **({"scale": 2.0} if name == "linear_avh" else {})}
    with pytest.raises(ConfigError, match=rf"loss {name}, .* ignore_index .* at most 9.22e\+18"):
        TotalLoss([LossConfig(name, options=options)])


@pytest.mark.parametrize("name", ["encouraging", "cross_entropy"])
def test_an_option_that_does_not_fit_the_classes_is_refused_before_training(name):
    loss = TotalLoss([LossConfig(name, options={"weight": [1.0, 2.0]})])
    with pytest.raises(
        ConfigError, match=rf"loss {name} cannot be computed for 3 classes: .*weight"
    ):
        loss.check(num_classes=3, width=4)


def test_a_loss_of_class_weights_trains_the_head_itself():
    layer = nn.Linear(4, 3)
    embeddings = torch.randn(2, 4, requires_grad=True)
    loss = TotalLoss([LossConfig("avh", options={"scale": 4.0})])
    assert loss.needs_class_weights
    assert not loss.uses_logits
    logits = layer(embeddings)
    loss(logits, LABELS, embeddings=embeddings, layer=layer, epoch=0).backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum() > 0
    # the angles of Eq. 5 by arccos in double precision
    x, w = embeddings.detach().double(), layer.weight.detach().double()
    cosines = nn.functional.normalize(x) @ nn.functional.normalize(w).T
    wanted = nn.functional.cross_entropy(4 * (math.pi - torch.acos(cosines)), LABELS)
    got = loss(logits, LABELS, embeddings=embeddings, layer=layer, epoch=0)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_a_loss_of_class_weights_needs_a_plain_linear_head():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    with pytest.raises(HeadError, match=r"needs a plain nn.Linear head, got ParametrizedLinear"):
        linear_layer(model, "0")


def test_a_loss_plays_no_part_from_its_last_epoch_on():
    early = LossConfig("cross_entropy", end_epoch=3)
    assert [early.weight_at(epoch) for epoch in (0, 2, 3, 9)] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("beta", [0.0, 0.9, 1.0])
def test_classes_are_weighed_by_the_inverse_of_their_effective_number(beta):
    counts = [50, 5, 1]
    effective = [sum(beta**k for k in range(n)) for n in counts]  # 1 + beta + ... + beta^(n-1)
    share = torch.tensor([(1 / e) / sum(1 / f for f in effective) for e in effective])
    logits, labels = torch.randn(3, 3), torch.tensor([0, 1, 2])
    loss = TotalLoss([LossConfig("cross_entropy", class_balance=beta)], counts)
    got = loss(logits, labels, embeddings=None, layer=None, epoch=0)
    torch.testing.assert_close(got, -(share * logits.log_softmax(1).diag()).sum())


@pytest.mark.parametrize("beta", [0.0, 0.9, 1.0])
def test_weights_that_balance_classes_average_one(beta, monkeypatch):
    # our own losses divide by the sum of the weights; this one does not, so it sees their scale
    def weight_of_labels(logits, labels, *, weight=None):
        return weight[labels].mean()

    spec = LossSpec("weight_of_labels", weight_of_labels, nn.Module, ("logits", "labels"), 1)
    monkeypatch.setitem(LOSSES._specs, spec.name, spec)
    loss = TotalLoss([LossConfig(spec.name, class_balance=beta)], class_counts=[50, 5, 1])
    every_class = torch.tensor([0, 1, 2])
    got = loss(torch.zeros(3, 3), every_class, embeddings=None, layer=None, epoch=0)
    torch.testing.assert_close(got, torch.tensor(1.0))


def test_deferred_re_weighting_is_two_terms_that_take_turns():
    terms = (
        LossConfig("encouraging", end_epoch=2, options={"log_end": 1.0}),
        LossConfig("encouraging", start_epoch=2, class_balance=1.0, options={"log_end": 1.0}),
    )
    loss = TotalLoss(terms, class_counts=[30, 20, 10])
    given = {"embeddings": None, "layer": None}
    odds = (LOGITS.exp().sum(1) - LOGITS.exp()[[0, 1], LABELS]).log() - LOGITS[[0, 1], LABELS]
    torch.testing.assert_close(loss(LOGITS, LABELS, epoch=1, **given), odds.mean())
    # labels 0 and 2 of 30 and 10 examples: weights 1 to 3
    late = (odds[0] + 3 * odds[1]) / 4
    torch.testing.assert_close(loss(LOGITS, LABELS, epoch=2, **given), late)


def test_class_balance_needs_a_loss_with_class_weights_and_sets_them_alone():
    with pytest.raises(ConfigError, match="'weight', which this loss does not have"):
        TotalLoss([LossConfig("mirror_mse", class_balance=1.0)], [1, 2])
    given = LossConfig("focal", class_balance=1.0, options={"weight": [1.0]})
    with pytest.raises(ConfigError, match="'weight', which is given as well"):
        TotalLoss([given], [1, 2])


def test_only_the_hardest_share_of_a_batch_counts():
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.0, 0.0]], requires_grad=True)
    labels = torch.zeros(4).long()
    loss = TotalLoss([LossConfig("cross_entropy", hardest=0.5)])
    got = loss(logits, labels, embeddings=None, layer=None, epoch=0)
    by_row = -logits.log_softmax(1)[:, 0]  # rows 1 and 3 are the hardest
    torch.testing.assert_close(got, (by_row[1] + by_row[3]) / 2)
    (grad,) = torch.autograd.grad(got, logits)
    assert grad.abs().sum(1).bool().tolist() == [False, True, False, True]


def test_classes_are_weighed_among_the_hardest_as_they_are_among_all():
    logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    counts = [30, 20, 10]  # weights 2 to 3 to 6
    weights = torch.tensor([2.0, 3.0, 6.0])[labels]
    given = {"embeddings": None, "layer": None, "epoch": 0}

    def value(share):
        config = LossConfig("cross_entropy", class_balance=1.0, hardest=share)
        return TotalLoss([config], counts)(logits, labels, **given)

    by_row = -logits.log_softmax(1)[torch.arange(6), labels]
    torch.testing.assert_close(value(1.0), (weights * by_row).sum() / weights.sum())
    top = by_row.topk(3).indices  # by the loss itself, not by the loss times the weight
    expected = (weights * by_row)[top].sum() / weights[top].sum()
    torch.testing.assert_close(value(0.5), expected)


def test_the_hardest_of_a_loss_of_pairs_are_not_examples():
    loss = TotalLoss([LossConfig("amc", hardest=0.5)])
    with pytest.raises(
        ConfigError, match=r'one value per example, .* options = \{pairs = "hard"\}'
    ):
        loss.check(num_classes=3, width=4)


def test_an_option_decays_with_every_step_and_ends_at_zero():
    embeddings, weights = torch.randn(6, 4), torch.randn(3, 4)
    layer = nn.Linear(4, 3, bias=False)
    layer.weight.data = weights
    config = LossConfig(
        "large_margin_softmax", options={"margin": 2, "blend": 100.0}, decays={"blend": 0.5}
    )

    def at(step):
        return TotalLoss([config])(
            LOGITS, LABELS, embeddings=embeddings[: len(LABELS)], layer=layer, epoch=0, step=step
        )  # fmt: skip

    for step, blend in ((0, 100.0), (1, 50.0), (3, 12.5), (60, 0.0)):
        wanted = large_margin_softmax_loss(
            embeddings[: len(LABELS)], LABELS, weights, margin=2, blend=blend
        )
        torch.testing.assert_close(at(step), wanted)


@pytest.mark.parametrize(
    ("decays", "message"),
    [
        ({"blen": 0.9}, r"unknown option .*'blen'. Did you mean 'blend'"),
        ({"blend": 1.5}, r"expected decays.blend in \(0, 1\), got 1.5"),
        ({"blend": 0.9}, r"decays.blend needs a number to start from"),
    ],
)
def test_a_decay_that_cannot_be_is_refused(decays, message):
    with pytest.raises(ConfigError, match=message):
        TotalLoss([LossConfig("large_margin_softmax", decays=decays)])
