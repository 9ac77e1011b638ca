from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import holds_for_seeds
from neural_complexity.baselines.maml_training import (
    MamlTraining,
    maml_loss,
    start_from,
    train_maml,
)
from neural_complexity.learners.batched import PlacedLearner, stack
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.trajectory import train_learners
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

family = Sinusoids(train_points=5, test_points=7)


def train(
    recipe: Recipe, *, seed: int = 0, work: Workspace | None = None, **change: Any
) -> nn.Module:
    training = MamlTraining(**{"updates": 7, "tasks": 6, "steps": 2, "lr": 0.01, **change})
    return train_maml(family, recipe, training, seed=seed, work=work)[0]


def one_by_one(recipe: Recipe, module: nn.Module, task: Task, steps: int) -> Tensor:
    """Computes what MAML descends, with one learner after the other."""
    losses = []
    for b in range(len(task)):
        part = task[b : b + 1]
        own = {name: p.unsqueeze(0) for name, p in module.named_parameters()}
        losses.append(maml_loss(PlacedLearner(module, own, tuple(own)), part, recipe, steps))
    return torch.cat(losses).mean()


def test_a_step_follows_the_gradient_through_training_of_all_tasks(recipe: Recipe) -> None:
    with seeded(0, "MAML weights"):
        module = recipe.make()
    task = family.sample(6, stream(0, "MAML tasks", 0))
    parameters = list(module.parameters())
    expected = torch.autograd.grad(one_by_one(recipe, module, task, 3), parameters)
    trained = train(recipe, steps=3, updates=1)
    for parameter, gradient in zip(trained.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_gradient_is_of_second_order(recipe: Recipe, task: Task) -> None:
    """Against differences of the loss: the first-order gradient does not pass."""
    recipe = replace(recipe, make=partial(mlp, 1, (8,), 1, activation=nn.Tanh), lr=0.1)
    module = recipe.make()
    weight = module[0].weight  # type: ignore[index]
    direction = torch.randn_like(weight)
    (gradient,) = torch.autograd.grad(one_by_one(recipe, module, task, 3), [weight])
    ends = []
    for side in (1e-5, -1e-5):
        with torch.no_grad():
            weight += side * direction
        ends.append(one_by_one(recipe, module, task, 3).item())
        with torch.no_grad():
            weight -= side * direction
    slope = (ends[0] - ends[1]) / 2e-5
    assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-6)


def test_the_seed_decides_everything(recipe: Recipe) -> None:
    torch.manual_seed(1)
    first = train(recipe)
    torch.manual_seed(2)
    second, other = train(recipe), train(recipe, seed=1)
    ends = [next(module.parameters()) for module in (first, second, other)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_learners_start_from_the_parameters_and_leave_them_alone(
    recipe: Recipe, task: Task
) -> None:
    module = recipe.make()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    started = start_from(recipe, module)
    for name, value in stack(started.make, 4, stream(0, "h")).state().items():
        assert torch.equal(value, before[name].expand(4, *before[name].shape))
    started.train(task, stream(0, "h"))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert (started.loss, started.steps, started.lr) == (recipe.loss, recipe.steps, recipe.lr)


@pytest.mark.trains
def test_it_makes_learning_quicker_than_from_where_it_began(recipe: Recipe) -> None:
    recipe = replace(recipe, make=partial(mlp, 1, (40, 40), 1), lr=0.01)

    def quicker(seed: int) -> bool:
        task = family.sample(256, stream(seed, "held out"))
        with seeded(seed, "MAML weights"):
            start = recipe.make()
        end = train(recipe, seed=seed, updates=120, tasks=32, steps=3, lr=0.02)
        before, after = (
            train_learners(start_from(recipe, module), task, seed=seed).loss_te[-1].mean()
            for module in (start, end)
        )
        return bool(after < 0.7 * before)

    holds_for_seeds(quicker)


def test_buffers_and_frozen_parameters_stay_as_they_are() -> None:
    def make() -> nn.Module:
        module = mlp(1, (4,), 1)
        module[0].bias.requires_grad_(False)
        module.register_buffer("unused", torch.ones(2))
        return module

    recipe = Recipe(make=make)
    with seeded(0, "MAML weights"):
        before = make().state_dict()
    after = train(recipe, updates=1).state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {"0.weight", "2.weight", "2.bias"}


def test_a_checkpoint_of_another_recipe_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    first, again = (train(recipe, work=Workspace(tmp_path)) for _ in range(2))
    assert torch.equal(next(first.parameters()), next(again.parameters()))
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        train(replace(recipe, lr=0.3), work=Workspace(tmp_path))


@pytest.mark.parametrize("name", ["updates", "tasks", "steps"])
def test_impossible_sizes_are_refused(recipe: Recipe, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        train(recipe, **{name: 0})  # type: ignore[arg-type]
