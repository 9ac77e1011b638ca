import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.assessment import slices
from neural_complexity.assessment.slices import find_slices

ANY = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=2))


def test_the_slice_that_fails_comes_first() -> None:
    g = np.random.default_rng(0)
    age = g.uniform(20, 80, 200)
    city = np.where(np.arange(200) % 4 == 0, "Rome", "Oslo")
    errors = np.where(age > np.quantile(age, 0.75), 0.5, 0.1)
    first, *rest = find_slices(pd.DataFrame({"age": age, "city": city}), errors)
    assert first.feature == "age"
    assert first.where.startswith("above ")
    assert first.rows == 50
    assert first.error == pytest.approx(0.5)
    assert all(one.error <= 0.5 for one in rest)
    errors = np.where(city == "Rome", 0.9, 0.1)
    first = find_slices(pd.DataFrame({"age": age, "city": city}), errors)[0]
    assert (str(first), first.rows) == ("city = Rome", 50)


def test_missing_values_are_a_slice() -> None:
    values = np.where(np.arange(60) < 20, np.nan, np.arange(60.0))
    first = find_slices(pd.DataFrame({"a": values}), np.where(np.isnan(values), 1.0, 0.0))[0]
    assert (str(first), first.rows, first.error) == ("a is missing", 20, 1.0)


def test_slices_of_few_rows_and_of_all_rows_are_left_out() -> None:
    frame = pd.DataFrame({"a": ["x"] * 9 + ["y"] * 91, "b": ["z"] * 100})
    assert find_slices(frame, np.r_[np.ones(9), np.zeros(91)]) == ()
    with pytest.raises(ValueError, match="errors must be 100 numbers, got 3"):
        find_slices(frame, np.ones(3))


@given(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=40), st.integers(0, 5))
def test_slices_of_any_frame_are_worse_than_all(rows: list[tuple[object, ...]], seed: int) -> None:
    frame = pd.DataFrame(rows, columns=["a", "b"])
    errors = np.random.default_rng(seed).uniform(size=len(frame))
    found = find_slices(frame, errors)
    assert [one.error for one in found] == sorted((one.error for one in found), reverse=True)
    for one in found:
        assert 10 <= one.rows < len(frame)
        assert one.error > errors.mean()


def test_of_many_features_those_that_go_with_errors_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "LOOKED_AT", 3)
    X = np.random.default_rng(0).normal(size=(100, 40))
    X[:, 5] = np.nan
    frame = pd.DataFrame(X).rename(columns=str).assign(word="a")
    errors = np.where(X[:, 31] > 1, 1.0, 0.0)
    found = find_slices(frame, errors)
    assert found[0].feature == "31"
    assert len({one.feature for one in found}) <= 3
