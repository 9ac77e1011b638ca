"""Frames of users, with columns of any kinds, as the numbers that an NC for tables reads."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

__all__ = ["frame_numbers", "is_plain"]

Array = NDArray[np.float64]


def is_plain(X: object) -> bool:
    """Says whether inputs are numbers already: neither a frame nor an array with text in it."""
    if isinstance(X, pd.DataFrame):
        return all(types.is_numeric_dtype(dtype) for dtype in X.dtypes)
    return not (isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUSMm")


def frame_numbers(X_tr: Any, X_te: Any) -> tuple[Any, Any]:
    """Returns training and test rows as numbers, (M, D) and (N, D); NaN where a value is missing.

    Text and categories are numbered in their order, dates are seconds since the first of a training
    row, and text that is numbers is read as such. What is plain stays as it is.

    Raises:
        ValueError: If the columns of the two differ.
    """
    if is_plain(X_tr) and is_plain(X_te):
        return X_tr, X_te
    train, test = (pd.DataFrame(X) for X in (X_tr, X_te))
    if list(train.columns) != list(test.columns):
        odd = sorted(map(str, set(train.columns) ^ set(test.columns)))[:3]
        got = f"{', '.join(odd)} in one of them" if odd else "another order"
        raise ValueError(f"X_te must have the columns of X_tr, got {got}")
    # By position: names may occur twice.
    each = [_column(train.iloc[:, i], test.iloc[:, i]) for i in range(train.shape[1])]
    found = [np.stack(side, axis=1) for side in zip(*each, strict=True)]
    return found[0], found[1]


def _column(known: pd.Series, new: pd.Series) -> tuple[Array, Array]:
    """Returns a column of training and of test rows as numbers."""
    both = pd.concat([known, new], ignore_index=True)
    if types.is_datetime64_any_dtype(both.dtype):
        both = (both - both.iloc[: len(known)].min()).dt.total_seconds()
    elif types.is_timedelta64_dtype(both.dtype):
        both = both.dt.total_seconds()
    elif not types.is_numeric_dtype(both.dtype):
        both, there = both.astype(object), both.notna()
        read = pd.to_numeric(both, errors="coerce")
        both = read if (read.notna() == there).all() else _coded(both, len(known))
    values: Array = both.to_numpy(dtype=float, na_value=np.nan)
    return values[: len(known)], values[len(known) :]


def _coded(values: pd.Series, known: int) -> pd.Series:
    """Numbers text, of which the first so many are of training rows, in its order."""
    text = values.map(str, na_action="ignore")
    codes = pd.Index(sorted(set(text.iloc[:known].dropna())), dtype=object).get_indexer(text)
    return pd.Series(np.where(text.isna(), np.nan, codes))  # -1 if no training row has it
