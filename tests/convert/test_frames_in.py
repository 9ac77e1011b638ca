import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.convert.frames_in import frame_numbers, is_plain

cells = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_infinity=False),
    st.text(max_size=3),
)


def test_columns_of_every_kind_become_numbers() -> None:
    train = pd.DataFrame(
        {
            "age": [30, 40, 50],
            "sex": ["f", "m", None],
            "city": pd.Categorical(["b", "a", "b"]),
            "member": [True, False, True],
            "since": pd.to_datetime(["2020-01-02", "2020-01-01", None]),
            "price": ["1.5", "2", "3"],
            "mixed": [1, "x", 2.5],
            "few": pd.array([1, None, 3], dtype="Int64"),
        },
        index=[7, 3, 9],
    )
    test = train.iloc[:2].copy()
    test["city"] = ["c", "b"]
    known, new = frame_numbers(train, test)
    assert known.shape == (3, 8)
    np.testing.assert_array_equal(known[:, 0], [30, 40, 50])
    np.testing.assert_array_equal(known[:, 1], [0, 1, math.nan])
    np.testing.assert_array_equal(known[:, 2], [1, 0, 1])
    np.testing.assert_array_equal(new[:, 2], [-1, 1])  # c is of no training row
    np.testing.assert_array_equal(known[:, 3], [1, 0, 1])
    np.testing.assert_array_equal(known[:, 4], [86400, 0, math.nan])
    np.testing.assert_array_equal(known[:, 5], [1.5, 2, 3])
    np.testing.assert_array_equal(known[:, 7], [1, math.nan, 3])
    assert np.isfinite(known[:, 6]).all()


@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=2, max_size=6))
def test_frames_of_anything_become_numbers_or_missing(rows: list[list[Any]]) -> None:
    frame = pd.DataFrame(rows, columns=["a", "b", "a"])  # a name may occur twice
    known, new = frame_numbers(frame.iloc[1:], frame)
    known, new = (np.asarray(part, dtype=float) for part in (known, new))
    assert known.shape == (len(rows) - 1, 3)
    np.testing.assert_array_equal(new[1:], known)
    np.testing.assert_array_equal(np.isnan(known), frame.isna().to_numpy()[1:])
    assert np.isnan(new[frame.isna().to_numpy()]).all()


def test_what_is_numbers_stays_as_it_is() -> None:
    X = np.eye(3)
    assert frame_numbers(X, X)[0] is X
    frame = pd.DataFrame(X)
    assert frame_numbers(frame, frame)[1] is frame
    assert is_plain(X)
    assert not is_plain(np.array([["a"]], dtype=object))


def test_other_columns_are_refused() -> None:
    frame = pd.DataFrame({"a": ["x", "y"], "b": [1, 2]})
    with pytest.raises(ValueError, match="must have the columns of X_tr, got c in one of them"):
        frame_numbers(frame, frame.assign(c=1))
    with pytest.raises(ValueError, match="got another order"):
        frame_numbers(frame, frame[["b", "a"]])


def test_training_rows_say_what_kind_a_column_is_of() -> None:
    train = pd.DataFrame({"n": ["1", "2.5", "3"], "w": [1, 2, "x"]})
    test = pd.DataFrame({"n": ["?", "7", "3"], "w": [1.0, 2.0, 9.0]})
    known, new = frame_numbers(train, test)
    np.testing.assert_array_equal(new[:, 0], [np.nan, 7, 3])
    np.testing.assert_array_equal(new[:2, 1], known[:2, 1])  # 1 is 1.0
    assert new[2, 1] == -1
    again, _ = frame_numbers(train, train)
    np.testing.assert_array_equal(known, again)


def test_ordered_categories_keep_their_order_and_dates_their_time() -> None:
    sizes = pd.Categorical(["low", "high", "mid"], ["low", "mid", "high"], ordered=True)
    at = pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"])
    train = pd.DataFrame({"size": sizes, "at": at.tz_localize("UTC")})
    known, new = frame_numbers(train, pd.DataFrame({"size": ["mid", "low", "odd"], "at": at}))
    np.testing.assert_array_equal(known[:, 0], [0, 2, 1])
    np.testing.assert_array_equal(new[:, 0], [1, 0, -1])
    np.testing.assert_array_equal(new[:, 1], known[:, 1])


def test_tensors_beside_frames_are_read_or_refused() -> None:
    frame = pd.DataFrame({0: ["a", "b"]})
    with pytest.raises(TypeError, match="X_te must be a dense tensor .* got a meta"):
        frame_numbers(frame, torch.ones(2, 1, device="meta"))
    _, found = frame_numbers(frame, torch.ones(2, 1, requires_grad=True))
    assert found.tolist() == [[-1], [-1]]
