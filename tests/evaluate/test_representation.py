"""Probe, clusters, silhouette and map, against scikit-learn and by hand."""

import numpy as np
import pytest
from sklearn.metrics import homogeneity_score, silhouette_samples

from hardsight.errors import NonFiniteError, OptionError, ShapeError, StatisticError
from hardsight.evaluate import (
    agreement,
    angular_silhouette,
    cluster_assignments,
    linear_probe,
    tsne_map,
)

DRAW = np.random.default_rng(0)
LABELS = np.arange(90) % 3
CENTRES = np.eye(3, 6) * 8
FEATURES = (CENTRES[LABELS] + DRAW.normal(size=(90, 6))).astype(np.float32)


def test_a_probe_reads_classes_that_lie_apart_and_guesses_where_they_do_not():
    found = linear_probe(FEATURES[:60], LABELS[:60], FEATURES[60:])
    assert (found == LABELS[60:]).mean() == 1.0
    noise = DRAW.normal(size=(400, 6))
    blind = linear_probe(noise[:200], np.arange(200) % 3, noise[200:])
    assert (blind == np.arange(200) % 3).mean() < 0.5


def test_a_probe_does_not_care_about_the_scale_of_a_feature():
    scale = np.array([1e-3, 1, 10, 1e3, 1, 1])
    assert np.array_equal(linear_probe(FEATURES[:60], LABELS[:60], FEATURES[60:]),
                          linear_probe(FEATURES[:60] * scale, LABELS[:60],
                                       FEATURES[60:] * scale))  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_clusters_in_many_directions_are_found_whatever_the_seed(seed):
    # where much of the width is noise, a plain start lies in it, and merges classes
    draw = np.random.default_rng(7)
    labels = np.arange(1500) % 10
    noise = draw.uniform(0.6, 1.6, size=(10, 1))[labels] * draw.normal(size=(1500, 512))
    features = np.maximum(0.3 * draw.normal(size=(10, 512))[labels] + noise, 0)
    found = agreement(cluster_assignments(features, 10, seed=seed), labels)
    assert found.v_measure > 0.95


@pytest.mark.parametrize("features", [np.ones((6, 4)), np.eye(2)[[0, 1, 0, 1, 0, 1]]])
def test_fewer_different_points_than_clusters_leave_clusters_empty(features):
    found = cluster_assignments(features, 4)
    assert len(np.unique(found)) == len(np.unique(features, axis=0))


def test_a_single_point_is_a_cluster():
    assert cluster_assignments([[2.0, 3.0]], 1).tolist() == [0]


def test_clusters_of_separate_classes_agree_with_them():
    found = agreement(cluster_assignments(FEATURES, 3), LABELS)
    assert (found.homogeneity, found.completeness, found.v_measure) == pytest.approx((1, 1, 1))


def test_agreement_matches_entropies_worked_by_hand():
    # groups {0,0,1,1} and {0,1}: H(Y|G) = 1 bit in both groups' mix
    groups, labels = [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]
    p = np.array([4 / 6, 2 / 6])
    entropy = -(p * np.log(p)).sum()
    given = 4 / 6 * np.log(2)  # only the first group is mixed, evenly
    found = agreement(groups, labels)
    assert found.homogeneity == pytest.approx(1 - given / entropy)
    assert found.homogeneity == pytest.approx(homogeneity_score(labels, groups))


def test_silhouette_is_that_of_the_angles():
    unit = FEATURES.astype(float) / np.linalg.norm(FEATURES, axis=1, keepdims=True)
    angles = np.arccos(np.clip(unit @ unit.T, -1, 1))
    np.fill_diagonal(angles, 0)
    expected = silhouette_samples(angles, LABELS, metric="precomputed")
    np.testing.assert_allclose(angular_silhouette(FEATURES, LABELS), expected, atol=1e-6)
    np.testing.assert_allclose(angular_silhouette(5 * FEATURES, LABELS), expected, atol=1e-6)


def test_a_map_keeps_classes_together_and_can_be_repeated():
    found = tsne_map(FEATURES)
    assert np.array_equal(found, tsne_map(FEATURES))
    apart = np.linalg.norm(found[:, None] - found[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (LABELS[apart.argmin(1)] == LABELS).mean() > 0.95
    assert np.isfinite(tsne_map(np.ones((6, 3)))).all()


def test_bad_input_says_what_was_expected():
    with pytest.raises(ShapeError, match=r"embeddings \[90, 6\], labels \[2\]"):
        linear_probe(FEATURES, [0, 1], FEATURES)
    with pytest.raises(ShapeError, match=r"features of one width, got \[90, 6\] and \[90, 2\]"):
        linear_probe(FEATURES, LABELS, FEATURES[:, :2])
    with pytest.raises(StatisticError, match="at least 2 classes to train a probe on"):
        linear_probe(FEATURES, LABELS * 0, FEATURES)
    with pytest.raises(OptionError, match=r"clusters in \[1, 90\], got clusters=91"):
        cluster_assignments(FEATURES, 91)
    with pytest.raises(ShapeError, match=r"groups \[1\], labels \[2\]"):
        agreement([0], [0, 1])
    with pytest.raises(StatisticError, match="got 90 examples of 1 classes"):
        angular_silhouette(FEATURES, LABELS * 0)
    with pytest.raises(ShapeError, match="at least 4 examples for a map, got 3"):
        tsne_map(FEATURES[:3])
    with pytest.raises(NonFiniteError, match="finite embeddings"):
        tsne_map(FEATURES * np.nan)
    with pytest.raises(ShapeError, match=r"embeddings \[N, D\] with N, D >= 1, got \[90\]"):
        tsne_map(FEATURES[:, 0])
