import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_complexity.assessment import moved
from neural_complexity.assessment.moved import detect_move


def draw(seed: int, n: int, shift: float = 0.0) -> np.ndarray:
    X = np.random.default_rng(seed).normal(size=(n, 4))
    X[:, 2] += shift
    return X


def test_rows_of_one_distribution_are_seldom_told_apart() -> None:
    p = [found.p_value for i in range(20) if (found := detect_move(draw(i, 90), draw(i + 99, 60)))]
    assert sum(value < 0.05 for value in p) <= 3  # 1 expected; 4 or more has a chance of 1.6 %
    assert max(p) > 0.3


def test_rows_that_moved_are_told_and_so_is_the_feature() -> None:
    found = detect_move(draw(0, 100), draw(1, 100, shift=2.0), names=["a", "b", "c", "d"])
    assert found is not None
    assert found.p_value < 1e-4
    assert found.auc > 0.8
    assert found.features == ("c",)
    assert "differ from training rows" in str(found)


def test_a_feature_that_goes_missing_is_found() -> None:
    X, Z = draw(0, 80), draw(1, 80)
    Z[::2, 1] = np.nan
    found = detect_move(X, Z)
    assert found is not None
    assert found.features[0] == "feature 1"


def test_rows_far_from_all_others_are_outside() -> None:
    X, Z = draw(0, 100), draw(1, 20)
    Z[7] += 50.0
    found = detect_move(X, Z)
    assert found is not None
    assert 7 in found.outside
    assert len(found.outside) < 5


@settings(max_examples=10)
@given(st.integers(0, 9), st.sampled_from(["constant", "missing", "same", "huge"]))
def test_odd_rows_have_an_answer(seed: int, odd: str) -> None:
    X, Z = draw(seed, 12), draw(seed + 50, 11)
    if odd == "constant":
        X[:, 1] = Z[:, 1] = 3.0
    elif odd == "missing":
        X[:, 1] = Z[:, 1] = np.nan
    elif odd == "same":
        Z = X
    else:
        Z[0, 0] = 1e100
    found = detect_move(X, Z)
    assert found is not None
    assert 0 <= found.p_value <= 1
    assert 0 <= found.auc <= 1


def test_too_few_rows_are_not_tested() -> None:
    assert detect_move(draw(0, 9), draw(1, 100)) is None
    with pytest.raises(ValueError, match="features"):
        detect_move(draw(0, 20), draw(1, 20)[:, :2])


def test_of_many_features_those_are_tested_by_which_rows_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    X_tr, X_te = random.normal(size=(2, 200, 30))
    X_te[:, 17] += 3
    every = detect_move(X_tr, X_te)
    monkeypatch.setattr(moved, "TESTED", 2)
    few = detect_move(X_tr, X_te)
    assert every is not None
    assert few == every
    assert few.features == ("feature 17",)
