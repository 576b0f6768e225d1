"""Match the labels of data with the outputs of a model, by name or else by position."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from hardsight._checks import warn
from hardsight.data import Batch, EmbeddingSource, ExampleSource
from hardsight.errors import LabelError, MissingDataError, OptionError
from hardsight.models import ClassNames
from hardsight.registry import unknown_name

CLASS_ORDERS = ("auto", "name", "position")
_SHOWN = 6  # names in a message
_READINGS = ("", " without regard to case, spaces, hyphens and underscores", " by a synonym")
_log = logging.getLogger("hardsight")
_Source = TypeVar("_Source", bound=ExampleSource | EmbeddingSource)


@dataclass(frozen=True)
class ClassOrder:
    """Which label of the data is which output of the model.

    Attributes:
        names: a name for each output of the model.
        labels: the output for each label of the data; empty if labels are outputs already.
        taken: how they were matched, ``"name"`` or ``"position"``.
        note: how they were matched, in words.
        data_classes: class names of the data; the position of a name is its label.
    """

    names: tuple[str, ...]
    labels: tuple[int, ...]
    taken: str
    note: str
    data_classes: tuple[str, ...] = ()

    def of(self, source: _Source) -> _Source:
        """Return the data with labels renumbered to the model's outputs."""
        if not self.labels:
            return source
        return cast(_Source, source.renumbered(self.labels, self.names))

    def facts(self) -> dict[str, Any]:
        """Return facts for the metadata of a result.

        They include ``labels`` if numbers changed, and ``data_classes`` if numbers or names did.
        """
        is_same = not self.labels and self.data_classes == self.names[: len(self.data_classes)]
        return {
            "taken": self.taken,
            "note": self.note,
            "labels": list(self.labels) or None,
            "data_classes": None if is_same else list(self.data_classes),
        }


def matched_classes(
    source: ExampleSource | EmbeddingSource,
    outputs: int,
    known: ClassNames,
    *,
    how: str = "auto",
    teaches: bool = False,
) -> ClassOrder:
    """Match the classes of a model with those of data.

    Classes are matched by name if both sides have names: first as they are written; then ignoring
    case, spaces, hyphens and underscores; then by any of several names that a model lists for a
    class. The data may have fewer classes than the model. If one side has no names, classes are
    matched by position.

    Args:
        source: the data.
        outputs: number of classes of the model.
        known: names of the model's classes, if it states any.
        how: ``"position"`` ignores names; ``"name"`` never matches by position.
        teaches: whether the model is about to be trained on the data, so that new names are no
            mistake.

    Raises:
        LabelError: names that do not match, more classes than outputs, or a single output.
        OptionError: an unknown ``how``.
    """
    if how not in CLASS_ORDERS:
        raise OptionError(unknown_name("class_order", how, list(CLASS_ORDERS)))
    named = tuple(str(name) for name in source.classes)
    _check_count(source.spec, named, outputs)
    known = _fitting(known, outputs)
    # inferred names count only if none are stated
    if not known.names and how != "position":
        known = _possible(known, named, outputs)
    if how == "name":
        _check_named(source.spec, named, known)
    if how != "position" and named and known.names:
        match = _looked_up(named, known)
        if not match.problem:
            return _by_name(named, known, match)
        # class names that are just numbers say nothing if they do not match
        are_names = how == "name" or (_has_names(named) and _has_names(known.names))
        # a model in training takes over the data's classes; only a finished model can contradict
        if are_names and not (teaches and how == "auto"):
            raise LabelError(_refusal(source.spec, named, known, match.problem))
    known = known if _has_names(known.names) else ClassNames()
    return _by_position(named, known, outputs, forced=how == "position", teaches=teaches)


def stated_classes(stated: Sequence[str] | str | os.PathLike[str] | None) -> ClassNames | None:
    """Return a model's output names as a user states them: a list, or a file with one per line.

    Raises:
        MissingDataError: there is no such file.
        OptionError: anything else, or no names.
    """
    if stated is None:
        return None
    if isinstance(stated, list | tuple) and len(stated) == 1 and Path(str(stated[0])).is_file():
        # a single value may be a file, and the command line makes a list of every value
        stated = str(stated[0])
    if isinstance(stated, str | os.PathLike):
        file = Path(stated)
        if not file.is_file():
            raise MissingDataError(
                f"no file {file} with the names of the model's classes; pass a list of names, or a "
                "text file with one name per line"
            )
        # files from Windows may start with a byte order mark, which utf-8-sig removes
        lines = file.read_text(encoding="utf-8-sig").splitlines()
        return ClassNames(tuple(line.strip() for line in lines if line.strip()), str(file))
    names = tuple(stated)
    if len(names) < 2 or not all(isinstance(name, str) for name in names):
        raise OptionError(
            f"expected model_classes to be the names of the model's outputs, got {stated!r}; pass "
            "a list of names, or a text file with one name per line"
        )
    return ClassNames(names, "model_classes")


