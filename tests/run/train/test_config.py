import pytest

from hardsight.config import config_from
from hardsight.errors import ConfigError
from hardsight.run.train import (
    AugmentConfig,
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)

RECIPE = """
model = "resnet18"
out = "runs/x"
loss = ["cross_entropy", {name = "amc", weight = 0.1, ramp = "gaussian", ramp_epochs = 80}]
optimizer = {name = "adam", lr = 3e-3}

[data]
name = "cifar10"
split = "train"

[augment]
crop_padding = 4
flip = true
"""


def test_a_recipe_is_read_into_its_tables(tmp_path):
    (tmp_path / "r.toml").write_text(RECIPE)
    config = TrainConfig.load(tmp_path / "r.toml", ["data.root=/data", "epochs=3"], seed=4)
    assert config == TrainConfig(
        model=ModelConfig("resnet18"),
        data=DataConfig("cifar10", split="train", root="/data"),
        out="runs/x",
        epochs=3,
        seed=4,
        loss=(
            LossConfig("cross_entropy"),
            LossConfig("amc", weight=0.1, ramp="gaussian", ramp_epochs=80.0),
        ),
        optimizer=OptimizerConfig("adam", lr=3e-3),
        augment=AugmentConfig(4, True),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epoch=3", r"unknown key 'epoch'. Did you mean 'epochs'\?"),
        ("optimizer.learning_rate=1", r"\[optimizer\]: unknown key 'learning_rate'"),
        ("augment.crop=4", r"\[augment\]: unknown key 'crop'. Did you mean 'crop_padding'\?"),
        ("epochs=many", "expected epochs to be int, got 'many'"),
        ("optimizer.lr=fast", r"\[optimizer\]: expected lr to be float, got 'fast'"),
        ("optimizer.name=adamv", "unknown optimizer 'adamv'. Did you mean 'adam"),
        ("schedule=cosin", r"unknown schedule 'cosin'. Did you mean 'cosine'\?"),
        ("loss={name = 'amc', ramp = 'gauss'}", r"unknown ramp 'gauss'. Did you mean 'gaussian'\?"),
        ("select=test", "unknown selection .* Known: accuracy, last, loss"),
        ("strategy=dp", "unknown strategy 'dp'. Did you mean 'ddp'"),
        ("epochs=0", "expected epochs to be at least 1, got 0"),
        (
            "devices=3",
            "batch_size = 128 cannot be shared out evenly over 3 devices; use 126 or 129",
        ),
        ("device='cuda:1'\ndevices=2", "device = 'cuda:1' is one device, got devices = 2; use dev"),
        ("optimizer.lr=inf", "expected optimizer.lr to be finite, got inf"),
        (
            "optimizer.lr=1e42",
            r"\[optimizer\]: expected lr to be a number of at most 3.4e\+38 in size",
        ),
        ("optimizer={momentum = 2.0}", r"expected optimizer.momentum in \[0, 1\), got 2.0"),
        ("loss={name = 'amc', weight = nan}", "loss amc: expected a finite weight, got nan"),
        (
            "data={name = 'pacs', split = 'photo', validation_split = 'art_painting+cartoon', "
            "test_split = 'cartoon'}",
            "data.validation_split and data.test_split share 'cartoon'.*never by the test split",
        ),
        ("augment.crop_padding=-1", "expected augment.crop_padding to be at least 0"),
        ("loss=[]", "expected at least one loss"),
        ("sampling=balanced", r"unknown sampling 'balanced'. Did you mean 'class_balanced'\?"),
        ("adversarial={epsilon = 0.1, attack = 'cw'}", "unknown attack 'cw'"),
        ("adversarial={epsilon = 0.1, norm = 'l1'}", "unknown norm 'l1'"),
        ("adversarial=-0.1", r"expected adversarial.epsilon >= 0, .* got -0.1, 1.0 and 7"),
        ("loss={name = 'amc', end_epoch = 0}", "end_epoch after start_epoch = 0, got 0"),
        ("loss={name = 'focal', class_balance = 2}", r"class_balance in \[0, 1\], got 2"),
        ("loss={name = 'focal', hardest = 0}", r"hardest to be a share in \(0, 1\], got 0"),
        ("data.imbalance=0.5", "expected data.imbalance of at least 1, .* got 0.5"),
        ("data.validation=1.0", r"expected data.validation in \[0, 1\)"),
        ("optimizer.lr=-1", "expected optimizer.lr to be at least 0, got -1"),
        ("optimizer.weight_decay=-1", "expected optimizer.weight_decay to be at least 0, got -1"),
        ("optimizer.betas=[0.9, 1.5]", r"expected optimizer.betas in \[0, 1\), got \(0.9, 1.5\)"),
        (
            "optimizer={momentum = 0, nesterov = true}",
            "optimizer.nesterov needs a momentum above 0",
        ),
        ("schedule.warmup_epochs=-2", "expected schedule.warmup_epochs to be at least 0, got -2"),
        ("gradient_clip=-1", "expected gradient_clip to be above 0, got -1"),
        ("loss={name = 'amc', ramp = 'linear'}", "loss amc: the ramp 'linear' needs ramp_epochs"),
        ("loss={name = 'amc', ramp_epochs = 9}", "loss amc: ramp_epochs = 9.0 needs a ramp"),
        ("loss={name = 'amc', start_epoch = -1}", "start_epoch to be at least 0, got -1"),
        ("workers=-1", "expected workers to be at least 0, got -1"),
        ("data.size=[0, 8]", r"expected data.size of at least 1 pixel, got \(0, 8\)"),
        ("data.mean=[nan]", r"expected every data.mean to be finite, got \(nan,\)"),
        ("data.std=[inf]", r"expected every data.std to be above 0 and finite, got \(inf,\)"),
        ("data.std=[0.0]", r"expected every data.std to be above 0 and finite, got \(0.0,\)"),
        (
            "loss={name = 'amc', weight = -0.1}",
            "loss amc: expected a weight of at least 0, got -0.1; .* would make the loss grow",
        ),
        (
            "optimizer={name = 'adam', momentum = 0.9}",
            r"\[optimizer\]: momentum plays no part with name = 'adam', only with 'sgd'; leave it",
        ),
        ("optimizer={name = 'adamw', nesterov = true}", "nesterov plays no part with name = 'ada"),
        ("optimizer={name = 'sgd', betas = [0.9, 0.99]}", "betas plays no part with name = 'sgd'"),
        (
            "schedule={name = 'cosine', step_epochs = 5}",
            r"\[schedule\]: step_epochs plays no part with name = 'cosine', only with 'step'",
        ),
        ("schedule={gamma = 0.5}", "gamma plays no part with name = 'cosine', only with 'step'"),
        ("schedule={name = 'step', final = 0.1}", "final plays no part with name = 'step'"),
        ("schedule={ramp_down_epochs = 5}", "ramp_down_epochs plays no part with name = 'cosine'"),
        ("schedule={final_beta1 = 0.5}", "final_beta1 plays no part .* only with 'gaussian_ramps'"),
        (
            "adversarial={epsilon = 0.1, attack = 'fgsm', steps = 3}",
            r"\[adversarial\]: steps plays no part with attack = 'fgsm', only with 'pgd'",
        ),
        ("adversarial={epsilon = 0.1, attack = 'fgsm', norm = 'linf'}", "norm plays no part"),
        ("adversarial={epsilon = 0.1, attack = 'fgsm', step_size = 1}", "step_size plays no part"),
        (
            "data={name = 'pacs', split = 'photo', validation = 0.1, validation_split = 'art'}",
            r"\[data\]: validation plays no part with validation_split = 'art'; leave one of them",
        ),
        (
            "data={name = 'pacs', split = 'photo+art', test_split = 'cartoon+art'}",
            "data.split and data.test_split share 'art'.*tested on examples it was trained on",
        ),
        (
            "data={name = 'pacs', split = 'photo', validation_split = 'photo'}",
            "data.split and data.validation_split share 'photo'.*selected by examples it was tr",
        ),
        (
            "schedule={name = 'step', step_epochs = 5, drop_epochs = [3]}",
            r"step_epochs plays no part with drop_epochs = \(3,\); leave one of them out",
        ),
    ],
)
def test_a_mistake_in_a_recipe_is_named(tmp_path, change, message):
    (tmp_path / "r.toml").write_text(RECIPE)
    with pytest.raises(ConfigError, match=message):
        TrainConfig.load(tmp_path / "r.toml", change.splitlines())


