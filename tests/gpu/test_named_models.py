"""Models of timm, torchvision and transformers, on a GPU; built without their weights."""

import pytest
import torch
from torch import nn

from hardsight.errors import HeadMismatchError, ModelError
from hardsight.heads import capture, find_head
from hardsight.models import load_model


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def batch(side: int) -> torch.Tensor:
    return torch.randn(2, 3, side, side, device="cuda")


def assert_explained(model: nn.Module, inputs, name: str) -> None:
    """The head has this name, and its equation holds in and out of autocast."""
    head = find_head(model, inputs)
    assert head.name == name
    for enabled in (False, True):
        with (
            torch.no_grad(),
            torch.backends.cudnn.flags(allow_tf32=False),  # heads that are convolutions
            torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled),
            capture(model, head) as forward,
        ):
            embeddings, logits = forward(inputs)
        product = embeddings.double() @ head.weight.double().T
        product = product if head.bias is None else product + head.bias.double()
        # relative: the logits of a random inception_v3 go into the billions
        tolerance = (0.05 if enabled else 1e-4) * max(1.0, float(product.abs().max()))
        torch.testing.assert_close(product, logits.double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("resnet18", "fc"),
        ("vit_tiny_patch16_224", "head"),
        ("mobilenetv3_small_100", "classifier"),
        ("efficientnet_b0", "classifier"),
        ("convnext_atto", "head.fc"),
    ],
)
def test_the_head_of_a_timm_model_is_found(name, head):
    import timm

    loaded = load_model(f"timm:{name}", num_classes=7)
    assert loaded.weights_origin == "random initialisation"
    config = timm.data.resolve_model_data_config(loaded.model)
    assert (3, *loaded.preprocessing.size) == tuple(config["input_size"])
    assert loaded.preprocessing.mean == tuple(config["mean"])
    assert loaded.preprocessing.crop == config["crop_pct"]
    assert_explained(loaded.model.cuda(), batch(224), head)


@pytest.mark.parametrize(
    ("name", "head", "side"),
    [
        ("resnet18", "fc", 64),
        ("vgg11", "classifier.6", 64),
        ("densenet121", "classifier", 64),
        ("mobilenet_v3_small", "classifier.3", 64),
        ("googlenet", "fc", 64),
        ("inception_v3", "fc", 299),
        ("vit_b_16", "heads.head", 224),
        ("swin_t", "head", 64),
        ("convnext_tiny", "classifier.2", 64),
    ],
)
def test_the_head_of_a_torchvision_model_is_found(name, head, side):
    loaded = load_model(f"torchvision:{name}", num_classes=7)
    assert loaded.weights_origin == "random initialisation"
    assert loaded.preprocessing.origin.startswith("torchvision preset")
    assert_explained(loaded.model.cuda(), batch(side), head)


def test_the_preset_of_torchvision_weights_becomes_preprocessing_without_a_download():
    found = load_model("torchvision:resnet50").preprocessing  # IMAGENET1K_V2: 232, then 224
    assert (found.size, found.crop, found.interpolation) == ((224, 224), 224 / 232, "bilinear")
    assert found.mean == (0.485, 0.456, 0.406)
    assert found.origin == "torchvision preset ResNet50_Weights.IMAGENET1K_V2"


def test_squeezenet_has_a_relu_behind_its_head():
    model = load_model("torchvision:squeezenet1_1").model.cuda()
    with pytest.raises(HeadMismatchError, match=r"ReLU between the 1x1 convolution 'classifier.1'"):
        find_head(model, batch(64))
    model.classifier[2] = nn.Identity()
    assert_explained(model, batch(64), "classifier.1")


def test_weights_of_a_file_are_loaded_into_a_named_model(tmp_path):
    state = load_model("torchvision:resnet18", num_classes=7).model.state_dict()
    torch.save({"state_dict": {f"module.{n}": v for n, v in state.items()}}, tmp_path / "r.pt")
    loaded = load_model("torchvision:resnet18", weights=tmp_path / "r.pt", num_classes=7)
    torch.testing.assert_close(dict(loaded.model.state_dict()), dict(state))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("timm:resnet5O", r"unknown timm model 'resnet5O'\. Did you mean .*resnet5"),
        ("torchvision:resnet5O", r"unknown torchvision model 'resnet5O'\. Did you mean .*resnet50"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_ones(spec, message):
    with pytest.raises(ModelError, match=message):
        load_model(spec)


def test_an_unknown_set_of_torchvision_weights_is_answered_with_the_known_ones():
    with pytest.raises(ModelError, match=r"unknown weights of resnet50 'IMAGENET_V2'.*IMAGENET1K"):
        load_model("torchvision:resnet50", weights="IMAGENET_V2")


def test_a_hugging_face_vit_is_captured_on_the_gpu(tmp_path):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8, num_labels=5,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(tmp_path)
    loaded = load_model(f"hf:{tmp_path}")
    assert_explained(loaded.model.cuda(), {"pixel_values": batch(32)}, "classifier")


@pytest.mark.filterwarnings("ignore")  # torch about itself, when it compiles
@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_wrapped_models_are_captured_on_the_gpu(wrap):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5)).cuda()
    wrapped, x = wrap(model), torch.randn(8, 16, device="cuda")
    wrapped(x)
    assert_explained(wrapped, x, "2")


def test_reduced_float32_precision_is_not_taken_for_a_mismatch():
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1000)).cuda()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert find_head(model, torch.randn(64, 64, device="cuda")).name == "2"
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_search_leaves_the_random_state_of_the_gpu_alone():
    class Noisy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + torch.randn_like(x))

    model = nn.Sequential(Noisy(16, 16), nn.Linear(16, 5)).cuda()
    x, before = torch.randn(8, 16, device="cuda"), torch.cuda.get_rng_state()
    find_head(model, x)
    assert torch.equal(torch.cuda.get_rng_state(), before)
