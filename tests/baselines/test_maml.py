from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neural_complexity.baselines.maml import Maml, maml_loss, start_from, train_maml
from neural_complexity.learners.batched import PlacedLearner, stack
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.evaluate import follow
from neural_complexity.meta.training_loop import Moment, Resume
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids

family = Sinusoids(train_points=5, test_points=7)


class KilledError(Exception):
    pass


def maml(recipe: Recipe, resume: Resume | None = None, **change: Any) -> Maml:
    settings = {"seed": 0, "iterations": 7, "tasks": 6, "steps": 2, "lr": 0.01, **change}
    return Maml(family, recipe, resume=resume, **settings)


def train(
    recipe: Recipe, folder: Path | None, stop_after: int | None = None
) -> tuple[nn.Module, list[float]]:
    def watch(moment: Moment) -> None:
        if moment.iteration == stop_after:
            raise KilledError

    build = partial(maml, recipe)
    module, history = train_maml(build, save_every=3, folder=folder, identity="mine", watch=watch)
    return module, [moment.loss for moment in history]


def one_by_one(recipe: Recipe, module: nn.Module, task: Task, steps: int) -> Tensor:
    """Computes what MAML descends, with one learner after the other."""
    losses = []
    for b in range(len(task)):
        part = task[b : b + 1]
        own = {name: p.unsqueeze(0) for name, p in module.named_parameters()}
        losses.append(maml_loss(PlacedLearner(module, own, tuple(own)), part, recipe, steps))
    return torch.cat(losses).mean()


def test_a_step_follows_the_gradient_through_training_of_all_tasks(recipe: Recipe) -> None:
    learner = maml(recipe, steps=3)
    task = family.sample(6, stream(0, "MAML tasks", 0))
    parameters = list(learner.module.parameters())
    expected = torch.autograd.grad(one_by_one(recipe, learner.module, task, 3), parameters)
    learner.iterate()
    for parameter, gradient in zip(parameters, expected, strict=True):
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


@pytest.mark.parametrize("stops", [[1], [3], [4, 5], [6, 7]])
def test_resumed_equals_uninterrupted(recipe: Recipe, tmp_path: Path, stops: list[int]) -> None:
    module, losses = train(recipe, None)
    for stop in stops:
        with pytest.raises(KilledError):
            train(recipe, tmp_path, stop_after=stop)
    resumed, resumed_losses = train(recipe, tmp_path)
    for name, value in module.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value)
    assert resumed_losses == losses
    again, _ = train(recipe, tmp_path, stop_after=1)  # would die if it iterated
    assert torch.equal(next(again.parameters()), next(module.parameters()))


def test_the_seed_decides_everything(recipe: Recipe) -> None:
    torch.manual_seed(1)
    first = maml(recipe)
    torch.manual_seed(2)
    second, other = maml(recipe), maml(recipe, seed=1)
    for learner in (first, second, other):
        learner.iterate()
    ends = [next(learner.module.parameters()) for learner in (first, second, other)]
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


def test_it_makes_learning_quicker_than_from_where_it_began(recipe: Recipe) -> None:
    recipe = replace(recipe, make=partial(mlp, 1, (40, 40), 1), lr=0.01)
    learner = maml(recipe, iterations=60, tasks=32, steps=3, lr=0.02)
    task = family.sample(256, stream(0, "held out"))
    before = follow(start_from(recipe, learner.module), task, seed=0).loss_te[-1].mean()
    while not learner.done:
        learner.iterate()
    after = follow(start_from(recipe, learner.module), task, seed=0).loss_te[-1].mean()
    assert after < 0.7 * before


def test_buffers_and_frozen_parameters_stay_as_they_are() -> None:
    def make() -> nn.Module:
        module = mlp(1, (4,), 1)
        module[0].bias.requires_grad_(False)
        module.register_buffer("unused", torch.ones(2))
        return module

    learner = maml(Recipe(make=make))
    before = {name: value.clone() for name, value in learner.module.state_dict().items()}
    learner.iterate()
    changed = {n for n, v in learner.module.state_dict().items() if not torch.equal(v, before[n])}
    assert changed == {"0.weight", "2.weight", "2.bias"}


def test_a_loss_that_is_not_finite_is_told(recipe: Recipe) -> None:
    learner = maml(replace(recipe, lr=1e200))
    with pytest.raises(FloatingPointError, match="MAML's loss must be finite, got .* iteration 0"):
        learner.iterate()


def test_a_checkpoint_of_other_settings_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path)
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        train_maml(partial(maml, recipe), save_every=3, folder=tmp_path, identity="yours")


@pytest.mark.parametrize("name", ["iterations", "tasks", "steps"])
def test_impossible_sizes_are_refused(recipe: Recipe, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        maml(recipe, None, **{name: 0})
