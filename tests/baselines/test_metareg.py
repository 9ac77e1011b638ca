from functools import partial
from pathlib import Path

import pytest
import torch

from neural_complexity.baselines.metareg import train_metareg
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.evaluate import follow
from neural_complexity.regularizers.norms import weighted_l1_penalty
from neural_complexity.seeding import stream
from neural_complexity.tasks.sinusoids import Sinusoids

recipe = Recipe(make=partial(mlp, 1, (8,), 1), steps=8, lr=0.01)
family = Sinusoids(train_points=4, test_points=20)
train = partial(train_metareg, family, recipe, seed=0, iterations=8, tasks=64, lr=0.02)


def test_learned_weights_lower_the_test_loss_of_new_tasks() -> None:
    weights = train(iterations=60)
    assert [w.shape for w in weights] == [(8, 1), (8,), (1, 8), (1,)]
    task = family.sample(1000, stream(7, "new tasks"))
    penalty = weighted_l1_penalty(weights)
    helped = follow(recipe, task, seed=7, penalty=lambda _: penalty).loss_te[-1]
    plain = follow(recipe, task, seed=7).loss_te[-1]
    change = helped - plain
    assert change.mean() < -2 * change.std() / 1000**0.5


def test_stopped_and_resumed_the_weights_are_the_same(tmp_path: Path) -> None:
    whole = train()

    def stop(done: int, seconds: float, loss: float) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(folder=tmp_path, watch=stop)
    heard: list[tuple[float, ...]] = []
    again = train(folder=tmp_path, watch=lambda *news: heard.append(news))
    assert heard[0][0] > 1  # it went on
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        train(folder=tmp_path, lr=0.5)


def test_a_loss_that_is_not_finite_is_told() -> None:
    with pytest.raises(FloatingPointError, match="MetaReg's loss must be finite, got"):
        train_metareg(
            family,
            Recipe(make=recipe.make, steps=60, lr=1e9),
            seed=0,
            iterations=2,
            tasks=4,
            lr=0.02,
        )
