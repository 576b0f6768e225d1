"""The networks of our own, by the names that recipes use."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from hardsight.errors import ModelError
from hardsight.models._alexnet import AlexNet
from hardsight.models._amc_nets import AMCNet, MNISTNet
from hardsight.models._cnn10 import CNN10
from hardsight.models._densenet import DenseNet121
from hardsight.models._efficientnet import EfficientNetSmall
from hardsight.models._efficientnet_lite import EfficientNetLite0
from hardsight.models._el_nets import ELAttackNet, ELMNISTNet
from hardsight.models._resnet import ResNet18, ResNet50
from hardsight.models._small_cnn import SmallCNN
from hardsight.models._vgg import VGG19
from hardsight.registry import unknown_name

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
"""Name in a recipe or on the command line, and the class it stands for."""


def check_options(factory: Any, options: Mapping[str, Any], spec: str) -> None:
    """Raise where a factory does not take an option.

    Raises:
        ModelError: it does not; the message has the nearest one it takes.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            raise ModelError(unknown_name(f"option of {spec}", name, list(parameters)))
