"""Evaluate features: a linear probe, clusters, silhouettes, and maps to look at."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hardsight.errors import NonFiniteError, OptionError, ShapeError, StatisticError
from hardsight.geometry import pairwise_angles

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

_STARTS = 10  # starts of k-means, which are cheap in a few principal directions


@dataclass(frozen=True)
class Agreement:
    """How well a grouping of examples agrees with their labels, each in [0, 1].

    Attributes:
        homogeneity: 1 if every group holds only one class.
        completeness: 1 if all examples of a class are in one group.
        v_measure: harmonic mean of the two.
        n: number of examples.
    """

    homogeneity: float
    completeness: float
    v_measure: float
    n: int


def linear_probe(
    train_embeddings: ArrayLike,
    train_labels: ArrayLike,
    embeddings: ArrayLike,
    *,
    inverse_penalty: float = 1.0,
    most_iterations: int = 500,
) -> Labels:
    """Return the predictions of a logistic regression trained on frozen features.

    Features are first centred and scaled to unit variance, both measured on the training part.

    Args:
        train_embeddings: features to train on, ``[M, D]``.
        train_labels: class indices of these features, ``[M]``.
        embeddings: features to predict, ``[N, D]``.
        inverse_penalty: inverse strength of the L2 penalty, scikit-learn's ``C``.
        most_iterations: limit of the optimiser's iterations.

    Returns:
        Class indices, ``[N]``.

    Raises:
        ShapeError: the arrays do not match in shape.
        NonFiniteError: a feature is NaN or infinite.
        StatisticError: there is only one class.

    Example:
        >>> axes = np.eye(2).repeat(3, axis=0)
        >>> linear_probe(axes, [0, 0, 0, 1, 1, 1], [[0.9, 0.1], [0.2, 0.7]]).tolist()
        [0, 1]

    Reference:
        Zhao et al., Well-classified Examples are Underestimated, AAAI 2022, section 4.3: the
        representation is judged by a new classifier that is trained on it.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    known, labels = _matched(train_embeddings, train_labels)
    others = _features(embeddings)
    if known.shape[1] != others.shape[1]:
        raise ShapeError(
            f"expected features of one width, got {list(known.shape)} and {list(others.shape)}"
        )
    if len(np.unique(labels)) < 2:
        raise StatisticError("expected at least 2 classes to train a probe on, got 1")
    probe = make_pipeline(
        StandardScaler(), LogisticRegression(C=inverse_penalty, max_iter=most_iterations)
    )
    with warnings.catch_warnings():
        # stopping before convergence changes the accuracy by less than its interval
        warnings.simplefilter("ignore", ConvergenceWarning)
        probe.fit(known, labels)
    return np.asarray(probe.predict(others), dtype=np.int64)


