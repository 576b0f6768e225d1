"""The tracker: records every example in every epoch, from training's own forward pass."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from hardsight._checks import check_matrix, check_rows, check_width, checked_options, require
from hardsight.errors import (
    DataError,
    HardsightError,
    OptionError,
    OutputError,
    RunExistsError,
    RunMismatchError,
    ShapeError,
)
from hardsight.heads import Head, head_layer, live_weight
from hardsight.registry import unknown_name
from hardsight.tracking._epochs import (
    REPEATS_MEANT,
    EpochRules,
    EpochStore,
    check_index,
    check_label_range,
    epoch_columns,
    gathered,
    of_all,
    on_every_rank,
    on_first_rank,
    rank,
    summary_table,
    world_size,
)
from hardsight.tracking._steps import (
    MEASURES,
    HeadFit,
    Rows,
    Stash,
    Step,
    as_index,
    joined,
    no_rows,
)
from hardsight.tracking._table import joined_table

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback

    from hardsight.table import ScoreTable

STAGES = ("train", "evaluation")
HISTORIES = (*MEASURES, "correct", "prediction", "label")


class HardnessTracker:
    """Records how hard every example is for the model, epoch by epoch.

    These measures are recorded by stable index: the angle to the labelled class's weight, AVH, AVC
    of that class, confidence, norm, logit margin, cross-entropy loss, EL2N and whether the
    prediction was right. They come from tensors the training step has anyway; nothing is run again.
    On a GPU no step waits: rows stay on the device until :meth:`end_epoch`, which writes them to
    disk, so memory does not grow with epochs.

    In distributed training every rank has a tracker and calls the same methods; rank 0 writes.

    Examples that are held out have no training step. A second tracker with ``stage="evaluation"``
    records them from the validation pass, and ``summaries(held_out=...)`` gives them rows of their
    own in the same table.

    Args:
        num_examples: how many examples the index numbers, from 0.
        head: the classifier layer (``model.fc``), or a model in which it can be found, whose
            weights are read at every step. A :class:`~hardsight.heads.Head` or a tensor ``[C, D]``
            works if it shares the memory that training updates. Every step is checked against
            these weights: embeddings times weights, plus a bias, must be the logits. Callbacks
            find the head themselves if the model has only one candidate.
        folder: where epochs are written; ``None`` for a temporary folder, whose content is then
            part of :meth:`state_dict`.
        resume: continue after the last epoch in ``folder`` (of rank 0 in distributed training).
        stage: which pass is recorded, ``"train"`` or ``"evaluation"``; the callbacks follow it.
        repeats: what to do if an example comes twice in an epoch: raise an ``"error"``, or keep
            only the ``"first"`` time.

    Raises:
        OptionError: an option has a value outside its range.

    Example:
        >>> from torch.nn.functional import cross_entropy
        >>> body, head = nn.Linear(4, 8), nn.Linear(8, 3)
        >>> inputs, labels = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> tracker = HardnessTracker(num_examples=6, head=head)
        >>> for epoch in range(3):
        ...     for index in torch.arange(6).split(2):
        ...         embeddings = body(inputs[index])
        ...         logits = head(embeddings)
        ...         tracker.update(index, embeddings, logits, labels[index])
        ...         cross_entropy(logits, labels[index]).backward()
        ...     tracker.end_epoch()
        >>> table = tracker.summaries()
        >>> len(table), "aum" in table.scores
        (6, True)
    """

    @checked_options
    def __init__(
        self,
        num_examples: int,
        *,
        head: nn.Module | Head | Tensor | None = None,
        folder: str | os.PathLike[str] | None = None,
        resume: bool = False,
        stage: str = "train",
        repeats: str = "error",
    ) -> None:
        if num_examples < 1:
            raise OptionError(f"expected num_examples to be at least 1, got {num_examples}")
        if stage not in STAGES:
            raise OptionError(f"expected stage to be one of {', '.join(STAGES)}, got {stage!r}")
        if resume and folder is None:
            raise OptionError("resume=True needs the folder of the run to continue")
        EpochRules(num_examples, 1, repeats)  # only to check the options
        self.num_examples, self.stage, self.repeats = num_examples, stage, repeats
        self.num_classes: int | None = None
        self._head = head_layer(head) if isinstance(head, nn.Module) else head
        self._store = EpochStore(folder, {"num_examples": num_examples, "stage": stage})
        self._goes_on = resume
        self._is_agreed = False  # whether all ranks continue from the same epoch
        self._epochs = self._store.count() if resume else 0
        self._fit = HeadFit()
        self._stash = Stash(self._fit.differing)
        self._pending = no_rows()  # of the unfinished epoch, on the CPU already
        self._rows = self._first_turn = 0
        self._largest_batch = 0
        self._labels: NDArray[np.int32] | None = None  # of earlier epochs, once they are needed

    @property
    def epochs(self) -> int:
        """Number of finished epochs."""
        return self._epochs

    @property
    def rows_this_epoch(self) -> int:
        """Number of rows this rank has recorded since the last epoch ended."""
        return self._rows

    @property
    def goes_on(self) -> bool:
        """Whether this tracker continues a run, or has recorded something itself."""
        return self._goes_on

    @torch.no_grad()
    def update(
        self,
        index: ArrayLike | Tensor,
        embeddings: Tensor,
        logits: Tensor,
        labels: Tensor,
        *,
        class_weights: Tensor | None = None,
    ) -> None:
        """Record one step; call it between the forward pass and the optimizer's step.

        Args:
            index: positions of the examples in the dataset, ``[B]``.
            embeddings: what enters the head, ``[B, D]``.
            logits: what leaves it, ``[B, C]``.
            labels: class indices in ``[0, C)``, ``[B]``.
            class_weights: ``[C, D]``, instead of those of the tracker's head.

        Raises:
            ShapeError: the tensors do not fit each other.
            HeadMismatchError: embeddings times class weights, plus a bias, are not the logits.
                The first step is checked at once, later ones when the epoch ends. A step of a
                single row cannot be checked if the tracker does not know the bias.
            DataError: an index is out of range, or there are more rows than examples. On a GPU
                values are checked when the epoch ends.
            LabelError: a label is out of range.
            OptionError: the tracker has no head.
            RunExistsError: the folder holds epochs of another run. At the first step the ranks
                wait for each other, so that all of them raise it.
        """
        # at the first rows only: the check makes the ranks communicate
        if self._rows == 0:
            self._check_folder()
        # weights passed by the user come without a bias to check
        weights, bias = self._weights() if class_weights is None else (class_weights.detach(), None)
        step = Step(
            index=as_index(index, "index"),
            embeddings=embeddings.detach(),
            logits=logits.detach(),
            # non-blocking is safe: the measures are queued behind the copy
            labels=as_index(labels, "labels").to(logits.device, non_blocking=True),
            class_weights=weights,
        )
        # shapes and dtypes are checked once per kind of step, not in every step
        if not self._stash.fits(step):
            self._check_kind(step)
            self._stash.make_room(step)
        self._check_values(step)
        self._fit.begin(step, bias)
        self._stash.add(step)
        size = step.labels.shape[0]
        # a single row fits any bias, so it is checked here, with the known bias
        if size == 1 and bias is not None:
            differs = self._fit.differs_alone(step, bias)
            self._stash.differing.append((step.index.clone(), differs))
        self._rows += size
        self._largest_batch = max(self._largest_batch, size)
        # raise at the first row too many instead of at the end of the epoch
        if self._rows > self.num_examples and self.repeats == "error":
            self.discard_epoch()
            raise DataError(
                f"more rows in epoch {self._epochs + 1} than the {self.num_examples} examples "
                f"there are; call end_epoch() after every epoch, and update() once per step. "
                f"{REPEATS_MEANT}"
            )

    def end_epoch(self) -> None:
        """Write what was recorded since the last call as one epoch; every rank must call it.

        After an error in the data the rows of the epoch are dropped. After a failed write they are
        kept, so that the call can be repeated.

        Raises:
            DataError: an index is out of range or repeats, or nothing was recorded.
            HeadMismatchError: embeddings times class weights, plus a bias, are not the logits.
            LabelError: a label is out of range, or changed since an earlier epoch.
            NonFiniteError: a recorded value is NaN or infinite.
            OutputError: the epoch could not be written, for example because the disk is full.
            RunExistsError: the folder holds epochs of another run.
        """
        self._check_folder()
        try:
            on_every_rank(self._check_fit)
            rows = gathered(self._recorded())
            on_first_rank(lambda: self._write(rows))
        # keep the rows: once the disk has room, end_epoch() can be called again
        except OutputError:
            raise
        # drop the rows: they would break the same rule again
        except HardsightError:
            self.discard_epoch()
            raise
        self.discard_epoch()
        self._epochs += 1

    def discard_epoch(self) -> None:
        """Drop what was recorded since the last epoch ended."""
        self._stash, self._pending = Stash(self._fit.differing), no_rows()
        self._rows = self._first_turn = 0

    def history(self, measure: str) -> NDArray[Any]:
        """One measure of every example in every epoch.

        Args:
            measure: ``target_angle``, ``avh``, ``avc``, ``confidence``, ``norm``,
                ``logit_margin``, ``loss``, ``el2n`` or ``correct``; also ``prediction`` and
                ``label``.

        Returns:
            ``[E, N]``; NaN (-1 for a class) where an example was not seen in that epoch.

        Raises:
            OptionError: there is no such measure.
            DataError: no epoch has ended yet.
        """
        if measure not in HISTORIES:
            raise OptionError(unknown_name("measure", measure, list(HISTORIES)))
        self._check_finished()
        if measure == "correct":
            label, prediction = self.history("label"), self.history("prediction")
            return np.where(label < 0, np.float32("nan"), (label == prediction).astype(np.float32))
        return np.stack([self._store.column(epoch + 1, measure) for epoch in range(self._epochs)])

    def latest(self, measure: str) -> NDArray[Any]:
        """One measure of every example, from the last epoch it was seen in.

        Args:
            measure: as in :meth:`history`, except ``correct``.

        Returns:
            ``[N]``; NaN for an example that was never seen.
        """
        if measure not in HISTORIES or measure == "correct":
            raise OptionError(unknown_name("measure", measure, list(HISTORIES)))
        self._check_finished()
        values = np.full(self.num_examples, np.nan)
        for epoch in range(self._epochs, 0, -1):
            missing = np.isnan(values)
            if not missing.any():
                break
            values[missing] = self._store.column(epoch, measure)[missing]
        return values

    def summaries(
        self, *, el2n_epochs: int = 10, held_out: HardnessTracker | None = None
    ) -> ScoreTable:
        """One row per example, one column per summary of its training dynamics.

        Args:
            el2n_epochs: how many epochs count as early for ``early_el2n``.
            held_out: a tracker of evaluation passes, one after each epoch, over the examples of
                the same dataset that are never trained on. Their rows come from its records
                alone and are marked in the column ``held_out``; the metadata then calls the
                table's ``sample`` ``mixed``.

        Returns:
            a table in memory; ``table.hardest(10, by="aum")`` is a good start. An example that was
            never seen has 0 in ``epochs_seen`` and NaN in every summary.

        Raises:
            DataError: no epoch has ended yet, or an example is both trained on and held out.
            OptionError: ``held_out`` is not of evaluation passes.
            RunMismatchError: ``held_out`` has another dataset, or another number of epochs.
        """
        self._check_finished()
        if held_out is not None:
            self._check_held_out(held_out)
        about = {"num_examples": self.num_examples, "stage": self.stage, "epochs": self._epochs}
        return summary_table(
            self._store,
            about,
            el2n_epochs=el2n_epochs,
            held_out=None if held_out is None else held_out._store,
        )

    def table(
        self,
        scores: ScoreTable,
        *,
        el2n_epochs: int = 10,
        held_out: HardnessTracker | None = None,
    ) -> ScoreTable:
        """The rows of a score table, with the summaries as further columns, joined by index.

        Args:
            scores: a table over the same dataset, such as :func:`hardsight.score` returns.
            el2n_epochs: how many epochs count as early for ``early_el2n``.
            held_out: as in :meth:`summaries`.

        Returns:
            a table in memory, with as many rows as ``scores``.

        Raises:
            RunMismatchError: indices or labels are not those of the tracked dataset.
            DataError: no epoch has ended yet.
        """
        dynamics = self.summaries(el2n_epochs=el2n_epochs, held_out=held_out)
        return joined_table(scores, dynamics)

    def state_dict(self, *, gather: bool = False) -> dict[str, Any]:
        """State from which :meth:`load_state_dict` continues, with this and all earlier epochs.

        With a folder, the state is small and is only good together with the folder. Without one,
        it contains the epochs.

        Args:
            gather: include the unfinished epoch of all ranks, not only of this one; every rank
                must then call it. Without it, save between epochs, or save a state per rank.

        Raises:
            RunExistsError: with ``gather``, the folder holds epochs of another run.
        """
        if gather:
            self._check_folder()
            on_every_rank(self._check_fit)
        else:
            self._check_fit()
        pending = self._recorded()
        if gather:
            pending = gathered(pending)
        # only a temporary folder has to be part of the state: the user's own will still exist
        packed = self._store.packed() if self._store.is_temporary and rank() == 0 else []
        return {
            "num_examples": self.num_examples,
            "stage": self.stage,
            "num_classes": self.num_classes,
            "epochs": self._epochs,
            "gathered": gather,
            "largest_batch": self._largest_batch,
            "next_order": 1 + int(pending.order.max()) if len(pending) else 0,
            "packed": packed,
            "pending": {name: getattr(pending, name) for name in Rows.__dataclass_fields__},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; later epochs in the folder are removed.

        Every rank must call it; if it fails on one rank, it raises on all of them.

        Raises:
            RunMismatchError: the state is of another dataset or stage, or its folder is missing.
        """
        on_every_rank(lambda: self._check_state(state))
        on_first_rank(lambda: self._load_epochs(state))
        self.discard_epoch()
        self._goes_on, self._is_agreed, self._labels = True, True, None
        self._epochs, self.num_classes = state["epochs"], state["num_classes"]
        self._largest_batch = state["largest_batch"]
        # continue numbering rows after those of the state, as if there had been no interruption
        self._first_turn = math.ceil(state["next_order"] / world_size())
        # gathered rows belong to all ranks, so only one rank may take them
        if rank() == 0 or not state["gathered"]:
            self._pending = Rows(**state["pending"])
            self._rows = len(self._pending)

    def lightning_callback(self, *, head: str | None = None) -> Callback:
        """A callback for ``lightning.pytorch.Trainer`` that records every step.

        Batches must carry the index, as those of :func:`~hardsight.tracking.with_index` do:
        ``(index, inputs, labels)`` or a mapping with ``index`` and ``labels`` (or ``label``).

        Args:
            head: name of the classifier layer, if it is not found automatically.

        Raises:
            MissingExtraError: Lightning is not installed.
        """
        require("lightning.pytorch", extra="train", feature="lightning_callback()")
        from hardsight.tracking._lightning import TrackingCallback

        return TrackingCallback(self, head=head)

    def transformers_callback(self, *, head: str | None = None) -> TrainerCallback:
        """A callback for ``transformers.Trainer`` that records every step.

        Batches must carry ``index`` and ``labels``: wrap the dataset in
        :func:`~hardsight.tracking.with_index` and set ``remove_unused_columns=False``.

        Args:
            head: name of the classifier layer, if it is not found automatically.

        Raises:
            MissingExtraError: transformers is not installed.
        """
        require("transformers", extra="models", feature="transformers_callback()")
        from hardsight.tracking._transformers import TrackingCallback

        return TrackingCallback(self, head=head)

    def layer_in(self, model: nn.Module, name: str | None = None) -> nn.Module:
        """The classifier layer for a callback: by name, the tracker's own, or that of the model."""
        if name is None and isinstance(self._head, nn.Module):
            return self._head
        return head_layer(model, name)

    def _weights(self) -> tuple[Tensor, Tensor | None]:
        """Class weights ``[C, D]`` as they are now, detached, and their bias if it is known."""
        if self._head is None:
            raise OptionError(
                "angles need the class weights; pass head=model.fc to the tracker, or "
                "class_weights to update()"
            )
        if isinstance(self._head, Head):
            return self._head.weight, self._head.bias
        if isinstance(self._head, Tensor):
            return self._head.detach(), None
        bias = getattr(self._head, "bias", None)
        return live_weight(self._head), bias.detach() if isinstance(bias, Tensor) else None

    def _check_kind(self, step: Step) -> None:
        """Raise unless the shapes of a step's tensors match."""
        check_matrix(logits=step.logits)
        check_width(step.embeddings, step.class_weights)
        check_rows(
            index=step.index,
            embeddings=step.embeddings,
            logits=step.logits,
            labels=step.labels,
        )
        classes = step.logits.shape[1]
        if classes < 2 or classes != len(step.class_weights):
            raise ShapeError(
                "expected logits [B, C] and class_weights [C, D] of the same C, at least 2, got "
                f"logits {list(step.logits.shape)}, class_weights {list(step.class_weights.shape)}"
            )
        if self.num_classes not in (None, classes):
            raise ShapeError(f"expected {self.num_classes} classes as before, got {classes}")
        self.num_classes = classes

    def _check_values(self, step: Step) -> None:
        """Raise unless index and labels are in range, if they are on the CPU and cost no wait."""
        if step.index.device.type == "cpu":
            index = step.index.numpy()
            check_index(index, self.num_examples)
            if step.labels.device.type == "cpu":
                check_label_range(step.labels.numpy(), step.logits.shape[1], index)

    def _check_folder(self) -> None:
        """Raise, on every rank, before another run's epochs would be overwritten.

        Each rank must call this before any other collective call, or ranks would wait for each
        other in different places: with its first rows or, if it has none, in the first method that
        all ranks call. All continue after the epochs of rank 0, which writes them; other ranks may
        not see its folder.
        """
        if not self._is_agreed:
            on_first_rank(self._refuse_epochs)
            # the folder as rank 0 sees it; other ranks may not have it at all
            self._epochs = of_all(self._epochs)[0]
            self._goes_on = self._is_agreed = True

    def _refuse_epochs(self) -> None:
        if not self._goes_on and self._store.count():
            raise RunExistsError(
                f"{self._store.folder} holds {self._store.count()} epochs already; pass "
                "resume=True or load a state to continue with them, or choose another folder"
            )

    def _check_finished(self) -> None:
        if rank() != 0 and self._store.is_temporary:
            raise DataError("the epochs are on rank 0; ask there, or give the tracker a folder")
        if self._epochs == 0:
            raise DataError(
                "no epoch has ended yet; call end_epoch() after the last step of every epoch"
            )

    def _check_fit(self) -> None:
        """Raise unless all rows since the last check fit their class weights."""
        self._stash.measure()
        parts = [(index.cpu(), differs.cpu()) for index, differs in self._stash.differing]
        if not parts:
            return
        index, differs = (torch.cat(columns) for columns in zip(*parts, strict=True))
        if bool(differs.any()):
            raise self._fit.refused(index[differs], len(index))

    def _check_held_out(self, other: HardnessTracker) -> None:
        """Raise unless another tracker can hold the examples that this one never sees."""
        if other.stage != "evaluation":
            raise OptionError(
                f"expected held_out to be a tracker of stage='evaluation', got {other.stage!r}"
            )
        if other.num_examples != self.num_examples:
            raise RunMismatchError(
                f"the tracker of held-out examples has {other.num_examples} examples, this one "
                f"{self.num_examples}; number both by their positions in the same dataset"
            )
        other._check_finished()
        if other.epochs != self._epochs:
            raise RunMismatchError(
                f"the held-out examples are recorded in {other.epochs} epochs, the training in "
                f"{self._epochs}; record one evaluation pass after every epoch"
            )

    def _recorded(self) -> Rows:
        """Everything of the unfinished epoch on this rank."""
        self._stash.measure()
        rows, self._stash = joined(self._stash.rows), Stash(self._fit.differing)
        turn = self._first_turn + torch.arange(len(rows))
        self._first_turn += len(rows)
        # unique over ranks and in the order of steps, so "first" is well defined for repeats
        rows = dataclasses.replace(rows, order=turn * world_size() + rank())
        self._pending = joined([self._pending, rows])
        return self._pending

    def _write(self, rows: Rows) -> None:
        if not len(rows):
            raise DataError(
                f"nothing was recorded in epoch {self._epochs + 1}; call update() in every step"
            )
        ranks = world_size()
        # if rank 0 had no rows, it does not know the number of classes
        classes = self.num_classes or 1 + int(rows.labels.max())
        # a DistributedSampler fills its last round with repeats, at most one batch per rank
        padding = ranks * max(self._largest_batch, 1) if ranks > 1 else 0
        rules = EpochRules(self.num_examples, classes, self.repeats, padding, ranks)
        known = self._known_labels()
        columns = epoch_columns(rows, rules, known, self._epochs + 1)
        self._store.write(self._epochs + 1, columns)
        self._labels = np.maximum(known, columns["label"])

    def _known_labels(self) -> NDArray[np.int32]:
        """Labels in earlier epochs, -1 where not seen, ``[N]``."""
        if self._labels is None:
            self._labels = np.full(self.num_examples, -1, dtype=np.int32)
            for epoch in range(self._epochs):
                self._labels = np.maximum(self._labels, self._store.column(epoch + 1, "label"))
        return self._labels

    def _check_state(self, state: dict[str, Any]) -> None:
        for name in ("num_examples", "stage"):
            if state[name] != getattr(self, name):
                raise RunMismatchError(
                    f"the state is of a tracker with {name}={state[name]!r}, this one has "
                    f"{name}={getattr(self, name)!r}"
                )

    def _load_epochs(self, state: dict[str, Any]) -> None:
        if self._store.is_temporary:
            self._store.unpack(state["packed"])
        if self._store.count() < state["epochs"]:
            raise RunMismatchError(
                f"the state has {state['epochs']} epochs, but {self._store.folder} holds "
                f"{self._store.count()}; give the tracker the folder of the interrupted run"
            )
        self._store.keep(state["epochs"])
