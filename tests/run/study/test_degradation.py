"""Scores against levels of degradation."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from scipy import stats as scipy_stats

import hardsight as hs
from hardsight.errors import BadExampleError, DataError, OptionError, ShapeError, StatisticError
from hardsight.models import SmallCNN
from hardsight.run.study import degradation_study

LEVELS = (0.0, 0.1, 0.2, 0.3)


def levels_of_scores():
    draw = np.random.default_rng(0)
    rising = np.array(LEVELS)[:, None] + 0.1 * draw.normal(size=(4, 50))
    return {"avh": rising, "model_confidence": -rising, "feature_norm": np.ones((4, 50))}


def test_a_picture_that_cannot_be_read_is_named_with_what_to_do(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for at in range(3):
            Image.new("L", (8, 8), 80 * at).save(tmp_path / name / f"{at}.png")
    (tmp_path / "b" / "1.png").write_bytes(b"no picture")
    said = r"b/1\.png cannot be read: not an image in a known format; repair it or remove it"
    with pytest.raises(BadExampleError, match=said):
        hs.study_degradation(SmallCNN(num_classes=2), tmp_path, noise=(0, 0.2), device="cpu")


def test_coefficients_are_those_of_scipy_picture_by_picture():
    scores = levels_of_scores()
    study = degradation_study(LEVELS, scores, scores["avh"] < 0.2, kind="noise")
    found = study.score("avh")
    each = [scipy_stats.spearmanr(LEVELS, column).statistic for column in scores["avh"].T]
    assert found.within.value == pytest.approx(np.mean(each))
    reach = 1.96 * np.std(each, ddof=1) / np.sqrt(50)
    assert found.within.high - found.within.value == pytest.approx(reach)
    pooled = scipy_stats.spearmanr(np.repeat(LEVELS, 50), scores["avh"].ravel()).statistic
    assert found.pooled == pytest.approx(pooled)
    assert study.score("model_confidence").within.value == pytest.approx(-found.within.value)
    np.testing.assert_allclose(found.means, scores["avh"].mean(axis=1))
    assert [one.value for one in study.accuracy] == (scores["avh"] < 0.2).mean(axis=1).tolist()


def test_the_interval_within_a_picture_stays_among_coefficients():
    draw = np.random.default_rng(0)
    scores = np.tile(np.arange(5.0)[:, None], (1, 30))
    scores[:, 0] = draw.permutation(5)  # all pictures but one follow the level exactly
    study = degradation_study(range(5), {"avh": scores}, scores < 3, kind="noise")
    assert study.score("avh").within.high == 1
    falling = degradation_study(range(5), {"avh": -scores}, scores < 3, kind="noise")
    assert falling.score("avh").within.low == -1


def test_a_score_that_does_not_vary_has_no_coefficient():
    scores = levels_of_scores()
    study = degradation_study(LEVELS, scores, scores["avh"] < 1, kind="contrast")
    constant = study.score("feature_norm")
    assert constant.within is None
    assert np.isnan(constant.pooled)
    (table,) = study.tables()
    assert [row[-1] for row in table.rows[-2:]] == ["–", "–"]
    assert "less is harder to see" in table.note


@pytest.mark.parametrize(
    ("levels", "scores", "error", "message"),
    [
        ((0.1,), np.ones((1, 5)), StatisticError, r"at least 2 levels, each once, got \[0.1\]"),
        ((0.1, 0.1), np.ones((2, 5)), StatisticError, "each once"),
        ((0.1, 0.2), np.ones((3, 5)), ShapeError, r"expected \[2, N\] values .* got \[3, 5\]"),
    ],
)
def test_levels_that_do_not_fit_are_explained(levels, scores, error, message):
    with pytest.raises(error, match=message):
        degradation_study(levels, {"avh": scores}, np.ones(scores.shape), kind="noise")


def test_a_model_is_scored_on_the_same_pictures_at_every_level(tmp_path):
    options = {"split": "test", "device": "cpu", "limit": 40, "show_progress": False}
    net = SmallCNN(num_classes=10)
    noise, contrast = hs.study_degradation(
        net, "builtin:digits", noise=(0.0, 0.3), contrast=(1.0, 0.2), out=tmp_path, **options
    )
    assert (noise.kind, contrast.kind, noise.n) == ("noise", "contrast", 40)
    # the clean level is the same in both, and that of a plain run
    table = hs.score(net, "builtin:digits", split="test", device="cpu", show_progress=False)
    rows = np.linspace(0, 448, 40).round().astype(int)
    for study in (noise, contrast):
        assert study.score("avh").means[0] == pytest.approx(table.column("avh")[rows].mean())
    assert json.loads((tmp_path / "study.json").read_text())["kind"] == "degradation"


def test_levels_and_data_that_cannot_be_used_are_explained(embeddings_file):
    with pytest.raises(OptionError, match="expected levels of noise or of contrast, got none"):
        hs.study_degradation(SmallCNN(), "builtin:digits", noise=(), contrast=())
    with pytest.raises(OptionError, match=r"at least 2 levels of noise, each once, got \[0\.2, 0"):
        hs.study_degradation(SmallCNN(), "builtin:digits", noise=(0.2, 0.2), contrast=())
    with pytest.raises(OptionError, match=r"expected noise in \[0, 1\], got 2"):
        hs.study_degradation(
            SmallCNN(), "builtin:digits", split="test", noise=(0, 2), device="cpu", limit=4,
            contrast=(),
        )  # fmt: skip
    with pytest.raises(DataError, match="only pictures by position can be degraded"):
        hs.study_degradation(SmallCNN(), embeddings_file)


def test_a_study_of_no_pictures_is_refused():
    for limit in (0, -1):
        with pytest.raises(
            OptionError, match=f"expected a limit of at least 1 picture, got {limit}"
        ):
            hs.study_degradation(SmallCNN(), "builtin:digits", split="test", limit=limit)
