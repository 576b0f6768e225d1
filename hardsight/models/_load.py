"""Load models by name: our own, from Python code, timm, torchvision or Hugging Face."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torch import nn

from hardsight.config import toml_value
from hardsight.errors import HardsightError, MissingDataError, ModelError, UnknownModelError
from hardsight.models._known import (
    WEIGHTS,
    ClassNames,
    Described,
    check_agrees,
    described_weights,
    is_stored_model,
    named,
    own_classes,
    own_preprocessing,
    stored_model,
)
from hardsight.models._packages import (
    hugging_face_model,
    local_weights,
    timm_model,
    torchvision_model,
)
from hardsight.models._registry import MODELS
from hardsight.models._weights import load_weights, sha256
from hardsight.preprocessing import Preprocessing
from hardsight.registry import nearest_name, unknown_name

_FORMS = (
    "package.module:factory, file.py:factory, timm:NAME, torchvision:NAME, hf:NAME, an nn.Module, "
    f"the folder of a trained model, or one of {', '.join(MODELS)}"
)
_PACKAGES = ("timm", "torchvision", "hf")
# how ``weights_origin`` begins if no weights were loaded
_RANDOM, _AS_MADE = "random initialisation", "as made by"
# A model file may call sys.exit(), which would end our command, and even report success.
_FAILURES = (Exception, SystemExit)
_log = logging.getLogger("hardsight")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready to run, with what is known about it.

    Attributes:
        model: the model in eval mode.
        spec: its name as the user gave it; the class name of a module that was passed as an object.
        preprocessing: how it expects images to be prepared; ``None`` if nothing says so.
        weights_digest: sha256 of the weights file; ``None`` if there was none.
        weights_origin: where the weights come from, in words for the metadata.
        options: keywords that its factory was called with.
        network: its name in the folder of a trained model; empty if there is no folder.
        class_names: names of its outputs, if it states them.
        processor: the image processor of transformers from which ``preprocessing`` was read, if it
            could be built.
        tokenizer: tokenizer of a text model of transformers.
        untrained: names of weights that a model of transformers needs and its folder does not
            store, such as those of a new head; they were drawn at random.
    """

    model: nn.Module
    spec: str
    preprocessing: Preprocessing | None
    weights_digest: str | None
    weights_origin: str
    options: Mapping[str, Any] = field(default_factory=dict)
    network: str = ""
    class_names: ClassNames = field(default_factory=ClassNames)
    processor: Any = None
    tokenizer: Any = None
    untrained: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the outputs, by position; empty if the model does not state them."""
        return self.class_names.names

    @property
    def built_as(self) -> str:
        """Name of the network itself, even if it came from the folder of a trained model."""
        return self.network or self.spec

    @property
    def is_random(self) -> bool:
        """Whether its weights are still the random initial ones."""
        return self.weights_origin == _RANDOM


def is_as_made(origin: str) -> bool:
    """Return whether a ``weights_origin`` says that no weights were loaded into a model.

    A factory may have loaded weights itself, which cannot be seen from outside.

    Example:
        >>> is_as_made("random initialisation"), is_as_made("model.safetensors")
        (True, False)
    """
    return origin.startswith((_RANDOM, _AS_MADE))


def load_model(
    spec: str | nn.Module,
    *,
    weights: str | os.PathLike[str] | None = None,
    num_classes: int | None = None,
    options: Mapping[str, Any] | None = None,
    if_taken: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    trust_remote_code: bool = False,
    task: str = "classify",
) -> LoadedModel:
    """Build a model and load its weights; nothing in a weights file is ever run as code.

    ``timm:NAME`` and ``torchvision:NAME`` download nothing unless asked to: without ``weights``
    they are randomly initialised, and ``weights_origin`` says so. ``hf:NAME`` is a trained model,
    from a local folder or the hub.

    Args:
        spec: a name of ours such as ``resnet18`` (see :data:`MODELS`), ``package.module:factory``,
            ``file.py:factory``, ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME``, the folder of a
            model that ``hardsight train`` wrote, or a module, which is used as it is. A factory
            is a class or a function. Options may follow: ``amc13:width=0.5,channels=1``. Python
            code that is named here is run, so only name code you trust.
        weights: a safetensors or torch file of tensors. If ``hardsight train`` wrote it, its
            ``model.json`` is read as well, and options, preprocessing and class names are those of
            the training. For timm and torchvision, ``"pretrained"`` stands for the package's own
            weights, which are downloaded if they are not cached. For torchvision, it may also be
            the name of a set of weights, such as ``"IMAGENET1K_V2"``.
        num_classes: passed to the factory if it has such a parameter.
        options: passed to the factory, in addition to the options in ``spec``.
        if_taken: like ``options``, but only used if the factory has such an option and it is unset.
        preprocessing: preprocessing of images, instead of what the model or its package states.
        trust_remote_code: whether to run Python files that an ``hf:`` model brings. They can do
            anything that you can do.
        task: what an ``hf:`` model is used for: to ``"classify"``, or to ``"predict"`` tokens.

    Returns:
        the model in eval mode, with its preprocessing and class names if it or its package
        states them.

    Raises:
        ModelError: the model cannot be built, the weights do not fit or belong to another model,
            its preprocessing is not supported, or it brings code that is not trusted.
        MissingDataError: a named file does not exist.
        MissingExtraError: timm, torchvision or transformers is not installed.
        UnsafeFileError: the weights file would have to run code.

    Example:
        >>> loaded = load_model("hardsight.models:SmallCNN", num_classes=3)
        >>> loaded.model.head.out_features, loaded.weights_origin
        (3, 'as made by hardsight.models:SmallCNN')
        >>> load_model("amc13:width=0.5").options
        {'width': 0.5}
    """
    wanted = _LoadOptions(
        dict(options or {}), dict(if_taken or {}), num_classes, preprocessing, trust_remote_code,
        task,
    )  # fmt: skip
    if isinstance(spec, str) and is_stored_model(spec):
        return _from_folder(Path(spec), weights, wanted)
    if isinstance(spec, str):
        _refuse_pickle(spec)
        spec, own = _split_options(spec)
        wanted = replace(wanted, options={**own, **wanted.options})
    pretrained = _package_weights(spec, weights)
    if weights is None or pretrained is not None:
        loaded = _built(spec, pretrained, wanted)
        loaded.model.eval()
        return loaded
    described = described_weights(weights)
    if described is None:
        return _with_weights(_built(spec, None, wanted), weights)
    check_agrees(described, spec, wanted.options, num_classes)
    return _as_described(spec, weights, described, wanted)


def _refuse_pickle(spec: str) -> None:
    """Raise if a model is named by a file that runs code when it is loaded, such as a pickle."""
    if spec.lower().endswith((".pkl", ".pickle", ".joblib", ".skops")):
        raise ModelError(
            f"{spec} is not loaded: a pickled model runs code when it is loaded, so it can be "
            "scored from Python only: hs.score(model, X, labels=y). From the command line, score "
            "what a linear model works with: --data features.npy --labels labels.npy "
            "--class-weights coef.npy --bias intercept.npy"
        )


@dataclass(frozen=True)
class _LoadOptions:
    """The arguments of :func:`load_model` besides the name."""

    options: dict[str, Any]
    if_taken: dict[str, Any]
    num_classes: int | None
    preprocessing: Preprocessing | None
    trust_remote_code: bool
    task: str = "classify"


def _built(spec: str | nn.Module, pretrained: str | None, wanted: _LoadOptions) -> LoadedModel:
    """Build the model, with the weights that come with it."""
    options, num_classes, how = wanted.options, wanted.num_classes, wanted.preprocessing
    if isinstance(spec, nn.Module):
        if options:
            raise ModelError(f"a {type(spec).__name__} is built already; leave its options out")
        return _as_stated(spec, type(spec).__name__, "as passed", {}, how)
    # a path may contain colons, so a file's factory follows the last one
    kind, _, name = spec.rpartition(":") if ".py:" in spec else spec.partition(":")
    if spec in MODELS:
        kind, name = "hardsight.models", MODELS[spec].__name__
    if not kind or not name:
        near = nearest_name(spec, list(MODELS))
        hint = f" Did you mean {near!r}?" if near else ""
        raise UnknownModelError(f"cannot tell what model {spec!r} is.{hint} Expected {_FORMS}")
    if kind == "hf":
        if options:
            raise ModelError(f"{spec} takes no options, got {', '.join(options)}; leave them out")
        named_model = hugging_face_model(
            name, num_classes=num_classes, trust_remote_code=wanted.trust_remote_code,
            preprocessing=how, if_new=wanted.if_taken.get("num_classes"), task=wanted.task,
        )  # fmt: skip
        file = local_weights(name)
        digest = None if file is None else sha256(file)
        return LoadedModel(
            named_model.model, spec, named_model.preprocessing, digest, f"as stored in {spec}",
            class_names=named_model.classes, processor=named_model.processor,
            tokenizer=named_model.tokenizer, untrained=named_model.untrained,
        )  # fmt: skip
    if kind in _PACKAGES:
        build = timm_model if kind == "timm" else torchvision_model
        named_model = build(
            name, pretrained=pretrained, num_classes=num_classes, options=options,
            preprocessing=how,
        )  # fmt: skip
        origin = f"{kind} {pretrained}" if pretrained else _RANDOM
        used = {**({} if num_classes is None else {"num_classes": num_classes}), **options}
        return LoadedModel(
            named_model.model,
            spec,
            named_model.preprocessing,
            None,
            origin,
            used,
            class_names=named_model.classes,
        )
    if_taken = wanted.if_taken
    if num_classes is not None:
        if_taken = {**if_taken, "num_classes": num_classes}
    model, used = _from_factory(kind, name, options=options, if_taken=if_taken)
    return _as_stated(model, spec, f"{_AS_MADE} {spec}", used, how)


def _as_stated(
    model: nn.Module,
    spec: str,
    origin: str,
    options: dict[str, Any],
    preprocessing: Preprocessing | None,
) -> LoadedModel:
    """Return a module together with what it states about itself."""
    how = preprocessing or own_preprocessing(model)
    return LoadedModel(model, spec, how, None, origin, options, class_names=own_classes(model))


def _with_weights(
    loaded: LoadedModel, file: str | os.PathLike[str], described: Described | None = None
) -> LoadedModel:
    known = None if described is None else described.digest_of(file)
    digest = load_weights(loaded.model, file, digest=known)
    loaded.model.eval()
    return replace(
        loaded, weights_digest=digest, weights_origin=f"file {Path(file).name}", untrained=()
    )


def _as_described(
    spec: str | nn.Module, file: str | os.PathLike[str], described: Described, wanted: _LoadOptions
) -> LoadedModel:
    """Return a model with weights that ``hardsight train`` wrote, built as it was trained."""
    stored = described.model
    options = {} if isinstance(spec, nn.Module) else {**stored.options, **wanted.options}
    how = wanted.preprocessing or stored.preprocessing
    loaded = _with_weights(
        _built(spec, None, replace(wanted, options=options, preprocessing=how)), file, described
    )
    _log.info(
        "%s describes the weights %s: the options of the model, its preprocessing and its class "
        "names are taken from there", described.file, file,
    )  # fmt: skip
    origin = f"{loaded.weights_origin}, which {described.file} describes"
    names = named(stored.classes, str(described.file))
    return replace(loaded, weights_origin=origin, class_names=names)


def _from_folder(
    folder: Path, weights: str | os.PathLike[str] | None, wanted: _LoadOptions
) -> LoadedModel:
    """Return a model that ``hardsight train`` wrote, with the preprocessing of its training."""
    # a downloaded folder must not be able to run its own code, so only these may be built unasked
    described = stored_model(folder, trusted=(*MODELS, *_PACKAGES))
    stored = described.model
    check_agrees(described, stored.spec, wanted.options, None)
    other = None if weights is None else described_weights(weights)
    if other is not None and other.model != stored:
        raise ModelError(
            f"{weights} is described by {other.file}, which differs from {described.file}; leave "
            f"the weights out, or name the folder {other.file.parent} instead"
        )
    spec, own = _split_options(stored.spec)
    how = wanted.preprocessing or stored.preprocessing
    # training gave a language model a head with as many classes as the training data
    new = {"num_classes": len(stored.classes)} if spec.startswith("hf:") else {}
    built = _LoadOptions({**own, **stored.options}, new, None, how, wanted.trust_remote_code)
    loaded = _with_weights(
        _built(spec, None, built),
        folder / WEIGHTS if weights is None else weights,
        described if weights is None else other,
    )
    return replace(
        loaded,
        spec=str(folder),
        network=stored.spec,
        class_names=named(stored.classes, str(described.file)),
    )


def _split_options(spec: str) -> tuple[str, dict[str, Any]]:
    """Split ``NAME:key=value,key=value`` into the name and the options."""
    name, colon, text = spec.rpartition(":")
    if not colon or "=" not in text:
        return spec, {}
    pairs = [part.partition("=") for part in text.split(",")]
    return name, {key.strip(): toml_value(value.strip()) for key, _, value in pairs}


def _package_weights(spec: str | nn.Module, weights: str | os.PathLike[str] | None) -> str | None:
    """Return the name of a package's own weights, or ``None`` if ``weights`` is a file."""
    if not isinstance(spec, str) or not isinstance(weights, str):
        return None
    if spec.startswith("torchvision:") and not Path(weights).exists():
        return weights if weights.isidentifier() else None
    return weights if spec.startswith("timm:") and weights == "pretrained" else None


