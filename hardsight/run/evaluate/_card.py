"""Make an evaluation card: the numbers of every model, and the differences between models."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from hardsight._checks import checked_options, versions, warns_of
from hardsight.config import EvaluateKeys, Settings
from hardsight.data import (
    group_columns,
)
from hardsight.data.pixels import PixelOptions, decisive
from hardsight.errors import OptionError
from hardsight.evaluate import DEFINITIONS
from hardsight.models import is_as_made
from hardsight.notebook import shown
from hardsight.preprocessing import Preprocessing
from hardsight.run.evaluate._sets import Sets, opened_sets
from hardsight.run.evaluate._study import Study, unknown_normalisation
from hardsight.run.evaluate._subjects import (
    Subject,
    class_order_of,
    listed_models,
    named_model,
    subject_of,
)
from hardsight.run.loop import (
    ClassOrder,
    chosen_device,
    stated_classes,
)
from hardsight.run_folder import EVALUATE, RunFolder, values_digest, write_text, writing

CARD = "card.json"
FORMAT = 1
# settings that do not decide the result, so a finished card is returned even if they changed
MAY_CHANGE = ("out", "workers", "data_root", "versions")
# options for all models; the facts of each model record their effect
_OF_THE_MODELS = (
    "size", "mean", "std", "channels", "crop", "squash", "white", "preprocessing", "head",
    "num_classes", "model_classes", "trust_remote_code",
)  # fmt: skip
EPSILONS = (0.0, 1 / 255, 2 / 255, 4 / 255, 8 / 255)
EPSILONS_L2 = (0.0, 0.25, 0.5, 1.0)


class EvaluateConfig(
    Settings,
    of="run/evaluate/_card.py:evaluation_card",
    without=("models", "preprocessing", "show_progress"),
    first=(
        "model", "data", "compare", "ood", "train", "out", "resume", "overwrite", "weights",
    ),
):  # fmt: skip
    """Settings of an evaluation: the keys of its TOML file and the flags of its command.

    They are the keywords of :func:`evaluation_card`, and the models to evaluate.

    Attributes:
        model: ``[NAME=]SPEC[@WEIGHTS]``, with SPEC as ``hardsight score --model`` takes it.
        compare: another model, compared with the first; may be repeated.
        ood: foreign data that the model should tell from its own; may be repeated.
        weights: weights of ``model``, if they are not named behind an ``@``.
    """

    model: str
    compare: tuple[str, ...] = ()
    ood: tuple[str, ...] = ()
    weights: str | None = None

    if TYPE_CHECKING:  # what an editor shows

        def __init__(self, **settings: Unpack[EvaluateKeys]) -> None: ...


def run_evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """Call :func:`evaluation_card` with settings, as the command line does."""
    options = config.keywords()
    first, weights = options.pop("model"), options.pop("weights")
    if weights is not None:
        if "@" in first:
            raise OptionError(f"{first!r} names its weights already; leave --weights out")
        first = f"{first}@{weights}"
    models = [named_model(text) for text in (first, *options.pop("compare"))]
    return evaluation_card(models, options.pop("data"), **options)


def card_notes(card: Mapping[str, Any]) -> list[str]:
    """Caveats that a reader of the card has to know."""
    notes = []
    for about in card["models"]:
        name, origin, counts = about["name"], about["weights"] or "", about["counts"]
        if is_as_made(origin):
            notes.append(f"no --weights were given: {name} was evaluated {origin}")
        if counts["unreadable"]:
            examples = (
                "1 example" if counts["unreadable"] == 1 else (f"{counts['unreadable']:,} examples")
            )
            notes.append(f"{examples} could not be read and are not on the card")
        if counts["non_finite"]:
            notes.append(
                f"{name}: {counts['non_finite']:,} of {counts['rows']:,} outputs are not finite, "
                "and count as wrong answers"
            )
    own = card["data"]["fingerprint"]
    for about in card["ood"]:
        if about["fingerprint"] == own:
            notes.append(
                f"the foreign data {about['spec']} is the data itself: there is nothing to tell "
                "apart; name other data with --ood"
            )
    if card["train"] is not None and card["train"]["fingerprint"] == own:
        notes.append(
            f"the training data {card['train']['spec']} is the data itself: the linear probe is "
            "tried on what it was fitted to; name other data with --train"
        )
    return list(dict.fromkeys(notes))  # all models read the same examples


class EvaluationCard(dict[str, Any]):
    """A card as a dict of plain values; a notebook shows a line per model."""

    def _repr_html_(self) -> str:
        data = self["data"]
        facts = {"data": str(data["spec"]), "examples": f"{data['rows']:,}"}
        rows = [
            [str(model["name"]), f"{top['value']:.1%} [{top['low']:.1%}, {top['high']:.1%}]"]
            for model in self["models"]
            if (top := model["accuracy"]["top1"])
        ]
        note = "hs.write_card writes the page with all of it"
        return shown("EvaluationCard", facts, columns=("model", "accuracy"), rows=rows, note=note)


@checked_options
@warns_of(card_notes)
def evaluation_card(
    models: Any,
    data: Any,
    *,
    ood: Any = (),
    train: Any = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    head: str | None = None,
    output: int | str | None = None,
    split: str | None = None,
    ood_split: str | None = None,
    train_split: str | None = None,
    group: str | Sequence[str] | Mapping[str, Any] | None = None,
    data_root: str | os.PathLike[str] | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    preprocessing: Preprocessing | None = None,
    size: int | tuple[int, int] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    channels: int | None = None,
    crop: float | None = None,
    squash: bool | None = None,
    white: float | None = None,
    model_classes: Sequence[str] | str | os.PathLike[str] | None = None,
    class_order: str = "auto",
    trust_remote_code: bool = False,
    epsilons: Sequence[float] | None = None,
    epsilons_l2: Sequence[float] | None = None,
    attack_steps: int = 10,
    attack_examples: int = 256,
    ensemble_steps: int = 0,
    explain_examples: int = 64,
    cam_layer: str | None = None,
    feature_examples: int = 5000,
    map_examples: int = 1000,
    validation_share: float = 0.2,
    wanted_error: float = 0.05,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    show_progress: bool | None = None,
) -> dict[str, Any]:
    """Evaluate models on the same data, and return one card of plain values, ready for JSON.

    All forward passes are in float32, so that clean and attacked accuracy can be compared.

    Args:
        models: a module, a name or the folder of a trained model; or a mapping from names to
            these; or a list of ``(name, module or spec, weights or None)``. All are compared with
            the first.
        data: labelled data the models were not trained on: folder of class folders, ``.csv`` of
            path,label, ``.parquet``, idx, ``.npz``, ``hub:OWNER/NAME``, ``builtin:digits``, or a
            name such as ``cifar10``. In Python any labelled data, see
            :func:`hardsight.data.open_source`.
        ood: a foreign dataset, or a list of them; their labels are not used.
        train: the training data, for the linear probe and for many/medium/few-shot accuracy.
        out: folder to write card.json into; the command line adds the page, card.html. In Python
            ``None`` keeps the card in memory.
        resume: return the finished card in ``out`` as it is, if it was made with these settings,
            models and data.
        overwrite: replace the evaluation in ``out``; other files there stay.
        head: name of the classifier layer or bare parameter, if it is not found automatically.
        output: the model's output that holds the logits, by key, attribute or position (from 0),
            or by a path of them (heads.logits); by default the one with a column for each class of
            the data.
        split: split of ``data``, such as test.
        ood_split: split of ``ood``.
        train_split: split of ``train``.
        group: attributes to compare examples by: a column stored beside the examples, folder:1 for
            the first folder of their paths, or FILE.csv:COLUMN for a table with a column ``id``,
            ``path`` or ``index``. In Python also arrays by name.
        data_root: folder above those of named datasets, such as cifar10/.
        text_column: column of the files that holds the texts to classify, if it is not called text.
        label_column: column that holds the labels, if it is not called label.
        classes: class names of the data, position = label.
        num_classes: number of classes, for model factories that take it.
        preprocessing: how the models want images prepared; by default as their configs say.
        size: input size of the models, height and width or one number for both. Pictures are
            resized by their shorter side and cropped in the centre, unless ``squash``.
        mean: mean to subtract, per channel on the pixel scale 0..1, instead of the models' own.
            Three values make grey images RGB, for a model of RGB images.
        std: deviation to divide by, per channel, instead of the models' own.
        channels: make all pictures grey (1) or RGB (3), also if the models say otherwise.
        crop: share of the resized picture that the centre crop keeps, in (0, 1]; 1, or as the
            models say.
        squash: resize to ``size`` without keeping the aspect ratio, so that nothing is cut off.
        white: value of white, if it is not 255 in 8-bit and 65535 in 16-bit pictures and 1 in
            floats. In Python see :func:`hardsight.score`.
        model_classes: names of the models' outputs, in their order, or a text file with one name
            per line; by default what the models themselves say.
        class_order: how classes of data and models are matched: ``auto`` by name if both have
            names, else by position; ``name`` never by position, ``position`` always.
        trust_remote_code: run Python files that an ``hf:`` model brings; they can do anything that
            you can do. Without it such a model is refused.
        epsilons: radii of FGSM and PGD in L-infinity, in pixels 0..1; 0, 1/255, 2/255, 4/255 and
            8/255 by default.
        epsilons_l2: radii of PGD in L2, in pixels 0..1; 0, 0.25, 0.5 and 1 by default.
        attack_steps: steps of PGD.
        attack_examples: examples to attack; 0 for no attacks.
        ensemble_steps: also attack with an ensemble like AutoAttack, at one radius: this many
            steps of APGD on cross-entropy and on the difference of logits ratio, then Square with
            50 queries for each step; 0 for none, 100 as published, which takes long.
        explain_examples: examples for Grad-CAM; 0 for none.
        cam_layer: layer of Grad-CAM, if it is not found automatically.
        feature_examples: largest number of examples for probe and clusters.
        map_examples: largest number of points on the map of features.
        validation_share: share of ``data`` for fitting the temperature and for choosing the
            threshold of ``wanted_error``; both are judged on the rest.
        wanted_error: error rate among the examples that the model does not refuse, in (0, 1).
        batch_size: examples per batch; by default chosen for the device.
        workers: loader processes; by default chosen for the data and the cores.
        device: ``auto`` is cuda, else mps, else cpu; or ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        seed: seed of everything that is drawn at random.
        show_progress: force progress bars on or off; by default they are shown on a terminal.

    Returns:
        the card; ``hardsight.report.write_card`` makes a page of it.

    Raises:
        HardsightError: a subclass that says what to do.

    Example:
        >>> from hardsight.models import SmallCNN
        >>> card = evaluation_card(SmallCNN(), "builtin:digits", split="test", attack_examples=0,
        ...                 explain_examples=0, map_examples=50, feature_examples=100)
        >>> card["models"][0]["accuracy"]["top1"]["n"]
        449
    """
    # the card names them. Models and data are recorded by their digests instead, and resume,
    # overwrite and show_progress do not change a number
    settings = _plain_settings(
        out=out, head=head, output=output, split=split, ood_split=ood_split,
        train_split=train_split, group=list(group) if isinstance(group, Mapping) else group,
        data_root=data_root, text_column=text_column, label_column=label_column, classes=classes,
        num_classes=num_classes, preprocessing=preprocessing, size=size, mean=mean, std=std,
        channels=channels, crop=crop, squash=squash, white=white, model_classes=model_classes,
        class_order=class_order, trust_remote_code=trust_remote_code, epsilons=epsilons,
        epsilons_l2=epsilons_l2, attack_steps=attack_steps, attack_examples=attack_examples,
        ensemble_steps=ensemble_steps, explain_examples=explain_examples, cam_layer=cam_layer,
        feature_examples=feature_examples, map_examples=map_examples,
        validation_share=validation_share, wanted_error=wanted_error, batch_size=batch_size,
        workers=workers, device=device, seed=seed,
    )  # fmt: skip
    _check_options(settings)
    foreign = list(ood) if isinstance(ood, list | tuple) else [ood]
    with ExitStack() as stack:
        run = None
        if out is not None:
            claim = RunFolder(out).claimed(
                EVALUATE, reads=(data, *foreign, train), resume=resume, overwrite=overwrite
            )
            run = stack.enter_context(claim)
        place = chosen_device(str(device))
        batch_size = batch_size or (256 if place.type == "cuda" else 64)
        sets = opened_sets(
            data, foreign, train, splits=(split, ood_split, train_split), classes=classes,
            data_root=data_root, columns=(text_column, label_column),
        )  # fmt: skip
        named = stated_classes(model_classes)
        pixels = PixelOptions(size, mean, std, channels, crop, squash, white)
        subjects = [
            subject_of(
                stack, model, sets.data, pixels, device=place, preprocessing=preprocessing,
                class_names=named, head=head, output=output, num_classes=num_classes, seed=seed,
                trust_remote_code=trust_remote_code, batch_size=batch_size,
            )
            for model in listed_models(models)
        ]  # fmt: skip
        order = class_order_of(subjects, sets.data, class_order)
        sets = sets.numbered_as(order, subjects[0], class_order)
        # attacks that the user named must run; default attacks may be left out with a note
        asked = epsilons is not None or epsilons_l2 is not None
        _check_normalisation(subjects, asked=asked)
        if run is not None:
            _describe(run, settings, subjects, order, sets, device=place, batch_size=batch_size)
            if run.is_done:
                return EvaluationCard(json.loads((run.folder / CARD).read_bytes()))
        study = Study(
            subjects,
            order.of(sets.data),
            sets.foreign,
            sets.train,
            folder=Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hardsight-"))),
            batch_size=batch_size,
            workers=workers,
            seed=seed,
            show=show_progress,
        )
        parts = study.parts(
            len(order.names),
            epsilons=(
                _radii(epsilons, EPSILONS, most=1.0),
                _radii(epsilons_l2, EPSILONS_L2, most=math.inf),
            ),
            must_attack=asked,
            attack_steps=attack_steps,
            attack_examples=attack_examples,
            ensemble_steps=ensemble_steps,
            explain_examples=explain_examples,
            cam_layer=cam_layer,
            feature_examples=feature_examples,
            map_examples=map_examples,
            validation_share=validation_share,
            wanted_error=wanted_error,
            groups={} if group is None else group_columns(sets.data, group, data=data),
            classes=list(order.names),
        )
        card = EvaluationCard(_finite({
            "format": FORMAT,
            **sets.facts(order),
            "groups": [] if group is None else list(parts["models"][0]["groups"]["attributes"]),
            **parts,
            "settings": settings,
            "versions": versions(),
            "definitions": {
                key: dataclasses.asdict(definition) for key, definition in DEFINITIONS.items()
            },
        }))  # fmt: skip
        if run is not None:
            _write(run, card)
        return card


def _write(run: RunFolder, card: EvaluationCard) -> None:
    """Write the card into its run, and mark the run as finished."""
    text = json.dumps(card, ensure_ascii=False, allow_nan=False)
    run.begin()
    with writing(run.folder, step="choose another --out"):
        write_text(run.folder / CARD, text)
    run.finish()


def _describe(
    run: RunFolder,
    settings: dict[str, Any],
    subjects: list[Subject],
    order: ClassOrder,
    sets: Sets,
    *,
    device: torch.device,
    batch_size: int,
) -> None:
    """Write down what the card is made of, or compare it with the card that is there."""
    models = {
        subject.name: {
            "spec": subject.facts["spec"],
            "head": subject.facts["head"],
            "preprocessing": decisive(subject.facts["preprocessing"]),
        }
        for subject in subjects
    }
    own = {key: value for key, value in settings.items() if key not in _OF_THE_MODELS}
    marks = {f"weights of {subject.name}": subject.facts["digest"] for subject in subjects}
    marks.update(sets.fingerprints())
    run.describe(
        {
            **own,
            "device": device.type,
            "batch_size": batch_size,
            "models": list(models),  # in order, since all are compared with the first
            "model": models,
        },
        fingerprints={**marks, "classes": values_digest([order.names, order.labels])},
        versions=versions(),
        may_change=MAY_CHANGE,
    )


def _plain_settings(**settings: Any) -> dict[str, Any]:
    return {name: _plain(value) for name, value in settings.items()}


def _check_options(settings: dict[str, Any]) -> None:
    for name in ("validation_share", "wanted_error"):
        if not 0 < settings[name] < 1:
            raise OptionError(f"expected {name} in (0, 1), got {settings[name]}")
    least = {"feature_examples": 10, "map_examples": 10, "attack_steps": 1, "attack_examples": 0,
             "ensemble_steps": 0, "explain_examples": 0, "batch_size": 1, "seed": 0}  # fmt: skip
    for name, smallest in least.items():
        if settings[name] is not None and settings[name] < smallest:
            raise OptionError(f"expected {name} >= {smallest}, got {settings[name]}")


def _check_normalisation(subjects: list[Subject], *, asked: bool) -> None:
    """Raise if the user wants attacks on a model whose normalisation is unknown."""
    for subject in subjects:
        why = unknown_normalisation(subject)
        if subject.kind is not None:
            why = f"attacks change pixels, and {subject.name} reads the kind {subject.kind.name!r}"
            why += "; leave epsilons and epsilons_l2 (--epsilons, --epsilons-l2) out"
        if asked and why:
            raise OptionError(why)


def _radii(
    stated: Sequence[float] | None, usual: tuple[float, ...], *, most: float
) -> tuple[float, ...]:
    """Radii in ascending order, including 0.

    Raises:
        OptionError: a radius is negative or above ``most``.
    """
    radii = usual if stated is None else tuple(float(radius) for radius in stated)
    if not all(math.isfinite(radius) and radius >= 0 for radius in radii):
        raise OptionError(f"expected every epsilon to be >= 0, got {list(radii)}")
    if max(radii, default=0.0) > most:
        raise OptionError(
            f"expected every epsilon of FGSM and PGD in L-infinity in [0, {most:g}], the pixel "
            f"scale, got {list(radii)}; 8 of 255 is {8 / 255:.4f}"
        )
    return tuple(sorted({0.0, *radii}))


def _plain(value: Any) -> Any:
    """A setting in a form that JSON can hold."""
    if isinstance(value, Preprocessing):
        return dataclasses.asdict(value)
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Sequence):
        return [_plain(inner) for inner in value]
    return str(value)


def _finite(value: Any) -> Any:
    """``value`` without NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
