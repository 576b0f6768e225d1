"""Train a model per fold, and score each example with the model that did not see it."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import nn

from hardsight._checks import versions
from hardsight.config import defaults_of
from hardsight.data import ExampleSource, data_marks
from hardsight.data.source import shared_examples
from hardsight.data.texts import TRUNCATED
from hardsight.models import load_model
from hardsight.notebook import shown
from hardsight.run.loop import (
    OUT_OF_SAMPLE,
    Folds,
    chosen_device,
    chosen_precision,
    folds_of,
    pictures,
    tell_of_copies,
    with_folds,
)
from hardsight.run.score import score
from hardsight.run.train._config import TrainConfig
from hardsight.run.train._data import PartOfData, training_split
from hardsight.run.train._folder import MAY_CHANGE, stated_columns
from hardsight.run.train._train import TrainResult, run_recipe
from hardsight.run_folder import (
    AGAIN,
    FOLDS,
    RunFolder,
    fold_folder,
    remove,
    state_digest,
    values_digest,
    write_json,
    writing,
)
from hardsight.table import (
    ERRORS,
    TABLE,
    THUMBNAILS,
    ScoreTable,
    error_rows,
    read_table,
    with_metadata,
)

RESULT = "folds.json"
# metadata that differs between folds; the rest is taken from the table of the first fold
_OF_ONE_FOLD = ("data", "model", "counts", "bias", "batch_size")


@dataclass(frozen=True)
class FoldsResult:
    """The result of training by folds.

    Attributes:
        folder: holds ``table.parquet``, ``folds.json`` and a folder for each fold, with its model
            in ``folds/fold-1/model``.
        table: one row per example, scored by the model that did not see it; ``fold`` says which.
        folds: for each fold, how many examples its model learned from and scored, its accuracy on
            the scored ones, the selected epoch and, if the recipe names a test split, its test
            accuracy.
        next_step: the command that shows the suspects.
    """

    folder: Path
    table: ScoreTable
    folds: list[dict[str, Any]]
    next_step: str

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the folds, and the table of all examples."""
        rows = [
            [f"{fold['fold']}", f"{fold['learned_from']:,}", f"{fold['scored']:,}",
             f"{fold['accuracy']:.1%}"]
            for fold in self.folds
        ]  # fmt: skip
        columns = ("fold", "learned from", "scored", "accuracy on these")
        folds = shown("FoldsResult", {"run": str(self.folder)}, columns=columns, rows=rows)
        return folds + self.table._repr_html_()


def run_folds(
    config: TrainConfig,
    model: str | nn.Module,
    data: Any,
    show: bool | None,
    *,
    validation: Any = None,
    rows: Any = None,
) -> FoldsResult:
    """Train by a recipe with ``folds``; a resumed run keeps the folds that are finished."""
    assert config.folds is not None
    run = RunFolder(config.out)
    reads = (data, validation)
    with run.claimed(FOLDS, reads=reads, resume=config.resume, overwrite=config.overwrite):
        source = training_split(config.data, data, rows=rows)
        folds = folds_of(
            source.labels, config.folds, seed=config.seed, classes=source.named_classes,
            spec=source.spec,
        )  # fmt: skip
        _warn_of_copies(source, folds)
        marks = data_marks(source)
        precision = chosen_precision(config.precision, chosen_device(config.device))
        run.describe(
            {**dataclasses.asdict(config), "precision": precision},
            fingerprints={
                "training data": marks["data"],
                "chosen rows": marks["rows"],
                "weights to start from": state_digest(model)
                if isinstance(model, nn.Module)
                else None,
            },
            versions=versions("lightning"),
            may_change=MAY_CHANGE,
            defaults=defaults_of(TrainConfig),
        )
        if not run.is_done:
            goes_on = run.goes_on
            run.begin()
            fold = partial(
                _Fold, run.folder, config, source, folds, model=model, data=data,
                validation=validation, goes_on=goes_on, show=show,
            )  # fmt: skip
            each = [fold(number=number).scored() for number in range(1, config.folds + 1)]
            _keep(run, config, source, folds, each, show)
            run.finish()
    return _result(run.folder)


def _warn_of_copies(source: ExampleSource, folds: Folds) -> None:
    """Warn about examples with a copy in another fold, which their model has seen after all."""
    overlap = shared_examples(source.subset(folds.unseen(1)), source, folds.seen(1).tolist())
    tell_of_copies(overlap)


