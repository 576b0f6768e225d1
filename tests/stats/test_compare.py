import math

import numpy as np
import pytest
from scipy import stats

from hardsight.errors import OptionError, ShapeError, StatisticError
from hardsight.stats import compare_coefficients, compare_correlations

# Chen et al. 2020, Tables 2 and 6 to 9 (n = 29,987): coefficients, z, one-sided p. The paper cuts
# z after its last digit. Table 9's Spearman row repeats the z of another row and is left out.
AVH_TABLES = [
    ("resnet-50", "spearman", 0.360, 0.325, 4.85, 0.00001),
    ("resnet-50", "pearson", 0.385, 0.341, 6.2, 0.00001),
    ("resnet-50", "kendall", 0.257, 0.231, 3.38, 0.0003),
    ("alexnet", "spearman", 0.339, 0.325, 1.92, 0.027),
    ("alexnet", "pearson", 0.324, 0.31, 1.90, 0.028),
    ("alexnet", "kendall", 0.244, 0.23, 1.81, 0.035),
    ("vgg-19", "spearman", 0.349, 0.335, 1.94, 0.026),
    ("vgg-19", "pearson", 0.358, 0.343, 2.09, 0.018),
    ("vgg-19", "kendall", 0.244, 0.229, 1.94, 0.026),
    ("densenet-121", "pearson", 0.390, 0.347, 6.09, 0.00001),
    ("densenet-121", "kendall", 0.262, 0.234, 3.65, 0.0001),
]


@pytest.mark.parametrize(("model", "method", "avh", "confidence", "z", "p"), AVH_TABLES)
def test_fisher_reproduces_the_z_and_p_printed_in_the_avh_paper(
    model, method, avh, confidence, z, p
):
    got = compare_coefficients(
        avh, confidence, n=29987, method=method, test="fisher", alternative="greater"
    )
    digits = 1 if z == 6.2 else 2
    assert math.floor(got.z * 10**digits) / 10**digits == pytest.approx(z)
    assert got.p < p if p == 0.00001 else got.p == pytest.approx(p, abs=0.0006)


def test_steigers_own_example():
    # Steiger 1980, p. 247, n = 103: correlations .4 and .5 with a common variable, .1 with each
    # other. mean .45: psi = .1(.595) - .5(.2025)(.595 - .01) = .00026875,
    # s = psi / (1 - .2025)^2 = .000423, z = (.423649 - .549306) 10 / sqrt(2 - 2s) = -.889
    got = compare_coefficients(0.4, 0.5, between=0.1, n=103, method="pearson")
    assert got.z == pytest.approx(-0.889, abs=5e-4)
    assert got.p == pytest.approx(0.374, abs=5e-4)


def test_meng_rosenthal_and_rubins_own_example():
    # Meng et al. 1992, n = 15: r1 = .63, r2 = -.03, with each other -.19; printed z = 1.68.
    # mean square .1989, f = 1.19 / 1.6022 = .7427, h = 1 + .1989/.8011 (1 - f) = 1.0639,
    # z = (.7414 + .0300) sqrt(12 / (2 (1.19) 1.0639)) = 1.68
    got = compare_coefficients(0.63, -0.03, between=-0.19, n=15, method="pearson", test="meng")
    assert got.z == pytest.approx(1.68, abs=5e-3)
    assert got.p / 2 == pytest.approx(0.047, abs=5e-4)


@pytest.mark.parametrize(
    ("first", "second", "between", "n", "steiger", "meng", "zou"),
    [  # printed by the R package cocor 1.1 (Diedenhofen and Musch 2015) for data with these r
        (0.8066, 0.2383, 0.2255, 177, 8.5460, 8.3907, (0.4288, 0.7139)),
        (-0.1741, 0.2015, 0.3734, 646, -8.6124, -8.5080, (-0.4568, -0.2921)),
        (0.0228, 0.3522, 0.3718, 553, -7.1345, None, None),
        (0.2493, 0.3395, 0.4082, 553, -2.0660, None, None),
    ],
)
def test_dependent_tests_and_interval_agree_with_cocor(
    first, second, between, n, steiger, meng, zou
):
    def compare(test):
        return compare_coefficients(
            first, second, between=between, n=n, method="pearson", test=test
        )

    got = compare("steiger")
    assert got.z == pytest.approx(steiger, abs=2e-3)  # coefficients are printed to 4 digits
    if meng is not None:
        assert compare("meng").z == pytest.approx(meng, abs=2e-3)
        assert (got.low, got.high) == pytest.approx(zou, abs=2e-4)


def test_meng_caps_f_at_one():
    # (1 - r_x) / (2 (1 - mean square)) = 1.5 / (2 (1 - .41)) = 1.27, so f = 1 and h = 1
    got = compare_coefficients(0.9, -0.1, between=-0.5, n=53, method="pearson", test="meng")
    wanted = (math.atanh(0.9) - math.atanh(-0.1)) * math.sqrt(50 / (2 * 1.5))
    assert got.z == pytest.approx(wanted, rel=1e-12)


def rejections(method, test, *, tied=False):
    """Share of 200 data sets without a difference in which one is found at 5 %."""
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        y, shared, one, two = generator.normal(size=(4, 120))
        x1, x2 = y + shared + one, y + shared + two
        y = np.round(y) if tied else y
        found += compare_correlations(x1, x2, y, method=method, test=test, resamples=200).p < 0.05
    return found / 200


@pytest.mark.parametrize("method", ["spearman", "pearson", "kendall"])
@pytest.mark.parametrize("test", ["steiger", "meng"])
def test_dependent_tests_err_about_as_often_as_they_say(method, test):
    assert 0.005 <= rejections(method, test) <= 0.10


