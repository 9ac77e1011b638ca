import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from neural_complexity.reliability.calibration import Calibration, join
from synthetic import calibration


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"true": torch.zeros(4)}, r"true must have shape \(5,\) in a calibration of 5 learners"),
        ({"features": torch.zeros(5, 2)}, r"features must have shape \(5, 3\)"),
        ({"true": torch.full((5,), math.nan)}, "true must be real numbers"),
        ({"predicted": torch.zeros(5, dtype=torch.int64)}, "predicted must be real numbers"),
        ({"predicted": torch.full((5,), math.inf)}, "predicted must be finite"),
        ({"spread": torch.zeros(5)}, "spread must be positive"),
        ({"predicted": torch.zeros(0)}, "a calibration must have at least one learner"),
    ],
)
def test_broken_calibrations_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(calibration(5), **change)


def test_other_sizes_are_said() -> None:
    c = calibration()  # of 10 training and 20 test points
    assert c.beyond(10, 20) == c.beyond(5, 40) == ""
    assert "21 training points against 10" in c.beyond(21, 20)
    assert "training points" not in c.beyond(10, 9)
    assert "9 test points against 20" in c.beyond(10, 9)


def test_a_calibration_survives_a_file_and_joins() -> None:
    one, other = calibration(5), replace(calibration(7, seed=1), sizes=((4, 6), (30, 40)))
    read = Calibration.read(one.tensors(), one.text())
    assert all(torch.equal(read.tensors()[name], t) for name, t in one.tensors().items())
    assert (read.names, read.sizes, read.note) == (one.names, one.sizes, one.note)
    both = join([one, other])
    assert len(both) == 12
    assert both.sizes == ((4, 10), (20, 40))
    assert torch.equal(both.residuals, torch.cat([one.residuals, other.residuals]))
