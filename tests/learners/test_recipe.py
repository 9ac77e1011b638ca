from functools import partial

import pytest
import torch
from torch import nn

from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import squared_error
from neural_complexity.seeding import stream
from neural_complexity.task import Task

make = partial(mlp, 1, (8,), 1)


def test_training_lowers_the_training_loss_of_every_learner(task: Task) -> None:
    def loss(steps: int) -> torch.Tensor:
        h = Recipe(make=make, steps=steps, lr=0.02).train(task, stream(0, "h"))
        return squared_error(h(task.X_tr), task.Y_tr).mean(dim=1)

    assert (loss(50) < loss(0)).all()


def test_the_generator_also_decides_the_noise_and_the_global_state_stays(task: Task) -> None:
    def noisy() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 20), nn.Dropout(0.5), nn.Linear(20, 1))

    recipe = Recipe(make=noisy, steps=3, lr=0.02)
    before = torch.get_rng_state()
    a, b, c = (recipe.train(task, stream(seed, "h")).eval()(task.X_te) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [({"steps": -1}, "steps must not be"), ({"lr": 0.0}, "lr must be positive")],
)
def test_impossible_recipes_are_refused(arguments: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Recipe(make=make, **arguments)  # type: ignore[arg-type]