@dataclass(frozen=True)
class _Fold:
    """One fold of a run.

    Attributes:
        run: folder of the run.
        config: the recipe of all folds.
        source: all examples.
        folds: which fold each example is in.
        number: number of this fold, from 1.
        model: the model to start from, or its name.
        data: the data as the user passed it.
        validation: examples to validate every fold's model on, if the user passed any.
        goes_on: whether to continue what an interrupted run left.
        show: force progress bars on or off.
    """

    run: Path
    config: TrainConfig
    source: ExampleSource
    folds: Folds
    number: int
    model: str | nn.Module
    data: Any
    validation: Any
    goes_on: bool
    show: bool | None

    @property
    def folder(self) -> Path:
        """The folder of its model and its scores."""
        return fold_folder(self.run, self.number)

    def scored(self) -> ScoreTable:
        """Score the examples of this fold with a model that is trained on all others."""
        scores = self.folder / "scores"
        if RunFolder(scores).finished:
            return read_table(scores)
        trained = self._trained()
        unseen = self.source.subset(self.folds.unseen(self.number))
        config = self.config
        table = score(
            trained.model,
            unseen,
            preprocessing=trained.preprocessing,
            model_classes=trained.classes,
            head=config.head,
            output=config.output,
            tokenizer=self._tokenizer(trained),
            device=config.device,
            precision=config.precision,
            workers=config.workers,
            sample=OUT_OF_SAMPLE,
            strict=True,  # the next fold trains on these examples, so it would fail anyway
            thumbnails=0,
            seed=config.seed,
            out=scores,
            resume=self.goes_on,
            show_progress=self.show,
        )
        # Only a resumed training would need the checkpoints, and the fold is done. The model stays.
        remove(self.folder / "model" / "checkpoints")
        return table

    def _tokenizer(self, trained: TrainResult) -> Any:
        """Return the tokenizer for texts, or ``None`` for other examples."""
        if self.source.kind is None or not self.source.kind.has_words:
            return None
        if self.config.data.tokenizer is not None:
            return self.config.data.tokenizer
        # The trained folder names the model that training started from, which has the tokenizer.
        # The trained module itself does not keep it.
        return load_model(
            os.fspath(trained.folder), trust_remote_code=self.config.model.trust_remote_code
        ).tokenizer

    def _trained(self) -> TrainResult:
        config = dataclasses.replace(
            self.config, out=str(self.folder / "model"), folds=None, resume=self.goes_on,
            overwrite=False, thumbnails=TrainConfig.thumbnails,
        )  # fmt: skip
        # training changes a module in place, and every fold has to start from the same weights
        own = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model
        what = f"all but fold {self.number} of {self.folds.count}"
        part = PartOfData(self.source, self.folds.seen(self.number), what)
        return run_recipe(config, own, self.data, self.show, validation=self.validation, part=part)


def _facts(run: Path, number: int, table: ScoreTable) -> dict[str, Any]:
    """Return facts about a fold, for the metadata."""
    file = fold_folder(run, number) / "model" / "result.json"
    result = json.loads(file.read_text(encoding="utf-8"))
    return {
        "fold": number,
        "learned_from": result["train_examples"],
        "validated_on": result["validation_examples"],
        "scored": len(table),
        "accuracy": table.accuracy(),
        "best_epoch": result["best_epoch"],
        "test": result["test"],
    }


def _keep(
    run: RunFolder,
    config: TrainConfig,
    source: ExampleSource,
    folds: Folds,
    tables: list[ScoreTable],
    show: bool | None,
) -> None:
    """Write one table of all folds, along with pictures and the list of examples without a row."""
    each = [_facts(run.folder, number, table) for number, table in enumerate(tables, start=1)]
    rows = pa.concat_tables(
        with_folds(table.to_arrow().replace_schema_metadata(None), number)
        for number, table in enumerate(tables, start=1)
    ).sort_by("index")
    unscored = folds.unscored(
        source.labels,
        source.named_classes,
        lambda at: (int(source.numbered(at)), source.id_of(at)),
    )
    about = _about(config, source, tables, each, unscored=len(unscored))
    table = ScoreTable(with_metadata(rows, about))
    run.write_side_file(ERRORS, error_rows(unscored))
    if config.thumbnails:
        run.write_side_file(THUMBNAILS, pictures(source, table, most=config.thumbnails, show=show))
    run.write_side_file(TABLE, table.to_arrow())
    content = {"config": dataclasses.asdict(config), "folds": each, "versions": about["versions"]}
    with writing(run.folder, step=AGAIN):
        write_json(run.folder / RESULT, content)


def _about(
    config: TrainConfig,
    source: ExampleSource,
    tables: list[ScoreTable],
    each: list[dict[str, Any]],
    *,
    unscored: int,
) -> dict[str, Any]:
    """Return the metadata of the whole table, from the metadata of its parts."""
    parts = [table.metadata for table in tables]
    first = {key: value for key, value in parts[0].items() if key not in _OF_ONE_FOLD}
    rows = [len(table) for table in tables]
    flips = [part["bias"]["flip_rate"] * n for part, n in zip(parts, rows, strict=True)]
    marks, chosen = data_marks(source), {}
    if source.whole is not None:
        chosen["chosen"] = {"of": len(source.whole), "fingerprint": marks["rows"]}
    model = {**parts[0]["model"], "spec": config.model.name}
    model["digest"] = values_digest([part["model"]["digest"] for part in parts])
    return {
        **first,
        "sample": OUT_OF_SAMPLE,
        "folds": {
            "count": len(tables),
            "seed": config.seed,
            "fitted": "a model of the recipe for each fold, trained on the others",
            "each": each,
        },
        "recipe": dataclasses.asdict(config),
        "data": {
            "spec": config.data.name,
            "split": config.data.split,
            **{key: value for key, value in stated_columns(config.data) if value is not None},
            "fingerprint": marks["data"],
            "named": len(source.classes),
            "rows": sum(rows) + unscored,
            "patches": list(source.patches),
            **chosen,
        },
        "model": model,
        "counts": {
            "errors": unscored,
            "non_finite": sum(part["counts"]["non_finite"] for part in parts),
            **{
                name: sum(part["counts"][name] for part in parts)
                for name in parts[0]["counts"].keys() & {TRUNCATED}
            },
        },
        "bias": {"flip_rate": sum(flips) / sum(rows)},
    }


def _result(folder: Path) -> FoldsResult:
    content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    step = shlex.join(["hardsight", "review", str(folder)])
    return FoldsResult(folder, read_table(folder), content["folds"], step)
