import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.model.architecture import Architecture


@given(
    st.one_of(st.integers(1, 9), st.tuples(*[st.integers(1, 9)] * 3)),
    st.integers(1, 5),
    st.sampled_from(["squared_error", "cross_entropy"]),
)
def test_an_architecture_survives_json(inputs: Any, outputs: int, loss: str) -> None:
    whole = Architecture(inputs=inputs, outputs=outputs, loss=loss, width=16, clip=3.0)
    assert Architecture(**json.loads(json.dumps(asdict(whole)))) == whole
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
