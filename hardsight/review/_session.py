"""The review of a run without the web: plain values in, plain values out."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import OptionError, TableError
from hardsight.review._curves import Curves
from hardsight.review._dashboard import dashboard
from hardsight.review._explained import Explainer, MapRequest
from hardsight.review._maps import Maps
from hardsight.review._neighbours import NearestClasses, Neighbours
from hardsight.review._pictures import MAP, SIZES, Pictures, Shown, shown_again
from hardsight.review._rows import MAP_SIDE, SUSPECT, Rows, View
from hardsight.review._store import (
    ACTIONS,
    DISAGREE,
    KEEP,
    NONE,
    NUMBERS,
    RELABEL,
    SKIP,
    Standing,
    Store,
    consensus,
    identity,
    store_file,
)
from hardsight.review._suspects import nearest_classes
from hardsight.table import read_table

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

MOST_PICTURES = 64  # in one answer
_MOST_ITEMS, _MOST_ROWS = 24, 400  # in one answer for the queue and for the grid
_NEAREST, _SIMILAR = 5, 5  # classes and examples that are shown beside an example
_OWN_ANGLE, _SUSPICION = "target_angle", "suspicion"
_NO_ANGLES = "This run has no angles to the classes. To see the nearest ones, run `{}` and review"
_AHEAD = 3  # maps that are made before they are needed
_MOST_CHOSEN = 100_000  # rows that a request may list one by one
_LONGEST_NAME = 40
_SCANNED = 1 << 14  # rows searched at a time for open ones, which are usually near the start
_NAMES = {number: action for action, number in NUMBERS.items()}
_STATES = ("any", "open", "decided", *ACTIONS, "disagree")
_DIGITS = "1234567890"


class Session:
    """One run under review.

    Args:
        run: folder of a finished run, or its table.
        data: where its data is now, if it has moved since it was scored.
        card: an evaluation card of the same data, to show its Grad-CAM maps.
        model: model that makes Grad-CAM maps of any example; by default the one that the run names,
            if it can be built without running anybody's code.
        weights: weights of ``model``.

    Raises:
        MissingDataError: there is no finished run with a row per example, or no card.
        TableError: the table, the card or the decisions cannot be used.
        OutputError: decisions cannot be stored there.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        data: str | os.PathLike[str] | None = None,
        card: str | os.PathLike[str] | None = None,
        model: str | None = None,
        weights: str | None = None,
    ) -> None:
        self.table = read_table(run)
        if (self.table.metadata.get("data") or {}).get("sentences"):
            step = shlex.join(["hardsight", "report", str(run)])
            raise TableError(
                f"{run} has a row for each token of sentences, whose labels are the text itself, "
                f"so there is nothing to relabel; look at its report: {step}"
            )
        for column in ("index", "id", "label"):
            if column not in self.table.columns:
                raise TableError(f"{run} has no column {column!r}, so there is nothing to review")
        self.title, decisions = _title(Path(run)), store_file(self.table)
        self.maps = Maps(self.table, card)
        self.neighbours, self.near_classes = Neighbours(self.table), NearestClasses(self.table)
        self.rows = Rows(self.table, self._texts)
        self.store = Store(
            decisions,
            identity=identity(self.table),
            index=self.rows.index,
            label=self.rows.label,
        )
        self.pictures = Pictures(self.table, data)
        self.explainer = Explainer(self.table, self.pictures.place, model=model, weights=weights)
        self.curves = Curves(self.table)
        self._digits = _digit_keys(self.classes)

    def _texts(self) -> pa.Array | None:
        """The text of every row, for the filter; ``None`` if the examples are not texts."""
        every = np.arange(len(self.rows))
        return self.pictures.texts(self.rows.index, lambda: self.rows.ids(every))

    def close(self) -> None:
        """Close all files."""
        self.store.close()
        self.rows.close()
        self.pictures.close()
        self.explainer.close()

    @property
    def classes(self) -> list[str]:
        """The names of all classes; a class that the table does not name has its number."""
        most = int(max(self.rows.label.max(initial=-1), self.rows.prediction.max(initial=-1)))
        named = self.table.classes
        return [*named, *(str(number) for number in range(len(named), most + 1))]

    # ------------------------------------------------------------------------------ reading

    def start(self) -> dict[str, Any]:
        """Everything that the page needs before it shows anything."""
        table, rows = self.table, self.rows
        about = {name: table.about(name) for name in table.scores}
        return {
            "title": self.title,
            "rows": len(rows),
            "classes": self.classes,
            "has_labels": bool((rows.label >= 0).any()),
            "digits": self._digits,
            "evidence": rows.suspects.evidence,
            "by": rows.suspects.by,
            "suspects": int(rows.is_up.sum()),
            "groups": list(rows.suspects.groups),
            "scores": [
                {
                    "name": name,
                    "title": about[name]["title"],
                    "unit": about[name]["unit"],
                    "meaning": about[name].get("meaning") or "",
                    "higher_is_harder": table.higher_is_harder(name),
                }
                for name in table.scores
            ],
            "sortable": [SUSPECT, *rows.sortable()],
            "pairs": rows.pairs(),
            "map": {"side": MAP_SIDE} if rows.has_map else None,
            "has_similar": bool(self.neighbours),
            "has_nearest": bool(self.neighbours.has_classes or self.near_classes),
            "nearest_note": self._nearest_note(),
            "share_note": rows.suspects.share_note,
            "reviewer": _user(),
            "reviewers": self.store.reviewers,
            "seq": self.store.seq,
            "states": _STATES,
        }

    def queue(
        self, view: View, reviewer: str, *, after: int, count: int, state: str
    ) -> dict[str, Any]:
        """The next examples of a view that the reviewer has not decided.

        Args:
            view: filter and order.
            reviewer: name of the reviewer.
            after: place in the order to start from.
            count: largest number of examples.
            state: ``"open"``, or ``"any"`` to include decided examples.
        """
        name, order = checked_name(reviewer), self.rows.ordered(view)
        standing = self.store.standing(name)
        is_open = standing.action[order] == NONE
        places: list[int] = []
        for start in range(max(0, after), len(order), _SCANNED):
            part = is_open[start : start + _SCANNED]
            chosen = np.arange(len(part)) if state == "any" else np.flatnonzero(part)
            places += (start + chosen[: count - len(places)]).tolist()
            if len(places) >= min(count, _MOST_ITEMS):
                break
        places = places[:_MOST_ITEMS]
        return {
            "total": len(order),
            "open": int(is_open.sum()),
            "seq": self.store.seq,
            "items": self._items(order[places], standing, name, places),
            "recent": self.store.recent(name),
            "problem": self.pictures.problem,
        }

    def example(self, index: int, reviewer: str) -> dict[str, Any]:
        """One example by its index in the data.

        Raises:
            OptionError: the table has no such example.
        """
        name = checked_name(reviewer)
        row = self._row(index)
        standing = self.store.standing(name)
        return self._items(np.array([row]), standing, name, [None])[0]

    def similar(self, index: int) -> dict[str, Any]:
        """The examples nearest to an example by the angle of embeddings; none without embeddings.

        Raises:
            OptionError: the table has no such example.
        """
        near = self.neighbours.similar(self._row(index), _SIMILAR)
        rows = np.array([row for row, _ in near], np.int64)
        ids = self.rows.ids(rows) if len(rows) else []
        similar = [
            {
                "index": int(self.rows.index[row]),
                "id": id,
                "label": int(self.rows.label[row]),
                "angle": angle,
            }
            for (row, angle), id in zip(near, ids, strict=True)
        ]
        return {"similar": similar}

    def explained(self, index: int, ahead: Sequence[int] = ()) -> dict[str, Any]:
        """Whether there is a Grad-CAM map of an example; requests it if there is none yet.

        Args:
            index: position of the example in its data.
            ahead: the examples after it, whose maps are made next.

        Raises:
            OptionError: the table has no such example.
        """
        wanted, *then = (self._wanted(each) for each in (index, *ahead[:_AHEAD]))
        if wanted.id in self.maps:
            return {"state": "there", "prediction": self.maps.prediction(wanted.id), "note": ""}
        if self.pictures.problem:
            return {"state": "none", "prediction": -1, "note": self.pictures.problem}
        known = self.explainer.of(wanted, [each for each in then if each.id not in self.maps])
        state = "there" if known.picture else "none" if known.problem else "pending"
        return {"state": state, "prediction": known.prediction, "note": known.problem}

    def _wanted(self, index: int) -> MapRequest:
        row = self._row(index)
        return MapRequest(index, self.rows.ids(np.array([row]))[0], self.rows.fold(row))

    def grid(
        self, view: View, reviewer: str, *, state: str, start: int, count: int
    ) -> dict[str, Any]:
        """Consecutive rows of a view, as columns for the grid."""
        name = checked_name(reviewer)
        chosen = self._in_state(view, name, state)
        start = max(0, start)
        part = chosen[start : start + min(count, _MOST_ROWS)].astype(np.int64)
        standing = self.store.standing(name)
        shown = view.sort if view.sort != SUSPECT else self.rows.suspects.by
        scores = self.table.scores
        values = [self.rows.value(shown, row) if shown in scores else None for row in part.tolist()]
        columns = {
            "index": self.rows.index[part].tolist(),
            "id": self.rows.ids(part),
            "label": self.rows.label[part].tolist(),
            "prediction": self.rows.prediction[part].tolist(),
            "suggestion": self.rows.suspects.suggestion[part].tolist(),
            "action": [_NAMES.get(number, "") for number in standing.action[part].tolist()],
            "new": standing.new[part].tolist(),
            "value": values,
        }
        searched = self.rows.searched() if view.text else ""
        counted = {"total": len(chosen), "start": start, "seq": self.store.seq}
        return {**counted, "searched": searched, **columns}

    def shown(self, indices: Sequence[int], size: str) -> list[Shown]:
        """The pictures of some examples; empty for an index that the table does not have.

        Raises:
            OptionError: there are too many examples, or the size is unknown.
        """
        if size not in (*SIZES, MAP) or len(indices) > MOST_PICTURES:
            raise OptionError(f"expected small, large or map, and at most {MOST_PICTURES} examples")
        rows = self.store.rows_of(np.array([_bounded(index) for index in indices], np.int64))
        ids = self.rows.ids(np.maximum(rows, 0)) if len(self.rows) else []

        def one(index: int, row: int, id: str) -> Shown:
            if row < 0:
                return Shown(b"", note="unknown")
            if size == MAP:
                found = self.maps.of(id) or self.explainer.picture(index)
                return shown_again(found, SIZES["large"])
            return self.pictures.of(index, id, SIZES[size])

        return [one(*each) for each in zip(indices, rows.tolist(), ids, strict=True)]

    def changes(self, reviewer: str, since: int) -> dict[str, Any]:
        """What a reviewer decided after a row of the log, in any window."""
        name = checked_name(reviewer)
        seq = self.store.seq
        changed: list[int] = []
        count = 0
        if seq > since:
            rows = np.flatnonzero(self.store.standing(name).latest > since)
            count, changed = len(rows), self.rows.index[rows[:_MOST_ROWS]].tolist()
        return {"seq": seq, "changed": changed, "count": count}

    def overview(self, reviewer: str) -> dict[str, Any]:
        """The dashboard, with what this reviewer may see of the decisions of others."""
        return dashboard(self.rows, self.store, checked_name(reviewer))

    def _items(
        self,
        rows: NDArray[Any],
        standing: Standing,
        reviewer: str,
        places: Sequence[int | None],
    ) -> list[dict[str, Any]]:
        ids = self.rows.ids(rows.astype(np.int64)) if len(rows) else []
        made = zip(rows.tolist(), ids, places, strict=True)
        return [self._item(row, id, place, standing, reviewer) for row, id, place in made]

    def _item(
        self, row: int, id: str, place: int | None, standing: Standing, reviewer: str
    ) -> dict[str, Any]:
        suspects, index = self.rows.suspects, int(self.rows.index[row])
        share = suspects.error_share
        return {
            "index": index,
            "id": id,
            "place": place,
            "label": int(self.rows.label[row]),
            "prediction": int(self.rows.prediction[row]),
            "suggestion": int(suspects.suggestion[row]),
            "reason": suspects.reason(row),
            "group": suspects.groups[int(suspects.group[row])],
            "error_share": None if share is None or np.isnan(share[row]) else float(share[row]),
            "scores": self._scores(row),
            "nearest": self._nearest(row),
            "map": self.maps.prediction(id) if id in self.maps else None,
            "curve": self.curves.of(index),
            "action": _NAMES.get(int(standing.action[row]), ""),
            "new": int(standing.new[row]),
            "base": int(standing.latest[row]),
            "others": self._others(row, standing, reviewer),
        }

    def _nearest(self, row: int) -> list[dict[str, Any]]:
        """The nearest classes, by embeddings, by stored nearest classes, or by the table."""
        label = int(self.rows.label[row])
        near = self.neighbours.classes(row, label, _NEAREST)
        near = near or self.near_classes.of(int(self.rows.index[row]), self.rows.fold(row))
        if not near:
            return nearest_classes(self.table, row)
        if label >= 0 and all(each["label"] != label for each in near):
            own = self.rows.value(_OWN_ANGLE, row) if _OWN_ANGLE in self.table.columns else None
            near = near if own is None else [*near, {"label": label, "angle": own}]
        return near

    def _nearest_note(self) -> str:
        """How to get the names of the nearest classes; empty if they are known."""
        known = self.neighbours.has_classes or self.near_classes
        if known:
            return ""
        if _OWN_ANGLE not in self.table.columns:
            return self._scoring_note() if _SUSPICION in self.table.columns else ""
        # worded for any run: stored embeddings have no model to score with again
        return (
            "`hardsight score` stores the names of the nearest classes if it runs a model, and "
            "similar examples if it has --keep-embeddings"
        )

    def _scoring_note(self) -> str:
        """The command that gets the angles of a tracked training, as exactly as it is known."""
        assert self.table.path is not None
        run, about = self.table.path.parent, self.table.metadata.get("data") or {}
        if not (run / "model.json").is_file() or not isinstance(about.get("spec"), str):
            return _NO_ANGLES.format("hardsight score") + " its result"
        words = ["hardsight", "score", "--model", os.fspath(run), "--data", about["spec"]]
        for key in ("split", "text_column", "label_column", "image_column"):
            words += [f"--{key.replace('_', '-')}", str(about[key])] if about.get(key) else []
        scores = f"{run}-scores"
        words += ["--sample", "in-sample", "--out", scores]
        return _NO_ANGLES.format(shlex.join(words)) + f" {scores}"

    def _scores(self, row: int) -> list[list[Any]]:
        scores = []
        for name in self.table.scores:
            value = self.rows.value(name, row)
            share = None if value is None else self.rows.percentile(name, value)
            scores.append([name, value, share])
        return scores

    def _others(self, row: int, standing: Standing, reviewer: str) -> list[dict[str, Any]]:
        """What others decided; empty until the reviewer has, so that nobody is influenced."""
        if int(standing.action[row]) in (NONE, NUMBERS[SKIP]):
            return []
        others = []
        for name in self.store.reviewers:
            other = self.store.standing(name)
            if name != reviewer and int(other.action[row]) not in (NONE, NUMBERS[SKIP]):
                action = _NAMES[int(other.action[row])]
                others.append({"reviewer": name, "action": action, "new": int(other.new[row])})
        return others

    def _in_state(self, view: View, reviewer: str, state: str) -> NDArray[np.int32]:
        """The rows of a view that are in a state for the reviewer, such as ``"open"``."""
        order = self.rows.ordered(view)
        if state not in _STATES:
            raise OptionError(f"expected one of {', '.join(_STATES)}, got {state[:40]!r}")
        if state == "any":
            return order
        if state == "disagree":
            chosen = np.zeros(len(self.rows), np.bool_)
            chosen[self.disagreements(reviewer)] = True
            return order[chosen[order]]
        action = self.store.standing(reviewer).action[order]
        is_in: NDArray[np.bool_] = action == NUMBERS.get(state, NONE)
        if state == "decided":
            is_in = (action != NONE) & (action != NUMBERS[SKIP])
        return order[is_in]

    def disagreements(self, reviewer: str) -> NDArray[np.int64]:
        """Rows that this reviewer and others have decided differently."""
        standings = [self.store.standing(name) for name in self.store.reviewers]
        agreed = consensus(standings, self.rows.label)
        rows = agreed.rows[agreed.verdict == DISAGREE]
        own = self.store.standing(reviewer).action[rows]
        known: NDArray[np.int64] = rows[(own != NONE) & (own != NUMBERS[SKIP])]
        return known

    # ------------------------------------------------------------------------------ deciding

    def decide(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Store one decision about one example.

        Raises:
            OptionError: the request is not a decision.
            StaleError: the reviewer has meanwhile decided about it in another window.
            OutputError: the decision could not be stored.
        """
        name = checked_name(asked.get("reviewer"))
        row = self._row(_integer(asked, "index"))
        rows = np.array([row], np.int64)
        action, new = self._answer(asked, rows)
        self.store.decide(rows, name, action, new, base=_integer(asked, "base"))
        return {
            "seq": self.store.seq,
            "base": int(self.store.standing(name).latest[row]),
            "others": self._others(row, self.store.standing(name), name),
            "recent": self.store.recent(name),
        }

    def decide_many(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Store the same decision about many examples, which can be undone in one step.

        The examples are listed by index, or are all examples of a view.

        Raises:
            OptionError: the request is not a decision, or the view has other rows by now.
            StaleError: the reviewer has meanwhile decided about some of them in another window.
            OutputError: the decision could not be stored.
        """
        name = checked_name(asked.get("reviewer"))
        rows = self._chosen(asked, name)
        action, new = self._answer(asked, rows)
        if action == RELABEL and asked.get("new") is None:  # each as suggested
            rows, new = rows[new >= 0], new[new >= 0]
        if not len(rows):
            raise OptionError("none of the chosen examples has a suggestion")
        self.store.decide(rows, name, action, new, seen=_integer(asked, "seen"))
        return {"seq": self.store.seq, "count": len(rows), "recent": self.store.recent(name)}

    def undo(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Undo decisions that were stored in one step.

        Raises:
            StaleError: they are already undone.
            OutputError: the undo could not be stored.
        """
        name, batch = checked_name(asked.get("reviewer")), asked.get("batch")
        if not isinstance(batch, str) or len(batch) > _LONGEST_NAME:
            raise OptionError("expected the batch to undo")
        rows = self.store.undo(name, batch)
        return {
            "seq": self.store.seq,
            "count": len(rows),
            "index": int(self.rows.index[rows[0]]),
            "recent": self.store.recent(name),
        }

    def _chosen(self, asked: Mapping[str, Any], name: str) -> NDArray[np.int64]:
        indices = asked.get("indices")
        if indices is None:
            view = asked.get("view")
            if not isinstance(view, Mapping):
                raise OptionError("expected indices or a view")
            state = str(view.get("state") or "any")
            rows = self._in_state(View.of(view), name, state).astype(np.int64)
            if len(rows) != _integer(asked, "expect"):
                raise OptionError(
                    f"the filter now matches {len(rows):,} examples, not {asked['expect']:,}; "
                    "check them, then decide again"
                )
            return rows
        if not isinstance(indices, list) or not 0 < len(indices) <= _MOST_CHOSEN:
            raise OptionError(f"expected 1 to {_MOST_CHOSEN:,} indices")
        numbers = np.array([_bounded(index) for index in indices], np.int64)
        rows = np.unique(self.store.rows_of(numbers))
        if rows[0] < 0:
            raise OptionError("the table does not have all of these examples")
        return rows

    def _answer(
        self, asked: Mapping[str, Any], rows: NDArray[np.int64]
    ) -> tuple[str, NDArray[np.int32]]:
        action, new = asked.get("action"), asked.get("new")
        if action not in ACTIONS:
            raise OptionError(f"expected one of {', '.join(ACTIONS)}, got {str(action)[:40]!r}")
        without = int((self.rows.label[rows] < 0).sum())
        if action == KEEP and without:
            raise OptionError(
                f"{without:,} of {len(rows):,} examples have no label to keep; choose a class"
            )
        if action != RELABEL:
            return str(action), np.full(len(rows), -1, np.int32)
        if new is None:
            return RELABEL, self.rows.suspects.suggestion[rows]
        number = _integer(asked, "new")
        if not 0 <= number < len(self.classes):
            raise OptionError(f"expected a class from 0 to {len(self.classes) - 1}, got {number}")
        return RELABEL, np.full(len(rows), number, np.int32)

    def _row(self, index: int) -> int:
        row = int(self.store.rows_of(np.array([_bounded(index)], np.int64))[0])
        if row < 0:
            raise OptionError(f"the table has no example {index}")
        return row


def checked_name(reviewer: Any) -> str:
    """The name of a reviewer, with single spaces.

    Raises:
        OptionError: it is empty, too long, or has characters that cannot be printed.
    """
    name = " ".join(str(reviewer or "").split())
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise OptionError(f"expected the name of a reviewer, of 1 to {_LONGEST_NAME} letters")
    return name


def _integer(asked: Mapping[str, Any], name: str) -> int:
    value = asked.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"expected {name} to be a whole number")
    return _bounded(value)


def _bounded(value: Any) -> int:
    """Check that a value is a whole number that fits into a column of the table."""
    if isinstance(value, bool) or not isinstance(value, int) or not abs(value) < 2**62:
        raise OptionError("expected whole numbers")
    return value


def _digit_keys(classes: list[str]) -> dict[str, int]:
    """A fixed digit for each class, if there are at most ten; digits keep their own key."""
    if len(classes) > len(_DIGITS):
        return {}
    if all(len(name) == 1 and name in _DIGITS for name in classes):
        return {name: number for number, name in enumerate(classes)}
    return {_DIGITS[number]: number for number in range(len(classes))}


def _title(run: Path) -> str:
    folder = run if run.is_dir() else run.parent
    return folder.resolve().name or str(run)


def _user() -> str:
    try:
        return checked_name(getpass.getuser())
    except (OSError, KeyError, ImportError, OptionError):  # containers may have no user name
        return "me"
