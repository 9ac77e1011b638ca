"""Laws of all families that draw their points at once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.seeding import stream
from neural_complexity.task import TaskFamily
from neural_complexity.tasks.families import GaussianProcesses, Polynomials, StepFunctions, Tables
from neural_complexity.tasks.sampling import choose
from neural_complexity.tasks.sinusoids import Sinusoids

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
