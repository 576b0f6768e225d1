"""Score stored embeddings out of sample: each fold with a head fitted to the other folds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hardsight.data import EmbeddingSource
from hardsight.heads import Head
from hardsight.run.loop import folds_of, progress
from hardsight.run.score._copies import warn_of_copies
from hardsight.run.score._embeddings import EmbeddingScorer
from hardsight.run.score._logistic import FITTED, PENALTIES, Fitted, HeadFitter
from hardsight.run.score._rows import ScorePlan
from hardsight.run_folder import AGAIN, HEADS, RunFolder, replacing, values_digest, writing

_VERSION = 2  # raise it with every change of the fit that gives other heads


class Refit:
    """The heads of all folds of stored embeddings.

    Args:
        source: the embeddings.
        count: of folds.
        device: to compute on.
        seed: of the folds, and of the rows that choose a penalty.
    """

    def __init__(
        self, source: EmbeddingSource, count: int, *, device: torch.device, seed: int
    ) -> None:
        self._source, self._device, self._seed = source, device, seed
        self._num_classes = len(source.classes)
        self._scorer: EmbeddingScorer | None = None
        self.folds = folds_of(
            source.labels, count, seed=seed, classes=source.classes, spec=source.spec
        )

    def scorer(self, plan: ScorePlan, *, batch_size: int | None) -> EmbeddingScorer:
        """A scorer that uses the head of each row's fold, once :meth:`fit` was called."""
        self._scorer = EmbeddingScorer(
            self._source,
            [],
            plan,
            device=self._device,
            batch_size=batch_size,
            num_classes=self._num_classes,
            folds=self.folds,
        )
        return self._scorer

    def model_facts(self) -> dict[str, Any]:
        """Facts for the metadata, with a digest of all that decides the heads but the data."""
        # the data has a fingerprint of its own
        made_of = [_VERSION, self.folds.count, self._seed, list(PENALTIES)]
        return {"spec": "linear heads fitted per fold", "digest": values_digest(made_of)}

    def fit(self, folder: RunFolder | None, *, show: bool | None) -> dict[str, Any]:
        """Fit the missing heads, give all of them to the scorer, and return facts for metadata."""
        assert self._scorer is not None
        fitter: HeadFitter | None = None
        heads, each = [], []
        title = f"fitting {self.folds.count} heads"
        with progress(title, total=self.folds.count, show=show) as advance:
            for fold in range(1, self.folds.count + 1):
                file = (
                    None if folder is None else folder.folder / HEADS / f"fold-{fold}.safetensors"
                )
                # with --overwrite, a file of the old run may still be there; do not read it
                known = None if folder is None or not folder.goes_on else _read(file)
                if known is None:
                    # made only now: a finished fit needs no embeddings in memory
                    if fitter is None:
                        warn_of_copies(self._source, self.folds)
                        fitter = HeadFitter(
                            self._source, self._num_classes, device=self._device, seed=self._seed
                        )
                    known = fitter.fitted(self.folds.number != fold)
                    _write(known, folder, file)
                heads.append(known.head)
                scored = len(self.folds.unseen(fold))
                each.append({"fold": fold, "scored": scored, **known.facts()})
                advance(1)
        self._scorer.use(heads)
        facts = {"count": self.folds.count, "seed": self._seed, "fitted": FITTED, "each": each}
        return {"folds": facts, "bias": self._scorer.bias_facts()}


def _write(fitted: Fitted, folder: RunFolder | None, file: Path | None) -> None:
    if folder is None or file is None:
        return
    folder.begin()
    facts = {
        "penalty": fitted.penalty, "losses": list(fitted.losses.items()), "steps": fitted.steps,
        "learned_from": fitted.learned_from,
    }  # fmt: skip
    assert fitted.head.bias is not None
    tensors = {
        "class_weights": fitted.head.weight.contiguous(), "bias": fitted.head.bias.contiguous()
    }  # fmt: skip
    with writing(file, step=AGAIN):
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as part:
            save_file(tensors, part, metadata={"fit": json.dumps(facts)})


def _read(file: Path | None) -> Fitted | None:
    """A head that was fitted before the run was interrupted."""
    if file is None or not file.exists():
        return None
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        facts = json.loads(opened.metadata()["fit"])
    head = Head(name="fitted", weight=tensors["class_weights"], bias=tensors["bias"])
    losses = {float(key): float(value) for key, value in facts.pop("losses")}
    return Fitted(head, facts["penalty"], losses, facts["steps"], facts["learned_from"])
