from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import holds_for_seeds
from neural_complexity.baselines.metareg import train_metareg
from neural_complexity.baselines.optimize import Optimization
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.trajectory import train_learners
from neural_complexity.regularizers.norms import weighted_l1_penalty
from neural_complexity.seeding import stream
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

recipe = Recipe(make=partial(mlp, 1, (8,), 1), steps=8, lr=0.01)
family = Sinusoids(train_points=4, test_points=20)


def train(updates: int = 8, **options: Any) -> list[Tensor]:
    training = Optimization(updates=updates, lr=0.02)
    return train_metareg(family, recipe, training, **{"seed": 0, "tasks": 64, **options})


@pytest.mark.trains
def test_learned_weights_lower_the_test_loss_of_new_tasks() -> None:
    def lower(seed: int) -> bool:
        weights = train(60, seed=seed)
        assert [w.shape for w in weights] == [(8, 1), (8,), (1, 8), (1,)]
        task = family.sample(1000, stream(seed + 7, "new tasks"))
        penalty = weighted_l1_penalty(weights)
        helped = train_learners(recipe, task, seed=7, penalty=lambda _: penalty).loss_te[-1]
        change = helped - train_learners(recipe, task, seed=7).loss_te[-1]
        return bool(change.mean() < -2 * change.std() / 1000**0.5)

    holds_for_seeds(lower)


def test_stopped_and_resumed_the_weights_are_the_same(tmp_path: Path) -> None:
    whole = train()

    def stop(stage: str, done: int, total: int, *_: object) -> None:
        assert (stage, total) == ("MetaReg", 8)
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(work=Workspace(tmp_path), callback=stop)
    heard: list[int] = []
    again = train(work=Workspace(tmp_path), callback=lambda _, done, *__: heard.append(done))
    assert heard == [6, 7, 8]  # it went on
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        train(9, work=Workspace(tmp_path))


def test_a_loss_that_is_not_finite_is_told() -> None:
    diverging = Recipe(make=recipe.make, steps=60, lr=1e9)
    with pytest.raises(FloatingPointError, match="the loss must be finite, got"):
        train_metareg(family, diverging, Optimization(updates=2, lr=0.02), seed=0, tasks=4)
