import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.convert.folds import choose_folds, take


@given(st.integers(2, 40), st.integers(2, 8), st.booleans(), st.integers(0, 9))
def test_every_point_is_held_out_once(points: int, folds: int, labels: bool, seed: int) -> None:
    y = np.arange(points) % 2
    found = choose_folds(y, folds, labels=labels, seed=seed)
    assert len(found) == min(folds, points)
    held = np.concatenate([rows for _, rows in found])
    assert sorted(held.tolist()) == list(range(points))
    for kept, out in found:
        assert not set(kept) & set(out)
        assert len(kept) + len(out) == points


def test_classes_are_divided_evenly_where_there_are_enough() -> None:
    y = np.repeat([0, 1], [20, 5])
    assert {int(y[held].sum()) for _, held in choose_folds(y, 5, labels=True)} == {1}


@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame, torch.tensor, list])
def test_points_of_any_kind_are_taken(kind: type) -> None:
    found = take(kind([[1.0], [2.0], [3.0]]), np.array([2, 0]))
    assert np.asarray(found).tolist() == [[3.0], [1.0]]
