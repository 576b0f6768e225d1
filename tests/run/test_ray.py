"""Scoring on a Ray cluster of two nodes gives the local table, byte for byte, whatever dies."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import hardsight as hs
from tests._cluster import TwoNodes

SMALL = {"batch_size": 4, "shard_rows": 4}


@pytest.fixture(scope="module")
def cluster():
    with TwoNodes() as nodes:
        yield nodes


def same_files(local: Path, other: Path) -> None:
    for name in ("table.parquet", "errors.parquet"):
        assert (local / name).read_bytes() == (other / name).read_bytes()
    assert not (other / "shards").exists()


def test_photos_scored_on_two_nodes_are_the_local_table_byte_for_byte(
    cluster, photos, net_file, tmp_path
):
    (photos / "red" / "05.png").write_bytes(b"not a picture")  # listed, in both
    model = f"{net_file}:make"
    hs.score(model, photos, out=tmp_path / "local", **SMALL)
    table = hs.score(
        model, photos, out=tmp_path / "ray", engine="ray", ray_address=cluster.address, **SMALL
    )
    same_files(tmp_path / "local", tmp_path / "ray")
    assert table.metadata["counts"]["errors"] == 1
    assert len(table) == 35
