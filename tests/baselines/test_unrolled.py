from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import holds_for_seeds
from neural_complexity.baselines.unrolled import (
    MamlTraining,
    Optimization,
    optimize,
    start_from,
    train_maml,
    train_metareg,
)
from neural_complexity.learners.batched import PlacedLearner, stack
from neural_complexity.learners.fit import Recipe, unroll
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.trajectory import train_learners
from neural_complexity.meta.trainer import Status
from neural_complexity.regularizers.penalties import weighted_l1_penalty
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace


class KilledError(Exception):
    pass


def train_line(
    folder: Path | None, stop_after: int | None = None, **change: Any
) -> tuple[nn.Linear, list[Status]]:
    settings = Optimization(**{"updates": 50, "lr": 0.01, "warmup": 0.1, **change})
    torch.manual_seed(0)
    module = nn.Linear(2, 1)
    module.bias.requires_grad_(False)

    def loss(update: int) -> Tensor:
        X = torch.randn(8, 2, generator=stream(0, "x", update))
        error: Tensor = module(X) - X.sum(dim=1, keepdim=True)
        return error.square().mean()

    def callback(stage: str, done: int, total: int, *_: object) -> None:
        assert (stage, total) == ("a line", settings.updates)
        if done == stop_after:
            raise KilledError

    work = Workspace(folder, repr(settings))
    return module, optimize(module, loss, settings, stage="a line", work=work, callback=callback)


@pytest.mark.parametrize("decay", [False, True])
def test_it_is_adam_with_the_scheduled_rate(decay: bool) -> None:
    module, history = train_line(None, decay=decay)
    torch.manual_seed(0)
    twin = nn.Linear(2, 1)
    adam = torch.optim.Adam([twin.weight], lr=0.01)
    settings = Optimization(updates=50, lr=0.01, warmup=0.1, decay=decay)
    for update in range(50):
        adam.param_groups[0]["lr"] = 0.01 * settings.lr_factor(update)
        X = torch.randn(8, 2, generator=stream(0, "x", update))
        loss = (twin(X) - X.sum(dim=1, keepdim=True)).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    torch.testing.assert_close(module.weight, twin.weight)
    assert torch.equal(module.bias, twin.bias)  # it asked for no gradient
    assert [status.iteration for status in history] == list(range(2, 51, 2))
    assert history[-1].loss == pytest.approx(loss.item())


@pytest.mark.parametrize("stops", [[1], [2], [7, 8], [49, 50]])
def test_resumed_equals_uninterrupted(tmp_path: Path, stops: list[int]) -> None:
    module, history = train_line(None)
    for stop in stops:
        with pytest.raises(KilledError):
            train_line(tmp_path, stop_after=stop)
    resumed, again = train_line(tmp_path)
    assert torch.equal(resumed.weight, module.weight)
    assert [status.loss for status in again] == [status.loss for status in history]
    assert [s.seconds for s in again] == sorted(s.seconds for s in again)
    finished, _ = train_line(tmp_path, stop_after=1)  # would die if it went on
    assert torch.equal(finished.weight, module.weight)
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        train_line(tmp_path, lr=0.02)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="updates must be at least 1, got 0"):
        Optimization(updates=0, lr=0.1)
    with pytest.raises(FloatingPointError, match="the loss must be finite, got .* at update 1"):
        train_line(None, lr=1e200, warmup=0.0)


few = Sinusoids(train_points=5, test_points=7)


def maml(
    recipe: Recipe, *, seed: int = 0, work: Workspace | None = None, **change: Any
) -> nn.Module:
    training = MamlTraining(**{"updates": 7, "tasks": 6, "steps": 2, "lr": 0.01, **change})
    return train_maml(few, recipe, training, seed=seed, work=work)[0]


def one_by_one(recipe: Recipe, module: nn.Module, task: Task, steps: int) -> Tensor:
    """Computes what MAML descends, with one learner after the other."""
    losses = []
    for b in range(len(task)):
        part = task[b : b + 1]
        own = {name: p.unsqueeze(0) for name, p in module.named_parameters()}
        start = PlacedLearner(module, own, tuple(own))
        h = unroll(start, part, recipe, steps=steps)
        losses.append(recipe.loss(h(part.X_te), part.Y_te).mean(dim=1))
    return torch.cat(losses).mean()


def test_a_step_follows_the_gradient_through_training_of_all_tasks(recipe: Recipe) -> None:
    with seeded(0, "MAML weights"):
        module = recipe.make()
    task = few.sample(6, stream(0, "MAML tasks", 0))
    parameters = list(module.parameters())
    expected = torch.autograd.grad(one_by_one(recipe, module, task, 3), parameters)
    trained = maml(recipe, steps=3, updates=1)
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
    first = maml(recipe)
    torch.manual_seed(2)
    second, other = maml(recipe), maml(recipe, seed=1)
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
        task = few.sample(256, stream(seed, "held out"))
        with seeded(seed, "MAML weights"):
            start = recipe.make()
        end = maml(recipe, seed=seed, updates=120, tasks=32, steps=3, lr=0.02)
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
    after = maml(recipe, updates=1).state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {"0.weight", "2.weight", "2.bias"}


def test_a_checkpoint_of_another_recipe_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    first, again = (maml(recipe, work=Workspace(tmp_path)) for _ in range(2))
    assert torch.equal(next(first.parameters()), next(again.parameters()))
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        maml(replace(recipe, lr=0.3), work=Workspace(tmp_path))


@pytest.mark.parametrize("name", ["updates", "tasks", "steps"])
def test_impossible_sizes_are_refused(recipe: Recipe, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        maml(recipe, **{name: 0})  # type: ignore[arg-type]


small = Recipe(make=partial(mlp, 1, (8,), 1), steps=8, lr=0.01)
many = Sinusoids(train_points=4, test_points=20)


def metareg(updates: int = 8, **options: Any) -> list[Tensor]:
    training = Optimization(updates=updates, lr=0.02)
    return train_metareg(many, small, training, **{"seed": 0, "tasks": 64, **options})


@pytest.mark.trains
def test_learned_weights_lower_the_test_loss_of_new_tasks() -> None:
    def lower(seed: int) -> bool:
        weights = metareg(60, seed=seed)
        assert [w.shape for w in weights] == [(8, 1), (8,), (1, 8), (1,)]
        task = many.sample(1000, stream(seed + 7, "new tasks"))
        penalty = weighted_l1_penalty(weights)
        helped = train_learners(small, task, seed=7, penalty=lambda _: penalty).loss_te[-1]
        change = helped - train_learners(small, task, seed=7).loss_te[-1]
        return bool(change.mean() < -2 * change.std() / 1000**0.5)

    holds_for_seeds(lower)


def test_stopped_and_resumed_the_weights_are_the_same(tmp_path: Path) -> None:
    whole = metareg()

    def stop(stage: str, done: int, total: int, *_: object) -> None:
        assert (stage, total) == ("MetaReg", 8)
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        metareg(work=Workspace(tmp_path), callback=stop)
    heard: list[int] = []
    again = metareg(work=Workspace(tmp_path), callback=lambda _, done, *__: heard.append(done))
    assert heard == [6, 7, 8]  # it went on
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        metareg(9, work=Workspace(tmp_path))


def test_a_loss_that_is_not_finite_is_told() -> None:
    diverging = Recipe(make=small.make, steps=60, lr=1e9)
    with pytest.raises(FloatingPointError, match="the loss must be finite, got"):
        train_metareg(many, diverging, Optimization(updates=2, lr=0.02), seed=0, tasks=4)
