"""Scores against people, from arrays and from tables."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats as scipy_stats
from scipy.stats import spearmanr

import hardsight as hs
from hardsight.errors import DataError, OptionError, ShapeError, StatisticError, TableError
from hardsight.run.study import human_study, study_human

SCORES = ("avh", "model_confidence", "feature_norm")
HARDER = {"avh": True, "model_confidence": False, "feature_norm": False}


def study_of(people, **changes):
    given = {**people, **changes}
    return human_study(
        {name: given[name] for name in SCORES if given[name] is not None},
        given["frequency"],
        labels=given["labels"],
        higher_is_harder=HARDER,
    )


def outcomes(study):
    return {one.name: one for one in study.hypotheses}


def test_coefficients_are_those_of_scipy(people):
    found = study_of(people).score("avh").correlations
    for method, theirs in (
        ("spearman", scipy_stats.spearmanr),
        ("pearson", scipy_stats.pearsonr),
        ("kendall", scipy_stats.kendalltau),
    ):
        assert found[method].value == pytest.approx(
            theirs(people["avh"], people["frequency"]).statistic
        )


def test_the_four_hypotheses_come_out_as_the_data_was_made(people):
    found = outcomes(study_of(people))
    assert found["H1"].rejected
    assert found["H1"].outcome.startswith("Null hypothesis rejected: Spearman -0.7")
    assert found["H2"].rejected
    assert found["H3"].rejected
    assert "AVH is the stronger" in found["H3"].outcome
    assert found["H4"].rejected is False
    assert found["H4"].outcome.startswith("Failure to reject the null hypothesis: Spearman")


def test_the_third_hypothesis_flips_when_the_two_scores_change_places(people):
    swapped = study_of(people, avh=-people["model_confidence"], model_confidence=-people["avh"])
    found = outcomes(swapped)["H3"]
    assert found.rejected is False
    assert "model confidence is the stronger" in found.outcome
    assert swapped.comparisons[0].difference < 0


def test_two_scores_of_equal_strength_are_not_told_apart(people):
    draw = np.random.default_rng(8)
    drawn = [1 - people["avh"] + 0.01 * draw.normal(size=600) for _ in range(20)]
    strength = abs(spearmanr(people["avh"], people["frequency"]).statistic)
    confidence = min(
        drawn, key=lambda values: abs(spearmanr(values, people["frequency"]).statistic - strength)
    )
    found = outcomes(study_of(people, model_confidence=confidence))["H3"]
    assert found.rejected is False
    assert "no difference is shown" in found.outcome


def test_a_score_that_points_the_wrong_way_is_said_to(people):
    found = outcomes(study_of(people, avh=-people["avh"]))["H1"]
    assert found.rejected
    assert "in the direction opposite to the expected one" in found.outcome


def test_the_paper_s_test_stands_beside_the_dependent_one(people):
    first, second = study_of(people).comparisons[:2]
    assert (first.test, second.test) == ("steiger", "fisher")
    assert (first.first, first.second) == (second.first, second.second)
    # Fisher z by hand
    z = (np.arctanh(first.first) - np.arctanh(first.second)) / np.sqrt(2 / (600 - 3))
    assert second.z == pytest.approx(z)
    assert first.z > second.z  # the scores agree, and only the dependent test knows


def test_p_values_are_raised_over_scores_and_over_hypotheses(people):
    study = study_of(people)
    plain = [one.correlations["spearman"].p for one in study.scores]
    raised = [one.p_adjusted for one in study.scores]
    order = np.argsort(plain)
    by_hand = np.maximum.accumulate(np.array(plain)[order] * np.arange(len(plain), 0, -1))
    np.testing.assert_allclose(np.array(raised)[order], np.minimum(by_hand, 1))
    assert all(one.p_adjusted >= one.p for one in study.hypotheses)


def test_the_norm_is_scaled_within_its_class_before_the_fourth_hypothesis(people):
    # people find class 2 easiest and its norms are largest; within a class nothing is left
    easy = np.clip(0.4 + 0.25 * people["labels"] + 0.02 * (people["frequency"] - 0.5), 0, 1)
    study = study_of(people, frequency=easy, feature_norm=people["feature_norm"])
    plain = study.score("feature_norm").correlations["spearman"].value
    scaled = study.score("class_normalized_feature_norm").correlations["spearman"]
    assert plain > 0.5
    assert abs(scaled.value) < plain / 2  # the range of a class is drawn, so something may be left
    assert abs(study.score("feature_norm").within_class.value) < 0.2
    assert f"{scaled.value:.3f}" in outcomes(study)["H4"].outcome


def test_bins_are_half_open_and_count_every_example_once(people):
    bins = study_of(people).score("avh").bins
    people_in = np.floor(np.minimum(people["frequency"], 0.999) * 5 + 1e-9)
    assert [one.n for one in bins] == [int((people_in == b).sum()) for b in range(5)]
    assert sum(one.n for one in bins) == 600


def test_top_heavy_frequencies_get_fewer_quantile_bins(people):
    frequency = people["frequency"]
    heavy = np.ones_like(frequency)
    lowest = np.argsort(frequency)[:120]
    heavy[lowest] = frequency[lowest]
    bins = study_of(people, frequency=heavy).score("avh").quantile_bins
    assert [group.n for group in bins] == [120, 480]  # 80 % share the highest frequency


def test_unknown_frequencies_and_scores_are_left_out_and_counted(people):
    frequency = people["frequency"].copy()
    frequency[:50] = np.nan
    avh = people["avh"].copy()
    avh[40:60] = np.nan
    study = study_of(people, frequency=frequency, avh=avh)
    assert (study.n, study.left_out) == (550, 50)
    assert study.score("avh").n == 540
    assert study.comparisons[0].n == 540


def test_a_constant_score_is_named_and_its_hypothesis_not_tested(people):
    study = study_of(people, avh=np.full(600, 0.1))
    assert "avh is constant" in study.score("avh").reason
    found = outcomes(study)
    assert found["H1"].rejected is None
    assert found["H1"].outcome.startswith("Not tested: avh is constant")
    assert found["H3"].rejected is None
    assert study.tables()


def test_a_missing_column_leaves_its_hypothesis_untested(people):
    found = outcomes(study_of(people, model_confidence=None))
    assert found["H2"].outcome == "Not tested: there is no usable column model_confidence."
    assert found["H3"].rejected is None
    assert found["H1"].rejected


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"frequency": np.full(600, 0.5)}, StatisticError, "all 600 human frequencies are 0.5"),
        ({"frequency": np.full(600, np.nan)}, StatisticError, "is known, got 0"),
        ({"frequency": np.arange(600.0)}, OptionError, r"in \[0, 1\], got 0 to 599; divide"),
        ({"frequency": np.ones(5)}, ShapeError, r"frequency \[5\], labels \[600\], avh \[600\]"),
    ],
)
def test_frequencies_that_cannot_be_used_are_explained(people, change, error, message):
    with pytest.raises(error, match=message):
        study_of(people, **change)


def test_an_independent_test_is_no_default(people):
    with pytest.raises(OptionError, match="got 'fisher'; the paper's 'fisher' is always given"):
        human_study({"avh": people["avh"]}, people["frequency"], labels=people["labels"],
                    test="fisher")  # fmt: skip


def csv(tmp_path, header, rows):
    file = tmp_path / "people.csv"
    file.write_text("\n".join([header, *(f"{key},{value}" for key, value in rows)]) + "\n")
    return file


@pytest.mark.parametrize("key", ["index", "id"])
def test_a_table_and_a_csv_give_the_study_of_their_arrays(tmp_path, table, people, key):
    names = table.column(key)
    order = np.random.default_rng(0).permutation(600)
    rows = [(names[at], people["frequency"][at]) for at in order]
    file = csv(tmp_path, f"{key},frequency", rows)
    study = study_human(table, file, out=tmp_path / "study")
    assert study.score("avh") == study_of(people).score("avh")
    stored = json.loads((tmp_path / "study" / "study.json").read_text())
    assert stored["kind"] == "human"
    assert stored["result"]["hypotheses"][0]["name"] == "H1"
    assert stored["versions"]["scipy"]
    assert stored["settings"]["human"] == str(file)


def test_the_root_has_the_verb(tmp_path, table, people):
    np.save(tmp_path / "counts.npy", np.random.default_rng(0).integers(1, 9, size=(600, 3)))
    assert hs.study_human(table, tmp_path / "counts.npy").n == 600


def test_counts_of_another_length_are_refused(tmp_path, table):
    np.save(tmp_path / "counts.npy", np.ones((599, 3), dtype=int))
    with pytest.raises(ShapeError, match=r"expected human counts \[600, 3\] .*got \[599, 3\]"):
        study_human(table, tmp_path / "counts.npy")
    np.save(tmp_path / "counts.npy", np.ones((600, 4), dtype=int))
    with pytest.raises(ShapeError, match=r"got \[600, 4\]; use the counts of this split"):
        study_human(table, tmp_path / "counts.npy")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0.5), (0, 0.6)], "line 3: '0' is listed twice"),
        ([(0, 0.5), ("00", 0.6)], "line 3: '0' is listed twice"),
        ([(600, 0.5)], r"an index from 0 to 599 in .*has 600 examples, got '600'"),
        ([(-1, 0.5)], r"an index from 0 to 599 in .*got '-1'"),
        ([("1.png", 0.5)], r"an index from 0 to 599 in .*got '1.png'"),
        ([(1, 50)], r"line 2: expected a frequency in \[0, 1\], got '50'"),
        ([], r"lists none of the 600 examples"),
    ],
)
def test_an_index_that_repeats_or_runs_out_is_named(tmp_path, table, rows, message):
    with pytest.raises(DataError, match=message):
        study_human(table, csv(tmp_path, "index,frequency", rows))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_csv_that_is_not_utf_8_is_named_with_what_to_do(tmp_path, table, encoding):
    file = tmp_path / "people.csv"
    file.write_bytes("id,frequency\nplain.png,0.5\ncafé.png,0.5\n".encode(encoding))
    line = 3 if encoding == "latin-1" else 1
    with pytest.raises(DataError, match=rf"people.csv, line {line}: .* not UTF-8; save it as UTF"):
        study_human(table, file)


def test_a_csv_that_cannot_be_parsed_is_named(tmp_path, table):
    file = tmp_path / "people.csv"
    file.write_text("id,frequency\n" + "x" * 200_000 + ",0.5\n")
    with pytest.raises(DataError, match=r"people.csv, line 2: .*field larger"):
        study_human(table, file)


def test_a_score_the_table_does_not_have_is_named(tmp_path, table):
    with pytest.raises(TableError, match=r"unknown score 'avhh'. Did you mean 'avh'"):
        study_human(table, tmp_path / "none.csv", scores=["avhh"])


@pytest.mark.parametrize("alpha", [0, 1, 5, float("nan")])
def test_a_level_at_which_nothing_can_be_decided_is_refused(people, alpha):
    columns = {name: people[name] for name in SCORES}
    with pytest.raises(OptionError, match=rf"expected alpha in \(0, 1\), got {alpha}"):
        human_study(columns, people["frequency"], labels=people["labels"], alpha=alpha)
