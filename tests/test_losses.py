import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.losses import Gaussian, squared_error

numbers = st.floats(-100, 100)


@given(h=numbers, mean=numbers, variance=st.floats(0, 100))
def test_expected_squared_error_is_its_gaussian_integral(
    h: float, mean: float, variance: float
) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)  # exact for polynomials up to degree 9
    Y = torch.from_numpy(mean + variance**0.5 * nodes).reshape(-1, 1, 1)
    integral = squared_error(torch.full_like(Y, h), Y).flatten() @ torch.from_numpy(weights)
    belief = Gaussian(torch.full((1, 1, 1), mean), torch.full((1, 1, 1), variance))
    expected = squared_error.expected(torch.full((1, 1, 1), h), belief)
    torch.testing.assert_close(expected.flatten(), (integral / weights.sum()).reshape(1))


def test_shapes_are_not_broadcast() -> None:
    for shape in ((1, 2), (1, 2, 2), (2, 1, 1)):
        with pytest.raises(ValueError, match="predictions must have the shape of the targets"):
            squared_error(torch.zeros(1, 2, 1), torch.zeros(shape))


def test_squared_error_is_per_point_and_averages_outputs() -> None:
    H, Y = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 0.0], [3.0, 3.0]]])
    assert squared_error(H, Y).tolist() == [[2.5, 9.0]]
