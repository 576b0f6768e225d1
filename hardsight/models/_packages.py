"""Build models from timm, torchvision and transformers by name."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hardsight._checks import require
from hardsight.errors import HardsightError, ModelError, UnknownModelError
from hardsight.models._known import (
    ClassNames,
    from_timm,
    from_torchvision,
    imagenet_of_timm,
    named,
    own_classes,
)
from hardsight.models._processors import from_hugging_face
from hardsight.preprocessing import Preprocessing
from hardsight.registry import unknown_name

_PICTURES, _TEXTS = "AutoModelForImageClassification", "AutoModelForSequenceClassification"
_CAUSAL, _PAIRS = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
_MODEL_CODE = ("AutoConfig", _PICTURES, _TEXTS, _CAUSAL, _PAIRS)
_PROCESSOR_CODE = ("AutoImageProcessor", "AutoFeatureExtractor")
# parts of transformers' messages, across versions, that mean there is no processor
_NO_PROCESSOR = ("Can't load image processor", "does not appear to have a file named")
# This class can only be built with torchvision, but its settings describe it completely.
_DINOV3 = {
    "do_resize": True, "size": {"height": 224, "width": 224}, "resample": 2,
    "do_rescale": True, "rescale_factor": 1 / 255,
    "do_normalize": True, "image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225),
}  # fmt: skip
_KNOWN_WITHOUT_BUILDING = {"DINOv3ViTImageProcessor": _DINOV3}


@dataclass(frozen=True, eq=False)
class NamedModel:
    """A model and what its package states about it.

    Attributes:
        model: the model as built.
        preprocessing: how the model expects images to be prepared; ``None`` if nothing says so.
        classes: names of its outputs, if its weights are the package's own.
        processor: the image processor of transformers, if it could be built.
        tokenizer: tokenizer of a text model.
        untrained: names of weights that are not stored, and were drawn at random.
    """

    model: nn.Module
    preprocessing: Preprocessing | None
    classes: ClassNames
    processor: Any = None
    tokenizer: Any = None
    untrained: tuple[str, ...] = ()


def timm_model(
    name: str,
    *,
    pretrained: str | None,
    num_classes: int | None,
    options: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
) -> NamedModel:
    """Return a timm model with its data configuration."""
    timm = require("timm", extra="models", feature=f"model timm:{name}")
    if not timm.is_model(name):
        raise UnknownModelError(_unknown("timm", name, timm.list_models()))
    arguments = {} if num_classes is None else {"num_classes": num_classes}
    arguments |= options or {}
    model: nn.Module = _built(
        f"timm:{name}",
        lambda: timm.create_model(name, pretrained=pretrained is not None, **arguments),
    )
    if preprocessing is None:
        config = timm.data.resolve_model_data_config(model)
        preprocessing = from_timm(config, origin=f"timm data config of {name}")
    classes = _timm_classes(timm, model, name) if pretrained else ClassNames()
    return NamedModel(model, preprocessing, classes)


def _timm_classes(timm: Any, model: nn.Module, name: str) -> ClassNames:
    """Return names stored with the weights, else those of the ImageNet they were trained on."""
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
    """Return a torchvision classifier with the preset of the chosen or the default weights."""
    models = require("torchvision.models", extra="models", feature=f"model torchvision:{name}")
    known = models.list_models(module=models)
    if name.lower() not in known:
        raise UnknownModelError(_unknown("torchvision", name, known))
    enum = models.get_model_weights(name)
    # without weights the preprocessing still comes from a preset, that of the default weights
    chosen = enum.DEFAULT
    if pretrained not in (None, "pretrained"):
        if pretrained not in enum.__members__:
            members = list(enum.__members__)
            raise UnknownModelError(unknown_name(f"weights of {name}", str(pretrained), members))
        chosen = enum[pretrained]
    arguments: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    arguments |= {"weights": None if pretrained is None else chosen, **(options or {})}
    model: nn.Module = _built(f"torchvision:{name}", lambda: models.get_model(name, **arguments))
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
    if_new: int | None = None,
    task: str = "classify",
) -> NamedModel:
    """Return a classifier of pictures or texts, or a language model, from the hub or a folder."""
    stored = HuggingFaceModel(name, trust_remote_code=trust_remote_code)
    if task == "predict":
        language: nn.Module = _built(f"hf:{name}", stored.language_model)
        tokenizer = _built(f"the tokenizer of hf:{name}", stored.tokenizer)
        return NamedModel(language, None, ClassNames(), tokenizer=tokenizer)
    model, untrained = _built(f"hf:{name}", lambda: stored.built(num_classes, if_new))
    classes = own_classes(model, f"hf:{name}")
    if stored.takes_texts:
        tokenizer = _built(f"the tokenizer of hf:{name}", stored.tokenizer)
        return NamedModel(model, None, classes, tokenizer=tokenizer, untrained=untrained)
    processor = None
    if preprocessing is None:
        preprocessing, processor = stored.preprocessing(model)
    return NamedModel(model, preprocessing, classes, processor, untrained=untrained)


def stored_tokenizer(name: str, *, trust_remote_code: bool = False) -> Any:
    """Return a tokenizer of transformers by its folder or name, or ``None`` if there is none.

    Raises:
        ModelError: the tokenizer needs code that is not trusted, or it cannot be read.
    """
    transformers = require("transformers", extra="models", feature="text")
    folder = Path(name).expanduser()
    own = folder / "tokenizer_config.json"
    if folder.is_dir():
        if not own.is_file() and not (folder / "tokenizer.json").is_file():
            return None
        if own.is_file() and not trust_remote_code:
            _refuse_tokenizer_code(own)
    elif folder.exists():  # transformers would look up a file's name on the hub
        raise ModelError(
            f"the tokenizer {name} is a file; name the folder that tokenizer.save_pretrained() "
            "wrote"
        )
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(folder) if folder.is_dir() else name, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as err:
        raise ModelError(
            f"the tokenizer of {name} cannot be loaded: {_first_line(err)}; name the folder that "
            "tokenizer.save_pretrained() wrote"
        ) from err


def _refuse_tokenizer_code(file: Path) -> None:
    import json

    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ModelError(f"{file} cannot be read: {err}; save the tokenizer again") from err
    own = settings.get("auto_map") if isinstance(settings, Mapping) else None
    if own:
        raise ModelError(
            f"the tokenizer beside {file} brings Python code of its own, which is not run; if you "
            "trust those who wrote it, pass trust_remote_code=True (--trust-remote-code)"
        )


def _unknown(package: str, name: str, known: list[str]) -> str:
    """Return the message for an unknown model; listing all names would fill a screen."""
    nearest = difflib.get_close_matches(name, known, n=3)
    hint = f" Did you mean {', '.join(nearest)}?" if nearest else ""
    return f"unknown {package} model {name!r}.{hint} All names: {package}'s list_models()"


def _built(spec: str, build: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            # packages warn about defaults of their own, which a user cannot change
            warnings.simplefilter("ignore", FutureWarning)
            return build()
    except HardsightError:
        raise
    except (Exception, SystemExit) as err:  # a model's own code may call sys.exit
        raise ModelError(
            f"cannot build {spec}: {type(err).__name__}: {_first_line(err)}; "
            "check the name, or the network if weights have to be fetched"
        ) from err


class HuggingFaceModel:
    """A model by its name or folder, with its tokenizer and image processor.

    Args:
        name: name on the hub, or a folder that ``save_pretrained`` wrote.
        trust_remote_code: whether to run Python files that come with the model.

    Raises:
        ModelError: the folder does not exist, or the model brings code that is not trusted.
    """

    def __init__(self, name: str, *, trust_remote_code: bool) -> None:
        if name.startswith((".", "/", "~")) and not Path(name).is_dir():
            raise ModelError(f"no folder {name} for hf:{name}; expected one of save_pretrained()")
        self.name, self._trusts = name, trust_remote_code
        self._transformers = require("transformers", extra="models", feature=f"model hf:{name}")
        self._settings = self._model_settings()
        self._refuse_code(self._settings, _MODEL_CODE)

    def built(
        self, num_classes: int | None, if_new: int | None = None
    ) -> tuple[nn.Module, tuple[str, ...]]:
        """Build the model with its stored weights, and name those that are not stored.

        Args:
            num_classes: number of classes that the model must have; a language model gets a new
                head of this size.
            if_new: number of classes for a new head, if ``num_classes`` is not set.

        Raises:
            ModelError: the model cannot be built, or has another number of classes.
        """
        auto = getattr(self._transformers, _TEXTS if self.takes_texts else _PICTURES)
        given, wanted = dict[str, int](), num_classes or if_new
        if self.takes_texts and wanted is not None and not self._has_classes:
            given["num_labels"] = wanted  # adds a new, untrained head to a language model
        # passed even if False, because otherwise transformers asks on standard input
        model, about = auto.from_pretrained(
            self.name, trust_remote_code=self._trusts, output_loading_info=True, **given
        )
        labels: int = model.config.num_labels
        if num_classes is not None and num_classes != labels:
            raise ModelError(
                f"hf:{self.name} has {labels} classes, got num_classes={num_classes}; "
                "leave num_classes out, or choose a model with as many classes"
            )
        return model, tuple(sorted(about["missing_keys"]))

    def language_model(self) -> nn.Module:
        """Build the model with the layer that predicts tokens.

        Raises:
            ModelError: the model was saved without this layer.
        """
        names = self._transformers.models.auto.modeling_auto
        causal = names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        pairs = names.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()
        saved = str((self._settings.get("architectures") or [""])[0])
        own = self._trusts and isinstance(self._settings.get("auto_map"), Mapping)
        # transformers would add an untrained layer to other models, with only a warning
        if saved not in {*causal, *pairs} and not own:
            raise ModelError(
                f"hf:{self.name} was saved as {saved or 'nothing by name'}, which does not predict "
                "the next token; to score tokens name a language model (...ForCausalLM, "
                "...ForConditionalGeneration), and to classify texts leave tokens and target out"
            )
        is_pair = saved in pairs or bool(self._settings.get("is_encoder_decoder"))
        auto = getattr(self._transformers, _PAIRS if is_pair else _CAUSAL)
        model: nn.Module = auto.from_pretrained(self.name, trust_remote_code=self._trusts)
        return model

    @property
    def takes_texts(self) -> bool:
        """Whether it is a text model: by its saved class, or else by the classes of its type."""
        saved = str((self._settings.get("architectures") or [""])[0])
        if saved.endswith(("ForSequenceClassification", "ForImageClassification")):
            return saved.endswith("ForSequenceClassification")
        names = self._transformers.models.auto.modeling_auto
        kind = self._settings.get("model_type")
        of_texts = kind in names.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
        return of_texts and kind not in names.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

    @property
    def _has_classes(self) -> bool:
        saved = str((self._settings.get("architectures") or [""])[0])
        return saved.endswith("Classification")

    def tokenizer(self) -> Any:
        """Return the tokenizer stored with the model, or ``None`` if there is none.

        Raises:
            ModelError: the tokenizer brings code that is not trusted.
        """
        return stored_tokenizer(self.name, trust_remote_code=self._trusts)

    def preprocessing(self, model: nn.Module) -> tuple[Preprocessing | None, Any]:
        """Return the preprocessing of the image processor, and the processor if it can be built.

        Raises:
            ModelError: it cannot be read, or does something that is not supported here.
        """
        config: Any = model.config
        timm_settings = getattr(config, "pretrained_cfg", None)
        if config.model_type == "timm_wrapper" and isinstance(timm_settings, Mapping):
            origin = f"timm data config of hf:{self.name}"
            return from_timm(timm_settings, origin=origin), None
        stored = self._stored_processor()
        if stored is None:
            return None, None
        self._refuse_code(stored, _PROCESSOR_CODE)
        kind = self._kind(stored, config.model_type)
        processor, why_not = self._processor(kind, stored)
        origin = f"image processor of hf:{self.name}"
        if processor is not None:
            settings = _settings(processor)
        elif kind in _KNOWN_WITHOUT_BUILDING:
            settings = {**_KNOWN_WITHOUT_BUILDING[kind], **_given(stored)}
        else:
            raise ModelError(
                f"the {origin} is a {kind or 'processor of unknown class'}, which cannot be built "
                f"here ({why_not}), so its preprocessing is not known; install what it needs, or "
                "pass preprocessing=Preprocessing(...), or size, mean and std together (--size, "
                "--mean, --std)"
            )
        channels = getattr(config, "num_channels", 3)
        return from_hugging_face(settings, kind=kind, channels=channels, origin=origin), processor

    def _model_settings(self) -> Mapping[str, Any]:
        try:
            settings, _ = self._transformers.PretrainedConfig.get_config_dict(self.name)
        except (OSError, ValueError):  # building the model raises a clearer error
            return {}
        return dict(settings)

    def _stored_processor(self) -> Mapping[str, Any] | None:
        mixin = self._transformers.ImageProcessingMixin
        try:
            stored, _ = mixin.get_image_processor_dict(self.name)
        except OSError as err:
            if self._has_no_processor(str(err)):
                return None
            raise ModelError(
                f"the image processor of hf:{self.name} cannot be read: {_first_line(err)}; repair "
                "or remove its preprocessor_config.json"
            ) from err
        if not isinstance(stored, Mapping):
            raise ModelError(
                f"expected the image processor of hf:{self.name} to be a JSON object, got "
                f"{type(stored).__name__}; repair or remove its preprocessor_config.json"
            )
        return stored

    def _has_no_processor(self, said: str) -> bool:
        """Return whether there is no processor file at all, as opposed to an unreadable one."""
        own, joint = (
            Path(self.name) / f"{kind}_config.json" for kind in ("preprocessor", "processor")
        )
        if Path(self.name).is_dir() and not own.exists() and not joint.exists():
            return True
        return not own.exists() and any(words in said for words in _NO_PROCESSOR)

    def _refuse_code(self, settings: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        """Raise if building the model would run Python files that come with it."""
        own = settings.get("auto_map")
        if self._trusts or not isinstance(own, Mapping):
            return
        code = [str(own[key]) for key in keys if own.get(key)]
        if code:
            raise ModelError(
                f"hf:{self.name} brings Python code of its own ({', '.join(code)}), which is not "
                "run; if you trust those who wrote it, pass trust_remote_code=True "
                "(--trust-remote-code), which lets its files do anything that you can do"
            )

    def _kind(self, stored: Mapping[str, Any], model_type: str) -> str:
        """Return the class name of a processor without its backend; empty if it is unknown."""
        name = str(stored.get("image_processor_type") or stored.get("feature_extractor_type") or "")
        if not name:  # transformers then goes by the type of the model, too
            auto = self._transformers.models.auto.image_processing_auto
            name = _first_name(auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type))
        name = name.replace("FeatureExtractor", "ImageProcessor")
        kind = name.removesuffix("Fast").removesuffix("Pil")
        # the name comes from a file, which must not reach any other attribute of transformers
        return kind if kind.isidentifier() and kind.endswith("ImageProcessor") else ""

    def _processor(self, kind: str, stored: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the processor, or the reason why it cannot be built."""
        if self._trusts and stored.get("auto_map"):
            auto = self._transformers.AutoImageProcessor
            return auto.from_pretrained(self.name, trust_remote_code=True), ""
        why = "nothing names its class" if not kind else f"transformers has no {kind}"
        # the variant that uses Pillow comes first, because we resize with Pillow as well
        for name in (f"{kind}Pil", kind, f"{kind}Fast") if kind else ():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # transformers warns about keys it ignores
                    return getattr(self._transformers, name).from_dict(dict(stored)), ""
            except AttributeError:  # this version of transformers has no such class
                continue
            except Exception as err:  # each class has its own requirements and errors
                why = f"{type(err).__name__}: {_first_line(err)}"
        return None, why


