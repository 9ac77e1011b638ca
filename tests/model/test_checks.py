import pytest
import torch

from conftest import labelled_snapshot
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.checks import check_tensors
from neural_complexity.points import indexed


def test_points_are_checked_by_the_first_of_them() -> None:
    architecture = Architecture(inputs=2, outputs=3, loss="cross_entropy", symmetric=True)
    s = labelled_snapshot()
    for size, fits in ((2, True), (3, False)):
        X = indexed(torch.arange(12).view(3, 4), lambda i, D=size: torch.zeros(*i.shape, D))  # type: ignore[misc]
        tensors = {"X_tr": X, "Y_tr": s.Y_tr, "H_tr": s.H_tr}
        if fits:
            check_tensors(architecture, torch.float64, None, tensors)
        else:
            with pytest.raises(ValueError, match=r"X_tr must be \(tasks, points, 2\)"):
                check_tensors(architecture, torch.float64, None, tensors)
