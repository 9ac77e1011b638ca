import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import labelled_snapshot
from neural_complexity.model.architecture import Architecture
from neural_complexity.points import indexed


@given(
    st.one_of(st.integers(1, 9), st.tuples(*[st.integers(1, 9)] * 3)),
    st.integers(1, 5),
    st.sampled_from(["squared_error", "cross_entropy"]),
)
def test_an_architecture_survives_json(inputs: Any, outputs: int, loss: str) -> None:
    whole = Architecture(inputs=inputs, outputs=outputs, loss=loss, width=16, clip=3.0)
    assert Architecture(**json.loads(json.dumps(whole.to_json()))) == whole
    assert whole.shape == ((inputs,) if isinstance(inputs, int) else inputs)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"outputs": 0}, "outputs must be at least 1, got 0"),
        ({"clip": -1.0}, "clip must be at least 0, got -1.0"),
        ({"clip": float("nan")}, "clip must be at least 0, got nan"),
        ({"width": 6}, "width must be a multiple of heads, got width=6, heads=4"),
    ],
)
def test_impossible_sizes_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Architecture(**{"inputs": 2, "outputs": 1, **fields})


def test_points_are_checked_by_the_first_of_them() -> None:
    architecture = Architecture(inputs=2, outputs=3, loss="cross_entropy", symmetric=True)
    s = labelled_snapshot()
    for size, fits in ((2, True), (3, False)):
        X = indexed(torch.arange(12).view(3, 4), lambda i, D=size: torch.zeros(*i.shape, D))  # type: ignore[misc]
        tensors = {"X_tr": X, "Y_tr": s.Y_tr, "H_tr": s.H_tr}
        if fits:
            architecture.check(torch.float64, None, tensors)
        else:
            with pytest.raises(ValueError, match=r"X_tr must be \(tasks, points, 2\)"):
                architecture.check(torch.float64, None, tensors)
