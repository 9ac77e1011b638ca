from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from neural_complexity.baselines.estimates import (
    ESTIMATES,
    Evidence,
    collect_evidence,
    importance_weights,
    point_losses,
)

random = np.random.default_rng(0)
X_TR, X_TE = random.normal(size=(60, 3)), random.normal(size=(40, 3))
Y = (X_TR[:, 0] + 0.5 * random.normal(size=60) > 0).astype(int) + (X_TR[:, 1] > 1)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return collect_evidence(LogisticRegression(), X_TR, Y, X_TE)


@pytest.fixture(scope="module")
def of_numbers() -> Evidence:
    return collect_evidence(Ridge(), X_TR, X_TR[:, 0] + 0.1, X_TE)


def estimate(name: str, evidence: Evidence) -> dict[str, float]:
    return ESTIMATES[name](evidence)


def test_losses_are_what_they_say() -> None:
    H = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    losses = point_losses(H, np.array([1, 1]), True)
    assert losses["error"].tolist() == [1, 0]
    assert losses["log loss"] == pytest.approx([np.log(4), np.log(1.002)])
    wrong = point_losses(H, np.array([0, 0]), True)["log loss"][1]
    assert wrong == pytest.approx(np.log(1002))  # no certainty costs more
    assert point_losses(np.array([[2.0]]), np.array([5.0]), False)["squared error"] == [9]
    unknown = point_losses(np.full((2, 3), np.nan), np.array([1, 1]), True)
    assert all(np.isnan(each).all() for each in unknown.values())


def test_cross_validation_is_that_of_scikit_learn(evidence: Evidence) -> None:
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    H = cross_val_predict(LogisticRegression(), X_TR, Y, cv=folds, method="predict_proba")
    np.testing.assert_allclose(evidence.H_out[0], H)
    wrong = float((H.argmax(axis=1) != Y).mean())
    assert estimate("5-fold CV", evidence)["error"] == pytest.approx(wrong)


def test_evidence_is_of_models_that_have_not_seen_a_row(evidence: Evidence) -> None:
    nearest = collect_evidence(KNeighborsClassifier(1), X_TR, Y, X_TE)
    assert estimate("training loss", nearest)["error"] == 0
    assert estimate("5-fold CV", nearest)["error"] > 0.1
    assert estimate("20 % hold-out", nearest)["error"] > 0
    assert np.isnan(nearest.H_boot).any(axis=2).mean() == pytest.approx(0.632, abs=0.03)
    assert not np.isnan(evidence.H_out).any()
    assert len(evidence.held) == 12
    assert evidence.H_held.shape == (12, 3)


def test_the_bootstrap_is_between_training_and_out_of_sample_loss(evidence: Evidence) -> None:
    outer = {m: np.nanmean(x) for m, x in point_losses(evidence.H_boot, Y, True).items()}
    inner = estimate("training loss", evidence)
    for metric, told in estimate("bootstrap .632+", evidence).items():
        assert inner[metric] < told < outer[metric]
        plain = 0.368 * inner[metric] + 0.632 * outer[metric]
        assert told >= plain - 1e-12  # more weight the more a model overfits


def test_the_bootstrap_of_a_model_that_knows_its_rows_by_heart_is_that_of_others() -> None:
    y = random.integers(0, 2, 200)  # nothing can be learned
    e = collect_evidence(KNeighborsClassifier(1), random.normal(size=(200, 3)), y, X_TE)
    assert estimate("bootstrap .632+", e)["error"] == pytest.approx(0.5, abs=0.08)


def test_rows_like_test_rows_weigh_more() -> None:
    near = random.normal(size=(400, 2)) + np.array([1.5, 0])
    known = random.normal(size=(400, 2))
    weights = importance_weights(known, near)
    assert weights.mean() == pytest.approx(1)
    assert np.corrcoef(weights, known[:, 0])[0, 1] > 0.5
    same = importance_weights(known, random.normal(size=(400, 2)))
    assert same.std() < 0.5 * weights.std()
    assert np.isfinite(importance_weights(np.full((9, 2), np.nan), near)).all()


def test_weighted_cross_validation_is_of_rows_by_weight(evidence: Evidence) -> None:
    one = replace(evidence, weights=np.eye(60)[7])
    expected = {m: x[7] for m, x in point_losses(evidence.H_out[0], Y, True).items()}
    assert estimate("importance-weighted CV", one) == pytest.approx(expected)
    alike = replace(evidence, weights=np.ones(60))
    told = estimate("importance-weighted CV", alike)
    assert told == pytest.approx(estimate("5-fold CV", evidence))


def calibrated(rows: int, sharpness: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns probabilities, (rows, 3), and labels that have them."""
    H = random.dirichlet(np.full(3, 1 / sharpness), rows)
    return H, np.array([random.choice(3, p=p) for p in H])


def test_confidence_is_right_where_a_model_is_calibrated(evidence: Evidence) -> None:
    H_out, y = calibrated(4000, 1.0)
    H_te, y_te = calibrated(4000, 3.0)
    own = replace(evidence, y=y, H_out=H_out[None], H_te=H_te)
    true = {m: x.mean() for m, x in point_losses(H_te, y_te, True).items()}
    for name in ("average confidence", "DoC"):
        assert estimate(name, own) == pytest.approx(true, abs=0.04)
    before = estimate("5-fold CV", own)
    assert abs(before["error"] - true["error"]) > 0.15  # which the others need not know


def test_the_same_confidence_means_the_same_loss(evidence: Evidence) -> None:
    same = replace(evidence, H_te=evidence.H_out[0])
    assert estimate("DoC", same) == pytest.approx(estimate("5-fold CV", evidence))
    wrong = estimate("5-fold CV", evidence)["error"]
    assert estimate("ATC", same)["error"] == pytest.approx(wrong, abs=1 / 60)


def test_numbers_have_estimates_without_confidence(of_numbers: Evidence) -> None:
    found = {name: function(of_numbers) for name, function in ESTIMATES.items()}
    without = {"average confidence", "ATC", "DoC"}
    assert {name for name, told in found.items() if not told} == without
    for name in found.keys() - without:
        assert 0 < found[name]["squared error"] < 0.1


def test_frames_stay_frames() -> None:
    class Named(KNeighborsClassifier):  # type: ignore[misc]
        def fit(self, X: pd.DataFrame, y: NDArray[Any]) -> "Named":
            assert list(X) == ["a", "b", "c"]
            return super().fit(X.to_numpy(), y)  # type: ignore[no-any-return]

        def predict_proba(self, X: pd.DataFrame) -> NDArray[Any]:
            return super().predict_proba(X.to_numpy())  # type: ignore[no-any-return]

    frames = (pd.DataFrame(X, columns=list("abc")) for X in (X_TR, X_TE))
    X_tr, X_te = frames
    e = collect_evidence(Named(), X_tr, Y, X_te, repetitions=1, samples=2)
    assert e.H_te.shape == (40, 3)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=20), st.integers(0, 5))
def test_rare_classes_are_no_obstacle(labels: list[int], seed: int) -> None:
    y = np.unique(labels, return_inverse=True)[1]
    X = np.random.default_rng(seed).normal(size=(len(y), 2))
    e = collect_evidence(LogisticRegression(), X, y, X_TE[:, :2], repetitions=2, samples=3)
    for function in ESTIMATES.values():
        for metric, told in function(e).items():
            assert np.isfinite(told)
            assert 0 <= told <= (1 if metric == "error" else 10)
