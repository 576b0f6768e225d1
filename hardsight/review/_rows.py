"""Filter and sort the rows of a table with DuckDB, which reads only the columns it needs.

The result for a filter and an order is an array of row numbers, which is cached, so a jump to any
place in a million rows is a slice. Filters by what was decided are applied on top of it, because
they change with every key.
"""

from __future__ import annotations

import io
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight._checks import require
from hardsight.errors import OptionError
from hardsight.gallery import class_numbers
from hardsight.registry import unknown_name
from hardsight.review._suspects import Suspects, suspects_of
from hardsight.run_folder import open_parquet
from hardsight.table import row_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hardsight.table import ScoreTable

SUSPECT = "suspect"  # the order of the queue, which is not a column
_KEPT = 8  # cached orders, 4 MB each for a million rows
_QUANTILES = 1000
_MEASURED = 200_000  # rows that quantiles are taken from
_FEW = 500  # ids that are read one by one
_MOST_TEXT, _MOST_POINTS = 200, 400  # letters of a filter, corners of a lasso
MAP_SIDE = 512  # cells of the map, and so the precision of a lasso
_ANGLE, _NORM = "target_angle", "feature_norm"
_FIELDS = ("label", "prediction", "group", "by", "low", "high", "text", "only", "lasso", "sort",
           "order")  # fmt: skip


@dataclass(frozen=True)
class View:
    """A filter and an order, as in the address of a page.

    Attributes:
        label: class of the label.
        prediction: class of the prediction.
        group: kind of doubt.
        by: a score whose range is limited.
        low: its smallest value.
        high: its largest value.
        text: part of the id, of the name of the label or prediction, or of the text of the example.
        only: ``"suspects"``, or ``"all"``.
        lasso: corners of a region of the map, each between 0 and ``MAP_SIDE``.
        sort: a column, or ``"suspect"``.
        order: ``"desc"`` or ``"asc"``.
    """

    label: int | None = None
    prediction: int | None = None
    group: int | None = None
    by: str | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    only: str = "all"
    lasso: tuple[tuple[int, int], ...] = ()
    sort: str = SUSPECT
    order: str = "desc"

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> View:
        """Parse the view of a request.

        Raises:
            OptionError: a value cannot be parsed, or is not allowed.
        """
        values = {name: asked[name] for name in _FIELDS if asked.get(name) not in (None, "")}
        made: dict[str, Any] = {}
        for name, value in values.items():
            made[name] = _PARSERS.get(name, str)(str(value))
        view = cls(**made)
        if len(view.text) > _MOST_TEXT:
            raise OptionError(f"expected a text of at most {_MOST_TEXT} letters")
        if view.only not in ("suspects", "all") or view.order not in ("asc", "desc"):
            raise OptionError(f"expected suspects or all, asc or desc, got {view.only, view.order}")
        return view


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"expected a whole number, got {text[:40]!r}") from None


