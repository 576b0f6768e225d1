import pytest
import torch
from torch import nn

from hardsight.errors import ModelError, OptionError
from hardsight.heads import capture, find_head
from hardsight.models import (
    CNN10,
    MODELS,
    AlexNet,
    AMCNet,
    EfficientNetLite0,
    EfficientNetSmall,
    ELAttackNet,
    ELMNISTNet,
    MNISTNet,
    ResNet18,
    SmallCNN,
    SphereConv2d,
    load_model,
)

# parameters at 10 classes, RGB; those of AlexNet, ResNets and DenseNet are the published counts of
# these CIFAR forms, VGG-19's is 20,040,522 less the 5,504 biases of its convolutions
PARAMETERS = {
    "alexnet": 2_472_266,
    "densenet121": 6_956_298,
    "resnet18": 11_173_962,
    "resnet50": 23_520_842,
    "vgg19": 20_040_522 - 5_504,
}
WIDTHS = {"alexnet": 256, "densenet121": 1024, "resnet18": 512, "resnet50": 2048, "vgg19": 512}


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_classic_network_has_its_published_number_of_parameters(name):
    assert parameters(MODELS[name](num_classes=10)) == PARAMETERS[name]


def conv_norm(inputs, outputs, size=3):
    return inputs * outputs * size * size + 2 * outputs


def test_the_amc_network_has_the_layers_of_table_2_of_its_paper():
    wanted = (
        conv_norm(3, 128) + 2 * conv_norm(128, 128)
        + conv_norm(128, 256) + 2 * conv_norm(256, 256)
        + conv_norm(256, 512) + conv_norm(512, 256, 1) + conv_norm(256, 128, 1)
        + 128 * 10 + 10
    )  # fmt: skip
    assert parameters(AMCNet()) == wanted == 3_121_802
    # 32 -> 16 -> 8 -> 6 by the valid convolution
    net = AMCNet()
    maps = net.body[:-2](torch.zeros(1, 3, 32, 32))
    assert maps.shape == (1, 128, 6, 6)


@pytest.mark.parametrize("network", [AMCNet, MNISTNet])
def test_the_amc_networks_have_the_noise_the_slope_and_the_dropout_of_the_paper(network):
    layers = list(network().body)
    assert layers[0].std == 0.15
    slopes = {layer.negative_slope for layer in layers if isinstance(layer, torch.nn.LeakyReLU)}
    shares = [layer.p for layer in layers if isinstance(layer, torch.nn.Dropout)]
    assert slopes == {0.1}
    assert shares == [0.5, 0.5]


def test_half_the_width_is_the_published_code_of_amc():
    widths = [layer.out_channels for layer in AMCNet(width=0.5).body if hasattr(layer, "stride")
              and hasattr(layer, "out_channels")]  # fmt: skip
    assert widths == [64, 64, 64, 128, 128, 128, 256, 128, 64]


def test_a_width_that_leaves_no_channels_is_refused():
    with pytest.raises(OptionError, match="expected width of at least 1/128, got 0"):
        AMCNet(width=0)


def test_the_amc_network_is_noisy_in_training_only():
    net, images = AMCNet(width=0.1, dropout=0.0), torch.zeros(4, 3, 16, 16)
    assert not torch.equal(net.train()(images), net(images))
    torch.testing.assert_close(net.eval()(images), net(images), rtol=0, atol=0)


@pytest.mark.parametrize("width", [2, 3])
def test_the_mnist_network_embeds_in_the_plane_or_in_space(width):
    net = MNISTNet(embedding_width=width).eval()
    wanted = (
        conv_norm(1, 64) + conv_norm(64, 64) + conv_norm(64, 128) + conv_norm(128, 64, 1)
        + 64 * width + width + width * 10 + 10
    )  # fmt: skip
    assert parameters(net) == wanted
    embeddings = net.features(torch.randn(64, 1, 28, 28))
    assert embeddings.shape == (64, width)


def test_the_mnist_embedding_uses_all_directions():
    embeddings = MNISTNet(embedding_width=2).train().features(torch.randn(64, 1, 28, 28))
    assert (embeddings - embeddings.mean(0)).lt(0).any(0).all()