def _first_name(known: Any) -> str:
    """Return a class name from transformers' list.

    An entry is a name, a pair that may contain ``None``, or a mapping with a name per backend.
    """
    if isinstance(known, str):
        return known
    names = known.values() if isinstance(known, Mapping) else known or ()
    return next((str(name) for name in names if name), "")


def _settings(processor: Any) -> dict[str, Any]:
    """Return the settings that a processor's class knows; any others have no effect."""
    every: dict[str, Any] = processor.to_dict()
    known = set(_declared(type(processor)))
    return {key: value for key, value in every.items() if key in known}


def _declared(kind: type) -> Iterator[str]:
    # classes declare their settings as typed keywords or as parameters of __init__
    stated = getattr(kind, "valid_kwargs", None)
    if stated is not None:
        for part in (stated, *getattr(stated, "__orig_bases__", ())):
            yield from getattr(part, "__annotations__", {})
    for part in kind.__mro__:
        if "__init__" in vars(part):
            yield from inspect.signature(vars(part)["__init__"]).parameters


def _given(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings the way a processor has them: sizes as mappings, nothing unset."""
    kept = {key: value for key, value in stored.items() if value is not None}
    for key in ("size", "crop_size"):
        if isinstance(kept.get(key), int):
            kept[key] = {"height": kept[key], "width": kept[key]}
    return kept


def _first_line(err: BaseException) -> str:
    return (str(err).strip().splitlines() or ["no message"])[0]


def local_weights(name: str) -> Path | None:
    """Return the weights file of a Hugging Face model in a local folder, if it is a single file."""
    file = Path(name) / "model.safetensors"
    return file if file.is_file() else None
