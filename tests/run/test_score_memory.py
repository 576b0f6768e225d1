"""The last step of a run holds one group of rows in memory, however many rows there are."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

import hardsight as hs
from hardsight.gallery import gallery_rows
from hardsight.run_folder import RunFolder
from tests._deaths import Died

FEW, MANY = 10_000, 80_000
_POOLS = []  # what is in a pool may outlive the step, and the pool must outlive that


def peak_bytes(step):
    """The most that arrow, numpy and Python hold at a time while a step is done."""
    before, threads = pa.default_memory_pool(), pa.cpu_count()
    _POOLS.append(pa.proxy_memory_pool(before))  # counts from zero
    pa.set_memory_pool(_POOLS[-1])
    pa.set_cpu_count(1)  # how many columns are decoded at once is up to the threads
    tracemalloc.start()
    try:
        step()
        return _POOLS[-1].max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_cpu_count(threads)
        pa.set_memory_pool(before)


def scored_to_the_last_step(folder, rows):
    """A run whose shards are all there, and whose table is not; what finishes it."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    np.save(folder / "x.npy", draw.normal(size=(rows, 4)).astype(np.float32))
    np.save(folder / "y.npy", draw.integers(0, 5, rows).astype(np.int32))
    options = {
        "labels": folder / "y.npy", "class_weights": draw.normal(size=(5, 4)).astype(np.float32),
        "out": folder / "run", "batch_size": 500, "shard_rows": 2_000, "device": "cpu",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "new_table", _die)
        with pytest.raises(Died):
            hs.score(None, folder / "x.npy", **options)
    return lambda: hs.score(None, folder / "x.npy", resume=True, **options)


def _die(*args):
    raise Died


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """By number of rows: a finished run, and the most memory that its last step took."""
    home = tmp_path_factory.mktemp("memory")
    with pytest.MonkeyPatch.context() as patch:
        # a million rows in earnest
        patch.setattr("hardsight.run_folder._files.ROWS_PER_GROUP", 2_000)
        steps = {rows: scored_to_the_last_step(home / str(rows), rows) for rows in (FEW, MANY)}
        return {rows: (home / str(rows) / "run", peak_bytes(steps[rows])) for rows in steps}


def test_finishing_eight_times_the_rows_takes_no_more_memory(finished):
    (_, few), (folder, many) = finished[FEW], finished[MANY]
    table = hs.read_table(folder)
    assert len(table) == MANY
    # the labels of the source grow, the rows of the table do not
    assert many - few < 0.25 * table.to_arrow().nbytes * (1 - FEW / MANY)


def test_choosing_the_pictures_of_eight_times_the_rows_takes_no_more_memory(finished):
    few, many = (
        peak_bytes(lambda run=finished[rows][0]: gallery_rows(hs.read_table(run)).indices())
        for rows in (FEW, MANY)
    )
    assert many < 1.2 * few


def test_the_measure_sees_rows_that_are_held(finished):
    folder, _ = finished[FEW]
    size = hs.read_table(folder).to_arrow().nbytes
    assert peak_bytes(lambda: hs.read_table(folder).to_arrow()) > size
