import torch

from neural_complexity.learners.recipe import Recipe
from neural_complexity.memory import MemoryBank
from neural_complexity.meta.collect import collect
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoid import Sinusoids

family = Sinusoids(train_points=5, test_points=7)


def fill(recipe: Recipe, task: Task, weight: float, index: int = 0, lr: float = 0.05) -> MemoryBank:
    torch.manual_seed(0)
    nc = NeuralComplexity.for_tasks(task, width=16)
    bank = MemoryBank(take_snapshot(torch.sin, task), task.Y_te, capacity=1000)
    fast = Recipe(make=recipe.make, steps=recipe.steps, lr=lr)
    collect(
        nc, family, fast, bank, tasks=10, weight=weight, spread_weights=True, seed=3, index=index
    )
    return bank


def rows(bank: MemoryBank) -> torch.Tensor:
    snapshot, _ = bank.sample(400, stream(0, "rows"))
    return snapshot.H_te


def test_every_step_of_every_learner_is_stored_without_gradients(
    recipe: Recipe, task: Task
) -> None:
    bank = fill(recipe, task, 0.0)
    assert (len(bank), bank.dropped) == (10 * (recipe.steps + 1), 0)
    assert not rows(bank).requires_grad


def test_it_depends_on_nc_seed_and_index_alone(recipe: Recipe, task: Task) -> None:
    assert torch.equal(rows(fill(recipe, task, 1.0)), rows(fill(recipe, task, 1.0)))
    assert not torch.equal(rows(fill(recipe, task, 1.0)), rows(fill(recipe, task, 1.0, index=1)))
    assert not torch.equal(rows(fill(recipe, task, 1.0)), rows(fill(recipe, task, 0.0)))


def test_diverged_learners_are_dropped_and_counted(recipe: Recipe, task: Task) -> None:
    bank = fill(recipe, task, 0.0, lr=1e200)
    assert bank.dropped > 0
    assert len(bank) + bank.dropped == 10 * (recipe.steps + 1)
    assert rows(bank).isfinite().all()
