"""Where a model is expected to fail: slices of the new rows, one feature at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

__all__ = ["Slice", "find_slices"]

SHARE = 0.05  # of the rows that a slice has at least, and
FEWEST = 10  # rows
QUARTERS = (0.25, 0.5, 0.75)  # where numbers are cut
VALUES = 8  # different ones up to which each is a slice of its own
MOST = 8  # slices that are returned
LOOKED_AT = 1000  # features that are cut, at most
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Slice:
    """Some of the new rows, by the value of one feature."""

    feature: str
    where: str  # its values, in words
    rows: int  # how many there are
    error: float  # the mean of what is expected there

    def __str__(self) -> str:
        return f"{self.feature} {self.where}"


def find_slices(frame: pd.DataFrame, errors: Array, *, most: int = MOST) -> tuple[Slice, ...]:
    """Returns the slices of largest expected error, the largest first.

    A slice is a quarter of a feature's numbers, one of its values if they are few, or the rows in
    which it is missing. Slices of few rows are left out, and those that are no worse than all rows
    together. Errors are NC's expectations, so that they are not the luck of a few labels.

    Args:
        frame: The new rows, (N, D).
        errors: What is expected of each, (N,).
        most: How many to return.
    """
    if len(frame) != len(errors):
        raise ValueError(f"errors must be {len(frame)} numbers, got {len(errors)}")
    fewest, overall, found = max(FEWEST, SHARE * len(errors)), float(errors.mean()), list[Slice]()
    for i in _choose_features(frame, errors) if fewest < len(errors) else ():
        for where, rows in _cut(frame.iloc[:, i]):
            count = int(rows.sum())
            if fewest <= count < len(errors) and errors[rows].mean() > overall:
                name = str(frame.columns[i])
                found.append(Slice(name, where, count, float(errors[rows].mean())))
    return tuple(sorted(found, key=lambda one: -one.error)[:most])


def _choose_features(frame: pd.DataFrame, errors: Array) -> list[int]:
    """Returns which features are cut: all, or of many those whose numbers go with the errors."""
    numbered = [types.is_numeric_dtype(kind) for kind in frame.dtypes]
    every = list(range(len(numbered)))
    if len(every) <= LOOKED_AT:
        return every
    numbers, others = np.flatnonzero(numbered), [i for i in every if not numbered[i]]
    X = frame.iloc[:, numbers].to_numpy(dtype=float, na_value=np.nan)
    X = np.nan_to_num(X - np.nanmean(np.where(np.isnan(X).all(axis=0), 0.0, X), axis=0))
    scale = np.maximum(np.linalg.norm(X, axis=0), np.finfo(float).tiny)
    related = np.abs((errors - errors.mean()) @ X) / scale
    return [*others, *numbers[np.argsort(-related, kind="stable")].tolist()][:LOOKED_AT]


def _cut(column: "pd.Series[object]") -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yields what slices of a column are called, and their rows, (N,)."""
    missing = column.isna().to_numpy()
    if missing.any():
        yield "is missing", missing
    if types.is_numeric_dtype(column) and not types.is_bool_dtype(column):
        values = column.to_numpy(dtype=float, na_value=np.nan)
        if len(np.unique(values[~missing])) > VALUES:
            yield from _quarters(values, missing)
            return
    words = column.astype(object).map(str)
    for word, count in words[~missing].value_counts().items():
        if count >= FEWEST:
            yield f"= {word}", ((words == word) & ~missing).to_numpy()


def _quarters(values: Array, missing: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    cuts = np.unique(np.quantile(values[~missing], QUARTERS))
    place = np.where(missing, -1, np.searchsorted(cuts, values, side="left"))
    for i in range(len(cuts) + 1):
        if i == 0:
            where = f"up to {cuts[0]:.6g}"
        elif i == len(cuts):
            where = f"above {cuts[-1]:.6g}"
        else:
            where = f"from {cuts[i - 1]:.6g} to {cuts[i]:.6g}"
        yield where, place == i