def check_labels_agree(
    known: Sequence[str], others: Sequence[str], *, whose: str, where: str, step: str
) -> None:
    """Raise if a class has different labels in two places.

    Folders number their classes by name, so a folder without one of the classes numbers all classes
    behind it differently. Different names are accepted, since the same class may be called ``car``
    and ``auto``.

    Args:
        known: class names; the position of a name is its label.
        others: class names of other data.
        whose: what ``known`` belongs to, in words.
        where: what ``others`` belong to, in words.
        step: how to pass names, in words.

    Raises:
        LabelError: a class has two labels.
    """
    label_of = {name: label for label, name in enumerate(known)}
    for label, name in enumerate(others):
        if label_of.get(name, label) != label:
            names = ", ".join(dict.fromkeys((*known, *others)))
            raise LabelError(
                f"the class {name!r} is label {label} in {where} and label {label_of[name]} in "
                f"{whose}; pass {step} with all names in one order: {names}"
            )


def check_labels(batch: Batch, num_classes: int, *, whose: str, verb: str) -> None:
    """Raise unless the labels of a batch are classes of the model.

    Args:
        batch: a batch of the data.
        num_classes: number of classes of the model.
        whose: who has these classes, in words.
        verb: what the run does with the data, such as ``score``.

    Raises:
        LabelError: names the first example with another label.
    """
    outside = (batch.labels < 0) | (batch.labels >= num_classes)
    if bool(outside.any()):
        row = int(outside.nonzero()[0, 0])
        raise LabelError(
            f"expected labels in [0, {num_classes}), the classes of {whose}, got "
            f"{int(batch.labels[row])} for {batch.ids[row]}; {verb} data with the model's classes, "
            "or a model with the data's"
        )


@dataclass(frozen=True)
class _Match:
    """A match by name: the output of each label, how names were read, and what does not match."""

    outputs: tuple[int, ...] = ()
    reading: int = 0
    problem: str = ""


def _looked_up(named: tuple[str, ...], known: ClassNames) -> _Match:
    if named == known.names:  # the only way to match names that occur twice
        return _Match(tuple(range(len(named))))
    tables = list(_tables(known))
    outputs: dict[int, int] = {}
    readings, unknown = [0], []
    for label, name in enumerate(named):
        # the strictest reading first, so that a looser one never takes a name that fits exactly
        for reading, (key, places) in enumerate(tables):
            called_so = places.get(key(name), [])
            if len(called_so) > 1:
                several = ", ".join(map(str, called_so[:_SHOWN]))
                return _Match(problem=f"the model's outputs {several} are all called {name!r}")
            if called_so:
                outputs[label] = called_so[0]
                readings.append(reading)
                break
        else:
            unknown.append(name)
    if unknown:
        return _Match(problem=f"the model has no class {_some([repr(name) for name in unknown])}")
    # two classes of the data on one output would be merged silently
    label_of: dict[int, int] = {}
    for label, output in outputs.items():
        other = label_of.setdefault(output, label)
        if other != label:
            both = f"{named[other]!r} and {named[label]!r}"
            return _Match(problem=f"{both} would both be {known.names[output]!r} of the model")
    return _Match(tuple(outputs[label] for label in range(len(named))), max(readings))


def _tables(known: ClassNames) -> Iterator[tuple[Callable[[str], str], dict[str, list[int]]]]:
    """Yield ways to read a name, the strictest first, each with the outputs by their names."""
    yield str, _places(enumerate(known.names))
    plain = [(output, _plain(name)) for output, name in enumerate(known.names)]
    yield _plain, _places(plain)
    # ImageNet's names are lists of synonyms, separated by commas
    parts = [(output, part) for output, name in plain for part in name.split(", ")]
    lists = [(output, _plain(name)) for names in known.others for output, name in enumerate(names)]
    yield _plain, _places([*parts, *lists])


def _places(named: Any) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for output, name in named:
        outputs = places.setdefault(name, [])
        if output not in outputs:
            outputs.append(output)
    return places


def _plain(name: str) -> str:
    """Return a name in lower case, with a single space between words.

    Example:
        >>> _plain("Tabby_Cat"), _plain("tabby  cat"), _plain("T-shirt/top")
        ('tabby cat', 'tabby cat', 't shirt/top')
    """
    # NFKC, because other systems may encode the same letters differently
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip()


