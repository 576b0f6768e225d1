import pytest

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
        ("optimizer.lr=inf", "expected optimizer.lr to be finite, got inf"),
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
    ],
)
def test_a_mistake_in_a_recipe_is_named(tmp_path, change, message):
    (tmp_path / "r.toml").write_text(RECIPE)
    with pytest.raises(ConfigError, match=message):
        TrainConfig.load(tmp_path / "r.toml", [change])
