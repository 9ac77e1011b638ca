"""From what a user has to what an NC judges: which NC, which probabilities, which numbers."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.utils.multiclass import type_of_target
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from neural_complexity.assessment.metrics import Metric
from neural_complexity.convert import arrays_in as given
from neural_complexity.convert.frames_in import frame_numbers
from neural_complexity.model.network import NeuralComplexity, find_nc
from neural_complexity.reliability.methods import Method

__all__ = [
    "Options",
    "check_columns",
    "check_sets",
    "choose_nc",
    "read_points",
    "with_probabilities",
]

CLASSES = 20  # floats of more values than this are no labels
CALIBRATED = (
    "The model has no predict_proba: its probabilities are a sigmoid of its decision values, which "
    "was fitted to the training points, where they look better than elsewhere. Mind the accuracy "
    "more than the loss."
)


class Options(TypedDict, total=False):
    """What more can be said to `assess`."""

    classes: Sequence[Any] | None
    """The class of each column of the model's predictions; if `None`, the `classes_` of an
    estimator, or NC's own classes. A class of NC that has no column counts as next to impossible.
    """
    confidence: float  # How often bounds and intervals should hold; 0.95 if left out.
    method: Method  # Of the bound, see `reliability.gap_bounds.bound`; not of an NC for tables.
    metrics: (
        Metric | Sequence[Metric]
    )  # For an NC for tables: more of them, see `estimate_metrics`.
    folds: int  # For an NC for tables: into how many the training points are cut, for refits.
    held_out: tuple[Any, Any]  # Likewise: inputs and targets that the model did not learn from.
    out_of_fold: Any
    """Likewise: predictions for the training points by models that did not learn from them:
    probabilities, (points, C), or real outputs."""


def check_sets(X_tr: object, y_tr: object, X_te: object, *, name: str = "X_te") -> None:
    """Refuses arguments that are in another one's place, or columns in another order."""
    if isinstance(y_tr, Dataset | DataLoader):
        got = f"a {type(y_tr).__name__}: test inputs are X_te"
        raise TypeError(f"y_tr must be the training targets, got {got}")
    if X_te is None:
        raise TypeError("X_te must be test inputs, which need no labels, got None")
    known, new = (list(getattr(X, "columns", ())) for X in (X_tr, X_te))
    moved = [f"{b} in the place of {a}" for a, b in zip(known, new, strict=False) if a != b]
    if moved and len(known) == len(new):
        raise ValueError(f"{name} must have the columns of X_tr in their order, got {moved[0]}")


def check_columns(H_tr: Any, H_te: Any) -> None:
    """Refuses predictions, (M, C) and (N, C), of another C."""
    known, new = (tuple(H.shape[1:]) for H in (H_tr, H_te))
    if known != new and len(known) == len(new) == 1:
        raise ValueError(f"H_te must have {known[0]} columns like H_tr, got {new[0]}")


@cache
def _shipped(name: str) -> NeuralComplexity:
    return find_nc(name)


def choose_nc(nc: NeuralComplexity | str | Path | None, model: Any, y_tr: Any) -> NeuralComplexity:
    """Returns the NC that is meant; if none is, the one for tables of such targets."""
    if isinstance(nc, str | Path):
        return find_nc(nc)
    if isinstance(nc, NeuralComplexity):
        return nc
    if nc is not None:
        got = type(nc).__name__
        raise TypeError(f"nc must be a NeuralComplexity, a path, a name or None, got {got}")
    known = isinstance(model, BaseEstimator)
    labels = hasattr(model, "classes_") and not callable(model)
    if not labels and not (known and is_regressor(model)):
        if isinstance(y_tr, Tensor):
            y_tr = given.numbers("y_tr", y_tr).cpu()
            y_tr = y_tr.float() if y_tr.dtype == torch.bfloat16 else y_tr  # NumPy has no such type
        y = given.array(y_tr)
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise ValueError("y_tr must be finite, got NaN or infinity")
        whole = y.dtype.kind != "f" or not type_of_target(y).startswith("continuous")
        # Real targets may be whole numbers by their nature.
        labels = whole and (y.dtype.kind != "f" or len(np.unique(y)) <= CLASSES)
    return _shipped("tables" if labels else "tables-regression")


def with_probabilities(model: Any, X_tr: Any, y_tr: Any) -> tuple[Any, tuple[str, ...]]:
    """Returns a classifier with probabilities, and what to say about them."""
    if callable(model) or hasattr(model, "predict_proba") or not hasattr(model, "classes_"):
        return model, ()
    if not hasattr(model, "decision_function"):
        return model, ()  # refused where it is asked to predict
    y = given.array(y_tr).reshape(len(X_tr))
    fewest = min(Counter(y.tolist()).values())
    if fewest < 2:
        wanted = "at least two training points of each class, if it has no predict_proba"
        raise ValueError(f"the model must have {wanted}, got a class of one")
    return CalibratedClassifierCV(FrozenEstimator(model), cv=min(5, fewest)).fit(X_tr, y), (
        CALIBRATED,
    )


def read_points(nc: NeuralComplexity, X_tr: Any, X_te: Any) -> list[Tensor]:
    """Returns inputs as NC reads them."""
    known, new = frame_numbers(X_tr, X_te) if nc.architecture.for_tables else (X_tr, X_te)
    place: Any = {"shape": nc.shape, "dtype": nc.x_mean.dtype}
    return [given.inputs(name, X, **place) for name, X in (("X_tr", known), ("X_te", new))]