def _from_factory(
    place: str, name: str, *, options: Mapping[str, Any], if_taken: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """Call the factory ``name`` of a module or ``.py`` file; return the model and its keywords.

    The file's folder (for a module, the working directory) is only importable while the file is
    imported and the factory runs.

    Raises:
        MissingDataError: there is no such file.
        ModelError: the import fails, there is no such factory, or it does not return a model.
    """
    file = Path(place) if place.endswith(".py") else None
    folder = file.resolve().parent if file else Path.cwd()
    with _importable(folder, forget=file is not None):
        module = _imported_file(file) if file else _imported_module(place)
        factory = _factory(module, name, place)
        spec = f"{place}:{name}"
        keywords = _keywords(factory, spec, options, if_taken)
        try:
            model = factory(**keywords)
        except HardsightError:
            raise
        except _FAILURES as err:
            raise ModelError(f"{spec} failed with {_reason(err)}") from err
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected {spec} to return an nn.Module, got {type(model).__name__}")
    return model, keywords


def _imported_module(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except _FAILURES as err:
        raise ModelError(
            f"cannot import {place}: {_reason(err)}; install its package, run "
            "where it can be imported, or name the file: path/to/file.py:factory"
        ) from err


class _AsWritten(importlib.machinery.SourceFileLoader):
    """Loader that compiles a file from its current content.

    Python judges cached bytecode by the source's time in seconds and its length, so it would miss
    that a layer was just replaced by another one with an equally long name.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _imported_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise MissingDataError(f"no Python file at {file}; expected path/to/file.py:factory")
    # the module's name depends on the path, so that two files called model.py do not collide
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    name = f"hardsight_user_{digest}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=_AsWritten(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up their module here
    try:
        spec.loader.exec_module(module)
    except _FAILURES as err:
        del sys.modules[name]
        raise ModelError(f"cannot import {file}: {_reason(err)}") from err
    return module


def _reason(err: BaseException) -> str:
    return f"{type(err).__name__}: {err}" if str(err) else type(err).__name__


def _factory(module: ModuleType, name: str, place: str) -> Callable[..., Any]:
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            public = {key: v for key, v in vars(target).items() if not key.startswith("_")}
            known = [key for key, value in public.items() if callable(value)]
            raise UnknownModelError(unknown_name(f"factory in {place}", name, known))
        target = getattr(target, part)
    if isinstance(target, nn.Module):  # a model that exists already, such as a global variable
        model = target
        return lambda: model
    if not callable(target):
        raise ModelError(
            f"expected {place}:{name} to be a function or class that makes a model, "
            f"got {type(target).__name__}"
        )
    factory: Callable[..., Any] = target
    return factory


def _keywords(
    factory: Callable[..., Any], spec: str, options: Mapping[str, Any], if_taken: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keywords for a factory: all options, and those of ``if_taken`` it accepts.

    Raises:
        ModelError: the factory does not take an option; the message suggests the nearest one.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return dict(options)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name in () if takes_any else options:
        if name not in parameters:
            raise UnknownModelError(unknown_name(f"option of {spec}", name, list(parameters)))
    taken = {key: value for key, value in if_taken.items() if takes_any or key in parameters}
    return {**taken, **options}


@contextmanager
def _importable(folder: Path, *, forget: bool) -> Iterator[None]:
    """Make modules of ``folder`` importable inside the block.

    Args:
        folder: only on the import path inside the block, unless it was there before.
        forget: whether to drop the folder's modules from ``sys.modules`` afterwards, so that one
            folder's ``utils`` is not mistaken for another's. Code that imported them keeps them
            alive.
    """
    if str(folder) in sys.path:
        yield
        return
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before if forget else ():
            top = name.partition(".")[0]
            if top not in before and ((folder / top).is_dir() or (folder / f"{top}.py").is_file()):
                del sys.modules[name]
