"""Folds of labelled points, and some of the points, whatever they are kept in."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold

__all__ = ["choose_folds", "take"]

Rows = NDArray[np.int64]


def choose_folds(
    y: NDArray[Any], folds: int, *, labels: bool, seed: int = 0
) -> list[tuple[Rows, Rows]]:
    """Divides points into folds, by class where every class has enough points.

    Args:
        y: Targets, (M,).
        folds: How many, at most as many as points.
        labels: Whether targets are classes.
        seed: Of the division.

    Returns:
        For each fold, the numbers of the points outside of it and of those in it.
    """
    fewest = int(np.unique(y, return_counts=True)[1].min()) if labels else 0
    kind = StratifiedKFold if fewest >= folds else KFold
    return list(kind(min(folds, len(y)), shuffle=True, random_state=seed).split(y, y))


def take(X: Any, rows: Rows) -> Any:
    """Returns some points of a frame, an array, a tensor or a list."""
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
