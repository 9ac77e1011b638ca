"""Any metric of a model on new points, from targets that are drawn from NC's belief."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import get_scorer, get_scorer_names

__all__ = ["AT_ONCE", "ENDS", "Estimate", "Metric", "estimate_metrics"]

Array = NDArray[Any]
ENDS = ("value", "low", "high")
LEAST = 1e-7  # the least probability of a class
# The name of a scorer of scikit-learn, a scorer, or a function of targets and predictions.
Metric = str | Callable[..., Any]


@dataclass(frozen=True)
class Estimate:
    """What a metric is expected to be on the new points."""

    value: float
    low: float
    high: float
    confidence: float  # of the interval from low to high
    defined: float = 1.0  # the share of the draws in which the metric has a value

    def short(self) -> str:
        """Returns value and ends, where the confidence stands elsewhere."""
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"

    def __str__(self) -> str:
        ends = f"{self.low:.3g} to {self.high:.3g} at {100 * self.confidence:g} %"
        some = "" if self.defined > 0.99 else f", where it has a value: {self.defined:.0%} of draws"
        return f"{self.value:.3g} ({ends}{some})"


class _Told(BaseEstimator):  # type: ignore[misc]
    """A fitted estimator that says what a model has said, whatever it is asked about."""

    def __init__(self, answers: Array, shares: Array | None, classes: Array | None) -> None:
        self.answers, self.shares, self.classes = answers, shares, classes
        if classes is not None:
            self.classes_ = classes

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any) -> Array:  # noqa: ARG002
        """Returns the answers."""
        return self.answers

    def predict_proba(self, X: Any) -> Array:  # noqa: ARG002
        """Returns the probabilities."""
        assert self.shares is not None
        return self.shares


class _ToldClasses(ClassifierMixin, _Told):  # type: ignore[misc]
    pass


class _ToldNumbers(RegressorMixin, _Told):  # type: ignore[misc]
    pass


def estimate_metrics(
    metrics: Metric | Sequence[Metric],
    drawn: Array,
    H: Array,
    *,
    classes: Array | None = None,
    confidence: float = 0.95,
    usual: Sequence[str] = (),
) -> dict[str, Estimate]:
    """Computes metrics on each set of drawn targets, and where they lie.

    Args:
        metrics: Names of scikit-learn's scorers (`"roc_auc"`; `"log_loss"` is `"neg_log_loss"` with
            its sign changed), scorers, or functions of targets and predictions (classes, or
            numbers); one of them, or several.
        drawn: Targets, (draws, N): numbers, or places among the classes.
        H: What the model says: numbers, (N,), or probabilities, (N, C).
        classes: Their names, (C,), if targets are classes; scorers by name take the second of two
            for the positive one.
        confidence: Of the intervals.
        usual: Metrics by name that come first, and are left out where they have no value.

    Raises:
        TypeError: If something is no metric.
        ValueError: If a metric has no value on any draw, or a name is not known.
    """
    asked = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
    tail, found = (1 - confidence) / 2, dict[str, Estimate]()
    for metric in dict.fromkeys([*usual, *asked]):
        # Scorers by name ask for the class 1, functions for the user's own names.
        names = (
            np.arange(H.shape[1]) if classes is not None and isinstance(metric, str) else classes
        )
        if names is None:
            model: _Told = _ToldNumbers(H, None, None)
        else:
            model = _ToldClasses(names[H.argmax(axis=1)], H, names)
        name, compute = _read(metric, model)
        at_once = AT_ONCE[classes is not None].get(name) if isinstance(metric, str) else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a draw lacks a class
            if at_once is not None:
                values = at_once(drawn, H)
            else:
                each = drawn if names is None else names[drawn]
                values = np.array([_value(compute, y) for y in each])
        known = values[np.isfinite(values)]
        if not len(known) and metric in usual and metric not in asked:
            continue
        if not len(known):
            raise ValueError(f"metric {name} must have a value on these points, got none")
        low, high = np.quantile(known, [tail, 1 - tail])
        # A few draws may be far off: of one or two points, R2 has no lower end.
        value = known.mean() if low <= known.mean() <= high else np.median(known)
        same = sum(other.split(" (")[0] == name for other in found)
        found[f"{name} ({same + 1})" if same else name] = Estimate(
            float(value), float(low), float(high), confidence, len(known) / len(values)
        )
    return found


def _read(metric: Metric, model: _Told) -> tuple[str, Callable[[Array], Any]]:
    """Returns the name of a metric, and what computes it from targets."""
    if isinstance(metric, str):
        known = get_scorer_names()
        if metric not in known and f"neg_{metric}" not in known:
            wanted = "the name of a scorer of scikit-learn (sklearn.metrics.get_scorer_names)"
            raise ValueError(f"metric must be {wanted}, got {metric}")
        sign, scorer = (1, metric) if metric in known else (-1, f"neg_{metric}")
        score = get_scorer(scorer)
        return metric, lambda y: sign * score(model, np.zeros((len(y), 1)), y)
    if hasattr(metric, "_score_func"):  # a scorer of somebody's own
        name = str(getattr(metric._score_func, "__name__", metric))
        return name, lambda y: metric(model, np.zeros((len(y), 1)), y)
    if not callable(metric):
        got = type(metric).__name__
        raise TypeError(f"metric must be a name, a scorer or a function, got {got}")
    return str(getattr(metric, "__name__", metric)), lambda y: metric(y, model.answers)


def _log_loss(drawn: Array, H: Array) -> Array:
    # Scikit-learn's refuses draws that lack a class.
    return np.asarray(-np.log(H.clip(LEAST))[np.arange(len(H)), drawn].mean(axis=1))


def _r2(drawn: Array, H: Array) -> Array:
    off, spread = np.square(drawn - H).mean(axis=1), drawn.var(axis=1)
    known = np.where(spread > 0, 1 - off / np.where(spread > 0, spread, 1.0), 1.0 * (off == 0))
    return known if len(H) > 1 else np.full(len(drawn), np.nan)


# Usual metrics of all draws, (draws, N), and of what a model says: of classes, and of numbers.
AT_ONCE: dict[bool, dict[str, Callable[[Array, Array], Array]]] = {
    True: {
        "accuracy": lambda drawn, H: (drawn == H.argmax(axis=1)).mean(axis=1),
        "log_loss": _log_loss,
        "neg_log_loss": lambda drawn, H: -_log_loss(drawn, H),
    },
    False: {
        "r2": _r2,
        "mean_absolute_error": lambda drawn, H: np.abs(drawn - H).mean(axis=1),
        "mean_squared_error": lambda drawn, H: np.square(drawn - H).mean(axis=1),
    },
}


def _value(compute: Callable[[Array], Any], y: Array) -> float:
    try:
        return float(compute(y))
    except ValueError:  # of a draw that has one class only, say
        return float("nan")
