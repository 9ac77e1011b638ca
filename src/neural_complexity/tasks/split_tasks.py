"""A user's own dataset as tasks."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api.types import infer_dtype
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from neural_complexity.convert.arrays_in import inputs, pair, targets
from neural_complexity.tasks.splits import Splits

__all__ = ["ArrayStore", "own_digits", "split_tasks"]

SEEN = 64  # points of each set that NC sees at a time
FEWEST = 20  # points, of which tasks can still be made
MANY = 100  # whole numbers more varied than this are rather counts or amounts than labels
LABELS = ("string", "integer", "boolean", "floating")  # kinds that NC's file can hold


@dataclass(frozen=True, eq=False, repr=False)
class ArrayStore:
    """Inputs in memory, by index, with labels or real targets."""

    X: Tensor  # (P, D) or (P, channels, height, width)
    labels: Tensor  # (P,), int64, or real targets, (P, C)
    classes: tuple[Any, ...] = ()  # what the labels 0, 1, ... were called; nothing for real targets

    @property
    def outputs(self) -> int:
        """Classes, or outputs of a real target."""
        return len(self.classes) or self.labels.shape[1]

    def __call__(self, indices: Tensor) -> Tensor:
        """Returns the inputs of indices (...), as (..., D), on their device."""
        return self.X.to(indices.device)[indices]

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.X.shape[1:]))
        return f"ArrayStore({len(self)} points of {sizes}, outputs={self.outputs})"


def split_tasks(
    X: object,
    y: object = None,
    *,
    kind: Literal["classification", "regression"] | None = None,
    train: int | None = None,
    test: int | None = None,
) -> Splits:
    """Returns the tasks of splitting one dataset at random (section 2), for `meta_learn`.

    Args:
        X: Inputs, (P, D) or images (P, channels, height, width): an array, a tensor, lists or a
            data frame; or a `Dataset` or `DataLoader` of pairs, and then no y.
        y: Targets. Whole numbers, truth values and names are labels; numbers with a point are real
            targets, (P,) or (P, C).
        kind: Which of the two, where the type of y does not tell.
        train: Training points of a split; three quarters if `None`.
        test: Its validation points; the others if `None`.

    Raises:
        TypeError: If X or y holds no numbers.
        ValueError: If there are too few points, all targets are the same, or a value is missing or
            infinite.

    Example:
        >>> split_tasks(np.eye(40), ["yes", "no"] * 20).train
        30
    """
    X, y = pair("X", X, y)
    if y is None:
        raise TypeError("y must be given, unless X is a Dataset or DataLoader of pairs, got none")
    points = inputs("X", X)
    P = len(points)
    if P < FEWEST:
        raise ValueError(f"X must have at least {FEWEST} points to be split, got {P}")
    if kind not in (None, "classification", "regression"):
        raise ValueError(f"kind must be classification, regression or None, got {kind}")
    if isinstance(y, Tensor):
        y = y.detach().cpu()
        y = y.double() if y.is_floating_point() else y  # NumPy does not know all types
    store = ArrayStore(points, *_targets(P, y, kind))
    test = max(1, P - (3 * P + 3) // 4 if train is None else P - train) if test is None else test
    train = P - test if train is None else train
    seen = {"M": min(SEEN, max(1, train)), "N": min(SEEN, max(1, test))}
    return Splits(store, torch.arange(P), train=train, test=test, **seen)


def _targets(P: int, y: object, kind: str | None) -> tuple[Tensor, tuple[Any, ...]]:
    """Returns labels with the names of their classes, in order, or real targets."""
    values = pd.Series(np.asarray(y).reshape(-1)).infer_objects()
    found = infer_dtype(values)
    if kind is None and found == "integer" and values.nunique() > MANY:
        raise ValueError(
            f"kind must be given where y has more than {MANY} different whole numbers: "
            '"classification" or "regression"'
        )
    if kind == "regression" or (kind is None and found == "floating"):
        return targets("y", y, labels=False, points=P), ()
    if found not in LABELS:
        raise TypeError(f"y must hold names, or numbers, or truth values as labels, got {found}")
    if values.hasnans:
        raise ValueError("y must have no missing values as labels, got some")
    indices, classes = pd.factorize(values, sort=True)
    return targets("y", indices, labels=True, points=P), tuple(classes.tolist())


def own_digits() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Returns scikit-learn's digits as a user's own data, values from 0 to 1.

    These are X_tr, (1437, 64), y_tr, X_te, (360, 64), and y_te; the NC of digits that ships has not
    seen the latter two.
    """
    X, y = load_digits(return_X_y=True)
    X_tr, X_te, y_tr, y_te = train_test_split(X / 16, y, test_size=360, random_state=0)
    return X_tr, y_tr, X_te, y_te
