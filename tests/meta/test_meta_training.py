import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.meta.meta_training import MetaTraining, Status


@given(st.integers(1, 500), st.floats(0, 0.9), st.integers(0, 9))
def test_schedules_stay_in_their_bounds(iterations: int, ramp: float, lag: int) -> None:
    training = MetaTraining(iterations=iterations, updates=3, ramp=ramp, lag=lag)
    weights = [training.weight(i) for i in range(iterations + 1)]
    assert weights == sorted(weights)
    assert weights[-1] == 1
    assert all(0 <= training.version(i) <= i for i in range(iterations))
    assert 1 <= training.period <= iterations
    assert training.lr_factor(0) == 0.04


def test_a_negative_lag_is_refused_and_no_iterations_are_fine() -> None:
    with pytest.raises(ValueError, match="lag must not be negative, got -1"):
        MetaTraining(iterations=1, updates=1, lag=-1)
    assert MetaTraining(iterations=0, updates=1).lr_factor(0) == 0.04


def test_a_status_survives_json_without_what_json_lacks() -> None:
    status = Status(1, 2, 3, 4, 5.0)
    again = Status(**status.to_json())  # type: ignore[arg-type]
    assert math.isnan(again.loss)
    assert (again.iteration, again.seconds) == (1, 5.0)