def _real(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise OptionError(f"expected a number, got {text[:40]!r}") from None
    if not math.isfinite(value):
        raise OptionError(f"expected a finite number, got {text[:40]!r}")
    return value


def _corners(text: str) -> tuple[tuple[int, int], ...]:
    numbers = [_whole(part) for part in text.split(",")]
    if len(numbers) % 2 or not 6 <= len(numbers) <= 2 * _MOST_POINTS:
        raise OptionError(f"expected 3 to {_MOST_POINTS} corners, got {len(numbers)} numbers")
    if not all(0 <= number <= MAP_SIDE for number in numbers):
        raise OptionError(f"expected corners between 0 and {MAP_SIDE}")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


_PARSERS = {"label": _whole, "prediction": _whole, "group": _whole, "low": _real, "high": _real,
            "lasso": _corners}  # fmt: skip


class Rows:
    """The rows of a table in any order.

    Args:
        table: a table in a file.
        texts: returns the text of every row, or ``None`` if the examples are not texts that can be
            read. It is called once, for the first filter by text.

    Raises:
        MissingExtraError: DuckDB is not installed.
    """

    def __init__(
        self, table: ScoreTable, texts: Callable[[], pa.Array | None] = lambda: None
    ) -> None:
        assert table.path is not None, "a table in memory has no file that DuckDB could read"
        self.table = table
        self.label = class_numbers(table, "label").astype(np.int32)
        self.prediction = class_numbers(table, "prediction").astype(np.int32)
        self.index = table.column("index").astype(np.int64)
        self.suspects: Suspects = suspects_of(table)
        self._place = np.empty(len(table), np.int32)
        self._place[self.suspects.order] = np.arange(len(table), dtype=np.int32)
        self._orders: OrderedDict[View, NDArray[np.int32]] = OrderedDict()
        self._quantiles: dict[str, NDArray[np.float32]] = {}
        self._ids: pa.ChunkedArray | None = None
        self._texts = texts
        self._text_values: tuple[pa.Array | None] | None = None  # None: not read yet
        self._map: tuple[NDArray[np.int32], dict[str, float]] | None = None
        self._lock = threading.Lock()
        self._opened: Any = None

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    @property
    def database(self) -> Any:
        """DuckDB over the table, opened by the first filter: the queue works without it."""
        if self._opened is None:
            assert self.table.path is not None
            self._opened = _database(str(self.table.path.absolute()))
        return self._opened

    def __len__(self) -> int:
        return len(self.table)

    # ------------------------------------------------------------------------------ one row

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Ids of some rows."""
        with self._lock:
            if self._ids is None:
                assert self.table.path is not None
                with open_parquet(self.table.path) as opened:
                    # kept as arrow: a million strings of Python would take three times the memory
                    column = opened.read(["id"]).column("id")
                self._ids = column.combine_chunks() if column.num_chunks > 1 else column
        # take() would import pyarrow.compute, which takes 50 ms of the first screen
        if len(rows) <= _FEW:
            taken = [self._ids[row].as_py() for row in rows.tolist()]
        else:
            taken = self._ids.take(row_numbers(rows)).to_pylist()
        return ["" if text is None else str(text) for text in taken]

    def value(self, name: str, row: int) -> float | None:
        """A score of one row; ``None`` if it is not finite."""
        value = float(self.table.column(name)[row])
        return value if math.isfinite(value) else None

    def fold(self, row: int) -> int:
        """The fold that an example is in, from 1; 0 if the run has none."""
        return int(self.table.column("fold")[row]) if "fold" in self.table.columns else 0

    def percentile(self, name: str, value: float) -> float:
        """Share of all rows whose score is smaller, in steps of a thousandth.

        In a large table this is the share among some of the rows, which differs by about a
        thousandth.
        """
        quantiles = self._quantiles.get(name)
        if quantiles is None:
            values = self.table.column(name)
            if len(values) > _MEASURED:  # by chance: evenly spaced rows may be alike in some way
                values = values[np.random.default_rng(0).integers(0, len(values), _MEASURED)]
            values = values.astype(np.float32)
            values = values[np.isfinite(values)]
            steps = np.linspace(0, len(values) - 1, _QUANTILES + 1).round().astype(np.int64)
            quantiles = np.sort(values)[steps] if len(values) else np.zeros(1, np.float32)
            self._quantiles[name] = quantiles
        return float(np.searchsorted(quantiles, np.float32(value))) / _QUANTILES

    # ------------------------------------------------------------------------------ many rows

    def ordered(self, view: View) -> NDArray[np.int32]:
        """The row numbers of a view, in its order.

        Raises:
            OptionError: the view names an unknown column or group.
        """
        if view.text:
            self._text_column()  # slow, so before the lock: other requests must not wait for it
        with self._lock:
            if view in self._orders:
                self._orders.move_to_end(view)
                return self._orders[view]
            rows = self._filtered(view)
            rows.setflags(write=False)
            self._orders[view] = rows
            while len(self._orders) > _KEPT:
                self._orders.popitem(last=False)
            return rows

    @property
    def is_up(self) -> NDArray[np.bool_]:
        """Rows to review first: the suspects, or all rows if no row has a label yet."""
        if len(self.label) and (self.label < 0).all():
            return np.ones(len(self.label), np.bool_)
        return self.suspects.is_suspect

    def _filtered(self, view: View) -> NDArray[np.int32]:
        rows = self._queried(view)
        keep = np.ones(len(rows), np.bool_)
        if view.only == "suspects":
            keep &= self.is_up[rows]
        if view.group is not None:
            keep &= self.suspects.group[rows] == view.group
        if view.lasso:
            keep &= self._inside(view.lasso)[rows]
        if view.text:
            keep &= self._mentions(view.text)[rows]
        return rows if keep.all() else rows[keep]

    def _queried(self, view: View) -> NDArray[np.int32]:
        """The rows that match by the columns of the table, in the order of the view."""
        conditions, values = self._conditions(view)
        if view.sort == SUSPECT:
            if not conditions:
                order = self.suspects.order
                return order if view.order == "desc" else order[::-1]
            rows = self._query(conditions, values, "")
            place = self._place[rows]
            return rows[np.argsort(place if view.order == "desc" else -place, kind="stable")]
        column = self._column(view.sort, self.sortable())
        # rows without a finite score come last in both directions
        by = f"{_not_a_number(column)}, {_quoted(column)} {view.order.upper()}, file_row_number"
        if column == "id":
            by = f"{_quoted(column)} {view.order.upper()} NULLS LAST, file_row_number"
        return self._query(conditions, values, f"ORDER BY {by}")

    def _conditions(self, view: View) -> tuple[list[str], list[Any]]:
        conditions: list[str] = []
        values: list[Any] = []
        for column, value in (("label", view.label), ("prediction", view.prediction)):
            if value is not None:
                conditions.append(f"{_quoted(self._column(column, self.table.columns))} = ?")
                values.append(value)
        if view.by is not None:
            column = self._column(view.by, self.table.scores)
            for sign, end in ((">=", view.low), ("<=", view.high)):
                if end is not None:
                    conditions.append(f"{_quoted(column)} {sign} ?")
                    values.append(end)
            if (view.low, view.high) != (None, None):
                conditions.append(f"{_not_a_number(column)} = false")
        return conditions, values

    def _mentions(self, text: str) -> NDArray[np.bool_]:
        """Whether each row contains a text in its id, its class names, or its own text."""
        wanted = text.casefold()
        # names are compared once per class, not once per row
        named = [at for at, name in enumerate(self.table.classes) if wanted in name.casefold()]
        matches = np.isin(self.label, named) | np.isin(self.prediction, named)
        matches[self._query(["contains(lower(id), lower(?))"], [text], "")] = True
        texts = self._text_column()
        if texts is not None:
            import pyarrow.compute as pc

            within = pc.match_substring(texts, text, ignore_case=True)
            matches |= within.to_numpy(zero_copy_only=False)
        return matches

    def _text_column(self) -> pa.Array | None:
        if self._text_values is None:
            self._text_values = (self._texts(),)
        return self._text_values[0]

    def searched(self) -> str:
        """What a filter by text searches, for the page."""
        if self._text_values is not None and self._text_values[0] is not None:
            return "ids, class names and texts"
        return "ids and class names"

    def _query(self, conditions: list[str], values: list[Any], order: str) -> NDArray[np.int32]:
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT file_row_number FROM examples {where} {order}"
        rows = self.database.execute(query, values).fetchnumpy()["file_row_number"]
        return np.asarray(rows).astype(np.int32)

    def sortable(self) -> list[str]:
        """Columns that rows can be sorted by."""
        keys = [name for name in ("index", "id", "label", "prediction") if name in self._columns()]
        return [*keys, *self.table.scores]

    def _columns(self) -> list[str]:
        return self.table.columns

    @staticmethod
    def _column(name: str, known: list[str]) -> str:
        """Check the name of a column: text from a request must not become part of a query."""
        if name not in known:
            raise OptionError(unknown_name("column", name[:60], known))
        return name

    def pairs(self, count: int = 24) -> list[tuple[int, int, int]]:
        """The most confused pairs of classes: label, prediction and number of rows."""
        differs = (self.label >= 0) & (self.prediction >= 0) & (self.label != self.prediction)
        width = int(max(self.label.max(initial=0), self.prediction.max(initial=0))) + 1
        codes = self.label[differs].astype(np.int64) * width + self.prediction[differs]
        names, counts = np.unique(codes, return_counts=True)
        first = np.argsort(-counts, kind="stable")[:count]
        return [
            (int(code // width), int(code % width), int(n))
            for code, n in zip(names[first], counts[first], strict=True)
        ]

    # ------------------------------------------------------------------------------ the map

    @property
    def has_map(self) -> bool:
        """Whether the table has angles and norms."""
        return {_ANGLE, _NORM} <= set(self.table.scores)

    def map_cells(self) -> tuple[NDArray[np.int32], dict[str, float]]:
        """The cell of the angle-norm map that each row falls into, and the ends of the axes.

        Cells are numbered row by row from the top left; a row without a place has -1.

        Raises:
            OptionError: the table has no angles or norms.
        """
        if not self.has_map:
            raise OptionError("the table has no angles and norms, so there is no map")
        if self._map is None:
            angle = np.degrees(self.table.column(_ANGLE).astype(np.float32))
            norm = np.log(np.maximum(self.table.column(_NORM).astype(np.float32), 1e-12))
            known = np.isfinite(angle) & np.isfinite(norm)
            axes: dict[str, float] = {}
            cells = np.zeros(len(angle), np.int32)
            for name, values, step in (("angle", angle, 1), ("norm", norm, MAP_SIDE)):
                # a few outliers must not squeeze all others together; they end up at the edge
                ends = np.quantile(values[known], [0.0005, 0.9995]) if known.any() else [0.0, 1.0]
                low, high = float(ends[0]), float(max(ends[1], ends[0] + 1e-6))
                axes |= {f"{name}_low": low, f"{name}_high": high}
                share = (np.nan_to_num(values) - low) / (high - low)
                place = np.clip(share * MAP_SIDE, 0, MAP_SIDE - 1).astype(np.int32)
                # rows of a picture are counted from the top, but norms grow upwards
                cells += step * (MAP_SIDE - 1 - place if name == "norm" else place)
            self._map = np.where(known, cells, -1).astype(np.int32), axes
        return self._map

    def _inside(self, corners: tuple[tuple[int, int], ...]) -> NDArray[np.bool_]:
        from PIL import Image, ImageDraw

        cells, _ = self.map_cells()
        drawn = Image.new("1", (MAP_SIDE, MAP_SIDE))
        ImageDraw.Draw(drawn).polygon([*corners], fill=1, outline=1)
        chosen = np.asarray(drawn).ravel()
        inside: NDArray[np.bool_] = chosen[np.maximum(cells, 0)] & (cells >= 0)
        return inside

    def map_picture(self, view: View) -> bytes:
        """The map as a PNG: stronger for more examples, more orange for more suspects."""
        from PIL import Image

        cells, _ = self.map_cells()
        rows = self.ordered(view)
        rows = rows[cells[rows] >= 0]
        dot = _DOT if len(rows) > _MANY else 2 * _DOT
        coarse = _coarse(cells[rows], dot)
        wrong = self.suspects.is_suspect[rows]
        cell_count = (MAP_SIDE // dot) ** 2
        count = np.bincount(coarse, minlength=cell_count)
        bad = np.bincount(coarse, wrong, minlength=cell_count)
        share = (bad / np.maximum(count, 1))[:, None]
        colour = (1 - share) * np.array(_RIGHT_COLOUR) + share * np.array(_WRONG_COLOUR)
        depth = np.log1p(count) / max(1e-9, np.log1p(count.max(initial=1)))
        alpha = np.where(count > 0, 60 + 195 * depth, 0)[:, None]
        side = MAP_SIDE // dot
        pixels = np.concatenate([colour, alpha], axis=1).astype(np.uint8).reshape(side, side, 4)
        image = Image.fromarray(pixels, "RGBA").resize((MAP_SIDE, MAP_SIDE), Image.Resampling.BOX)
        sink = io.BytesIO()
        image.save(sink, "PNG")
        return sink.getvalue()


# cells on each side of a dot on the map; up to _MANY rows, dots are twice as wide to be seen
_DOT, _MANY = 4, 20_000
_RIGHT_COLOUR, _WRONG_COLOUR = (47, 116, 181), (213, 94, 0)


def _coarse(cells: NDArray[np.int32], dot: int) -> NDArray[np.int32]:
    y, x = np.divmod(cells, np.int32(MAP_SIDE))
    coarse: NDArray[np.int32] = (y // dot) * (MAP_SIDE // dot) + x // dot
    return coarse


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _not_a_number(column: str) -> str:
    name = _quoted(column)
    return f"({name} IS NULL OR NOT isfinite({name}::DOUBLE))"


def _database(file: str) -> Any:
    """Open DuckDB with a view of one file, and without access to other files or the network."""
    duckdb = require("duckdb", extra="app", feature="`hardsight review`")
    connection = duckdb.connect(config={"memory_limit": "256MB", "threads": 2})
    # DuckDB takes names as UTF-8 in every locale
    name = os.fsencode(file).decode().replace("'", "''")
    connection.execute(f"SET allowed_paths = ['{name}']")
    connection.execute("SET enable_external_access = false")
    connection.execute(
        f"CREATE VIEW examples AS SELECT * FROM read_parquet('{name}', file_row_number = true)"
    )
    connection.execute("SET lock_configuration = true")
    return connection
