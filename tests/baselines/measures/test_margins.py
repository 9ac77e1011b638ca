import math

import pytest
import torch

from measured import classes_of_points, linear
from neural_complexity.baselines.measures import margins
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.task import Task


@pytest.fixture
def one() -> tuple[BatchedLearner, Task]:
    """A linear network of logits x and -2x with bias 0 and 0.5, at ten points of class 0."""
    X = torch.arange(1.0, 11.0).view(1, 10, 1)
    Y = torch.zeros(1, 10, dtype=torch.int64)
    h = linear(torch.tensor([[[1.0], [-2.0]]]).double(), torch.tensor([[0.0, 0.5]]).double())
    return h, Task(X.double(), Y, X.double(), Y)


def test_the_margin_is_to_the_best_other_class() -> None:
    H = torch.tensor([[[1.0, 5.0, 3.0]] * 3])
    assert margins.margins(H, torch.tensor([[0, 1, 2]])).tolist() == [[-4.0, 2.0, -2.0]]


@pytest.mark.parametrize(("M", "place"), [(1, 0), (9, 0), (10, 0), (20, 1), (39, 2)])
def test_a_tenth_of_the_points_is_not_above_the_lower_tenth(M: int, place: int) -> None:
    each = torch.arange(float(M)).flip(0).unsqueeze(0)
    assert margins.lower_tenth(each).tolist() == [place]


def test_margins_of_a_linear_network(one: tuple[BatchedLearner, Task]) -> None:
    h, task = one
    # m(x) = 3x - 0.5, least at x = 1; logits vary as 5 Var(x).
    assert margins.output_margin(h, h, task).tolist() == pytest.approx([-2.5])
    assert margins.inverse_margin(h, h, task).tolist() == pytest.approx([1 / 2.5**2])
    normalised = margins.normalised_output_margin(h, h, task)
    assert normalised.tolist() == pytest.approx([-2.5 / math.sqrt(5 * 8.25)])


def test_the_input_margin_of_a_linear_network_is_its_distance_from_the_boundary(
    one: tuple[BatchedLearner, Task],
) -> None:
    h, task = one
    found = margins.input_distances(h.placed(), task.X_tr, task.Y_tr)
    expected = task.X_tr.squeeze(-1) - 0.5 / 3  # the boundary is at 1/6
    torch.testing.assert_close(found, expected)
    assert margins.input_margin(h, h, task).tolist() == pytest.approx([-(1 - 1 / 6)])


def test_norms_are_divided_by_the_margin(one: tuple[BatchedLearner, Task]) -> None:
    h, task = one
    over = [margins.frobenius_product_over_margin, margins.spectral_product_over_margin]
    for measure in over:
        assert measure(h, h, task).exp().tolist() == pytest.approx([5 / 2.5**2])
    path = margins.path_norm_over_margin(h, h, task)
    assert path.exp().tolist() == pytest.approx([5.25 / 2.5**2])


def test_spectral_complexity_of_one_layer(one: tuple[BatchedLearner, Task]) -> None:
    h, task = one
    zero = linear(torch.zeros(1, 2, 1))
    # With one layer R = b, the sum over units of the lengths of their weights.
    expected = math.log(math.sqrt(385) * (1 + 2) / (2.5 * 10))
    assert margins.spectral_complexity(h, zero, task).tolist() == pytest.approx([expected])


def test_margins_that_are_not_positive_count_as_small_ones() -> None:
    task = classes_of_points()
    h = linear(torch.zeros(3, 3, 4))
    assert margins.inverse_margin(h, h, task).tolist() == pytest.approx([1e6] * 3)
