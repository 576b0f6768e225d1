"""Run all models over all data, and put the parts of a card together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight.data import ExampleSource
from hardsight.errors import DataError, NonFiniteError, OptionError, ShapeError
from hardsight.run.evaluate._attacks import AttackRun, Masks, attack_part, masking_part
from hardsight.run.evaluate._compare import (
    Indicators,
    compared_indicators,
    compared_masks,
    compared_outputs,
)
from hardsight.run.evaluate._maps import explanation_part
from hardsight.run.evaluate._numbers import (
    accuracy_part,
    calibration_part,
    calibration_rows,
    distribution_part,
    groups_part,
    indicators_of,
    ood_part,
    refusal_part,
    representation_part,
)
from hardsight.run.evaluate._pass import collected, spread_positions
from hardsight.run.evaluate._subjects import Subject
from hardsight.run.loop import (
    Outputs,
    batches_at_once,
    length_of,
    loader_processes,
    memory_errors,
    progress,
)


class Study:
    """Runs all models over all data.

    Args:
        subjects: the models.
        source: the data to evaluate on.
        foreign: foreign data, which the models should tell from their own.
        training: the training data, if it is known.
        folder: an empty folder for outputs.
        batch_size: examples at once.
        workers: loader processes.
        seed: seed of everything that is drawn at random.
        show: force progress bars on or off.
    """

    def __init__(
        self,
        subjects: list[Subject],
        source: ExampleSource,
        foreign: list[ExampleSource],
        training: ExampleSource | None,
        *,
        folder: Path,
        batch_size: int,
        workers: int | None,
        seed: int,
        show: bool | None,
    ) -> None:
        self.subjects, self.source, self.foreign, self.training = (
            subjects, source, foreign, training,
        )  # fmt: skip
        self.folder, self.batch_size, self.workers = folder, batch_size, workers
        self.seed, self.show = seed, show
        self._read: dict[int, NDArray[np.int64]] = {}  # positions of each dataset

    def parts(self, num_classes: int, **options: Any) -> dict[str, Any]:
        """Cards of the models, their comparison, and pictures side by side."""
        # the model runs over each dataset once; all numbers below come from these outputs
        outputs = [self._pass(subject, self.source) for subject in self.subjects]
        counts = self._training_counts(num_classes)
        cards = []
        indicators: list[list[Indicators]] = []
        share = options["validation_share"]
        rows = [
            calibration_rows(output, validation_share=share, seed=self.seed) for output in outputs
        ]
        for subject, output, (fitting, judged) in zip(self.subjects, outputs, rows, strict=True):
            train = None if self.training is None else self._pass(subject, self.training)
            others = [self._pass(subject, data, own=False) for data in self.foreign]
            sets = [indicators_of(each, subject.head) for each in (output, *others)]
            indicators.append(sets)
            cards.append({
                "name": subject.name,
                **subject.facts,
                "counts": {"rows": len(output), "unreadable": output.errors,
                           "non_finite": int((~output.usable).sum())},
                "accuracy": accuracy_part(output, num_classes, counts),
                **distribution_part(output, subject.head),
                "ood": [ood_part(sets[0], each) for each in sets[1:]],
                "calibration": calibration_part(output, fitting, judged),
                "refusal": refusal_part(
                    output, sets, fitting, judged, wanted=options["wanted_error"]),
                "groups": groups_part(output, subject.head, options["groups"], options["classes"]),
                "representation": representation_part(
                    output, train, most_examples=options["feature_examples"],
                    most_points=options["map_examples"], seed=self.seed),
            })  # fmt: skip
        with memory_errors("attacks and explanations ran out of memory"):
            masks = self._attack(cards, outputs, **options)
            explanations = self._explain(cards, **options)
        return {
            "models": cards,
            "comparisons": self._comparisons(
                outputs, [judged for _, judged in rows], indicators, masks
            ),
            "explanations": explanations,
        }

    def _pass(self, subject: Subject, source: ExampleSource, *, own: bool = True) -> Outputs:
        # the same model may be run over several datasets: a folder for each pass
        number = len(list(self.folder.iterdir()))
        read = subject.reading(source)
        length = length_of(source)
        with progress(f"{subject.name}: {source.spec}", total=length, show=self.show) as advance:
            outputs = collected(
                subject,
                read,
                self.folder / str(number),
                batch_size=self.batch_size * batches_at_once(read),
                workers=loader_processes(self.workers, read),
                advance=advance,
                has_own_labels=own,
            )
        self._check(outputs, subject, source, own)
        return outputs

    def _check(self, outputs: Outputs, subject: Subject, source: ExampleSource, own: bool) -> None:
        """Raise if a model has no usable output, or could read other examples than another model.

        Raises:
            NonFiniteError: a model has no finite output on its own kind of data.
            DataError: an example could be read for one model and not for another.
        """
        if own and not outputs.usable.any():
            raise NonFiniteError(
                f"{subject.name} has no finite output for any of the {len(outputs):,} "
                f"examples of {source.spec}; check its weights, and mean and std of its inputs"
            )
        # comparisons are paired by example, so all models must have read the same examples
        before = self._read.setdefault(id(source), outputs.positions)
        if not np.array_equal(before, outputs.positions):
            raise DataError(
                f"{subject.name} could read {len(outputs):,} of the examples of "
                f"{source.spec}, the model before it others ({len(before):,}), so they cannot be "
                "compared; evaluate again when the data can be read, or one model at a time"
            )

    def _training_counts(self, num_classes: int) -> NDArray[np.int64] | None:
        if self.training is None or length_of(self.training) is None:
            return None
        return np.bincount(self.training.labels, minlength=num_classes)

    def _attack(
        self, cards: list[dict[str, Any]], outputs: list[Outputs], **options: Any
    ) -> list[Masks]:
        """Fill in the part on attacks, and return the masks that it is computed from."""
        note = self._no_images() or ("" if options["attack_examples"] else "not asked for")
        masks = [Masks(np.empty(0, np.int64), {}) for _ in cards]
        runs: list[AttackRun | None] = []
        for card, subject, output in zip(cards, self.subjects, outputs, strict=True):
            why = note or unknown_normalisation(subject)
            card["robustness"] = {"note": why} if why else None
            # all runs before the first attack: later, each model is shown what fooled the others
            runs.append(None if why else AttackRun(
                subject, self.source, output,
                spread_positions(self.source, options["attack_examples"]),
                steps=options["attack_steps"], at_once=self.batch_size, seed=self.seed,
            ))  # fmt: skip
        for number, (card, run) in enumerate(zip(cards, runs, strict=True)):
            if run is not None:
                try:
                    with progress(f"{card['name']}: attacks", total=1, show=self.show) as advance:
                        part, masks[number] = attack_part(run, *options["epsilons"])
                        advance(1)
                    card["robustness"] = {**part, "steps": options["attack_steps"]}
                except (NonFiniteError, OptionError, ShapeError) as err:
                    if options["must_attack"]:
                        raise
                    # attacks run by default here, so the rest of the card should not fail
                    runs[number], card["robustness"] = None, {"note": str(err)}
        for run, card, mask in zip(runs, cards, masks, strict=True):
            if run is not None:
                others = [each for each in runs if each is not None and each is not run]
                title = f"{card['name']}: searches for masked gradients"
                with progress(title, total=1, show=self.show) as advance:
                    card["robustness"]["masking"] = masking_part(
                        run, others, mask, ensemble_steps=options["ensemble_steps"]
                    )
                    advance(1)
        return masks

    def _explain(self, cards: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
        """Fill in the part on explanations, with pictures of the same examples for all models."""
        note = self._no_images() or ("" if options["explain_examples"] else "not asked for")
        if note:
            for card in cards:
                card["explanation"] = {"note": note}
            return []
        positions = spread_positions(self.source, options["explain_examples"])
        # evenly spread, so that all classes of sorted data are among the few
        pictured = positions[np.linspace(0, len(positions) - 1, min(8, len(positions))).astype(int)]
        pictures = []
        for card, subject in zip(cards, self.subjects, strict=True):
            card["explanation"], shown = explanation_part(
                subject, self.source, positions, pictured,
                layer=options["cam_layer"], at_once=self.batch_size,
            )  # fmt: skip
            pictures.append(shown)
        return [
            {
                "id": self.source.id_of(position),
                "label": self.source.label_of(position),
                "models": [shown.get(position) for shown in pictures],
            }
            for position in pictured.tolist()
            if any(position in shown for shown in pictures)
        ]

    def _no_images(self) -> str:
        if self.source.kind is not None:
            return f"it is for pictures, and the data holds the kind {self.source.kind.name!r}"
        if any(subject.shape is None or len(subject.shape) != 3 for subject in self.subjects):
            return "the inputs are not images [C, H, W]"
        if length_of(self.source) is None:
            return "the data is a stream, which is read once"
        return ""

    def _comparisons(
        self,
        outputs: list[Outputs],
        judged: list[NDArray[np.int64]],
        indicators: list[list[Indicators]],
        masks: list[Masks],
    ) -> list[dict[str, Any]]:
        """Compare every other model with the first, on the same examples."""
        return [
            {
                "first": self.subjects[0].name,
                "second": self.subjects[number].name,
                "rows": [
                    *compared_outputs(outputs[0], outputs[number], (judged[0], judged[number])),
                    *compared_indicators(
                        indicators[0], indicators[number], [source.spec for source in self.foreign]
                    ),
                    *compared_masks(masks[0], masks[number]),
                ],
            }
            for number in range(1, len(outputs))
        ]


def unknown_normalisation(subject: Subject) -> str:
    """Why a model cannot be attacked; empty if it can."""
    if subject.states_normalisation:
        return ""
    return (
        f"{subject.name} does not state how its inputs are made from pixels, which attacks need; "
        "pass --mean and --std (mean=, std=), 0 and 1 for plain pixels in [0, 1]"
    )
