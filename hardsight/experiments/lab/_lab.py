"""What an experiment works with: data, trained models, their outputs, figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hardsight import __version__
from hardsight._checks import bars_wanted
from hardsight.data import EmbeddingSource, MemorySource, decoded, open_source
from hardsight.errors import DataError, NonFiniteError
from hardsight.experiments.lab._result import Figure
from hardsight.heads import find_head
from hardsight.report.figures import legend as name_lines
from hardsight.report.figures import save
from hardsight.run.loop import (
    Advance,
    ModelPass,
    Outputs,
    borrowed,
    chosen_device,
    gathered,
    progress,
)
from hardsight.run.train import Pixels, TrainResult, train
from hardsight.run_folder import held, replacing, write_text

_BATCH = 1024
_KEPT = ("embeddings", "logits", "labels", "class_weights", "bias")  # of outputs, beside the model
# decoded data by name, split and root
Sources = dict[tuple[str, str | None, str | None], MemorySource]


class NotTrained(NonFiniteError):
    """A model that was asked for while an experiment is only planned; it counts as a lost run."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A call of :meth:`Lab.train` that was not carried out, with all that it was given."""

    model: str | nn.Module | Mapping[str, Any]
    source: MemorySource
    seed: int
    settings: Mapping[str, Any]

    def train(self, lab: Lab) -> TrainResult:
        """Carry it out."""
        return lab.train(self.model, self.source, seed=self.seed, **self.settings)

    @property
    def title(self) -> str:
        """For people."""
        loss = loss_in_words(self.settings.get("loss", "cross_entropy"))
        model = self.model if isinstance(self.model, str) else type(self.model).__name__
        return f"{self.source.spec}, {model}, seed {self.seed}: {loss}"


def loss_in_words(loss: Any) -> str:
    """The loss of a recipe as a person reads it while it is trained.

    Example:
        >>> loss_in_words({"name": "encouraging", "options": {"log_end": 0.75}})
        'encouraging (log_end 0.75)'
        >>> loss_in_words([{"name": "focal", "options": {}}, "cross_entropy"])
        'focal + cross_entropy'
    """
    terms = []
    for term in loss if isinstance(loss, list) else [loss]:
        known = term if isinstance(term, Mapping) else {"name": term}
        options = ", ".join(f"{key} {value}" for key, value in known.get("options", {}).items())
        terms.append(f"{known['name']} ({options})" if options else known["name"])
    return " + ".join(terms)


