"""Frames of users, with columns of any kinds, as the numbers that an NC for tables reads."""

from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api import types
from torch import Tensor

from neural_complexity.points import check_dense

__all__ = ["as_frame", "frame_numbers", "is_plain"]

Array = NDArray[np.float64]


def is_plain(X: object) -> bool:
    """Says whether inputs are numbers already: neither a frame nor an array with text in it."""
    if isinstance(X, pd.DataFrame):
        return all(types.is_numeric_dtype(dtype) for dtype in X.dtypes)
    return not (isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUSMm")


def as_frame(X: Any) -> pd.DataFrame | None:
    """Returns rows with named columns, as they are given; `None` if they are no table."""
    if isinstance(X, pd.DataFrame):
        return X
    values = np.asarray(_as_array("X", X))
    if values.ndim != 2:
        return None
    return pd.DataFrame(values, columns=[f"feature {i}" for i in range(values.shape[1])])


def frame_numbers(X_tr: Any, X_te: Any) -> tuple[Any, Any]:
    """Returns training and test rows as numbers, (M, D) and (N, D); NaN where a value is missing.

    Text and categories are numbered in their order, dates are seconds since the first of a training
    row, and text that is numbers in all training rows is read as such. What no training row is like
    is -1 among words, and missing among numbers and dates. What is plain stays as it is.

    Raises:
        ValueError: If the columns of the two differ.
    """
    if is_plain(X_tr) and is_plain(X_te):
        return X_tr, X_te
    named = {"X_tr": X_tr, "X_te": X_te}
    train, test = (pd.DataFrame(_as_array(name, X)) for name, X in named.items())
    if list(train.columns) != list(test.columns):
        odd = sorted(map(str, set(train.columns) ^ set(test.columns)))[:3]
        got = f"{', '.join(odd)} in one of them" if odd else "another order"
        raise ValueError(f"X_te must have the columns of X_tr, got {got}")
    # By position: names may occur twice.
    each = [_column(train.iloc[:, i], test.iloc[:, i]) for i in range(train.shape[1])]
    found = [np.stack(side, axis=1) for side in zip(*each, strict=True)]
    return found[0], found[1]


def _as_array(name: str, X: Any) -> Any:
    """Returns a tensor as an array, and everything else as it is."""
    if not isinstance(X, Tensor):
        return X
    check_dense(name, X)
    X = X.detach().cpu()
    return (X.float() if X.dtype == torch.bfloat16 else X).numpy()


def _column(known: pd.Series, new: pd.Series) -> tuple[Array, Array]:
    """Returns a column of training and of test rows as numbers; training rows say of what kind."""
    kind, text = known.dtype, known.astype(object)
    if types.is_datetime64_any_dtype(kind):
        dates = [pd.to_datetime(part, errors="coerce", utc=True) for part in (known, new)]
        return _floats((part - dates[0].min()).dt.total_seconds() for part in dates)
    if types.is_timedelta64_dtype(kind):
        spans = (pd.to_timedelta(part, errors="coerce") for part in (known, new))
        return _floats(part.dt.total_seconds() for part in spans)
    read = pd.to_numeric(text, errors="coerce")
    if types.is_numeric_dtype(kind) or (read.notna() == known.notna()).all():
        return _floats(pd.to_numeric(p.astype(object), errors="coerce") for p in (known, new))
    words = [part.astype(object).map(_word, na_action="ignore") for part in (known, new)]
    if isinstance(kind, pd.CategoricalDtype) and kind.ordered:
        order = [_word(category) for category in kind.categories]
    else:
        order = sorted(set(words[0].dropna()))
    index = pd.Index(order, dtype=object)
    codes = (np.where(w.isna(), np.nan, index.get_indexer(w)) for w in words)  # -1 if not known
    return _floats(pd.Series(part) for part in codes)


def _word(value: Any) -> str:
    """Returns what a cell says: 1, 1.0 and True are the same."""
    return repr(float(value)) if isinstance(value, Real) else str(value)


def _floats(parts: Iterable[pd.Series]) -> tuple[Array, Array]:
    known, new = (part.to_numpy(dtype=float, na_value=np.nan) for part in parts)
    return known, new
