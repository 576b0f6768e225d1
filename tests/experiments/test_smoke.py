"""Every experiment runs at smoke scale, on embedded data, and says what it must."""

from __future__ import annotations

import json

import pytest

from hardsight.experiments import EXPERIMENTS, run_experiment


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_experiment_runs_at_smoke_scale(name, tmp_path, shared_runs, sources):
    result = run_experiment(
        name, scale="smoke", out=tmp_path, runs=shared_runs, device="cpu", show_progress=False,
        sources=sources,
    )  # fmt: skip
    content = json.loads((tmp_path / "result.json").read_text())
    assert result.tables
    assert result.claims
    assert content["data"]
    assert content["seeds"]
    assert len(EXPERIMENTS[name].scales["short"].seeds) >= 3
    for figure in result.figures:
        assert (tmp_path / figure.file).stat().st_size < 2_000_000
        assert figure.alt
        assert figure.caption
    page = (tmp_path / "README.md").read_text()
    assert f"experiment run {name}" in page
    assert "nan" not in page.lower().split()