def test_the_bootstrap_test_errs_about_as_often_as_it_says_with_ties():
    assert 0.005 <= rejections("spearman", "bootstrap", tied=True) <= 0.10


def test_the_independent_test_hardly_ever_finds_anything_in_dependent_scores():
    assert rejections("spearman", "fisher") <= 0.01


@pytest.mark.parametrize("method", ["spearman", "pearson", "kendall"])
def test_comparison_from_data_is_the_one_from_its_coefficients(method):
    x1, x2, y = np.random.default_rng(1).normal(size=(3, 50)) + np.linspace(0, 2, 50)
    function = {
        "spearman": stats.spearmanr,
        "pearson": stats.pearsonr,
        "kendall": stats.kendalltau,
    }[method]
    first, second, between = (function(*pair).statistic for pair in ((x1, y), (x2, y), (x1, x2)))
    got = compare_correlations(x1, x2, y, method=method)
    wanted = compare_coefficients(first, second, between=between, n=50, method=method)
    assert got.difference == pytest.approx(first - second)
    assert (got.z, got.p, got.low, got.high) == pytest.approx(
        (wanted.z, wanted.p, wanted.low, wanted.high)
    )


def test_bootstrap_z_is_near_steigers_on_well_behaved_data():
    generator = np.random.default_rng(2)
    y, one, two = generator.normal(size=(3, 400))
    x1, x2 = y + one, y + 2 * two
    steiger = compare_correlations(x1, x2, y, method="pearson")
    boot = compare_correlations(x1, x2, y, method="pearson", test="bootstrap")
    assert boot.z == pytest.approx(steiger.z, rel=0.15)
    assert (boot.low, boot.high) == pytest.approx((steiger.low, steiger.high), abs=0.03)
    again = compare_correlations(x1, x2, y, method="pearson", test="bootstrap")
    assert again == boot


@pytest.mark.parametrize("test", ["steiger", "meng", "fisher", "bootstrap"])
def test_magnitudes_compare_a_hardness_with_a_confidence(test):
    y, one, two = np.random.default_rng(4).normal(size=(3, 80))
    hardness, confidence = -(y + one), y + 2 * two
    wanted = compare_correlations(-hardness, confidence, y, test=test, resamples=100)
    got = compare_correlations(hardness, confidence, y, test=test, magnitudes=True, resamples=100)
    assert got.first > 0
    assert (got.difference, got.z, got.between) == pytest.approx(
        (wanted.difference, wanted.z, wanted.between)
    )
    assert compare_correlations(hardness, confidence, y, test=test, resamples=100).difference < 0


def test_swapping_the_scores_flips_the_sign_and_one_sided_p_values_follow():
    x1, x2, y = np.random.default_rng(5).normal(size=(3, 40)) + np.linspace(0, 3, 40)
    one, two = compare_correlations(x1, x2, y), compare_correlations(x2, x1, y)
    assert (one.z, one.low, one.high) == pytest.approx((-two.z, -two.high, -two.low))
    greater = compare_correlations(x1, x2, y, alternative="greater").p
    less = compare_correlations(x1, x2, y, alternative="less").p
    assert greater + less == pytest.approx(1)
    assert one.p == pytest.approx(2 * min(greater, less))


@pytest.mark.parametrize("test", ["steiger", "meng", "fisher", "bootstrap"])
def test_a_score_does_not_differ_from_itself(test):
    x, y = np.random.default_rng(6).normal(size=(2, 30))
    got = compare_correlations(x, x, y, test=test, resamples=50)
    assert (got.difference, got.z, got.p) == (0.0, 0.0, 1.0)


def test_comparisons_refuse_what_they_cannot_answer():
    y = [1, 2, 3, 4, 5]
    with pytest.raises(StatisticError, match=r'infinite: use compare_correlations.*"bootstrap"'):
        compare_correlations(y, [2, 1, 3, 4, 5], y)
    with pytest.raises(OptionError, match=r'test="steiger" needs .* pass between='):
        compare_coefficients(0.4, 0.5, n=20)
    with pytest.raises(StatisticError, match="at least 4 values for this test, got n=3"):
        compare_coefficients(0.4, 0.5, n=3, between=0.1)
    with pytest.raises(StatisticError, match="at least 5 values in x1, x2, y, got 4"):
        compare_correlations([1, 2, 3, 4], [1, 3, 2, 4], [1, 2, 4, 3], method="kendall")
    with pytest.raises(StatisticError, match=r"no data can have the correlations 0.9, -0.9"):
        compare_coefficients(0.9, -0.9, between=0.9, n=20, method="pearson")
    with pytest.raises(OptionError, match=r"unknown test 'stieger'. Did you mean 'steiger'"):
        compare_correlations(y, y, y, test="stieger")
    with pytest.raises(OptionError, match="unknown alternative 'bigger'"):
        compare_coefficients(0.4, 0.5, n=20, between=0.1, alternative="bigger")
    with pytest.raises(ShapeError, match=r"x1 \[4\], x2 \[5\], y \[5\]"):
        compare_correlations([1, 2, 3, 4], y, y)
    with pytest.raises(StatisticError, match="x2 is constant"):
        compare_correlations(y, [1, 1, 1, 1, 1], [1, 3, 2, 4, 5])
    with pytest.raises(StatisticError, match="correlate 1 with each other"):
        compare_coefficients(0.4, 0.41, n=20, between=1.0, test="meng")


def test_fisher_of_few_examples_worked_by_hand():
    # atanh(.5) = .549306, atanh(.3) = .309520; their difference over sqrt(2 / 25)
    found = compare_coefficients(0.5, 0.3, n=28, test="fisher")
    assert found.z == pytest.approx(0.847773, abs=1e-6)
