"""Small pictures of the examples a report shows."""

from __future__ import annotations

import pyarrow as pa

from hardsight.data import ExampleSource, thumbnail
from hardsight.errors import BadExampleError
from hardsight.gallery import gallery_rows
from hardsight.run.loop._progress import progress
from hardsight.table import THUMBNAIL_SCHEMA, ScoreTable


def pictures(source: ExampleSource, table: ScoreTable, *, most: int, show: bool | None) -> pa.Table:
    """Small pictures of the examples a report shows; what is no image has none."""
    indices = gallery_rows(table, budget=most).indices().tolist()
    kept: dict[int, bytes] = {}
    with progress("thumbnails", total=len(indices), show=show) as advance:
        for index in indices:
            try:
                picture = thumbnail(source[source.position_of(index)].content)
            except BadExampleError:
                picture = None  # the file is gone meanwhile; its row stays
            if picture is not None:
                kept[index] = picture
            advance(1)
    return pa.table([list(kept), list(kept.values())], schema=THUMBNAIL_SCHEMA)
