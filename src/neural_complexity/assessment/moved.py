"""Have the data moved? A classifier two-sample test of new rows against training rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import ks_2samp, mannwhitneyu, rankdata
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import NearestNeighbors

__all__ = ["Moved", "detect_move"]

ROWS = 2000  # of each set that are looked at, at most
FOLDS = 5
TREES = 30
FEWEST = 10  # rows of each set below which nothing is tested
LEVEL = 0.05  # of the tests of single features, together
OUTSIDE = 0.99  # rows farther from all training rows than this share of those are outside
NAMED = 5  # features that are named
TESTED = 1000  # features that are tested by themselves, at most: those by which the forest tells
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Moved:
    """How far new rows differ from training rows, which says nothing about labels."""

    p_value: float  # of rows as different as these, if both are from one distribution
    auc: float  # of telling the two apart, out of fold: 0.5 if they are alike
    features: tuple[str, ...]  # that differ by themselves, the most different first
    outside: tuple[int, ...]  # indices of new rows that are far from every training row

    def __str__(self) -> str:
        told = "differ from" if self.p_value < LEVEL else "cannot be told from"
        along = f", in {', '.join(self.features[:NAMED])}" if self.features else ""
        far = f"; {len(self.outside)} are far from all of those" if self.outside else ""
        return f"new rows {told} training rows (p = {self.p_value:.2g}{along}){far}"


def detect_move(
    X_tr: Array, X_te: Array, *, names: Sequence[str] | None = None, seed: int = 0
) -> Moved | None:
    """Tests whether rows are from one distribution; `None` where there are too few.

    A random forest learns to tell training from new rows. How well that of one half of the rows
    does so on the other half is compared, by the test of Mann and Whitney, with guessing.

    Args:
        X_tr: Training rows as numbers, (M, D); NaN where a value is missing.
        X_te: New rows, (N, D).
        names: Of the features.
        seed: Decides which rows are looked at if there are many.
    """
    if X_tr.shape[1] != X_te.shape[1]:
        got = f"{X_te.shape[1]} against {X_tr.shape[1]}"
        raise ValueError(f"X_te must have as many features as X_tr, got {got}")
    random = np.random.default_rng(seed)
    known, new = (X[random.permutation(len(X))[:ROWS]] for X in (X_tr, X_te))
    if min(len(known), len(new)) < FEWEST:
        return None
    X, is_new = np.concatenate([known, new]), np.repeat([0, 1], [len(known), len(new)])
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    # Balanced: neither set is larger by itself.
    options = {"min_samples_leaf": 3, "class_weight": "balanced", "random_state": seed}
    forest = RandomForestClassifier(TREES, **options)
    ranks = rankdata(X, axis=0, nan_policy="omit")  # are of ordinary size, and tell as much
    score = cross_val_predict(forest, ranks, is_new, cv=folds, method="predict_proba")[:, 1]
    auc = float(_test(score, is_new).statistic) / (len(known) * len(new))
    p_value = _p_of_halves(forest, ranks, is_new, seed)
    labels = [f"feature {i}" for i in range(X.shape[1])] if names is None else list(map(str, names))
    tested = np.arange(len(labels))
    if len(labels) > TESTED:
        used = clone(forest).fit(ranks, is_new).feature_importances_
        tested = np.argsort(-used, kind="stable")[:TESTED]
    p_features = np.array([_p_of(known[:, i], new[:, i]) for i in tested])
    order = np.argsort(p_features, kind="stable")
    different = tested[[i for i in order if p_features[i] < LEVEL / len(labels)]]  # Bonferroni
    return Moved(p_value, auc, tuple(labels[i] for i in different), _outside(X_tr, X_te, random))


def _test(score: Array, is_new: NDArray[np.int64]) -> Any:
    return mannwhitneyu(score[is_new == 1], score[is_new == 0], alternative="greater")


def _p_of_halves(
    forest: RandomForestClassifier, X: Array, is_new: NDArray[np.int64], seed: int
) -> float:
    """Tests each half by a forest of the other; scores of one forest are independent of each other.

    Those of all folds together are not: a test of them rejects too often.
    """
    p = []
    for fitted, tested in StratifiedKFold(2, shuffle=True, random_state=seed).split(X, is_new):
        own = clone(forest).fit(X[fitted], is_new[fitted])
        p.append(float(_test(own.predict_proba(X[tested])[:, 1], is_new[tested]).pvalue))
    return min(1.0, 2 * min(p))


def _p_of(known: Array, new: Array) -> float:
    """Tests one feature: its values, and how often it is missing."""
    there = [~np.isnan(values) for values in (known, new)]
    values = [v[t] for v, t in zip((known, new), there, strict=True)]
    p = [1.0, 1.0]
    if all(map(len, values)):
        p[0] = float(ks_2samp(*values, method="asymp").pvalue)
    shares, sizes = [t.mean() for t in there], [len(t) for t in there]
    pooled = (there[0].sum() + there[1].sum()) / sum(sizes)
    spread = np.sqrt(pooled * (1 - pooled) * (1 / sizes[0] + 1 / sizes[1]))
    if spread > 0:
        p[1] = 2 * float(ndtr(-abs(shares[0] - shares[1]) / spread))
    return min(1.0, 2 * min(p))


def _outside(X_tr: Array, X_te: Array, random: np.random.Generator) -> tuple[int, ...]:
    """Returns new rows whose nearest training row is farther than that of training rows is."""
    empty = np.isnan(X_tr).all(axis=0)
    X_tr, X_te = (np.where(empty, 0.0, X) for X in (X_tr, X_te))
    mean, spread = np.nanmean(X_tr, axis=0), np.nanstd(X_tr, axis=0)
    # A feature that does not vary among training rows counts by what it is there.
    unit = np.where(spread > 0, spread, np.maximum(np.abs(mean), 1.0))
    known, new = (np.where(np.isnan(X), 0.0, (X - mean) / unit) for X in (X_tr, X_te))
    known = known[random.permutation(len(known))[:ROWS]]
    near = NearestNeighbors(n_neighbors=2).fit(known)
    usual = near.kneighbors(known)[0][:, 1]  # the first is the row itself
    found = near.kneighbors(new, n_neighbors=1)[0][:, 0]
    far = found > np.quantile(usual, OUTSIDE) * (1 + 1e-9)
    return tuple(map(int, np.flatnonzero(far)))
