from functools import partial

import pytest
import torch

from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import squared_error
from neural_complexity.meta import evaluate
from neural_complexity.meta.evaluate import follow, predict_gaps
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.oracle import oracle_penalty
from neural_complexity.snapshot import gap
from neural_complexity.task import Task


def test_losses_gap_and_snapshot_belong_to_the_learner_after_its_last_update(
    task: Task, recipe: Recipe
) -> None:
    trajectory = follow(recipe, task, seed=0)
    assert trajectory.loss_te.shape == (recipe.steps + 1, len(task))
    loss_te = squared_error(trajectory.end.H_te, task.Y_te).mean(dim=1)
    torch.testing.assert_close(trajectory.loss_te[-1], loss_te)
    torch.testing.assert_close(trajectory.gap, loss_te - trajectory.loss_tr[-1])
    torch.testing.assert_close(trajectory.gap, gap(squared_error, trajectory.end, task.Y_te))


def test_every_method_starts_from_the_same_learners(task: Task, recipe: Recipe) -> None:
    plain = follow(recipe, task, seed=0)
    other = follow(
        recipe, task, seed=0, penalty=lambda rows: oracle_penalty(squared_error, task.Y_te[rows])
    )
    assert torch.equal(plain.loss_te[0], other.loss_te[0])
    assert other.loss_te[-1].mean() < plain.loss_te[-1].mean()


def test_chunks_get_the_rows_that_are_theirs(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """With learners that all start alike, cutting the tasks into chunks changes nothing."""

    def make() -> torch.nn.Module:
        net = mlp(1, (4,), 1)
        for parameter, value in zip(net.parameters(), (0.3, 0.1, 0.2, 0.1), strict=True):
            torch.nn.init.constant_(parameter, value)
        return net

    recipe = Recipe(make=make, steps=3, lr=0.05)
    run = partial(
        follow,
        recipe,
        task,
        seed=0,
        penalty=lambda rows: oracle_penalty(squared_error, task.Y_te[rows]),
    )
    whole = run()
    monkeypatch.setattr(evaluate, "CHUNK", 4)
    torch.testing.assert_close(run().loss_te, whole.loss_te)
    nc = NeuralComplexity.for_tasks(task, width=16)
    torch.testing.assert_close(
        predict_gaps(nc, whole.end), nc.predict(*whole.end.tensors()).detach()
    )
