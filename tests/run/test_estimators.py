"""Classifiers of scikit-learn: scored as they are, held to float64, and refused in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Perceptron,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import hardsight as hs
from hardsight.errors import (
    DataError,
    HardsightWarning,
    HeadError,
    LabelError,
    ModelError,
    OptionError,
    ShapeError,
)

LINEAR = [
    LogisticRegression(max_iter=300),
    LinearSVC(dual="auto"),  # the default since 1.5
    LinearSVC(dual="auto", fit_intercept=False),
    SGDClassifier(random_state=0),
    SGDClassifier(loss="log_loss", random_state=0),
    RidgeClassifier(),
    Perceptron(random_state=0),
    LinearDiscriminantAnalysis(),
    make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
]


def made_up(classes: int, count: int = 150, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(7)
    labels = np.arange(count) % classes
    centres = draw.normal(size=(classes, width))
    return centres[labels] + draw.normal(size=(count, width)), labels


def oracle(features: np.ndarray, head: np.ndarray, bias: np.ndarray, y: np.ndarray) -> dict:
    """Every score by its equation, in float64."""
    rows = np.arange(len(y))
    lengths = np.outer(np.linalg.norm(features, axis=1), np.linalg.norm(head, axis=1))
    angles = np.arccos(np.clip(features @ head.T / lengths, -1, 1))
    logits = features @ head.T + bias
    return {
        "avh": angles[rows, y] / angles.sum(1),
        "target_angle": angles[rows, y],
        "feature_norm": np.linalg.norm(features, axis=1),
        "conditional_energy": -logits[rows, y],
        "min_energy": -logits.max(1),
        "free_energy": -np.logaddexp.reduce(logits, axis=1),
        **of_probs(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True), y),
    }


def of_probs(log_probs: np.ndarray, y: np.ndarray) -> dict:
    probs, rows, classes = np.exp(log_probs), np.arange(len(y)), log_probs.shape[1]
    others = np.where(np.arange(classes) == y[:, None], -np.inf, log_probs)
    return {
        "model_confidence": probs[rows, y],
        "logit_margin": log_probs[rows, y] - others.max(1),
        "el2n": np.linalg.norm(probs - np.eye(classes)[y], axis=1),
        "entropy": -np.where(probs > 0, probs * log_probs, 0).sum(1),
    }


def compare(table: hs.table.ScoreTable, expected: dict) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(table.column(name), values, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*decision values")
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("model", LINEAR, ids=lambda model: type(model).__name__)
def test_scores_of_a_linear_classifier_match_their_equations(model, classes):
    rows, labels = made_up(classes)
    model.fit(rows, labels)
    table = hs.score(model, rows, labels=labels)
    last = model[-1] if hasattr(model, "steps") else model
    features = model[:-1].transform(rows) if hasattr(model, "steps") else rows
    head = np.atleast_2d(last.coef_)
    bias = np.broadcast_to(last.intercept_, len(head))
    if classes == 2:  # one row: the log-odds of the second class, halved for either side
        head, bias = np.vstack([-head, head]) / 2, np.concatenate([-bias, bias]) / 2
    compare(table, oracle(features, head, bias, labels))
    np.testing.assert_array_equal(table.column("prediction"), model.predict(rows))


@pytest.mark.filterwarnings("ignore:.*no head that can be read")
@pytest.mark.parametrize(
    "model", [LogisticRegression(), GaussianNB()], ids=lambda model: type(model).__name__
)
def test_chosen_rows_keep_their_numbers_and_scores(model, tmp_path):
    rows, labels = made_up(3)
    model.fit(rows, labels)
    whole = hs.score(model, rows, labels=labels)
    listed = hs.select(whole, keep=0.3, by="el2n")
    hs.selection.write_rows(tmp_path / "rows.parquet", whole, listed)
    for some in (listed, tmp_path / "rows.parquet"):
        table = hs.score(model, rows, labels=labels, rows=some)
        assert table.column("index").tolist() == listed.tolist()
        np.testing.assert_array_equal(table.column("el2n"), whole.column("el2n")[listed])
        assert table.metadata["data"]["fingerprint"] == whole.metadata["data"]["fingerprint"]
        assert table.metadata["data"]["chosen"]["of"] == len(labels)
    with pytest.raises(DataError, match="was selected from other data"):
        hs.score(model, rows + 1, labels=labels, rows=tmp_path / "rows.parquet")


def test_two_classes_have_the_probabilities_that_the_model_gives():
    rows, labels = made_up(2)
    model = LogisticRegression().fit(rows, labels)
    confidence = hs.score(model, rows, labels=labels).column("model_confidence")
    own = model.predict_proba(rows)[np.arange(len(labels)), labels]
    np.testing.assert_allclose(confidence, own, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.*no head that can be read")
@pytest.mark.parametrize(
    "model",
    [GradientBoostingClassifier(n_estimators=5), GaussianNB()],
    ids=lambda model: type(model).__name__,
)
def test_a_model_without_a_linear_head_has_the_scores_that_probabilities_decide(model):
    rows, labels = made_up(3)
    model.fit(rows, labels)
    fresh = rows + 0.5
    table = hs.score(model, fresh, labels=labels)
    compare(table, of_probs(np.log(model.predict_proba(fresh)), labels))
    assert set(table.scores) == {"model_confidence", "logit_margin", "el2n", "entropy"}
    assert {"avh", "free_energy", "min_energy"} <= set(table.metadata["missing"]["scores"])


def test_what_probabilities_leave_open_is_said():
    rows, labels = made_up(3)
    model = GradientBoostingClassifier(n_estimators=2).fit(rows, labels)
    with pytest.warns(HardsightWarning, match=r"avh.*free_energy are missing.*no linear head"):
        hs.score(model, rows, labels=labels)
    with pytest.raises(HeadError, match=r"avh, min_energy cannot be computed.*only probabilities"):
        hs.score(model, rows, labels=labels, scores=["avh", "min_energy", "entropy"])
    assert hs.score(model, rows, labels=labels, scores="entropy").scores == ["entropy"]


@pytest.mark.filterwarnings("ignore:.*no head that can be read")
def test_a_probability_of_0_gives_an_infinite_margin_and_that_is_said(tmp_path):
    rows, labels = made_up(2)
    model = RandomForestClassifier(n_estimators=5, random_state=0).fit(rows, labels)
    with pytest.warns(HardsightWarning, match="probability of exactly 0: logit_margin"):
        table = hs.score(model, rows, labels=labels, out=tmp_path / "run")
    assert np.isposinf(table.column("logit_margin")).any()
    assert hs.write_report(tmp_path / "run").is_file()  # and no page fails on it


def test_decision_values_are_told_from_probabilities():
    rows, labels = made_up(3)
    with pytest.warns(HardsightWarning, match="LinearSVC gives decision values"):
        table = hs.score(LinearSVC(dual="auto").fit(rows, labels), rows, labels=labels)
    assert "softmax" in table.metadata["model"]["reading"]
    plain = hs.score(LogisticRegression().fit(rows, labels), rows, labels=labels)
    assert "reading" not in plain.metadata["model"]


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3], [-1, 0, 7], ["red", "green", "blue"], [10.0, 20.0, 30.0], [9, 10, 100]],
    ids=str,
)
def test_labels_are_matched_by_value_never_by_position(values):
    rows, labels = made_up(3)
    names = np.array(values)[labels]
    model = LogisticRegression().fit(rows, names)
    table = hs.score(model, rows, labels=names)
    place = {value: at for at, value in enumerate(model.classes_.tolist())}
    np.testing.assert_array_equal(table.column("label"), [place[name] for name in names.tolist()])
    assert table.accuracy() == pytest.approx(model.score(rows, names))
    assert table.metadata["class_order"]["taken"] == "name"
    part = names != values[0]  # one class is not in the data
    fewer = hs.score(model, rows[part], labels=names[part])
    np.testing.assert_array_equal(fewer.column("label"), table.column("label")[part])


def test_labels_may_be_of_another_type_if_they_are_the_same_values():
    rows, labels = made_up(2)
    model = LogisticRegression().fit(rows, labels.astype(bool))
    expected = hs.score(model, rows, labels=labels.astype(bool)).column("avh")
    for same in (labels, labels.astype(float), labels.tolist(), pd.Series(labels)):
        np.testing.assert_array_equal(hs.score(model, rows, labels=same).column("avh"), expected)


def test_labels_that_are_not_the_model_s_are_refused():
    rows, labels = made_up(2)
    model = LogisticRegression().fit(rows, labels + 1)
    with pytest.raises(LabelError, match=r"labels 0 are not among the 2 classes .*\(1, 2\)"):
        hs.score(model, rows, labels=labels)
    by_place = hs.score(model, rows, labels=labels, class_order="position")
    assert by_place.accuracy() == pytest.approx(model.score(rows, labels + 1))
    with pytest.raises(LabelError, match="1 of 150 labels in the labels are missing"):
        hs.score(model, rows, labels=np.where(np.arange(150) == 3, np.nan, labels + 1))
    with pytest.raises(LabelError, match=r"one label per row, got labels \[150, 2\]"):
        hs.score(model, rows, labels=np.eye(2)[labels])
    with pytest.raises(ShapeError, match=r"features \[150, 6\], labels \[149\]"):
        hs.score(model, rows, labels=(labels + 1)[:-1])


def test_names_that_the_user_states_are_matched_with_the_model_s():
    rows, labels = made_up(2)
    words = np.array(["ham", "spam"])[labels]
    model = LogisticRegression().fit(rows, words)
    turned = hs.score(model, rows, labels=1 - labels, classes=["spam", "ham"])
    plain = hs.score(model, rows, labels=words)
    np.testing.assert_array_equal(turned.column("avh"), plain.column("avh"))
    called = LogisticRegression().fit(rows, labels)
    named = hs.score(called, rows, labels=words, model_classes=["ham", "spam"])
    np.testing.assert_array_equal(named.column("label"), labels)


def test_sparse_features_of_text_are_scored_through_the_pipeline():
    texts = ["a fine film", "a dull film", "fine and warm", "dull and cold"] * 10
    labels = ["good", "bad"] * 20
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, labels)
    table = hs.score(model, texts, labels=labels, batch_size=7)
    features = model[:-1].transform(texts)
    again = hs.score(model[-1], features, labels=labels)
    column = hs.score(model[-1], sparse.coo_matrix(features), labels=labels)
    for other in (again, column):
        np.testing.assert_allclose(table.column("avh"), other.column("avh"))
    head = np.vstack([-model[-1].coef_, model[-1].coef_]) / 2
    bias = np.concatenate([-model[-1].intercept_, model[-1].intercept_]) / 2
    compare(table, oracle(features.toarray(), head, bias, np.array([1, 0] * 20)))


def test_a_table_of_arrow_is_read_by_the_names_of_its_columns():
    draw = np.random.default_rng(3)
    frame = pd.DataFrame(draw.normal(size=(30, 3)), columns=["a", "b", "c"])
    labels = (frame["a"] > 0).astype(int)
    model = LogisticRegression().fit(frame, labels)
    turned = pa.Table.from_pandas(frame[["c", "b", "a"]], preserve_index=False)
    found = hs.score(model, turned, labels=labels, device="cpu").to_pandas()
    expected = hs.score(model, frame, labels=labels, device="cpu").to_pandas()
    pd.testing.assert_frame_equal(found, expected)
    with pytest.raises(DataError, match=r"columns that .* does not have: a"):
        hs.score(model, turned.drop_columns(["a"]), labels=labels, device="cpu")


def test_a_data_frame_is_read_by_the_names_of_its_columns():
    rows, labels = made_up(3, width=3)
    frame = pd.DataFrame(rows, columns=["a", "b", "c"])
    model = LogisticRegression().fit(frame, labels)
    plain = hs.score(model, frame, labels=labels).column("avh")
    shuffled = frame[["c", "a", "b"]].assign(label=labels, id=[f"r{row}" for row in range(150)])
    table = hs.score(model, shuffled)
    np.testing.assert_array_equal(table.column("avh"), plain)
    assert table.column("id")[2] == "r2"
    with pytest.raises(DataError, match="fitted on columns that DataFrame does not have: b"):
        hs.score(model, shuffled.drop(columns="b"))
    unnamed = LogisticRegression().fit(rows, labels)
    np.testing.assert_array_equal(hs.score(unnamed, frame.assign(y=labels)).column("avh"), plain)
    with pytest.raises(ShapeError, match="fitted on 3 columns without names, DataFrame has 4"):
        hs.score(unnamed, frame.assign(y=labels, more=1.0))


def test_stored_features_are_scored_by_a_classifier(tmp_path):
    rows, labels = made_up(3)
    np.savez(tmp_path / "rows.npz", embeddings=rows, labels=labels)
    model = LogisticRegression().fit(rows, labels)
    table = hs.score(model, tmp_path / "rows.npz", out=tmp_path / "run")
    expected = hs.score(model, rows, labels=labels).column("avh")
    np.testing.assert_array_equal(table.column("avh"), expected)
    again = hs.score(model, tmp_path / "rows.npz", out=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(again.column("avh"), expected)


def test_a_search_is_scored_by_the_model_it_found():
    rows, labels = made_up(2)
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=2).fit(rows, labels)
    best = hs.score(search.best_estimator_, rows, labels=labels)
    found = hs.score(search, rows, labels=labels)
    np.testing.assert_array_equal(found.column("avh"), best.column("avh"))


class Cautious(ClassifierMixin, BaseEstimator):
    """Names the second class only if sure of it, as FixedThresholdClassifier of 1.5 does."""

    def fit(self, rows, labels):
        self.inner_ = LogisticRegression().fit(rows, labels)
        self.classes_ = self.inner_.classes_
        return self

    def predict_proba(self, rows):
        return self.inner_.predict_proba(rows)

    def predict(self, rows):
        return self.classes_[(self.predict_proba(rows)[:, 1] > 0.99).astype(int)]


def test_a_threshold_of_its_own_is_said():
    rows, labels = made_up(2)
    model = Cautious().fit(rows, labels)
    with (
        pytest.warns(HardsightWarning, match="are missing"),
        pytest.warns(HardsightWarning, match=r"predict names another class .* \d+ of 64 sampled"),
    ):
        hs.score(model, rows, labels=labels)


def test_the_head_of_pairs_of_classes_is_not_taken_for_one_of_classes():
    rows, labels = made_up(3)  # 3 pairs of 3 classes: as many rows as a head would have
    with pytest.raises(ModelError, match=r"not a linear function of its features.*Calibrated"):
        hs.score(SVC(kernel="linear").fit(rows, labels), rows, labels=labels)
    calibrated = CalibratedClassifierCV(SVC(kernel="linear"), cv=2).fit(rows, labels)
    with pytest.warns(HardsightWarning, match="no linear head"):
        table = hs.score(calibrated, rows, labels=labels)
    assert "avh" not in table.scores


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (LinearRegression(), "LinearRegression is a regressor: it has no classes"),
        (StandardScaler(), "StandardScaler is not a classifier"),
        (LogisticRegression(), "LogisticRegression is not fitted"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_a_fitted_classifier_is_refused(model, says):
    rows, labels = made_up(2)
    if not isinstance(model, LogisticRegression):
        model.fit(rows, labels)
    with pytest.raises(ModelError, match=says):
        hs.score(model, rows, labels=labels)


@pytest.mark.parametrize(
    "model",
    [MultiOutputClassifier(LogisticRegression()), RidgeClassifier(), RandomForestClassifier(3)],
    ids=lambda model: type(model).__name__,
)
def test_a_classifier_of_several_labels_is_refused(model):
    rows, labels = made_up(2)
    model.fit(rows, np.stack([labels, 1 - labels], axis=1))
    with pytest.raises(ModelError, match="several labels"):
        hs.score(model, rows, labels=labels)


def test_other_features_than_those_it_was_fitted_on_are_refused():
    rows, labels = made_up(2)
    model = LogisticRegression().fit(rows, labels)
    with pytest.raises((ModelError, ShapeError), match="features"):
        hs.score(model, rows[:, :4], labels=labels)
    with pytest.raises(DataError, match="features need labels; pass labels=y"):
        hs.score(model, rows)
    with pytest.raises(DataError, match="no examples"):
        hs.score(model, rows[:0], labels=labels[:0])
    with pytest.raises(
        OptionError, match="class_weights cannot be used with a fitted scikit-learn"
    ):
        hs.score(model, rows, labels=labels, class_weights=model.coef_)
    with pytest.raises(
        OptionError, match="split cannot be used here: they are for data given by name"
    ):
        hs.score(model, rows, labels=labels, split="test")
    with pytest.raises(DataError, match="takes rows of features, and builtin:digits holds"):
        hs.score(model, "builtin:digits")


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.skops"])
def test_a_pickled_model_is_not_loaded_by_name(name):
    with pytest.raises(ModelError, match=r"runs code when it is loaded.*--class-weights"):
        hs.score(name, "builtin:digits")
