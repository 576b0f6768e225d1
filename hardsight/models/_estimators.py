"""Read fitted scikit-learn classifiers: their linear head, or else their probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardsight._checks import first_line, warn
from hardsight.errors import HardsightError, ModelError, ShapeError
from hardsight.models._known import ClassNames

_ROUNDING = 1e-4  # relative, for products over many features in single precision


def is_estimator(model: Any) -> bool:
    """Return whether a model has the interface of scikit-learn, fitted or not."""
    return all(hasattr(model, name) for name in ("fit", "get_params", "set_params"))


class Estimator:
    """A fitted classifier, which may end a pipeline or be inside a search over settings.

    The steps of a pipeline before the classifier compute its features, which are the embeddings of
    its linear head. For two classes, scikit-learn keeps a single row of weights ``w``, the log-odds
    of the second class. The head then has the rows ``-w / 2`` and ``w / 2``, whose softmax is the
    same.

    Args:
        model: the classifier, pipeline or search.

    Attributes:
        name: class of the classifier itself.
        class_names: names of its classes, by output.
        values: its classes, as in the labels it was fitted on.
        weight: ``[C, D]``; ``None`` without a linear head.
        bias: ``[C]``; ``None`` without a linear head.
        no_head: why there is no linear head.

    Raises:
        ModelError: it is not a classifier, is not fitted, or gives several labels to an example.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._steps, self._last = _unwrapped(model)
        self.name = type(self._last).__name__
        _check_is_classifier(self._last, self.name)
        classes = getattr(self._last, "classes_", None)
        if classes is None:
            raise ModelError(f"{self.name} is not fitted: it has no classes_; fit it first")
        if isinstance(classes, list) or np.ndim(classes) != 1:
            raise ModelError(_several_labels(self.name))
        self.values = np.asarray(classes)
        names = tuple(value_name(value) for value in self.values.tolist())
        self.class_names = ClassNames(names, f"classes_ of {self.name}")
        self.weight, self.bias, self.no_head = self._head()

    @property
    def width(self) -> int | None:
        """Number of columns that its rows must have; ``None`` if it does not say."""
        return getattr(self._model, "n_features_in_", None)

    @property
    def columns(self) -> list[str] | None:
        """Names of these columns, if it was fitted on a data frame."""
        names = getattr(self._model, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]

    def features(self, rows: Any) -> NDArray[Any]:
        """Return the input of the classifier, ``[n, D]``, dense.

        Raises:
            ModelError: a step of the pipeline fails.
            ShapeError: rows have more or fewer columns than the classifier's weights.
        """
        features = dense(self._transformed(rows))
        if self.weight is not None and features.shape[1:] != self.weight.shape[1:]:
            raise ShapeError(
                f"{self.name} was fitted on {self.weight.shape[1]} features, got rows "
                f"{list(features.shape)}; pass what it was fitted on, through the same steps"
            )
        return features

    def log_probs(self, rows: Any) -> NDArray[np.float64]:
        """Return log-probabilities ``[n, C]``; minus infinity for a class that is ruled out.

        Raises:
            ModelError: there are no probabilities, or they do not sum to 1.
        """
        probs = np.asarray(self._asked("predict_proba", rows), dtype=np.float64)
        sums = probs.sum(axis=1)
        if probs.shape[1:] != self.values.shape or np.abs(sums - 1).max(initial=0) > 1e-3:
            raise ModelError(
                f"expected probabilities of {self.name} that sum to 1 over its "
                f"{len(self.values)} classes, got {list(probs.shape)} with a sum of {sums[0]:.4g}"
            )
        with np.errstate(divide="ignore"):  # trees and neighbours give probabilities of exactly 0
            return np.log(probs)

    def hold_to(self, rows: Any) -> bool:
        """Compare our reading of the classifier with its own output on some rows.

        Args:
            rows: a sample, in the form that the classifier takes.

        Returns:
            Whether the softmax of its logits equals its own probabilities.

        Raises:
            ModelError: it gives several labels to an example, or has neither weights nor
                probabilities.
        """
        predicted = np.asarray(self._asked("predict", rows))
        if predicted.ndim > 1 and predicted.shape[1] > 1:
            raise ModelError(_several_labels(self.name))
        logits = None if self.weight is None else self._logits(rows)
        # coef_ alone proves nothing: the decision may apply a kernel or a transformation to it
        if self.weight is not None and logits is None:
            self.weight = self.bias = None
            self.no_head = (
                f"the decision values of {self.name} are not a linear function of its features"
            )
        if logits is None and not hasattr(self._model, "predict_proba"):
            raise ModelError(
                f"{self.no_head}, and it has no predict_proba: there is nothing to score; wrap it "
                "in sklearn.calibration.CalibratedClassifierCV for probabilities"
            )
        own = None
        if hasattr(self._model, "predict_proba"):
            own = np.exp(self.log_probs(rows))
        read = own if logits is None else logits
        assert read is not None
        self._compare_predictions(self.values[read.argmax(axis=1)], predicted.reshape(len(read)))
        if logits is None:
            return True
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs = powers / powers.sum(axis=1, keepdims=True)
        return own is not None and bool(np.allclose(probs, own, atol=_ROUNDING))

    def _compare_predictions(self, read: NDArray[Any], predicted: NDArray[Any]) -> None:
        others = int((read.astype(object) != predicted.astype(object)).sum())
        if others:
            warn(
                f"{self.name}.predict names another class than its largest output for {others:,} "
                f"of {len(read):,} sampled rows, for example because of a threshold or ties; the "
                "column prediction is the class of the largest output"
            )

    def _logits(self, rows: Any) -> NDArray[np.float64] | None:
        """Return the head's logits, ``[n, C]``, or ``None`` if the classifier decides otherwise."""
        if not hasattr(self._last, "decision_function"):
            return None
        assert self.weight is not None
        assert self.bias is not None
        features = self.features(rows).astype(np.float64)
        logits = features @ self.weight.T + self.bias
        decided = np.asarray(self._asked("decision_function", rows), dtype=np.float64)
        read = logits[:, 1] - logits[:, 0] if decided.ndim == 1 else logits
        finite = np.isfinite(read) & np.isfinite(decided) if read.shape == decided.shape else None
        if finite is None:
            return None
        size = 1 + np.abs(decided[finite])
        is_head = bool((np.abs(read - decided)[finite] <= _ROUNDING * size).all())
        return logits if is_head else None

    def _head(self) -> tuple[NDArray[Any] | None, NDArray[Any] | None, str]:
        """Return weights and bias, or the reason why there is no linear head."""
        none = f"{self.name} has no linear head"
        coef = getattr(self._last, "coef_", None)
        if coef is None:
            return None, None, none
        weight = np.atleast_2d(dense(coef)).astype(np.float64)
        bias = np.asarray(getattr(self._last, "intercept_", 0.0), dtype=np.float64).reshape(-1)
        if bias.size not in (1, len(weight)):
            return None, None, none
        bias = np.broadcast_to(bias, len(weight))
        if len(weight) == 1 and len(self.values) == 2:  # one row: the log-odds of the second class
            weight, bias = np.vstack([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        if len(weight) != len(self.values):  # for example a row for every pair of classes
            return None, None, f"{none}: it has {len(weight)} rows for {len(self.values)} classes"
        return weight, np.array(bias), ""

    def _transformed(self, rows: Any) -> Any:
        for step in self._steps:
            rows = _called(type(step).__name__, step.transform, rows)
        return rows

    def _asked(self, method: str, rows: Any) -> Any:
        return _called(self.name, getattr(self._model, method), rows)


def dense(rows: Any) -> NDArray[Any]:
    """Return a sparse matrix, data frame or array as an array of floats."""
    if hasattr(rows, "toarray"):
        rows = rows.toarray()
    array = np.asarray(rows)
    if array.dtype.kind == "f":
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as err:
        raise ModelError(
            f"expected features that are numbers, got {array.dtype} ({err}); put the steps that "
            "make them into a sklearn.pipeline.Pipeline with the classifier"
        ) from err


def value_name(value: Any) -> str:
    """Return the name of a class by its value; a whole number has the same name in any type.

    Example:
        >>> value_name(1), value_name(1.0), value_name("spam"), value_name(True)
        ('1', '1', 'spam', 'True')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _unwrapped(model: Any) -> tuple[list[Any], Any]:
    """Return the steps before the classifier, and the classifier itself."""
    steps: list[Any] = []
    while True:
        if hasattr(model, "param_grid") or hasattr(model, "best_estimator_"):
            if not hasattr(model, "best_estimator_"):
                raise ModelError(f"{type(model).__name__} is not fitted with refit=True")
            model = model.best_estimator_
        elif hasattr(model, "named_steps"):
            if len(model.steps) > 1:
                steps.append(model[:-1])
            model = model.steps[-1][1]
        else:
            return steps, model


def _check_is_classifier(model: Any, name: str) -> None:
    from sklearn.base import is_classifier, is_regressor

    if is_regressor(model):
        raise ModelError(
            f"{name} is a regressor: it has no classes, which hardness needs; pass a classifier"
        )
    if not is_classifier(model) and not hasattr(model, "predict_proba"):
        raise ModelError(f"{name} is not a classifier; pass one that is fitted on labels")


def _several_labels(name: str) -> str:
    return (
        f"{name} gives an example several labels, but a table has one per example; score the "
        "classifier of each label by itself"
    )


def _called(name: str, method: Callable[[Any], Any], rows: Any) -> Any:
    try:
        return method(rows)
    except HardsightError:
        raise
    except Exception as err:  # a user's model may raise anything
        raise ModelError(
            f"{name}.{method.__name__} failed with {type(err).__name__}: {first_line(err)}; pass "
            "the rows that the model was fitted on, and a model that is fitted"
        ) from err
