import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.meta.plan import Plan, make_plan, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("10min", 600), (" 1.5 h ", 5400), ("2m", 120), (45, 45), (0.5, 0.5)],
)
def test_times_are_read(text: str | float, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("wrong", ["10", "", "min", "-3s", "0s", "5 apples", "1e9h", 0, -1.0, True])
def test_what_is_no_time_is_refused(wrong: str | float) -> None:
    with pytest.raises(ValueError, match="budget must be a positive time such as"):
        seconds(wrong)


def test_infinity_and_nan_are_no_times() -> None:
    for wrong in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="budget must be"):
            seconds(wrong)


duration = st.floats(1e-4, 10)


@given(st.floats(60, 1e5), duration, duration, st.floats(1e-4, 0.1))
def test_a_plan_stays_within_the_budget_unless_that_is_too_small_for_anything(
    budget: float, collecting: float, updating: float, learner: float
) -> None:
    costs = {"collecting": collecting, "updating": updating, "learner": learner}
    plan = make_plan(budget, **costs, most_updates=math.inf)
    training = plan.iterations * (collecting + plan.updates * updating)
    held_out = (plan.learners + plan.chosen_by) * learner
    if plan.iterations > 2:
        assert training < 0.8 * budget
        assert training + held_out < budget
    assert plan.learners >= 40


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="updates must be at least 1, got 0"):
        Plan(iterations=1, updates=0)
