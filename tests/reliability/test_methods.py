from typing import get_args

from neural_complexity.reliability.gap_bounds import METHODS
from neural_complexity.reliability.methods import Method


def test_every_method_that_can_be_asked_for_is_known() -> None:
    assert get_args(Method) == METHODS
    assert len(set(METHODS)) == 4
