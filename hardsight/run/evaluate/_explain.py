"""Make Grad-CAM maps of single examples on request, in a separate process.

The review app loads no model. It starts :func:`serve_maps` in another process, sends it the names
of run and data once, and then requests a map for one example after the other, in lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from hardsight.data import ExampleSource, reopened_source
from hardsight.data.pixels import PixelOptions
from hardsight.errors import DataError, HardsightError, ModelError
from hardsight.evaluate import CamLayer, find_cam_layer, grad_cam
from hardsight.gallery import class_numbers
from hardsight.models import MODELS
from hardsight.preprocessing import Preprocessing
from hardsight.run.evaluate._maps import map_picture
from hardsight.run.evaluate._pass import inputs_at
from hardsight.run.evaluate._subjects import Subject, subject_of
from hardsight.run_folder import fold_folder
from hardsight.table import ScoreTable, read_table

_MOST_MODELS = 5  # models of folds that are kept in memory
_SIDE = 256  # pixels of a map
_STORED = "model.json"  # exists in the folder of a trained model


class Explainer:
    """Makes maps for the examples of a run, with the model that the run names.

    The run may come from someone the user does not trust. So without ``model`` only networks of
    this package are built, and their weights are only numbers.

    Args:
        table: of the run.
        data: the data, as :func:`hardsight.data.open_source` takes it.
        model: replaces the model that the run names; its code may be run.
        weights: of ``model``.

    Raises:
        DataError: the data has no pictures.
        ModelError: the run's model cannot be built safely, so ``model`` is needed.
    """

    def __init__(
        self,
        table: ScoreTable,
        data: Mapping[str, Any],
        *,
        model: str | None = None,
        weights: str | None = None,
    ) -> None:
        opened = dict(data)
        labels = np.maximum(class_numbers(table, "label"), 0)
        source = reopened_source(opened.pop("data"), labels, **opened)
        if not isinstance(source, ExampleSource) or source.is_stream or source.kind is not None:
            raise DataError("Grad-CAM needs pictures that can be read by their position")
        self._table, self._source = table, source
        self._stack = ExitStack()
        self._named = None if model is None else (model, weights)
        self._subjects: dict[int, tuple[Subject, CamLayer | None]] = {}

    def close(self) -> None:
        """Release all models."""
        self._stack.close()

    def explained(self, index: int, id: str, fold: int = 0) -> tuple[str, int]:
        """The map of an example over its picture, as base64 of a PNG, and the class it is for.

        Args:
            index: of the example in its data.
            id: that the table has for it.
            fold: that the example is in; 0 if the run has none.

        Raises:
            DataError: the example cannot be read, or has been replaced by another example.
            ModelError: the model cannot be built, or has no layer laid out like the picture.
        """
        position = int(self._source.position_of(index))
        if not 0 <= position < len(self._source) or self._source.id_of(position) != id:
            raise DataError(f"the data has changed: example {index} is another one now")
        subject, layer = self._subject(fold)
        for _, inputs in inputs_at(subject, self._source, np.array([position]), at_once=1):
            with torch.no_grad():
                classes = subject.logits(inputs).argmax(dim=1)
            if layer is None:
                layer = find_cam_layer(subject.model, inputs)
                self._subjects[fold] = subject, layer
            maps = grad_cam(subject.model, inputs, classes, layer=layer).nan_to_num(0)
            return map_picture(inputs[0], maps[0], subject, side=_SIDE), int(classes[0])
        raise DataError(f"example {index} cannot be read")

    def _subject(self, fold: int) -> tuple[Subject, CamLayer | None]:
        if fold not in self._subjects:
            if len(self._subjects) >= _MOST_MODELS:
                self._subjects.clear()
                self._stack.close()
            self._subjects[fold] = self._built(fold), None
        return self._subjects[fold]

    def _built(self, fold: int) -> Subject:
        spec, weights = self._named or _named_by(self._table, fold)
        about = self._table.metadata.get("model") or {}
        stated = self._table.metadata.get("preprocessing")
        subject = subject_of(
            self._stack, (None, spec, weights), self._source, PixelOptions(),
            device=torch.device("cpu"), class_names=None, head=about.get("head"),
            output=about.get("output"), num_classes=len(self._table.classes) or None, seed=0,
            # the model of a fold has its own, measured on its own training examples
            preprocessing=None if fold or not stated else _preprocessing(stated),
        )  # fmt: skip
        known = about.get("digest")
        if not fold and known is not None and subject.facts["digest"] != known:
            raise ModelError(
                f"{spec} is not the model that was scored: its weights have changed since; name "
                "the scored model with --model and --weights"
            )
        return subject


def _preprocessing(stated: Mapping[str, Any]) -> Preprocessing:
    lists = {key: tuple(value) for key, value in stated.items() if isinstance(value, list)}
    return Preprocessing(**{**stated, **lists})


def _named_by(table: ScoreTable, fold: int) -> tuple[str, str | None]:
    """The model that a run names, and its weights, if it can be built without running its code."""
    assert table.path is not None
    run = table.path.absolute().parent
    own = fold_folder(run, fold) / "model" if fold else run
    if (own / _STORED).is_file():
        return str(own), None
    spec = str((table.metadata.get("model") or {}).get("spec") or "")
    weights = (table.metadata.get("config") or {}).get("weights")
    place = _found(spec, run)
    if place is not None and (place / _STORED).is_file():
        return str(place), None
    file = None if weights is None else _found(str(weights), run)
    if spec.partition(":")[0] in MODELS and file is not None:
        return spec, str(file)
    what = f"it scored {spec}, which" if spec else "its model"
    raise ModelError(
        f"the run does not name a model that can be built from its own files: {what} is Python "
        "code, or was passed as an object. Name it with --model, and --weights if it has any"
    )


def _found(name: str, run: Path) -> Path | None:
    """A path as it was named or, if it does not exist, relative to the run."""
    if not name:
        return None
    places = (Path(name), *(folder / name for folder in (run, *list(run.parents)[:3])))
    return next((place for place in places if place.exists()), None)


def serve_maps() -> None:
    """Answer requests for maps from standard input until it ends.

    The first line is an object with ``table``, ``data``, ``model`` and ``weights``, answered by
    ``{}`` or ``{"problem": words}``; every other line has ``index``, ``id`` and ``fold``, answered
    by ``{"map": base64, "prediction": class}`` or ``{"problem": words}``.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    if hasattr(os, "nice"):
        os.nice(10)  # the app that the user is working in must stay responsive
    with _own_output() as answers:
        explainer: Explainer | None = None
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                if explainer is None:
                    explainer, answer = _explainer(asked), {}
                else:
                    map_, prediction = explainer.explained(**asked)
                    answer = {"map": map_, "prediction": prediction}
            except HardsightError as err:
                answer = {"problem": str(err)}
            except Exception as err:  # a user's model may raise anything
                answer = {"problem": f"{type(err).__name__}: {err}"[:500]}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _explainer(asked: Mapping[str, Any]) -> Explainer:
    table = read_table(asked["table"])
    return Explainer(table, asked["data"], model=asked["model"], weights=asked["weights"])


@contextmanager
def _own_output() -> Iterator[TextIO]:
    """Reserve standard output for answers: whatever a model prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        yield answers
