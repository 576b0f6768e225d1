"""Run the rounds of a rule, each with a folder that appears when it is complete."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hardsight.run.adapt._config import ENTROPY, SOURCE_ONLY, UNSELECTIVE, AdaptConfig
from hardsight.run.adapt._data import Pool, Target
from hardsight.run.adapt._labels import AdaptBatches, RoundLabels
from hardsight.run.adapt._select import (
    accuracy_of,
    compared,
    quality_of,
    seen_by,
    selected_by,
    soft_labels,
    starved,
)
from hardsight.run.loop import (
    Outputs,
    chosen_precision,
    progress,
    random_states_kept,
    seed_of,
)
from hardsight.run.train import TotalLoss, fit, quiet, start_of, trainer_of
from hardsight.run_folder import (
    AGAIN,
    PSEUDO_LABELS,
    put_in_place,
    replacing,
    write_json,
    write_parquet,
    writing,
)
from hardsight.selftrain import MRKLD_RULES, RULES, Selection
from hardsight.table import with_metadata

MODEL, ROUND = "model.safetensors", "round.json"
EXAMPLES = "examples.parquet"
_LABELS, _CHOICE = "labels.safetensors", "selection.json"  # exist only while a round is unfinished


@dataclass(frozen=True)
class SharedByRules:
    """Data, model and settings that the rules of a run share.

    Attributes:
        config: of the run.
        pool: images of both domains.
        target: the target domain.
        classes: names, position = label.
        model: a single network, which holds the weights of the current rule.
        start: the source model's weights.
        device: to compute on.
        pl: Lightning.
        show: force progress bars on or off.
    """

    config: AdaptConfig
    pool: Pool
    target: Target
    classes: tuple[str, ...]
    model: nn.Module
    start: dict[str, Tensor]
    device: torch.device
    pl: Any
    show: bool | None

    def predicted(self, title: str) -> Outputs:
        """Run the model with its current weights over the target."""
        config = self.config
        # without gradients, larger batches fit than in training
        size = max(256, config.batch_size)
        with progress(title, total=len(self.target), show=self.show) as advance:
            return seen_by(
                self.model,
                self.pool.targets(size),
                # from a single row, a head with a scale cannot be told from other layers
                sample=next(self.pool.targets(2)),
                device=self.device,
                precision=chosen_precision(config.precision, self.device),
                head=config.head,
                num_classes=len(self.classes),
                id_of=self.target.source.id_of,
                advance=advance,
            )


@dataclass(frozen=True)
class RuleRun:
    """The result of a rule.

    Attributes:
        rule: its name.
        folder: holds a folder per round, and the last model, which can be scored.
        rounds: a record per round, the first of the source model.
        stopped: why it ended early; ``None`` if it did not.
        state: the last model's weights.
    """

    rule: str
    folder: Path
    rounds: list[dict[str, Any]]
    stopped: str | None
    state: dict[str, Tensor]


def rule_notes(run: RuleRun) -> list[str]:
    """Caveats about the result of a rule."""
    notes = []
    for record in run.rounds[1:]:
        for key, said in (
            ("never_predicted", "never predicted"),
            ("too_rarely_predicted", "predicted too rarely for the portion"),
        ):
            names = record[key]
            if names:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                notes.append(
                    f"round {record['round']}: {said}, so given to no example: "
                    f"{', '.join(names[:5])}{more}"
                )
    return [*notes, *([run.stopped] if run.stopped else [])]


def run_rule(shared: SharedByRules, rule: str, folder: Path, seen: Outputs) -> RuleRun:
    """Run all rounds of a rule, starting from the source model; complete ones are not repeated.

    Args:
        shared: data, model and settings.
        rule: a rule or a baseline.
        folder: of the rule.
        seen: outputs of the source model for the target.
    """
    # the baseline is the source model itself: it has an evaluation, and no rounds
    last = 0 if rule == SOURCE_ONLY else shared.config.rounds
    now: Outputs | None = seen
    records: list[dict[str, Any]] = [
        {"round": 0, "evaluation": accuracy_of(seen, shared.target.labels)}
    ]
    shared.model.load_state_dict(shared.start)
    stopped = None
    for number in range(1, last + 1):
        round_ = Round(shared, rule, number, folder)
        if round_.is_complete:
            records.append(round_.read())
            now = None  # predict again only if a later round needs it
            continue
        choice, labels = round_.choice(now)
        if not len(labels.rows):
            stopped = _said_why(number, choice, shared.config)
            round_.discard()
            break
        round_.retrain(labels)
        now = shared.predicted(f"{rule}, round {number} of {last}: predicting")
        records.append(round_.completed(choice, now))
    # copies: the next rule trains the same module
    state = {
        name: value.detach().cpu().clone() for name, value in shared.model.state_dict().items()
    }
    return RuleRun(rule, folder, records, stopped, state)


def _said_why(number: int, choice: dict[str, Any], config: AdaptConfig) -> str:
    if choice["portion"] is None:
        passed, advice = f"the threshold {config.threshold:g}", "Lower the threshold"
    else:
        passed = f"the thresholds at portion {choice['portion']:g}"
        advice = "Raise the portion, or use empty = 'one'"
    return (
        f"stopped in round {number}: no target example passed {passed}; the model of round "
        f"{number - 1} is kept. {advice}"
    )


class Round:
    """A round of a rule: choose, retrain, predict again; a killed run continues after any step.

    Args:
        shared: data, model and settings.
        rule: a rule or a baseline.
        number: counted from 1.
        folder: of the rule.
    """

    def __init__(self, shared: SharedByRules, rule: str, number: int, folder: Path) -> None:
        self._shared, self._rule, self._number = shared, rule, number
        self._place = folder / f"round-{number:02d}"
        self._part = self._place.with_suffix(".part")
        self._started = time.perf_counter()

    @property
    def is_complete(self) -> bool:
        """Whether an earlier run has done this round."""
        return (self._place / ROUND).exists()

    def read(self) -> dict[str, Any]:
        """Read the record of a complete round, and load its weights into the model."""
        weights = self._place / MODEL
        if weights.exists():  # removed if a later round is complete, which has weights of its own
            self._shared.model.load_state_dict(load_file(weights))
        self._tidy()
        record: dict[str, Any] = json.loads((self._place / ROUND).read_text(encoding="utf-8"))
        return record

    def choice(self, seen: Outputs | None) -> tuple[dict[str, Any], RoundLabels]:
        """Choose what to train on; returns the record of the choice and the labels.

        A choice that was made before an interruption is read from the folder.

        Args:
            seen: outputs of the current model for the target; predicted again if ``None``.
        """
        part, rule = self._part, self._rule
        if not (part / _CHOICE).exists():
            if seen is None:
                seen = self._shared.predicted(f"{rule}, round {self._number}: predicting")
            self._choose(seen)
        choice = json.loads((part / _CHOICE).read_text(encoding="utf-8"))
        tensors = load_file(part / _LABELS)
        return choice, RoundLabels(tensors["labels"], tensors.get("soft"), rule in UNSELECTIVE)

    def _choose(self, seen: Outputs) -> None:
        shared, rule = self._shared, self._rule
        portion = shared.config.portion_of(self._number)
        selection = selected_by(rule, seen, portion=portion, config=shared.config)
        choice: dict[str, Any] = {
            "round": self._number,
            "rule": rule,
            "portion": portion if rule in RULES else None,
            "thresholds": selection.thresholds.tolist(),
            "label_thresholds": selection.label_thresholds.tolist(),
            "ranks": selection.ranks.tolist(),
            "quality": quality_of(selection, seen, shared.target.labels),
            **starved(selection, shared.classes),
        }
        tensors = {"labels": selection.labels}
        soft = soft_labels(selection, seen, shared.config)
        if soft is not None:
            tensors["soft"] = soft
        with writing(self._part, step=AGAIN):
            self._part.mkdir(parents=True, exist_ok=True)
            _write_rows(self._part / PSEUDO_LABELS, self._rows(selection, seen))
            if rule not in UNSELECTIVE:
                other = selected_by(
                    shared.config.compared_with(rule), seen, portion=portion, config=shared.config
                )
                choice["compared"], pictures = compared(
                    selection, other, seen, shared.target, most=shared.config.examples
                )
                _write_rows(self._part / EXAMPLES, pictures)
            with replacing(self._part / _LABELS) as partial:
                save_file(tensors, partial)
            write_json(self._part / _CHOICE, choice)  # last: it marks the choice as complete

    def _rows(self, selection: Selection, seen: Outputs) -> pa.Table:
        """One row per target example."""
        target = self._shared.target
        columns = {
            "index": target.source.numbered(range(len(target))),
            "id": [target.source.id_of(index) for index in range(len(target))],
            "label": selection.labels.numpy(),
            "prediction": seen.probs.argmax(dim=1).numpy(),
            "probability": seen.probs.amax(dim=1).numpy(),
            "confidence": selection.confidence.numpy(),
        }
        if target.labels is not None:
            columns["true_label"] = target.labels.numpy()
        about = {"rule": self._rule, "round": self._number, "classes": list(self._shared.classes)}
        return with_metadata(pa.table(columns), about)

    def retrain(self, labels: RoundLabels) -> None:
        """Train the current model on source and chosen target examples."""
        from hardsight.run.adapt._module import AdaptModule

        shared, rule, config = self._shared, self._rule, self._shared.config
        recipe = config.recipe(
            config.retrain,
            out=str(self._part),
            epochs=config.retrain.epochs or 1,
            select="last",
            seed=seed_of(config.seed, "round", self._number) % 2**31,
        )
        loss = TotalLoss(recipe.loss)
        batches = AdaptBatches(shared.pool, labels, seed=recipe.seed)
        with quiet(shared.pl), random_states_kept(shared.device):
            module = AdaptModule(
                shared.model.train(), recipe, loss, head=None, batches=batches,
                mrkld_weight=config.mrkld_weight if rule in MRKLD_RULES else 0.0,
                entropy_weight=config.entropy_weight if rule == ENTROPY else 0.0,
            )  # fmt: skip
            trainer = trainer_of(shared.pl, recipe, shared.device, loss)
            title = f"{rule}, round {self._number} of {config.rounds}"
            fit(
                trainer, module, batches, None, config=recipe, start=start_of(recipe),
                show=shared.show, title=title,
            )  # fmt: skip

    def completed(self, choice: dict[str, Any], seen: Outputs) -> dict[str, Any]:
        """Write the model and the record, and rename the folder into place."""
        from hardsight.run.train.engine import plain_state

        record = {
            **choice,
            "evaluation": accuracy_of(seen, self._shared.target.labels),
            "seconds": round(time.perf_counter() - self._started, 3),
        }
        with writing(self._place, step=AGAIN):
            with replacing(self._part / MODEL) as partial:
                save_file(plain_state(self._shared.model.state_dict()), partial)
            write_json(self._part / ROUND, record)
            put_in_place(self._part, self._place)
        self._tidy()
        return record

    def discard(self) -> None:
        """Remove the folder of a round that selected no examples."""
        shutil.rmtree(self._part, ignore_errors=True)

    def _tidy(self) -> None:
        """Remove files that only an unfinished round needs."""
        shutil.rmtree(self._place / "checkpoints", ignore_errors=True)
        for name in (_LABELS, _CHOICE):
            (self._place / name).unlink(missing_ok=True)
        if not self._shared.config.keep_models:
            before = self._place.with_name(f"round-{self._number - 1:02d}")
            (before / MODEL).unlink(missing_ok=True)


def _write_rows(file: Path, rows: pa.Table) -> None:
    write_parquet(file, [rows], rows.schema, compression="snappy")
