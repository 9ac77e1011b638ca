"""What people do instead of NC: estimates of how a fitted model does on new rows without labels.

All estimates are of the same evidence: training rows with targets, test rows without, and the
model, which can be fitted again. Predictions are probabilities (rows, C), or numbers (rows, 1).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from neural_complexity.convert.folds import choose_folds, take

__all__ = [
    "ESTIMATES",
    "LEAST",
    "Evidence",
    "collect_evidence",
    "importance_weights",
    "point_losses",
    "predict_out_of_fold",
]

Array = NDArray[np.float64]
Scores = dict[str, float]  # by metric
LEAST = 1e-3  # the least probability of a class: one wrong certainty would decide a mean
HELD = 0.2  # the share of rows of a hold-out
LARGEST = 20.0  # the largest importance weight, in units of their mean


@dataclass(frozen=True)
class Evidence:
    """What can be known of one fitted model without test targets."""

    y: NDArray[Any]  # (M,), labels 0 ... C - 1, or numbers
    labels: bool
    H_tr: Array  # (M, C), of the model at its training rows
    H_te: Array  # (N, C), at the test rows
    H_out: Array  # (repetitions, M, C), of models that were fitted without a row's fold
    H_held: Array  # (held, C), of one that was fitted without the rows that are held out
    held: NDArray[np.int64]  # (held,), these
    H_boot: Array  # (samples, M, C), of models of bootstrap samples; NaN at rows that they saw
    weights: Array  # (M,), how much likelier a row is among the test rows


def point_losses(H: Array, y: NDArray[Any], labels: bool) -> dict[str, Array]:
    """Computes losses of predictions (..., n, C) at targets (n,), (..., n) each."""
    if not labels:
        return {"squared error": (H[..., 0] - y) ** 2}
    p = np.clip(H, LEAST, None)
    chosen = np.take_along_axis(p, np.broadcast_to(y[:, None], (*H.shape[:-1], 1)), -1)[..., 0]
    wrong = (H.argmax(axis=-1) != y).astype(float)
    wrong[np.isnan(chosen)] = np.nan
    return {"error": wrong, "log loss": -np.log(chosen / p.sum(axis=-1))}


def _predict(model: Any, X: Any, classes: int) -> Array:
    """Returns predictions with a column for each class, or of numbers (n, 1)."""
    if not classes:
        return np.asarray(model.predict(X), dtype=float).reshape(len(X), 1)
    p = np.zeros((len(X), classes))
    p[:, model.classes_] = model.predict_proba(X)
    return p


def collect_evidence(
    model: Any,
    X_tr: Any,
    y: NDArray[Any],
    X_te: Any,
    *,
    repetitions: int = 5,
    samples: int = 20,
    numbers: Callable[[Any], Array] = np.asarray,
    seed: int = 0,
) -> Evidence:
    """Fits a model, and again without folds, without held-out rows and on bootstrap samples.

    Args:
        model: An unfitted scikit-learn estimator; one with `predict_proba` if targets are labels.
        X_tr: Training rows, an array or a frame.
        y: Their targets: labels 0 ... C - 1, each of which occurs, or numbers.
        X_te: Test rows.
        repetitions: Of five-fold cross-validation.
        samples: Of the bootstrap.
        numbers: Returns rows as numbers, from which importance weights are estimated.
        seed: Of folds and samples.
    """
    labels = y.dtype.kind in "iu"
    classes, M = int(y.max()) + 1 if labels else 0, len(y)
    random = np.random.default_rng(seed)
    fitted, without = partial(_fit, model, X_tr, y), partial(_predict_held_out, model, X_tr, y)
    whole = fitted(np.arange(M))
    out = [predict_out_of_fold(model, X_tr, y, seed=seed + i) for i in range(repetitions)]
    order = random.permutation(M)
    held, kept = np.split(order, [max(1, round(HELD * M))])
    drawn = [random.integers(0, M, M) for _ in range(samples)]
    boot = [without([(rows, np.setdiff1d(np.arange(M), rows))]) for rows in drawn]
    return Evidence(
        y=y,
        labels=labels,
        H_tr=_predict(whole, X_tr, classes),
        H_te=_predict(whole, X_te, classes),
        H_out=np.stack(out),
        H_held=without([(kept, held)])[held],
        held=held,
        H_boot=np.stack(boot),
        weights=importance_weights(numbers(X_tr), numbers(X_te), seed=seed),
    )


def predict_out_of_fold(
    model: Any, X_tr: Any, y: NDArray[Any], *, folds: int = 5, seed: int = 0
) -> Array:
    """Returns what copies of a model predict for folds that they were not fitted to, (M, C).

    Args:
        model: An unfitted scikit-learn estimator; one with `predict_proba` if targets are labels.
        X_tr: Training rows, an array or a frame.
        y: Their targets: labels 0 ... C - 1, each of which occurs, or numbers.
        folds: How many, at most as many as rows.
        seed: Of the folds.
    """
    return _predict_held_out(
        model, X_tr, y, choose_folds(y, folds, labels=y.dtype.kind in "iu", seed=seed)
    )


def _fit(model: Any, X_tr: Any, y: NDArray[Any], rows: NDArray[Any]) -> Any:
    """Fits a copy to some rows."""
    # Some models refuse rows of one class.
    alone = y.dtype.kind in "iu" and len(np.unique(y[rows])) == 1
    return (DummyClassifier() if alone else clone(model)).fit(take(X_tr, rows), y[rows])


def _predict_held_out(
    model: Any, X_tr: Any, y: NDArray[Any], folds: Iterable[tuple[NDArray[Any], NDArray[Any]]]
) -> Array:
    """Returns predictions for the held-out rows of folds, (M, C); NaN for all others."""
    classes = int(y.max()) + 1 if y.dtype.kind in "iu" else 0
    H = np.full((len(y), max(classes, 1)), np.nan)
    for train, test in (fold for fold in folds if len(fold[1])):
        H[test] = _predict(_fit(model, X_tr, y, train), take(X_tr, test), classes)
    return H


def importance_weights(X_tr: Array, X_te: Array, *, seed: int = 0) -> Array:
    """Estimates how much likelier rows are among test rows, (M,), with mean 1.

    A logistic regression tells training from test rows, out of fold. Missing values are zeros.
    """
    X = np.nan_to_num(np.concatenate([X_tr, X_te]).astype(float))
    test = np.repeat([0, 1], [len(X_tr), len(X_te)])
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    p = cross_val_predict(model, X, test, cv=folds, method="predict_proba")[: len(X_tr), 1]
    odds = p / np.clip(1 - p, 1e-6, None)
    odds = np.minimum(odds, LARGEST * odds.mean())
    return np.asarray(odds / odds.mean())


def _mean(losses: dict[str, Array]) -> Scores:
    return {metric: float(np.nanmean(each)) for metric, each in losses.items()}


def training_loss(e: Evidence) -> Scores:
    """Returns the losses at training rows."""
    return _mean(point_losses(e.H_tr, e.y, e.labels))


def cross_validation(e: Evidence) -> Scores:
    """Returns the losses of one five-fold cross-validation."""
    return _mean(point_losses(e.H_out[0], e.y, e.labels))


def repeated_cross_validation(e: Evidence) -> Scores:
    """Returns the mean of several of these."""
    return _mean(point_losses(e.H_out, e.y, e.labels))


def weighted_cross_validation(e: Evidence) -> Scores:
    """Returns those of rows that are like test rows (Sugiyama et al. 2007)."""
    found = point_losses(e.H_out[0], e.y, e.labels)
    return {metric: float(np.average(each, weights=e.weights)) for metric, each in found.items()}


def hold_out(e: Evidence) -> Scores:
    """Returns the losses at a fifth of the rows, of a model of the others."""
    return _mean(point_losses(e.H_held, e.y[e.held], e.labels))


def bootstrap(e: Evidence) -> Scores:
    """Returns the .632+ estimate (Efron and Tibshirani 1997)."""
    inner, outer = training_loss(e), _mean(point_losses(e.H_boot, e.y, e.labels))
    # Every prediction meets every target: what it would cost if rows said nothing.
    pairs = [point_losses(e.H_tr, np.full_like(e.y, one), e.labels) for one in e.y]
    found = {}
    for metric, low in inner.items():
        none = float(np.mean([pair[metric].mean() for pair in pairs]))
        out = min(outer[metric], none)
        overfit = (out - low) / (none - low) if out > low and none > low else 0.0
        weight = 0.632 / (1 - 0.368 * overfit)
        found[metric] = (1 - weight) * low + weight * out
    return found


def _confidence(H: Array) -> dict[str, Array]:
    """Returns what the model itself expects its losses to be, (..., n)."""
    p = np.clip(H, LEAST, None)
    p = p / p.sum(axis=-1, keepdims=True)
    return {"error": 1 - p.max(axis=-1), "log loss": -(p * np.log(p)).sum(axis=-1)}


def average_confidence(e: Evidence) -> Scores:
    """Returns the losses that the model's own probabilities imply; of labels only."""
    return _mean(_confidence(e.H_te)) if e.labels else {}