def test_the_mnist_network_of_encouraging_loss_has_the_layers_of_its_published_code():
    def block(inputs):  # convolution with bias, one slope, batch norm
        return inputs * 64 * 9 + 64 + 1 + 2 * 64

    wanted = 2 + block(1) + 10 * block(64) + 576 * 256 + 256 + 2 * 256 + 256 * 10
    net = ELMNISTNet()
    assert parameters(net) == wanted == 522_125
    assert net.head.bias is None
    # 28 -> 26 by the convolution without padding -> 13 -> 6 -> 3
    maps, sides = torch.zeros(2, 1, 28, 28), []
    for layer in net.body:
        maps = layer(maps)
        sides += [maps.shape[-1]] if isinstance(layer, torch.nn.Conv2d | torch.nn.MaxPool2d) else []
    assert sides == [26] * 4 + [13] * 5 + [6] * 4 + [3]
    assert isinstance(net.body[-1], torch.nn.BatchNorm1d)  # the embedding has no activation
    with pytest.raises(OptionError, match="image_size of at least 10, got 9"):
        ELMNISTNet(image_size=9)


def test_its_head_is_kaiming_normal_and_drawn_from_the_seed():
    heads = [ELMNISTNet(seed=seed).head.weight for seed in range(8)]
    # gain sqrt(2) over 256 inputs: a standard deviation of 0.0884, in 20,480 draws to 1.5 %
    assert torch.stack(heads).std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.03)
    assert torch.equal(heads[3], ELMNISTNet(seed=3).head.weight)
    assert not torch.equal(heads[0], heads[1])


def test_the_small_network_under_attack_has_the_layers_of_the_published_code():
    wanted = (
        (25 * 16 + 16) + (25 * 16 * 32 + 32) + (25 * 32 * 64 + 64)
        + (576 * 100 + 100) + (100 * 10 + 10)
    )  # fmt: skip
    assert parameters(ELAttackNet()) == wanted == 123_222
    assert ELAttackNet().features(torch.zeros(2, 1, 28, 28)).shape == (2, 100)
    with pytest.raises(OptionError, match="image_size of at least 20, got 19"):
        ELAttackNet(image_size=19)


def test_cnn10_has_ten_convolutions_and_a_hidden_layer_of_512():
    net = CNN10(image_size=32)
    convolutions = [layer for layer in net.body if isinstance(layer, torch.nn.Conv2d)]
    assert [(layer.kernel_size[0], layer.out_channels) for layer in convolutions] == [
        (7, 64), *[(3, 64)] * 3, *[(3, 128)] * 3, *[(3, 256)] * 3,
    ]  # fmt: skip
    assert net.features(torch.zeros(2, 3, 32, 32)).shape == (2, 512)
    assert parameters(CNN10()) == 12_587_463
    with pytest.raises(OptionError, match="image_size of at least 16"):
        CNN10(image_size=8)


def mbconv(inputs, outputs, expansion, size):
    wide, squeezed = expansion * inputs, inputs // 4
    expand = conv_norm(inputs, wide, 1) if expansion > 1 else 0
    attend = wide * squeezed + squeezed + squeezed * wide + wide
    return expand + conv_norm(1, wide, size) + attend + conv_norm(wide, outputs, 1)


def test_the_small_efficientnet_has_the_widths_and_kernels_of_b0():
    stages = [  # Table 1 of the paper: expansion, channels, kernel; blocks as documented
        (1, 16, 3, 1), (6, 24, 3, 2), (6, 40, 5, 2), (6, 80, 3, 2), (6, 112, 5, 2), (6, 192, 5, 2),
    ]  # fmt: skip
    wanted, inputs = conv_norm(3, 32), 32
    for expansion, outputs, size, blocks in stages:
        for _ in range(blocks):
            wanted += mbconv(inputs, outputs, expansion, size)
            inputs = outputs
    wanted += conv_norm(192, 640, 1) + 640 * 10 + 10
    assert parameters(EfficientNetSmall()) == wanted == 1_521_350
    maps = EfficientNetSmall().body[:-2](torch.zeros(1, 3, 32, 32))
    assert maps.shape == (1, 640, 4, 4)


