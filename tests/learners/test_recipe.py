from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import flat, holds_for_seeds
from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import fit
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.images import FewShot

make = partial(mlp, 1, (8,), 1)


@pytest.mark.trains
def test_training_lowers_the_training_loss_of_every_learner(task: Task) -> None:
    def loss(steps: int, seed: int) -> torch.Tensor:
        h = Recipe(make=make, steps=steps, lr=0.02).train(task, stream(seed, "h"))
        return squared_error(h(task.X_tr), task.Y_tr).mean(dim=1)

    holds_for_seeds(lambda seed: bool((loss(50, seed) < loss(0, seed)).all()))


def test_the_generator_also_decides_the_noise_and_the_global_state_stays(task: Task) -> None:
    def noisy() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 20), nn.Dropout(0.5), nn.Linear(20, 1))

    recipe = Recipe(make=noisy, steps=3, lr=0.02)
    before = torch.get_rng_state()
    a, b, c = (recipe.train(task, stream(seed, "h")).eval()(task.X_te) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_recipe_is_what_fit_does_with_fresh_learners(few_shot: FewShot) -> None:
    points, penalized, visited = few_shot.sample(3, stream(0, "x")), [], []

    class Same:
        def __len__(self) -> int:
            return 3

        def __call__(self, step: int) -> Task:
            return points[torch.tensor([step % 3, 0, 1])]

    def objective(h: BatchedLearner, task: Task) -> Tensor:
        return 2 * cross_entropy(h(task.X_tr), task.Y_tr).mean(dim=1)

    def penalty(_: object, snapshot: Snapshot) -> Tensor:
        penalized.append(len(snapshot))
        return snapshot.H_te.square().mean(dim=(1, 2))

    def visit(step: int, h: BatchedLearner) -> None:
        visited.append((step, len(h.state()["1.0.weight"])))

    common: dict[str, Any] = {
        "loss": cross_entropy,
        "steps": 4,
        "lr": 0.1,
        "optimizer": partial(torch.optim.SGD, momentum=0.9),
        "objective": objective,
        "sharpness": 0.1,
    }
    rest: dict[str, Any] = {"regularizer": penalty, "schedule": lambda done: float(done > 0)}
    rest |= {"visit": visit, "visits": (0, 4)}
    by_recipe = Recipe(make=flat, **common).train(Same(), stream(0, "h"), **rest)
    assert penalized == [3] * 6  # twice in each step but the first
    assert visited == [(0, 3), (4, 3)]
    assert not by_recipe.training
    by_hand = stack(flat, 3, stream(0, "h"))
    fit(by_hand, Same(), **common, **rest)
    for name, value in by_hand.state().items():
        assert torch.equal(by_recipe.state()[name], value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"steps": -1}, "steps must not be negative, got -1"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"lr": float("nan")}, "lr must be positive, got nan"),
        ({"sharpness": -0.1}, "sharpness must not be negative, got -0.1"),
        ({"sharpness": float("nan")}, "sharpness must not be negative, got nan"),
    ],
)
def test_impossible_recipes_are_refused(arguments: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Recipe(make=make, **arguments)  # type: ignore[arg-type]
