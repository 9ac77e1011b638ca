"""Laws of all families that draw their points at once, and of each."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.seeding import stream
from neural_complexity.task import TaskFamily
from neural_complexity.tasks.families import (
    GaussianProcesses,
    Polynomials,
    Sinusoids,
    StepFunctions,
    choose,
)
from neural_complexity.tasks.splits import Tables

FAMILIES = (Sinusoids, GaussianProcesses, StepFunctions, Tables, Polynomials)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_generator_is_the_only_source_of_randomness(family: type[TaskFamily]) -> None:
    first = family().sample(3, stream(5, "x"))
    torch.rand(7)
    again = family().sample(3, stream(5, "x"))
    assert torch.equal(first.X_tr, again.X_tr)
    assert torch.equal(first.Y_te, again.Y_te)
    assert not torch.equal(first.Y_te, family().sample(3, stream(6, "x")).Y_te)


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_have_the_sizes_and_the_precision_asked_for(family: type[TaskFamily]) -> None:
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        task = family(train_points=4, test_points=6).sample(5, stream(0, "x"))  # type: ignore[call-arg]
        assert task.X_tr.shape == task.Y_tr.shape == (5, 4, 1)
        assert task.X_te.shape == task.Y_te.shape == (5, 6, 1)
        assert {t.dtype for t in (task.X_tr, task.Y_tr, task.X_te, task.Y_te)} == {dtype}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_batch_is_refused(family: type[TaskFamily]) -> None:
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        family().sample(0, stream(0, "x"))


@pytest.mark.parametrize(
    ("family", "arguments", "sentence"),
    [
        (Sinusoids, {"train_points": 0}, "train_points must be at least 1, got 0"),
        (Sinusoids, {"amplitude": (2.0, 1.0)}, "amplitude must be a range"),
        (GaussianProcesses, {"noise": -1.0}, "noise must not be negative, got -1.0"),
        (GaussianProcesses, {"lengthscale": (0.0, 1.0)}, "lengthscale must be positive"),
        (GaussianProcesses, {"inputs": (1.0, 0.0)}, "inputs must be a range from low to high"),
        (StepFunctions, {"jumps": 0}, "jumps must be at least 1, got 0"),
        (StepFunctions, {"level": -1.0}, "level must not be negative, got -1.0"),
        (Polynomials, {"degree": 0}, "degree must be at least 1, got 0"),
        (Polynomials, {"coefficient": -2.0}, "coefficient must not be negative, got -2.0"),
        (Tables, {"train_points": 100}, "points of a task must be at most 75, got 115"),
        (Tables, {"features": 5}, "features must be at most 4, got 5"),
        (Tables, {"part": "third"}, "part must be first or second, got third"),
    ],
)
def test_impossible_families_are_refused(
    family: type[TaskFamily], arguments: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        family(**arguments)


@given(st.lists(st.integers(3, 2000), min_size=1, max_size=20), st.integers(0, 3))
def test_indices_are_chosen_below_the_sizes_and_once(sizes: list[int], count: int) -> None:
    chosen = choose(torch.tensor(sizes), count, stream(0, "x"))
    assert chosen.shape == (len(sizes), count)
    for size, indices in zip(sizes, chosen.tolist(), strict=True):
        assert len(set(indices)) == count
        assert all(0 <= index < size for index in indices)


@pytest.mark.parametrize(("size", "count"), [(4, 4), (5, 3), (5, 1)])
def test_every_ordered_choice_is_as_likely_as_every_other(size: int, count: int) -> None:
    draws = 60_000
    chosen = choose(torch.full((draws,), size), count, stream(0, "x"))
    codes = (chosen * size ** torch.arange(count)).sum(dim=1)
    frequency = codes.unique(return_counts=True)[1].double()
    choices = torch.arange(size, size - count, -1).prod().item()
    assert len(frequency) == choices
    expected = draws / choices
    chi_squared = ((frequency - expected).square() / expected).sum()
    freedom = choices - 1
    assert chi_squared < freedom + 4 * (2 * freedom) ** 0.5


def test_every_task_is_one_sinusoid_within_the_papers_ranges() -> None:
    task = Sinusoids().sample(2000, stream(0, "x"))
    assert task.X_tr.shape == (2000, 10, 1)
    assert task.X_te.shape == (2000, 15, 1)
    # A sin(x + b) = (A cos b) sin x + (A sin b) cos x: fitted on training points, exact on test
    # points.
    basis = lambda X: torch.cat([X.sin(), X.cos()], dim=-1)  # noqa: E731
    weights = torch.linalg.lstsq(basis(task.X_tr), task.Y_tr).solution  # (B, 2, 1)
    torch.testing.assert_close(basis(task.X_te) @ weights, task.Y_te)
    A, b = weights.norm(dim=1), torch.atan2(weights[:, 1], weights[:, 0])
    for value, low, high in ((A, 0.1, 5.0), (b, 0.0, math.pi), (task.X_te, -5.0, 5.0)):
        assert low <= value.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < value.max() <= high + 1e-9
        assert abs(value.mean().item() - (low + high) / 2) < 0.05 * (high - low)


def test_gaussian_processes_have_the_covariance_of_their_kernel() -> None:
    family = GaussianProcesses(lengthscale=(1.5, 1.5), amplitude=(2.0, 2.0), noise=0.3)
    task = family.sample(20_000, stream(0, "x"))
    apart = (task.X_tr[:, 0, 0] - task.X_te[:, 0, 0]).abs()
    product = task.Y_tr[:, 0, 0] * task.Y_te[:, 0, 0]
    for low, high in ((0.0, 0.3), (1.0, 1.3), (4.0, 10.0)):
        these = (apart >= low) & (apart < high)
        expected = 4 * torch.exp(-0.5 * (apart[these] / 1.5).square()).mean()
        error = product[these].std() / these.sum() ** 0.5
        assert abs(product[these].mean() - expected) < 4 * error
    assert abs(task.Y_te.var().item() - (4 + 0.09)) < 0.1


def test_polynomials_are_polynomials_of_their_degree() -> None:
    task = Polynomials(degree=3, train_points=9).sample(50, stream(0, "x"))
    powers = lambda X: (X / 5) ** torch.arange(4)  # noqa: E731
    weights = torch.linalg.lstsq(powers(task.X_tr), task.Y_tr).solution
    torch.testing.assert_close(powers(task.X_te) @ weights, task.Y_te)
    assert weights[:, 3].abs().min() > 0


def test_step_functions_have_one_level_between_two_jumps() -> None:
    task = StepFunctions(jumps=2, train_points=300, test_points=1).sample(20, stream(0, "x"))
    X, Y = task.X_tr[..., 0], task.Y_tr[..., 0]
    ordered = Y.gather(1, X.argsort(dim=1))
    changes = (ordered.diff(dim=1) != 0).sum(dim=1)
    assert changes.max() == 2
    assert changes.double().mean() > 1.5