def test_a_width_scales_the_small_efficientnet_and_the_resnet():
    assert EfficientNetSmall(width=0.25).head.in_features == 160
    assert ResNet18(width=16).head.in_features == 128
    for made in (lambda: EfficientNetSmall(width=0), lambda: ResNet18(width=0)):
        with pytest.raises(OptionError, match=r"expected width .*, got 0"):
            made()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_every_network_takes_small_grey_and_small_coloured_images(name, channels, size):
    given = {"channels": channels, "image_size": size, "num_classes": 5}
    net = load_model(name, if_taken=given).model
    images = torch.randn(3, channels, size, size, generator=torch.Generator().manual_seed(0))
    head = find_head(net, images)
    assert (head.name, head.num_classes) == ("head", 5)
    with torch.no_grad(), capture(net, head) as forward:
        embeddings, logits = forward(images)
    assert embeddings.shape == (3, head.width)
    assert head.width == WIDTHS.get(name, head.width)
    torch.testing.assert_close(embeddings, net.features(images))
    torch.testing.assert_close(logits, net(images))


def state(model):
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def test_the_seed_alone_decides_the_weights():
    torch.manual_seed(1)
    first, before = AlexNet(seed=3), torch.random.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(state(first), state(AlexNet(seed=3)))
    assert not torch.equal(state(first), state(AlexNet(seed=4)))
    torch.manual_seed(1)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("network", [AlexNet, SmallCNN, EfficientNetLite0])
def test_drawing_weights_leaves_the_random_state_of_a_gpu_alone(monkeypatch, network):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    network(seed=3)
    assert seeded == []


def test_a_name_may_carry_options():
    loaded = load_model("amc13:width=0.25,channels=1", num_classes=4)
    assert loaded.options == {"width": 0.25, "channels": 1, "num_classes": 4}
    assert loaded.model.head.weight.shape == (4, 32)
    assert loaded.spec == "amc13"


def test_an_almost_known_name_is_answered_with_the_nearest():
    with pytest.raises(ModelError, match=r"what model 'resnet81' is\. Did you mean 'resnet18'\?"):
        load_model("resnet81")


def test_an_unknown_option_is_answered_with_the_nearest():
    with pytest.raises(ModelError, match=r"unknown option of .*'widht'. Did you mean 'width'\?"):
        load_model("amc13:widht=0.5")
    with pytest.raises(ModelError, match="a ReLU is built already; leave its options out"):
        load_model(torch.nn.ReLU(), options={"inplace": True})


def test_a_convolution_of_directions_gives_cosines():
    layer, images = SphereConv2d(2, 3, 3, padding=1, bias=False), torch.randn(2, 2, 5, 6)
    patches = nn.functional.unfold(images.double(), 3, padding=1)  # [N, 18, 30]
    filters = layer.weight.detach().double().flatten(1)
    lengths = filters.norm(dim=1)[:, None] * patches.norm(dim=1)[:, None]
    wanted = (filters @ patches / lengths).view(2, 3, 5, 6)
    torch.testing.assert_close(layer(images).double(), wanted, rtol=0, atol=1e-5)
    assert float(layer(images).detach().abs().max()) <= 1 + 1e-6


def test_black_patches_have_no_direction_and_a_finite_gradient():
    layer, images = SphereConv2d(1, 2, 3, bias=False), torch.zeros(1, 1, 4, 4, requires_grad=True)
    cosines = layer(images)
    cosines.sum().backward()
    assert (cosines == 0).all()
    assert images.grad.isfinite().all()
    assert layer.weight.grad.isfinite().all()


def test_a_decoupled_network_starts_from_the_same_weights_and_ignores_the_length_of_filters():
    plain, sphere = MNISTNet(seed=3).eval(), MNISTNet(seed=3, decoupled=True).eval()
    assert plain.state_dict().keys() == sphere.state_dict().keys()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, sphere.state_dict()[name])
    images = torch.randn(3, 1, 28, 28)
    before = sphere.features(images)
    assert not torch.allclose(plain.features(images), before)
    for module in sphere.modules():
        if isinstance(module, SphereConv2d):
            module.weight.data.mul_(5)
    torch.testing.assert_close(sphere.features(images), before)