def _by_name(named: tuple[str, ...], known: ClassNames, match: _Match) -> ClassOrder:
    reading = _READINGS[match.reading]
    # if the order is the same, no label has to be renumbered
    if match.outputs == tuple(range(len(known.names))):
        note = f"the data and the model name the same classes in the same order{reading}"
        order = ClassOrder(known.names, (), "name", note, named)
    else:
        pairs = zip(named, match.outputs, strict=True)
        shown = _some([f"{name} is output {output}" for name, output in pairs])
        note = (
            f"classes are matched by name{reading} ({known.origin}), {len(named)} of the model's "
            f"{len(known.names)}: {shown}"
        )
        order = ClassOrder(known.names, match.outputs, "name", note, named)
    if order.labels or reading:
        _log.info(note)
    return order


def _by_position(
    named: tuple[str, ...], known: ClassNames, outputs: int, *, forced: bool, teaches: bool
) -> ClassOrder:
    names = named if _has_names(named) or not known.names else known.names
    every = (*names, *(str(output) for output in range(len(names), outputs)))
    shown = _some([f"{label} is {name}" for label, name in enumerate(every)])
    if forced:
        note = f"classes are taken by position, as asked for: {shown}"
    elif known.names and _has_names(named):
        note = f"the model learns the data's classes in their order: {shown}"
    elif known.names:
        note = f"the data has no class names, so its labels are the model's outputs: {shown}"
    elif _has_names(named):
        note = f"the model has no class names, so its outputs are the data's labels: {shown}"
    else:
        note = "neither data nor model has class names: labels are outputs"
    # in training this is expected and needs no warning
    if (known.names or _has_names(named)) and not teaches:
        _log.info(note)
    if named and len(named) != outputs and not teaches:
        warn(
            f"the model has {outputs} classes, the data names {len(named)}: is it the model of "
            "this data?"
        )
    return ClassOrder(every, (), "position", note, named)


def _has_names(named: Sequence[str]) -> bool:
    """Return whether classes have names other than their numbers."""
    return list(named) != [str(label) for label in range(len(named))]


def _fitting(known: ClassNames, outputs: int) -> ClassNames:
    """Return names for all outputs; outputs beyond the known names are called by their number."""
    count = len(known.names)
    if count > outputs:
        warn(
            f"{known.origin} has names for {count:,} classes, but the model has {outputs:,} "
            "outputs, so they are not used; pass model_classes= (--model-classes) to name them"
        )
        return ClassNames()
    if not count or count == outputs:
        return known
    rest = tuple(str(output) for output in range(count, outputs))
    return dataclasses.replace(known, names=known.names + rest, others=())


def _possible(known: ClassNames, named: tuple[str, ...], outputs: int) -> ClassNames:
    """Return inferred names that fit the outputs of a model that does not state names itself."""
    for names in known.possible:
        fits = len(names.names) == outputs
        # guessed names count only if those of the data match them
        if fits and not (names.is_guess and (not named or _looked_up(named, names).problem)):
            return names
    return ClassNames()


def _check_count(spec: str, named: Sequence[str], outputs: int) -> None:
    if outputs == 1:
        raise LabelError(
            f"the model has 1 output, but {spec} needs a logit for each class; if the output is "
            "meant for a sigmoid, give its last layer two outputs: torch.cat([-w / 2, w / 2]) as "
            "weight, and the bias in the same way"
        )
    if len(named) > outputs:
        raise LabelError(
            f"{spec} has {len(named)} classes, the model {outputs}; score data with the model's "
            f"classes, or a model with the data's: {_some(named)}"
        )


def _check_named(spec: str, named: Sequence[str], known: ClassNames) -> None:
    """Raise if names are missing on one side."""
    if known.names and named:
        return
    who, what = (spec, "classes= (--classes)") if known.names else (
        "the model", "model_classes= (--model-classes)"
    )  # fmt: skip
    raise LabelError(
        f"{who} has no class names, so classes cannot be matched by name; pass {what}, or leave "
        "class_order (--class-order) out"
    )


def _refusal(spec: str, named: Sequence[str], known: ClassNames, problem: str) -> str:
    return (
        f"the classes of {spec} cannot be matched with the model's by name: {problem}. The data "
        f"has {_some(named)}; the model has {_some(known.names)} ({known.origin}). Name the data's "
        "as the model does (classes=, --classes), or the model's (model_classes=, "
        '--model-classes); or take both in the order they have: class_order="position" '
        "(--class-order position)"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