class Lab:
    """Data, models and figures of one experiment.

    Args:
        scale: ``smoke``, ``short`` or ``paper``.
        out: folder of the results.
        runs: folder of trained models; a recipe that is found there is not trained again.
        data_root: folder above those of named datasets.
        device: ``auto``, ``cpu``, ``cuda``, ``mps``.
        show_progress: force progress on or off; by default it is shown on a terminal.
        keep_outputs: write what models say of data beside them, so that it is there next time.
        how: settings of :func:`hardsight.train` that change how a model is trained and not what it
            is trained to be, such as ``{"capture": True}``; the same model is found with others.
        plan: nothing is trained; what would be is put here, by its digest.
        sources: data that was decoded before; what is read is put here, so labs can share it.
    """

    def __init__(
        self,
        *,
        scale: str,
        out: Path,
        runs: Path,
        data_root: str | None = None,
        device: str = "auto",
        show_progress: bool | None = None,
        keep_outputs: bool = False,
        how: Mapping[str, Any] | None = None,
        plan: dict[str, Planned] | None = None,
        sources: Sources | None = None,
    ) -> None:
        self._how, self._plan = how or {}, plan
        self._sources: Sources = {} if sources is None else sources
        self.scale, self.out, self.runs, self.data_root = scale, out, runs, data_root
        self.device = chosen_device(device)
        self.show, self.keeps_outputs = show_progress, keep_outputs
        self._console = Console(stderr=True, highlight=False)
        self._seconds: dict[Path, float] = {}

    def source(self, name: str, split: str | None, *, limit: int | None = None) -> MemorySource:
        """A split of a dataset, decoded once.

        Args:
            name: as :func:`hardsight.data.open_source` takes it.
            split: of the data.
            limit: take so many examples, the same share of every class, always the same ones.

        Raises:
            MissingDataError: it is not there; the message says where to put it.
        """
        root = None if ":" in name or "/" in name else self.data_root
        if (name, split, root) not in self._sources:
            opened = open_source(name, split=split, data_root=root)
            if isinstance(opened, EmbeddingSource):
                raise DataError(f"{name} holds embeddings; an experiment needs images")
            self.step(f"reading {name}" + (f" ({split})" if split else ""))
            self._sources[name, split, root] = decoded(opened)
        whole = self._sources[name, split, root]
        return whole if limit is None or limit >= len(whole) else whole.subset(_even(whole, limit))

    def train(
        self,
        model: str | nn.Module | Mapping[str, Any],
        source: MemorySource,
        *,
        seed: int,
        **settings: Any,
    ) -> TrainResult:
        """Train by :func:`hardsight.train`, or find the finished run of the same recipe.

        Args:
            model: a name, or a table ``{"name": ..., "options": {...}}`` as in a recipe.
            source: to train on; the validation share is taken from it.
            seed: of the run.
            settings: other keys of :class:`hardsight.run.train.TrainConfig`, and ``track_on``.
        """
        key = {
            "model": model if isinstance(model, str | dict) else repr(model),
            "data": source.fingerprint(),
            "seed": seed,
            **settings,
        }
        digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=_identity).encode())
        folder = self.runs / digest.hexdigest()[:16]
        if self._plan is not None:
            self._plan[folder.name] = Planned(model, source, seed, settings)
            raise NotTrained(f"{folder.name} is only planned")
        self.runs.mkdir(parents=True, exist_ok=True)
        # experiments side by side share their models: one trains, the others wait and find it
        with held(folder.with_name(f"{folder.name}.lock"), wait=True):
            result: TrainResult = train(
                model, source, out=folder, seed=seed, device=str(self.device), resume=True,
                show_progress=self.show, **settings, **self._how,
            )  # fmt: skip
        self._seconds[folder] = sum(row.get("seconds", 0.0) for row in result.history)
        return result

    @property
    def training_seconds(self) -> float:
        """How long the models took that were asked for, also those that were found."""
        return sum(self._seconds.values())

    def outputs(self, run: TrainResult, source: MemorySource) -> Outputs:
        """Embeddings and logits of a trained model in eval mode, in float32."""
        if not self.keeps_outputs:
            return self._outputs(run, source)
        file = run.folder / "outputs" / f"{source.fingerprint()[:16]}.safetensors"
        with held(run.folder.with_name(f"{run.folder.name}.outputs.lock"), wait=True):
            if file.exists():
                known = load_file(file)
                return Outputs(
                    known["embeddings"], known["logits"], known["labels"], known["class_weights"],
                    known.get("bias"),
                )  # fmt: skip
            outputs = self._outputs(run, source)
            file.parent.mkdir(exist_ok=True)
            kept = {name: getattr(outputs, name) for name in _KEPT}
            tensors = {name: value for name, value in kept.items() if value is not None}
            with replacing(file) as partial:
                save_file(tensors, partial)
        return outputs

    def measured(self, run: TrainResult, key: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
        """Numbers of a trained model, kept beside it so that they are measured once.

        Args:
            run: of :meth:`train`.
            key: what decides the numbers beside the model; data counts by its fingerprint.
            measure: makes them, ready for JSON.
        """
        text = json.dumps({**key, "hardsight": __version__}, sort_keys=True, default=_identity)
        file = run.folder / "measured" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        if not file.exists():
            content = json.dumps({"key": json.loads(text), "found": measure()}, indent=1)
            file.parent.mkdir(exist_ok=True)
            write_text(file, content)
        return json.loads(file.read_text(encoding="utf-8"))["found"]

    def inputs(self, run: TrainResult, source: MemorySource) -> Tensor:
        """Images on the device, ``[N, C, H, W]``, normalised as the model of a run takes them."""
        pixels = Pixels(run.preprocessing, channels_last=False, device=self.device)
        return pixels.normalised(channels_first(source))

    def _outputs(self, run: TrainResult, source: MemorySource) -> Outputs:
        pixels = Pixels(run.preprocessing, channels_last=False, device=self.device)
        images = channels_first(source)
        labels = torch.from_numpy(source.labels.copy())
        with borrowed(run.model, self.device):
            head = find_head(run.model, pixels.normalised(images[:2]))
            with ModelPass(run.model, head, device=self.device) as running:
                batches = (pixels.normalised(some) for some in images.split(_BATCH))
                return gathered(running, head, batches, labels)

    def step(self, text: str) -> None:
        """Tell a person what is being done."""
        if bars_wanted(self.show, is_terminal=self._console.is_terminal):
            self._console.print(text, style="dim", markup=False)

    def progress(self, what: str, total: int) -> AbstractContextManager[Advance]:
        """A progress bar over ``total`` units, on a terminal."""
        return progress(what, total=total, show=self.show)

    def trials(
        self,
        what: str,
        cases: Iterable[tuple[Any, ...]],
        trial: Callable[..., list[dict[str, Any]]],
        *,
        told: Callable[..., str],
    ) -> list[dict[str, Any]]:
        """The rows of one trial after another, below a progress bar.

        Args:
            what: the cases are, in the plural.
            cases: to try, in this order.
            trial: from the parts of a case to its rows.
            told: from the parts of a case to what a person is told when it begins.
        """
        waiting, rows = list(cases), []
        with self.progress(what, len(waiting)) as advance:
            for case in waiting:
                self.step(told(*case))
                rows += trial(*case)
                advance(1)
        return rows

    def figure(
        self,
        figure: Any,
        name: str,
        *,
        caption: str,
        alt: str,
        legend: Mapping[str, Any] | None = None,
    ) -> Figure:
        """Name the lines of a matplotlib figure and keep it as ``NAME.svg`` beside the result.

        Args:
            figure: with its panels drawn.
            name: of the file, without its ending.
            caption: below the figure.
            alt: what it shows, for those who cannot see it.
            legend: how its lines are named, if not all of them in the usual way: keywords of
                :func:`hardsight.report.figures.legend`.
        """
        name_lines(figure, **(legend or {}))
        save(figure, self.out / f"{name}.svg")
        return Figure(f"{name}.svg", caption, alt)


def channels_first(source: MemorySource) -> Tensor:
    """Images of a source as bytes, ``[N, C, H, W]``, on the CPU."""
    images = torch.from_numpy(source.images)
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)


def _identity(value: Any) -> str:
    """What identifies a setting that is not a plain value: for data, its fingerprint."""
    return value.fingerprint() if isinstance(value, MemorySource) else str(value)


def _even(source: MemorySource, limit: int) -> np.ndarray[Any, Any]:
    """``limit`` positions with the class shares of the source, in its order."""
    order = np.random.default_rng(0).permutation(len(source))
    by_class = order[np.argsort(source.labels[order], kind="stable")]
    return np.sort(by_class[np.linspace(0, len(source) - 1, limit).round().astype(int)])
