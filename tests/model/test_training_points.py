from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.model.network import NeuralComplexity
from neural_complexity.model.training_points import learned_from, remember

NUMBERS = arrays.arrays(np.float32, (6, 3), elements=st.floats(-9, 9, width=32))


@given(NUMBERS, st.lists(st.booleans(), min_size=6, max_size=6))
def test_an_nc_knows_the_points_that_it_learned_from_and_no_others(
    rows: Any, chosen: list[bool]
) -> None:
    nc, X, some = NeuralComplexity(3, 1, width=8, heads=2), torch.from_numpy(rows), np.array(chosen)
    assert not learned_from(nc, X).any()
    remember(nc, [X[:0], X[some][::2], X[some][1::2].double()])
    same = (X[:, None] == X[some][None]).all(dim=2).any(dim=1)
    assert learned_from(nc, X).tolist() == same.tolist()
    columns = torch.from_numpy(np.asfortranarray(rows))
    assert learned_from(nc, columns).tolist() == same.tolist()
    assert learned_from(nc, -0.0 + X.double()).tolist() == same.tolist()