def thresholded_confidence(e: Evidence) -> Scores:
    """Returns the share of test rows below the confidence that the right share is above: ATC.

    Out of fold, as many rows are below it as are wrong (Garg et al. 2022). Error of labels only.
    """
    if not e.labels:
        return {}
    wrong = point_losses(e.H_out[0], e.y, e.labels)["error"].mean()
    known, new = (np.log(np.clip(H, LEAST, None)) for H in (e.H_out[0], e.H_te))
    known, new = (-(np.exp(H) * H).sum(axis=-1) for H in (known, new))  # entropies
    return {"error": float((new > np.quantile(known, 1 - wrong)).mean())}


def difference_of_confidences(e: Evidence) -> Scores:
    """Returns cross-validation, moved as confidences are from out of fold to test: DoC.

    (Guillory et al. 2021); of labels only.
    """
    if not e.labels:
        return {}
    known, new = _mean(_confidence(e.H_out[0])), _mean(_confidence(e.H_te))
    found = {m: x + new[m] - known[m] for m, x in cross_validation(e).items()}
    return {m: float(np.clip(x, 0, 1 if m == "error" else None)) for m, x in found.items()}


ESTIMATES: dict[str, Callable[[Evidence], Scores]] = {
    "5-fold CV": cross_validation,
    "repeated CV": repeated_cross_validation,
    "importance-weighted CV": weighted_cross_validation,
    "20 % hold-out": hold_out,
    "bootstrap .632+": bootstrap,
    "average confidence": average_confidence,
    "ATC": thresholded_confidence,
    "DoC": difference_of_confidences,
    "training loss": training_loss,
}
