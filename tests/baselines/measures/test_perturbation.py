import pytest
import torch

from measured import classes_of_points, classifiers, linear
from neural_complexity.baselines.measures import perturbation
from neural_complexity.baselines.measures.layers import evaluated
from neural_complexity.baselines.measures.perturbation import (
    Scale,
    draw,
    gradients,
    random_radius,
    shifted,
    times,
    worst_radius,
)
from neural_complexity.learners.batched import PlacedLearner
from neural_complexity.losses import cross_entropy
from neural_complexity.task import Task

PRECISION = 0.02  # of the bisection


@pytest.fixture
def pair() -> tuple[PlacedLearner, Task]:
    """Two linear networks with logits a x and -a x, a = 0.1 and 0.4, at points x = 1 of class 0."""
    X, Y = torch.ones(2, 5, 1), torch.zeros(2, 5, dtype=torch.int64)
    a = torch.tensor([0.1, 0.4]).double().view(2, 1, 1)
    return evaluated(linear(torch.cat([a, -a], dim=1))), Task(X, Y, X, Y)


def test_all_learners_get_the_same_numbers(pair: tuple[PlacedLearner, Task]) -> None:
    h, _ = pair
    assert {name: z.shape[0] for name, z in draw(h, 0).items()} == {"weight": 1, "bias": 1}
    assert torch.equal(draw(h, 1)["weight"], draw(h, 1)["weight"])
    assert not torch.equal(draw(h, 0)["weight"], draw(h, 1)["weight"])


def test_shifts_are_added(pair: tuple[PlacedLearner, Task]) -> None:
    h, task = pair
    by = {"weight": torch.ones(1, 2, 1), "bias": torch.ones(1, 2)}
    torch.testing.assert_close(shifted(h, by)(task.X_tr), h(task.X_tr) + 2)
    assert times(torch.tensor([2.0, 3.0]), torch.ones(2, 1, 2)).tolist() == [[[2, 2]], [[3, 3]]]


def test_gradients_are_those_of_each_learner_alone() -> None:
    task = classes_of_points()
    h, _ = classifiers(task, steps=3)
    found = gradients(evaluated(h), task)
    for b in range(3):
        one = h.one(b)
        cross_entropy(one(task.X_tr[b]).unsqueeze(0), task.Y_tr[b : b + 1]).mean().backward()
        for name, p in one.named_parameters():
            assert p.grad is not None
            torch.testing.assert_close(found[name][b], p.grad)


def test_the_worst_perturbation_of_a_linear_network(pair: tuple[PlacedLearner, Task]) -> None:
    h, task = pair
    # Two weights and two biases each take alpha from the margin 2 a.
    radius = worst_radius(h, task, torch.ones_like)
    assert radius.tolist() == pytest.approx([0.05, 0.2], rel=PRECISION)
    # In proportion to themselves, weights are lost at once and biases, which are zero, stay.
    assert worst_radius(h, task, torch.abs).tolist() == pytest.approx([1, 1], rel=PRECISION)


@pytest.mark.parametrize("scale", [torch.ones_like, torch.abs])
def test_the_random_perturbation_of_a_linear_network(
    scale: Scale, pair: tuple[PlacedLearner, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perturbation, "DRAWS", 4)
    h, task = pair
    # A draw changes the margin 2 a by sigma s; of four, one that is negative is too many.
    s = torch.stack([_slope(h, scale, i) for i in range(4)])  # (draws, B)
    flips = torch.where(s < 0, -torch.tensor([0.2, 0.8]) / s, torch.inf)
    expected = flips.amin(dim=0).tolist()
    assert random_radius(h, task, scale).tolist() == pytest.approx(expected, rel=PRECISION)


def _slope(h: PlacedLearner, scale: Scale, i: int) -> torch.Tensor:
    z = draw(h, i)
    moved = scale(h.values["weight"]).squeeze(-1) * z["weight"].squeeze(-1)  # (B, 2)
    moved = moved + scale(h.values["bias"]) * z["bias"]
    return moved[:, 0] - moved[:, 1]


def test_a_network_that_nothing_changes_has_the_largest_radius() -> None:
    X, Y = torch.zeros(1, 3, 1), torch.zeros(1, 3, dtype=torch.int64)
    h = evaluated(linear(torch.ones(1, 2, 1)))
    assert worst_radius(h, Task(X, Y, X, Y), torch.abs).item() == pytest.approx(10, rel=PRECISION)