def cluster_assignments(embeddings: ArrayLike, clusters: int, *, seed: int = 0) -> Labels:
    """Return groups of features by k-means, which does not see the labels.

    The first centres come from the best of 10 runs of k-means in the space of the first
    ``clusters`` principal directions, which is close to the best grouping. This was measured on 12
    mixtures (64 to 2,048 wide, 10 or 100 groups, 2,000 or 5,000 rows) and the digits, with 3 or 6
    seeds each, against the least sum of squares that any run found:

    ==================  ============  ==============  ================================  ============
    start               within .01 %  above the best  off in V-measure (mean, largest)  one core
    ==================  ============  ==============  ================================  ============
    this one            59 %          0.04 %          0.009, 0.044                      0.5 s
    best of 4 plain     22 %          0.62 %          0.071, 0.230                      0.5 s
    best of 20 plain    27 %          0.44 %          0.053, 0.165                      2.1 s
    ==================  ============  ==============  ================================  ============

    Args:
        embeddings: features, ``[N, D]``.
        clusters: number of groups, usually the number of classes.
        seed: seed of the first centres.

    Returns:
        Group indices, ``[N]``.

    Raises:
        ShapeError: the features are not a matrix.
        NonFiniteError: a feature is NaN or infinite.
        OptionError: there are fewer examples than groups.

    Example:
        >>> result = cluster_assignments([[0.0], [0.1], [5.0], [5.1]], 2)
        >>> bool(result[0] == result[1] != result[2] == result[3])
        True

    Reference:
        Ding and He, K-means clustering via principal component analysis, ICML 2004: the centres of
        the relaxed problem lie in the span of the principal directions.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    points = _features(embeddings)
    if not 1 <= clusters <= len(points):
        raise OptionError(f"expected clusters in [1, {len(points)}], got clusters={clusters}")
    with warnings.catch_warnings():
        # with fewer distinct points than groups, some groups stay empty, which does no harm
        warnings.simplefilter("ignore", ConvergenceWarning)
        centres = _first_centres(points, clusters, seed)
        groups = KMeans(clusters, init=centres, n_init=1).fit_predict(points)
    return np.asarray(groups, dtype=np.int64)


def _first_centres(points: Floats, clusters: int, seed: int) -> Floats:
    """Return centres ``[clusters, D]`` of the best k-means in the first principal directions."""
    from sklearn.cluster import KMeans
    from sklearn.utils.extmath import randomized_svd

    middle = points.mean(axis=0)
    rank = min(clusters, *points.shape)
    _, _, directions = randomized_svd(points - middle, rank, random_state=seed)  # [rank, D]
    fitted = KMeans(clusters, n_init=_STARTS, random_state=seed).fit(
        (points - middle) @ directions.T
    )
    centres: Floats = middle + fitted.cluster_centers_ @ directions
    return centres


def agreement(groups: ArrayLike, labels: ArrayLike) -> Agreement:
    r"""Return homogeneity, completeness and V-measure of a grouping against labels.

    .. math:: h = 1 - \frac{H(Y|G)}{H(Y)}, \quad c = 1 - \frac{H(G|Y)}{H(G)}, \quad
        v = \frac{2hc}{h + c}

    The groups may be clusters of features or predicted classes. These are two different questions,
    and the AMC study reports the second.

    Args:
        groups: group indices, ``[N]``.
        labels: class indices, ``[N]``.

    Raises:
        ShapeError: the columns differ in length, or are empty.

    Example:
        >>> agreement([1, 1, 0, 0], [0, 0, 1, 1]).v_measure
        1.0

    Reference:
        Rosenberg and Hirschberg, V-Measure, EMNLP 2007; Choi et al., AMC-Loss, section 4.1.
    """
    from sklearn.metrics import homogeneity_completeness_v_measure

    grouped, truth = np.asarray(groups), np.asarray(labels)
    if grouped.shape != truth.shape or truth.ndim != 1 or not len(truth):
        raise ShapeError(
            "expected one row per example in every tensor and at least 1 row, got groups "
            f"{list(grouped.shape)}, labels {list(truth.shape)}"
        )
    homogeneity, completeness, v_measure = homogeneity_completeness_v_measure(truth, grouped)
    return Agreement(float(homogeneity), float(completeness), float(v_measure), len(truth))


def angular_silhouette(embeddings: ArrayLike, labels: ArrayLike) -> Floats:
    r"""Return per example how much nearer in angle its own class is than the next one.

    .. math:: \frac{b - a}{\max(a, b)}

    where :math:`a` is the mean angle to the other examples of its class, and :math:`b` is the
    smallest mean angle to the examples of another class.

    Args:
        embeddings: features, ``[N, D]``. All N by N angles are held, so pass a few thousand.
        labels: class indices, ``[N]``.

    Returns:
        ``[N]`` in [-1, 1]; 0 for an example that is alone in its class.

    Raises:
        ShapeError: the arrays do not match in shape.
        StatisticError: fewer than 2 classes, or no class with 2 examples.

    Example:
        >>> axes = [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]
        >>> angular_silhouette(axes, [0, 0, 1, 1]).round(2).tolist()
        [1.0, 1.0, 1.0, 1.0]

    Reference:
        Rousseeuw, Silhouettes, 1987, with the geodesic distance of the unit sphere.
    """
    from sklearn.metrics import silhouette_samples

    points, truth = _matched(embeddings, labels)
    classes = len(np.unique(truth))
    if not 2 <= classes < len(truth):
        raise StatisticError(
            f"expected at least 2 classes and a class with 2 examples, got {len(truth)} examples "
            f"of {classes} classes"
        )
    vectors = torch.from_numpy(points)
    angles = pairwise_angles(vectors, vectors).numpy()
    angles = (angles + angles.T) / 2  # exactly symmetric, in spite of rounding
    np.fill_diagonal(angles, 0.0)  # scikit-learn requires an exact 0
    return np.asarray(silhouette_samples(angles, truth, metric="precomputed"), dtype=np.float64)


def tsne_map(embeddings: ArrayLike, *, perplexity: float = 30.0, seed: int = 0) -> Floats:
    """Return positions on a plane that keep neighbours together, by t-SNE.

    Distances between groups and sizes of groups have no meaning on such a map.

    Args:
        embeddings: features, ``[N, D]``.
        perplexity: roughly how many neighbours count; lowered if there are fewer than 91 examples.
        seed: the same seed gives the same map.

    Returns:
        ``[N, 2]``.

    Raises:
        ShapeError: fewer than 4 examples.
        NonFiniteError: a feature is NaN or infinite.

    Example:
        >>> tsne_map(np.eye(8)).shape
        (8, 2)

    Reference:
        van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 2008.
    """
    from sklearn.manifold import TSNE

    points = _features(embeddings)
    if len(points) < 4:
        raise ShapeError(f"expected at least 4 examples for a map, got {len(points)}")
    # scikit-learn requires a perplexity below the number of examples
    near = min(perplexity, (len(points) - 1) / 3)
    # a start by PCA needs two features and some variance
    start = "pca" if points.shape[1] > 1 and np.ptp(points, axis=0).max() > 0 else "random"
    places = TSNE(perplexity=near, init=start, random_state=seed).fit_transform(points)
    return np.asarray(places, dtype=np.float64)


def _matched(embeddings: ArrayLike, labels: ArrayLike) -> tuple[Floats, Labels]:
    points, truth = _features(embeddings), np.asarray(labels)
    if truth.shape != points.shape[:1]:
        raise ShapeError(
            "expected one row per example in every tensor, got embeddings "
            f"{list(points.shape)}, labels {list(truth.shape)}"
        )
    return points, truth


def _features(embeddings: ArrayLike) -> Floats:
    points = np.asarray(embeddings, dtype=np.float64)
    if points.ndim != 2 or not points.size:
        raise ShapeError(f"expected embeddings [N, D] with N, D >= 1, got {list(points.shape)}")
    if not bool(np.isfinite(points).all()):
        raise NonFiniteError("expected finite embeddings, got NaN or infinity")
    return points
