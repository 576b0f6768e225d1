"""Models that timm, torchvision and transformers build by name."""

import difflib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from hardsight._checks import require
from hardsight.errors import HardsightError, ModelError
from hardsight.models._classes import ClassNames, imagenet_of_timm, named, own_classes
from hardsight.models._hugging_face import HuggingFaceModel
from hardsight.models._preprocessing import from_timm, from_torchvision
from hardsight.preprocessing import Preprocessing
from hardsight.registry import unknown_name


@dataclass(frozen=True, eq=False)
class NamedModel:
    """A model and what its package says about it.

    Attributes:
        model: as built.
        preprocessing: what it wants done to images; ``None`` if nothing says so.
        classes: names of its outputs, if its weights are the package's own.
        processor: the image processor of transformers, if it could be built.
    """

    model: nn.Module
    preprocessing: Preprocessing | None
    classes: ClassNames
    processor: Any = None


def timm_model(
    name: str,
    *,
    pretrained: str | None,
    num_classes: int | None,
    options: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
) -> NamedModel:
    """A timm model with its data configuration."""
    timm = require("timm", extra="models", feature=f"model timm:{name}")
    if not timm.is_model(name):
        raise ModelError(_unknown("timm", name, timm.list_models()))
    given = {} if num_classes is None else {"num_classes": num_classes}
    given |= options or {}
    model: nn.Module = _built(
        f"timm:{name}",
        lambda: timm.create_model(name, pretrained=pretrained is not None, **given),
    )
    if preprocessing is None:
        config = timm.data.resolve_model_data_config(model)
        preprocessing = from_timm(config, origin=f"timm data config of {name}")
    classes = _timm_classes(timm, model, name) if pretrained else ClassNames()
    return NamedModel(model, preprocessing, classes)


def _timm_classes(timm: Any, model: nn.Module, name: str) -> ClassNames:
    """Names that the weights carry, else those of the ImageNet they were trained on."""
    own = own_classes(model, f"timm:{name}")
    return own if own.names else imagenet_of_timm(timm, model)


def torchvision_model(
    name: str,
    *,
    pretrained: str | None,
    num_classes: int | None,
    options: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
) -> NamedModel:
    """A torchvision classifier with the preset of the chosen, or else the default, weights."""
    models = require("torchvision.models", extra="models", feature=f"model torchvision:{name}")
    known = models.list_models(module=models)
    if name.lower() not in known:
        raise ModelError(_unknown("torchvision", name, known))
    enum = models.get_model_weights(name)
    chosen = enum.DEFAULT
    if pretrained not in (None, "pretrained"):
        if pretrained not in enum.__members__:
            members = list(enum.__members__)
            raise ModelError(unknown_name(f"weights of {name}", str(pretrained), members))
        chosen = enum[pretrained]
    given: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    given |= {"weights": None if pretrained is None else chosen, **(options or {})}
    model: nn.Module = _built(f"torchvision:{name}", lambda: models.get_model(name, **given))
    weights = f"{enum.__name__}.{chosen.name}"
    if preprocessing is None:
        origin = f"torchvision preset {weights}"
        preprocessing = from_torchvision(chosen.transforms(), origin=origin)
    names = chosen.meta.get("categories") if pretrained else None
    classes = named(names, f"categories of {weights}") if names else ClassNames()
    return NamedModel(model, preprocessing, classes)


def hugging_face_model(
    name: str,
    *,
    num_classes: int | None,
    trust_remote_code: bool = False,
    preprocessing: Preprocessing | None = None,
) -> NamedModel:
    """An image classifier of transformers, from the hub or a local folder."""
    stored = HuggingFaceModel(name, trust_remote_code=trust_remote_code)
    model: nn.Module = _built(f"hf:{name}", lambda: stored.built(num_classes))
    processor = None
    if preprocessing is None:
        preprocessing, processor = stored.preprocessing(model)
    return NamedModel(model, preprocessing, own_classes(model, f"hf:{name}"), processor)


def _unknown(package: str, name: str, known: list[str]) -> str:
    """Message for a model that does not exist; the full list would fill a screen."""
    nearest = difflib.get_close_matches(name, known, n=3)
    hint = f" Did you mean {', '.join(nearest)}?" if nearest else ""
    return f"unknown {package} model {name!r}.{hint} All names: {package}'s list_models()"


def _built(spec: str, build: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of the package, about its own defaults
            return build()
    except HardsightError:
        raise
    except (Exception, SystemExit) as err:  # a model's own code may call sys.exit
        first = str(err).strip().splitlines()
        raise ModelError(
            f"cannot build {spec}: {type(err).__name__}: {first[0] if first else 'no message'}; "
            "check the name, or the network where weights are to be fetched"
        ) from err
