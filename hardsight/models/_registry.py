"""Our own networks, under the names that recipes use."""

from collections.abc import Mapping

from torch import nn

from hardsight.models._classifier import SmallCNN
from hardsight.models._papers import CNN10, AMCNet, ELAttackNet, ELMNISTNet, MNISTNet
from hardsight.models._standard import (
    VGG19,
    AlexNet,
    DenseNet121,
    EfficientNetLite0,
    EfficientNetSmall,
    ResNet18,
    ResNet50,
)

MODELS: Mapping[str, type[nn.Module]] = {
    "alexnet": AlexNet,
    "amc13": AMCNet,
    "cnn10": CNN10,
    "densenet121": DenseNet121,
    "efficientnet_lite0": EfficientNetLite0,
    "efficientnet_small": EfficientNetSmall,
    "el_attack": ELAttackNet,
    "el_mnist": ELMNISTNet,
    "mnist_cnn": MNISTNet,
    "resnet18": ResNet18,
    "resnet50": ResNet50,
    "small_cnn": SmallCNN,
    "vgg19": VGG19,
}
"""Names in a recipe or on the command line, and the classes they stand for."""