def test_one_number_stands_for_both_sides_and_for_all_channels(tmp_path):
    (tmp_path / "r.toml").write_text(RECIPE)
    changes = ["data.size=32", "data.mean=0.5", "data.std=1"]
    data = TrainConfig.load(tmp_path / "r.toml", changes).data
    assert (data.size, data.mean, data.std) == ((32, 32), (0.5,), (1.0,))


def test_a_key_without_a_part_is_refused_in_a_table_made_in_python_too():
    tables = {"model": ModelConfig("m"), "data": DataConfig("d"), "out": "runs/x"}
    with pytest.raises(ConfigError, match="momentum plays no part with name = 'adam'"):
        TrainConfig(**tables, optimizer=OptimizerConfig("adam", momentum=0.5))
    assert TrainConfig(**tables, optimizer=OptimizerConfig("adam")).optimizer.momentum == 0.9


def test_no_share_beside_a_validation_split_says_the_same_twice(tmp_path):
    (tmp_path / "r.toml").write_text(RECIPE)
    split = "data={name = 'pacs', split = 'photo', validation = 0, validation_split = 'art'}"
    config = TrainConfig.load(tmp_path / "r.toml", [split])
    assert config.data.validation_split == "art"


@pytest.mark.parametrize(
    ("losses", "epochs", "message"),
    [
        (
            [{"name": "cross_entropy", "start_epoch": 2}],
            5,
            r"epochs 0 and 1 \(counted from 0\).*cross_entropy from epoch 2 on",
        ),
        (
            [{"name": "cross_entropy", "end_epoch": 3}, {"name": "amc", "start_epoch": 4}],
            9,
            r"epoch 3 \(counted from 0\).*cross_entropy before epoch 3, amc from epoch 4 on",
        ),
        (
            [{"name": "cross_entropy", "end_epoch": 1}],
            30,
            r"epochs 1 to 29 \(counted from 0\)",
        ),
        (
            [{"name": "cross_entropy", "ramp": "linear", "ramp_epochs": 4}],
            5,
            r"epoch 0 \(counted from 0\).*a linear ramp begins with a weight of 0",
        ),
        ([{"name": "cross_entropy", "weight": 0.0}], 2, r"epochs 0 and 1 .*weight of 0"),
    ],
)
def test_epochs_without_any_loss_are_refused_before_they_come(losses, epochs, message):
    with pytest.raises(ConfigError, match=message):
        config_from(
            TrainConfig,
            {"model": "m", "data": "d", "out": "o", "loss": losses, "epochs": epochs},
            where="here",
        )


@pytest.mark.parametrize(
    "losses",
    [
        [{"name": "cross_entropy", "end_epoch": 3}, {"name": "amc", "start_epoch": 3}],
        [{"name": "cross_entropy", "ramp": "gaussian", "ramp_epochs": 4}],
        ["cross_entropy", {"name": "amc", "weight": 0.0}],
        [{"name": "cross_entropy", "end_epoch": 5}],
    ],
)
def test_a_recipe_with_a_loss_in_every_epoch_is_taken(losses):
    given = {"model": "m", "data": "d", "out": "o", "loss": losses, "epochs": 5}
    assert len(config_from(TrainConfig, given, where="here").loss) == len(losses)


def test_an_option_of_a_loss_beside_its_name_is_sent_to_the_options():
    said = r"unknown key 'pairs'\. .*write it as options = \{pairs = \.\.\.\}"
    with pytest.raises(ConfigError, match=said):
        TrainConfig.load(None, ["data=x", "model=mlp", 'loss={name="amc", pairs="all"}'])
    with pytest.raises(ConfigError, match=r"Did you mean 'weight'\? Known: [\w, ]*$"):
        TrainConfig.load(None, ["data=x", "model=mlp", 'loss={name="amc", weigth=2}'])
