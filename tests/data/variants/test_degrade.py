import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.data import (
    CONTRAST_LEVELS,
    NOISE_LEVELS,
    DegradedSource,
    batches,
    open_source,
    reduced_contrast,
    with_uniform_noise,
)
from hardsight.errors import DataError, OptionError
from hardsight.preprocessing import Preprocessing

IMAGE = np.random.default_rng(1).random((8, 9, 3), dtype=np.float32)


def test_the_levels_are_the_papers():
    assert NOISE_LEVELS == (0.0, 0.1, 0.2, 0.3, 0.4)
    assert CONTRAST_LEVELS == (1.0, 0.6, 0.3, 0.2, 0.1)


@pytest.mark.parametrize("level", CONTRAST_LEVELS)
def test_contrast_matches_the_formula_in_double_precision(level):
    wanted = level * IMAGE.astype(np.float64) + (1 - level) / 2
    np.testing.assert_allclose(reduced_contrast(IMAGE, level=level), wanted, atol=1e-7)


@pytest.mark.parametrize("width", NOISE_LEVELS[1:])
def test_noise_is_uniform_between_minus_and_plus_its_width(width):
    grey = np.full((200, 200), 0.5, dtype=np.float32)
    noise = with_uniform_noise(grey, width=width, seed=3, index=0).astype(np.float64) - 0.5
    assert abs(noise).max() <= width + 1e-6
    assert abs(noise).max() > 0.99 * width
    assert abs(noise.mean()) < 0.02 * width
    # the deviation of U(-w, w) is w / sqrt(3); a fourth of the draws lies in each quarter
    np.testing.assert_allclose(noise.std(), width / np.sqrt(3), rtol=0.02)
    quarters = np.histogram(noise, bins=4, range=(-width, width))[0] / noise.size
    np.testing.assert_allclose(quarters, 0.25, atol=0.02)


def test_level_zero_and_full_contrast_change_nothing():
    np.testing.assert_array_equal(with_uniform_noise(IMAGE, width=0.0, seed=0, index=0), IMAGE)
    np.testing.assert_array_equal(reduced_contrast(IMAGE, level=1.0), IMAGE)


def test_seed_and_index_decide_the_noise_and_nothing_else_does():
    one = with_uniform_noise(IMAGE, width=0.2, seed=0, index=5)
    np.random.default_rng(9).random(1000)
    np.testing.assert_array_equal(with_uniform_noise(IMAGE, width=0.2, seed=0, index=5), one)
    assert not np.array_equal(with_uniform_noise(IMAGE, width=0.2, seed=1, index=5), one)
    assert not np.array_equal(with_uniform_noise(IMAGE, width=0.2, seed=0, index=6), one)


def test_the_levels_of_one_image_share_their_draw():
    grey = np.full((5, 5), 0.5, dtype=np.float32)
    small, large = (with_uniform_noise(grey, width=w, seed=0, index=1) - 0.5 for w in (0.1, 0.4))
    np.testing.assert_allclose(4 * small, large, atol=1e-6)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    width=st.floats(0, 1),
    level=st.floats(0, 1),
    seed=st.integers(0, 2**32),
    index=st.integers(0, 2**40),
)
def test_results_stay_on_the_scale(width, level, seed, index):
    for result in (
        with_uniform_noise(IMAGE, width=width, seed=seed, index=index),
        reduced_contrast(IMAGE, level=level),
    ):
        assert result.dtype == np.float32
        assert result.shape == IMAGE.shape
        assert 0 <= result.min() <= result.max() <= 1


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_levels_outside_the_scale_are_refused(value):
    with pytest.raises(OptionError, match=r"expected a noise width in \[0, 1\]"):
        with_uniform_noise(IMAGE, width=value, seed=0, index=0)
    with pytest.raises(OptionError, match=r"expected a contrast level in \[0, 1\]"):
        reduced_contrast(IMAGE, level=value)
    with pytest.raises(OptionError, match=r"expected noise in \[0, 1\]"):
        DegradedSource(open_source("builtin:digits"), noise=value)


@pytest.mark.parametrize("scale", [255, -1, float("nan")])
def test_pixels_off_the_scale_are_refused(scale):
    with pytest.raises(DataError, match=r"expected pixels in \[0, 1\]"):
        reduced_contrast(IMAGE * scale, level=0.5)


def test_a_degraded_source_feeds_a_model_like_any_other():
    clean = open_source("builtin:digits", split="test")
    noisy = DegradedSource(clean, noise=0.3, contrast=0.5, seed=2)
    assert noisy.spec == "builtin:digits with contrast 0.5 and noise 0.3, seed 2"
    batch = next(batches(noisy, Preprocessing(mean=(0.5,), std=(0.5,)), start=3, batch_size=4))
    example = np.asarray(clean[4].content, dtype=np.float64) / 255
    wanted = with_uniform_noise(0.5 * example + 0.25, width=0.3, seed=2, index=4)
    got = (batch.inputs[1, 0] * 0.5 + 0.5).numpy()
    np.testing.assert_allclose(got, wanted, atol=1e-6)
    assert batch.labels[1] == clean.label_of(4)
    assert batch.ids[1] == clean.id_of(4)
    assert batch.inputs.dtype == torch.float32


def test_the_fingerprint_changes_with_the_degradation():
    clean = open_source("builtin:digits")
    marks = [
        DegradedSource(clean, **given).fingerprint()
        for given in (
            {},
            {"noise": 0.1},
            {"noise": 0.2},
            {"contrast": 0.1},
            {"noise": 0.1, "seed": 1},
        )
    ]
    assert len(set(marks)) == 5


def test_only_pictures_can_be_degraded(tmp_path):
    np.savez(tmp_path / "v.npz", x=np.zeros((4, 5), np.float32), y=[0, 1, 0, 1])
    vectors = DegradedSource(open_source(tmp_path / "v.npz"), noise=0.1)
    with pytest.raises(DataError, match="only pictures can be degraded, got ndarray"):
        vectors[0]
